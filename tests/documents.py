#!/usr/bin/env python3
"""The documents are held to what there is: links lead somewhere, paths exist, tests that are named are tests.

usage: tests/documents.py     prints each fault with its place, and a verdict
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = re.compile(r"[\w./-]+/[\w./-]*\.(?:rs|md|sh|py|toml|txt|c|h)")
TEST = re.compile(r"(?:\w+::)*([a-z0-9]+(?:_[a-z0-9]+){3,})")
# The map is read in one go: bytes.
LONGEST_MAP = 16 << 10
# Documents that name tests by their names alone, and those that name files.
NAME_TESTS = ("ARCHITECTURE.md", "doc/semantics.md", "doc/decisions/")
NAME_FILES = ("ARCHITECTURE.md", "README.md", "doc/semantics.md", "doc/decisions/")

faults = []


def listed(*patterns):
    """Tracked files and new ones that are not ignored, as they are on disk."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


def prose(text):
    """The same lines, those of fenced blocks empty."""
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield "" if fenced or fence else line
        fenced ^= fence


def anchors(document):
    """The names that GitHub gives the headings of a document."""
    found = set()
    for line in prose((ROOT / document).read_text()):
        if heading := re.match(r"#+ +(.*?) *$", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def check_link(document, number, target):
    path, _, anchor = target.partition("#")
    if re.match(r"[a-z]+:", target):
        return
    linked = ((ROOT / document).parent / path).resolve() if path else ROOT / document
    if not linked.exists():
        faults.append(f"{document}:{number}: {target} is not there")
    elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.relative_to(ROOT)):
        faults.append(f"{document}:{number}: {path or document} has no heading {anchor}")


def main():
    functions = {}
    for name in listed("*.rs"):
        for function in re.findall(r"\bfn (\w+)", (ROOT / name).read_text()):
            functions.setdefault(function, set()).add(name)
    links = tests = files = 0
    length = (ROOT / "ARCHITECTURE.md").stat().st_size
    if length > LONGEST_MAP:
        faults.append(f"ARCHITECTURE.md: {length} bytes, {LONGEST_MAP} at most")
    for document in listed("*.md"):
        text = (ROOT / document).read_text()
        for number, line in enumerate(prose(text), 1):
            for target in re.findall(r"\]\(([^) ]+)\)", line):
                links += 1
                check_link(document, number, target)
            for word in re.findall(r"`([^`]+)`", line):
                if document.startswith(NAME_FILES) and FILE.fullmatch(word) and not word.startswith(("/", "~")):
                    files += 1
                    if not (ROOT / word).exists():
                        faults.append(f"{document}:{number}: no file {word} (paths begin at the repository's root)")
                test = TEST.fullmatch(word)
                if document.startswith(NAME_TESTS) and test:
                    tests += 1
                    if test[1] not in functions:
                        faults.append(f"{document}:{number}: no test {word}")
        if not document.startswith("doc/decisions/"):
            continue
        # A record says in which file a test is: `file`: `test`, `test`.
        for file, names in re.findall(r"`([\w/.-]+\.rs)`:\s+((?:`\w+`(?:,\s+|\s+and\s+)?)+)", text):
            for name in re.findall(r"`(\w+)`", names):
                if file not in functions.get(name, ()):
                    faults.append(f"{document}: {file} has no test {name}")
    print("\n".join(faults))
    print(f"documents: {links} links, {files} paths, {tests} tests named; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
