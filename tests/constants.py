#!/usr/bin/env python3
"""Counts the constants of scheduling and of streams, crate by crate: what may have been tuned. Tests do not count.

usage: tests/constants.py [--list]
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "rtsched": ["crates/rtsched/src"],
    "avfs-core": ["crates/avfs-core/src/core", "crates/avfs-core/src/core.rs", "crates/avfs-core/src/device.rs"],
    "avfs-streams": ["crates/avfs-streams/src"],
    "avfs-io": [f"crates/avfs-io/src/{name}.rs" for name in ("engine", "streams", "gate", "calibration", "measure")],
}
# A definition of a quantity: of a number, a time, a length or a rate, or of an array or pair of them.
CONSTANT = re.compile(r"^\s*(?:pub(?:\([a-z: ]+\))? )?const ([A-Z][A-Z0-9_]*): ([^=]+?) =", re.MULTILINE)
QUANTITY = re.compile(r"\b(?:[iu](?:8|16|32|64|128|size)|f32|f64|Duration|Bytes|Bitrate|ServiceTime)\b")


def sources(place):
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*.rs"))
    for file in files:
        # A whole file of tests, or the tests at the end of one.
        if file.name in ("tests.rs", "audit.rs") or "tests" in file.relative_to(ROOT).parts[3:]:
            continue
        yield file, re.split(r"^#\[cfg\(test\)\]\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{", file.read_text(), flags=re.MULTILINE)[0]


def settings():
    text = (ROOT / "crates/rtsched/src/config.rs").read_text()
    body = re.search(r"impl Default for Config \{.*?\n\}\n", text, re.DOTALL).group()
    fields = re.search(r"Self \{\n(.*?)\n        \}", body, re.DOTALL).group(1)
    return re.findall(r"^            (\w+):", fields, re.MULTILINE)


def main():
    listed = "--list" in sys.argv[1:]
    total = 0
    for crate, places in PLACES.items():
        found = [
            (file.relative_to(ROOT), name, kind)
            for place in places
            for file, text in sources(place)
            for name, kind in CONSTANT.findall(text)
            if QUANTITY.search(kind)
        ]
        print(f"{crate:12} {len(found):4} constants")
        if listed:
            for file, name, kind in found:
                print(f"    {file}: {name}: {kind}")
        total += len(found)
    fields = settings()
    print(f"{'rtsched':12} {len(fields):4} fields of Config::default")
    if listed:
        print("    " + ", ".join(fields))
    print(f"{'together':12} {total + len(fields):4}")


if __name__ == "__main__":
    main()
