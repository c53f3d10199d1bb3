#!/usr/bin/env bash
# Data that a device refuses, gives back late, in part or not at all: only their files hear of it, and each client once.
# usage: faulty-device.sh [SECONDS]      (how late the slow device answers; default 90)
#
# The device is the laboratory's LUN, a file over FUSE, into whose `control` the faults are written.
. "$(dirname "$0")/../lib.sh"

LATE=${1:-90}
need_packages python3
isolate "$@"
scratch
AVFS_LAB=${AVFS_LAB:-$AVFS_BIN/avfs-lab}
if [ ! -x "$AVFS_LAB" ]; then
	build_avfs
	[ -x "$AVFS_LAB" ] || die "no avfs-lab in $AVFS_BIN: cargo build -p avfs-lab"
fi
install_commands
mkdir "$SCRATCH/lun" "$SCRATCH/volume"
"$AVFS_LAB" lun --size-gib 2 --backing "$SCRATCH/backing" "$SCRATCH/lun" >"$SCRATCH/lun.log" 2>&1 &
LUN=$!
on_exit stop "$LUN"
on_exit umount -l "$SCRATCH/lun"
for _ in $(seq 100); do
	if [ -e "$SCRATCH/lun/control" ]; then break; fi
	sleep 0.1
done
echo fast >"$SCRATCH/lun/control"
mkfs.avfs "$SCRATCH/lun/lun" >/dev/null
on_exit unmount_volume "$SCRATCH/volume"

python3 - "$SCRATCH" "$LATE" "$AVFS_CACHE_SIZE" <<'PYTHON'
import errno, json, os, subprocess, sys, threading, time
scratch, late, cache = sys.argv[1], int(sys.argv[2]), sys.argv[3]
lun, volume = scratch + "/lun/lun", scratch + "/volume"
failures, checks = [], 0

def control(line):
    with open(scratch + "/lun/control", "w") as file: file.write(line)
def mount(): subprocess.run(["mount.avfs", lun, volume, "-o", f"cache_size={cache},log={scratch}/volume.log"], check=True)
def unmount(): return subprocess.run(["umount", volume], stderr=subprocess.DEVNULL).returncode
def check(holds, what):
    global checks
    checks += 1
    print(("ok    " if holds else "FAILS ") + what, flush=True)
    if not holds: failures.append(what)
def fsync(descriptor):
    try: os.fsync(descriptor); return 0
    except OSError as error: return error.errno
def make(name, length, letter):
    descriptor = os.open(f"{volume}/{name}", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, letter * length)
    os.fsync(descriptor)
    return descriptor
def places(name):
    told = subprocess.run(["avfsctl", "extents", f"{volume}/{name}", "--json"], check=True, capture_output=True).stdout
    return json.loads(told)["extents"]
def content(name):
    with open(f"{volume}/{name}", "rb") as file: return file.read()

mount()
near, film = make("near", 300_000, b"n"), make("film", 4 << 20, b"f")
place = places("film")[0]["device_offset"]

control(f"refuse write {place} 65536")
os.pwrite(film, b"g" * 65536, 0)
check(fsync(film) == 0, "a place that refuses a write: the data go elsewhere, fsync succeeds")
check(places("film")[0]["device_offset"] != place, "the file has another place there")
names = [f"take{number}" for number in range(20)]
behind = places("film")[-1]
control(f"refuse write {behind['device_offset'] + behind['length']} 262144")
takes = [make(name, 100_000, b"t") for name in names]
results = [fsync(take) for take in takes]
check(results == [0] * 20, "20 new files beside a place that refuses: each fsync succeeds")
control("heal")
for descriptor in (near, film, *takes): os.close(descriptor)
check(unmount() == 0, "the volume is unmounted")
mount()
check(content("film") == b"g" * 65536 + b"f" * ((4 << 20) - 65536), "what went elsewhere is there after a mount")
check(all(content(name) == b"t" * 100_000 for name in names), "the 20 files are there after a mount")

page = places("film")[-1]
# What was read is in memory.
unmount()
mount()
near, film = (os.open(f"{volume}/{name}", os.O_RDWR) for name in ("near", "film"))
second = os.open(f"{volume}/film", os.O_RDONLY)
bad = page["file_offset"] + 8 * 4096
control(f"refuse read {page['device_offset'] + 8 * 4096} 4096")
failed = []
for at in range(0, 4 << 20, 4096):
    try:
        if os.pread(film, 4096, at) != (b"g" if at < 65536 else b"f") * 4096: failed.append((at, "wrong"))
    except OSError as error: failed.append((at, errno.errorcode[error.errno]))
