#!/usr/bin/env bash
# Kills the daemon of a mounted volume at random moments under load: what was acknowledged is there, what was saved is whole, nothing is stale.
# usage: kills [ROUNDS [SEED]]     so many kills (100), half of them on an image file and half on a loop device; the seed (random)
#
# Processes write and fsync, save by rename without fsync, truncate, punch, make and remove trees, write with O_DIRECT and through
# mappings, and note outside the volume what they begin and what was acknowledged. After each kill the volume is checked,
# mounted (now and then killed again meanwhile), compared with the notes, unmounted and checked; then the work goes on with what is there.
. "$(dirname "$0")/../lib.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
rounds=${1:-100} seed=${2:-$((RANDOM * 32768 + RANDOM))}
need_packages python3
scratch
install_commands
mount -t tmpfs none /run
on_exit umount --lazy /run

# let_go DIR: nothing that hangs is waited for.
let_go() { ! mountpoint -q "$1" || umount --force --lazy "$1"; }
detach() { losetup -d "$1"; }

places=()
for kind in image loop; do
	directory=$SCRATCH/$kind
	mkdir -p "$directory/volume"
	mkfs.avfs --size 1G "$directory/device.img" >/dev/null
	device=$directory/device.img
	if [ "$kind" = loop ]; then
		device=$(losetup --show -f "$device")
		on_exit detach "$device"
	fi
	on_exit let_go "$directory/volume"
	places+=("$device" "$directory")
done
status=0
/usr/bin/python3 "$ROOT/tests/recipes/kills.py" "$rounds" "$seed" "${places[@]}" || status=$?
if ((status == 0)); then
	say "VERDICT: ok"
else
	say "VERDICT: fails (seed $seed)"
	exit 1
fi
