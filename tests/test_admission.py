"""Which requests are let in, with capabilities of the tests' own making put before node-api (K-1 to K-7, R-1 to R-3, I-2)."""

import http.client
import json
import os
import signal
import struct
import threading
import time
import unittest

from harness import cap, connect, node

PAYLOAD = json.dumps({"process": {"cmd": "/bin/true", "args": []}, "stdin": False}).encode()
START = struct.pack(">BI", 0, len(PAYLOAD)) + PAYLOAD
CONNECT = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.signer = cap.Signer(cls.node)
        cls.api = cls.signer.api
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def console(self, box=None):
        return str(self.node.api("GET", f"/v1/sandboxes/{box or self.box}/logs").json())

    def refused(self, token, verdict, what="", method="GET", path="/health", body=None, **kw):
        """Refused with the verdict; `verdict` None: either one."""
        r = self.api.forward(token, method, path, body, **kw)
        self.assertEqual(r.status, 421, f"{what}: {r.body!r}")
        if verdict:
            self.assertEqual(r.headers["Space-Refusal"], verdict, f"{what}: {r.body!r}")
        else:
            self.assertIn(r.headers["Space-Refusal"], ("deny", "refresh-route"), what)
        self.assertIsInstance(r.json(), dict, what)


class Admission(Base):
    def test_the_right_capability_is_let_in(self):
        r = self.api.forward(self.signer.make(self.box, acc="read"))
        self.assertEqual(r.status, 204, r.body)
        r = self.api.forward(self.signer.make(self.box), "POST", "/process.Process/List", b"{}", {"Content-Type": "application/json"})
        self.assertEqual(r.status, 200, r.body)

    def test_another_identity(self):
        other = self.node.create()
        try:
            mine, theirs = self.signer.claims(self.box), self.signer.claims(other)
            cases = [
                ("a later generation", {"gen": mine["gen"] + 1}, "refresh-route"),
                ("a much later generation", {"gen": mine["gen"] + 7}, "refresh-route"),
                ("another activation", {"act": theirs["act"]}, "refresh-route"),
                ("a later attempt", {"att": mine["att"] + 1}, "refresh-route"),
                ("another worker", {"aud": "3b241101-e2bb-4255-8caf-4136c566a962"}, "refresh-route"),
                ("another substrate", {"sub": "k8s", "pod": "3b241101-e2bb-4255-8caf-4136c566a962"}, None),
                ("another tenant", {"ten": "someone-else"}, "deny"),
                ("another sandbox with this one's execution", {"sbx": other}, "refresh-route"),
                ("a sandbox that never was", {"sbx": "i" + "0" * 20}, "refresh-route"),
            ]
            for what, change, verdict in cases:
                with self.subTest(what):
                    self.refused(self.signer.sign({**mine, **change}), verdict, what)
            # And what was not changed is let in.
            self.assertEqual(self.api.forward(self.signer.sign(mine)).status, 204)
        finally:
            self.node.kill(other)

    def test_an_older_and_a_newer_generation(self):
        box = self.node.create()
        try:
            one = self.signer.claims(box)
            self.assertEqual(one["gen"], 1)
            self.refused(self.signer.sign({**one, "gen": 2}), "refresh-route", "2 where 1 is installed")
            self.node.space("start", box)
            two = self.signer.claims(box)
            self.assertEqual(two["gen"], 2)
            self.assertNotEqual(one["act"], two["act"])
            self.refused(self.signer.sign(one), "refresh-route", "1 where 2 is installed")
            self.refused(self.signer.sign({**two, "gen": 1}), "refresh-route", "1 with the activation of 2")
            self.assertEqual(self.api.forward(self.signer.sign(two)).status, 204)
            self.node.space("stop", box)
            self.refused(self.signer.sign(two), None, "of a stopped execution")
        finally:
            self.node.kill(box)
        self.refused(self.signer.sign({**two, "iat": int(time.time())}), None, "of a deleted sandbox")

    def test_without_and_with_a_malformed_capability(self):
        good = self.signer.make(self.box)
        for what, token in (("none", None), ("empty", ""), ("a word", "x"), ("another version", good.replace("v4.", "v2.", 1)),
                            ("local", good.replace(".public.", ".local.", 1)), ("no footer", good.rsplit(".", 1)[0]),
                            ("a part more", good + ".e30"), ("padded", good + "="), ("a blank inside", good[:40] + " " + good[41:]),
                            ("cut", good[:-1]), ("cut in half", good[:len(good) // 2]), ("a jwt", "eyJhbGciOiJub25lIn0.e30.")):
            with self.subTest(what):
                self.refused(token, "deny", what)
        r = self.api.forward(good + "A" * 2048)
        self.assertIn(r.status, (400, 421, 431))

    def test_altered_bytes(self):
        message, signature, footer = cap.take_apart(self.signer.make(self.box, acc="read"))
        self.assertEqual(self.api.forward(cap.put_together(message, signature, footer)).status, 204)
        flip = lambda data, i: data[:i] + bytes([data[i] ^ 1]) + data[i + 1:]
        for i in range(len(message)):
            self.refused(cap.put_together(flip(message, i), signature, footer), "deny", f"byte {i} of the claims")
        for i in range(0, 64, 3):
            self.refused(cap.put_together(message, flip(signature, i), footer), "deny", f"byte {i} of the signature")
        for i in range(len(footer)):
            self.refused(cap.put_together(message, signature, flip(footer, i)), "deny", f"byte {i} of the footer")
        self.refused(cap.put_together(message.replace(b'"read"', b'"write"'), signature, footer), "deny", "more access")

    def test_claims(self):
        right = self.signer.claims(self.box)
        for name in right:
            self.refused(self.signer.sign({k: v for k, v in right.items() if k != name}), "deny", f"without {name}")
            wrong = str(right[name]) if isinstance(right[name], int) else 1
            self.refused(self.signer.sign({**right, name: wrong}), "deny", f"{name} of another type")

        text = json.dumps(right)
        for what, message in (("one more claim", json.dumps({**right, "adm": True})), ("a claim twice", text[:-1] + f', "gen": {right["gen"]}}}'),
                              ("a longer life", json.dumps({**right, "exp": right["exp"] + 1})), ("a negative generation", json.dumps({**right, "gen": -1})),
                              ("generation 0", json.dumps({**right, "gen": 0})), ("a fraction", json.dumps({**right, "gen": right["gen"] + 0.0})),
                              ("another issuer", json.dumps({**right, "iss": "spice"})), ("no object", "[]"), ("no JSON", "x"), ("nothing", ""),
                              ("a port", json.dumps({**right, "prt": 80})), ("an unknown purpose", json.dumps({**right, "pur": "all"}))):
            self.refused(self.signer.sign(message.encode()), "deny", what)

    def test_purpose_and_access(self):
        self.refused(self.signer.make(self.box, pur="lifecycle", acc="start"), "deny", "life cycle for a request")
        self.refused(self.signer.make(self.box, pur="lifecycle"), "deny", "life cycle without an operation")
        self.refused(self.signer.make(self.box, pur="service-port", prt=49983, pro="http"), "deny", "a service port for the control port")
        read = self.signer.make(self.box, acc="read")
        for method, path in (("POST", "/files?path=/tmp/refused"), ("POST", "/process.Process/Start"), ("DELETE", "/files"), ("POST", "/health"), ("GET", "/other")):
            self.refused(read, "deny", f"{method} {path} with read", method, path, b"x" if method == "POST" else None)
        self.assertEqual(connect.run(self.node, self.box, "ls /tmp/refused 2>/dev/null | wc -l")[0].strip(), "0")
        # A capability for requests does not end a sandbox, nor does one for another kind of key.
        r = self.api.request("POST", "/lifecycle/delete", "lifecycle", self.signer.make(self.box), b"{}")
        self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, "deny"), r.body)
        # One for an operation is for that one alone.
        for has, wanted in (("start", "delete"), ("start", "stop"), ("console", "delete"), ("resume", "pause"), ("pause", "console"), ("write", "delete")):
            r = self.api.request("POST", f"/lifecycle/{wanted}", "lifecycle", self.signer.make(self.box, pur="lifecycle", acc=has), b"{}")
            self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, "deny"), f"{has} used as {wanted}: {r.body}")
        r = self.api.request("POST", "/lifecycle/console", "lifecycle", self.signer.make(self.box, pur="lifecycle", acc="console"), b"{}")
        self.assertEqual(r.status, 200, r.body)
        self.assertEqual(self.node.state_of(self.box), "running")

    def test_keys(self):
        claims = self.signer.claims(self.box)
        self.refused(self.signer.stranger(claims, self.signer.kid()), "deny", "a stranger's key under a known name")
        self.refused(self.signer.stranger(claims, "api-999999"), "deny", "an unknown key")
        self.refused(self.signer.sign(claims, kid="api-999999"), "deny", "the right key under an unknown name")
        self.refused(self.signer.sign(claims, self.signer.newest("ctl")), "deny", "the key of space-control, which may sign life-cycle operations only")
        self.refused(self.signer.sign(claims, self.signer.newest("ctl"), kid=self.signer.kid()), "deny", "under the name of another key")

    def test_times(self):
        now = int(time.time())
        make = lambda iat, exp=None: self.signer.make(self.box, iat=iat, exp=exp if exp is not None else iat + cap.LIFETIME)
        self.refused(make(now - 3600), "deny", "expired long ago")
        self.refused(make(now + 3600), "deny", "of the future")
        self.refused(make(now - 10, now - 10), "deny", "of no life time")
        # To the second: accepted while now <= exp + 15. Asked in a second that begins when all is ready; once more if it was over before the answer.
        for _ in range(20):
            now = int(time.time()) + 2
            last, late = make(now - cap.LIFETIME - cap.SKEW), make(now - cap.LIFETIME - cap.SKEW - 1)
            node.wait_for("the begin of a second", lambda: time.time() >= now)
            status, answered = self.api.forward(last).status, int(time.time())
            if answered == now:
                break
        self.assertEqual((answered, status), (now, 204), "15 s over")
        self.refused(late, "deny", "16 s over")
        node.wait_for("the next second", lambda: time.time() >= now + 1)
        self.refused(last, "deny", "it is not let in for having been let in before")

    def test_the_clock_of_the_node_decides(self):
        path = f"{self.node.run}/clock-shift-ms"
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))

        def shifted(seconds):
            with open(path + ".new", "w") as f:
                f.write(f"{int(seconds * 1000)}\n")
            os.chmod(path + ".new", 0o644)
            os.rename(path + ".new", path)

        # Each time a new one: the bounds are those of its first seconds.
        status = lambda: self.api.forward(self.signer.make(self.box)).status
        for seconds, expected in ((140, 421), (132, 204), (-20, 421), (-13, 204)):
            shifted(seconds)
            node.wait_for(f"{expected} with the clock {seconds} s on", lambda: status() == expected)
        os.unlink(path)
        # Issued 13 s from now: too far ahead for a clock that is still 13 s slow.
        ahead = lambda: self.api.forward(self.signer.make(self.box, iat=int(time.time()) + 13, exp=int(time.time()) + 13 + cap.LIFETIME)).status
        node.wait_for("the clock is right again", lambda: ahead() == 204)

    def test_refusal_comes_before_the_first_byte(self):
        pid = self.node.record(self.box)["bridge_pid"]
        mine = self.signer.claims(self.box)
        good = self.signer.sign(mine)
        bad = [("no capability", None), ("the next generation", self.signer.sign({**mine, "gen": mine["gen"] + 1})),
               ("another tenant", self.signer.sign({**mine, "ten": "someone-else"})), ("altered", good[:60] + ("A" if good[60] != "A" else "B") + good[61:]),
               ("expired", self.signer.sign({**mine, "iat": mine["iat"] - 200, "exp": mine["exp"] - 200})),
               ("another purpose", self.signer.sign({**mine, "pur": "lifecycle", "acc": "start"})), ("too little access", self.signer.sign({**mine, "acc": "read"}))]
        sock = f"{self.node.run}/sbx/{self.box}.{mine['gen']}/bridge.sock"
        os.kill(pid, signal.SIGSTOP)
        try:
            before = cap.waiting_connections(sock)
            for i, (what, token) in enumerate(bad):
                self.refused(token, None, what, "POST", "/process.Process/Start", START, request_id=f"never-{os.getpid()}-{i}", headers=CONNECT)
                self.assertEqual(cap.waiting_connections(sock), before, f"{what}: a connection waits at the bridge")
            # The same with the right capability waits at the bridge: so the check above can fail.
            answer = []
            t = threading.Thread(target=lambda: answer.append(self.api.forward(good, "POST", "/process.Process/Start", START, CONNECT, request_id=f"once-{os.getpid()}").status))
            t.start()
            node.wait_for("a connection waits at the bridge", lambda: cap.waiting_connections(sock) == before + 1)
        finally:
            os.kill(pid, signal.SIGCONT)
        t.join(90)
        self.assertEqual(answer, [200])
        node.wait_for("the admitted request in the guest's log", lambda: f"once-{os.getpid()}" in self.console())
        self.assertNotIn(f"never-{os.getpid()}", self.console())

    def test_what_a_client_says_does_not_count(self):
        """Neither a client's Space-* fields nor another sandbox's token open anything from outside."""
        other = self.node.create()
        try:
            token = self.node.api("GET", f"/sandboxes/{other}").json()["envdAccessToken"]
            r = self.node.data("POST", self.box, "/process.Process/List", {}, token=token)
            self.assertEqual(r.status, 401, r.body)
            r = self.node.data("POST", self.box, "/process.Process/List", {}, token="wrong", headers={"Space-Capability": self.signer.make(self.box), "Space-Op": "forward"})
            self.assertEqual(r.status, 401, r.body)
            # Fields of ours are taken out of what goes in and of what comes out.
            r = self.node.data("POST", self.box, "/process.Process/List", {}, headers={"Space-Op": "report", "Space-Capability": "x"})
            self.assertEqual(r.status, 200, r.body)
            self.assertFalse([k for k in r.headers if k.lower().startswith("space-")])
            for path in ("/init", "/prepare", "/shutdown", "/%69nit", "//init", "/./shutdown"):
                self.assertEqual(self.node.data("POST", self.box, path, {}).status, 404, path)
        finally:
            self.node.kill(other)


