#!/usr/bin/env bash
# A volume with very many files: memory of each beside the cache, time to mount after the daemon was killed, and a cold
# `ls -l` of 10,000 entries.
# usage: million.sh [FILES]      (in directories of 10,000)
. "$(dirname "$0")/../tests/lib.sh"

FILES=${1:-1000000}
need_packages python3
isolate "$@"
scratch
with_volume avfs 16G "$SCRATCH/volume"
daemon() { avfsctl info "$SCRATCH/volume" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["process"])'; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$(daemon)/status"; }

empty=$(resident_kib)
python3 - "$SCRATCH/volume" "$FILES" <<'PYTHON'
import os, sys, time
base, files = sys.argv[1], int(sys.argv[2])
content = b"x" * 100
started = time.monotonic()
for index in range(files):
    directory = f"{base}/shot_{index // 10000:04}"
    if index % 10000 == 0:
        os.mkdir(directory)
    descriptor = os.open(f"{directory}/shot_{index // 10000:04}.{index % 10000:06}.dpx", os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(descriptor, content)
    os.close(descriptor)
print(f"{files / (time.monotonic() - started):.0f} files made per second, each with 100 bytes")
PYTHON
# Not sync(1): the kernel does not pass that on to a FUSE filesystem.
avfsctl sync "$SCRATCH/volume"
# What holds file data is pinned from the start and counts as the cache.
full=$(resident_kib)
say "$(((full - empty) * 1024 / FILES)) bytes of memory for each file beside the cache"

kill -9 "$(daemon)"
umount -l "$SCRATCH/volume"
started=$(date +%s%N)
mount_volume avfs "$SCRATCH/volume.img" "$SCRATCH/volume"
say "$((($(date +%s%N) - started) / 1000000)) ms to mount after kill -9"
[ "$(find "$SCRATCH/volume" -type f | wc -l)" = "$FILES" ] || die "files are missing after the kill"

for _ in 1 2 3; do
	unmount_volume "$SCRATCH/volume"
	mount_volume avfs "$SCRATCH/volume.img" "$SCRATCH/volume"
	started=$(date +%s%N)
	# shellcheck disable=SC2012 # ls is what is measured
	entries=$(ls -l "$SCRATCH/volume/shot_0003" | wc -l)
	say "$((($(date +%s%N) - started) / 1000000)) ms for ls -l of $((entries - 1)) entries, cold"
done
