#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries the mutants of some files of the package nri-runc with one build (scripts/mutants.sh).

  mutants.py LIST WORK MODULE TARGET...

LIST is what `cargo mutants --list --json` prints. In a copy of the sources below WORK, each function becomes a choice
between all its mutants and itself, by the number in NRI_RUNC_MUTANT; a mutant that does not compile is left out. Then the
tests of MODULE, in the library and in the test programs TARGET, run once for each number. WORK/missed.txt lists the
mutants for which none fails."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

listed, work, module, targets = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
mutants = json.load(open(listed))
copy = work / "copy"
NUMBER = "NRI_RUNC_MUTANT"
SWITCH = f"""
/// Whether this mutant is tried.
pub fn is_mutant(number: usize) -> bool {{
    static NUMBER: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| std::env::var("{NUMBER}").ok()?.parse().ok()) == Some(number)
}}
"""


def offset(text, place):
    """The place of a line and column, which begin at 1, in the text."""
    return sum(len(line) + 1 for line in text.split("\n")[: place["line"] - 1]) + place["column"] - 1


def body(text, start, end):
    """Where the body of the function at start begins: the brace that the function's last one closes."""
    depth = 0
    for at in range(end - 1, start, -1):
        depth += {"}": 1, "{": -1}.get(text[at], 0)
        if depth == 0:
            return at
    sys.exit(f"mutants: no body in {text[start:end]}")


def mutated(text, mutant, start, end):
    """The body of the mutant's function, with its change."""
    first, last = offset(text, mutant["span"]["start"]), offset(text, mutant["span"]["end"])
    if mutant["genre"] == "FnValue":
        return f"{{ {mutant['replacement']} }}"
    if mutant["genre"] == "StructField":
        last = re.compile(r"\s*,").match(text, last).end()
    return text[start:first] + (mutant["replacement"] or "") + text[last:end]


def write(left_out):
    """Writes the mutated files and the switch into the copy."""
    for file in sorted({mutant["file"] for mutant in mutants}):
        text = pathlib.Path(file).read_text()
        functions = {}
        for number, mutant in enumerate(mutants):
            if mutant["file"] == file and number not in left_out:
                span = mutant["function"]["span"]
                functions.setdefault((offset(text, span["start"]), offset(text, span["end"])), []).append(number)
        changed = text
        for (start, end), numbers in sorted(functions.items(), reverse=True):
            start = body(text, start, end)
            choices = [f"if crate::is_mutant({n}) /*{n}*/ {mutated(text, mutants[n], start, end)} else " for n in numbers]
            changed = changed[:start] + "{ " + "\n".join(choices) + text[start:end] + " }" + changed[end:]
        (copy / file).write_text(changed)
    (copy / "src/lib.rs").write_text(pathlib.Path("src/lib.rs").read_text() + SWITCH)


def cargo(*arguments):
    """Runs cargo in the copy; returns whether it succeeded, and its messages."""
    ran = subprocess.run(["cargo", *arguments, "--locked", "--message-format", "json"], cwd=copy, stdout=subprocess.PIPE,
                         stderr=open(work / "cargo.log", "w"), text=True)
    return ran.returncode == 0, [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def wrong(messages):
    """The mutants in which the compiler found errors: the last that begins before each error's end."""
    found = set()
    for message in messages:
        if message["reason"] != "compiler-message" or message["message"]["level"] != "error":
            continue
        for span in message["message"]["spans"]:
            before = (copy / span["file_name"]).read_bytes()[: span["byte_end"]].decode()
            if span["is_primary"]:
                found.update(int(number) for number in re.findall(r"/\*(\d+)\*/", before)[-1:])
    return found


def fails(program, number):
    """Whether a test of this program fails or never ends with this mutant."""
    environment = {**os.environ, NUMBER: str(number)}
    try:
        ran = subprocess.run([program, module], cwd=copy, env=environment, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:
        return True
    return ran.returncode != 0


tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
for name in filter(os.path.isfile, tracked.split("\0")):
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(name, copy / name)
left_out = set()
while True:
    write(left_out)
    compiles, messages = cargo("check", "--lib")
    if compiles:
        break
    new = wrong(messages) - left_out
    if not new:
        sys.exit(f"mutants: the copy does not compile: {work / 'cargo.log'}")
    left_out |= new
built, messages = cargo("test", "--no-run", "--lib", *(f"--test={target}" for target in targets))
programs = [message["executable"] for message in messages if message.get("executable") and message["profile"]["test"]]
if not built or len(programs) != 1 + len(targets) or any(fails(program, "none") for program in programs):
    sys.exit("mutants: the tests do not compile, or fail without a mutant")
tried = [number for number in range(len(mutants)) if number not in left_out]
missed = [number for number in tried if not any(fails(program, number) for program in programs)]
(work / "missed.txt").write_text("".join(mutants[number]["name"] + "\n" for number in missed))
(work / "caught.txt").write_text("".join(mutants[number]["name"] + "\n" for number in tried if number not in missed))
print(f"mutants: {len(left_out)} do not compile")
