"""What players, file managers and applications send when they read. Each conversation gets a `Run`, checks what it reads,
and returns what it saw, which must be the same on every filesystem."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from content import Content
from share import DELETE, KIB, MIB
from smbprotocol.file_info import InfoType
from writers import Written, out_of_order, pieces

FRAMES = 48
FRAME = 2 * MIB + 2 * KIB
FILM = 160 * MIB
PICTURE = 2 * MIB

# References to names in a run of NetBench (Lee, "Workload Characterization and Resource Usage Patterns for a Linux SAMBA
# Server", IBM Research, table 6).
TEMPORARY = "clients/client1/~dmtmp"
NAMES = {
    f"{TEMPORARY}/*": 6378,
    f"{TEMPORARY}/PARADOX": 3506,
    TEMPORARY: 3052,
    f"{TEMPORARY}/WORDPRO": 1708,
    f"{TEMPORARY}/PM": 1646,
    f"{TEMPORARY}/WORD": 1429,
    f"{TEMPORARY}/ACCESS": 1367,
    f"{TEMPORARY}/COREL": 1336,
    f"{TEMPORARY}/EXCEL": 1139,
    f"{TEMPORARY}/PWRPNT": 1088,
    f"{TEMPORARY}/PWRPNT/NEWTIPS.PPT": 837,
    f"{TEMPORARY}/PWRPNT/NEWPCB.PPT": 837,
    f"{TEMPORARY}/COREL/@@@CDRW.TMP": 775,
    f"{TEMPORARY}/WORDPRO/LWPSAV0.TMP": 620,
    f"{TEMPORARY}/EXCEL/RESULTS.XLS": 616,
}
# A third of all looks at a name find nothing.
MISSING_PERCENT = 32


def frame_name(number):
    return f"shot_010.{number:06}.dpx"


# What is read is written before, in a phase of its own: these are conversations of writers.


def write_frames(run):
    for number in range(1, FRAMES + 1):
        name = run.path(frame_name(number))
        assert run.share.is_missing(name)
        with run.share.create(name) as file:
            file.write_many(pieces(Content(number), FRAME, MIB))
        assert run.share.stat(name) == FRAME
    return Written({frame_name(number): FRAME for number in range(1, FRAMES + 1)})


def write_film(run):
    with run.share.create(run.path("film.mov")) as file:
        file.write_many(pieces(Content(300), FILM, MIB))
    return Written({"film.mov": FILM})


def write_names(run):
    folders = {"clients", "clients/client1", TEMPORARY}
    folders |= {name for name in NAMES if "." not in name.rsplit("/", 1)[1] and not name.endswith("*")}
    for folder in sorted(folders):
        run.share.make_directory(run.path(folder))
    lengths = {name: 20_000 + len(name) for name in NAMES if "." in name.rsplit("/", 1)[1]}
    lengths["oldname"] = 8
    for name, length in lengths.items():
        with run.share.create(run.path(name)) as file:
            file.write(0, Content(name).at(0, length))
    return Written(lengths)


EVERY_FRAME = range(1, FRAMES + 1)
EVERY_THIRD_FRAME = EVERY_FRAME[::3]


def frames(numbers):
    """Numbered frames, each opened, asked, read and closed."""

    def converse(run):
        names = sorted(run.share.list(run.path("."), "shot_010.*.dpx"))
        assert names == [frame_name(number) for number in EVERY_FRAME], names
        for number in numbers:
            content = Content(number)
            with run.share.open(run.path(frame_name(number))) as file:
                assert file.length() == FRAME
                offsets = [(at, min(MIB, FRAME - at)) for at in range(0, FRAME, MIB)]
                file.read_many(offsets, content.check)
        return names

    return converse


def parallel(run):
    """1 MiB at a time, ten deep, out of order."""
    content = Content(300)
    order = out_of_order(random.Random(5), [(at, MIB) for at in range(0, FILM, MIB)], 10)
    with run.share.open(run.path("film.mov")) as file:
        file.read_many(order, content.check)
    return FILM


def apart(run):
    """A picture and its sound that lie apart, through one open: at both places in turn."""
    content, half = Content(300), FILM // 2
    with run.share.open(run.path("film.mov")) as file:
        file.read_many([(at + part, MIB) for at in range(0, half, MIB) for part in (0, half)], content.check)
    return FILM


def backwards(run):
    """A film from its end to its start, picture by picture, each of which is read forwards."""
    content = Content(300)
    with run.share.open(run.path("film.mov")) as file:
        for at in range(FILM - PICTURE, -1, -PICTURE):
            file.read_many([(at + more, MIB) for more in range(0, PICTURE, MIB)], content.check)
    return FILM


TAIL = (FILM - 64 * KIB, 64 * KIB)


def look_at_the_end(run):
    """What many players begin with: an index stands at the end, if anywhere."""
    with run.share.open(run.path("film.mov")) as file:
        Content(300).check(file.read(*TAIL), *TAIL)
        assert file.read(FILM, MIB) == b""
    return FILM


# So far from each other that what is read ahead at one place does not reach the next.
JUMPS = [at * MIB + 12345 for at in [80, 10, 120, 45]]
SCRUBBED = 2 * MIB
# At each place the client goes on for a moment, so that what follows is read ahead: 16 MiB, as the configuration has
# it, and up to the end of a request, which has 8 MiB.
AHEAD = (16 + 8) * MIB


def scrubbing(run):
    """Jumps backwards and forwards after a look at the end, and some pictures from each place."""
    content = Content(300)
    with run.share.open(run.path("film.mov")) as file:
        content.check(file.read(*TAIL), *TAIL)
        for at in JUMPS:
            file.read_many([(at + more, 512 * KIB) for more in range(0, SCRUBBED, 512 * KIB)], content.check)
    return JUMPS


def rename(run):
    """Renaming in Windows' Explorer, message by message (Lee, tables 1 and 2)."""
    share, content = run.share, Content("oldname")
    text = content.at(0, 8)

    def once(old, new):
        def read(file, length):
            assert file.read(0, length) == text[:length]

        for _ in range(2):
            share.open(old).close()
        with share.open(old) as file:
            read(file, 8)
        with share.open(old) as file:
            read(file, 8)
            file.length()
            file.query(5, InfoType.SMB2_0_INFO_FILESYSTEM)
            folder, _, name = old.rpartition("/")
            assert share.list(folder, name) == [name]
            assert share.list(folder, new.rpartition("/")[2]) == []
        with share.open(old):
            for _ in range(4):
                assert share.is_missing(new)
            assert share.stat(old) == 8
            share.open(old).close()
            with share.open(old) as file:
                file.length()
                read(file, 256)
                read(file, 512)
                file.length()
                read(file, 2)
                file.length()
                file.length()
                read(file, 8)
                read(file, 4096)
        with share.open(old, DELETE) as file:
            file.rename(new)
        assert share.list(folder, new.rpartition("/")[2]) == [new.rpartition("/")[2]]

    old, new = run.path("oldname"), run.path("newname")
    for _ in range(run.repeat):
        once(old, new)
        once(new, old)
    return run.repeat


