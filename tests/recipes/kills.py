"""Kills the daemon of a mounted volume under load, again and again, and compares what is there then with what was promised.

usage: kills.py ROUNDS SEED {DEVICE DIRECTORY}…      the volume of DEVICE is mounted on DIRECTORY/volume

Each process has a directory of the volume to itself and notes each thing in a file outside before it begins it, and that it was
acknowledged after that. The notes alone say, when the daemon has been killed, what may be found:
  files     cells of 512 bytes, each with its name, place and version on it: a cell is of one of the versions that were written to it
            since the last fsync(2) of the file, or of that which the fsync covered; so is the length. Ever new files, too.
  projects  saved whole without fsync(2): of one of the versions, and of none before that which an earlier mount had found
  trees     names: as after one of the changes in turn, and none before the last that fsync(2) of its directory covered
What was found is what the next round begins with: the volume was unmounted in between, so that nothing earlier may come again.
"""

import ctypes
import errno
import json
import mmap
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import time

CELL = 512
PAGE = 4096
# A file that stays open for longer after it was emptied is not promised whole while another client waits for an fsync
# (doc/semantics.md), as here one always does.
EMPTIED_SECONDS = 0.2
# What clients hear when their daemon has died; ECANCELED from the kernel's rings.
ENDED = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO)


