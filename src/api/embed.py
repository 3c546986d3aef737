#!/usr/bin/env python3
"""Writes a JSON document as a C string, without the blanks: embed.py FILE.json NAME HEADER > FILE.c"""

import json
import sys

path, name, header = sys.argv[1:]
with open(path) as f:
    text = json.dumps(json.load(f), separators=(",", ":"), ensure_ascii=True) + "\n"
print(f"/* Made by embed.py from {path.rsplit('/', 1)[-1]}. */\n#include \"{header}\"\n\nconst char {name}[] =")
for i in range(0, len(text), 80):
    part = text[i:i + 80].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
    print(f'\t"{part}"')
print("\t;")
