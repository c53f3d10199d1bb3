#!/usr/bin/python3
"""Plays clips from a share at their own bitrates while somebody copies greedily, and counts the frames that were late.

usage: play.py FOLDER CLIP…

FOLDER holds the footage on this machine, from which the players know where each frame lies; every byte they count
comes from the share. A player is a process with its own connection. It fills a buffer of one second, starts its
clock, and from then on keeps the buffer full; frame n is late if it has not arrived n / rate seconds after the start.
The clock never waits: what arrives late is late, and the next frame is due all the same.

Exit code 0 if every frame of every clip was on time.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path

from clip import Clip
from share import MIB, Share

BUFFER_SECONDS = 1.0
START_APART_SECONDS = 0.25
TABLE_EVERY_SECONDS = 0.5
LINES_EVERY_SECONDS = 5.0


class Tally(ctypes.Structure):
    """What a player tells the table. Written by its player alone."""

    _fields_ = [
        ("on_time", ctypes.c_uint32),
        ("late", ctypes.c_uint32),
        ("least_slack_seconds", ctypes.c_double),
        ("failed", ctypes.c_bool),
    ]


def play(clip, tally, start_at):
    """Plays one clip to its end."""
    time.sleep(max(0.0, start_at - time.monotonic()))
    share = Share()
    rate = float(clip.frames_per_second)
    buffered_frames = max(1, round(BUFFER_SECONDS * rate))
    started = None

    def due(frame):
        return started + frame / rate

    tally.least_slack_seconds = float("inf")
    path, chunks, position = None, None, 0
    for frame, (frame_path, frame_end) in enumerate(clip.frames):
        if started is None and frame == buffered_frames:
            started = time.monotonic()
        if started is not None:
            # Room in the buffer is made by showing the oldest frame in it.
            time.sleep(max(0.0, due(frame - buffered_frames) - time.monotonic()))
        if frame_path != path:
            path, position = frame_path, 0
            chunks = share.chunks(path)
        while position < frame_end:
            position += len(next(chunks))
        if started is not None:
            slack = due(frame) - time.monotonic()
            tally.least_slack_seconds = min(tally.least_slack_seconds, slack)
            if slack < 0:
                tally.late += 1
                continue
        tally.on_time += 1


def copy_greedily(source, copied_bytes, stop):
    """Copies a file on the share to another name on the share, over and over, as fast as it goes."""
    share = Share()
    target = "greedy copy"
    while not stop.is_set():
        copy = share.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for chunk in share.chunks(source, 4 * MIB):
            copy.write(chunk)
            copied_bytes.value += len(chunk)
            if stop.is_set():
                break
        copy.close()
        share.unlink(target)


def run(name, tally, function, *arguments):
    """The life of a child: failures are told to the table, an interrupt is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function(*arguments)
    except Exception as error:
        tally.failed = True
        print(f"\n{name}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


def table(clips, tallies, copied, seconds):
    width = max(len(clip.name) for clip in clips) + 2
    yield f"{'stream':{width}}{'format':16}{'Mbit/s':>8}{'frames':>8}{'on time':>9}{'late':>6}{'least slack':>13}"
    for clip, tally in zip(clips, tallies):
        slack = tally.least_slack_seconds
        slack = f"{slack * 1000:.0f} ms" if tally.on_time + tally.late > clip.frames_per_second + 1 else "filling"
        yield (
            f"{clip.name:{width}}{clip.kind:16}{clip.megabits_per_second:8.0f}{len(clip.frames):8}"
            f"{tally.on_time:9}{tally.late:6}{'failed' if tally.failed else slack:>13}"
        )
    rate = copied.value / 1e6 / max(seconds, 1e-3)
    yield f"{'greedy copy':{width}}{'':16}{rate * 8:8.0f}{'':8}{copied.value / 1e6:8.0f} MB copied, {rate:.0f} MB/s"


def show(lines, redraw):
    """Prints the table; on a terminal over the one before."""
    lines = list(lines)
    if redraw:
        sys.stdout.write(f"\x1b[{len(lines)}A")
    for line in lines:
        print(line + ("\x1b[K" if sys.stdout.isatty() else ""))
    sys.stdout.flush()


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    clips = [Clip.of(folder, name) for name in names]
    # What the greedy copier reads is no clip that is played: it gets no help from the players' reads.
    source = os.environ["GREEDY_SOURCE"]

    tallies = RawArray(Tally, len(clips))
    copier_tally, copied, stop = RawValue(Tally), RawValue(ctypes.c_uint64), multiprocessing.Event()
    begin = time.monotonic()
    arguments = ("greedy copy", copier_tally, copy_greedily, source, copied, stop)
    copier = multiprocessing.Process(target=run, args=arguments)
    players = []
    for number, (clip, tally) in enumerate(zip(clips, tallies)):
        start_at = begin + START_APART_SECONDS * number
        arguments = (clip.name, tally, play, clip, tally, start_at)
        players.append(multiprocessing.Process(target=run, args=arguments))
    for child in [copier, *players]:
        child.start()

    interactive = sys.stdout.isatty()
    every = TABLE_EVERY_SECONDS if interactive else LINES_EVERY_SECONDS
    drawn = False
    try:
        while any(player.is_alive() for player in players):
            until = time.monotonic() + every
            for player in players:
                player.join(max(0.0, until - time.monotonic()))
            show(table(clips, tallies, copied, time.monotonic() - begin), redraw=drawn and interactive)
            drawn = True
    except KeyboardInterrupt:
        for child in [copier, *players]:
            child.terminate()
        sys.exit(130)
    stop.set()
    copier.join()

    expected = sum(len(clip.frames) for clip in clips)
    on_time = sum(tally.on_time for tally in tallies)
    failed = copier_tally.failed or any(tally.failed for tally in tallies)
    print(f"{on_time} of {expected} frames on time, {sum(tally.late for tally in tallies)} late")
    sys.exit(0 if on_time == expected and not failed else 1)


if __name__ == "__main__":
    main()
