#!/usr/bin/env bash
# One large file, written and read from end to end through the mount with O_DIRECT: AVFS, ext4 and XFS, one after the
# other on the same device, and the device itself under the same fio. Prints MB/s, and AVFS as a ratio of each.
# The device is a loop device over an image file in BENCH_DIRECTORY (default: where temporary files go).
# usage: sequential.sh [GIBIBYTES] [ROUNDS]
. "$(dirname "$0")/../tests/lib.sh"

GIBIBYTES=${1:-4}
ROUNDS=${2:-3}
BENCH_DIRECTORY=${BENCH_DIRECTORY:-${TMPDIR:-/tmp}}

need_packages fio xfsprogs e2fsprogs
isolate "$@"
scratch
need_volume_tools avfs

image=$(mktemp "$BENCH_DIRECTORY/avfs-sequential.XXXXXX")
on_exit rm -f "$image"
truncate -s "$((GIBIBYTES + 2))G" "$image"
# Allocated once, so that no contender pays for the growth of the image.
fallocate -l "$((GIBIBYTES + 2))G" "$image"
device=$(losetup --find --show --direct-io=on "$image")
on_exit losetup --detach "$device"
volume=$SCRATCH/volume
mkdir "$volume"

# megabytes_per_second FILE DIRECTION BLOCK
megabytes_per_second() {
	local column=7
	[[ $2 == write ]] && column=48
	fio --name=sequential --filename="$1" --rw="$2" --bs="$3" --size="${GIBIBYTES}G" --direct=1 --ioengine=psync \
		--end_fsync=1 --fallocate=none --minimal | awk -F';' -v column="$column" '{ printf "%d\n", $column / 1000 }'
}

# measure CONTENDER FILE: between writing and reading a filesystem is unmounted, so that nobody reads from memory.
measure() {
	local kind=$1 file=$2 direction block
	for block in 8M 1M; do
		for direction in write read; do
			if [[ $direction == read && $kind != raw ]]; then
				unmount_volume "$volume"
				mount_volume "$kind" "$device" "$volume"
			fi
			echo "$kind $direction $block $(megabytes_per_second "$file" "$direction" "$block")" | tee -a "$SCRATCH/figures"
		done
	done
}

for ((round = 1; round <= ROUNDS; round++)); do
	say "round $round of $ROUNDS"
	measure raw "$device"
	for kind in ext4 xfs avfs; do
		wipefs --quiet --all "$device"
		format_volume "$kind" "$device"
		mount_volume "$kind" "$device" "$volume"
		measure "$kind" "$volume/footage"
		unmount_volume "$volume"
	done
done

awk '
{ n[$1, $2, $3]++; value[$1, $2, $3, n[$1, $2, $3]] = $4 }
function median(who, direction, block,    count, i, j, t, v) {
	count = n[who, direction, block]
	for (i = 1; i <= count; i++) v[i] = value[who, direction, block, i]
	for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++) if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
	return v[int((count + 1) / 2)]
}
END {
	print "\n| median MB/s | raw | ext4 | XFS | AVFS | of raw | of ext4 | of XFS |\n|---|---|---|---|---|---|---|---|"
	for (b = 1; b <= 2; b++) for (d = 1; d <= 2; d++) {
		block = b == 1 ? "8M" : "1M"; direction = d == 1 ? "write" : "read"
		r = median("raw", direction, block); e = median("ext4", direction, block)
		x = median("xfs", direction, block); a = median("avfs", direction, block)
		printf "| %s %s | %d | %d | %d | %d | %.2f | %.2f | %.2f |\n", direction, block, r, e, x, a, a / r, a / e, a / x
	}
}' "$SCRATCH/figures"
