"""Clips, and where in their files each frame ends: what a player must have read before it can show the frame."""

import json
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path


@dataclass(frozen=True)
class Clip:
    """A container file, or a directory with a file per frame."""

    name: str
    """Path below the folder of the footage."""
    kind: str
    """Container and codec."""
    frames_per_second: Fraction
    frames: list[tuple[str, int]]
    """For each frame in order: its file, and the offset in it, in bytes, at which the frame ends."""
    bytes: int

    @property
    def megabits_per_second(self):
        return self.bytes * 8 / 1e6 / float(len(self.frames) / self.frames_per_second)

    @staticmethod
    def of_container(folder: Path, name: str):
        probed = json.loads(
            subprocess.run(
                ["ffprobe", "-v", "error", "-select_streams", "v:0", "-of", "json"]
                + ["-show_entries", "stream=codec_name,r_frame_rate:packet=pos,size", folder / name],
                check=True,
                capture_output=True,
            ).stdout
        )
        stream = probed["streams"][0]
        end, frames = 0, []
        for packet in probed["packets"]:
            end = max(end, int(packet["pos"]) + int(packet["size"]))
            frames.append((name, end))
        kind = f"{Path(name).suffix[1:].upper()} {stream['codec_name']}"
        return Clip(name, kind, Fraction(stream["r_frame_rate"]), frames, (folder / name).stat().st_size)

    @staticmethod
    def of_sequence(folder: Path, name: str, frames_per_second: Fraction):
        files = sorted((folder / name).iterdir())
        frames = [(f"{name}/{file.name}", file.stat().st_size) for file in files]
        kind = f"{files[0].suffix[1:].upper()} sequence"
        return Clip(name, kind, frames_per_second, frames, sum(size for _, size in frames))

    @staticmethod
    def of(folder: Path, name: str, frames_per_second=Fraction(24)):
        """Of a file, or of a directory whose files carry no rate of their own."""
        if (folder / name).is_dir():
            return Clip.of_sequence(folder, name, frames_per_second)
        return Clip.of_container(folder, name)
