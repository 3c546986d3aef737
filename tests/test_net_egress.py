"""The way out, as a program in the sandbox sees it: names, connections, transfers, ends, refusals, the flow log (S-3, S-4, L-7)."""

import json
import os
import signal
import subprocess
import threading
import unittest
import urllib.parse

from harness import grpc, internet, node

GET = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
REFUSED = ("ECONNRESET", "ECONNREFUSED", "EPIPE")            # what a program is told at once
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"          # of the guest, with the internet's among them
FAST_MS = 4000                                               # far below any time-out of a dial, far above a reset


def setUpModule():
    global NET, NODE, BOX
    NET, NODE = internet.shared()
    BOX = NODE.ready()


def tearDownModule():
    NODE.kill(BOX)


class Base(unittest.TestCase):
    def setUp(self):
        NET.net.clear()
        NET.host.clear()

    def ask(self, *orders, box=None, timeout=200):
        return NODE.ask(box or BOX, list(orders), timeout)

    def seen(self, **want):
        """What came to the internet's servers with these fields."""
        return [s for s in NET.net.seen() if all(s.get(k) == v for k, v in want.items())]

    def refused(self, r, what):
        self.assertIn(r.get("error"), REFUSED, f"{what}: {r}")
        self.assertLess(r["ms"], FAST_MS, f"{what}: {r}")

    def logged(self, box=None, **want):
        """A record of the flow log with these fields; waits for it."""
        found = []

        def look():
            found[:] = [r for r in all_records(box or BOX) if all(r.get(k) == v for k, v in want.items())]
            return found

        node.wait_for(f"a record {want} in the flow log", look)
        return found


def all_records(box):
    records, after = [], 0
    while (page := NODE.flows(box, after))["records"]:
        records += page["records"]
        after = page["next"]
    return records


