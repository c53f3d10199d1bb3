#!/usr/bin/python3
"""Compares every file below FOLDER with the file of the same name on the share, by their SHA-256.

usage: verify.py FOLDER
"""

import hashlib
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from share import Share


def sha256(chunks):
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def differs(folder, name):
    with open(folder / name, "rb") as file:
        expected = sha256(iter(lambda: file.read(1 << 20), b""))
    return sha256(connection().chunks(name)) != expected


def connection():
    """This process's connection."""
    if not hasattr(connection, "share"):
        connection.share = Share()
    return connection.share


def main():
    folder = Path(sys.argv[1])
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    with ProcessPoolExecutor(2) as workers:
        wrong = [name for name, bad in zip(names, workers.map(differs, [folder] * len(names), names)) if bad]
    for name in wrong:
        print(f"checksum differs: {name}")
    print(f"{len(names) - len(wrong)} of {len(names)} checksums match")
    sys.exit(1 if wrong or not names else 0)


if __name__ == "__main__":
    main()
