#!/usr/bin/env python3
"""Says of each constant of scheduling and of streams what kind it is: what may have been tuned. Tests do not count.

usage: tests/constants.py [--list | --table | --check]

The comment of a constant ends with one of the sentences in KINDS, that of a field of the scheduler's configuration as well.
Without an argument it prints counts by crate and by kind; --list names the constants; --table writes doc/constants.md; --check fails
when doc/constants.md is not what the code says, or when more constants are fitted than FITTED_ALLOWED. A constant without a kind fails
all of them.
"""
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "doc/constants.md"
PLACES = {
    "rtsched": ["crates/rtsched/src"],
    "avfs-core": ["crates/avfs-core/src/core", "crates/avfs-core/src/core.rs", "crates/avfs-core/src/device.rs"],
    "avfs-streams": ["crates/avfs-streams/src"],
    "avfs-io": [
        f"crates/avfs-io/src/{name}"
        for name in ("engine.rs", "engine", "engine_core.rs", "engine_core", "gate.rs", "calibration.rs", "measure.rs")
    ],
}
# The last sentence of a comment: the kind as it is called in the table, and what it says.
KINDS = {
    "A protocol fact.": ("protocol fact", "of a protocol, a file format or an interface of the kernel"),
    "Measured.": ("measured", "a property of a device, a network or a client program"),
    "An operator's target.": ("operator's target", "what is wanted; also a bound of memory, or of the length of a turn or a request"),
    "An estimator's window.": ("estimator's window", "what an estimate rests on; also its tolerance and its number of samples"),
    "Representation.": ("representation", "of a data structure or a number; it changes no decision"),
    "Fitted.": ("fitted", "none of these: it was fitted to what its comment names, or chosen by hand"),
}
# How many may be fitted. It may only fall: a figure that has fallen has to be written down too.
FITTED_ALLOWED = 2

# A definition of a quantity: of a number, a time, a length or a rate, or of an array or pair of them.
CONSTANT = re.compile(r"^\s*(?:pub(?:\([a-z: ]+\))? )?const ([A-Z][A-Z0-9_]*): ([^=]+?) =", re.MULTILINE)
QUANTITY = re.compile(r"\b(?:[iu](?:8|16|32|64|128|size)|f32|f64|Duration|Bytes|Bitrate|ServiceTime)\b")
FIELD = re.compile(r"^    pub (\w+): ", re.MULTILINE)
# Longer values are left out: they are read in the code.
LONGEST_VALUE = 100


def sources(place):
    path = ROOT / place
    files = [path] if path.is_file() else sorted(path.rglob("*.rs"))
    if not files:
        sys.exit(f"constants: {place} is not there; write down in tests/constants.py where it went")
    for file in files:
        # A whole file of tests, or the tests at the end of one.
        if file.name in ("tests.rs", "audit.rs") or "tests" in file.relative_to(ROOT).parts[3:]:
            continue
        yield file, re.split(r"^#\[cfg\(test\)\]\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{", file.read_text(), flags=re.MULTILINE)[0]


def comment_above(text, at):
    """The doc comment of what begins in the line of `at`, as one line."""
    lines = text[: text.rfind("\n", 0, at) + 1].split("\n")[:-1]
    comment = []
    while lines and re.match(r"\s*(///|#\[)", lines[-1]):
        line = lines.pop().strip()
        if line.startswith("///"):
            comment.insert(0, line[3:].strip())
    return " ".join(comment)


def value_at(text, at, end):
    """The expression from `at` to the first `end` outside of brackets, as one line."""
    depth, upto = 0, at
    while depth > 0 or text[upto] not in end:
        depth += (text[upto] in "([{") - (text[upto] in ")]}")
        upto += 1
    value = " ".join(re.sub(r"//[^\n]*", "", text[at:upto]).split())
    value = re.sub(r"([(\[]) ", r"\1", re.sub(r",? ([)\]])", r"\1", value))
    return value if len(value) <= LONGEST_VALUE else "…"


def constants(places):
    """Of each constant: file, name, type, value, comment."""
    for place in places:
        for file, text in sources(place):
            for found in CONSTANT.finditer(text):
                if QUANTITY.search(found[2]):
                    value = value_at(text, found.end(), ";")
                    yield file.relative_to(ROOT), found[1], found[2], value, comment_above(text, found.start(1))


