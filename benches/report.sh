#!/usr/bin/env bash
# All benchmarks in one run, as the Markdown document doc/benchmarks.md: each with its command, and what it ran on.
# Takes 20 minutes on two cores. The machine should do nothing else.
# usage: report.sh >doc/benchmarks.md
set -euo pipefail
cd "$(dirname "$0")/.."

# section TITLE COMMAND…: one benchmark.
section() {
	# shellcheck disable=SC2016 # the backquotes are Markdown
	printf '\n## %s\n\n`%s`\n\n```\n' "$1" "${*:2}"
	"${@:2}" 2>&1
	printf '```\n'
}

commit=$(git describe --always --dirty)
cat <<-HEADER
	# Benchmarks

	Made by \`benches/report.sh\`, every benchmark with its command. Rates depend on the machine; the ratios are what counts.

	- Commit $commit, $(date --utc +%F)
	- $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) processors, $(awk '/^MemTotal/ { printf "%d GB", $2 / 1e6 }' /proc/meminfo)
	- $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), Linux $(uname -r)
	- Load average when it began: $(cut -d' ' -f1-3 /proc/loadavg)
HEADER
section "One large file: AVFS, ext4, XFS and the device itself" benches/sequential.sh 4 3
section "dbench: AVFS, ntfs-3g, ext4" benches/dbench.sh ntfs,ext4,avfs 20 1 4
section "The NetBench load through smbd" benches/netbench.sh 20
section "Small files" benches/small.sh 3
section "Frames of a sequence through SMB" benches/frames.sh avfs 10000
section "A million files" benches/million.sh 1000000
