"""Requests per second through the whole path, beside nginx in front of the same responder.

The path is real from end to end but for the guest: the VMM's tree of this node holds bench/responder under the VMM's name. It runs in
the VMM's jail, answers QMP, and speaks the guest's side of the multiplexer. nginx proxies to the same program on a Unix socket."""

import os
import re
import shutil
import subprocess
import tempfile
import time

import hashlib

from figures import node_report
from guest import Client
from harness import node as harness

RESPONDER = os.path.join(harness.ROOT, "build/bench/responder")
LIB = os.path.join(harness.PREFIX, "lib/space")

SCRIPTS = {
    "kernel.sh": """#!/bin/bash
mkdir -p "$SPACE_CACHE/kernel/bench/modules"; cd "$SPACE_CACHE/kernel/bench"
[ -s vmlinuz ] || { echo kernel >vmlinuz; echo 6.1.0-bench >release; : >modules/order; }
pwd
""",
    "initramfs.sh": """#!/bin/bash
echo initrd >"$3"
""",
    "base.sh": """#!/bin/bash
mkdir -p "$SPACE_CACHE/base/bench"; cd "$SPACE_CACHE/base/bench"
[ -s rootfs.img ] || truncate -s 16M rootfs.img
echo "$PWD/rootfs.img"
""",
}


def vmm_script(responder):
    with open(responder, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    return f"""#!/bin/bash
set -e
d="$SPACE_CACHE/vmm/{digest}"
mkdir -p "$d/dev" "$d/fw"
if [ ! -x "$d/qemu-system-x86_64" ]; then
	: >"$d/mem"; : >"$d/vmlinuz"; : >"$d/initrd.gz"; : >"$d/dev/kvm"
	: >"$d/fw/bios-microvm.bin"; : >"$d/fw/linuxboot_dma.bin"
	cp '{responder}' "$d/qemu-system-x86_64.new"; chmod 0555 "$d/qemu-system-x86_64.new"
	mv "$d/qemu-system-x86_64.new" "$d/qemu-system-x86_64"
fi
echo "$d"
"""


def private_lib(folder):
    """A copy of the installed programs whose image scripts make small things, and the responder as the VMM."""
    lib = os.path.join(folder, "lib")
    shutil.copytree(LIB, lib)
    for name, text in {**SCRIPTS, "vmm.sh": vmm_script(RESPONDER)}.items():
        path = os.path.join(lib, "image", name)
        if os.path.exists(path):
            os.unlink(path)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)
    return lib


