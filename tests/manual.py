#!/usr/bin/env python3
"""The manual page avfs.toml(5) is made of config/avfs.toml, the documented example: it cannot say anything else.

usage: tests/manual.py            says whether the page is what the example makes of it
       tests/manual.py --write    writes the page

That the example has every setting that there is, and no other, tests in avfs-core see: they ask the parser.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "config/avfs.toml"
PAGE = ROOT / "doc/man/avfs.toml.5"

HEAD = r""".\" Made of config/avfs.toml by tests/manual.py --write: change it there.
.TH AVFS.TOML 5 "" "AVFS" "File Formats"
.SH NAME
avfs.toml \- the settings of an AVFS volume
.SH DESCRIPTION
Each volume can have a file with settings, which
.B config=
among the options of
.BR mount.avfs (8)
names. It is TOML: settings with their values in sections.
"""
TAIL = r""".SH FILES
.TP
.I /etc/avfs/example.toml
All settings with their defaults and these explanations, to copy from.
.SH SEE ALSO
.BR avfs (7),
.BR mount.avfs (8),
.BR avfsctl (8)
"""


def roff(text):
    """Text that means itself."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def filled(lines):
    """Paragraphs of a comment: its lines are filled, those of a table keep theirs."""
    written, table = [], False
    for line in lines:
        entry = re.match(r"([A-Z]\w+:|[a-z]+(?:_[a-z]+)+(?= )|[a-z]+(?= {2})) +(.*)", line)
        if entry:
            written += [".TP", f".B {roff(entry[1].rstrip(':'))}", roff(entry[2])]
            table = True
        elif table and line.startswith("    "):
            written.append(roff(line.strip()))
        elif not line:
            written.append(".PP")
            table = False
        else:
            if table:
                written.append(".PP")
                table = False
            written.append(roff(line))
    while written and written[-1] == ".PP":
        written.pop()
    return written


def page(example):
    """The page of an example: comments that stand before a setting or a section are about it."""
    written, comment, section, follows = [], [], None, False
    for line in example.split("\n"):
        header = re.fullmatch(r"#?(\[\[?\w+\]\]?)", line)
        setting = re.fullmatch(r"#?([a-z_]+) = (.*)", line)
        if header and header[1] == section:
            # Further examples of a section that can stand there several times.
            written += ["", line.lstrip("#")]
        elif header:
            if section is None:
                # The first paragraph says what the file is.
                written += filled(comment[comment.index("") + 1 :])
            elif section.startswith("[["):
                written.append(".fi")
            section, name = header[1], header[1].strip("[]")
            written += [f".SH {roff(section)}"]
            if section.startswith("[["):
                written += [*filled(comment), ".PP", ".nf", line.lstrip("#")]
            elif section is not None and comment and name != "cache":
                written += filled(comment)
            comment, follows = [], False
        elif setting and section and section.startswith("[["):
            written.append(roff(line.lstrip("#")))
        elif setting:
            name, value = setting[1], setting[2]
            kind = "Example" if line.startswith("#") else "Default"
            # Several settings under one comment are explained by it together.
            if follows and not comment:
                at = written.index(follows)
                written.insert(at, f".B {name}")
                written.insert(at, ".TQ")
            else:
                follows = "\n".join(filled(comment)) or ".br"
                written += [".TP", f".B {name}", follows]
            written += [".br", f"{kind}: {roff(name)} = {roff(value)}"]
            comment = []
        elif line.startswith("#"):
            comment.append(line[2:])
        elif comment and section is None:
            comment.append("")
        elif not line:
            follows = False
    return HEAD + "\n".join(written + ([".fi"] if section.startswith("[[") else [])) + "\n" + TAIL


def main():
    made = page(EXAMPLE.read_text())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(made)
        return 0
    if not PAGE.exists() or PAGE.read_text() != made:
        print(f"{PAGE.relative_to(ROOT)} is not what {EXAMPLE.relative_to(ROOT)} says: tests/manual.py --write")
        return 1
    print(f"manual: {PAGE.relative_to(ROOT)} is what {EXAMPLE.relative_to(ROOT)} says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
