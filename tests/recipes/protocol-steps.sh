#!/usr/bin/env bash
# Takes each step of the protocol between data, log, checkpoint and device, and of the lease, out in turn: a test must notice, or it is listed why not.
# usage: protocol-steps [STEP…]     all of them, or those of these names (crates/avfs-core/src/steps.rs)
#
# A feature that only tests enable lets a step be left out on one thread. For each the workloads of the crash test run from
# fixed seeds, 0 and up, until one fails; with the step it must then pass. For the steps of the lease that is the simulation of several
# hosts on one device. Prints what noticed, with which seed, and how many runs it took.
. "$(dirname "$0")/../lib.sh"

need_cargo
cd "$ROOT"
log=$(mktemp)
on_exit rm -f "$log"
status=0 passed=0 failed=0

# take_out TARGET TEST STEP…: those of a test; all of its steps where none is named
take_out() {
	local target=$1 test=$2 noticed equivalent missed
	shift 2
	# shellcheck disable=SC2086 # the target is one or two words
	AVFS_STEPS="$*" cargo test --quiet -p avfs-core --features protocol-steps $target -- \
		--ignored --nocapture "$test" 2>&1 | tee "$log" | grep -vE '^ {2,}|^$|^stack|^running|^test ' || true
	grep -q '^test result: ok' "$log" || status=1
	read -r noticed equivalent missed < <(
		sed -nE 's/^[0-9]+ steps: ([0-9]+) noticed, ([0-9]+) equivalent, ([0-9]+) missed$/\1 \2 \3/p' "$log"
		echo 0 0 1
	)
	passed=$((passed + noticed + equivalent)) failed=$((failed + missed))
}

lease=" $(sed -n '/\/\/ Lease\./,/^}/s/^ *\([A-Za-z]*\): .*/\1/p' crates/avfs-core/src/steps.rs | tr '\n' ' ') "
of_lease=() others=()
for step; do
	if [[ $lease == *" $step "* ]]; then of_lease+=("$step"); else others+=("$step"); fi
done
(($# > 0 && ${#others[@]} == 0)) || take_out "--test crash" every_step_that_is_taken_out_is_noticed "${others[@]}"
(($# > 0 && ${#of_lease[@]} == 0)) || take_out --lib every_step_of_the_lease_that_is_taken_out_is_noticed "${of_lease[@]}"
say "protocol-steps: $passed passed, $failed failed"
((status == 0))
