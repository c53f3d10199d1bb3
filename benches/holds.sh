#!/usr/bin/env bash
# For how long one client keeps all others from the volume, for each operation on very many of something: a table, and a verdict.
# usage: benches/holds.sh [FILES [MANY]]     10^6 files, 10^5 of what an operation is of; on a quiet machine
. "$(dirname "$0")/../tests/lib.sh"

# At the priority that the daemon gives itself.
AVFS_HOLDS_FILES=${1:-1000000} AVFS_HOLDS_MANY=${2:-100000} nice -n -20 cargo bench --quiet --package avfs-core --bench holds
