#!/usr/bin/env bash
# fsx, the file system exerciser: random operations on one file, every byte read compared with what was written.
# usage: fsx.sh [avfs|ext4|xfs] [SEED…]
# A failure is repeated with the seed it names: fsx.sh KIND SEED.
. "$(dirname "$0")/../lib.sh"

KIND=${1:-avfs}
shift || true
OPERATIONS_SMALL=20000 # on a file of 256 KiB
OPERATIONS_LARGE=1000  # on a file of 40 MiB, operations of up to 9 MiB

need_cargo_tool fsx 0.3.2 fsx
isolate "$KIND" "$@"

# Three seeds that are always the same, and one that is new each time.
seeds=("$@")
((${#seeds[@]})) || seeds=(1 2 3 "$(date +%s)")
scratch

# exercise PATH PROFILE OPERATIONS: all seeds, on the volume mounted.
exercise() {
	local path=$1 profile=$2 operations=$3 seed name log=$SCRATCH/fsx.log
	for seed in "${seeds[@]}"; do
		name="$path $profile seed $seed"
		if "$TOOLS/fsx" -q -f "$ROOT/tests/gates/fsx/$profile.toml" -N "$operations" -S "$seed" -P "$SCRATCH" \
			"$SCRATCH/$path/file" >"$log" 2>&1; then
			say "ok: $name, $operations operations"
			echo "pass $name" >>"$SCRATCH/results"
		else
			say "FAILED: $name"
			tail -30 "$log"
			echo "fail $name" >>"$SCRATCH/results"
		fi
	done
}

# The data paths of AVFS are chosen by mount options; the kernel's filesystems have the page cache alone.
case $KIND in
avfs) paths=("direct:data_path=direct" "page_cache:data_path=page_cache") ;;
*) paths=("page_cache:") ;;
esac
for path in "${paths[@]}"; do
	with_volume "$KIND" 1G "$SCRATCH/${path%%:*}" "${path#*:}"
	exercise "${path%%:*}" small "$OPERATIONS_SMALL"
	exercise "${path%%:*}" large "$OPERATIONS_LARGE"
done
verdict fsx "$SCRATCH/results"
