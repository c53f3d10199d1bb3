#!/usr/bin/env bash
# Processor time for each GB (10^9 bytes) that SMB clients play or record: stock smbd before AVFS and before XFS tuned as in the
# laboratory, each with as many clients and a modelled LUN of its own, cold, each client at 100 Mbit/s in requests of 1 MiB. All
# kinds are measured at the same time: what else uses the machine, or its host, makes the same work take half as long again from one
# round to the next, but not for one of them alone. So the ratio of each round counts.
# usage: processor.sh [SECONDS] [CLIENTS…]      (default: 30 1 4 10)
# Environment: KINDS     what to compare (default: avfs xfs); xfs-same is XFS tuned behind the share of AVFS, with Samba's modules for
#                        Windows' and macOS' metadata, which the laboratory's has not: they cost smbd time, whatever lies below
#              ROUNDS    of each point; the table has the medians (default: 3)
#              PATTERNS  player, recorder or both (default: both)
#              FIRST     what the clients are started by, such as "chrt --rr 10": before everything else here, as in the laboratory, because
#                        they stand for other machines (default: nothing)
#              SHARE     further settings of the share of AVFS, such as "aio read size = 0\n"
#              PERF      a directory: `perf record` of the last round of each point, all kinds in one, goes there, and costs time itself
#
# Counted: smbd, the daemon of AVFS, and the kernel's threads that work for a filesystem on this device, from when all clients are
# connected until everything written is on the device. Not counted: clients, the LUN's process, and the kernel's workers
# of the loop device, which are the device here (shown apart).
. "$(dirname "$0")/../tests/lib.sh"
. "$ROOT/tests/samba.sh"

SECONDS_EACH=${1:-30}
counts=("${@:2}")
((${#counts[@]})) || counts=(1 4 10)
read -ra kinds <<<"${KINDS:-avfs xfs}"
read -ra patterns <<<"${PATTERNS:-player recorder}"
read -ra first <<<"${FIRST:-}"
ROUNDS=${ROUNDS:-3}
MEGABITS=100
declare -A devices

need_packages samba samba-vfs-modules xfsprogs python3
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
keep_host_proc
isolate "$@"
scratch
install_commands
LAB=$AVFS_BIN/avfs-lab
AVFS_CACHE_SIZE=2G

CGROUPS=$SCRATCH/cgroups
mkdir "$CGROUPS"
mount -t cgroup2 none "$CGROUPS"
on_exit umount "$CGROUPS"
OUTSIDE=$CGROUPS$(sed -n 's/^0:://p' /proc/self/cgroup)

# in_group NAME COMMAND ARG…: runs it, and what it starts, in a group whose processor time is counted.
in_group() {
	mkdir -p "$CGROUPS/avfs-processor-$1"
	echo 0 >"$CGROUPS/avfs-processor-$1/cgroup.procs"
	"${@:2}"
	echo 0 >"$OUTSIDE/cgroup.procs"
}

remove_groups() {
	local group
	for group in "$CGROUPS"/avfs-processor-*/; do rmdir "$group" 2>/dev/null || true; done
}
on_exit remove_groups

# attach_device KIND: makes a loop device over a new LUN.
attach_device() {
	local lun=$SCRATCH/lun-$1
	mkdir "$lun"
	chrt --fifo 50 "$LAB" lun --profile raid5-table5 --size-gib 32 "$lun" &
	on_exit umount "$lun"
	for _ in {1..100}; do [ ! -e "$lun/lun" ] || break; sleep 0.1; done
	echo fast >"$lun/control"
	DEVICE=$(losetup --find --show --direct-io=on "$lun/lun")
	devices[$1]=$DEVICE
	on_exit losetup --detach "$DEVICE"
	QUEUE=/sys/block/$(basename "$DEVICE")/queue
	BDI=/sys/block/$(basename "$DEVICE")/bdi
	set_attribute "$QUEUE/scheduler" none
	set_attribute "$QUEUE/nr_requests" 32
	set_attribute "$QUEUE/rotational" 1
}

# set_attribute FILE VALUE: of the kernel's device, for as long as this script runs: they outlive the attachment.
set_attribute() {
	on_exit put_back "$1" "$(sed 's/.*\[\(.*\)\].*/\1/' "$1")"
	echo "$2" >"$1"
}
put_back() { echo "$2" >"$1"; }

# prepare KIND: formats and tunes, see laboratory/experiments/contenders.toml.
prepare() {
	mkdir "$SCRATCH/$1"
	case $1 in
	avfs) mkfs.avfs --force "$DEVICE" >/dev/null ;;
	xfs*)
		mkfs.xfs -q -f "$DEVICE"
		set_attribute "$QUEUE/scheduler" mq-deadline
		set_attribute "$QUEUE/read_ahead_kb" 8192
		set_attribute "$BDI/max_ratio" "$(cat "$BDI/max_ratio")"
		echo $((1 << 30)) >"$BDI/max_bytes"
		set_attribute "$BDI/strict_limit" 1
		;;
	esac
	open_volume "$1"
	mkdir -m 777 "$SCRATCH/$1/share"
	[ "$1" = avfs ] || xfs_io -c 'extsize 8m' "$SCRATCH/$1/share"
	on_exit unmount_volume "$SCRATCH/$1"
}

open_volume() {
	case $1 in
	avfs) in_group "daemon-$1" mount_volume avfs "${devices[$1]}" "$SCRATCH/avfs" ;;
	xfs*) mount -o noatime,allocsize=64m "${devices[$1]}" "$SCRATCH/$1" ;;
	esac
}

