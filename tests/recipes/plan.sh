#!/usr/bin/env bash
# What avfsctl plan says fits devices, beside what the whole filesystem carries on them in virtual time: within one stream.
# usage: plan [short]     short: players alone and beside a copy on three devices, one search each; else recorders, a disk, a large array,
#                         a lost disk and a volume that is 90 % full as well, three searches each: minutes
#
# Nothing is drawn but from fixed seeds, so the figures are the same each time.
. "$(dirname "$0")/../lib.sh"
build_avfs
case ${1:-} in
short) exec "$AVFS_BIN/avfs-lab" plan --short ;;
'') exec "$AVFS_BIN/avfs-lab" plan ;;
*) die "usage: plan [short]" ;;
esac
