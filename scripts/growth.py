#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/growth-CURVE.svg from docs/growth.csv: growth.py, or growth.py --check, which only compares.

The middle line of each side is the median, its band reaches to the 90th percentile. The horizontal axis is logarithmic.
"""

import csv
import math
import sys
from collections import defaultdict
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 270, 58, 14, 46, 44

# Title, words at the horizontal axis, names of both sides.
CURVES = {
    "plugins": ("One creation through N plugins", "plugins", "nri-runc", "NRI's adaptation in Go"),
    "fields": ("One creation, a plugin that sets N variables", "variables", "nri-runc", "NRI's adaptation in Go"),
    "concurrent": ("Creations a second, ten plugins of 1 ms", "creations at once", "nri-runc", "NRI's adaptation in Go"),
    "document": ("A create, config.json of N bytes, one plugin", "bytes that NRI does not carry", "nri-runc and runc", "runc"),
    "annotations": ("A create with N annotations, one plugin", "annotations", "nri-runc and runc", "runc"),
    "labels": ("A create with N labels, one plugin", "labels", "nri-runc and runc", "runc"),
    "rules": ("A create with N rules, one plugin", "rules", "nri-runc and runc", "runc"),
    "engine_plugins": ("A container on containerd, N plugins", "plugins", "nri-runc", "containerd's own NRI"),
    "engine_known": ("A container on containerd beside N others", "containers", "nri-runc", "containerd's own NRI"),
    "known": ("A create beside N known containers", "containers", "nri-runc and runc", "runc"),
    "known_memory": ("Private memory of the daemon", "known containers", "nri-runc", ""),
    "known_start": ("Start of the daemon", "containers on record", "nri-runc", ""),
    "loop_none": ("The daemon for a create without plugins", "callers at once", "nri-runc", ""),
    "loop_one": ("The daemon for a create, one plugin", "callers at once", "nri-runc", ""),
    "loop_ten": ("The daemon for a create, ten plugins", "callers at once", "nri-runc", ""),
    "rate_none": ("Creates a second without plugins", "callers at once", "nri-runc", ""),
    "rate_one": ("Creates a second, one plugin", "callers at once", "nri-runc", ""),
    "rate_ten": ("Creates a second, ten plugins", "callers at once", "nri-runc", ""),
}

STYLE = """<style>
.back { fill: #f7f9fb; stroke: #cfd7df }
text { font: 13px "Open Sans", "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2933 }
.name { font-weight: 700; font-size: 15px }
.grid { stroke: #d5dce3; stroke-width: 1 }
.ours { stroke: #2f6fb8; fill: #2f6fb8 }
.theirs { stroke: #8794a1; fill: #8794a1 }
.line { fill: none; stroke-width: 2.2 }
.band { stroke: none; fill-opacity: 0.18 }
.key { stroke: none }
@media (prefers-color-scheme: dark) {
  .back { fill: #171d25; stroke: #3d4854 }
  text { fill: #e6eaee }
  .grid { stroke: #333d48 }
  .ours { stroke: #5aa0ec; fill: #5aa0ec }
  .theirs { stroke: #a2aebb; fill: #a2aebb }
}
</style>"""


def short(number):
    """A number as people write it at an axis."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def ticks(top):
    """Round values from zero to at least `top`, about four of them."""
    step = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1
    step *= next((m for m in (1, 2, 5, 10) if top / (step * m) <= 5), 10)
    return [step * n for n in range(math.ceil(top / step) + 1)]


def draw(name, rows):
    """The picture of one curve."""
    title, axis, *names = CURVES[name]
    unit = {"us": "µs", "/s": "per second"}.get(rows[0]["unit"], rows[0]["unit"])
    sides = defaultdict(list)
    for row in rows:
        sides[row["side"]].append((float(row["x"]), float(row["p50"]), float(row["p90"])))
    xs = sorted({x for points in sides.values() for x, *_ in points})
    marks = ticks(max(p90 for points in sides.values() for *_, p90 in points))
    span = math.log(xs[-1] / xs[0])

    def at(x, y):
        left = LEFT + math.log(x / xs[0]) / span * (WIDTH - LEFT - RIGHT)
        return f"{left:.1f},{HEIGHT - BOTTOM - y / marks[-1] * (HEIGHT - TOP - BOTTOM):.1f}"

    who = " and of ".join(text for text in names if text)
    words = escape(f"{title}: the median and the 90th percentile of {who}")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">', STYLE]
    out.append(f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>')
    out.append(f'<text class="name" x="14" y="24">{escape(title)}, {escape(unit)}</text>')
    for mark in marks:
        left, y = at(xs[0], mark).split(",")
        out.append(f'<line class="grid" x1="{left}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{short(mark)}</text>')
    for x in xs:
        left = at(x, 0).split(",")[0]
        out.append(f'<text x="{left}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{short(x)}</text>')
    out.append(f'<text x="{(WIDTH + LEFT - RIGHT) / 2:g}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>')
    for side in ("theirs", "ours"):
        points = sides.get(side)
        if not points:
            continue
        up = [at(x, p90) for x, _, p90 in points]
        down = [at(x, p50) for x, p50, _ in reversed(points)]
        out.append(f'<polygon class="band {side}" points="{" ".join(up + down)}"/>')
        out.append(f'<polyline class="line {side}" points="{" ".join(at(x, p50) for x, p50, _ in points)}"/>')
    key = LEFT
    for side, text in zip(("ours", "theirs"), names):
        if text:
            out.append(f'<rect class="key {side}" x="{key}" y="32" width="14" height="4"/>')
            out.append(f'<text x="{key + 19}" y="38">{escape(text)}</text>')
            key += 40 + 7 * len(text)
    return "\n".join(out + ["</svg>", ""])


def main():
    """Draws or compares all."""
    rows = defaultdict(list)
    with open(DOCS / "growth.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["curve"]].append(row)
    differ = []
    for name, of_curve in rows.items():
        path = DOCS / "pictures" / f"growth-{name.replace('_', '-')}.svg"
        text = draw(name, of_curve)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            differ.append(path.name)
    if differ:
        sys.exit(f"growth: run scripts/growth.py: {', '.join(differ)}")


main()