class Nginx:
    CONF = """
daemon off; pid {dir}/nginx.pid; worker_processes 1; error_log {dir}/error.log; user root;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  keepalive_requests 1000000;
  upstream kept {{ server unix:{sock}; keepalive 64; }}
  upstream fresh {{ server unix:{sock}; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://fresh; }} }}
  server {{ listen 127.0.0.1:{port2}; location / {{ proxy_pass http://kept; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""

    def __init__(self, folder):
        self.dir = os.path.join(folder, "nginx")
        os.mkdir(self.dir)
        self.sock = os.path.join(self.dir, "responder.sock")
        self.fresh, self.kept = harness.free_port(), harness.free_port()
        with open(self.dir + "/conf", "w") as f:
            f.write(self.CONF.format(dir=self.dir, sock=self.sock, port=self.fresh, port2=self.kept))

    def __enter__(self):
        self.responder = subprocess.Popen([RESPONDER, self.sock])
        harness.wait_for("the responder", lambda: os.path.exists(self.sock))
        self.server = subprocess.Popen(["nginx", "-p", self.dir, "-c", self.dir + "/conf"])
        harness.wait_for("nginx", lambda: os.path.exists(self.dir + "/nginx.pid"))
        return self

    def __exit__(self, *exc):
        for p in (self.server, self.responder):
            p.terminate()
            p.wait()


def wrk(url, connections, seconds, headers=()):
    """Requests a second and latencies; errors of any kind end the bench."""
    cmd = ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--latency"]
    for h in headers:
        cmd += ["-H", h]
    text = subprocess.run([*cmd, url], check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise AssertionError(f"{url}: {text}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
    unit = {"us": 0.001, "ms": 1, "s": 1000}
    lat = {q: float(v) * unit[u] for q, v, u in re.findall(r"(50|90|99)%\s+([\d.]+)(us|ms|s)", text)}
    return {"rate": rate, "p50_ms": lat["50"], "p90_ms": lat["90"], "p99_ms": lat["99"]}


def medians(runs):
    runs = sorted(runs, key=lambda r: r["rate"])
    return runs[len(runs) // 2]


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def cpu_share(pids, work):
    """Runs work(); which share of a core each program took meanwhile."""
    before, begin = {n: cpu_ticks(p) for n, p in pids.items()}, time.monotonic()
    result = work()
    took = (time.monotonic() - begin) * os.sysconf("SC_CLK_TCK")
    return result, {n: (cpu_ticks(p) - before[n]) / took for n, p in pids.items()}


def profile(pids, work):
    """perf over the programs while work() runs: {program: [(percent, symbol)]}; empty where perf is not there."""
    if not shutil.which("perf"):
        work()
        return {}
    folder = tempfile.mkdtemp(prefix="space-perf-")
    recorders = {n: subprocess.Popen(["perf", "record", "-q", "-F", "499", "-p", str(p), "-o", f"{folder}/{n}"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for n, p in pids.items()}
    time.sleep(0.5)
    work()
    out = {}
    for name, recorder in recorders.items():
        recorder.send_signal(2)
        recorder.wait()
        text = subprocess.run(["perf", "report", "-q", "--stdio", "--no-children", "-s", "symbol", "-i", f"{folder}/{name}"],
                              capture_output=True, text=True).stdout
        out[name] = [(float(m.group(1)), " ".join(m.group(2).split())) for m in re.finditer(r"^\s+([\d.]+)%\s+(\[.\]\s+\S+)", text, re.M)][:10]
    shutil.rmtree(folder)
    return out


def syscalls(pids, work):
    """How many system calls of each kind a request costs: {program: {name: calls}}; empty where strace is not there."""
    if not shutil.which("strace"):
        return {}
    folder = tempfile.mkdtemp(prefix="space-strace-")
    tracers = {n: subprocess.Popen(["strace", "-f", "-c", "-o", f"{folder}/{n}", "-p", str(p)], stderr=subprocess.DEVNULL)
               for n, p in pids.items()}
    time.sleep(0.7)
    result = work()
    out = {}
    for name, t in tracers.items():
        t.send_signal(2)
        t.wait()
        with open(f"{folder}/{name}") as f:
            rows = [line.split() for line in f]
        out[name] = {r[-1]: int(r[3]) for r in rows if len(r) >= 5 and r[3].isdigit() and r[-1] != "total"}
    shutil.rmtree(folder)
    return {"requests": result, "calls": out}


def path_pids(node, box):
    from guest import pids_of
    pids = {d: node.pid_of(d) for d in ("space-api", "node-api", "sbx-manager", "node-manager")}
    found = pids_of(node, box)
    pids["spaced-host"], pids["responder"] = found["bridge"], found["vmm"]
    return pids


def measure_node(folder, seconds, runs, quick):
    node = harness.Node(max_sandboxes=8)
    more = ["--lib-dir", private_lib(folder), "--cache-dir", os.path.join(folder, "cache")]
    node.up(*more)
    try:
        client = Client(node)
        box = client.control("POST", "/sandboxes", {"templateID": "base", "timeout": 3600})
        headers = [f"{k}: {v}" for k, v in client.headers(box).items()]
        url = f"http://127.0.0.1:{node.port}/files?path=/home/user/x"
        out = {}
        wrk(url, 4, 1, headers)
        for n in (1, 32):
            out[str(n)] = medians([wrk(url, n, seconds, headers) for _ in range(runs)])
        out["admission_us"] = node_report(node)["node"].get("admission", {})
        # One at a time: what an admission costs when nothing waits.
        wrk(url, 1, seconds, headers)
        out["admission_alone_us"] = node_report(node)["node"].get("admission", {})
        pids = path_pids(node, box["sandboxID"])
        _, out["cpu_share"] = cpu_share(pids, lambda: wrk(url, 32, seconds, headers))
        if not quick:
            out["profile"] = profile(pids, lambda: wrk(url, 32, seconds, headers))
            count = 300

            def some():
                for _ in range(count):
                    client.conn.request("GET", "/files?path=/home/user/x", headers=client.headers(box))
                    client.conn.getresponse().read()
                return count
            out["syscalls"] = syscalls(pids, some)
        client.control("DELETE", f"/sandboxes/{box['sandboxID']}")
        return out
    finally:
        node.remove()


def measure(quick):
    seconds, runs = (2, 1) if quick else (8, 3)
    for tool in ("wrk", "nginx"):
        if not shutil.which(tool):
            raise SystemExit(f"bench: {tool} is missing; run ./setup.sh --test first")
    folder = tempfile.mkdtemp(prefix="space-bench-")
    os.chmod(folder, 0o755)
    try:
        out = {"space": measure_node(folder, seconds, runs, quick), "nginx_fresh": {}, "nginx_kept": {}}
        with Nginx(folder) as nginx:
            for name, port in (("nginx_fresh", nginx.fresh), ("nginx_kept", nginx.kept)):
                url = f"http://127.0.0.1:{port}/files?path=/home/user/x"
                wrk(url, 4, 1)
                for n in (1, 32):
                    out[name][str(n)] = medians([wrk(url, n, seconds) for _ in range(runs)])
        return out
    finally:
        shutil.rmtree(folder, ignore_errors=True)
