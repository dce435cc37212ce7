#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws contrib/mixin/dashboard.json as an SVG picture from the data of a Prometheus server: each
panel's own queries, evaluated by that server. `dashboard.py URL FROM TO >docs/dashboard.svg`, with
Unix times. It needs nothing but Python's own library."""

import html
import json
import math
import os
import sys
import urllib.parse
import urllib.request

CELL, ROW, GAP, HEAD = 50, 36, 8, 48
WIDTH = 24 * CELL
COLORS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff",
          "#e0b400", "#c4162a", "#fade2a", "#a352cc"]
NAMED = {"green": "#73bf69", "red": "#f2495c", "orange": "#ff9830"}
STEPS = 240


def ask(url, path, **words):
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(words)}", timeout=30) as page:
        answer = json.load(page)
    if answer["status"] != "success":
        raise SystemExit(f"{words['query']}: {answer}")
    return answer["data"]["result"]


def filled(expr):
    return expr.replace("$__rate_interval", "30s").replace("$instance", ".*")


def legend(form, labels):
    for name, value in labels.items():
        form = form.replace("{{" + name + "}}", value)
    return form or "value"


def shown(value, unit):
    if unit == "s":
        for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
            if value >= size or size == 1e-6:
                return "0" if value == 0 else f"{value / size:.3g} {name}"
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return text + ("/s" if unit == "ops" else "")


def text(x, y, words, size=11, color="#ccccdc", anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" '
            f'text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>')


def box(panel):
    place = panel["gridPos"]
    x, y = place["x"] * CELL + GAP / 2, HEAD + place["y"] * ROW + GAP / 2
    return x, y, place["w"] * CELL - GAP, place["h"] * ROW - GAP


def stat(panel, url, end):
    x, y, width, height = box(panel)
    result = ask(url, "/api/v1/query", query=filled(panel["targets"][0]["expr"]), time=end)
    value = float(result[0]["value"][1]) if result else math.nan
    color = NAMED["green"]
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is not None and value >= step["value"]:
            color = NAMED[step["color"]]
    words = "no data" if math.isnan(value) else f"{value:.0f}"
    return [text(x + width / 2, y + height / 2 + 24, words, 34, color, "middle", "bold")]


def series_of(panel, url, begin, end):
    step = max(1, (end - begin) // STEPS)
    found = []
    for target in panel["targets"]:
        query = filled(target["expr"])
        for one in ask(url, "/api/v1/query_range", query=query, start=begin, end=end, step=step):
            points = [(float(at), float(value)) for at, value in one["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                found.append((legend(target["legendFormat"], one["metric"]), points))
    return sorted(found)


def thinned(points):
    """Without the points in the middle of a level line."""
    kept = [point for before, point, after in zip(points, points[1:], points[2:])
            if not before[1] == point[1] == after[1]]
    return points[:1] + kept + points[-1:] if len(points) > 1 else points


def joined(points):
    return " ".join(f"{x},{y}" for x, y in thinned([(f"{x:.1f}", f"{y:.1f}") for x, y in points]))


def stacked(series):
    times = sorted({at for _, points in series for at, _ in points})
    below, layers = dict.fromkeys(times, 0.0), []
    for name, points in series:
        own = dict(points)
        layer = [(at, below[at], below[at] + own.get(at, 0.0)) for at in times]
        below = {at: top for at, _, top in layer}
        layers.append((name, layer))
    return layers


def graph(panel, url, begin, end):
    x, y, width, height = box(panel)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    series = series_of(panel, url, begin, end)
    left, top, right, bottom = x + 56, y + 30, x + width - 10, y + height - 46
    drawn = []
    if not series:
        return [text(x + width / 2, y + height / 2, "no data", 12, "#8e8e9c", "middle")]
    is_stacked = "stacking" in panel["fieldConfig"]["defaults"]["custom"]
    layers = stacked(series) if is_stacked else [
        (name, [(at, 0.0, value) for at, value in points]) for name, points in series]
    highest = max(upper for _, layer in layers for _, _, upper in layer) or 1.0
    across = lambda at: left + (at - begin) / (end - begin) * (right - left)
    up = lambda value: bottom - value / highest * (bottom - top)
    for part in range(5):
        value = highest * part / 4
        drawn.append(f'<line x1="{left}" x2="{right}" y1="{up(value):.1f}" y2="{up(value):.1f}" '
                     'stroke="#2c3235" stroke-width="1"/>')
        drawn.append(text(left - 6, up(value) + 4, shown(value, unit), 10, "#8e8e9c", "end"))
    for part in range(4):
        at = begin + (end - begin) * part / 3
        anchor = ("start", "middle", "middle", "end")[part]
        minutes = f"{int(at - begin) // 60}:{int(at - begin) % 60:02d}"
        drawn.append(text(across(at), bottom + 14, minutes, 10, "#8e8e9c", anchor))
    at_x, at_y = x + 12, bottom + 30
    for number, (name, layer) in enumerate(layers):
        color = COLORS[number % len(COLORS)]
        line = joined([(across(at), up(upper)) for at, _, upper in layer])
        if is_stacked:
            back = joined([(across(at), up(lower)) for at, lower, _ in reversed(layer)])
            drawn.append(f'<polygon points="{line} {back}" fill="{color}" fill-opacity="0.25"/>')
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.4"/>')
        length = 18 + 5.6 * len(name)
        if at_x + length > x + width - 8:
            at_x, at_y = x + 12, at_y + 13
        if at_y <= y + height - 2:
            drawn.append(f'<rect x="{at_x}" y="{at_y - 5}" width="10" height="3" fill="{color}"/>')
            drawn.append(text(at_x + 14, at_y, name, 10))
        at_x += length + 8
    return drawn


def main():
    url, begin, end = sys.argv[1].rstrip("/"), int(float(sys.argv[2])), int(float(sys.argv[3]))
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../contrib/mixin/dashboard.json"), encoding="ascii") as file:
        dashboard = json.load(file)
    height = HEAD + ROW * max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}" role="img" '
           'aria-label="The dashboard: requests, plugins, refusals and latencies of a node over six minutes" '
           'font-family="Inter, Helvetica, Arial, sans-serif">',
           f'<rect width="{WIDTH}" height="{height}" fill="#111217"/>',
           text(12, 31, dashboard["title"], 20, weight="bold")]
    for panel in dashboard["panels"]:
        x, y, width, high = box(panel)
        out.append(f'<rect x="{x}" y="{y}" width="{width}" height="{high}" rx="3" fill="#181b1f" '
                   'stroke="#2c3235"/>')
        out.append(text(x + 10, y + 20, panel["title"], 13, weight="bold"))
        draw = {"stat": lambda: stat(panel, url, end), "timeseries": lambda: graph(panel, url, begin, end)}
        out.extend(draw[panel["type"]]())
    print("\n".join(out + ["</svg>"]))


main()