# serve KIND: starts smbd before it.
serve() {
	local share=$SCRATCH/$1/share
	{
		printf '    %s\n' "map to guest = Bad User" "guest account = root"
		case $1 in
		avfs) print_share avfs media "$share" && printf '%b' "${SHARE:-}" ;;
		xfs) printf '%s\n' "[media]" "path = $share" "read only = no" "vfs objects = io_uring" "posix locking = no" ;;
		xfs-same) print_share xfs media "$share" ;;
		esac
		echo "guest ok = yes"
	} >"$SCRATCH/shares"
	in_group "smbd-$1" start_smbd "$SCRATCH/shares" "samba-$1"
}

write_out() {
	case $1 in
	avfs) avfsctl sync "$SCRATCH/avfs" ;;
	xfs*) sync --file-system "$SCRATCH/$1" ;;
	esac
}

# play ARG…: the laboratory's clients.
play() {
	local pattern="{ kind = \"$PATTERN\", megabits = $MEGABITS, unit_kib = 1024, buffer_ms = 1000 }"
	"${first[@]}" "$LAB" play "127.0.0.1:$SMB_PORT/media" --clients "$CLIENTS" --pattern "$pattern" \
		--clip-mib $(((SECONDS_EACH + 10) * MEGABITS / 8)) "$@"
}

# spent GROUP: user and system seconds.
spent() {
	[ -d "$CGROUPS/avfs-processor-$1" ] || { echo "0 0"; return; }
	awk '/^user_usec/ { u = $2 } /^system_usec/ { s = $2 } END { print u / 1e6, s / 1e6 }' "$CGROUPS/avfs-processor-$1/cpu.stat"
}

# stolen: ticks of the processors that the host took, and all.
stolen() { awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print $9, all }' /proc/stat; }

# watch_kernel KIND: prints, when it is told to end, the seconds that the kernel's threads took for the filesystem, and those of its
# device's own workers. What they do for all block devices, or to free memory, counts for each kind. A worker's name
# tells what it does at the moment, so it is looked at often.
watch_kernel() {
	local device
	device=$(basename "${devices[$1]}")
	exec /usr/bin/python3 - "$1" "/proc/self/fd/$HOST_PROC" "$device" "$(cat "/sys/block/$device/dev")" <<'PYTHON'
import os, signal, sys, time
filesystem, proc, device, number = sys.argv[1:]
is_xfs = filesystem.startswith("xfs")
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))

