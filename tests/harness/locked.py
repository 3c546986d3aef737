"""Packages that the tests install for themselves, as locked in the tree, once for each state of the lock."""

import hashlib
import os
import shutil
import subprocess


def fresh(stamp, *files):
    """Whether the stamp holds the digest of the files; gives the digest."""
    digest = hashlib.sha256(b"".join(open(f, "rb").read() for f in files)).hexdigest()
    try:
        with open(stamp) as f:
            return f.read() == digest, digest
    except FileNotFoundError:
        return False, digest


def npm(source, target):
    """The packages of source/package-lock.json beneath target/node_modules. Gives target."""
    os.makedirs(target, exist_ok=True)
    files = [os.path.join(source, name) for name in ("package.json", "package-lock.json")]
    stamp = os.path.join(target, "stamp")
    done, digest = fresh(stamp, *files)
    if not done:
        for path in files:
            shutil.copy(path, target)
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=target, check=True, stdout=subprocess.DEVNULL)
        with open(stamp, "w") as f:
            f.write(digest)
    return target
