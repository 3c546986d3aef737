"""Every limit of a sandbox's network, seen by a program in the sandbox, on a node where they are low (docs/network.md, "Limits"; S-3)."""

import json
import select
import socket
import subprocess
import time
import unittest

from harness import internet, node

LIMITS = {"connections": 5, "connections-per-s": 4, "dials": 3, "bytes-up-per-s": 100_000, "bytes-down-per-s": 300_000,
          "dns-per-s": 2, "dns-pending": 2, "dns-tcp": 2, "leases": 4, "lease-dials": 2}
REFILL_S = 2.2                                               # both buckets hold what two seconds bring

# What each order of a test begins with: a connection's answer is a byte, or how it was refused.
PRELUDE = r"""
import errno, json, socket, struct, time
WEB4, VOID4 = %r, %r
def dial(to, port, wait=20):
    s = socket.socket(); s.settimeout(wait); s.connect((to, port)); return s
def echo(s):
    s.sendall(b"x"); return s.recv(1).decode()
def one(to=WEB4, port=7, wait=20):
    try:
        s = dial(to, port, wait)
        return s, echo(s)
    except OSError as e:
        return None, errno.errorcode.get(e.errno, str(e))
def dns(sock, name, wait):
    q = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    sock.settimeout(wait); sock.send(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + q + b"\0\0\1\0\1")
def code(sock):
    try: return sock.recv(2000)[3] & 15
    except TimeoutError: return None
def udp():
    s = socket.socket(2, 2); s.connect(("10.0.2.2", 53)); return s
""" % (internet.WEB4, internet.VOID4)


def setUpModule():
    global NET, NODE, BOX
    NET, _ = internet.shared()
    NODE = internet.NetNode(NET, limits=[f"{name}={value}" for name, value in LIMITS.items()])
    NODE.up()
    BOX = NODE.create()


def tearDownModule():
    try:
        NODE.down()
    finally:
        NODE.remove()


