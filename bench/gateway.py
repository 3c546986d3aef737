"""
The network gateway. bench/gateway.c: beside nginx's stream module, in namespaces of its own, with a load generator in the guest's place. Then
the same load from inside a real guest, through its gateway, to the same server in the tests' internet (tests/harness/internet.py).
"""

import json
import os
import shutil
import subprocess
import sys
import time

from figures import node_report, quantile
from guest import cpu_ms, pids_of
from harness import internet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build/bench/bench-gateway")
LOAD = os.path.join(ROOT, "build/bench/bench-load")
NETGTW = os.path.join(ROOT, "build/src/netgtw/netgtw")
PORT = "5001"
# load.c's, with how much of each: milliseconds, connections. Of those as many as the gateway's limit lets through at once, and REST_S until it
# does so again (docs/network.md, `connections-per-s`); in bench/gateway.c there is none.
FIGURES = {"down_bytes_s": 3000, "up_bytes_s": 3000, "connections_s": 900, "first_byte_us": 750}
REST_S = 2
SETTINGS = {"net.ipv4.ip_local_port_range": "1024 65000", "net.ipv4.tcp_tw_reuse": "1"}    # as in gateway.c


class Guest:
    """A sandbox with the load generator in it."""

    def __init__(self, node):
        self.node = node
        self.box = node.create("--timeout", "3600")
        with open(LOAD, "rb") as f:
            node.put(self.box, "/root/load", f.read())
        node.root(self.box, "sh", "-c", "chmod 755 /root/load; " +
                  "; ".join(f"echo '{v}' > /proc/sys/{k.replace('.', '/')}" for k, v in SETTINGS.items()))
        self.pids = {"VMM": pids_of(node, self.box)["vmm"], **node.gateway(self.box)}

    def load(self, figure, *where):
        """(what it says, milliseconds of processor time of each process meanwhile)"""
        time.sleep(REST_S)
        before = cpu_ms(self.pids)
        result = json.loads(self.node.root(self.box, "/root/load", figure, *where).stdout)
        after = cpu_ms(self.pids)
        return result, {n: after[n] - before[n] for n in self.pids}

    def figure(self, name, where, rounds):
        """As gateway.c's: the median, and seconds of processor time for a GB or a connection."""
        runs = [self.load(name, *where) for _ in range(rounds)]
        units = sum(r["units"] for r, _ in runs)
        cpu = {n: sum(c[n] for _, c in runs) / 1000 / units for n in self.pids}
        return {"p50": quantile([r["value"] for r, _ in runs], 0.5), "vmm_cpu_s": cpu.pop("VMM"), "cpu_s": sum(cpu.values())}


def serve(net):
    with net.outside():
        server = subprocess.Popen([LOAD, "serve", internet.WEB4, PORT], stdout=subprocess.PIPE, text=True)
    if server.stdout.readline() != "listening\n":
        raise AssertionError("bench-load serve does not listen")
    return server


def measure_guest(quick):
    """What comes of the same load in a guest ("guest"), and over the guest's own loopback ("guest_alone")."""
    rounds, share = (1, 5) if quick else (5, 1)
    with internet.Internet() as net:
        with net.inside():
            subprocess.run(["sysctl", "-qw", *(f"{k}={v}" for k, v in SETTINGS.items())], check=True)
        server = serve(net)
        try:
            with internet.NetNode(net, max_sandboxes=8) as node:
                guest = Guest(node)
                out = {"accel": node_report(node)["node"].get("accel")}
                for key, where in (("guest", (internet.WEB4, PORT)), ("guest_alone", ("self",))):
                    out[key] = {f: guest.figure(f, (*where, str(amount // share)), rounds) for f, amount in FIGURES.items()}
                node.kill(guest.box)
        finally:
            server.kill()
            server.communicate()
    return out


def measure(quick):
    for path in (PROGRAM, LOAD, NETGTW):
        if not os.path.exists(path):
            sys.exit(f"bench: {path} is missing: make build")
    if not shutil.which("nginx"):
        sys.exit("bench: nginx is missing: setup.sh --test")
    out = subprocess.run([PROGRAM, NETGTW, *(["--quick"] if quick else [])], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {**json.loads(out), **measure_guest(quick)}