class Tcp(Base):
    def test_by_address_in_both_families(self):
        for address in (internet.WEB4, internet.WEB6):
            with self.subTest(address):
                r, = self.ask({"op": "tcp", "to": address, "port": 80, "send": GET})
                self.assertIn(f"hello from {address}", r.get("data", ""), r)
                # It came from the node's own address: nothing of the sandbox's network is seen.
                came, = self.seen(kind="tcp", to=address)
                self.assertEqual(came["from"], internet.NODE6 if ":" in address else internet.NODE4)

    def test_by_name_with_http_and_https(self):
        script = "for u in http://www.net.test/hello https://www.net.test/hello 'https://[%s]/hello' https://%s/hello; do curl -sS -m 20 \"$u\"; done" % (internet.WEB6, internet.WEB4)
        r, = self.ask({"op": "sh", "script": script + "; curl -sS4 -m 20 http://v4.net.test/hello; curl -sS6 -m 20 http://v6.net.test/hello", "timeout": 50})
        self.assertEqual(r["out"].count("hello from"), 6, r["out"])
        # What the client's TLS checks is what the server has: nobody stands between them.
        with self.subTest("a certificate for another name"):
            r, = self.ask({"op": "sh", "script": "curl -sS -m 20 https://other.test/hello --resolve other.test:443:%s" % internet.WEB4})
            self.assertIn("other.test", r["out"])
            self.assertNotIn("hello", r["out"])

    def test_download_and_upload(self):
        size = 20_000_000
        script = ("curl -sS -m 100 -o /tmp/down 'http://www.net.test/bytes?n=%d' && sha256sum < /tmp/down && curl -sS -m 100 -T /tmp/down http://www.net.test/upload" % size)
        r, = self.ask({"op": "sh", "script": script, "timeout": 220}, timeout=230)
        lines = r["out"].splitlines()
        self.assertEqual(lines[0].split()[0], internet.sha256_of(size), r)
        self.assertEqual(json.loads(lines[1]), {"size": size, "sha256": internet.sha256_of(size)})
        done = [f for f in self.logged(name="www.net.test", direction="out", verdict="allow") if f.get("endTime")]
        self.assertTrue([f for f in done if f["bytesDown"] >= size], done)
        self.assertTrue([f for f in done if f["bytesUp"] >= size], done)

    def test_both_ways_at_once(self):
        """A full-duplex echo of 3 MB: neither side waits for the other for good."""
        script = ("import socket,threading,hashlib,os\n"
                  "s=socket.create_connection(('%s',7));d=os.urandom(3000000)\n"
                  "threading.Thread(target=lambda:(s.sendall(d),s.shutdown(1))).start()\n"
                  "g=b''\n"
                  "while p:=s.recv(65536): g+=p\n"
                  "print(g==d+b'\\nend 3000000\\n',len(g))" % internet.WEB4)
        self.assertEqual(NODE.root(BOX, "python3", "-c", script, timeout=100).stdout, "True 3000013\n")

    def test_slow_cut_and_half_closed(self):
        slow, cut, early, closed, kept, other = self.ask(
            {"op": "sh", "script": "curl -sS -m 20 'http://www.net.test/slow?n=8&ms=50'"},
            {"op": "tcp", "to": internet.WEB4, "port": 9, "send": "x\n", "half": True},
            {"op": "sh", "script": "curl -sS -m 20 -o /dev/null 'http://www.net.test/cut?n=1000'"},
            {"op": "sh", "script": "curl -sS -m 20 -o /dev/null 'http://www.net.test/close?n=1000'"},
            {"op": "tcp", "to": internet.WEB6, "port": 7, "send": "abc", "half": True},
            {"op": "sh", "script": "python3 -c \"import socket,time\ns=socket.create_connection(('%s',81),10)\nd=b''\nwhile p:=s.recv(100): d+=p\n"
                                   "time.sleep(0.5);s.sendall(b'still mine');s.close();print(d)\"" % internet.WEB4})
        self.assertEqual(slow["out"].split(), [str(i) for i in range(8)])
        # A reset stays a reset, an end an end: a program can tell a whole answer from a cut one.
        self.assertIn(cut.get("error"), ("ECONNRESET", "ENOTCONN"), cut)      # by recv(2), or already by shutdown(2)
        self.assertEqual(early["code"], 56, early)           # curl: failure in receiving (reset)
        self.assertEqual(closed["code"], 18, closed)         # curl: the transfer ended early
        self.assertEqual(kept.get("data"), "abc\nend 3\n", kept)
        self.assertEqual(other["out"].strip(), "b'no more from here\\n'", other)
        node.wait_for("what was sent after the server's end", lambda: self.seen(kind="half-closed", data="still mine"))

    def test_the_guest_cuts(self):
        """Its reset ends the connection out there too, and a connection that it leaves open stays."""
        before = {f["number"] for f in all_records(BOX)}
        script = ("import socket,struct\ns=socket.create_connection(('%s',7));s.sendall(b'x');s.recv(1)\n"
                  "s.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0));s.close()" % internet.WEB4)
        NODE.root(BOX, "python3", "-c", script)
        node.wait_for("the flow has ended", lambda: [f for f in all_records(BOX) if f["number"] not in before and f["port"] == 7 and f.get("endTime")])

    def test_nothing_listens_and_nothing_answers(self):
        closed4, closed6, silent = self.ask(
            {"op": "tcp", "to": internet.WEB4, "port": 4444, "send": GET}, {"op": "tcp", "to": internet.WEB6, "port": 4444, "send": GET},
            {"op": "tcp", "to": internet.VOID4, "port": 80, "send": GET, "timeout": 3})
        self.refused(closed4, "a closed port")
        self.refused(closed6, "a closed port")
        self.assertEqual(silent.get("error"), "ETIMEDOUT", silent)
        # Who hangs there keeps nobody from going elsewhere.
        r, = self.ask({"op": "reach", "targets": [[internet.VOID4, 80]] * 60 + [[internet.WEB4, 80]] * 5, "timeout": 5})
        self.assertEqual(sum("hello" in x.get("data", "") for x in r["results"]), 5, r)