def settings():
    """Of each field of the scheduler's configuration: file, name, type, default, comment."""
    file = "crates/rtsched/src/config.rs"
    text = (ROOT / file).read_text()
    struct = re.search(r"^pub struct Config \{\n.*?^\}", text, re.DOTALL | re.MULTILINE)
    default = re.search(r"^impl Default for Config \{.*?^\}", text, re.DOTALL | re.MULTILINE).group()
    for found in FIELD.finditer(text, struct.start(), struct.end()):
        kind = value_at(text, found.end(), ",")
        said = re.search(rf"^            {found[1]}: ", default, re.MULTILINE)
        yield file, f"Config::{found[1]}", kind, value_at(default, said.end(), ","), comment_above(text, found.start(1))


def kind_of(comment):
    """The comment without its last sentence, and the kind that this says; `None` where there is none or more than one."""
    kinds = [sentence for sentence in KINDS if re.search(rf"(^|[^\w ] ){re.escape(sentence)}", comment)]
    if len(kinds) != 1 or not comment.endswith(kinds[0]):
        return comment, None
    return comment[: -len(kinds[0])].strip(), KINDS[kinds[0]][0]


def row(name, value, kind, comment):
    # Links of Rust lead nowhere in a document.
    comment = re.sub(r"\[(`[^`\]]+`)\](\([^)]*\))?", r"\1", comment)
    comment = re.sub(r"\[([^`\]]+)\]\((Self|crate|rtsched|super)::[^)]*\)", r"\1", comment)
    cells = [f"`{name}`", f"`{value}`" if value != "…" else "…", kind, comment]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def document(found):
    counts = {crate: Counter(row[4] for row in rows) for crate, rows in found.items()}
    lines = [
        "# Constants",
        "",
        "Every constant of scheduling and of streams, with its value and its reason. `tests/constants.py --table` writes this document from the",
        "comments in the code, and `--check` holds it to them. Tests do not count.",
        "",
        "| kind | what it is | " + " | ".join(found) + " | together |",
        "|---|---|" + "--:|" * (len(found) + 1),
    ]
    for kind, what in KINDS.values():
        of_kind = [counts[crate][kind] for crate in found]
        lines.append(f"| {kind} | {what} | " + " | ".join(map(str, [*of_kind, sum(of_kind)])) + " |")
    sums = [len(rows) for rows in found.values()]
    lines.append("| together | | " + " | ".join(map(str, [*sums, sum(sums)])) + " |")
    for crate, rows in found.items():
        lines += ["", f"## {crate}"]
        file_before = None
        for file, name, _, value, kind, comment in rows:
            if file != file_before:
                lines += ["", f"`{file}`", "", "| name | value | kind | reason |", "|---|---|---|---|"]
                file_before = file
            lines.append(row(name, value, kind, comment))
    return "\n".join(lines) + "\n"


def main():
    wanted = sys.argv[1:]
    if len(wanted) > 1 or not set(wanted) <= {"--list", "--table", "--check"}:
        sys.exit(__doc__)
    found, faults = {}, []
    for crate, places in PLACES.items():
        found[crate] = []
        for file, name, kind, value, comment in [*constants(places), *(settings() if crate == "rtsched" else ())]:
            text, called = kind_of(comment)
            if called is None:
                faults.append(f"{file}: {name}: its comment has to end with one of: {' '.join(KINDS)}")
            found[crate].append((file, name, kind, value, called, text))
    counts = Counter(row[4] for rows in found.values() for row in rows)
    for crate, rows in found.items():
        print(f"{crate:12} {len(rows):4} constants")
        if "--list" in wanted:
            for file, name, kind, _, called, _ in rows:
                print(f"    {file}: {name}: {kind}: {called}")
    print(f"{'together':12} {sum(map(len, found.values())):4}: " + ", ".join(f"{counts[kind]} {kind}" for kind, _ in KINDS.values()))

    if not faults and "--table" in wanted:
        TABLE.write_text(document(found))
    if not faults and "--check" in wanted:
        if not TABLE.is_file() or TABLE.read_text() != document(found):
            faults.append("doc/constants.md is not what the code says: tests/constants.py --table")
        fitted = counts["fitted"]
        if fitted > FITTED_ALLOWED:
            faults.append(f"{fitted} constants are fitted, {FITTED_ALLOWED} may be")
        elif fitted < FITTED_ALLOWED:
            faults.append(f"fitted constants: fallen from {FITTED_ALLOWED} to {fitted}; write that down in tests/constants.py")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
