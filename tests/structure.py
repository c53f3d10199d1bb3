#!/usr/bin/env python3
"""Measures how the source files of each crate depend on each other, and refuses what is worse than it was.

usage: tests/structure.py [--list]

An arrow leads from a file to each file whose items it names, whose methods it calls where one type's `impl` blocks lie in
several files, and whose types the fields have that it uses of such a type. Tests and audits do not count. It reports:
  - the circles of files of each crate,
  - how many of Core's fields each file of avfs-core touches,
  - how often a READ enters each file: each function that it may come to once, in the order of the text.
No circle is allowed. The other figures that are stand in ALLOWED. They may only fall: a figure that has fallen has to be written down
too.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = [ROOT / "crates", ROOT / "laboratory"]

# The most of Core's fields that a file may touch, and the stays of a READ.
FIELDS_ALLOWED = 6
STAYS_ALLOWED = 22

# Where a READ begins, and what is no part of one: what is done at the end of every operation.
READ = ["start", "read", "try_read"]
NOT_READ = {"pump", "attempt", "fail", "retry", "rest", "try_probe", "write_back_for_memory", "schedule_aging", "touch_file"}
LOOKS_AT_ALL = {"audit"}
# The floor under all rooms of the core: every room stands on it, and it calls none of them. Nothing stays there.
FLOOR = {f"core/{name}" for name in ("asking", "attributes", "files", "memory", "transactions")}

WORD = r"[A-Za-z_]\w*"


def plain(text):
    """The text without comments, strings and tests at its end; as many lines as before."""
    keep_lines = lambda found: re.sub(r"[^\n]", " ", found.group())
    pattern = r'//[^\n]*|/\*.*?\*/|b?r#+".*?"#+|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\''
    text = re.sub(pattern, keep_lines, text, flags=re.DOTALL)
    text = re.sub(r"\bpub\(in [^)]*\)", "pub", text)
    return re.split(r"^#\[cfg\(test\)\]\n(?:pub(?:\([a-z]+\))? )?mod \w+ \{", text, flags=re.MULTILINE)[0]


def closing(text, opening):
    """Where the bracket at `opening` is closed."""
    pair = {"{": "}", "(": ")", "[": "]", "<": ">"}
    begin, end = text[opening], pair[text[opening]]
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == begin) - (text[at] == end)
        if depth == 0:
            return at
    return len(text)


def use_tree(text, prefix=()):
    """(name, path) of each name that a `use` brings in; the name is `*` for all of a module."""
    text = text.strip()
    found = re.fullmatch(r"(.*?)\{(.*)\}", text, re.DOTALL)
    if found:
        head = tuple(part for part in found.group(1).replace(" ", "").split("::") if part)
        depth, item, items = 0, "", []
        for letter in found.group(2) + ",":
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth == 0:
                items.append(item)
                item = ""
            else:
                item += letter
        return [one for item in items if item.strip() for one in use_tree(item, prefix + head)]
    renamed = re.fullmatch(r"(\S+)\s+as\s+(\w+)", text)
    path = prefix + tuple((renamed.group(1) if renamed else text).split("::"))
    if path[-1] == "self":
        path = path[:-1]
    return [(renamed.group(2) if renamed else path[-1], path)]


class File:
    def __init__(self, crate, path, text):
        self.crate, self.path, self.text = crate, path, plain(text)
        parts = list(path.relative_to(crate.source).with_suffix("").parts)
        self.module = tuple(parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts)
        self.name = "/".join(parts)
        self.uses, self.all_of, spans = {}, [], []
        for found in re.finditer(rf"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", self.text, re.MULTILINE):
            spans.append(found.span())
            for name, path in use_tree(found.group(1)):
                self.all_of.append(path[:-1]) if name == "*" else self.uses.setdefault(name, path)
        self.body = self.text
        for begin, end in spans:
            self.body = self.body[:begin] + re.sub(r"[^\n]", " ", self.body[begin:end]) + self.body[end:]
        self.types = {}
        for found in re.finditer(rf"\b(struct|enum|union|trait|type)\s+({WORD})", self.body):
            begin = self.body.find("{", found.end())
            stop = self.body.find(";", found.end())
            has_body = begin >= 0 and (stop < 0 or begin < stop)
            self.types[found.group(2)] = self.body[begin + 1 : closing(self.body, begin)] if has_body else ""
        # (type, begin, end) of each impl block.
        self.impls = []
        for found in re.finditer(r"^[ \t]*(?:unsafe )?impl\b", self.body, re.MULTILINE):
            begin = self.body.index("{", found.end())
            head = self.body[found.end() : begin].strip()
            if head.startswith("<"):
                head = head[closing(head, 0) + 1 :].strip()
            head = re.split(r"\bwhere\b", head)[0].strip()
            is_trait = " for " in head
            name = re.match(rf"(?:\w+::)*({WORD})", head.split(" for ")[-1].strip().lstrip("&"))
            if name:
                self.impls.append((name.group(1), begin, closing(self.body, begin), is_trait))
        # (name, begin, end) of each function with a body.
        self.functions = []
        for found in re.finditer(rf"\bfn\s+({WORD})", self.body):
            at = self.body.index("(", found.end())
            at = closing(self.body, at)
            begin, stop = self.body.find("{", at), self.body.find(";", at)
            if begin >= 0 and (stop < 0 or begin < stop):
                self.functions.append((found.group(1), found.start(), closing(self.body, begin)))

    def impl_at(self, at):
        return next((name for name, begin, end, _ in self.impls if begin <= at < end), None)

    def function_at(self, at):
        inside = [one for one in self.functions if one[1] <= at < one[2]]
        return max(inside, key=lambda one: one[1])[0] if inside else None


class Crate:
    def __init__(self, directory):
        self.name, self.source = directory.name, directory / "src"
        self.files = []
        for path in sorted(self.source.rglob("*.rs")):
            parts = path.relative_to(self.source).parts
            text = path.read_text()
            is_test = path.name == "tests.rs" or "tests" in parts or self.is_declared_for_tests(path)
            if not is_test and path.stem not in LOOKS_AT_ALL:
                self.files.append(File(self, path, text))
        self.by_module = {file.module: file for file in self.files}
        self.scattered = self.find_scattered()
        self.arrows = {file: self.arrows_of(file) for file in self.files}

    def is_declared_for_tests(self, path):
        parent = path.parent.with_suffix(".rs") if path.parent != self.source else self.source / "lib.rs"
        if not parent.exists():
            parent = self.source / "main.rs"
        declared = rf"#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)?mod {path.stem};"
        return parent.exists() and re.search(declared, parent.read_text()) is not None

    def resolve(self, file, path, depth=0):
        """The file that has what a path in `file` names; None if it is of another crate."""
        if depth > 8 or not path:
            return None
        path = list(path)
        if path[0] == "crate":
            module, path = (), path[1:]
        elif path[0] in ("super", "self"):
            module = file.module
            while path and path[0] in ("super", "self"):
                module = module[:-1] if path[0] == "super" else module
                path = path[1:]
        elif file.module + (path[0],) in self.by_module:
            module = file.module
        elif path[0] in file.uses and tuple(path) != tuple(file.uses[path[0]]):
            return self.resolve(file, tuple(file.uses[path[0]]) + tuple(path[1:]), depth + 1)
        else:
            return None
        while path and module + (path[0],) in self.by_module:
            module, path = module + (path[0],), path[1:]
        found = self.by_module.get(module)
        if found is None or not path:
            return found
        # What a module only passes on is another one's.
        if path[0] in found.uses and path[0] not in found.types:
            return self.resolve(found, tuple(found.uses[path[0]]), depth + 1) or found
        for whole in found.all_of:
            other = self.resolve(found, whole, depth + 1)
            if other and other is not found and path[0] in other.types:
                return other
        return found

    def find_scattered(self):
        """Types whose methods lie in several files, or whose fields are used elsewhere: the methods' files."""
        methods = {}
        for file in self.files:
            for name, begin, end, is_trait in file.impls:
                for function, at, _ in file.functions:
                    if begin < at < end and not is_trait:
                        methods.setdefault(name, {}).setdefault(function, file)
        several = {}
        for name, by_function in methods.items():
            homes = [file for file in self.files if name in file.types]
            if len(set(by_function.values())) > 1 and len(homes) == 1:
                several[name] = (homes[0], by_function)
        return several

    def receivers(self, file, name):
        """Places in a file where a value of the type is used: (position behind the dot)."""
        words = {found.group(1) for found in re.finditer(rf"\b({WORD})\s*:\s*&(?:\s*mut\s+)?{name}\b", file.body)}
        if any(one == name for one, *_ in file.impls):
            words |= {found.group(1) for found in re.finditer(rf"\b({WORD})\s*:\s*&(?:\s*mut\s+)?Self\b", file.body)}
            words |= {found.group(1) for found in re.finditer(rf"\|({WORD})(?:: [^|]*)?\|", file.body) if found.group(1) == name.lower()}
        for found in re.finditer(rf"\b({WORD})\s*\.\s*(?=[A-Za-z_])|\bSelf::(?=[a-z_])", file.body):
            word = found.group(1)
            is_self = word in ("self", None) and file.impl_at(found.start()) == name
            if is_self or word in words:
                yield found.end()

    def uses_of(self, file, name):
        """Methods and fields of a scattered type that a file uses: (name, is it called, position)."""
        for at in self.receivers(file, name):
            word = re.compile(WORD).match(file.body, at)
            if word:
                is_called = re.compile(r"\s*(?:::<[^>]*>)?\s*\(").match(file.body, word.end()) is not None
                yield word.group(), is_called, at

    def fields_of(self, name):
        home, _ = self.scattered[name]
        return dict(re.findall(rf"^\s*(?:pub(?:\([^)]*\))?\s+)?({WORD}):\s*([^\n]+?),?$", home.types[name], re.MULTILINE))

    def arrows_of(self, file):
        found = set()
        for path in re.finditer(rf"\b{WORD}(?:::{WORD})+", file.body):
            found.add(self.resolve(file, tuple(path.group().split("::"))))
        words = set(re.findall(WORD, file.body))
        for name, path in file.uses.items():
            if name in words:
                found.add(self.resolve(file, path))
        for path in file.all_of:
            other = self.resolve(file, path)
            if other and words & set(other.types):
                found.add(other)
        for name, (home, methods) in self.scattered.items():
            fields = self.fields_of(name)
            for word, is_called, _ in self.uses_of(file, name):
                if is_called and word in methods:
                    found.add(methods[word])
                elif word in fields:
                    found.add(home)
                    for kind in re.findall(rf"\b[A-Z]\w*", fields[word]):
                        found.add(self.resolve(home, (kind,)) if kind not in home.types else home)
        return found - {None, file}

    def circles(self):
        index, low, stack, circles = {}, {}, [], []
        sys.setrecursionlimit(10000)

        def visit(file):
            index[file] = low[file] = len(index)
            stack.append(file)
            for other in sorted(self.arrows[file], key=lambda one: one.name):
                if other not in index:
                    visit(other)
                    low[file] = min(low[file], low[other])
                elif other in stack:
                    low[file] = min(low[file], index[other])
            if low[file] == index[file]:
                circle = []
                while not circle or circle[-1] is not file:
                    circle.append(stack.pop())
                if len(circle) > 1:
                    circles.append(sorted(one.name for one in circle))

        for file in self.files:
            if file not in index:
                visit(file)
        return sorted(circles, key=lambda circle: (-len(circle), circle))

    def fields_touched(self, name):
        fields = self.fields_of(name)
        home, _ = self.scattered[name]
        touched = {}
        for file in self.files:
            used = {word for word, is_called, _ in self.uses_of(file, name) if not is_called and word in fields}
            # The constructor names them all.
            if used:
                touched[file.name] = sorted(used)
        return touched

    def stays(self, name, roots):
        """How often a walk over the calls of a type's methods enters each file, each function once."""
        home, methods = self.scattered[name]
        calls = {}
        for file in self.files:
            for word, is_called, at in self.uses_of(file, name):
                if is_called and word in methods:
                    calls.setdefault((file, file.function_at(at)), []).append((at, word))
        entered, seen = {}, set()

        def visit(function):
            if function in seen or function in NOT_READ or function not in methods:
                return
            seen.add(function)
            file = methods[function]
            for _, word in sorted(calls.get((file, function), [])):
                if methods[word] is not file and word not in seen and word not in NOT_READ:
                    entered[methods[word].name] = entered.get(methods[word].name, 0) + 1
                visit(word)

        for root in roots:
            if root in methods and root not in seen:
                entered[methods[root].name] = entered.get(methods[root].name, 0) + 1
            visit(root)
        return {file: count for file, count in entered.items() if file not in FLOOR}


