"""The last results of the long tests, in docs/long-tests.md: one section a test, replaced at each run."""

import datetime
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATH = os.path.join(ROOT, "docs/long-tests.md")
HEAD = "# Last results of the long tests\n\nWritten by the tests themselves (`sudo make test-long`).\n"


def record(title, result, lines=()):
    text = HEAD
    if os.path.exists(PATH):
        with open(PATH) as f:
            text = f.read()
    section = f"\n## {title}\n\n{datetime.date.today().isoformat()}, Linux {os.uname().release}, {os.cpu_count()} cores: {result}\n"
    if lines:
        section += "\n" + "".join(f"- {line}\n" for line in lines)
    old = re.compile(r"\n## " + re.escape(title) + r"\n.*?(?=\n## |\Z)", re.S)
    text = old.sub(lambda m: section, text) if old.search(text) else text.rstrip("\n") + "\n" + section
    with open(PATH, "w") as f:
        f.write(text)
