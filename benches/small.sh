#!/usr/bin/env bash
# Everything that is not a stream: copies of small files, archives, listings, saves and removals, each kind of volume in turn, on a device
# whose blocks were all written before. Prints the median seconds of each kind, and how often they are ext4's.
# A run passes if every command of every round did what it should: `--short` is part of ./test, for that alone.
# usage: small.sh [--short] [ROUNDS] [KIND…]      (kinds: avfs, avfs-device, ext4, xfs; default: 5 of ext4, xfs and avfs)
. "$(dirname "$0")/../tests/lib.sh"

need_packages python3 rsync
isolate "$@"

FILES=20000 FRAMES=96 SAVES=1000 SIZE_MIB=6144 MEMORY=1G
default=(5 ext4 xfs avfs)
if [ "${1:-}" = --short ]; then
	shift
	FILES=1000 FRAMES=4 SAVES=50 SIZE_MIB=512 MEMORY=128M
	default=(1 ext4 avfs)
fi
ROUNDS=${1:-${default[0]}}
KINDS=("${@:2}")
((${#KINDS[@]})) || KINDS=("${default[@]:1}")
scratch

# The device is the same for all: its blocks are there, and the host keeps no copy of them in memory.
truncate -s "${SIZE_MIB}M" "$SCRATCH/device"
dd if=/dev/zero of="$SCRATCH/device" bs=8M count=$((SIZE_MIB / 8)) conv=notrunc status=none
DEVICE=$(losetup --find --show --direct-io=on "$SCRATCH/device")
on_exit losetup --detach "$DEVICE"
VOLUME=$SCRATCH/volume
mkdir "$VOLUME"

# What is copied lies in memory: directories of 100 files, and frames of 8 MB.
SOURCE=$SCRATCH/source
mkdir "$SOURCE"
mount -t tmpfs -o size=2G source "$SOURCE"
on_exit umount "$SOURCE"
python3 - "$SOURCE" "$FILES" "$FRAMES" <<'PYTHON'
import os, random, sys
base, files, frames = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lengths, content = random.Random(1), os.urandom(1 << 20)
for number in range(files):
    if number % 100 == 0:
        folder = f"{base}/small/folder{number // 100:04}"
        os.makedirs(folder)
    with open(f"{folder}/document{number % 100:02}.txt", "wb") as file:
        file.write(content[: lengths.randint(100, 16000)])
os.makedirs(f"{base}/frames")
for number in range(frames):
    with open(f"{base}/frames/frame{number:06}.dpx", "wb") as file:
        file.write(content * 8)
PYTHON
tar --create --file "$SOURCE/small.tar" --directory "$SOURCE" small

cat >"$SCRATCH/round.py" <<'PYTHON'
"""One round on one volume: a line for each step, with its seconds."""
import os, random, subprocess, sys, time

kind, volume, source, remount, files, saves = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
copy = f"{volume}/copy"


def run(*command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")


def each_of(command):
    run("sh", "-c", f"find {copy} -type f -print0 | xargs -0 {command}")


def sync():
    run("avfsctl", "sync", volume) if kind.startswith("avfs") else run("sync", "-f", volume)


def empty_files():
    os.mkdir(f"{volume}/empty")
    for number in range(files):
        os.close(os.open(f"{volume}/empty/{number:06}", os.O_CREAT | os.O_WRONLY))


def renames():
    for number in range(files):
        os.rename(f"{volume}/empty/{number:06}", f"{volume}/empty/other{number:06}")


def unlinks():
    for number in range(files):
        os.unlink(f"{volume}/empty/other{number:06}")


def save():
    for number in range(saves):
        with open(f"{volume}/new", "wb") as file:
            file.write(b"x" * 20000)
        os.rename(f"{volume}/new", f"{volume}/project{number % 10}")


def fsyncs():
    file = os.open(f"{volume}/fsynced", os.O_CREAT | os.O_WRONLY)
    for number in range(saves // 2):
        os.pwrite(file, b"x" * 4096, number * 4096)
        os.fsync(file)
    os.close(file)


def random_reads():
    file = os.open(f"{volume}/frames/frame000001.dpx", os.O_RDONLY)
    for _ in range(saves * 5):
        if len(os.pread(file, 4096, random.randrange(2000) * 4096)) != 4096:
            sys.exit("a read was short")
    os.close(file)


def same():
    run("diff", "--recursive", "--brief", f"{source}/small", copy)
    run("diff", "--recursive", "--brief", f"{source}/small", f"{volume}/small")


steps = [
    (f"cp -r of {files} small files", lambda: run("cp", "-r", f"{source}/small", copy)),
    ("sync after it", sync),
    ("tar x of the same", lambda: run("tar", "xf", f"{source}/small.tar", "-C", volume)),
    ("sync after tar", sync),
    ("cp of frames of 8 MB, and sync", lambda: (run("cp", "-r", f"{source}/frames", volume), sync())),
    (None, lambda: run(remount)),
    ("find, cold", lambda: run("find", copy, "-name", "*.txt")),
    ("ls -lR, warm", lambda: run("ls", "-lR", copy)),
    ("cat of all, cold", lambda: each_of("cat")),
    ("cat of all, warm", lambda: each_of("cat")),
    ("stat(1) of all, warm", lambda: each_of("stat")),
    (None, same),
    ("rsync that rewrites all", lambda: run("rsync", "-a", "--ignore-times", f"{source}/small/", f"{copy}/")),
    ("rsync with nothing to do", lambda: run("rsync", "-a", f"{source}/small/", f"{copy}/")),
    (f"{files} empty files", empty_files),
    ("as many renames", renames),
    ("as many unlinks", unlinks),
    (f"{saves} saves of 20 KB by rename", save),
    (f"{saves // 2} × 4 KiB, fsync", fsyncs),
    (f"{saves * 5} random reads of 4 KiB", random_reads),
    (None, same),
    ("rm -rf of all", lambda: run("rm", "-rf", copy)),
]
for name, step in steps:
    began = time.monotonic()
    step()
    if name:
        print(f"{kind}\t{name}\t{time.monotonic() - began:.4f}", flush=True)
PYTHON

attach() {
	case $1 in
	avfs) AVFS_CACHE_SIZE=$MEMORY AVFS_OPTIONS=noatime mount_volume avfs "$DEVICE" "$VOLUME" ;;
	avfs-device) AVFS_CACHE_SIZE=$MEMORY AVFS_OPTIONS=noatime,transport=device mount_volume avfs "$DEVICE" "$VOLUME" ;;
	*) mount -t "$1" -o noatime "$DEVICE" "$VOLUME" ;;
	esac
}
for kind in "${KINDS[@]}"; do need_volume_tools "${kind%-device}"; done
on_exit unmount_volume "$VOLUME"
for ((round = 1; round <= ROUNDS; round++)); do
	for kind in "${KINDS[@]}"; do
		case $kind in
		avfs*) mkfs.avfs --force "$DEVICE" >/dev/null ;;
		ext4) mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$DEVICE" ;;
		xfs) mkfs.xfs -q -f "$DEVICE" ;;
		esac
		attach "$kind"
		cat >"$SCRATCH/remount" <<-END
			#!/usr/bin/env bash
			. "$ROOT/tests/lib.sh"
			$(declare -f attach)
			DEVICE=$DEVICE VOLUME=$VOLUME MEMORY=$MEMORY
			unmount_volume "\$VOLUME"
			attach $kind
			echo 3 >/proc/sys/vm/drop_caches
		END
		chmod +x "$SCRATCH/remount"
		if python3 "$SCRATCH/round.py" "$kind" "$VOLUME" "$SOURCE" "$SCRATCH/remount" "$FILES" "$SAVES" >>"$SCRATCH/figures"; then
			echo "pass $kind, round $round" >>"$SCRATCH/results"
		else
			echo "fail $kind, round $round" >>"$SCRATCH/results"
		fi
		unmount_volume "$VOLUME"
	done
done

python3 - "$SCRATCH/figures" "${KINDS[@]}" <<'PYTHON'
import statistics, sys
seconds, names, kinds = {}, {}, sys.argv[2:]
for line in open(sys.argv[1]):
    kind, name, figure = line.rstrip("\n").split("\t")
    seconds.setdefault((kind, name), []).append(float(figure))
    names[name] = None
against = [kind for kind in kinds if kind != "ext4"] if "ext4" in kinds else []
print("| s | " + " | ".join(kinds + [f"{kind} / ext4" for kind in against]) + " |")
print("|---|" + "--:|" * (len(kinds) + len(against)))
for name in names:
    median = {kind: statistics.median(seconds.get((kind, name), [float("nan")])) for kind in kinds}
    ratios = [f"{median[kind] / median['ext4']:.1f}" for kind in against]
    print(f"| {name} | " + " | ".join([f"{median[kind]:.2f}" for kind in kinds] + ratios) + " |")
PYTHON
verdict small "$SCRATCH/results"
