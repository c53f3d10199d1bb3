#!/usr/bin/env bash
# dbench 4: the file operations of the NetBench load, replayed by 1, 4 and 16 clients; prints the throughput of each.
# A run passes if every operation of every client had the outcome that the load file names.
# usage: dbench.sh [avfs|ext4|xfs] [SECONDS] [CLIENTS…]
. "$(dirname "$0")/../tests/lib.sh"

KIND=${1:-avfs}
SECONDS_EACH=${2:-20}
clients=("${@:3}")
((${#clients[@]})) || clients=(1 4 16)

need_packages dbench
isolate "$@"

scratch
with_volume "$KIND" 4G "$SCRATCH/volume"
for count in "${clients[@]}"; do
	log=$SCRATCH/dbench.log
	if dbench --loadfile=/usr/share/dbench/client.txt --directory="$SCRATCH/volume" --timelimit="$SECONDS_EACH" \
		"$count" >"$log" 2>&1 && ! grep " failed " "$log" && grep "^Throughput" "$log"; then
		echo "pass $count clients" >>"$SCRATCH/results"
	else
		tail -20 "$log"
		echo "fail $count clients" >>"$SCRATCH/results"
	fi
done
close_volume "$KIND" "$SCRATCH/volume"
verdict dbench "$SCRATCH/results"