class Rotation(Base):
    RATE, CLIENTS = 50, 5

    def test_keys_rotate_under_load(self):
        token = self.node.api("GET", f"/sandboxes/{self.box}").json()["envdAccessToken"]
        with open(f"{self.node.state}/sbx/bundle.txt") as f:
            old = f.read().strip()
        stop, wrong, done = threading.Event(), [], []
        lock = threading.Lock()

        def client():
            conn = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=90)
            due = time.monotonic()
            while not stop.is_set():
                due += self.CLIENTS / self.RATE
                stop.wait(max(0, due - time.monotonic()))
                try:
                    conn.request("POST", "/process.Process/List", b"{}", {"E2b-Sandbox-Id": self.box, "E2b-Sandbox-Port": "49983",
                                                                         "X-Access-Token": token, "Content-Type": "application/json"})
                    r = conn.getresponse()
                    body = r.read()
                    failure = None if r.status == 200 else f"{r.status} {body[:200]!r}"
                except OSError as e:
                    failure = repr(e)
                    conn.close()
                with lock:
                    done.append(failure)
                    if failure:
                        wrong.append(failure)

        threads = [threading.Thread(target=client) for _ in range(self.CLIENTS)]
        for t in threads:
            t.start()
        try:
            kids = [self.signer.kid()]
            for _ in range(2):
                count = len(done)
                node.wait_for("50 requests more", lambda: len(done) >= count + 50)
                self.node.space("key", "rotate", "--run-dir", self.node.run)
                kids.append(self.signer.kid())
            count = len(done)
            node.wait_for("100 requests more", lambda: len(done) >= count + 100)
        finally:
            stop.set()
            for t in threads:
                t.join(90)
        self.assertEqual(wrong, [], f"{len(wrong)} of {len(done)} failed")
        self.assertEqual(len(set(kids)), 3)
        # Older bundles are refused; the newest once more is fine.
        with open(f"{self.node.state}/sbx/bundle.txt") as f:
            new = f.read().strip()
        self.assertNotEqual(old, new)
        r = self.api.put_bundle(old)
        self.assertEqual(r.status, 409, r.body)
        self.assertEqual(self.api.put_bundle(new).status, 200)
        with open(f"{self.node.state}/sbx/bundle.txt") as f:
            self.assertEqual(f.read().strip(), new)
        # One that another signed, or that was altered, is none at all.
        message, signature, footer = cap.take_apart(new)

        later = json.loads(message)
        later["number"] += 1
        for what, text in (("a stranger's", self.signer.stranger(later, "root")), ("altered", cap.put_together(json.dumps(later).encode(), signature, footer)),
                           ("signed by a key that it names", self.signer.sign(later, kid="root")), ("no token", "x"), ("empty", "")):
            r = self.api.put_bundle(text)
            self.assertIn(r.status, (400, 403, 421), f"{what}: {r.status} {r.body!r}")
        self.assertEqual(self.api.forward(self.signer.make(self.box)).status, 204)


if __name__ == "__main__":
    unittest.main()