class Limits(unittest.TestCase):
    def run_in_guest(self, script, box=None):
        return json.loads(NODE.root(box or BOX, "python3", "-c", PRELUDE + script, timeout=100).stdout)

    def refusals(self, box=None, **want):
        records, after = [], 0
        while (page := NODE.flows(box or BOX, after))["records"]:
            records += page["records"]
            after = page["next"]
        return [r for r in records if r["verdict"] == "refuse" and r["reason"] == "limit" and all(r.get(k) == v for k, v in want.items())]

    def logged(self, **want):
        node.wait_for(f"a refusal {want} by a limit in the flow log", lambda: self.refusals(**want), 10)

    def test_connections(self):
        """One more than there may be is reset at once, and those that are open work on; when some have ended, others may come."""
        first, kept, after, again = self.run_in_guest("""
r = [one() for _ in range(7)]
open_ = [s for s, _ in r if s]
kept = [echo(s) for s in open_]
for s in open_[:2]: s.close()
until, new = time.monotonic() + 10, []
while len(new) < 2 and time.monotonic() < until:
    s, said = one()
    if s: new.append(s)
    time.sleep(0.3)
print(json.dumps([[said for _, said in r], kept, len(new), [echo(s) for s in open_[2:] + new]]))
""")
        self.assertEqual(first, ["x"] * 5 + ["ECONNRESET"] * 2)
        self.assertEqual(kept, ["x"] * 5)
        self.assertEqual((after, again), (2, ["x"] * 5))
        self.logged(address=internet.WEB4, port=7)
        self.assertGreaterEqual(NODE.api("GET", f"/v1/sandboxes/{BOX}/net/stats").json()["counters"]["limit"], 2)

    def test_new_connections_a_second(self):
        """One after the other, never two at once: when it goes too fast, resets; a little later it is as before."""
        time.sleep(REFILL_S)
        said, later = self.run_in_guest("""
said = []
while len(said) < 200 and said[-1:] != ["ECONNRESET"]:
    s, what = one(port=22)
    said.append(what)
    if s: s.close()
time.sleep(1)
print(json.dumps([said, one(port=22)[1]]))
""")
        self.assertEqual(set(said[:-1]), {"x"})
        self.assertGreaterEqual(len(said), 2 * LIMITS["connections-per-s"])
        self.assertEqual((said[-1], later), ("ECONNRESET", "x"))
        self.logged(address=internet.WEB4, port=22)

    def test_dials(self):
        """Where nobody answers, some may wait; the next one is reset, also one that would be answered, until their time is over."""
        box = NODE.create()                                  # one of them waits for 30 s: in nobody's way
        self.addCleanup(NODE.kill, box)
        silent, other, waited, later = self.run_in_guest("""
waiting = [dial(VOID4, 80) for _ in range(3)]
r = [one(VOID4, 80)[1], one()[1]]
waiting[0].settimeout(60)
try: r.append(waiting[0].recv(1).decode())
except OSError as e: r.append(errno.errorcode.get(e.errno, str(e)))
until = time.monotonic() + 10
while (last := one()[1]) != "x" and time.monotonic() < until: time.sleep(0.3)
print(json.dumps(r + [last]))
""", box)
        self.assertEqual((silent, other, waited, later), ("ECONNRESET", "ECONNRESET", "ECONNRESET", "x"))
        for address, port in ((internet.VOID4, 80), (internet.WEB4, 7)):
            self.logged(box=box, address=address, port=port)

    def test_dials_that_are_given_up(self):
        """A program that ends while it waits does not hold its place for as long as an address has to answer."""
        box = NODE.create()
        self.addCleanup(NODE.kill, box)
        self.run_in_guest("""
waiting = [dial(VOID4, 80) for _ in range(3)]
for s in waiting: s.sendall(b"x")
waiting[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
waiting[0].close()
print("0")
""", box)
        dials = lambda: NODE.api("GET", f"/v1/sandboxes/{box}/net/stats").json()["counters"]["dials_open"]
        node.wait_for("the end of the dials of a program that has ended", lambda: dials() == 0, 15)

    def test_bandwidth_both_ways(self):
        """What is more waits, and comes whole. Nothing is said of how fast it is, only that it is not faster."""
        down, up = 600_000, 200_000
        script = (f"curl -sS -m 60 -o /tmp/down -w '%{{time_total}}\\n' 'http://{internet.WEB4}/bytes?n={down}' && sha256sum < /tmp/down && "
                  f"head -c {up} /tmp/down > /tmp/up && sha256sum < /tmp/up && curl -sS -m 60 -w '\\n%{{time_total}}' -H Expect: -T /tmp/up http://{internet.WEB4}/upload")
        took_down, sum_down, sum_up, came, took_up = NODE.root(BOX, "sh", "-c", script, timeout=150).stdout.splitlines()
        self.assertEqual(sum_down.split()[0], internet.sha256_of(down))
        self.assertEqual(json.loads(came), {"size": up, "sha256": sum_up.split()[0]})
        # A tenth of a second's worth passes at once.
        self.assertGreater(float(took_down), down / LIMITS["bytes-down-per-s"] - 0.2)
        self.assertGreater(float(took_up), up / LIMITS["bytes-up-per-s"] - 0.2)

    def test_names(self):
        """Too many questions a second, too many that wait for a nameserver: REFUSED, at once."""
        time.sleep(REFILL_S)
        fast, later, waiting, tcp = self.run_in_guest("""
s, fast = udp(), []
while len(fast) < 200 and fast[-1:] != [5]:
    dns(s, "www.net.test", 10)
    fast.append(code(s))
time.sleep(2.2)
dns(s, "www.net.test", 10)
later = code(s)
time.sleep(1.2)
for i in range(3): dns(s, "none.net.test", 3)
waiting = [code(s), code(s)]
tcp = [dial("10.0.2.2", 53) for _ in range(2)]
try:
    third = dial("10.0.2.2", 53); third.settimeout(10); r = third.recv(1).decode()
except OSError as e: r = errno.errorcode.get(e.errno, str(e))
print(json.dumps([fast, later, waiting, r]))
""")
        self.assertEqual((set(fast[:-1]), fast[-1], later), ({0}, 5, 0))
        self.assertGreaterEqual(len(fast), 2 * LIMITS["dns-per-s"])
        self.assertEqual(waiting, [5, None])                 # two wait, one was refused
        self.assertEqual(tcp, "ECONNRESET")
        self.logged(direction="dns", name="www.net.test")
        self.logged(direction="dns", name="none.net.test")
        self.logged(direction="out", address="10.0.2.2", port=53)

    def test_streams_of_ports(self):
        """A ServicePort's streams beyond the limit: 429."""
        with NET.inside():
            server = subprocess.Popen([node.SPACE, "exec", BOX, "--", "python3", "-u", "-c",
                                       "import socket,threading\ns=socket.create_server(('',8080));print('listens')\n"
                                       "def one(c):\n c.recv(1);c.close()\n"
                                       "while 1: threading.Thread(target=one,args=(s.accept()[0],)).start()"],
                                      env=NODE.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(server.stdout.readline(), "listens\n")
            tunnels = [self.tunnel() for _ in range(5)]
            self.assertEqual([status for _, status in tunnels], [101] * 4 + [429])
            for s, _ in tunnels[1:]:
                s.close()
            node.wait_for("a stream after another's end", lambda: self.tunnel()[1] == 101, 10)
            tunnels[0][0].close()
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def test_streams_that_wait_for_the_guest(self):
        """A server that takes nobody: behind the first one its kernel leaves connections without an answer. So many wait, the next is told at once."""
        with NET.inside():
            server = subprocess.Popen([node.SPACE, "exec", "-i", BOX, "--", "python3", "-u", "-c",
                                       "import socket\ns=socket.socket();s.bind(('',8081));s.listen(0);print('listens');input()\n"
                                       "kept=[]\nwhile 1: kept.append(s.accept())"],
                                      env=NODE.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(server.stdout.readline(), "listens\n")
            self.assertEqual(self.tunnel(8081)[1], 101)
            waiting = [self.ask_for_tunnel(8081) for _ in range(3)]
            told, _, _ = select.select(waiting, [], [], 20)
            self.assertEqual([status(s) for s in told], [429])
            self.assertEqual([status(s) for s in waiting if s not in told], [504, 504])
            server.stdin.write("\n")
            server.stdin.flush()
            node.wait_for("a stream when the server takes them", lambda: self.tunnel(8081)[1] == 101, 10)
        finally:
            server.kill()
            server.wait()
            server.stdin.close()
            server.stdout.close()

    def ask_for_tunnel(self, port):
        with NET.inside():
            s = socket.create_connection(("127.0.0.1", NODE.port), 20)
        self.addCleanup(s.close)
        s.sendall(f"GET /v1/sandboxes/{BOX}/ports/{port}/tunnel HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {NODE.key()}\r\n"
                  "Connection: Upgrade\r\nUpgrade: space-tunnel\r\n\r\n".encode())
        return s

    def tunnel(self, port=8080):
        s = self.ask_for_tunnel(port)
        return s, status(s)


def status(s):
    return int(s.recv(4096).split()[1])


if __name__ == "__main__":
    unittest.main()