def main():
    listed = "--list" in sys.argv[1:]
    faults = []

    def judge(what, is_now, allowed):
        """Both are lists, the largest first: none may be larger than the one in its place."""
        shown, limit = (", ".join(map(str, numbers)) or "none" for numbers in (is_now, allowed))
        if len(is_now) > len(allowed) or any(one > most for one, most in zip(is_now, allowed)):
            faults.append(f"{what}: {shown}; allowed: {limit}")
        elif is_now != allowed:
            print(f"    {what}: fallen from {limit} to {shown}; write that down in tests/structure.py")

    for directory in sorted(path.parent for crates in CRATES for path in crates.glob("*/Cargo.toml")):
        crate = Crate(directory)
        circles = crate.circles()
        sizes = [len(circle) for circle in circles]
        print(f"{crate.name:12} {len(crate.files):3} files, circles of files: {', '.join(map(str, sizes)) or 'none'}")
        for circle in circles if listed else []:
            print("    " + " ".join(circle))
            inside = [file for file in crate.files if file.name in circle]
            for file in inside:
                print(f"        {file.name} -> " + " ".join(sorted(other.name for other in crate.arrows[file] if other.name in circle)))
        judge(f"{crate.name}: circles of files", sizes, [])
        if crate.name == "avfs-core":
            touched = crate.fields_touched("Core")
            most = sorted(((len(fields), file) for file, fields in touched.items()), reverse=True)
            shown = most if listed else most[:5]
            print(f"    of Core's {len(crate.fields_of('Core'))} fields touch " + ", ".join(f"{file} {count}" for count, file in shown))
            judge("Core's fields touched by one file", [most[0][0]], [FIELDS_ALLOWED])
            stays = crate.stays("Core", READ)
            print("    a READ enters " + ", ".join(f"{file} {count}" for file, count in sorted(stays.items(), key=lambda one: -one[1])))
            print(f"    a READ: {sum(stays.values())} stays in {len(stays)} files")
            judge("stays of a READ", [sum(stays.values())], [STAYS_ALLOWED])
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
