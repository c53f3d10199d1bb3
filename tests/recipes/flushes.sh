#!/usr/bin/env bash
# Every acknowledged fsync is followed by a flush at a device that caches and forgets: block device, file on FUSE, ext4, XFS, btrfs.
# usage: flushes [FSYNCS]     so many fsyncs for each kind (20); KINDS="fuse block …" chooses
#
# The device keeps what is written to it in a cache, and puts it into its backing file when it is told to flush, and only
# then. For each kind it is counted whether the device has heard a flush after the last write of each fsync, and then the
# backing file alone, which is what a loss of power would leave, is mounted: every acknowledged file must be there.
. "$(dirname "$0")/../lib.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
fsyncs=${1:-20}
kinds=${KINDS:-fuse block ext4 xfs btrfs}
scratch
need_packages nbdkit libnbd-bin xfsprogs btrfs-progs e2fsprogs python3
install_commands
mount -t tmpfs none /run
on_exit umount --lazy /run

# device DIR: a caching device in the file DIR/d/volume, its backing in DIR/backing, what it heard in DIR/requests.
device() {
	local dir=$1
	mkdir -p "$dir/d"
	truncate -s 1G "$dir/backing"
	TMPDIR=$dir nbdkit --foreground --unix "$dir/socket" --filter=log --filter=cache file "$dir/backing" \
		logfile="$dir/requests" cache=writeback 2>"$dir/nbdkit.log" &
	on_exit stop $! 5
	await "$dir/socket"
	nbdfuse "$dir/d/volume" "nbd+unix:///?socket=$dir/socket" 2>"$dir/nbdfuse.log" &
	on_exit stop $! 5
	on_exit quietly umount --lazy "$dir/d"
	await "$dir/d/volume"
}

# quietly COMMAND ARG…: what may be done already.
quietly() { "$@" 2>/dev/null || true; }

await() {
	local tenths=100
	while [ ! -e "$1" ] && ((tenths-- > 0)); do sleep 0.1; done
	[ -e "$1" ] || die "$1 does not come"
}

attach() {
	ATTACHED=$(losetup --show -f "$1")
	on_exit quietly losetup -d "$ATTACHED"
}

# place KIND DEVICE DIR: makes PLACE, where mkfs.avfs is told to make a volume on that device.
place() {
	local kind=$1 device=$2 dir=$3
	case $kind in
	fuse) PLACE=$device ;;
	block)
		attach "$device"
		PLACE=$ATTACHED
		;;
	*)
		attach "$device"
		[ -n "${FOUND:-}" ] || "mkfs.$kind" -q "$ATTACHED" >/dev/null
		mkdir "$dir/below"
		mount -t "$kind" "$ATTACHED" "$dir/below"
		on_exit quietly umount --lazy "$dir/below"
		PLACE=$dir/below/volume
		[ -n "${FOUND:-}" ] || truncate -s 512M "$PLACE"
		;;
	esac
}

# write_and_sync DIR REQUESTS COUNT: prints how many fsyncs the device has not heard.
write_and_sync() {
	python3 - "$@" <<'PY'
import os, sys
where, log, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
heard = open(log)
def requests():  # W a write, F a flush or a write that forces itself through, since the last call
    return ['F' if ' Flush ' in line or ' fua=1' in line else 'W'
            for line in heard if (' Write ' in line or ' Flush ' in line) and '...' in line]
unheard = 0
for number in range(count):
    file = os.open('%s/%d' % (where, number), os.O_CREAT | os.O_WRONLY, 0o644)
    requests()
    os.write(file, b'take %d ' % number * 500)
    os.fsync(file)
    during = requests()
    unheard += 'W' not in during or during[-1] != 'F'
print(unheard)
PY
}

check() {
	python3 - "$@" <<'PY'
import sys
where, count, lost = sys.argv[1], int(sys.argv[2]), 0
for number in range(count):
    try:
        lost += open('%s/%d' % (where, number), 'rb').read() != b'take %d ' % number * 500
    except OSError:
        lost += 1
print(lost)
PY
}

passed=0 failed=0
for kind in $kinds; do
	dir=$SCRATCH/$kind
	mkdir -p "$dir/m" "$dir/after/m"
	device "$dir"
	place "$kind" "$dir/d/volume" "$dir"
	mkfs.avfs --force "$PLACE" >/dev/null
	sync -f "$dir"
	mount.avfs "$PLACE" "$dir/m" -o "cache_size=64M,log=$dir/log"
	on_exit unmount_volume "$dir/m"
	unheard=$(write_and_sync "$dir/m" "$dir/requests" "$fsyncs")
	flushes=$(grep -cE ' Flush .*[.][.][.]|fua=1 [.][.][.]' "$dir/requests" || true)
	# What a loss of power leaves: the backing file, without the device's cache.
	cp --sparse=always "$dir/backing" "$dir/after/backing"
	# Two filesystems of one identity are not mounted at once.
	unmount_volume "$dir/m"
	! mountpoint -q "$dir/below" || umount "$dir/below"
	[ "$kind" = fuse ] || losetup -d "$ATTACHED"
	FOUND=yes place "$kind" "$dir/after/backing" "$dir/after"
	mount.avfs "$PLACE" "$dir/after/m" -o "cache_size=64M,log=$dir/after/log"
	on_exit unmount_volume "$dir/after/m"
	lost=$(check "$dir/after/m" "$fsyncs")
	say "$(printf '%-6s %d fsyncs, %d flushes heard, %d fsyncs unheard, %d lost' "$kind" "$fsyncs" "$flushes" "$unheard" "$lost")"
	if ((unheard == 0 && lost == 0)); then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
say "flushes: $passed passed, $failed failed"
((failed == 0 && passed > 0))