check(failed == [(bad, "EIO")], f"of 1024 pages the one that cannot be read fails, and no other: {failed[:3]}")
control("heal")
check(os.pread(film, 4096, bad) == b"f" * 4096, "when it can be read again it is")

control("short 20480")
os.pwrite(near, b"s" * 300_000, 0)
check(fsync(near) == 0, "a device that gives 20 KiB at once: fsync succeeds")
for descriptor in (near, film, second): os.close(descriptor)
unmount()
mount()
near, film = (os.open(f"{volume}/{name}", os.O_RDWR) for name in ("near", "film"))
second = os.open(f"{volume}/film", os.O_RDONLY)
check(os.pread(near, 300_000, 0) == b"s" * 300_000, "and after a mount everything is read")
control("heal")

control("late %d" % late)
began = time.monotonic()
os.pwrite(near, b"l" * 300_000, 0)
waited = []
thread = threading.Thread(target=lambda: waited.append((fsync(near), time.monotonic() - began)))
thread.start()
slowest = 0
while thread.is_alive() and time.monotonic() - began < late / 2:
    one = time.monotonic()
    os.listdir(volume); os.pread(near, 4096, 0); os.close(os.open(f"{volume}/beside", os.O_CREAT | os.O_WRONLY))
    slowest = max(slowest, time.monotonic() - one)
    time.sleep(0.2)
check(slowest < 5, f"while each answer takes {late} s, what is in memory is served: {slowest * 1000:.0f} ms at most")
control("heal")
thread.join()
check(waited[0][0] == 0, f"the fsync succeeded after {waited[0][1]:.0f} s")

size = os.stat(lun).st_size
# Everywhere but where the other file lies, and before all files: the log.
kept = places("near")
place = min(extent["device_offset"] for extent in places("film") + kept)
for extent in kept:
    control(f"refuse write {place} {extent['device_offset'] - place}")
    place = extent["device_offset"] + extent["length"]
control(f"refuse write {place} {size - place}")
os.pwrite(film, b"x" * 65536, 0)
os.pwrite(near, b"y" * 300_000, 0)
told = [fsync(film), fsync(film), fsync(second), fsync(second)]
check(told == [errno.EIO, 0, errno.EIO, 0], f"nowhere to go: each client of the file is told once: {told}")
check(fsync(near) == 0, "another file's fsync succeeds")
check(os.pread(near, 3, 0) == b"yyy", "and it is read")
control("heal")
os.pwrite(film, b"z" * 65536, 0)
check(fsync(film) == 0, "once the device takes it again, the file can be written")

film_starts = min(extent["device_offset"] for extent in places("film"))
first, last = (near, film) if film_starts > kept[0]["device_offset"] else (film, near)
control(f"end {max(film_starts, kept[0]['device_offset'])}")
for descriptor in (first, last): os.pwrite(descriptor, b"z" * 65536, 0)
check(fsync(last) == errno.EIO, "the device ends before a file: its fsync fails")
check(fsync(first) == 0, "another file's succeeds")
control("heal")
os.pwrite(last, b"z" * 65536, 0)
check(fsync(last) == 0, "the device is whole again")

control(f"refuse write 0 {1 << 25}")
os.pwrite(near, b"!" * 4096, 0)
check(fsync(near) == errno.EIO, "the log cannot be written: fsync fails")
def refusal(act):
    try: act(); return None
    except OSError as error: return errno.errorcode[error.errno]
for what, act in (("open for creation", lambda: os.open(f"{volume}/new", os.O_CREAT | os.O_WRONLY)),
                  ("mkdir", lambda: os.mkdir(f"{volume}/new")), ("rename", lambda: os.rename(f"{volume}/near", f"{volume}/n")),
                  ("unlink", lambda: os.unlink(f"{volume}/near"))):
    found = refusal(act)
    check(found == "EROFS", f"then {what} answers {found}")
check(os.pread(film, 3, 0) == b"zzz", "and files are read")
for descriptor in (near, film, second): refusal(lambda: os.close(descriptor))
unmount()
control("heal")
mount()
check(content("film")[:65536] == b"z" * 65536, "after a mount what was fsynced before is there")
check(unmount() == 0, "the volume is unmounted")
found = subprocess.run(["fsck.avfs", lun], capture_output=True, text=True)
check(found.returncode == 0, f"fsck finds nothing: {found.stdout.strip()[-200:]}")
print(f"{checks} checks, {len(failures)} failed")
sys.exit(bool(failures))
PYTHON
say "VERDICT: ok"
