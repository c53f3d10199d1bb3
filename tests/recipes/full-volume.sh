#!/usr/bin/env bash
# Four processes do fsstress's operations on a volume that is full most of the time: ENOSPC only while statfs says that nothing is left.
# usage: full-volume [OPERATIONS [SIZE [SEED]]]     so many for each process (20000), on a volume of so much (4G)
#
# A file takes all but an eighth of the volume first. Each operation that fails with ENOSPC asks statfs(2) before and after; removing
# and truncating may never fail so. At the end the volume must be consistent, and all of it must come back.
. "$(dirname "$0")/../lib.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
operations=${1:-20000} size=${2:-4G} seed=${3:-$RANDOM}
need_packages python3
scratch
with_volume avfs "$size" "$SCRATCH/volume"
volume=$SCRATCH/volume

say "== Seed $seed, four processes, $operations operations each on $size"
python3 - "$volume" <<'PYTHON'
import os, sys
os.chdir(sys.argv[1])
found = os.statvfs(".")
fd = os.open("filler", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, found.f_bavail * found.f_frsize // 8 * 7)
PYTHON
started=$(date +%s)
for process in 1 2 3 4; do
	python3 "$ROOT/tests/recipes/full-volume.py" "$volume/$process" $((seed * 10 + process)) "$operations" >"$SCRATCH/$process.json" &
	processes[process]=$!
done
for process in 1 2 3 4; do
	wait "${processes[process]}" || die "process $process ended early"
done
say "done in $(($(date +%s) - started)) s"
python3 - "$SCRATCH"/[1-4].json <<'PYTHON'
import json, sys
total, wrong, most_left = {}, [], 0
for name in sys.argv[1:]:
    one = json.load(open(name))
    most_left = max(most_left, one["most_left"])
    wrong += ["seed %d, %s" % (one["seed"], line) for line in one["wrong"]]
    for kind, outcomes in one["counts"].items():
        for outcome, count in outcomes.items():
            total.setdefault(kind, {}).setdefault(outcome, 0)
            total[kind][outcome] += count
for kind, outcomes in sorted(total.items()):
    print("%-9s" % kind, ", ".join("%d %s" % (count, outcome) for outcome, count in sorted(outcomes.items())))
full = sum(outcomes.get("ENOSPC", 0) for outcomes in total.values())
print("%d operations, %d of them found the volume full, with at most %d KiB left beside what they asked for" %
      (sum(sum(o.values()) for o in total.values()), full, most_left // 1024))
for line in wrong[:20]:
    print("WRONG:", line)
if not full:
    wrong.append("never full")
    print("WRONG: the volume was never full: more operations, or a smaller volume")
sys.exit(1 if wrong else 0)
PYTHON
rm -rf "$volume"/[1-4] "$volume/filler"
sync -f "$volume"
unmount_volume "$volume"
check_volume avfs "$volume.img" || die "the volume is not consistent"
say "verdict: ok, ENOSPC only while nothing was left, and the volume is consistent (seed $seed)"
