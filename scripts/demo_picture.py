#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a picture of a terminal from a real run:

    make demo | python3 scripts/demo_picture.py demo >docs/demo.svg
    DOCS=docker make docs-test | python3 scripts/demo_picture.py docker >docs/docker.svg

A picture has command lines with what they printed, as text: it can be searched, and follows the reader's light
or dark theme.
"""

import re
import sys
from html import escape

WIDTH, LINE, CHAR = 860, 19, 8.05

LABELS = {
    "demo": "A container is created through nri-runc: a plugin changed its environment, mounts, annotations and CPU shares, and"
            " nri-runc nri explain names each change",
    "docker": "Three commands: nri-runc nri install docker registers the runtime, docker run starts a container with it, and"
              " nri-runc nri explain shows that the plugin 10-resource-defaults set its CPU shares from 0 to 512",
}

STYLE = """<style>
.back { fill: #f6f8fa; stroke: #d0d7de }
text { font: 13.4px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.command { fill: #0550ae; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .back { fill: #151b23; stroke: #3d444d }
  text { fill: #d1d7e0 }
  .command { fill: #79c0ff }
}
</style>"""


def sections(text, begins):
    """The lines below each line that begins a section."""
    found, title = {}, None
    for line in text.splitlines():
        if begins(line, found.get(title)):
            title = line
            found[title] = []
        elif title is not None:
            found[title].append(line)
    return found


def of_demo(text):
    """Sections of the demo, each with the command that is shown for it."""
    shown = {
        "$ nri-runc create": None,
        "What the container saw": "# the container's output, and its cgroup",
        "Who changed what": "$ nri-runc nri explain demo --show-env",
        "$ nri-runc kill": None,
    }
    text = re.sub(r"demo-\d+", "demo", text)
    found = sections(text, lambda line, before: (not before or not before[-1]) and re.match(r"What |Who |\$ ", line))
    for start, command in shown.items():
        title = next((name for name in found if name.startswith(start)), None)
        if title is None:
            sys.exit(f"demo_picture: the demo printed no section {start!r}")
        yield [command or title], found[title]


def of_docker(text):
    """Commands of the quick start with Docker; of a block that goes on, what its first command printed."""
    found = sections(text, lambda line, _before: line.startswith("-- "))
    for start, until in [("$ nri-runc nri install docker", "    CHECK"), ("$ docker run", None), ("$ nri-runc nri explain", None)]:
        lines = next((lines for lines in found.values() if lines and lines[0].startswith(start)), None)
        if lines is None:
            sys.exit(f"demo_picture: docs-test ran no {start!r}")
        commands = [line for line in lines if line.startswith("$ ")]
        printed = lines[len(commands):]
        commands = ["  " + line[2:] if line.startswith("$  ") else line for line in commands]
        if until is None:
            yield commands, printed
            continue
        # The first command printed this; of the others one printed nothing, and the last is not shown.
        printed = printed[: next(at for at, line in enumerate(printed) if line.startswith(until))]
        yield commands[:1], printed
        for silent in commands[1:-1]:
            yield [silent], []


def lines_of(parts):
    lines = []
    for commands, printed in parts:
        while printed and not printed[-1]:
            printed.pop()
        lines += [("line", "")] + [("command", command) for command in commands] + [("line", line) for line in printed]
    return lines[1:]


def main():
    which = sys.argv[1]
    text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdin.read())
    lines = lines_of({"demo": of_demo, "docker": of_docker}[which](text))
    height = LINE * len(lines) + 32
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{LABELS[which]}">')
    print(STYLE)
    print(f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>')
    most = int((WIDTH - 40) / CHAR)
    for number, (kind, line) in enumerate(lines):
        shown = line if len(line) <= most else line[: most - 1] + "…"
        css = ' class="command"' if kind == "command" else ""
        print(f'<text x="20" y="{number * LINE + 30}"{css} xml:space="preserve">{escape(shown)}</text>')
    print("</svg>")


main()
