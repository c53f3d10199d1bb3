#!/usr/bin/env bash
# dbench 4: the file operations of the NetBench load, replayed by 1, 4 and 16 clients; prints the throughput of each.
# A run passes if every operation of every client had the outcome that the load file names. With several kinds of volume,
# one after the other, it ends with a table of them.
# usage: dbench.sh [KIND[,KIND…]] [SECONDS] [CLIENTS…]      (kinds: avfs, ext4, xfs, ntfs; default: avfs 20 1 4 16)
. "$(dirname "$0")/../tests/lib.sh"

IFS=, read -ra kinds <<<"${1:-avfs}"
SECONDS_EACH=${2:-20}
clients=("${@:3}")
((${#clients[@]})) || clients=(1 4 16)

need_packages dbench
isolate "$@"

scratch
for kind in "${kinds[@]}"; do
	with_volume "$kind" 4G "$SCRATCH/$kind"
	for count in "${clients[@]}"; do
		log=$SCRATCH/dbench.log
		if dbench --loadfile=/usr/share/dbench/client.txt --directory="$SCRATCH/$kind" --timelimit="$SECONDS_EACH" \
			"$count" >"$log" 2>&1 && ! grep " failed " "$log" && rate=$(grep "^Throughput" "$log"); then
			say "$kind: $rate"
			echo "$kind $count $(awk '{ print $2 }' <<<"$rate")" >>"$SCRATCH/figures"
			echo "pass $kind, $count clients" >>"$SCRATCH/results"
		else
			tail -20 "$log"
			echo "fail $kind, $count clients" >>"$SCRATCH/results"
		fi
	done
	close_volume "$kind" "$SCRATCH/$kind"
done
((${#kinds[@]} == 1)) || throughput_table "$SCRATCH/figures"
verdict dbench "$SCRATCH/results"
