#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/demo.svg from a real run: make demo | python3 scripts/demo_picture.py >docs/demo.svg

The picture has the command lines of the demo with what they printed, as text: it can be searched, and follows the
reader's light or dark theme.
"""

import re
import sys
from html import escape

# Sections of the demo that the picture shows, by the beginning of their title, with the command that it shows for each.
SHOWN = {
    "$ nri-runc create": None,
    "What the container saw": "# the container's output, and its cgroup",
    "Who changed what": "$ nri-runc nri explain demo --show-env",
    "$ nri-runc kill": None,
}
WIDTH, LINE, CHAR = 860, 19, 8.05

text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdin.read())
text = re.sub(r"demo-\d+", "demo", text)
sections, title = {}, None
for line in text.splitlines():
    follows_a_blank = title is None or not sections[title] or not sections[title][-1]
    if follows_a_blank and re.match(r"What |Who |\$ ", line):
        title = line
        sections[title] = []
        continue
    if title is not None:
        sections[title].append(line)

lines = []
for start, command in SHOWN.items():
    found = next((name for name in sections if name.startswith(start)), None)
    if found is None:
        sys.exit(f"demo_picture: the demo printed no section {start!r}")
    lines.append(("command", command or found))
    body = sections[found]
    while body and not body[-1]:
        body.pop()
    lines += [("line", line) for line in body]
    lines.append(("line", ""))
lines.pop()

height = LINE * len(lines) + 32
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
      'aria-label="A container is created through nri-runc: a plugin changed its environment, mounts, annotations and CPU '
      'shares, and nri-runc nri explain names each change">')
print("""<style>
.back { fill: #f6f8fa; stroke: #d0d7de }
text { font: 13.4px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.command { fill: #0550ae; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .back { fill: #151b23; stroke: #3d444d }
  text { fill: #d1d7e0 }
  .command { fill: #79c0ff }
}
</style>""")
print(f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>')
most = int((WIDTH - 40) / CHAR)
for number, (kind, line) in enumerate(lines):
    shown = line if len(line) <= most else line[: most - 1] + "…"
    css = ' class="command"' if kind == "command" else ""
    print(f'<text x="20" y="{number * LINE + 30}"{css} xml:space="preserve">{escape(shown)}</text>')
print("</svg>")
