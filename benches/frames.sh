#!/usr/bin/env bash
# Frames of a sequence created through SMB in one directory: time of each thousand. Samba looks for other spellings of
# every new name; on a filesystem that cannot answer that, it scans the directory, and the time grows with the square.
# usage: frames.sh [avfs|ext4|xfs] [FRAMES]
. "$(dirname "$0")/../tests/lib.sh"
. "$ROOT/tests/samba.sh"

KIND=${1:-avfs}
FRAMES=${2:-10000}

need_packages samba samba-vfs-modules python3 python3-smbc
isolate "$@"
scratch
with_volume "$KIND" 4G "$SCRATCH/volume"
samba_share "$KIND" media "$SCRATCH/volume/share" >"$SCRATCH/shares"
start_smbd "$SCRATCH/shares"

/usr/bin/python3 - "$FRAMES" "smb://127.0.0.1:$SMB_PORT/media" "$SMB_USER" "$SMB_PASSWORD" <<'PYTHON' | tee "$SCRATCH/figures"
import os, sys, time
import smbc

frames, url, user, password = int(sys.argv[1]), *sys.argv[2:]
context = smbc.Context(auth_fn=lambda *_: ("AVFS", user, password))
started = time.monotonic()
for frame in range(1, frames + 1):
    context.open(f"{url}/shot_010.{frame:06}.dpx", os.O_CREAT | os.O_WRONLY).close()
    if frame % 1000 == 0:
        now = time.monotonic()
        print(f"{frame:6} frames  {now - started:6.2f} s for the last 1000", flush=True)
        started = now
PYTHON
awk 'NR == 1 { first = $3 } { last = $3 } END { printf "last thousand / first thousand: %.2f\n", last / first }' "$SCRATCH/figures"
