#!/usr/bin/env bash
# A run of the laboratory that is ended with TERM or with KILL, or of which only the outermost shell is killed, leaves no process, no
# loop device and no settings of one; the next run goes on where it stopped, and takes away the directory that a killed one left.
# usage: broken-off.sh
. "$(dirname "$0")/../lib.sh"

build_avfs
scratch
OUT=$SCRATCH/out TMP=$SCRATCH/tmp
mkdir "$OUT" "$TMP"
RESULTS=$SCRATCH/results

loop_devices() { losetup --noheadings --list --output NAME | sort; }
# Everything that a run starts has its environment, whatever session or namespace it is in.
processes() {
	local environment
	for environment in /proc/[0-9]*/environ; do
		[ "$environment" != "/proc/$$/environ" ] || continue
		! { tr '\0' '\n' <"$environment"; } 2>/dev/null | grep -qxF "LAB_OUT=$OUT" || basename "$(dirname "$environment")"
	done
}
points() { if [ -f "$OUT/smoke.jsonl" ]; then grep -c '"clients"' "$OUT/smoke.jsonl" || true; else echo 0; fi; }
# What outlives an attachment. `rotational` does not: attaching takes it from whatever holds the file, so a device that an image on
# a turning disk was on last reads otherwise after a run although the run put back all it changed.
queue_settings() { grep -H . /sys/block/loop*/queue/{read_ahead_kb,scheduler,nr_requests} 2>/dev/null | sort || true; }

# within SECONDS COMMAND…: true when it is in time.
within() {
	local tenths=$(($1 * 10))
	shift
	while ! "$@"; do
		((tenths-- > 0)) || return 1
		sleep 0.1
	done
}
# The first run has measured a point and begun another one; there are not enough of them for all to do so.
is_at_work() { (($(points) > 0)) && [ "$(loop_devices)" != "$loops" ]; }
nothing_is_left() { [ -z "$(processes)" ] && [ "$(loop_devices)" = "$loops" ]; }
directories() { find "$TMP" -maxdepth 1 -name 'avfs-lab.?*' -type d | wc -l; }
kill_group() { kill -KILL -- "-$1" 2>/dev/null || true; }
case_is() { if "${@:2}"; then echo "pass $1"; else echo "fail $1"; fi >>"$RESULTS"; }

loops=$(loop_devices)
settings=$(queue_settings)
for how in TERM KILL "KILL of its shell"; do
	# In a process group of its own, as a shell starts what somebody types.
	LAB_OUT=$OUT TMPDIR=$TMP AVFS_BIN=$AVFS_BIN setsid ./lab smoke >"$SCRATCH/log" 2>&1 &
	shell=$!
	on_exit kill_group "$shell"
	if ! within 120 is_at_work; then
		cat "$SCRATCH/log"
		die "the laboratory did not get to work"
	fi
	sleep 3
	case $how in
	TERM) kill -TERM "$shell" ;;
	KILL) kill -KILL -- "-$shell" ;;
	*) kill -KILL "$shell" ;;
	esac
	wait "$shell" 2>/dev/null || true
	case_is "$how: nothing is left" within 10 nothing_is_left
	processes | while read -r pid; do say "left: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
	[ "$how" != TERM ] || case_is "$how: its directory is gone" [ "$(directories)" = 0 ]
	case_is "$how: it has not gone on" [ "$(points)" = 1 ]
done
LAB_OUT=$OUT TMPDIR=$TMP AVFS_BIN=$AVFS_BIN ./lab smoke >"$SCRATCH/log" 2>&1 || cat "$SCRATCH/log"
case_is "the next run goes on" [ "$(points)" -ge 3 ]
different=$(grep -o '"experiment":.*"clients":[0-9]*' "$OUT/smoke.jsonl" | sort -u | wc -l)
case_is "what was measured is not measured again" [ "$(points)" = "$different" ]
case_is "directories of the killed are gone" [ "$(directories)" = 0 ]
# Others may have come since.
changed=$(comm -23 <(echo "$settings") <(queue_settings))
case_is "the settings of loop devices are as before" [ -z "$changed" ]
case_is "nothing is left in the end" within 30 nothing_is_left
verdict broken-off "$RESULTS"
