#!/usr/bin/env bash
# A share of a directory with a limit: SMB clients see the limit as the disk, and "the disk is full" when it is reached.
# usage: limits
#
# Stock smbd and smbclient. EDQUOT has to reach the client as NT_STATUS_DISK_FULL, which Windows' programs understand.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../samba.sh"
[ -n "${AVFS_ISOLATED:-}" ] || build_avfs
isolate "$@"
need_packages samba samba-vfs-modules smbclient
scratch
with_volume avfs 4G "$SCRATCH/volume"
volume=$SCRATCH/volume

samba_share avfs film "$volume/film" >"$SCRATCH/shares"
"$AVFS_BIN/avfsctl" limit set "$volume/film" --size 64M --files 20 --soft 32M
start_smbd "$SCRATCH/shares"
head -c 40M /dev/urandom >"$SCRATCH/take"
: >"$SCRATCH/empty"

# smb COMMANDS: what smbclient says of them.
smb() {
	smbclient --configfile="$SMB_CONF" -p "$SMB_PORT" -U "$SMB_USER%$SMB_PASSWORD" //127.0.0.1/film -c "$1" 2>&1 || true
}

# shows WHAT PATTERN TEXT
shows() {
	grep -Eq "$2" <<<"$3" || die "$1: expected $2, found: $3"
	say "$1: $(grep -E "$2" <<<"$3" | head -1 | tr -s ' \t' ' ')"
}

shows "the size of an empty share" '\b65536 blocks of size 1024\. 65536 blocks available' "$(smb du)"
shows "a file that fits" 'putting file' "$(smb "put $SCRATCH/take one")"
shows "what is left" '\b65536 blocks of size 1024\. 24576 blocks available' "$(smb du)"
shows "a file that does not fit" 'NT_STATUS_DISK_FULL' "$(smb "put $SCRATCH/take two")"
smb "del two" >/dev/null
shows "the same one again, in its place" 'putting file' "$(smb "put $SCRATCH/take one")"
for number in $(seq 19); do echo "put $SCRATCH/empty $number"; done >"$SCRATCH/many"
smb "$(tr '\n' ';' <"$SCRATCH/many")" >/dev/null
shows "a file more than there may be" 'NT_STATUS_DISK_FULL' "$(smb "put $SCRATCH/empty more")"
smb "del 1" >/dev/null
shows "after one was removed" 'putting file' "$(smb "put $SCRATCH/empty more")"
cmp "$SCRATCH/take" "$volume/film/one" || die "what was accepted is not there"

shows "df" "\b65536 +40960 +24576\b" "$(df -k --output=size,used,avail "$volume/film")"
shows "the limit" '/film +40\.0 MiB +64\.0 MiB +62 % +32\.0 MiB +20 +20' "$("$AVFS_BIN/avfsctl" limit list "$volume")"
sleep 3
shows "the event" '/film is over its soft limit' "$("$AVFS_BIN/avfsctl" events "$volume")"
shows "the metric" 'avfs_limit_used_bytes\{.*path="/film"\} 41943040' "$("$AVFS_BIN/avfsctl" metrics "$volume")"
stop "$SMB_PID"
close_volume avfs "$volume"
say "verdict: ok"
