"""Packages that the tests install for themselves, as locked in the tree, once for each state of the lock."""

import contextlib
import hashlib
import os
import shutil
import subprocess


@contextlib.contextmanager
def once(target, wanted):
    """Whether the folder is to be made: what is in it, if anything, is not from these bytes."""
    stamp, digest = os.path.join(target, "stamp"), hashlib.sha256(wanted).hexdigest()
    try:
        with open(stamp) as f:
            old = f.read() != digest
    except FileNotFoundError:
        old = True
    yield old
    if old:
        with open(stamp, "w") as f:
            f.write(digest)


def npm(source, target):
    """The packages of source/package-lock.json beneath target/node_modules, without a script of theirs being run; source's own programs
    beside them, where their imports are looked for. Gives target."""
    os.makedirs(target, exist_ok=True)
    lists = b""
    for name in ("package.json", "package-lock.json"):
        with open(os.path.join(source, name), "rb") as f:
            lists += f.read()
    with once(target, lists) as old:
        if old:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(os.path.join(source, name), target)
            subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=target, check=True, stdout=subprocess.DEVNULL)
    for name in os.listdir(source):
        if name.endswith(".mjs"):
            shutil.copy(os.path.join(source, name), target)
    return target


def pip(requirements, target):
    """The Python of an environment with these requirements (a text that names every package) and nothing else."""
    program = os.path.join(target, "bin/python")
    with once(target, requirements.encode()) as old:
        if old:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["python3", "-m", "venv", target], check=True)
            subprocess.run([program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--require-hashes",
                            "-r", "/dev/stdin"], input=requirements, text=True, check=True)
    return program
