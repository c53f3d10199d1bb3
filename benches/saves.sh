#!/usr/bin/env bash
# Saves by rename without an fsync: how long 1,000 of them take, of 20 KB each, onto ten names in turn; and single fsyncs of 4 KiB.
# usage: saves.sh [ROUNDS] [KIND…]      (default: 3 rounds of ext4, xfs and avfs in turn)
. "$(dirname "$0")/../tests/lib.sh"

ROUNDS=${1:-3}
KINDS=("${@:2}")
((${#KINDS[@]})) || KINDS=(ext4 xfs avfs)
need_packages python3
isolate "$@"
scratch

for ((round = 1; round <= ROUNDS; round++)); do
	for kind in "${KINDS[@]}"; do
		with_volume "$kind" 1G "$SCRATCH/volume"
		python3 - "$SCRATCH/volume" "$kind" <<'PYTHON'
import os, sys, time
base, kind = sys.argv[1:]
content = b"x" * 20000
slowest, started = 0, time.monotonic()
for save in range(1000):
    began = time.monotonic()
    with open(base + "/new", "wb") as file:
        file.write(content)
    os.rename(base + "/new", f"{base}/project{save % 10}")
    slowest = max(slowest, time.monotonic() - began)
print(f"{kind}: {time.monotonic() - started:.3f} s for 1,000 saves of 20 KB, the slowest {slowest * 1000:.1f} ms")
waits = []
file = os.open(base + "/fsynced", os.O_CREAT | os.O_WRONLY)
for block in range(500):
    began = time.monotonic()
    os.pwrite(file, content[:4096], block * 4096)
    os.fsync(file)
    waits.append(time.monotonic() - began)
waits.sort()
print(f"{kind}: an fsync of 4 KiB {waits[250] * 1000:.2f} ms in the median of 500, {waits[495] * 1000:.2f} the 99th in a hundred")
PYTHON
		unmount_volume "$SCRATCH/volume"
		rm -f "$SCRATCH/volume.img"
	done
done
