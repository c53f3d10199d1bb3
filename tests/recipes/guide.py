#!/usr/bin/env python3
"""Types what the guide types, and compares what comes with what the guide shows.

usage: guide.py [OPTION…] CHAPTER…

  --place WORD            where it runs: `array`, `short` or `fresh`
  --within COMMAND        what each command is run by (default: this machine); split at spaces
  --reboot COMMAND        what waits for a machine that has just been told to `reboot`
  --put TEXT=TEXT         what stands in the guide, and what it is here, in commands and answers; may be given again
  --show                  print what comes, too
  --anyway                go on where something else comes: for one who writes a chapter

A block is run when its fence says so: ```console run or ```sh run. In a console block a line that begins with "# " is typed and the
lines below it are what comes, output and errors together. "…" stands for anything in a line, and alone in its line for any
lines. A block of sh is typed as a whole and has to succeed. Further words of the fence:

  array           not in a fresh root: where the modelled array is, and no systemd
  short           the same, and only where it is to take seconds
  long            not where it is to take seconds
  fresh           only in a fresh root
  figures         numbers may be others, and so may the spaces around them
  fails           the last command does not succeed

21:14 is the time at which a command is typed. What happens out of the guide's sight (an editor plays, a disk becomes slow) stands in a comment that begins with a line <!-- run WORDS,
and is run as a block of sh.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

WORDS = {"run", "array", "short", "long", "fresh", "figures", "fails"}
# What is left out where.
LEFT_OUT = {"array": {"short", "fresh"}, "short": {"long", "fresh"}, "fresh": {"array", "short"}}
ANYTHING = "…"
NUMBER = re.compile(r"\d[\d.,:]*")
# A command of the guide that takes longer hangs.
LONGEST_S = 400


class Block:
    """What is to be typed, and what is to come of it."""

    def __init__(self, place, kind, words, lines):
        self.place, self.kind, self.words, self.lines = place, kind, words, lines

    def commands(self):
        """Each command with the lines that it is to answer; None for any."""
        if self.kind == "sh":
            yield "\n".join(self.lines), None
            return
        command, answer = [], []
        for line in self.lines:
            if command and command[-1].endswith("\\"):
                command.append(line)
            elif line.startswith("# "):
                if command:
                    yield "\n".join(command), answer
                command, answer = [line[2:]], []
            elif not command:
                raise SystemExit(f"{self.place}: a console block begins with a command")
            else:
                answer.append(line)
        yield "\n".join(command), answer


def blocks(chapter):
    """The blocks of a chapter that are run somewhere, and how many are not."""
    found, shown, inside, begin, words, lines = [], 0, None, 0, [], []
    for number, line in enumerate(chapter.read_text().split("\n"), 1):
        if inside:
            if line.strip() != ("-->" if inside == "hidden" else "```"):
                lines.append(line)
                continue
            kind = "sh" if inside == "hidden" else words[0] if words else ""
            flags = words if inside == "hidden" else words[1:]
            if "run" in flags:
                if unknown := set(flags) - WORDS:
                    raise SystemExit(f"{chapter.name}:{begin}: unknown words {sorted(unknown)}")
                if kind not in ("sh", "console"):
                    raise SystemExit(f"{chapter.name}:{begin}: a block of {kind!r} cannot be run")
                found.append(Block(f"{chapter.name}:{begin}", kind, set(flags), lines))
            else:
                shown += 1
            inside = None
        elif line.startswith("```"):
            inside, begin, words, lines = "fence", number, line[3:].split(), []
        elif line.startswith("<!-- run") and not line.endswith("-->"):
            inside, begin, words, lines = "hidden", number, line[5:].split(), []
    if inside:
        raise SystemExit(f"{chapter.name}:{begin}: a block does not end")
    return found, shown


def pattern(line, figures):
    """What matches a line of the guide."""
    def literal(text):
        if not figures:
            return re.escape(text)
        parts = [re.escape(part) for part in NUMBER.split(text)]
        return re.sub(r"(?:\\ )+", r"\\s+", NUMBER.pattern.join(parts))

    return ".*".join(literal(part) for part in line.rstrip().split(ANYTHING))


def matches(expected, found, figures):
    """Whether what came is what the guide shows."""
    whole = ""
    for line in expected:
        whole += r"(?:.*\n)*?" if line.strip() == ANYTHING else pattern(line, figures) + r"[ \t]*\n"
    return re.fullmatch(whole, "".join(line + "\n" for line in found))


def trim(lines):
    lines = list(lines)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


class Typist:
    def __init__(self, options):
        self.options = options
        self.put = [pair.partition("=")[::2] for pair in options.put]
        self.wrong = []
        self.counts = {"run": 0, "left out": 0, "shown": 0}

    def here(self, text):
        for there, here in self.put:
            text = text.replace(there, here)
        return text.replace("21:14", time.strftime("%H:%M"))

    def type(self, kind, command):
        """The exit code and the lines that came. A script ends with the first command that fails."""
        script = ("set -e\n" if kind == "sh" else "") + command + "\n"
        try:
            # What a command leaves in the background keeps neither its output open nor the typist waiting.
            done = subprocess.run([*self.options.within.split(), "bash", "-c", script], stdin=subprocess.DEVNULL, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST_S, errors="replace")
        except subprocess.TimeoutExpired as late:
            return 124, trim(((late.stdout or b"").decode(errors="replace")).split("\n")) + ["(it did not end)"]
        return done.returncode, trim(done.stdout.split("\n"))

    def run(self, block):
        """None, or what was wrong."""
        commands = list(block.commands())
        for number, (command, answer) in enumerate(commands, 1):
            command = self.here(command)
            if command.strip() == "reboot":
                if subprocess.run(self.options.reboot, shell=True, check=False).returncode:
                    return f"{block.place}: the machine did not come back"
                continue
            status, found = self.type(block.kind, command)
            if self.options.show:
                print("\n".join([f"# {command}", *found]), flush=True)
            fails = "fails" in block.words and number == len(commands)
            if (status != 0) != fails and not self.options.anyway:
                return f"{block.place}: {command}\n  ended with {status}:\n" + "\n".join("  " + line for line in found)
            expected = [self.here(line) for line in trim(answer or [])]
            if answer is not None and not matches(expected, found, "figures" in block.words):
                if self.options.anyway and number < len(commands):
                    continue
                shown = "\n".join("  - " + line for line in expected)
                came = "\n".join("  + " + line for line in found)
                return f"{block.place}: {command}\n  the guide shows:\n{shown}\n  what came:\n{came}"
        return None

    def chapter(self, path):
        found, shown = blocks(path)
        self.counts["shown"] += shown
        for block in found:
            if LEFT_OUT[self.options.place] & block.words:
                self.counts["left out"] += 1
                continue
            if wrong := self.run(block):
                if not self.options.anyway:
                    return wrong
                self.wrong.append(wrong)
            self.counts["run"] += 1
        return None


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--place", choices=sorted(LEFT_OUT), required=True)
    parser.add_argument("--within", default="")
    parser.add_argument("--reboot", default="false")
    parser.add_argument("--put", action="append", default=[])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--anyway", action="store_true")
    parser.add_argument("chapters", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    typist = Typist(options)
    for chapter in options.chapters:
        if wrong := typist.chapter(chapter):
            print(f"FAILED: {wrong}")
            return 1
        print(f"{chapter.name}: as it says", flush=True)
    # A guide none of whose blocks are found would pass.
    if not typist.counts["run"]:
        print("FAILED: nothing was run")
        return 1
    if typist.wrong:
        print(f"FAILED: {len(typist.wrong)} blocks")
        return 1
    print(", ".join(f"{count} blocks {what}" for what, count in typist.counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
