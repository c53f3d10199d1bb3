#!/usr/bin/env bash
# Volumes whose structures say wrong things under right checksums: checked, repaired at once, nothing readable lost; also with the real commands.
# usage: mutated-images [COUNT] [SEED] [FILES]     so many images in memory (20000), the number of the first (1), so many as files (200)
#
# An image is known by its number alone: COUNT 1 with its number as SEED looks at it again. As files, images are checked, mounted,
# read, written to and unmounted as they are, repaired, checked, and used again, each command within a minute.
. "$(dirname "$0")/../lib.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
count=${1:-20000} seed=${2:-1} files=${3:-200}
need_cargo
scratch
install_commands
mount -t tmpfs none /run
on_exit umount --lazy /run
mountpoint=$SCRATCH/mounted
mkdir "$mountpoint"
faults=0

# in_memory COUNT FIRST ARGUMENT…: runs a test on so many images from this number on.
in_memory() {
	AVFS_MUTATIONS=$1 AVFS_MUTATION_SEED=$2 AVFS_MUTATION_DIRECTORY=$SCRATCH \
		cargo test --manifest-path "$ROOT/Cargo.toml" --target-dir "$TARGET" --quiet -p avfs-core --lib -- "${@:3}" --nocapture
}

fault() {
	say "FAILED: image $number: $*"
	sed 's/^/  /' "$SCRATCH/$number.txt"
	faults=$((faults + 1))
}

# bounded COMMAND ARG…: its exit code; a panic, an end by a signal and no end within a minute are faults.
bounded() {
	local status=0
	timeout --kill-after=5 60 "$@" >"$SCRATCH/said" 2>&1 || status=$?
	if ((status > 100)) || grep -q panicked "$SCRATCH/said"; then fault "$* ends with $status: $(tail -1 "$SCRATCH/said")"; fi
	return $status
}

# used IMAGE: mounts it, reads all of it, changes something, unmounts it. 1: it does not mount.
used() {
	bounded mount.avfs "$1" "$mountpoint" -o "cache_size=64M,log=$SCRATCH/log" || return 1
	bounded find "$mountpoint" -type f -size -2M -exec cat {} + || true
	# Where it is full or mounted read-only there is no room.
	if bounded mkdir "$mountpoint/used" && bounded cp "$0" "$mountpoint/used/file"; then
		bounded mv "$mountpoint/used" "$mountpoint/moved" || true
	fi
	bounded umount.avfs "$mountpoint" || fault "it cannot be unmounted: $(tail -1 "$SCRATCH/said")"
	if mountpoint -q "$mountpoint"; then umount --lazy "$mountpoint"; fi
	if grep -q panicked "$SCRATCH/log"; then fault "the daemon panicked: $(grep -m1 panicked "$SCRATCH/log")"; fi
	rm -f "$SCRATCH/log"
}

if ((count > 0)); then
	say "$count images in memory, from number $seed"
	in_memory "$count" "$seed" structures_that_say || faults=$((faults + 1))
fi
mounted=0 repaired=0 unrepaired=0
for ((number = seed; number < seed + files; number++)); do
	if [ ! -e "$SCRATCH/$number.img" ]; then
		batch=$((seed + files - number))
		in_memory $((batch < 20 ? batch : 20)) "$number" --exact fsck::mutated::images_for_the_commands --ignored >/dev/null
	fi
	image=$SCRATCH/$number.img
	cp --sparse=always "$image" "$SCRATCH/as-it-is.img"
	bounded fsck.avfs -n "$image" || true
	if used "$SCRATCH/as-it-is.img"; then
		mounted=$((mounted + 1))
		bounded fsck.avfs -n "$SCRATCH/as-it-is.img" || true
	fi
	status=0
	bounded fsck.avfs -p "$image" || true
	bounded fsck.avfs -y "$image" || status=$?
	if ((status > 1)); then
		# No volume, no table in any copy, or no room: nothing that a repair could go on from.
		unrepaired=$((unrepaired + 1))
	else
		repaired=$((repaired + 1))
		bounded fsck.avfs -n "$image" || fault "not clean after fsck.avfs -y: $(head -1 "$SCRATCH/said")"
		used "$image" || fault "it does not mount after fsck.avfs -y: $(tail -1 "$SCRATCH/said")"
		bounded fsck.avfs -n "$image" || fault "not clean after it was used: $(head -1 "$SCRATCH/said")"
	fi
	rm -f "$image" "$SCRATCH/$number.txt"
done
say "$count images in memory; of $files as files $mounted mounted as they were, $repaired are clean after fsck.avfs -y, $unrepaired are beyond repair"
((faults == 0)) || { say "VERDICT: $faults faults" && exit 1; }
((files < 20 || repaired > files / 4)) || { say "VERDICT: hardly any image is a volume" && exit 1; }
say "VERDICT: ok"
