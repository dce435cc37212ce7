#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails for a link of the built book that leads nowhere: docs_links.py DIR."""

import glob
import os
import re
import sys

# The whole book on one page, and the frame of the table of contents: their links are the pages'.
COPIES = {"print.html", "toc.html", "404.html"}

os.chdir(sys.argv[1])
pages = {path: open(path, encoding="utf-8").read() for path in glob.glob("**/*.html", recursive=True)}
dead = set()
for page, text in pages.items():
    for link in re.findall(r'<a[^>]* href="([^"]+)"', text if page not in COPIES else ""):
        path, _, anchor = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(target) or (anchor and f'id="{anchor}"' not in pages.get(target, "")):
            dead.add(f"{page}: {link} leads nowhere")
sys.exit("\n".join(sorted(dead)) or (len(pages) < 40 and "pages are missing") or 0)
