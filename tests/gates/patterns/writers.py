"""What recorders, copies and applications send when they write. Each conversation gets a `Run` and returns what it wrote."""

import random
import threading
import time
from dataclasses import dataclass, field

from content import Content
from share import KIB, MIB

# Windows goes ahead of what it appends with single bytes: a write at this stride, so far behind the end, before any data.
STRIDE = 128 * KIB
AHEAD = 15 * MIB
BLOCK = 4 * KIB
RECORDERS = 8
RECORDING = 160 * MIB
RECORDERS_BITRATE = "200 Mbit/s"


@dataclass
class Written:
    """What a conversation leaves, and what is known of it."""

    lengths: dict = field(default_factory=dict)
    """Path in the conversation's directory: length in bytes."""
    runs: int = 1
    """Most pieces that each file may lie in on the device."""
    data: dict = field(default_factory=dict)
    """Path: bytes of the blocks that hold data, of files that are not full of them."""
    alone: int = 0
    """Blocks that reach the device each by itself, before it is known what comes around them."""
    apart: int = 0
    """Blocks that lie each by itself where the server has allocated what is between them."""
    again: int = 0
    """Bytes that reach the device once more than they are there."""
    least_mean_bytes: int = 0
    """Mean length of the real-time writes that the device got."""

    def data_of(self, name):
        return self.data.get(name, whole_blocks(self.lengths[name]))

    def all_data(self):
        return sum(self.data_of(name) for name in self.lengths)