class Names(Base):
    def test_the_resolver_works_unchanged(self):
        www, alias, v4, v6, nx, fail = self.ask(*({"op": "look_up", "name": f"{n}.net.test"} for n in ("www", "alias", "v4", "v6", "nx", "servfail")))
        self.assertEqual(www.get("addresses"), sorted([internet.WEB4, internet.WEB6]))
        self.assertEqual(alias.get("addresses"), sorted([internet.WEB4, internet.WEB6]))
        self.assertEqual((v4.get("addresses"), v6.get("addresses")), ([internet.WEB4], [internet.WEB6]))
        self.assertEqual(nx.get("error"), "-2", nx)          # EAI_NONAME
        self.assertEqual(fail.get("error"), "-3", fail)      # EAI_AGAIN: try again, which is not "there is no such name"
        r, = self.ask({"op": "sh", "script": "getent ahosts www.net.test; LOCALDOMAIN='nowhere.test net.test' getent hosts alias; getent hosts nx.net.test; echo $?"})
        self.assertIn(internet.WEB4, r["out"])
        self.assertRegex(r["out"], r"(?m)^\S+ +www\.net\.test alias")
        self.assertTrue(r["out"].endswith("2\n"), r["out"])
        self.assertTrue(self.seen(kind="dns", name="alias.nowhere.test"), "the search list")

    def test_truncation_and_tcp(self):
        """An answer that is too long for a datagram: the mark, the question again over TCP, all 60 addresses."""
        small, whole, system = self.ask({"op": "dns", "name": "many.net.test"}, {"op": "dns", "name": "many.net.test", "over": "tcp"},
                                        {"op": "look_up", "name": "many.net.test", "family": 2})
        self.assertTrue(small.get("truncated"), small)
        self.assertLessEqual(small["size"], 512)
        self.assertEqual(len(whole.get("answers", [])), 60, whole)
        self.assertEqual(len(system.get("addresses", [])), 60, system)

    def test_answers_that_are_late_or_never_come(self):
        slow, = self.ask({"op": "dns", "name": "slow1.net.test", "timeout": 10})
        self.assertEqual([a[2] for a in slow.get("answers", [])], [internet.WEB4], slow)
        # Ten questions that nobody answers do not stop one that is answered.
        script = "for i in 1 2 3 4 5 6 7 8 9 10; do getent hosts none.net.test >/dev/null 2>&1 & done; getent ahosts www.net.test | head -1"
        r, = self.ask({"op": "sh", "script": script, "timeout": 40})
        self.assertIn("9.9.20.80" if "9.9.20.80" in r["out"] else "2a10:9999:20::80", r["out"])
        self.assertLess(r["ms"], 15000)

    def test_too_many_questions(self):
        """More than the limit (docs/network.md): the others are answered REFUSED, not left without an answer; then it is as before."""
        script = ("import socket,struct,time,collections\n"
                  "s=socket.socket(2,2);s.connect(('10.0.2.2',53));s.setsockopt(1,8,1<<20);c=collections.Counter()\n"
                  "q=lambda i:struct.pack('!6H',i,0x100,1,0,0,0)+b'\\x07unique%d\\x03net\\x04test\\0\\0\\1\\0\\1'%(i%10)\n"
                  "s.setblocking(False)\n"
                  "def take():\n"
                  " try:\n"
                  "  while 1: c[s.recv(2000)[3]&15]+=1\n"
                  " except BlockingIOError: pass\n"
                  "for i in range(50000):\n"
                  " try: s.send(q(i))\n"
                  " except BlockingIOError: pass\n"
                  " if i%20==0: take()\n"
                  " if i>2500 and c[5]: break\n"
                  "time.sleep(2);take();print(c[0],c[5],sum(c.values()))")
        ok, refused, total = map(int, NODE.root(BOX, "python3", "-c", script, timeout=150).stdout.split())
        self.assertGreater(ok, 0)
        self.assertGreater(refused, 0)
        self.assertEqual(ok + refused, total)
        self.logged(direction="dns", verdict="refuse", reason="limit")
        node.wait_for("questions are answered again", lambda: self.ask({"op": "dns", "name": "www.net.test"})[0].get("answers"))

    def test_what_is_no_question(self):
        """Noise on port 53 gets an error or silence, and the next question its answer."""
        script = ("import socket,os\n"
                  "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
                  "for n in (0,1,5,11,12,13,30,100,512,1400):\n s.sendto(os.urandom(n),('10.0.2.2',53))\n"
                  "t=socket.create_connection(('10.0.2.2',53));t.sendall(b'\\xff\\xff'+os.urandom(3000));t.close()")
        r, good = self.ask({"op": "sh", "script": f"python3 -c \"{script}\""}, {"op": "dns", "name": "www.net.test"})
        self.assertEqual([a[2] for a in good.get("answers", [])], [internet.WEB4], (r, good))