def threads():
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                with open(f"{proc}/{name}/stat") as file:
                    text = file.read()
                if text.rsplit(")", 1)[1].split()[1] == "2":
                    yield name
            except OSError:
                pass

def look(thread):
    try:
        with open(f"{proc}/{thread}/schedstat") as file:
            nanoseconds = int(file.read().split()[0])
        with open(f"{proc}/{thread}/comm") as file:
            return nanoseconds, file.read().strip()
    except (OSError, IndexError):
        return None

def kind(comm):
    if device in comm and not comm.startswith("xfs"):
        # Of its name are the loop device's workers, and on XFS those of the filesystem, which end in it.
        return "loop" if comm.endswith(("-" + device, "+" + device)) else "filesystem"
    if number in comm or comm.startswith("kswapd") or "kblockd" in comm or is_xfs and "xfs" in comm:
        return "filesystem"
    return comm

spent, known, everybody, rounds = {}, {}, [], 0
while True:
    last = bool(ended)
    if rounds % 20 == 0:
        everybody = list(threads())
    rounds += 1
    for thread in everybody:
        found = look(thread)
        if found is None:
            continue
        nanoseconds, comm = found
        if thread in known and nanoseconds > known[thread]:
            spent[kind(comm)] = spent.get(kind(comm), 0) + nanoseconds - known[thread]
        known[thread] = nanoseconds
    if last:
        break
    time.sleep(0.05)
print(spent.pop("filesystem", 0) / 1e9, spent.pop("loop", 0) / 1e9)
for comm, nanoseconds in sorted(spent.items(), key=lambda one: -one[1])[:5]:
    print(f"    not counted: {comm} {nanoseconds / 1e9:.3f} s", file=sys.stderr)
PYTHON
}

# lay KIND: what PATTERN reads, with CLIENTS; then the volume is not mounted.
lay() {
	echo fast >"$SCRATCH/lun-$1/control"
	if [ "$PATTERN" = player ]; then
		serve "$1"
		play --seconds 0 >/dev/null
		stop "$SMB_PID"
	fi
	unmount_volume "$SCRATCH/$1"
}

# begin KIND: mounts and serves it, at the speed of the model from now on.
begin() {
	open_volume "$1"
	serve "$1"
	servers[$1]=$SMB_PID ports[$1]=$SMB_PORT
	echo modelled >"$SCRATCH/lun-$1/control"
}

# watch KIND: plays, and prints what was spent: smbd and daemon before and after, kernel and loop device.
watch() {
	local kind=$1 player watcher before
	SMB_PORT=${ports[$kind]}
	play --laid --seconds "$SECONDS_EACH" >"$SCRATCH/played-$kind" 2>"$SCRATCH/playing-$kind" &
	player=$!
	until [ -s "$SCRATCH/playing-$kind" ]; do sleep 0.01; done
	before="$(spent "smbd-$kind") $(spent "daemon-$kind")"
	watch_kernel "$kind" >"$SCRATCH/kernel-$kind" &
	watcher=$!
	wait "$player" || die "$(cat "$SCRATCH/playing-$kind")"
	write_out "$kind"
	kill "$watcher"
	wait "$watcher" || true
	echo "$before $(spent "smbd-$kind") $(spent "daemon-$kind") $(cat "$SCRATCH/kernel-$kind")"
}

