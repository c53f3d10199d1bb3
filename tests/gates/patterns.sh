#!/usr/bin/env bash
# What SMB clients send, replayed message by message through stock smbd on the volume and on ext4: contents, lengths and
# allocation must be the same, each recording one run, the device's commands large and not more than needed, and no folder
# searched for a name.
# usage: patterns.sh [avfs|ext4|xfs]
# Of another kind than avfs only what clients see is compared.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../samba.sh"

KIND=${1:-avfs}
SMBPROTOCOL=1.15.0
PYTHON=$TARGET/tools/smbprotocol-$SMBPROTOCOL/bin/python3

need_packages samba samba-vfs-modules e2fsprogs python3 python3-venv
if [ ! -x "$PYTHON" ] || ! "$PYTHON" -c 'import smbprotocol' 2>/dev/null; then
	say "installing smbprotocol $SMBPROTOCOL"
	rm -rf "${PYTHON%/bin/python3}"
	/usr/bin/python3 -m venv "${PYTHON%/bin/python3}"
	"$PYTHON" -m pip install --quiet --disable-pip-version-check "smbprotocol==$SMBPROTOCOL"
fi
isolate "$@"
scratch
avfs=$SCRATCH/$KIND reference=$SCRATCH/reference
with_volume "$KIND" 24G "$avfs"
with_volume ext4 24G "$reference"

# The shares: as facilities have them; and with the server allocating what clients ask it to, and what they leave out when
# they write, which it does only where it writes by itself, one after the other. smbd counts what it does.
share() {
	samba_share "$1" "$2" "$3"
	[[ $2 != *-strict ]] || printf '    %s\n' "strict allocate = yes" "aio write size = 0"
}
echo "    smbd profiling level = count" >"$SCRATCH/shares"
for name in plain strict; do
	share "$KIND" "avfs-$name" "$avfs/$name"
	share ext4 "reference-$name" "$reference/$name"
done >>"$SCRATCH/shares"

export SMB_USER SMB_PASSWORD SMB_PORT SMB_CONF
options=()
[ "$KIND" = avfs ] || options=(--same)
converse() {
	PYTHONDONTWRITEBYTECODE=1 "$PYTHON" "$ROOT/tests/gates/patterns/main.py" "$1" "$SCRATCH/results" "$AVFS_BIN/avfsctl" \
		"$avfs" "$reference" "${options[@]}"
}

start_smbd "$SCRATCH/shares"
converse write
stop "$SMB_PID"

# From now on everything comes from the device.
for kind_and_volume in "$KIND $avfs" "ext4 $reference"; do
	read -r kind volume <<<"$kind_and_volume"
	unmount_volume "$volume"
	mount_volume "$kind" "$volume.img" "$volume"
done
start_smbd "$SCRATCH/shares"
converse read
stop "$SMB_PID"
close_volume "$KIND" "$avfs"
verdict patterns "$SCRATCH/results"