class Refusals(Base):
    def test_fast_and_in_the_log(self):
        r4, r6, name = self.ask({"op": "tcp", "to": "10.1.2.3", "port": 80, "send": GET}, {"op": "tcp", "to": "fd00::1", "port": 80, "send": GET},
                                {"op": "look_up", "name": "private.net.test"})
        self.refused(r4, "a private address")
        self.refused(r6, "a private address")
        self.assertIn("error", name)
        for address in ("10.1.2.3", "fd00::1"):
            record = self.logged(address=address, verdict="refuse", direction="out")[-1]
            self.assertEqual((record["direction"], record["port"], record["reason"]), ("out", 80, "floor"), record)
        self.logged(direction="dns", name="private.net.test", verdict="refuse", reason="floor")
        out = NODE.space("net", "log", BOX).stdout
        self.assertIn("10.1.2.3", out)
        self.assertIn("floor", out)
        listed = json.loads(NODE.space("net", "log", BOX, "--json").stdout)
        self.assertTrue([r for r in listed if r.get("address") == "10.1.2.3"], listed)

    def test_what_the_operator_opened(self):
        v4, v6, name, beside = self.ask({"op": "tcp", "to": "10.77.1.2", "port": 80, "send": GET}, {"op": "tcp", "to": "fd77::1", "port": 80, "send": GET},
                                        {"op": "look_up", "name": "opened.net.test"}, {"op": "tcp", "to": "10.78.0.1", "port": 80, "send": GET})
        self.assertIn("hello from 10.77.1.2", v4.get("data", ""), v4)
        self.assertIn("hello from fd77::1", v6.get("data", ""), v6)
        self.assertEqual(name.get("addresses"), sorted(["10.77.1.2", "fd77::1"]))
        self.refused(beside, "beside the opened range")

    def test_what_the_operator_closed(self):
        v4, v6, nat64, name = self.ask(*({"op": "tcp", "to": a, "port": 80, "send": GET} for a in ("9.9.77.1", "2a10:9999:77::1", "64:ff9b::9.9.77.1")),
                                       {"op": "look_up", "name": "denied.net.test"})
        for r in (v4, v6, nat64):
            self.refused(r, "closed by the operator")
        self.assertEqual(name.get("addresses"), [internet.WEB4])
        self.assertTrue(self.logged(address="9.9.77.1", direction="out", verdict="refuse", reason="floor"))

    def test_udp_and_icmp_are_told_at_once(self):
        NET.net.capture()
        udp4, udp6, ping4, ping6 = self.ask(
            {"op": "udp", "to": internet.WEB4, "port": 7}, {"op": "udp", "to": internet.WEB6, "port": 7},
            {"op": "sh", "script": "ping -c 1 -W 2 " + internet.WEB4}, {"op": "sh", "script": "ping -6 -c 1 -W 2 " + internet.WEB6})
        packets = NET.net.packets()
        for r in (udp4, udp6):
            self.assertIn(r.get("error"), ("EHOSTUNREACH", "EACCES", "ECONNREFUSED", "ENETUNREACH", "EPERM"), r)
            self.assertLess(r["ms"], FAST_MS)
        self.assertNotEqual((ping4["code"], ping6["code"]), (0, 0))
        self.assertEqual([p for p in packets if p["proto"] in (1, 58, 17) and p.get("dst") in (internet.WEB4, internet.WEB6)], [])
        # The same datagram from the node's machine arrives: the servers and the capture see such things.
        NET.net.capture()
        with NET.inside():
            subprocess.run(["python3", "-c", f"import socket;s=socket.socket(2,2);s.sendto(b'x',('{internet.WEB4}',7))"], check=True)
        node.wait_for("the control", lambda: [p for p in NET.net.packets(end=False) if p.get("dst") == internet.WEB4 and p["proto"] == 17])
        NET.net.packets()

    def test_counters(self):
        r = NODE.api("GET", f"/v1/sandboxes/{BOX}/net/stats")
        self.assertEqual(r.status, 200, r.body)
        counters = r.json()
        counters = counters.get("counters", counters)
        self.assertTrue(counters and all(isinstance(v, int) for v in counters.values()), counters)
        for name in counters:
            self.assertIn(name, NODE.space("net", "stats", BOX, "--json").stdout)

    def test_the_log_is_the_tenants_own(self):
        stranger = NODE.new_key("stranger")
        for path in ("log", "stats"):
            self.assertEqual(NODE.api("GET", f"/v1/sandboxes/{BOX}/net/{path}", key=stranger).status, 404)

    def test_follow(self):
        with NET.inside():
            p = subprocess.Popen([node.SPACE, "net", "log", BOX, "--follow"], env=NODE.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            self.ask({"op": "tcp", "to": "10.5.5.5", "port": 555, "send": GET})
            timer = threading.Timer(90, p.kill)
            timer.start()
            self.assertTrue(any("10.5.5.5" in line for line in iter(p.stdout.readline, "")), "the refusal is not followed")
            timer.cancel()
        finally:
            p.kill()
            p.wait()
            p.stdout.close()


class Grpc(Base):
    """A library in the guest as the client, another one out there as the server."""

    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(grpc.Server(NET).close)
        grpc.put(NODE, BOX)
        with NET.inside():
            cls.client = grpc.Client("grpc-js", NODE, BOX)
        cls.addClassCleanup(cls.client.close)

    def test_calls(self):
        """By name, in both families, over TLS and without."""
        for ca, port in ((CERTIFICATES, grpc.TLS_PORT), (None, grpc.PORT)):
            for name, node_address, check in (("v4.net.test", internet.NODE4, grpc.check_calls if ca else grpc.check_some), ("v6.net.test", internet.NODE6, grpc.check_some)):
                with self.subTest(name, port=port):
                    self.client.ask("open", target=f"{name}:{port}", ca=ca)
                    peer = check(self, self.client)
                    self.client.ask("close")
                    self.assertIn(node_address, urllib.parse.unquote(peer))
                    self.logged(name=name, port=port, direction="out", verdict="allow")

    def test_names(self):
        """The client's check of the certificate is the only one, and it is its own."""
        self.client.ask("open", target=f"{internet.WEB4}:{grpc.TLS_PORT}", name="other.test", ca=CERTIFICATES)
        r = self.client.ask("unary", size=10)
        self.client.ask("close")
        self.assertEqual(r["code"], "UNAVAILABLE")
        self.assertIn("other.test", r["details"])


class NoInternet(Base):
    def test_nothing_gets_out(self):
        r = NODE.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600, "allow_internet_access": False})
        self.assertEqual(r.status, 201, r.body)
        box = r.json()["sandboxID"]
        try:
            self.assertIs(NODE.api("GET", f"/sandboxes/{box}").json().get("allowInternetAccess"), False)
            with open(f"{node.ROOT}/tests/attack/net.py", "rb") as f:
                NODE.put(box, "/root/net.py", f.read())
            NET.net.quiet(3)
            NET.net.clear()
            NET.net.capture()
            results = self.ask(*({"op": "tcp", "to": a, "port": p, "send": GET} for a, p in ((internet.WEB4, 80), (internet.WEB6, 80), (internet.WEB4, 443), ("10.77.1.2", 80),
                                                                                              (internet.DNS4, 53))),
                               {"op": "look_up", "name": "www.net.test"}, {"op": "dns", "name": "www.net.test", "over": "tcp"}, {"op": "dns", "name": "www.net.test", "server": internet.DNS4}, box=box)
            packets = NET.net.packets()
            for r in results[:4]:
                self.refused(r, "without internet")
            self.assertTrue(all(not r.get("data") and not r.get("answers") and "addresses" not in r for r in results), results)
            self.assertEqual(self.seen(), [])
            self.assertEqual([p for p in packets if p["proto"] in (6, 17, 1)], [])
            self.logged(box, address=internet.WEB4, verdict="refuse")
            # The other one goes on as before.
            self.assertIn("data", self.ask({"op": "tcp", "to": internet.WEB4, "port": 80, "send": GET})[0])
        finally:
            NODE.kill(box)


