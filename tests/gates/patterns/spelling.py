"""What clients send that spell names otherwise than the server has them: Windows and macOS tell no case apart, the
server does."""

import random

from share import READ_WRITE
from smbprotocol.open import CreateDisposition

NAMES = 600
ASKED_OTHERWISE = 60


def take_name(number):
    return f"A001C{number:04}_Take.mxf"


def spelling(run):
    """Files of one folder; some of them are asked for in another case then, and names that are not there."""
    share, path = run.share, run.path
    share.make_directory(path("."))
    for number in range(NAMES):
        share.create(path(take_name(number))).close()
    found = []
    for number in random.Random(8).sample(range(NAMES), ASKED_OTHERWISE):
        name = take_name(number)
        assert share.stat(path(name.upper())) == 0
        with share.open(path(name.lower()), READ_WRITE) as file:
            file.write(0, name.encode())
        # It stands there already, so that it is opened, and no second one made.
        with share.open(path(name.swapcase()), READ_WRITE, CreateDisposition.FILE_OPEN_IF) as file:
            found.append(file.read(0, 100).decode())
            assert found[-1] == name, found
        assert share.is_missing(path(f"B{name[1:].upper()}"))
    return found
