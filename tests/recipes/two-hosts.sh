#!/usr/bin/env bash
# Two hosts on one device, with a halt at any step: after one of them has the volume, no byte of the other reaches it.
# usage: two-hosts [WORLDS [ROUNDS [CORES]]]     so many simulated worlds of leases (400), live rounds (3), and worlds of whole hosts, of
#        each kind (100); SEED=N where the worlds begin (random)
#
# Simulated: hosts with leases on one device; processes halt for up to 40 s or die at any step, commands are on their way for up to the
# margin (with reservations: for a minute), clocks differ by up to 4 %. Whole hosts have core, engine and gate, too, and clients; after each
# take-over power is lost on a copy, and what was acknowledged must be there. Live: daemons are stopped with SIGSTOP under load, on two loop
# devices over one image; and a daemon that keeps its device busy for 30 s keeps its lease.
. "$(dirname "$0")/../lib.sh"
worlds=${1:-400} rounds=${2:-3} cores=${3:-100} seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "run it as root: it mounts"
failed=0

LEASE_WORLDS=$worlds LEASE_CORES=$cores LEASE_SEED=$seed cargo test --release -p avfs-core --lib --quiet -- --nocapture \
	no_byte_of_a_host_reaches_the_device_after_another_has_it nothing_of_a_host_reaches_the_disk_after_another_has_the_volume ||
	failed=$((failed + 1))

for round in $(seq "$rounds"); do
	say "live round $round of $rounds"
	cargo test --release -p avfs-cli --test lease --quiet -- --nocapture || failed=$((failed + 1))
done
LEASE_LOAD_SECONDS=30 cargo test --release -p avfs-cli --test lease --quiet a_busy_device_does_not_cost_the_lease -- --nocapture ||
	failed=$((failed + 1))

if ((failed == 0)); then
	say "two-hosts: $worlds worlds of leases and 2 times $cores of whole hosts from seed $seed, $rounds live rounds: nothing of one host reached the other's volume"
else
	say "two-hosts: $failed parts failed, seed $seed"
	exit 1
fi
