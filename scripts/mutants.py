#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries the mutants of some files of the package nri-runc with one build (scripts/mutants.sh).

  mutants.py LIST WORK MODULE TARGET...

LIST is what `cargo mutants --list --json` prints. In a copy of the sources below WORK, each function becomes a choice
between all its mutants and itself, by the number in NRI_RUNC_MUTANT; a mutant that does not compile is left out. Then the
tests of MODULE, in the library and in the test programs TARGET, run once for each number. WORK/missed.txt lists the
mutants for which none fails, WORK/left_out.txt those that do not compile."""
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
/// Whether this process runs mutant `number`.
pub fn is_mutant(number: usize) -> bool {{
    static NUMBER: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| std::env::var("{NUMBER}").ok()?.parse().ok()) == Some(number)
}}
"""


def fail(why):
    sys.exit(f"mutants: {why}")


def index(text, place):
    """Converts a line and a column (characters), which begin at 1, to an index."""
    return sum(len(line) + 1 for line in text.split("\n")[: place["line"] - 1]) + place["column"] - 1


def find_body(text, start, end):
    """Returns where the function's body begins: at the brace that its last one closes."""
    depth = 0
    for at in range(end - 1, start, -1):
        depth += {"}": 1, "{": -1}.get(text[at], 0)
        if depth == 0:
            return at
    fail(f"no body in {text[start:end]}")


def mutate(text, mutant, start, end):
    """Returns the body of the mutant's function, with its change."""
    first, last = index(text, mutant["span"]["start"]), index(text, mutant["span"]["end"])
    if mutant["genre"] == "FnValue":
        return f"{{ {mutant['replacement']} }}"
    if mutant["genre"] == "StructField":
        last = re.compile(r"\s*,?").match(text, last).end()
    return text[start:first] + (mutant["replacement"] or "") + text[last:end]


def write(left_out):
    """Writes the mutated files and the switch into the copy."""
    for file in sorted({mutant["file"] for mutant in mutants}):
        text = pathlib.Path(file).read_text()
        functions = {}
        for number, mutant in enumerate(mutants):
            if mutant["file"] == file and number not in left_out:
                span = mutant["function"]["span"]
                functions.setdefault((index(text, span["start"]), index(text, span["end"])), []).append(number)
        changed, next_start = text, len(text)
        for (start, end), numbers in sorted(functions.items(), reverse=True):
            if end > next_start:
                fail(f"{file}: a function inside another one")
            next_start, start = start, find_body(text, start, end)
            choices = [f"if /*{n}*/ crate::is_mutant({n}) {mutate(text, mutants[n], start, end)} else " for n in numbers]
            changed = changed[:start] + "{ " + "\n".join(choices) + text[start:end] + " }" + changed[end:]
        (copy / file).write_text(changed)
    (copy / "src/lib.rs").write_text(pathlib.Path("src/lib.rs").read_text() + SWITCH)


def cargo(*arguments):
    """Runs cargo in the copy; returns whether it succeeded, and its messages. The errors are in cargo.log too."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(work.resolve() / "target")}
    with open(work / "cargo.log", "w") as log:
        ran = subprocess.run(["cargo", *arguments, "--locked", "--message-format", "json"], cwd=copy, env=environment,
                             stdout=subprocess.PIPE, stderr=log, text=True)
        messages = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        log.writelines(message["message"]["rendered"] for message in messages if is_error(message))
    return ran.returncode == 0, messages


def is_error(message):
    return message["reason"] == "compiler-message" and message["message"]["level"] == "error"


def find_uncompilable(messages):
    """Returns the mutants in which the compiler found errors: the last that begins before each error's end."""
    found = set()
    for message in filter(is_error, messages):
        for span in message["message"]["spans"]:
            if span["is_primary"]:
                before = (copy / span["file_name"]).read_bytes()[: span["byte_end"]].decode()
                found.update(int(number) for number in re.findall(r"/\*(\d+)\*/", before)[-1:])
    return found


def fails(program, number):
    """Whether a test of this program fails or never ends with this mutant; without a number, with none."""
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
    new = find_uncompilable(messages) - left_out
    if not new:
        fail(f"the copy does not compile ({work}/cargo.log)")
    left_out |= new
built, messages = cargo("test", "--no-run", "--lib", *(f"--test={target}" for target in targets))
if not built:
    fail(f"the tests do not compile ({work}/cargo.log)")
built_tests = [message for message in messages if message.get("executable") and message["profile"]["test"]]
# The library's tests first: they take a tenth of the time.
built_tests.sort(key=lambda message: message["target"]["kind"] != ["lib"])
programs = [message["executable"] for message in built_tests]
for program in programs:
    if fails(program, ""):
        fail(f"{program} {module} fails without a mutant")
tried = [number for number in range(len(mutants)) if number not in left_out]
if not tried or len(programs) != 1 + len(targets):
    fail("there is nothing to try")
missed = {number for number in tried if not any(fails(program, number) for program in programs)}
for file, numbers in ("missed", missed), ("caught", set(tried) - missed), ("left_out", left_out):
    (work / f"{file}.txt").write_text("".join(mutants[number]["name"] + "\n" for number in sorted(numbers)))
print(f"mutants: {len(left_out)} do not compile ({work}/left_out.txt)")
