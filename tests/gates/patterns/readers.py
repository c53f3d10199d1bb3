"""What players, file managers and applications send when they read. Each conversation gets a `Run`, checks what it reads,
and returns what it saw, which must be the same on every filesystem."""

import random

from content import Content
from share import DELETE, KIB, MIB
from smbprotocol.file_info import InfoType
from writers import Written, out_of_order, pieces

FRAMES = 48
FRAME = 2 * MIB + 2 * KIB
FILM = 160 * MIB

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


WRITERS = {"frames": write_frames, "film": write_film, "apart": write_film, "names": write_names}


def frames(run):
    """Numbered frames, each opened, asked, read and closed: in order, with gaps, and backwards."""
    names = sorted(run.share.list(run.path("."), "shot_010.*.dpx"))
    assert names == [frame_name(number) for number in range(1, FRAMES + 1)], names
    everything = list(range(1, FRAMES + 1))
    for numbers in [everything, everything[::3], everything[::-1]]:
        for number in numbers:
            content = Content(number)
            with run.share.open(run.path(frame_name(number))) as file:
                assert file.length() == FRAME
                offsets = [(at, min(MIB, FRAME - at)) for at in range(0, FRAME, MIB)]
                file.read_many(offsets, content.check)
    return names


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


def scrubbing(run):
    """Jumps forwards and backwards, a look at the end first, and some frames from each place."""
    content, jumps = Content(300), random.Random(6)
    seen = []
    with run.share.open(run.path("film.mov")) as file:
        content.check(file.read(FILM - 64 * KIB, 64 * KIB), FILM - 64 * KIB)
        assert file.read(FILM, MIB) == b""
        for _ in range(60):
            at = jumps.randrange(FILM - 4 * MIB)
            file.read_many([(at + more, 512 * KIB) for more in range(0, 2 * MIB, 512 * KIB)], content.check)
            seen.append(at)
    return seen


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


# Frames that lie in a row are read many at once. At two places the first few are asked for before it is known that both go on.
LEAST_MEAN_READ = {"frames": 8 * MIB, "apart": 4 * MIB}

# Conversation, and the directory that it reads.
CONVERSATIONS = {
    "frames in order, with gaps and backwards": (frames, "frames"),
    "parallel reads, ten deep": (parallel, "film"),
    "two places in turn": (apart, "apart"),
    "scrubbing": (scrubbing, "film"),
}
# These cost no reads of the device once the names are in memory.
WARM = {
    "renaming in Explorer": (rename, "names"),
    "names as NetBench asks for them": (netbench, "names"),
}
