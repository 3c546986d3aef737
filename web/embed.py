#!/usr/bin/env python3
"""Writes the pages as C (src/api/pages.h): embed.py OUT FILE...  The files' names decide their paths and types."""

import hashlib
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
         ".txt": "text/plain; charset=utf-8"}


def literal(data):
    """A C string, 64 bytes a line; octal escapes always have three digits, so none runs into what follows."""
    safe = {c: chr(c) for c in range(0x20, 0x7f) if chr(c) not in '"\\?'}
    for i in range(0, len(data), 64):
        yield '"' + "".join(safe.get(c) or f"\\{c:03o}" for c in data[i:i + 64]) + '"'


def main(out, files):
    rows = []
    with open(out, "w") as f:
        f.write('#include "api/pages.h"\n\n')
        for n, path in enumerate(files):
            stem, ext = os.path.splitext(os.path.basename(path))
            with open(path, "rb") as page:
                data = page.read()
            f.write(f"static const char data_{n}[] =\n")
            f.write("\n".join(literal(data)) + ";\n\n")
            etag = hashlib.sha256(data).hexdigest()[:32]
            rows.append(f'\t{{ "/ui/{stem if ext == ".html" else stem + ext}", "{TYPES[ext]}", "\\"{etag}\\"", data_{n}, sizeof(data_{n}) - 1 }},\n')
        f.write("const struct page pages[] = {\n" + "".join(rows) + "};\n")
        f.write("const unsigned pages_len = sizeof(pages) / sizeof(pages[0]);\n")


main(sys.argv[1], sys.argv[2:])
