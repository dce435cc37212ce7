#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/NAME.svg from docs/pictures/NAME.txt: pictures.py, or pictures.py --check, which only compares.

A source begins with `alt:`, the words for readers who do not see the picture. Empty lines and lines with `#` in front are
left out, text in backquotes is set as code, `**` encloses
a name, and `|` breaks a line. The second line is the kind of the picture:

sequence            lanes, and time that runs down
  lane NAME[: TEXT]   a lane, from left to right
  A > B: TEXT         an arrow from lane A to lane B
  at A: TEXT          work in one lane
  on A STYLE: TEXT    from here on the lane is a bar of this style; `off A` ends it
  mark: TEXT          a line across all lanes

flow                boxes from top to bottom, each with outcomes at its right
  box [STYLE]: TEXT   a box in the left column; `wide` for one over both columns
  down: TEXT          words at the arrow to the next box; `down: -` for no arrow
  right WORD [STYLE]: TEXT   an outcome, with a short word at its arrow
  back WORD           an arrow back from that outcome

columns             stacks of boxes side by side
  column: TITLE, then box and down as above

Styles: plain, ours, plugin, good, bad.
"""

import re
import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
# The unit is a pixel where the picture is 480 wide. On a phone it is 360: letters of 15 have 11 there.
WIDTH, EDGE, SIZE, LINE, PAD = 480, 12, 15, 19, 8
STYLES = ("plain", "ours", "plugin", "good", "bad")

STYLE = """<style>
.back { fill: #f7f9fb; stroke: #cfd7df }
text { font: 15px "Open Sans", "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2933 }
.code { font: 13.5px "Source Code Pro", Menlo, Consolas, "DejaVu Sans Mono", monospace }
.name { font-weight: 700 }
.soft { fill: #46525f }
.halo { paint-order: stroke; stroke: #f7f9fb; stroke-width: 6px; stroke-linejoin: round }
.box { stroke-width: 1.5 }
.plain { fill: #ffffff; stroke: #8794a1 }
.ours { fill: #e3f0ff; stroke: #2f6fb8 }
.plugin { fill: #efe9fb; stroke: #7a55c0 }
.good { fill: #e6f5e9; stroke: #2f8a46 }
.bad { fill: #fdeaea; stroke: #c0392b }
.way { fill: none; stroke: #5f6c79; stroke-width: 1.8 }
.tip { fill: #5f6c79 }
.life { stroke: #8794a1; stroke-width: 1.5; stroke-dasharray: 3 4 }
.mark { stroke: #5f6c79; stroke-width: 1.2; stroke-dasharray: 7 4 }
@media (prefers-color-scheme: dark) {
  .back { fill: #171d25; stroke: #3d4854 }
  text { fill: #e6eaee }
  .soft { fill: #bcc6d0 }
  .halo { stroke: #171d25 }
  .plain { fill: #252d37; stroke: #74818e }
  .ours { fill: #17324f; stroke: #5aa0ec }
  .plugin { fill: #2f2549; stroke: #a98bea }
  .good { fill: #173322; stroke: #58b673 }
  .bad { fill: #431f20; stroke: #ef8379 }
  .way { stroke: #a2aebb }
  .tip { fill: #a2aebb }
  .life { stroke: #74818e }
  .mark { stroke: #a2aebb }
}
</style>"""


class Mistake(Exception):
    """A source that cannot be drawn."""


def width(text, css=""):
    """At most how wide a text is, in any of the fonts."""
    if css == "code":
        return len(text) * 8.15
    wide = sum(
        0.36 if c in "iljtfrI.,:;'|!()[] " else 0.92 if c in "mwMW@" else 0.68 if c.isupper() else 0.585
        for c in text
    )
    return wide * SIZE * (1.08 if css == "name" else 1)


def wrap(text, room):
    """Lines, each a list of (space, word, class), that fit into `room`. `|` breaks a line."""
    lines = []
    for part in text.split("|"):
        units = []  # what stays together: `config.json` and the comma behind it
        is_apart = True
        css = ""
        for piece in re.split(r"(`|\*\*)", part):
            if piece in ("`", "**"):
                css = "" if css else "code" if piece == "`" else "name"
                continue
            for space, word in re.findall(r"(\s+)|(\S+)", piece):
                if space:
                    is_apart = True
                    continue
                if is_apart:
                    units.append([])
                units[-1].append((word, css))
                is_apart = False
        line, used = [], 0.0
        for unit in units:
            wide = sum(width(word, css) for word, css in unit)
            if wide > room:
                raise Mistake(f"{unit[0][0]!r} does not fit into {room:.0f}: {text}")
            space = width(" ") if line else 0
            if used + space + wide > room:
                lines.append(line)
                line, used, space = [], 0.0, 0
            line += [(" " if space and not at else "", word, css) for at, (word, css) in enumerate(unit)]
            used += space + wide
        lines.append(line)
    return lines


def spans(line):
    """One line as SVG."""
    out = ""
    for space, word, css in line:
        word = escape(word)
        out += space + (f'<tspan class="{css}">{word}</tspan>' if css else word)
    return out


class Picture:
    """What was drawn so far, by layer: what comes later lies above."""

    def __init__(self):
        self.layers = [[], [], [], []]

    def text(self, lines, x, y, anchor="middle", css="", layer=3):
        for number, line in enumerate(lines):
            self.layers[layer].append(f'<text x="{x:g}" y="{y + number * LINE + 14:g}" text-anchor="{anchor}"'
                                      f'{css and f" class={chr(34)}{css}{chr(34)}"}>{spans(line)}</text>')

    def box(self, x, y, w, lines, style="plain", h=None, css="", layer=2):
        h = h or box_height(lines)
        self.layers[layer].append(f'<rect class="box {style}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6"/>')
        self.text(lines, x + w / 2, y + (h - len(lines) * LINE) / 2, css=css, layer=layer)

    def arrow(self, x1, y1, x2, y2):
        """A straight arrow, along one axis."""
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        bx, by = x2 - 8 * dx, y2 - 8 * dy
        self.layers[2].append(f'<path class="way" d="M{x1:g} {y1:g}L{bx:g} {by:g}"/>')
        corners = f"{x2:g},{y2:g} {bx - 4.5 * dy:g},{by - 4.5 * dx:g} {bx + 4.5 * dy:g},{by + 4.5 * dx:g}"
        self.layers[2].append(f'<polygon class="tip" points="{corners}"/>')

    def svg(self, alt, height):
        body = "\n".join(line for layer in self.layers for line in layer)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="560" viewBox="0 0 {WIDTH} {height:g}" role="img" '
                f'aria-label="{escape(alt)}">\n{STYLE}\n'
                f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>\n{body}\n</svg>\n')


def box_height(lines):
    return len(lines) * LINE + 2 * PAD


def styled(words, default="plain"):
    style = words or default
    if style not in STYLES:
        raise Mistake(f"{style!r} is no style")
    return style


def sequence(lines):
    picture, lanes, bars = Picture(), {}, {}
    names = [re.fullmatch(r"lane (\S+?)(?:: (.+))?", line) for line in lines if line.startswith("lane ")]
    if not names or None in names:
        raise Mistake("a lane has no name" if names else "it has no lane")
    lane_room = (WIDTH - 2 * EDGE) / len(names)
    heads = {}
    for number, name in enumerate(names):
        lanes[name[1]] = EDGE + lane_room * (number + 0.5)
        heads[name[1]] = wrap(name[2] or name[1], lane_room - 12)
    head = max(box_height(text) for text in heads.values())
    y = EDGE + head + 12

    def lane(name):
        if name not in lanes:
            raise Mistake(f"{name!r} is no lane")
        return lanes[name]

    def end_bar(name, at):
        if name not in bars:
            raise Mistake(f"{name!r} has no bar to end")
        begun, style = bars.pop(name)
        picture.layers[1].append(f'<rect class="box {style}" x="{lane(name) - 6:g}" y="{begun:g}" width="12" '
                                 f'height="{at - begun:g}"/>')

    def label(text, x, room, anchor_y, css="halo"):
        broken = wrap(text, room)
        half = max(sum(width(word, css) + width(space) for space, word, css in line) for line in broken) / 2
        picture.text(broken, min(max(x, EDGE + half), WIDTH - EDGE - half), anchor_y, css=css)
        return len(broken) * LINE

    for line in lines:
        if line.startswith("lane "):
            continue
        if found := re.fullmatch(r"(\S+) > (\S+): (.+)", line):
            start, end = lane(found[1]), lane(found[2])
            y += label(found[3], (start + end) / 2, max(abs(end - start) - 8, 240), y) + 7
            away = 6 if end > start else -6
            picture.arrow(start + away * (found[1] in bars), y, end - away * (found[2] in bars), y)
            y += 11
        elif found := re.fullmatch(r"at (\S+?): (.+)", line):
            # As wide as the neighbours' lines allow.
            x, room = lane(found[1]), lane_room - 10
            start, end = max(x - room, EDGE), min(x + room, WIDTH - EDGE)
            text = wrap(found[2], end - start - 2 * PAD)
            picture.box(start, y, end - start, text)
            y += box_height(text) + 10
        elif found := re.fullmatch(r"on (\S+) (\S+): (.+)", line):
            if found[1] in bars:
                end_bar(found[1], y)
            x = lane(found[1])
            text = wrap(found[3], lane_room - 8)
            picture.box(x - lane_room / 2 + 2, y, lane_room - 4, text, styled(found[2]), css="name")
            bars[found[1]] = (y + 4, found[2])
            y += box_height(text) + 10
        elif found := re.fullmatch(r"off (\S+)", line):
            end_bar(found[1], y)
            y += 10
        elif found := re.fullmatch(r"mark: (.+)", line):
            picture.layers[0].append(f'<path class="mark" d="M{EDGE} {y + 4}H{WIDTH - EDGE}"/>')
            y += 8 + label(found[1], WIDTH / 2, WIDTH - 4 * EDGE, y + 8, "halo soft") + 8
        else:
            raise Mistake(f"{line!r} is not understood")
    for name in list(bars):
        end_bar(name, y)
    for name, x in lanes.items():
        picture.layers[0].append(f'<path class="life" d="M{x:g} {EDGE + head}V{y + 4:g}"/>')
        picture.box(x - lane_room / 2 + 2, EDGE, lane_room - 4, heads[name], h=head, css="name")
        picture.box(x - lane_room / 2 + 2, y + 4, lane_room - 4, heads[name], h=head, css="name")
    return picture, y + 4 + head + EDGE


def flow(lines):
    picture, y = Picture(), EDGE
    left, gap = 216, 62
    right_x = EDGE + left + gap
    right = WIDTH - EDGE - right_x
    rows = []
    for line in lines:
        if found := re.fullmatch(r"(box|wide)(?: (\S+))?: (.+)", line):
            rows.append({"style": styled(found[2]), "is_wide": found[1] == "wide", "text": found[3], "down": "", "right": []})
        elif not rows:
            raise Mistake(f"there is no box before {line!r}")
        elif found := re.fullmatch(r"down: (.+)", line):
            rows[-1]["down"] = found[1]
        elif found := re.fullmatch(r"right (.*?)(?: (\w+))?: (.+)", line):
            rows[-1]["right"].append([found[1].strip("\""), styled(found[2]), found[3], ""])
        elif (found := re.fullmatch(r"back (.+)", line)) and rows[-1]["right"]:
            rows[-1]["right"][-1][3] = found[1]
        else:
            raise Mistake(f"{line!r} is not understood")
    for number, row in enumerate(rows):
        w = WIDTH - 2 * EDGE if row["is_wide"] else left
        text = wrap(row["text"], w - 2 * PAD)
        outcomes = [(word, style, wrap(said, right - 2 * PAD), back) for word, style, said, back in row["right"]]
        beside = sum(box_height(said) for _, _, said, _ in outcomes) + 8 * max(len(outcomes) - 1, 0)
        h = max(box_height(text), beside)
        picture.box(EDGE, y, w, text, row["style"], h=h)
        at = y + (h - beside) / 2
        for word, style, said, back in outcomes:
            own = box_height(said)
            middle = at + own / 2
            picture.box(right_x, at, right, said, style)
            picture.arrow(EDGE + left, middle - 8 * bool(back), right_x, middle - 8 * bool(back))
            picture.text(wrap(word, gap), EDGE + left + gap / 2, middle - 8 * bool(back) - 23)
            if back:
                picture.arrow(right_x, middle + 8, EDGE + left, middle + 8)
                picture.text(wrap(back, gap), EDGE + left + gap / 2, middle + 10)
            at += own + 8
        y += h
        if number + 1 < len(rows) and row["down"] != "-":
            words = wrap(row["down"], WIDTH - 3 * EDGE - left / 2) if row["down"] else []
            long = max(22, len(words) * LINE + 12)
            picture.arrow(EDGE + left / 2, y, EDGE + left / 2, y + long)
            picture.text(words, EDGE + left / 2 + 10, y + (long - 8 - len(words) * LINE) / 2, anchor="start", css="halo")
            y += long
        else:
            y += 8
    return picture, y - 8 + EDGE


def columns(lines):
    picture, stacks = Picture(), []
    for line in lines:
        if found := re.fullmatch(r"column: (.+)", line):
            stacks.append((found[1], []))
        elif not stacks:
            raise Mistake(f"there is no column before {line!r}")
        elif found := re.fullmatch(r"box(?: (\S+))?: (.+)", line):
            stacks[-1][1].append([styled(found[1]), found[2], ""])
        elif (found := re.fullmatch(r"down: (.+)", line)) and stacks[-1][1]:
            stacks[-1][1][-1][2] = found[1]
        else:
            raise Mistake(f"{line!r} is not understood")
    room = (WIDTH - 2 * EDGE) / len(stacks)
    w = room - 10
    titles = [wrap(title, w) for title, _ in stacks]
    top = EDGE + max(len(title) for title in titles) * LINE + 8
    # The boxes of a row are of one height, and so are the arrows below them.
    rows = max(len(stack) for _, stack in stacks)
    if not rows:
        raise Mistake("it has no box")
    cell = lambda row, part, of: max((of(stack[row][part]) for _, stack in stacks if row < len(stack)), default=0)
    for number, (_, stack) in enumerate(stacks):
        x, y = EDGE + number * room + 5, top
        picture.text(titles[number], x + w / 2, EDGE, css="name")
        for row in range(rows):
            h = cell(row, 1, lambda text: box_height(wrap(text, w - 2 * PAD)))
            words = cell(row, 2, lambda text: len(wrap(text, w)) * LINE if text not in ("", "-") else 0)
            long = words + (2 * 14 if words else 22)
            if row < len(stack):
                style, text, down = stack[row]
                picture.box(x, y, w, wrap(text, w - 2 * PAD), style, h=h)
                if row + 1 < len(stack) and down != "-":
                    picture.arrow(x + w / 2, y + h, x + w / 2, y + h + long)
                    if down:
                        said = wrap(down, w)
                        picture.text(said, x + w / 2, y + h + (long - 6 - len(said) * LINE) / 2, css="halo")
            y += h + long
    return picture, y - long + EDGE


def draw(source):
    lines = [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    kinds = {"sequence": sequence, "flow": flow, "columns": columns}
    if len(lines) < 3:
        raise Mistake("it is empty")
    alt, kind, *lines = lines
    if not alt.startswith("alt: "):
        raise Mistake("it has no alt")
    if kind not in kinds:
        raise Mistake(f"{kind!r} is no kind of picture")
    picture, height = kinds[kind](lines)
    return picture.svg(alt.removeprefix("alt: "), height)


failed = []
sources = sorted(FOLDER.glob("*.txt"))
for source in sources:
    target = source.with_suffix(".svg")
    try:
        svg = draw(source)
    except Mistake as mistake:
        sys.exit(f"{source.name}: {mistake}")
    if "--check" not in sys.argv:
        target.write_text(svg, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != svg:
        failed.append(f"{target.name} is not what {source.name} says")
# Curves are drawn by growth.py.
drawn = {file.stem for file in FOLDER.glob("*.svg") if not file.stem.startswith("growth-")}
without = drawn - {source.stem for source in sources}
failed += [f"{name}.svg has no source" for name in sorted(without)]
if failed:
    sys.exit("\n".join(failed) + "\nto draw them: python3 scripts/pictures.py")
