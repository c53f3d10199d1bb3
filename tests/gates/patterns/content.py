"""Bytes that say where they belong: whatever is found in a wrong place, or in a wrong file, is told from what should be
there."""

import random

# Not a power of two, so that the same bytes do not come again where blocks begin.
_PERIOD = (1 << 20) + 4099


class Content:
    def __init__(self, seed):
        once = random.Random(seed).randbytes(_PERIOD)
        self._twice = once + once

    def at(self, offset, length):
        pieces = []
        while length > 0:
            start = offset % _PERIOD
            piece = self._twice[start : start + min(length, _PERIOD)]
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check(self, data, offset, length=None):
        length = len(data) if length is None else length
        if data != self.at(offset, length):
            raise AssertionError(f"{len(data)} bytes at {offset} are not what was written there")