class TheGateway(Base):
    """Its own life: what becomes of it when it is killed, and of the sandbox's connections."""

    def test_killed(self):
        """Its connections end, nothing gets out in between, another one takes its place; the sandbox's log says so."""
        box = NODE.ready()
        try:
            s = connect_inside(box, "import socket,time\ns=socket.create_connection(('%s',7))\ns.sendall(b'x');s.recv(1)\nprint('open',flush=True)\n"
                                    "try:\n print('end',s.recv(1))\nexcept OSError as e: print('cut',e.errno,flush=True)" % internet.WEB4)
            self.assertEqual(s.stdout.readline(), "open\n")
            for round in range(3):
                pids = node.wait_for("a gateway", lambda: NODE.gateway_pids(box))
                os.kill(pids[round % len(pids)], signal.SIGKILL)
                if round == 0:
                    self.assertRegex(s.stdout.readline(), r"^cut 104|^end b''")
                node.wait_for("all of it has ended", lambda: not set(pids) & set(NODE.gateway_pids(box)))

                def again():
                    r, = self.ask({"op": "tcp", "to": internet.WEB4, "port": 80, "send": GET, "timeout": 3}, box=box)
                    return "hello" in r.get("data", "")

                node.wait_for("the way out is there again", again)
            self.assertEqual(NODE.state_of(box), "running")
            self.assertEqual(NODE.detail(box)["generation"], 1)
            events = [e["text"] for e in NODE.api("GET", f"/v1/sandboxes/{box}/logs").json()["events"]]
            self.assertEqual(sum("gateway was started again" in e for e in events), 3, events)
        finally:
            NODE.kill(box)
            s.wait(20)
            s.stdout.close()
        self.assertEqual(NODE.gateway_pids(box), [])


def connect_inside(box, script):
    with NET.inside():
        return subprocess.Popen([node.SPACE, "exec", box, "--", "python3", "-c", script], env=NODE.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    unittest.main()
