#!/usr/bin/env bash
# Takes each step of the protocol between data, log, checkpoint and device out in turn: the crash tests must notice, or it is listed why not.
# usage: protocol-steps [STEP…]     all of them, or those of these names (crates/avfs-core/src/steps.rs)
#
# A feature that only tests enable lets a step be left out on one thread. For each the workloads of the crash test run from
# fixed seeds, 0 and up, until one fails; with the step it must then pass. Prints what noticed, with which seed, and how many runs
# it took.
. "$(dirname "$0")/../lib.sh"

need_cargo
cd "$ROOT"
log=$(mktemp)
on_exit rm -f "$log"
status=0
AVFS_STEPS="$*" cargo test --quiet -p avfs-core --features protocol-steps --test crash -- \
	--ignored --nocapture every_step_that_is_taken_out_is_noticed 2>&1 | tee "$log" | grep -vE '^ {2,}|^$|^stack|^running|^test ' || true
grep -q '^test result: ok' "$log" || status=1
missed=$(sed -nE 's/^[0-9]+ steps: .* ([0-9]+) missed$/\1/p' "$log")
passed=$(sed -nE 's/^[0-9]+ steps: ([0-9]+) noticed, ([0-9]+) equivalent.*/\1 + \2/p' "$log")
say "protocol-steps: $((passed)) passed, ${missed:-1} failed"
((status == 0))