def cells(name, first, count, version):
    """What these cells of a file hold in this version; version 0 is zeros."""
    if version == 0:
        return bytes(CELL * count)
    return b"".join((b"%14s%8x%10x" % (name.encode()[-14:], cell, version)) * (CELL // 32) for cell in range(first, first + count))


def versions(name, content):
    """The version of each cell of this content; -1 of what is none: torn, or of another file or place."""
    found = []
    for cell in range((len(content) + CELL - 1) // CELL):
        data = content[cell * CELL : (cell + 1) * CELL]
        try:
            version = 0 if not data.strip(b"\0") else int(data[22:32], 16) if len(data) >= 32 else max(found, default=-1)
        except ValueError:
            version = -1
        found.append(version if version < 0 or data == cells(name, cell, 1, version)[: len(data)] else -1)
    return found


class Notes:
    """The notes of one process. A line is in the file before the call returns."""

    def __init__(self, path):
        self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def __call__(self, *entry):
        os.write(self.file, json.dumps((time.monotonic(), *entry)).encode() + b"\n")


# ------------------------------------------------------------------------------------------------------------- processes


class Files:
    """Writes a few files over and over, and ever new ones; how, depends on the kind of the process."""

    LENGTH = 96 * PAGE

    def __init__(self, kind, draw, notes, state):
        self.kind, self.draw, self.note = kind, draw, notes
        self.version = max([0] + [version for _, found in state.values() for version in found])
        self.held = {name: (size, list(found)) for name, (size, found) in state.items()}
        self.number = state and max(int(name[1:].split(".")[0]) for name in state) or 0
        self.open = {}

    def flags(self):
        return os.O_RDWR | os.O_CREAT | (os.O_DIRECT if self.kind == "direct" else 0)

    def file(self, name):
        if name not in self.open:
            if name not in self.held:
                self.note("make", name)
                self.held[name] = (0, [])
            descriptor = os.open(name, self.flags(), 0o644)
            view = None
            if self.kind == "mapped":
                self.resize(name, descriptor, self.LENGTH)
                view = mmap.mmap(descriptor, self.LENGTH)
            self.open[name] = descriptor, view
        return self.open[name]

    def resize(self, name, descriptor, size):
        self.note("size", name, size)
        os.ftruncate(descriptor, size)
        found = self.held[name][1][: (size + CELL - 1) // CELL]
        self.held[name] = size, found + [0] * ((size + CELL - 1) // CELL - len(found))

    def put(self, name, first, count):
        descriptor, view = self.file(name)
        self.version += 1
        data = cells(name, first, count, self.version)
        self.note("write", name, first, count, self.version)
        if view is not None:
            view[first * CELL : (first + count) * CELL] = data
        elif self.kind == "direct":
            buffer = mmap.mmap(-1, len(data))  # aligned
            buffer.write(data)
            assert os.pwritev(descriptor, [buffer], first * CELL) == len(data)
        else:
            assert os.pwrite(descriptor, data, first * CELL) == len(data)
        size, found = self.held[name]
        found += [0] * (first + count - len(found))
        found[first : first + count] = [self.version] * count
        self.held[name] = max(size, (first + count) * CELL), found

    def sync(self, name):
        descriptor, view = self.file(name)
        self.note("fsync", name)
        if view is not None and self.draw.random() < 0.5:
            view.flush()
        elif self.draw.random() < 0.3:
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)
        self.note("fsynced", name)

    def compare(self, name):
        """What is read while the volume is mounted is what was written last."""
        size, held = self.held[name]
        descriptor, view = self.file(name)
        if view is not None:
            return
        if self.kind == "direct":
            buffer = mmap.mmap(-1, self.LENGTH + PAGE)
            content = buffer[: os.preadv(descriptor, [buffer], 0)]
        else:
            content = os.pread(descriptor, self.LENGTH + PAGE, 0)
        size, held = self.held[name]
        if len(content) != size or versions(name, content) != held:
            self.note("wrong", "%s is not read as it was written" % name)

    def step(self):
        draw, direct = self.draw, self.kind == "direct"
        name = "k%d" % draw.randrange(4)
        what = draw.random()
        if what < 0.45:
            unit = PAGE // CELL if direct else 1
            count = draw.choice([1, 1, 3, 8, 32]) * unit
            count = min(count, self.LENGTH // CELL)
            first = draw.randrange(0, (self.LENGTH // CELL - count) // unit + 1) * unit
            self.put(name, first, count)
        elif what < 0.65:
            self.sync(name)
        elif what < 0.72 and self.kind != "mapped":
            self.file(name)
            unit = PAGE if direct else CELL
            self.resize(name, self.open[name][0], draw.randrange(0, self.LENGTH // unit) * unit)
        elif what < 0.79 and self.kind != "mapped":
            self.punch(name)
        elif what < 0.84:
            self.file(name)
            self.compare(name)
        else:
            self.one_more()

    def punch(self, name):
        descriptor, _ = self.file(name)
        size, found = self.held[name]
        if not found:
            return
        first = self.draw.randrange(len(found))
        count = self.draw.randrange(1, 20)
        self.note("write", name, first, min(count, len(found) - first), 0)
        KEEP_SIZE_PUNCH_HOLE = 3
        if libc.fallocate(descriptor, KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(first * CELL), ctypes.c_long(count * CELL)):
            raise OSError(ctypes.get_errno(), "fallocate")
        count = min(count, len(found) - first)
        found[first : first + count] = [0] * count

    def one_more(self):
        """A new file, written and fsynced once; now and then an old one is removed."""
        self.number += 1
        name = "n%d" % self.number
        count = self.LENGTH // CELL if self.kind == "mapped" else self.draw.choice([1, 5, 40]) * (PAGE // CELL)
        self.put(name, 0, count)
        self.sync(name)
        descriptor, view = self.open.pop(name)
        if view is not None:
            view.close()
        os.close(descriptor)
        news = [name for name in self.held if name[0] == "n"]
        if len(news) > 60 and self.draw.random() < 0.7:
            name = self.draw.choice(news)
            self.note("remove", name)
            os.unlink(name)
            del self.held[name]


class Projects:
    """Saves whole files as applications do, without fsync(2)."""

    def __init__(self, _kind, draw, notes, state):
        self.draw, self.note = draw, notes
        self.version = max([0] + list(state.values()))

    def content(self, project):
        self.version += 1
        length = self.draw.choice([1, 40, 40, 600, 600, 6000])
        return cells("p%d" % project, 0, length, self.version)[: -self.draw.randrange(1, CELL - 32)]

    def write(self, path, content, durable=False):
        with open(path, "wb", buffering=0) as file:
            for at in range(0, len(content), 300_000):
                file.write(content[at : at + 300_000])
            if durable:
                os.fsync(file.fileno())

    def step(self):
        project = self.draw.randrange(6)
        name, new, old = "p%d" % project, "p%d.new" % project, "p%d~" % project
        content = self.content(project)
        how = self.draw.choice(["rename", "rename", "rename", "truncate", "backup", "link", "exchange"])
        if not os.path.exists(name):
            how = "rename"
        for left in new, old:
            if os.path.exists(left):
                os.unlink(left)
        self.note("save", name, self.version, len(content), how)
        if how in ("rename", "link", "exchange"):
            # What replaces nothing is held for by nothing: the first version is durable before it has its name.
            self.write(new, content, durable=not os.path.exists(name))
        if how == "rename":
            os.rename(new, name)
        elif how == "truncate":
            self.write(name, content)
        elif how == "backup":
            os.rename(name, old)
            self.write(name, content)
            os.unlink(old)
        elif how == "link":
            os.link(name, old)
            os.rename(new, name)
            os.unlink(old)
        else:
            if libc.renameat2(-100, new.encode(), -100, name.encode(), 2):
                raise OSError(ctypes.get_errno(), "renameat2")
            os.unlink(new)
        self.note("saved", name)
        time.sleep(self.draw.choice([0, 0, 0.02]))


class Trees:
    """Makes, moves and removes directories and names, and fsyncs the directory of a change now and then."""

    def __init__(self, _kind, draw, notes, state):
        self.draw, self.note = draw, notes
        self.tree = dict(state)  # path: kind
        self.number = 0
        self.mark = draw.randrange(1 << 40)

    def step(self):
        draw = self.draw
        directories = [""] + [path for path, kind in self.tree.items() if kind == "d"]
        self.number += 1
        inside = draw.choice(directories)
        fresh = os.path.join(inside, "%x-%d" % (self.mark, self.number))
        what = draw.choice(["d", "d", "f", "f", "l"] if len(self.tree) < 150 else ["move", "drop", "drop", "drop"])
        what = draw.choice([what, "move", "drop"]) if self.tree else what
        change = None
        if what in ("d", "f", "l"):
            change = (what, fresh)
        else:
            path = draw.choice(list(self.tree))
            if what == "drop":
                # A whole tree, as rm -r does it.
                below = [path] + [other for other in self.tree if other.startswith(path + "/")]
                for other in sorted(below, key=len, reverse=True):
                    self.change("drop", other)
                return
            over = draw.choice([fresh, draw.choice(list(self.tree))])
            below_itself = (over + "/").startswith(path + "/") or path.startswith(over + "/")
            if below_itself or over != fresh and "d" in (self.tree[over], self.tree[path]):
                return
            change = ("move", path, over)
        self.change(*change)
        if draw.random() < 0.1:
            parent = os.path.dirname(change[-1])
            descriptor = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            self.note("fsynced", "")
            os.close(descriptor)

    def change(self, what, path, to=None):
        self.note("change", what, path, to)
        if what == "d":
            os.mkdir(path)
        elif what == "f":
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        elif what == "l":
            os.symlink(path, path)
        elif what == "move":
            os.rename(path, to)
        elif self.tree[path] == "d":
            os.rmdir(path)
        else:
            os.unlink(path)
        apply(self.tree, what, path, to)


def apply(tree, what, path, to):
    """Does to a tree, a dictionary of paths, what the change did."""
    if what == "drop":
        del tree[path]
    elif what == "move":
        kind = tree.pop(path)
        below = [other for other in tree if other.startswith(path + "/")] if kind == "d" else []
        moved = [(to + other[len(path) :], tree.pop(other)) for other in below]
        tree[to] = kind
        tree.update(moved)
    else:
        tree[path] = what


PROCESSES = [("written", Files), ("written", Files), ("direct", Files), ("mapped", Files),
             ("projects", Projects), ("projects", Projects), ("trees", Trees), ("trees", Trees)]
libc = ctypes.CDLL(None, use_errno=True)


def work(number, directory, seed):
    """Works until the daemon has died."""
    kind, make = PROCESSES[number]
    note = Notes("%s/notes%d" % (directory, number))
    try:
        with open("%s/state%d" % (directory, number), "rb") as file:
            state = pickle.load(file)
        os.chdir("%s/volume/%s%d" % (directory, kind, number))
        worker = make(kind, random.Random(seed), note, state)
        while True:
            worker.step()
    except OSError as error:
        note("ended" if error.errno in ENDED else "wrong", str(error))
    except Exception as error:
        note("wrong", repr(error))


# --------------------------------------------------------------------------------------------------------------- checking


def expect_files(state, notes):
    """What may be found of each file: (whether it must be there, lengths, versions of each cell), and how many
    fsyncs cover what is checked."""
    files = {name: [True, {size}, [{version} for version in found]] for name, (size, found) in state.items()}
    current = {name: (size, list(found)) for name, (size, found) in state.items()}
    covered = {}
    for _, what, *entry in notes:
        if what not in ("make", "size", "write", "fsynced", "remove"):
            continue
        name = entry[0]
        if what == "make":
            files[name], current[name] = [False, {0}, []], (0, [])
            continue
        file, (size, held) = files[name], current[name]
        if what == "size":
            new = (entry[1] + CELL - 1) // CELL
            # A cell that a shorter file has not may have been cleared.
            for cell in range(new, len(file[2])):
                file[2][cell].add(0)
            size, held = entry[1], held[:new] + [0] * (new - len(held))
            file[1].add(size)
        elif what == "write":
            _, first, count, version = entry
            held += [0] * (first + count - len(held))
            held[first : first + count] = [version] * count
            file[2] += [{0} for _ in range(first + count - len(file[2]))]
            for cell in range(first, first + count):
                file[2][cell].add(version)
            if version:
                # A write is not promised to grow a file at once.
                file[1].update(range(size, (first + count) * CELL + 1, CELL))
                size = max(size, (first + count) * CELL)
        elif what == "fsynced":
            file[0], file[1], file[2] = True, {size}, [{version} for version in held]
            covered[name] = covered.get(name, 0) + 1
        else:
            file[0] = False
            covered.pop(name, None)
        file[2] += [{0} for _ in range(len(held) - len(file[2]))]
        current[name] = size, held
    return files, covered


def check_files(where, state, notes, wrong, counts):
    files, covered = expect_files(state, notes)
    counts["fsyncs"] += sum(note[1] == "fsynced" for note in notes)
    counts["checked"] += len(covered)
    found = {}
    for name in sorted(set(files) | set(os.listdir(where))):
        if name not in files:
            wrong("%s is there, which was not made" % name)
            continue
        must, sizes, allowed = files[name]
        if not os.path.exists(os.path.join(where, name)):
            if must:
                wrong("%s is gone" % name)
            continue
        with open(os.path.join(where, name), "rb") as file:
            content = file.read()
        have = versions(name, content)
        found[name] = len(content), have
        counts["cells"] += len(have)
        if len(content) not in sizes:
            wrong("%s has %d bytes, not one of %s%s" % (name, len(content), sorted(sizes)[:8], " (fsynced)" * (name in covered)))
        bad = [(cell, version, sorted(allowed[cell] if cell < len(allowed) else [])[:8])
               for cell, version in enumerate(have) if cell >= len(allowed) or version not in allowed[cell]]
        if bad:
            wrong("%s: %d of %d cells are wrong; cell %d has version %d, not one of %s" % (name, len(bad), len(have), *bad[0]))
    return found


def check_projects(where, state, notes, wrong, counts):
    lengths, late = {}, set()
    began = None
    for at, what, *entry in notes:
        if what == "save":
            began = at, entry
            lengths[entry[0], entry[1]] = entry[2]
        elif what in ("saved", "killed") and began:
            (start, (name, version, _, how)), began = began, None
            counts["saves"] += 1
            if how == "truncate" and at - start > EMPTIED_SECONDS:
                late.add((name, version))
    there = set(os.listdir(where))
    found = {}

    def is_part_of(path, name):
        """Whether the file holds a part, from none to all, of one version that was open for too long, and nothing else."""
        with open(os.path.join(where, path), "rb") as file:
            content = file.read()
        have = set(versions(name, content)) - {0}
        return any(have <= {version} and len(content) <= lengths[name, version]
                   for project, version in late if project == name and version > state.get(name, 0))

    def version_of(path):
        """The version that this file is as a whole; 0 when it is none."""
        if path not in there:
            return 0
        with open(os.path.join(where, path), "rb") as file:
            content = file.read()
        name = path.split(".")[0].rstrip("~")
        have = versions(name, content)
        if any(version < 0 for version in have):
            wrong("%s holds bytes that were never written to it" % path)
        version = max(have, default=0)
        whole = bool(have) and set(have) == {version}
        length = lengths.get((name, version), len(content) if state.get(name) == version else -1)
        return version if whole and len(content) == length else 0

    for name in sorted({name for name, _ in lengths} | set(state)):
        tried = [version for project, version in lengths if project == name]
        # The first save of a project has no version before it.
        version = version_of(name)
        backup = version_of(name + "~")
        best = version or backup
        counts["versions"] += bool(best)
        counts["seen"].add((where, name, best))
        new = state.get(name, 0)
        if best and best >= new:
            counts["newest"] += bool(tried) and best == max(tried)
            found[name] = best
        elif best:
            wrong("%s is of version %d, which was replaced in an earlier mount by %d" % (name, best, new))
        elif new or name in there:
            if name in there and is_part_of(name, name):
                counts["late"] += 1
                os.unlink(os.path.join(where, name))
            else:
                size = os.path.getsize(os.path.join(where, name)) if name in there else -1
                wrong("%s is none of its versions: %s" % (name, "%d bytes" % size if size >= 0 else "it is gone"))
        # What a backup alone has is not found by its name the next time.
        if not version and best and name in there:
            os.unlink(os.path.join(where, name))
        if not version and best:
            os.rename(os.path.join(where, name + "~"), os.path.join(where, name))
    return found


def listing(where):
    tree = {}
    for path, directories, files in os.walk(where):
        for name in directories + files:
            whole = os.path.join(path, name)
            mode = os.lstat(whole).st_mode
            tree[os.path.relpath(whole, where)] = "d" if stat.S_ISDIR(mode) else "l" if stat.S_ISLNK(mode) else "f"
    return tree


def check_trees(where, state, notes, wrong, counts):
    found = listing(where)
    tree, covered, changes, at = dict(state), 0, 0, None
    if tree == found:
        at = 0
    for _, what, *entry in notes:
        if what == "change":
            changes += 1
            apply(tree, *entry)
            if tree == found:
                at = changes
        elif what == "fsynced":
            counts["fsyncs"] += 1
            covered = changes
    counts["checked"] += covered > 0
    counts["changes"] += changes
    if at is None:
        wrong("the tree is as it was after none of %d changes: %d names are there; after the last there were %d, different are %s"
              % (changes, len(found), len(tree), sorted(set(tree.items()) ^ set(found.items()))[:4]))
    elif at < covered:
        wrong("the tree is as after change %d of %d; fsync has covered %d" % (at, changes, covered))
    return found


CHECKS = {Files: check_files, Projects: check_projects, Trees: check_trees}

# ----------------------------------------------------------------------------------------------------------------- rounds


def daemons():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if "mount-avfs" in os.readlink("/proc/%s/exe" % pid):
                found.append(int(pid))
        except OSError:
            pass
    return found


def kill_daemons():
    pids = daemons()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(pids)


class Place:
    """A device and its mount point."""

    def __init__(self, device, directory):
        self.device, self.directory, self.volume = device, directory, directory + "/volume"
        self.faults = []

    def wrong(self, what):
        self.faults.append(what)

    def run(self, *command, good=(0,)):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return self.wrong("%s does not end" % " ".join(command))
        if done.returncode not in good:
            self.wrong("%s ends with %d: %s" % (" ".join(command), done.returncode, (done.stdout + done.stderr)[-600:].strip()))

    def mount_command(self, transport):
        return ["mount.avfs", self.device, self.volume, "-o",
                "cache_size=64M,log=%s/log,transport=%s" % (self.directory, transport)]

    def mount(self, transport):
        self.run(*self.mount_command(transport))
        if not os.path.ismount(self.volume):
            raise RuntimeError("it is not mounted: %s" % self.faults)

    def check(self, when):
        before = len(self.faults)
        self.run("fsck.avfs", "-n", self.device)
        if len(self.faults) > before:
            self.faults[-1] = when + ": " + self.faults[-1]


def a_round(place, draw, counts):
    transport = draw.choice(["device", "ring"])
    place.mount(transport)
    for number, (kind, _) in enumerate(PROCESSES):
        os.makedirs("%s/%s%d" % (place.volume, kind, number), exist_ok=True)
        if not os.path.exists("%s/state%d" % (place.directory, number)):
            with open("%s/state%d" % (place.directory, number), "wb") as file:
                pickle.dump({}, file)
    # That their directories are there is what each process begins with.
    descriptor = os.open(place.volume, os.O_RDONLY)
    libc.syncfs(descriptor)
    os.close(descriptor)
    children = {}
    for number in range(len(PROCESSES)):
        seed = draw.randrange(1 << 40)
        child = os.fork()
        if child == 0:
            work(number, place.directory, seed)
            os._exit(0)
        children[child] = number
    # Mostly while files are small and young; now and then when what is written behind is, and a checkpoint.
    delay = draw.choice([draw.uniform(0.02, 0.4), draw.uniform(0.1, 2), draw.uniform(0.1, 2), draw.uniform(1, 6)])
    time.sleep(delay)
    for child in children:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            place.wrong("process %d has ended before the kill" % children[child])
    before = time.monotonic()
    if kill_daemons() == 0:
        place.wrong("the daemon had died before it was killed")
    killed = time.monotonic()
    counts["kills"] += 1
    until = time.monotonic() + 60
    waiting = set(children)
    while waiting and time.monotonic() < until:
        for child in list(waiting):
            try:
                if os.waitpid(child, os.WNOHANG) != (0, 0):
                    waiting.discard(child)
            except ChildProcessError:
                waiting.discard(child)
        time.sleep(0.01)
    for child in waiting:
        place.wrong("process %d hangs after the kill" % children[child])
        os.kill(child, signal.SIGKILL)
    place.run("umount", "-l", place.volume)
    place.check("before recovery")
    if draw.random() < 0.25:
        # Recovery, too, is killed.
        mounting = subprocess.Popen(place.mount_command(transport), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0, 0.3))
        counts["recoveries"] += kill_daemons() > 0
        mounting.wait()
        while os.path.ismount(place.volume) or errors_of(place.volume):
            place.run("umount", "-l", place.volume)
    place.mount(transport)
    for number, (kind, make) in enumerate(PROCESSES):
        path = "%s/state%d" % (place.directory, number)
        with open(path, "rb") as file:
            state = pickle.load(file)
        notes = []
        notes_path = "%s/notes%d" % (place.directory, number)
        if os.path.exists(notes_path):
            with open(notes_path) as file:
                notes = [json.loads(line) for line in file]
            os.unlink(notes_path)
        name = "%s%d" % (kind, number)

        def wrong(what, name=name):
            place.wrong("%s: %s" % (name, what))

        for at, what, *entry in notes:
            if what == "wrong" or what == "ended" and at < before:
                wrong("%s, %.3f s from the kill" % (entry, at - before))
        notes.append([killed, "killed"])
        found = CHECKS[make]("%s/%s" % (place.volume, name), state, notes, wrong, counts)
        with open(path, "wb") as file:
            pickle.dump(found, file)
    place.run("umount.avfs", place.volume)
    place.check("after recovery")
    with open(place.directory + "/log") as file:
        panics = [line for line in file if "panicked" in line]
    if panics:
        place.wrong(panics[0])


def errors_of(path):
    """Whether a mount without a daemon is there."""
    try:
        os.stat(path)
        return False
    except OSError:
        return True


def main():
    rounds, seed, pairs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    places = [Place(*pairs[at : at + 2]) for at in range(0, len(pairs), 2)]
    draw = random.Random(seed)
    counts = dict.fromkeys(["kills", "recoveries", "fsyncs", "checked", "cells", "saves", "versions", "newest", "late", "changes"], 0)
    counts["seen"] = set()
    print("%d rounds, seed %d" % (rounds, seed), flush=True)
    failed = 0
    for number in range(rounds):
        place = places[number % len(places)]
        place.faults = []
        began = time.monotonic()
        try:
            a_round(place, draw, counts)
        except (OSError, RuntimeError) as error:
            place.wrong(str(error))
        for fault in place.faults[:10]:
            print("FAILED: round %d on %s: %s" % (number, place.device, fault), flush=True)
        if len(place.faults) > 10:
            print("  and %d more" % (len(place.faults) - 10))
        if place.faults:
            # What follows would find the same again.
            failed += 1
            break
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            print("round %d: %d fsyncs acknowledged so far" % (number + 1, counts["fsyncs"]), flush=True)
    print("%(kills)d kills, %(recoveries)d of them followed by one during recovery; %(fsyncs)d fsyncs acknowledged, the last of each of "
          "%(checked)d files and trees checked, %(cells)d cells; %(saves)d saves without fsync, " % counts
          + "%d times a project looked at: %d different versions seen, %d times the newest, %d open for too long to be promised; "
          % (counts["versions"] + counts["late"], len(counts["seen"]), counts["newest"], counts["late"])
          + "%d changes of trees" % counts["changes"])
    if counts["checked"] == 0 or counts["versions"] == 0:
        print("FAILED: nothing was checked")
        failed += 1
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
