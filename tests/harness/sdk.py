"""The pinned E2B SDKs (tests/sdk) and the matrix of what works with each of them: installing, running, judging, docs/sdk-matrix.md."""

import datetime
import json
import os
import subprocess

from harness import locked, node

HERE = os.path.join(node.ROOT, "tests/sdk")
CACHE = os.path.join(node.ROOT, "build/sdk")
DOC = os.path.join(node.ROOT, "docs/sdk-matrix.md")

NPM = ("2.51.0", "2.50.0", "2.38.3", "2.27.0", "2.14.0", "2.8.1")
PYPI = ("2.63.0", "2.51.0", "2.50.0", "2.45.1", "2.36.0", "2.30.0", "2.15.0", "2.8.1")
MODES = ("sync", "async")

# Rows that are not in every version: the first of ours that has the call (npm, PyPI); None: none of ours.
SINCE = {
    "create: idempotency key": (None, "2.63.0"),
    "commands: closeStdin": ("2.14.0", "2.30.0"),
    "commands: stdin of the handle, bytes": ("2.38.3", "2.30.0"),
    "commands: streamInput": (None, "2.63.0"),
    "pty: connect": ("2.14.0", "2.15.0"),
    "pty: streamInput": (None, "2.63.0"),
    "files: writeFiles": ("2.14.0", "2.8.1"),
    "files: gzip": ("2.27.0", "2.30.0"),
    "files: octet-stream": ("2.27.0", "2.30.0"),
    "files: metadata": ("2.38.3", "2.30.0"),
    "watch: entries": ("2.38.3", "2.30.0"),
    "list: order, template, age": ("2.50.0", "2.45.1"),
    "getMetrics: range": ("2.38.3", "2.8.1"),
    "later: fork": ("2.38.3", "2.36.0"),
    "later: snapshots": ("2.14.0", "2.15.0"),
    "later: network rules": ("2.27.0", "2.30.0"),
    "later: volumes": ("2.27.0", "2.30.0"),
    "later: secrets": ("2.50.0", "2.45.1"),
}


def numbers(version):
    return [int(n) for n in version.split(".")]


# -- installing

def javascript():
    """The folder with the programs and node_modules/e2b-VERSION, as locked."""
    return locked.npm(HERE, os.path.join(CACHE, "npm"))


def requirements(version):
    """The lines of pypi.txt for a version of e2b."""
    with open(os.path.join(HERE, "pypi.txt")) as f:
        lines = [line.partition("  # ") for line in f if not line.startswith("#")]
    return "".join(line + "\n" for line, _, to in lines if to.strip() == "all" or version in to.split())


def python(version):
    """The Python of an environment with that e2b and what is locked for it."""
    return locked.pip(requirements(version), os.path.join(CACHE, "pypi-" + version))


# -- running

def environment(n, **more):
    return n.env(E2B_API_KEY=n.key(), E2B_API_URL=n.api_url, E2B_SANDBOX_URL=n.api_url, PYTHONWARNINGS="ignore", **more)


def command(program, language, version, mode, *args):
    """How a program of tests/sdk is started for one version: its command and its folder."""
    if language == "npm":
        return ["node", program + ".mjs", "e2b-" + version, *args], javascript()
    return [python(version), os.path.join(HERE, program + ".py"), mode, *args], HERE


class Run:
    """A run of the matrix for one version, begun at once."""

    def __init__(self, n, language, version, mode=None):
        self.language, self.version, self.mode = language, version, mode
        self.name = " ".join(filter(None, (language, version, mode)))
        cmd, cwd = command("matrix", language, version, mode)
        self.process = subprocess.Popen(cmd, cwd=cwd, env=environment(n), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.rows, self.complaints = {}, []

    def end(self, seconds=600):
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            self.complaints.append(f"{self.name}: no end within {seconds} s")
        for line in out.splitlines():
            r = json.loads(line)
            self.rows[r["row"]] = r
        if self.process.returncode:
            self.complaints.append(f"{self.name}: exit code {self.process.returncode}\n{err[-2000:]}")
        self.complaints += filter(None, map(self.judge, self.rows.values()))
        return self

    def judge(self, r):
        """A complaint, or None: a row passes, or is lacking or later exactly where that is known."""
        name, result = r["row"], r["result"]
        since = SINCE[name][self.language == "PyPI"] if name in SINCE else "0"
        has = since is not None and numbers(self.version) >= numbers(since)
        right = "lacks" if not has else "later" if name.startswith("later: ") else "pass"
        return None if result == right else f"{self.name}: {name}: {result} instead of {right}: {r['detail']}"


# -- docs/sdk-matrix.md

MARKS = {"pass": "yes", "lacks": "–", "later": "501", "fail": "**no**"}

HEAD = """# E2B SDKs

What each version of the E2B SDKs can do with SPACE, unmodified. Written by `tests/long/test_sdk_matrix.py`, which runs the checks of
`tests/sdk/matrix.mjs` and `tests/sdk/matrix.py` against a node with real sandboxes; a cell says what the check saw.

**yes**: works, outputs and errors compared. **–**: this version of the SDK has no such call. **501**: refused, because the step of SPACE
that brings it is not there yet; the answer names it. Names are those of the JavaScript SDK; in Python `closeStdin` is `close_stdin`.
"""


def cell(results):
    marks = [MARKS[r["result"]] if r else "" for r in results]
    return marks[0] if len(set(marks)) == 1 else " / ".join(marks)


def table(title, columns, names):
    """columns: (head, runs)"""
    out = [f"\n## {title}\n", "| | " + " | ".join(h for h, _ in columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in names:
        out.append(f"| {name} | " + " | ".join(cell([r.rows.get(name) for r in runs]) for _, runs in columns) + " |")
    return "\n".join(out) + "\n"


def write_doc(runs):
    npm = [r for r in runs if r.language == "npm"]
    pypi = [r for r in runs if r.language == "PyPI"]
    names = list(dict.fromkeys(name for r in [*pypi, *npm] for name in r.rows))
    later = {name: r.rows[name]["detail"] for r in [*pypi, *npm] for name in r.rows if r.rows[name]["result"] == "later"}
    failed = [c for r in runs for c in r.complaints]
    text = HEAD + f"\n{datetime.date.today().isoformat()}: " + (f"{len(failed)} failures" if failed else "no failure") + \
        f" in {sum(len(r.rows) for r in runs)} checks.\n"
    text += table("npm `e2b`", [(v, [r for r in npm if r.version == v]) for v in NPM], names)
    text += table("PyPI `e2b`, Sandbox / AsyncSandbox (one mark where both are the same)",
                  [(v, [r for r in pypi if r.version == v]) for v in PYPI], names)
    text += "\n## What 501 says\n\n" + "".join(f"- {name.removeprefix('later: ')}: {text}\n" for name, text in later.items())
    if failed:
        text += "\n## What failed\n\n" + "".join(f"- {c}\n" for c in failed)
    with open(DOC, "w") as f:
        f.write(text)
