#!/usr/bin/env python3
"""Holds the table of problems (api-print codes) against the machine words that the source sets.

    check-codes.py SRC API-PRINT

Looks at the folders whose errors can reach a client of /v1: a word that is set there and has no row is an error, and a row whose
word nobody sets, too.
"""

import glob
import os
import re
import subprocess
import sys

FOLDERS = ("base", "json", "loop", "http", "ipc", "identity", "routes", "state", "store", "ops", "daemon", "vmm", "node-manager",
           "sbx-manager", "node-api", "api")
WORD = r'"([a-z][a-z0-9-]*)"'


def sources(src):
    for folder in FOLDERS:
        for path in sorted(glob.glob(f"{src}/{folder}/*.[ch]")):
            name = os.path.basename(path)
            if not name.startswith(("test_", "fuzz_")) and name != "problems.c":
                with open(path) as f:
                    yield path, f.read()


def arguments(text, start):
    """The first three arguments of a call whose parenthesis is at start."""
    out, depth, part, i = [], 0, "", start
    while len(out) < 3:
        c = text[i]
        if c == '"':
            end = re.compile(r'"(?:\\.|[^"\\])*"').match(text, i).end()
            part += text[i:end]
            i = end
            continue
        depth += c in "([{"
        depth -= c in ")]}"
        if (c == "," and depth == 1) or depth == 0:
            out.append(part)
            part = ""
            if depth == 0:
                break
        else:
            part += c
        i += 1
    return out


def main():
    src, program = sys.argv[1:]
    table = set(subprocess.run([program, "codes"], stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    texts = dict(sources(src))
    macros = {name: word for text in texts.values() for name, word in re.findall(rf"#define\s+(\w+)\s+{WORD}", text)}
    bad = 0
    for path, text in texts.items():
        for call in re.finditer(r"\b(?:err_set_code|call_refuse)(?=\()", text):
            args = arguments(text, call.end())
            third = re.sub(r"json_object_get\([^)]*\)", "", args[2] if len(args) > 2 else "")
            words = re.findall(WORD, third) + [macros[w] for w in re.findall(r"\b[A-Z_]{4,}\b", third) if w in macros]
            for word in words:
                if word not in table:
                    print(f"{path}: \"{word}\" has no row in src/api/problems.c")
                    bad = 1
    with open(f"{src}/base/err.c") as f:
        for word in re.findall(rf"\{{ E\w+, \d+, {WORD} \}}", f.read()):
            if word not in table:
                print(f"base/err.c: \"{word}\" has no row in src/api/problems.c")
                bad = 1
    everything = "\n".join(texts.values())
    for word in sorted(table):
        if f'"{word}"' not in everything:
            print(f"src/api/problems.c: nobody says \"{word}\"")
            bad = 1
    return bad


sys.exit(main())
