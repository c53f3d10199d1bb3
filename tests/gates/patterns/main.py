"""Replays conversations of SMB clients on shares of two volumes, and compares what comes of them.

usage: main.py write|read RESULTS AVFSCTL ROOT-OF-AVFS ROOT-OF-REFERENCE [--same]

Each root holds the directories of the shares: `plain`, and `strict` with `strict allocate = yes`; the shares are named
avfs-plain, reference-plain and so on. `write` writes and looks at what it has cost; `read`, after the volumes were mounted
again, compares every byte and reads. With --same the first volume is not AVFS: what only AVFS can answer is left out.
A line "pass CASE" or "fail CASE" for each is appended to RESULTS.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import readers
import writers
from share import MIB, Share

CHUNK = 4 * MIB


class Run:
    """One conversation on one share."""

    def __init__(self, share_name, directory, repeat=1):
        self._name, self._directory, self.repeat = share_name, directory, repeat
        self.share = self.connect()

    def connect(self):
        return Share(self._name)

    def path(self, name):
        return self._directory if name == "." else f"{self._directory}/{name}"

    def close(self):
        self.share.close()


class Volume:
    """The volume of AVFS, as its daemon tells of it; of another one nothing is told."""

    def __init__(self, root, avfsctl):
        self.root, self._avfsctl = Path(root), avfsctl

    def _ask(self, *arguments):
        if self._avfsctl is None:
            return None
        return subprocess.run([self._avfsctl, *arguments], check=True, capture_output=True, text=True).stdout

    def sync(self):
        if self._ask("sync", str(self.root)) is None:
            os.sync()

    def commands(self):
        """Commands of the device so far: (writes, class) to their number and bytes."""
        answer = self._ask("info", "--json", str(self.root))
        kinds = json.loads(answer)["commands"] if answer else []
        return {(kind["writes"], kind["class"]): (kind["commands"], kind["bytes"]) for kind in kinds}

    def runs(self, path):
        """Pieces of the device that hold the file; 1 where nobody tells."""
        answer = self._ask("extents", "--json", str(path))
        if answer is None:
            return 1
        count, file_end, device_end = 0, None, None
        for extent in json.loads(answer):
            if (extent["file_offset"], extent["device_offset"]) != (file_end, device_end):
                count += 1
            file_end = extent["file_offset"] + extent["length"]
            device_end = extent["device_offset"] + extent["length"]
        return count

    def policy(self, path):
        return self._ask("policy", "explain", str(path))


def difference(before, after):
    """What was done between two answers of `Volume.commands`."""
    none = (0, 0)
    kinds = {kind: tuple(b - a for a, b in zip(before.get(kind, none), after[kind])) for kind in after}
    return {kind: change for kind, change in kinds.items() if change[0]}


def total(change, writes):
    """Commands and bytes of all classes."""
    parts = [numbers for kind, numbers in change.items() if kind[0] == writes]
    return sum(count for count, _ in parts), sum(size for _, size in parts)


def told(change):
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


def check_written(volume, place, reference, written, change):
    """What the conversation has left on the volume, beside the same on the reference."""
    for name, length in written.lengths.items():
        path = place / name
        assert path.stat().st_size == length, f"{name}: {path.stat().st_size} bytes instead of {length}"
        assert (reference / name).stat().st_size == length, f"{name}: not as long on the reference"
        if sum(written.lengths.values()) < 256 * MIB:
            same_bytes(path, reference / name)
        if not change:
            continue
        allocated = path.stat().st_blocks * 512
        wanted = written.holes.get(name, -(-length // 4096) * 4096)
        assert allocated == wanted, f"{name}: {allocated} bytes allocated instead of {wanted}"
        runs = volume.runs(path)
        assert runs <= written.runs, f"{name}: {runs} runs, more than {written.runs}"
    count, size = total(change, writes=False)
    assert count == 0, f"writing took {count} reads of {size} bytes"
    if written.least_mean_bytes and change:
        count, size = change[(True, "real_time")]
        assert size / count >= written.least_mean_bytes, f"the mean write has {size / count:.0f} bytes"


class Gate:
    def __init__(self, results, avfsctl, avfs, reference):
        self.results = results
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
        run = Run(f"{side}-{share}", directory, repeat)
        try:
            outcome = conversation(run)
        finally:
            run.close()
        return outcome, before

    def write(self, share, name, conversation):
        directory = name
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
        places = [volume.root / share / directory for volume in self.volumes.values()]
        check_written(self.volumes["avfs"], *places, outcome["avfs"], change)
        return told(change)

    def policies(self):
        """What was set through the share holds, and names the folder as its source."""
        place = self.volumes["avfs"].root / "plain" / "eight recorders at once" / "recordings"
        explained = self.volumes["avfs"].policy(place / "camera 0.mxf")
        if explained is not None:
            assert writers.RECORDERS_BITRATE in explained and "directory" in explained, explained

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

    def read(self, conversation, directory):
        seen = {}
        for side, volume in self.volumes.items():
            seen[side], before = self.converse(side, "plain", directory, conversation)
            if side == "avfs":
                change = difference(before, volume.commands())
        assert seen["avfs"] == seen["reference"], f"seen: {seen}"
        there = sum(path.stat().st_size for path in (self.volumes["avfs"].root / "plain" / directory).rglob("*"))
        count, size = total(change, writes=False)
        assert size <= there * 11 // 10, f"{size} bytes were read of {there} that are there"
        least = readers.LEAST_MEAN_READ.get(directory, 0)
        assert not change or size >= count * least, f"the mean read has {size / count:.0f} bytes"
        return told(change)

    def read_warm(self, conversation, directory):
        self.read(conversation, directory)
        seen = {}
        for side, volume in self.volumes.items():
            seen[side], before = self.converse(side, "plain", directory, conversation, repeat=10)
            if side == "avfs":
                change = difference(before, volume.commands())
        assert seen["avfs"] == seen["reference"], f"seen: {seen}"
        count, size = total(change, writes=False)
        assert count == 0, f"{count} reads of {size} bytes although everything is in memory"
        return told(change)


def main():
    phase, results, avfsctl, avfs, reference, *more = sys.argv[1:]
    gate = Gate(results, None if more == ["--same"] else avfsctl, avfs, reference)
    if phase == "write":
        for name, conversation in writers.CONVERSATIONS.items():
            gate.case(name, lambda: gate.write("plain", name, conversation))
        for name, conversation in writers.STRICT.items():
            gate.case(f"{name}, strict allocate", lambda: gate.write("strict", name, conversation))
        gate.case("policies through the share", gate.policies)
        for name, conversation in readers.WRITERS.items():
            gate.case(f"writing {name}", lambda: gate.write("plain", name, conversation))
    else:
        for name, (conversation, directory) in readers.CONVERSATIONS.items():
            gate.case(name, lambda: gate.read(conversation, directory))
        for name, (conversation, directory) in readers.WARM.items():
            gate.case(name, lambda: gate.read_warm(conversation, directory))
        gate.case("every byte after a remount", gate.compare)


main()
