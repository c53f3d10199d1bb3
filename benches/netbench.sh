#!/usr/bin/env bash
# The NetBench load through stock smbd, one kind of volume after the other in one run: MB/s at 1, 4 and 16 clients.
# usage: netbench.sh [SECONDS] [KIND…]      (default: 15 ext4 xfs avfs)
. "$(dirname "$0")/../tests/lib.sh"
. "$ROOT/tests/samba.sh"

SECONDS_EACH=${1:-15}
kinds=("${@:2}")
((${#kinds[@]})) || kinds=(ext4 xfs avfs)

need_packages samba samba-vfs-modules samba-testsuite dbench
isolate "$@"
scratch
for kind in "${kinds[@]}"; do
	with_volume "$kind" 4G "$SCRATCH/$kind"
	{
		printf '    %s\n' "server min protocol = NT1" "ntlm auth = yes"
		# The load speaks SMB1, whose Flush the module io_uring of Samba 4.17 never answers: it polls its ring in the main loop alone,
		# and SMB1 waits in one of its own. SMB2 and SMB3 are answered.
		samba_share "$kind" media "$SCRATCH/$kind/share" | sed '/vfs objects/s/ io_uring//'
	} >"$SCRATCH/shares"
	start_smbd "$SCRATCH/shares"
	for clients in 1 4 16; do
		rate=$(smbtorture --configfile="$SMB_CONF" --smb-ports="$SMB_PORT" --user="$SMB_USER%$SMB_PASSWORD" \
			--loadfile=/usr/share/dbench/client.txt --num-progs="$clients" --timelimit="$SECONDS_EACH" \
			"//127.0.0.1/media" bench.nbench 2>&1 | awk '/^Throughput/ { rate = $2 } END { print rate }')
		echo "$kind $clients ${rate:-0}" | tee -a "$SCRATCH/figures"
	done
	stop "$SMB_PID"
	rm -rf "$SCRATCH/samba"
	unmount_volume "$SCRATCH/$kind"
done
throughput_table "$SCRATCH/figures"
