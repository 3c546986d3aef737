"""The gateway at length: 1 GiB each way, 5,000 connections, 1,000 WebSockets, package managers, 30 deaths under traffic (S-3, K-5, E-4)."""

import json
import os
import random
import resource
import signal
import subprocess
import threading
import time
import unittest

from harness import internet, memory, node, results, websocket
from harness.internet import WEB4, WEB6

GIB = 1 << 30
CONNECTIONS, WEBSOCKETS, KILLS = 5000, 1000, 30

# Runs in the guest: opens N connections to echo servers at several addresses, keeps them, and says after each order how many answered.
HOLDER = r"""
import asyncio, json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
conns, n = [], int(sys.argv[1])
async def one(i):
    for attempt in range(5):
        try:
            r, w = await asyncio.wait_for(asyncio.open_connection(("9.9.20.%d" % (i % 50 + 1)) if i % 2 else "2a10:9999:20::%x" % (i % 50 + 1), 7), 60)
            w.write(b"%05d" % i)
            assert await asyncio.wait_for(r.readexactly(5), 60) == b"%05d" % i
            conns.append((i, r, w))
            return
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(1)
async def again(c):
    i, r, w = c
    try:
        w.write(b"%05d" % (i ^ 1))
        return await asyncio.wait_for(r.readexactly(5), 120) == b"%05d" % (i ^ 1)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        return False
async def main():
    for at in range(0, n, 100):
        await asyncio.gather(*(one(i) for i in range(at, min(n, at + 100))))
    print(len(conns), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    ok = 0
    for at in range(0, len(conns), 200):
        ok += sum(await asyncio.gather(*(again(c) for c in conns[at:at + 200])))
    print(ok, flush=True)
asyncio.run(main())
"""

# A WebSocket server in the guest, on its loopback alone: echoes messages.
SERVER = r"""
import asyncio, base64, hashlib, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
async def on(r, w):
    try:
        head = (await r.readuntil(b"\r\n\r\n")).decode()
        key = next(l.split(":", 1)[1].strip() for l in head.split("\r\n") if l.lower().startswith("sec-websocket-key"))
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        w.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
        while True:
            a, b = await r.readexactly(2)
            n = b & 127
            if n == 126: n = int.from_bytes(await r.readexactly(2), "big")
            mask = await r.readexactly(4)
            data = bytes(c ^ mask[i % 4] for i, c in enumerate(await r.readexactly(n)))
            if a & 15 == 8:
                w.write(bytes([0x88, len(data)]) + data)
                await w.drain()
                return
            w.write(bytes([0x80 | a & 15]) + (bytes([n]) if n < 126 else b"\x7e" + n.to_bytes(2, "big")) + data)
    except (OSError, asyncio.IncompleteReadError, StopIteration):
        pass
    finally:
        w.close()
async def main():
    s = await asyncio.start_server(on, "127.0.0.1", 8080, backlog=2048)
    print("listens", flush=True)
    await s.serve_forever()
asyncio.run(main())
"""


def setUpModule():
    global NET, NODE
    NET, NODE = internet.shared()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def in_guest(box, *command, stdin=subprocess.DEVNULL, user="root"):
    with NET.inside():
        return subprocess.Popen([node.SPACE, "exec", *(["-i"] if stdin is subprocess.PIPE else []), "-u", user, box, "--", *command], env=NODE.env(), stdin=stdin, stdout=subprocess.PIPE, text=True)


def ended(p):
    p.kill()
    p.wait()
    for f in (p.stdin, p.stdout):
        if f:
            f.close()


def gateway_pss(box):
    return sum(memory.pss_kib(p) for p in NODE.gateway_pids(box))


