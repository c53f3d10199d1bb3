"""Replays conversations of SMB clients on shares of two volumes, and compares what comes of them.

usage: main.py write|read RESULTS AVFSCTL ROOT-OF-AVFS ROOT-OF-REFERENCE [--same]

Each root holds the directories of the shares: `plain`, and `strict`, where the server allocates what clients leave out;
the shares are named avfs-plain, reference-plain and so on. `write` writes and looks at what it has cost; `read`, after the
volumes were mounted again, reads and compares every byte. With --same the first volume is not AVFS: what only AVFS can
answer is left out. A line "pass CASE" or "fail CASE" for each is appended to RESULTS.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import readers
import spelling
import writers
from share import MIB, Share

CHUNK = 4 * MIB
# Longer than AVFS keeps dirty bytes.
LONG_SECONDS = 6.5
# What the device gets at once of a file that goes on.
EXTENT = 8 * MIB
# What a conversation's writes may take beside its data: log and superblock, some 50 KiB where many files are made; and
# the images of a checkpoint, of which there is one a minute, some 120 KiB in two or three commands. Zeros in the place
# of what is allocated would be tens of MiB.
UNASKED_BYTES = MIB
CHECKPOINT_COMMANDS = 4


class Run:
    """One conversation on one share."""

    def __init__(self, share_name, directory, repeat=1, ages=False):
        self._name, self._directory, self.repeat, self._ages = share_name, directory, repeat, ages
        self.share = self.connect()

    def connect(self):
        return Share(self._name)

    def path(self, name):
        return self._directory if name == "." else f"{self._directory}/{name}"

    def let_age(self):
        """What was written so far goes to the device by itself. Only AVFS is waited for: of others only contents count."""
        time.sleep(LONG_SECONDS if self._ages else 0)

    def close(self):
        self.share.close()


class Volume:
    """The volume of AVFS, as its daemon tells of it; of another one nothing is told."""

    def __init__(self, root, avfsctl):
        self.root, self._avfsctl = Path(root), avfsctl
        self.tells = avfsctl is not None

    def _ask(self, *arguments):
        if not self.tells:
            return None
        return subprocess.run([self._avfsctl, *arguments], check=True, capture_output=True, text=True).stdout

    def sync(self):
        if self._ask("sync", str(self.root)) is None:
            os.sync()

    def commands(self):
        """Commands of the device so far: (writes, class) to their number and bytes; None where nobody tells."""
        answer = self._ask("info", "--json", str(self.root))
        if answer is None:
            return None
        kinds = json.loads(answer)["commands"]
        return {(kind["writes"], kind["class"]): (kind["commands"], kind["bytes"]) for kind in kinds}

    def runs(self, path):
        """Pieces of the device that hold the file; 1 where nobody tells."""
        answer = self._ask("extents", "--json", str(path))
        if answer is None:
            return 1
        count, file_end, device_end = 0, None, None
        for extent in json.loads(answer)["extents"]:
            if (extent["file_offset"], extent["device_offset"]) != (file_end, device_end):
                count += 1
            file_end = extent["file_offset"] + extent["length"]
            device_end = extent["device_offset"] + extent["length"]
        return count

    def policy(self, path):
        return self._ask("policy", "explain", str(path))


class Server:
    """smbd, as its profile tells of it."""

    @staticmethod
    def calls(since=None):
        """What all clients that have hung up made it do, by name; since an earlier answer, or ever."""
        command = ["smbstatus", f"--configfile={os.environ['SMB_CONF']}", "--profile"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = (line.split(":") for line in answer.splitlines() if "_count:" in line)
        calls = Counter({name.strip().removesuffix("_count"): int(count) for name, count in lines})
        calls.subtract(since or {})
        return calls


def difference(before, after):
    """What was done between two answers of `Volume.commands`."""
    if after is None:
        return None
    none = (0, 0)
    kinds = {kind: tuple(b - a for a, b in zip(before.get(kind, none), after[kind])) for kind in after}
    return {kind: change for kind, change in kinds.items() if change[0]}


def total(change, writes):
    """Commands and bytes of all classes."""
    parts = [numbers for kind, numbers in change.items() if kind[0] == writes]
    return sum(count for count, _ in parts), sum(size for _, size in parts)


def told(change):
    if change is None:
        return "nobody tells of the device"
    words = [
        f"{count} {'writes' if writes else 'reads'} {class_}, mean {size / count / MIB:.2f} MiB"
        for (writes, class_), (count, size) in sorted(change.items())
    ]
    return "; ".join(words) or "no commands"


def same_bytes(left, right):
    with open(left, "rb") as one, open(right, "rb") as other:
        at = 0
        while True:
            first, second = one.read(CHUNK), other.read(CHUNK)
            assert first == second, f"{left} and {right} differ within {CHUNK} bytes from {at} on"
            if not first:
                return
            at += len(first)


def check_written(place, reference, written):
    """What the conversation has left, beside the same on the reference."""
    for name, length in written.lengths.items():
        path = place / name
        assert path.stat().st_size == length, f"{name}: {path.stat().st_size} bytes instead of {length}"
        assert (reference / name).stat().st_size == length, f"{name}: not as long on the reference"
        if sum(written.lengths.values()) < 256 * MIB:
            same_bytes(path, reference / name)


def check_bytes(place, written, wanted_of, change):
    """So much is allocated as is wanted, and every byte went to the device once: no zeros were there before."""
    for name in written.lengths:
        allocated = (place / name).stat().st_blocks * 512
        wanted = wanted_of(name)
        assert allocated == wanted, f"{name}: {allocated} bytes allocated instead of {wanted}"
    count, size = total(change, writes=False)
    assert count == 0, f"writing took {count} reads of {size} bytes"
    data = written.all_data() + written.again
    _, size = total(change, writes=True)
    assert data <= size <= data + UNASKED_BYTES, f"{size} bytes were written, instead of {data} and a little"


def check_pieces(volume, place, written, change):
    """Files lie in runs, and went there in commands as long as extents are."""
    for name in written.lengths:
        runs = volume.runs(place / name)
        assert runs <= written.runs, f"{name}: {runs} runs, more than {written.runs}"
    # The log has a class of its own, and short commands.
    data = {kind: numbers for kind, numbers in change.items() if kind[1] != "metadata"}
    count, size = total(data, writes=True)
    most = -(-written.all_data() // EXTENT) + len(written.lengths) + written.alone + CHECKPOINT_COMMANDS
    assert count <= most, f"{count} commands wrote {size} bytes, more than {most}"
    if written.least_mean_bytes:
        count, size = change[(True, "real_time")]
        assert size / count >= written.least_mean_bytes, f"the mean write has {size / count:.0f} bytes"


class Gate:
    def __init__(self, results, avfsctl, avfs, reference):
        self.results, self.strict = results, None
        self.volumes = {"avfs": Volume(avfs, avfsctl), "reference": Volume(reference, None)}

    def case(self, name, check):
        started = time.monotonic()
        try:
            note, verdict = check(), "pass"
        except Exception:
            traceback.print_exc()
            note, verdict = "", "fail"
        print(f"{verdict} {name}: {time.monotonic() - started:.1f} s {note or ''}", flush=True)
        with open(self.results, "a", encoding="utf-8") as lines:
            lines.write(f"{verdict} {name}\n")

    def converse(self, side, share, directory, conversation, repeat=1):
        """One conversation on one side, and what the device did for it."""
        volume = self.volumes[side]
        before = volume.commands()
        run = Run(f"{side}-{share}", directory, repeat, ages=volume.tells)
        try:
            outcome = conversation(run)
        finally:
            run.close()
        return outcome, before

    def leave(self, share, directory, conversation):
        """One conversation on both sides: where it is, what it has left, and what the device of AVFS did for it."""
        outcome = {}
        for side, volume in self.volumes.items():
            run = Run(f"{side}-{share}", directory)
            run.share.make_directory(directory)
            run.close()
            volume.sync()
            outcome[side], before = self.converse(side, share, directory, conversation)
            volume.sync()
            if side == "avfs":
                change = difference(before, volume.commands())
        place, reference = (volume.root / share / directory for volume in self.volumes.values())
        check_written(place, reference, outcome["avfs"])
        return place, outcome["avfs"], change

    def write(self, directory, conversation):
        place, written, change = self.leave("plain", directory, conversation)
        if change is not None:
            check_bytes(place, written, written.data_of, change)
            check_pieces(self.volumes["avfs"], place, written, change)
        return told(change)

    def write_strict(self, directory, conversation):
        """The server has all of each file allocated, and only data are written."""
        self.strict, calls = None, Server.calls()
        self.strict = place, written, change = self.leave("strict", directory, conversation)
        calls = Server.calls(calls)["syscall_fallocate"]
        assert calls > 0, "smbd had nothing to allocate"
        if change is not None:
            check_bytes(place, written, lambda name: writers.whole_blocks(written.lengths[name]), change)
        return f"{calls} allocations; {told(change)}"

    def pieces_of_strict(self):
        """What `write_strict` has left has no holes any more, and lies in one run."""
        place, written, change = self.strict
        alone = written.alone + written.apart
        check_pieces(self.volumes["avfs"], place, replace(written, runs=1, alone=alone), change)

    def policies(self):
        """What was set through the share holds, and names the folder as its source."""
        place = self.volumes["avfs"].root / "plain" / "eight recorders at once" / "recordings"
        explained = self.volumes["avfs"].policy(place / "camera 0.mxf")
        if explained is not None:
            assert writers.RECORDERS_BITRATE in explained and "directory" in explained, explained

    def spelling(self):
        """How a name is really spelt is asked: no folder is searched for it."""
        seen, entries = {}, {}
        for side in self.volumes:
            calls = Server.calls()
            seen[side], _ = self.converse(side, "plain", "spelling", spelling.spelling)
            calls = Server.calls(calls)
            assert calls["smb2_create"] > spelling.NAMES, f"smbd does not count: {calls}"
            entries[side] = calls["syscall_readdir"]
        assert seen["avfs"] == seen["reference"], f"seen: {seen}"
        # The reference is not asked: there each new name takes a look at all the others.
        assert entries["reference"] > spelling.NAMES**2 // 4, f"smbd does not count: {entries}"
        if self.volumes["avfs"].tells:
            assert entries["avfs"] == 0, f"smbd looked at {entries['avfs']} entries of folders"
        return f"smbd looked at {entries['avfs']} entries of folders, {entries['reference']} on the reference"

    def compare(self):
        """Everything, from the device."""
        left, right = (volume.root for volume in self.volumes.values())
        shares = [left / "plain", left / "strict"], [right / "plain", right / "strict"]
        names, twins = (
            {path.relative_to(share.parent) for share in side for path in share.rglob("*")} for side in shares
        )
        assert names and names == twins, f"only on one side: {names ^ twins}"
        files = [name for name in sorted(names) if (left / name).is_file()]
        for name in files:
            same_bytes(left / name, right / name)
        return f"{len(files)} files"

    def converse_twice(self, directory, conversation, repeat=1):
        """One conversation on both sides, which see the same; what the device of AVFS did for it."""
        seen = {}
        for side, volume in self.volumes.items():
            seen[side], before = self.converse(side, "plain", directory, conversation, repeat)
            if side == "avfs":
                change = difference(before, volume.commands())
        assert seen["avfs"] == seen["reference"], f"seen: {seen}"
        return change

    def read(self, name, reading):
        change = self.converse_twice(name, reading.converse)
        if change is not None:
            count, size = total(change, writes=False)
            most = reading.most_bytes()
            assert reading.asked <= size <= most, f"{size} bytes were read instead of {reading.asked} to {most}"
            assert size >= count * reading.least_mean_bytes, f"the mean read has {size / count:.0f} bytes"
        return told(change)

    def read_warm(self, name, reading):
        change = self.converse_twice(name, reading.converse)
        if change is not None:
            files = (path.stat() for path in (self.volumes["avfs"].root / "plain" / name).rglob("*") if path.is_file())
            there = sum(file.st_blocks * 512 for file in files)
            count, size = total(change, writes=False)
            assert reading.asked <= size <= there, f"{size} bytes were read of {there} that are there"
        change = self.converse_twice(name, reading.converse, repeat=10)
        if change is not None:
            count, size = total(change, writes=False)
            assert count == 0, f"{count} reads of {size} bytes although everything is in memory"
        return told(change)


def main():
    phase, results, avfsctl, avfs, reference, *more = sys.argv[1:]
    gate = Gate(results, None if more == ["--same"] else avfsctl, avfs, reference)
    if phase == "write":
        for name, conversation in writers.CONVERSATIONS.items():
            gate.case(name, lambda: gate.write(name, conversation))
        for name, conversation in writers.STRICT.items():
            gate.case(f"{name}, strict allocate", lambda: gate.write_strict(name, conversation))
            if gate.volumes["avfs"].tells:
                gate.case(f"{name}, strict allocate, in one piece", gate.pieces_of_strict)
        gate.case("names in another case", gate.spelling)
        gate.case("policies through the share", gate.policies)
        for name, reading in (readers.CONVERSATIONS | readers.WARM).items():
            gate.case(f"writing {name}", lambda: gate.write(name, reading.write))
    else:
        for name, reading in readers.CONVERSATIONS.items():
            gate.case(name, lambda: gate.read(name, reading))
        for name, reading in readers.WARM.items():
            gate.case(name, lambda: gate.read_warm(name, reading))
        gate.case("every byte after a remount", gate.compare)


main()