def netbench(run):
    """Each name, then names in NetBench's proportions, a third of them missing."""
    chance = random.Random(7)
    seen = []
    for name in [*NAMES, *chance.choices(list(NAMES), list(NAMES.values()), k=40 * run.repeat)]:
        folder, _, last = name.rpartition("/")
        if len(seen) >= len(NAMES) and chance.randrange(100) < MISSING_PERCENT:
            seen.append(run.share.is_missing(run.path(f"{folder}/NONE{chance.randrange(60)}.TMP")))
        elif last == "*":
            seen.append(sorted(run.share.list(run.path(folder))))
        elif "." in last:
            with run.share.open(run.path(name)) as file:
                data = file.read(0, 4 * KIB)
                Content(name).check(data, 0, 4 * KIB)
                seen.append(file.length())
        else:
            run.share.stat(run.path(name))
            seen.append(name)
    return seen


@dataclass
class Reading:
    """What is written, how it is read, and what the device may do for it."""

    write: Callable
    converse: Callable
    asked: int
    """Bytes that the client asks for: so many come from the device, because nobody has read them before."""
    least_mean_bytes: int = 0
    """Least mean length of the device's reads."""
    ahead: int = 0
    """Bytes that are read ahead and may not be asked for."""

    def most_bytes(self):
        # Ends of files in blocks are 0.1 % more: whoever asks for everything has nothing read twice, or from between.
        return self.asked * 105 // 100 + self.ahead


# Each has a directory of its own, so that nothing it reads is in memory. Commands have the 8 MiB of a unit where the
# client goes on, and more where frames lie in a row; but the first are short, because it is not known yet, and a client
# as fast as what is read for it gets more of those. The bounds are what the worst of a dozen rounds had, and a little
# less; what is read in the pieces that clients ask for, 1 MiB or a frame, is well below them.
CONVERSATIONS = {
    "frames in order": Reading(write_frames, frames(EVERY_FRAME), FRAMES * FRAME, 8 * MIB),
    "frames with gaps": Reading(write_frames, frames(EVERY_THIRD_FRAME), len(EVERY_THIRD_FRAME) * FRAME, FRAME),
    "frames backwards": Reading(write_frames, frames(EVERY_FRAME[::-1]), FRAMES * FRAME, 5 * MIB // 2),
    "parallel reads, ten deep": Reading(write_film, parallel, FILM, 4 * MIB),
    "two places in turn": Reading(write_film, apart, FILM, 5 * MIB),
    "a film backwards": Reading(write_film, backwards, FILM, 4 * MIB),
    "a look at the end": Reading(write_film, look_at_the_end, TAIL[1]),
    "scrubbing": Reading(write_film, scrubbing, TAIL[1] + len(JUMPS) * SCRUBBED, ahead=len(JUMPS) * AHEAD),
}
# These cost no reads of the device once the names are in memory.
WARM = {
    "renaming in Explorer": Reading(write_names, rename, 8),
    "names as NetBench asks for them": Reading(write_names, netbench, 5 * 4 * KIB),
}
