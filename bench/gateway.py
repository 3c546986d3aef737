"""The network gateway beside nginx's stream module: bench/gateway.c, in namespaces of its own."""

import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build/bench/bench-gateway")
NETGTW = os.path.join(ROOT, "build/src/netgtw/netgtw")


def measure(quick):
    for path in (PROGRAM, NETGTW):
        if not os.path.exists(path):
            sys.exit(f"bench: {path} is missing: make build")
    if not shutil.which("nginx"):
        sys.exit("bench: nginx is missing: setup.sh --test")
    out = subprocess.run([PROGRAM, NETGTW, *(["--quick"] if quick else [])], check=True, capture_output=True, text=True).stdout
    return json.loads(out)
