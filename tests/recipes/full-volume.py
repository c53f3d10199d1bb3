"""One process of a stress of a volume that is full most of the time: the operations of fsstress, drawn from a seed.

usage: full-volume.py DIRECTORY SEED OPERATIONS        prints its counts as JSON

An operation may fail with ENOSPC only if statfs(2) says, before or after it, that less than a unit of 8 MiB is left beside
what it asks for: the four processes look and ask at the same time. Removing and truncating may never.
"""

import errno
import json
import os
import random
import sys

directory, seed, operations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(directory, exist_ok=True)
os.chdir(directory)
draw = random.Random(seed)
block = draw.randbytes(1 << 20)
files, directories, others = [], ["."], []
counts = {}
wrong = []


def left():
    found = os.statvfs(".")
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def fresh():
    fresh.number += 1
    return os.path.join(draw.choice(directories), "%s%d" % ("n" * draw.choice([1, 8, 60]), fresh.number))


fresh.number = 0


def some():
    return draw.choice(files)


def opened(name):
    return os.open(name, os.O_RDWR)


def with_file(action):
    fd = opened(some())
    try:
        action(fd)
    finally:
        os.close(fd)


def create(_):
    name = fresh()
    os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    files.append(name)


def mkdir(_):
    name = fresh()
    os.mkdir(name)
    directories.append(name)


def symlink(_):
    name = fresh()
    os.symlink("x" * draw.randrange(1, 1000), name)
    others.append(name)


def mknod(_):
    name = fresh()
    os.mkfifo(name)
    others.append(name)


def link(_):
    name = fresh()
    os.link(some(), name)
    files.append(name)


def rename(_):
    index, name = draw.randrange(len(files)), fresh()
    os.rename(files[index], name)
    files[index] = name


def write(length):
    with_file(lambda fd: os.pwrite(fd, block[:length], draw.randrange(0, 1 << 22)))


def append(length):
    with_file(lambda fd: os.pwrite(fd, block[:length], os.fstat(fd).st_size))


def allocate(length):
    with_file(lambda fd: os.posix_fallocate(fd, draw.randrange(0, 1 << 22), length))


def setxattr(length):
    os.setxattr(some(), "user.%d" % draw.randrange(20), block[: min(length, 4000)])


def fsync(_):
    with_file(os.fsync)


def read(length):
    with_file(lambda fd: os.pread(fd, length, draw.randrange(0, 1 << 22)))


def listing(_):
    os.listdir(draw.choice(directories))


def truncate(_):
    os.truncate(some(), draw.randrange(0, 1 << 21))


def shrink(_):
    name = some()
    os.truncate(name, draw.randrange(0, os.stat(name).st_size + 1))


def unlink(_):
    pool = others if others and draw.random() < 0.2 else files
    index = draw.randrange(len(pool))
    os.unlink(pool[index])
    pool[index] = pool[-1]
    pool.pop()


def rmdir(_):
    index = draw.randrange(1, len(directories))
    os.rmdir(directories[index])
    directories.pop(index)


GROWING = [create] * 6 + [mkdir, symlink, mknod] + [link, rename] * 2 + [write, append] * 6 + [allocate, setxattr, setxattr]
OTHERS = [fsync, read, listing, truncate]
SHRINKING = [unlink] * 6 + [shrink, rmdir]
# In which the volume's space is given out.
UNIT = 8 << 20
# A volume that was found full so often is emptied a little, for so many operations.
OFTEN, LITTLE = 50, 200
found_full = emptying = most_left = 0
for step in range(operations):
    free, total = left()
    if found_full >= OFTEN:
        found_full, emptying = 0, LITTLE
    emptying = max(0, emptying - 1)
    kinds = OTHERS + (SHRINKING * 6 + GROWING if emptying else GROWING * 8 + SHRINKING)
    kind = draw.choice(kinds)
    length = draw.choice([1, 100, 4096, 10000, 100000, 1 << 20])
    name = kind.__name__
    try:
        kind(length)
        outcome = "done"
    except (IndexError, ValueError):
        outcome = "nothing there"
    except OSError as error:
        outcome = errno.errorcode[error.errno]
        if error.errno == errno.ENOSPC:
            bound = UNIT + 2 * length
            after = left()[0]
            found_full += 1
            most_left = max(most_left, min(free, after) - length)
            if kind in SHRINKING or min(free, after) > bound:
                wrong.append("step %d: %s, %d and %d bytes left" % (step, name, free, after))
        elif error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST, errno.EMLINK):
            wrong.append("step %d: %s: %s" % (step, name, error))
    counts.setdefault(name, {}).setdefault(outcome, 0)
    counts[name][outcome] += 1
print(json.dumps({"seed": seed, "counts": counts, "wrong": wrong, "most_left": most_left}))