# measure: one round of all kinds at the same time.
measure() {
	local kind perf="" stolen
	local -A servers ports watchers
	for kind in "${kinds[@]}"; do lay "$kind"; done
	echo 3 >/proc/sys/vm/drop_caches
	for kind in "${kinds[@]}"; do begin "$kind"; done
	if [ -n "${PERF:-}" ]; then
		perf record --quiet --all-cpus --event cpu-clock --freq 997 --call-graph fp \
			--output "$PERF/$PATTERN-$CLIENTS.data" &
		perf=$!
	fi
	stolen=$(stolen)
	for kind in "${kinds[@]}"; do
		watch "$kind" >"$SCRATCH/spent-$kind" &
		watchers[$kind]=$!
	done
	for kind in "${kinds[@]}"; do wait "${watchers[$kind]}"; done
	stolen="$stolen $(stolen)"
	if [ -n "$perf" ]; then
		kill -INT "$perf"
		wait "$perf" || true
	fi
	for kind in "${kinds[@]}"; do
		tell "$kind" "$stolen" | tee -a "$SCRATCH/figures"
		stop "${servers[$kind]}"
		rm -rf "$SCRATCH/$kind/share"/*
	done
}

# tell KIND STOLEN: a line of what was spent for each GB.
tell() {
	/usr/bin/python3 - "$1" "$PATTERN" "$CLIENTS" "$SCRATCH/played-$1" "$(cat "$SCRATCH/spent-$1")" "$2" <<'PYTHON'
import json, sys
kind, pattern, clients, played, spent, stolen = sys.argv[1:]
figures = [float(figure) for figure in spent.split()]
ticks = [float(figure) for figure in stolen.split()]
reports = [json.loads(line) for line in open(played)]
gigabytes = sum(report["bytes"] for report in reports) / 1e9
late = sum(report["late"] for report in reports)
smbd = [figures[4] - figures[0], figures[5] - figures[1]]
daemon = [figures[6] - figures[2], figures[7] - figures[3]]
kernel, loop = figures[8:10]
stolen = (ticks[2] - ticks[0]) / (ticks[3] - ticks[1]) * 100
each = [seconds / gigabytes for seconds in (sum(smbd) + sum(daemon) + kernel, *smbd, *daemon, kernel, loop)]
print(kind, pattern, clients, f"{gigabytes:.2f}", late, *(f"{seconds:.3f}" for seconds in each), f"{stolen:.1f}")
PYTHON
}

# table: of each point the median of its rounds, and of the ratios in each of them.
table() {
	/usr/bin/python3 - "$SCRATCH/figures" "${kinds[@]}" <<'PYTHON'
import statistics, sys
figures, *kinds = sys.argv[1:]
shown = {"avfs": "AVFS", "xfs": "XFS tuned", "xfs-same": "XFS tuned, same share"}
points = {}
for line in open(figures):
    kind, pattern, clients, _, _, seconds, *_ = line.split()
    points.setdefault(f"{clients} {pattern}{'s' * (clients != '1')}", {}).setdefault(kind, []).append(float(seconds))
print("| s/GB |" + "".join(f" {shown[kind]} |" + " ratio |" * (kind != "avfs") for kind in kinds))
print("|---|" + "".join("---|" + "---|" * (kind != "avfs") for kind in kinds))
for point, spent in points.items():
    cells = [point]
    for kind in kinds:
        cells.append(f"{statistics.median(spent[kind]):.3f}")
        if kind != "avfs":
            ratios = [one / other for one, other in zip(spent.get("avfs", []), spent[kind])]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-")
    print("| " + " | ".join(cells) + " |")
PYTHON
}

for kind in "${kinds[@]}"; do
	attach_device "$kind"
	prepare "$kind"
done
say "kind pattern clients GB late s/GB: smbd-user smbd-system daemon-user daemon-system kernel (loop) stolen%"
for PATTERN in "${patterns[@]}"; do
	for CLIENTS in "${counts[@]}"; do
		for ((round = 0; round < ROUNDS; round++)); do
			measure
		done
	done
done
for kind in "${kinds[@]}"; do unmount_volume "$SCRATCH/$kind"; done
table