def whole_blocks(length):
    return -(-length // BLOCK) * BLOCK


def pieces(content, length, size, start=0):
    for offset in range(start, length, size):
        yield offset, content.at(offset, min(size, length - offset))


def out_of_order(random_, items, depth):
    """The items, of which any of the next `depth` may come first, and some wait long."""
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == depth:
            random_.shuffle(waiting)
            yield waiting.pop()
    yield from waiting


def record_like_windows(file, content, length, pause=lambda: None):
    for start in range(0, length, AHEAD):
        end = min(start + AHEAD, length)
        file.write_many([(at - 1, b"\0") for at in range(start + STRIDE, end + 1, STRIDE)])
        pause()
        file.write_many(pieces(content, end, 64 * KIB, start))


def preallocation(run):
    length = 6 * AHEAD
    with run.share.create(run.path("capture.avi")) as file:
        record_like_windows(file, Content(1), length)
    return Written({"capture.avi": length})


def preallocation_with_pauses(run):
    """The single bytes are on the device before the data come."""
    length = 2 * AHEAD
    with run.share.create(run.path("capture.avi")) as file:
        record_like_windows(file, Content(2), length, run.let_age)
    marks = length // STRIDE
    return Written({"capture.avi": length}, alone=marks, again=marks * BLOCK)


def preallocation_abandoned(run):
    """The recording ends before what was preallocated; bytes and length stay as they were written."""
    length, marks = 3 * MIB, range(STRIDE, AHEAD + 1, STRIDE)
    with run.share.create(run.path("short.avi")) as file:
        file.write_many([(at - 1, b"\x5a") for at in marks])
        file.flush()
        file.write_many(pieces(Content(3), length, 64 * KIB))
    again = sum(1 for at in marks if at <= length)
    return Written(
        {"short.avi": AHEAD},
        runs=AHEAD // STRIDE,
        data={"short.avi": length + (len(marks) - again) * BLOCK},
        alone=len(marks),
        again=again * BLOCK,
    )


def sparse(run):
    """A file that has a byte here and there, and means it."""
    lengths, data = {}, {}
    for stride, count in [(STRIDE, 700), (2 * MIB, 100), (128 * MIB, 5)]:
        name = f"sparse {stride}"
        with run.share.create(run.path(name)) as file:
            file.write_many([(number * stride, b"\x5a") for number in range(1, count + 1)])
        lengths[name], data[name] = count * stride + 1, count * BLOCK
    return Written(lengths, runs=1000, data=data, apart=sum(data.values()) // BLOCK)


def unbuffered_application(run):
    """An application that writes 9,123 bytes at a time, unbuffered; and what Windows' redirector makes of it."""
    size, count = 9123, 3000
    length, content = size * count, Content(4)
    with run.share.create(run.path("direct")) as file:
        file.write_many(pieces(content, length, size))
    with run.share.create(run.path("redirected")) as file:
        record_like_windows(file, content, length)
    return Written({"direct": length, "redirected": length})


def sizes(run):
    lengths = {}
    for size, length in [(4 * KIB, 12 * MIB), (64 * KIB, 48 * MIB), (MIB, 160 * MIB)]:
        name = f"pieces of {size}"
        with run.share.create(run.path(name)) as file:
            file.write_many(pieces(Content(size), length, size))
        lengths[name] = length
    return Written(lengths)


def shuffled(run):
    """Requests that overtake each other, ten deep."""
    lengths = {}
    for size, length in [(64 * KIB, 48 * MIB), (MIB, 160 * MIB + 5000)]:
        name = f"shuffled {size}"
        order = out_of_order(random.Random(size), pieces(Content(size + 1), length, size), 10)
        with run.share.create(run.path(name)) as file:
            file.write_many(order)
        lengths[name] = length
    return Written(lengths)


def sized_first(run):
    """As Explorer copies: the length, then the data out of order; and as others do, an allocation first."""
    length, lengths = 96 * MIB + 777, {}

    def fill(file, seed):
        order = out_of_order(random.Random(seed), pieces(Content(seed), length, MIB), 10)
        file.write_many(order)

    with run.share.create(run.path("end of file")) as file:
        file.set_end(length)
        fill(file, 21)
    with run.share.create(run.path("allocation at create"), allocation_bytes=length) as file:
        fill(file, 22)
    with run.share.create(run.path("allocation later")) as file:
        file.set_allocation(length)
        fill(file, 23)
    with run.share.create(run.path("both, cut at last"), allocation_bytes=length + MIB) as file:
        file.set_end(length + MIB)
        fill(file, 24)
        file.set_end(length)
    for name in ["end of file", "allocation at create", "allocation later", "both, cut at last"]:
        lengths[name] = length
    return Written(lengths)


def recorders(run):
    """Eight at once. The folder says at which rate, by an extended attribute that is set through the share."""
    run.share.make_directory(run.path("recordings"))
    with run.share.open_directory(run.path("recordings")) as folder:
        folder.set_ea("avfs.bitrate", RECORDERS_BITRATE)
    clients = [run.connect() for _ in range(RECORDERS)]
    names = [f"recordings/camera {number}.mxf" for number in range(RECORDERS)]
    files = [client.create(run.path(name)) for client, name in zip(clients, names)]
    contents = [Content(100 + number) for number in range(RECORDERS)]
    turn = 4 * MIB
    for start in range(0, RECORDING, turn):
        for file, content in zip(files, contents):
            file.write_many(pieces(content, start + turn, MIB, start))
    for file, client in zip(files, clients):
        file.close()
        client.close()
    lengths = {name: RECORDING for name in names}
    return Written(lengths, runs=1 + RECORDING // (64 * MIB), least_mean_bytes=8_000_000)


def growing(run):
    """A reader chases the writer and never gets anything but what was written."""
    length, content = 64 * MIB, Content(7)
    path = run.path("growing.mxf")
    writer, failure = run.share.create(path), []

    def write():
        try:
            for start in range(0, length, 2 * MIB):
                # One after the other: what overtakes leaves a hole, on every filesystem.
                writer.write_many(pieces(content, start + 2 * MIB, 256 * KIB, start), depth=1)
        except Exception as error:  # told where the reader waits
            failure.append(error)

    thread = threading.Thread(target=write)
    chaser = run.connect()
    with chaser.open(path) as reader:
        thread.start()
        at, deadline = 0, time.monotonic() + 60
        while at < length and not failure:
            assert time.monotonic() < deadline, f"the reader stands still at {at}"
            data = reader.read(at, MIB)
            content.check(data, at)
            at += len(data)
            time.sleep(0 if data else 0.01)
    thread.join()
    writer.close()
    chaser.close()
    if failure:
        raise failure[0]
    return Written({"growing.mxf": length})


CONVERSATIONS = {
    "preallocation by single bytes": preallocation,
    "preallocation that reaches the device first": preallocation_with_pauses,
    "preallocation that is not used up": preallocation_abandoned,
    "sparse files": sparse,
    "an application that writes 9,123 bytes": unbuffered_application,
    "writers of 4 KiB, 64 KiB and 1 MiB": sizes,
    "requests that overtake each other": shuffled,
    "a length or an allocation first": sized_first,
    "eight recorders at once": recorders,
    "a growing file and its reader": growing,
}

# Where `strict allocate` makes smbd do something else: those that do not write their files from the start to the end.
STRICT = {
    name: CONVERSATIONS[name]
    for name in [
        "preallocation by single bytes",
        "preallocation that reaches the device first",
        "preallocation that is not used up",
        "sparse files",
        "an application that writes 9,123 bytes",
        "requests that overtake each other",
        "a length or an allocation first",
    ]
}
