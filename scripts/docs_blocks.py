#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the `sh` blocks of a page, in order, and compares what they print with the `text` block that
follows one: each of its lines has to be there, in that order, with any text for `…`; IDs, times,
ages, process IDs and blanks may differ. With further arguments only the sections whose headings
begin with one of them. A `toml` block goes into the configuration.

    docs_blocks.py PAGE [HEADING...]

DOCS_FOLDER is where the commands run, if not here. DOCS_REPLACE has words of the page that are called otherwise here: "OLD=NEW OLD=NEW".
"""

import os
import re
import signal
import subprocess
import sys
import tempfile

# The longest that the commands of one block may take.
LIMIT = 300
# How long a command runs that a person ends with Ctrl-C.
UNTIL_CTRL_C = 4


def blocks(path, headings):
    """(language, text, line) of each block in the wanted sections."""
    wanted, language, lines, began = not headings, None, [], 0
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        fence = line.strip().startswith("```")
        if language is None and line.startswith("#"):
            title = line.lstrip("#").strip()
            wanted = not headings or any(title.startswith(each) for each in headings)
        elif fence and language is None:
            language, lines, began = line.strip()[3:], [], number
        elif fence:
            if wanted:
                yield language, "".join(lines), began
            language = None
        elif language is not None:
            lines.append(line)


def run(script):
    """What the commands print, and their exit code."""
    # A container may keep the output open: it goes to a file, and nobody waits for its end.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["sh", "-eu", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ends_by_hand = "replay --record" in script
        try:
            code = process.wait(UNTIL_CTRL_C if ends_by_hand else LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)
            code = 0 if ends_by_hand else "none: it did not end"
        output.seek(0)
        return output.read().decode("utf-8", "replace"), code


# What differs each time, and what stands for it when two lines are compared.
DIFFERS = [
    (r"\b[0-9a-f]{12,64}\b", "ID"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b\d+(ms|s|m|h|d) ago", "AGO"),
    (r"\bprocess \d+", "process PID"),
    (r"\s+", " "),
]


def normal(line):
    for pattern, word in DIFFERS:
        line = re.sub(pattern, word, line)
    return line.strip()


def missing(expected, printed):
    """The first line of `expected` that is not printed after those before it."""
    rest = [normal(line) for line in printed.splitlines()]
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part) for part in normal(line).split("…"))
        while rest and not re.fullmatch(pattern, rest[0]):
            rest.pop(0)
        if not rest and pattern.strip(".*"):
            return line
        rest = rest[1:]
    return None


def replaced(text):
    for pair in os.environ.get("DOCS_REPLACE", "").split():
        old, new = pair.split("=", 1)
        text = text.replace(old, new)
    return text


def main():
    path, headings = os.path.abspath(sys.argv[1]), sys.argv[2:]
    os.chdir(os.environ.get("DOCS_FOLDER", "."))
    printed, count = "", 0
    for language, text, line in blocks(path, headings):
        text = replaced(text)
        if language == "sh" and "journalctl" in text:
            print(f"-- {path}:{line} left out: there is no journal here", flush=True)
        elif language == "sh":
            print(f"-- {path}:{line}", flush=True)
            printed, code = run(text)
            count += 1
            print("".join(f"$ {each}\n" for each in text.splitlines()) + printed, flush=True)
            if code != 0:
                sys.exit(f"{path}:{line}: exit code {code}")
            # A person's shell stays in the folder that the commands went to.
            for folder in re.findall(r"^cd (\S+)$", text, re.MULTILINE):
                os.chdir(folder)
        elif language == "text":
            line_missing = missing(text, printed)
            if line_missing is not None:
                sys.exit(f"{path}:{line}: not printed: {line_missing}")
        elif language == "toml":
            os.makedirs("/etc/nri-runc/config.d", exist_ok=True)
            with open("/etc/nri-runc/config.d/page.toml", "w", encoding="utf-8") as file:
                file.write(text)
        elif language == "rust":
            # A whole program is the one that the page says to save.
            if "fn main" in text:
                with open("src/main.rs", "w", encoding="utf-8") as file:
                    file.write(text)
    if count == 0:
        sys.exit(f"{path}: no commands in {headings or 'it'}")


main()