class Long(unittest.TestCase):
    LIMIT_S = 2400

    def setUp(self):
        self.box = NODE.ready("--timeout", "7200")
        self.addCleanup(NODE.kill, self.box)
        NET.net.clear()

    def test_a_gibibyte_each_way(self):
        """Down with its checksum taken in the guest, and the same bytes back, with the checksum taken by the server."""
        want, begun = internet.sha256_of(GIB), time.monotonic()
        script = (f"curl -sSN -m 1500 'http://www.net.test/bytes?n={GIB}' | tee /tmp/sum.pipe | curl -sS -m 1500 -T - -H Expect: http://v6.net.test/upload")
        script = f"mkfifo /tmp/sum.pipe; sha256sum < /tmp/sum.pipe > /tmp/sum & {script}; wait; cat /tmp/sum"
        r = NODE.root(self.box, "bash", "-c", script, timeout=1600).stdout
        took = time.monotonic() - begun
        answer, _, down = r.partition("}")
        self.assertEqual(json.loads(answer + "}"), {"size": GIB, "sha256": want})
        self.assertEqual(down.split()[0], want)
        results.record("1 GiB down and up through a gateway (tests/long/test_net_long.py)", f"checksums match; {took:.0f} s for both at once, from a guest under emulation, curl and sha256sum included")

    def test_five_thousand_connections(self):
        empty = gateway_pss(self.box)
        p = in_guest(self.box, "python3", "-c", HOLDER, str(CONNECTIONS), stdin=subprocess.PIPE)
        try:
            begun = time.monotonic()
            self.assertEqual(p.stdout.readline().strip(), str(CONNECTIONS))
            took = time.monotonic() - begun
            self.assertGreaterEqual(len([s for s in NET.net.seen() if s["kind"] == "tcp" and s["port"] == 7]), CONNECTIONS)
            full = gateway_pss(self.box)
            r = NODE.api("GET", f"/v1/sandboxes/{self.box}/net/stats")
            self.assertEqual(r.status, 200, r.body)
            # Idle ones keep nobody from working, and each still knows its own peer.
            self.assertIn("hello", NODE.ask(self.box, [{"op": "tcp", "to": WEB4, "port": 80, "send": "GET /hello HTTP/1.1\r\n\r\n"}])[0].get("data", ""))
            p.stdin.write("\n")
            p.stdin.flush()
            self.assertEqual(p.stdout.readline().strip(), str(CONNECTIONS))
            per = (full - empty) / CONNECTIONS
            results.record("5,000 connections through one gateway (tests/long/test_net_long.py)",
                           f"all opened in {took:.0f} s by a guest under emulation, all answered again", [f"{per:.2f} KiB of the gateway's memory (PSS) for each idle connection; {empty} KiB without any"])
        finally:
            ended(p)
        node.wait_for("the memory is given back", lambda: gateway_pss(self.box) < empty + (full - empty) / 2 + 4096, 60)

    def test_a_thousand_websockets(self):
        p = in_guest(self.box, "python3", "-u", "-c", SERVER)
        socks = []
        try:
            self.assertEqual(p.stdout.readline(), "listens\n")
            begun, failures = time.monotonic(), []

            def open_some(count):
                with NET.inside():
                    for _ in range(count):
                        try:
                            socks.append(websocket.WebSocket(NODE.port, "/", headers={"E2b-Sandbox-Id": self.box, "E2b-Sandbox-Port": "8080"}, timeout=120))
                        except (websocket.Refused, websocket.Closed, OSError) as e:
                            failures.append(e)

            threads = [threading.Thread(target=open_some, args=(WEBSOCKETS // 8,)) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(failures[:3], [])
            self.assertEqual(len(socks), WEBSOCKETS)
            took = time.monotonic() - begun
            dice = random.Random(3)
            said = [dice.randbytes(dice.randrange(1, 3000)) for _ in socks]
            for s, d in zip(socks, said):
                s.send(d)
            for s, d in zip(socks, said):
                self.assertEqual(s.next_frame(), (websocket.BINARY, d))
            self.assertEqual([s.close() for s in socks], [1000] * WEBSOCKETS)
            results.record("1,000 WebSockets through a ServicePort (tests/long/test_net_long.py)", f"open at once, each with a message of its own there and back; opened in {took:.0f} s")
        finally:
            for s in socks:
                s.sock.close()
            ended(p)

    def test_package_managers(self):
        """apt and pip in the guest, from mirrors on the tests' internet, by name, HTTP and HTTPS."""
        script = ("set -e; cp /etc/apt/sources.list.d/* /tmp 2>/dev/null || true; rm -f /etc/apt/sources.list.d/* /etc/apt/sources.list\n"
                  "echo 'deb [trusted=yes] http://mirror.net.test/mirror/debian ./' > /etc/apt/sources.list\n"
                  "apt-get -o Acquire::Retries=0 update && apt-get install -y space-test && space-test\n"
                      "python3 -m venv /tmp/v && PIP_CERT=/root/ca.crt /tmp/v/bin/pip install --disable-pip-version-check -i https://mirror.net.test/mirror/simple/ space-test && /tmp/v/bin/python -m space_test")
        r = NODE.root(self.box, "bash", "-c", script, timeout=600)
        self.assertEqual(r.stdout.splitlines().count("installed"), 2, r.stdout + r.stderr)
        results.record("Package managers in the guest (tests/long/test_net_long.py)", "apt-get and pip install from a mirror on the tests' internet")

    def test_thirty_deaths_under_traffic(self):
        """The gateway is killed, by turns one of its processes; each time its connections end, nothing of it stays, the next one works."""
        loops = ("for u in http://www.net.test/bytes?n=3000000 'http://[%s]/hello' http://www.net.test/slow?n=30; do\n"
                 " (while :; do curl -s -m 20 -o /dev/null \"$u\" || sleep 0.2; done) &\ndone\nwait" % WEB6)
        p = in_guest(self.box, "bash", "-c", loops)
        try:
            works = lambda: "hello" in NODE.ask(self.box, [{"op": "tcp", "to": WEB4, "port": 80, "send": "GET /hello HTTP/1.1\r\n\r\n", "timeout": 3}])[0].get("data", "")
            node.wait_for("it works", works, 30)
            # One death before the count begins: what a restart leaves for good is there then.
            dice, before, longest = random.Random(5), None, 0
            for round in range(KILLS + 1):
                pids = node.wait_for("three processes", lambda: len(q := NODE.gateway_pids(self.box)) == 3 and q, 60)
                os.kill(pids[round % 3], signal.SIGKILL)
                begun = time.monotonic()
                node.wait_for("they have ended", lambda: not set(pids) & set(NODE.gateway_pids(self.box)), 10)
                node.wait_for("the next one works", works, 120)
                longest = max(longest, time.monotonic() - begun)
                if round == 0:
                    before = memory.kernel_objects(NODE), memory.descriptors(NODE)
                time.sleep(dice.random() * 0.5)
            node.wait_for("what there was", lambda: memory.kernel_objects(NODE) == before[0], 30)
            node.wait_for("descriptors as before", lambda: all(v <= before[1][d] + 2 for d, v in memory.descriptors(NODE).items()), 20)
            self.assertEqual((NODE.state_of(self.box), NODE.detail(self.box)["generation"]), ("running", 1))
            results.record("30 deaths of a gateway under traffic (tests/long/test_net_long.py)", "nothing is left of them, the sandbox runs on", [f"longest from the kill to the next answer {longest:.1f} s (back-off included)"])
        finally:
            ended(p)


if __name__ == "__main__":
    unittest.main()
