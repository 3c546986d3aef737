"""Attacks on a running node that must fail: from a guest's root, a client, a service that was taken over (S-1, S-2, S-12, K-4, R-2, T-1)."""

import base64
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.parse

from harness import cap, memory, node

HERE = os.path.dirname(os.path.abspath(__file__))
OK = b"HTTP/1.1 200 OK\r\n"
TWO = b"Content-Length: 2\r\n\r\nok"

# name: (what the guest answers, status for the client or None = its connection is cut)
ANSWERS = {
    "refusal": (b"HTTP/1.1 421 Misdirected Request\r\nSpace-Refusal: deny\r\nsPaCe-ErRoR: limit\r\nSPACE-Capability: x\r\n" + TWO, 421),
    "refresh": (b"HTTP/1.1 421 Misdirected Request\r\nSpace-Refusal: refresh-route\r\n" + TWO, 421),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nSpace-Refusal: deny\r\n\r\nHTTP/1.1 100 Continue\r\nSpace-Error: limit\r\n\r\n" + OK + TWO, 103),
    "trailer": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSpace-Refusal: deny\r\n\r\n", 200),
    "two-answers": (OK + TWO + OK + b"Content-Length: 6\r\n\r\nsecond", 200),
    "connection-names": (OK + b"Connection: X-Request-Id, Content-Length\r\n" + TWO, 200),
    "request-id": (OK + b"X-Request-Id: forged\r\n" + TWO, 200),
    "two-lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 502),
    "length-and-chunked": (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502),
    "other-coding": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 502),
    "bare-lf": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 502),
    "fold": (OK + b"X-A: b\r\n Space-Refusal: deny\r\n" + TWO, 502),
    "blank-before-colon": (OK + b"Space-Refusal : deny\r\n" + TWO, 502),
    "cr-in-value": (OK + b"X-A: a\rSpace-Refusal: deny\r\n" + TWO, 502),
    "nul-in-value": (OK + b"X-A: a\0b\r\n" + TWO, 502),
    "huge-head": (OK + b"X-A: " + b"a" * 40000 + b"\r\n" + TWO, 502),
    "many-fields": (OK + b"X-A: b\r\n" * 150 + TWO, 502),
    "length-overflow": (OK + b"Content-Length: 99999999999999999999\r\n\r\nab", 502),
    "upgrade-unasked": (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nraw", 502),
    "no-status": (b"HTTP/1.1 000 x\r\n\r\n", 502),
    "nothing": (b"", 502),
    "noise": (bytes(range(1, 256)) * 12, 502),
    "cut-short": (OK + b"Content-Length: 100\r\n\r\nshort", None),
    "chunk-torn": (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", None),
    "chunk-too-long": (OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab", None),
    "last": (b"SPECIAL:unknown-stream", 502),
}


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.api = cap.NodeApi(cls.node)

    def token(self, box):
        return self.node.api("GET", f"/sandboxes/{box}").json()["envdAccessToken"]

    def head(self, method, target, box, token=None, more=""):
        token = f"X-Access-Token: {token}\r\n" if token else ""
        return f"{method} {target} HTTP/1.1\r\nHost: h\r\nE2b-Sandbox-Id: {box}\r\nE2b-Sandbox-Port: 49983\r\n{token}{more}\r\n".encode()

    def connect(self, timeout=90):
        s = socket.create_connection(("127.0.0.1", self.node.port), timeout=timeout)
        return s

    def raw(self, data, done=lambda answer: False):
        """Everything that comes until `done`, the end, or the cut; then (status or None, bytes, cut)."""
        answer, cut = b"", False
        with self.connect() as s:
            s.sendall(data)
            try:
                while not done(answer) and (part := s.recv(65536)):
                    answer += part
            except ConnectionResetError:
                cut = True
        return (int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else None), answer, cut

    def leases(self):
        return self.api.report()["node"]["leases"]

    def no_leases(self):
        node.wait_for("every lease has ended", lambda: self.leases() == 0)


class HostileGuest(Base):
    def take_over(self, box):
        answers = {name: base64.b64encode(data).decode() for name, (data, _) in ANSWERS.items()}
        with open(self.node.dir + "/answers.json", "w") as f:
            json.dump(answers, f)
        self.node.space("cp", self.node.dir + "/answers.json", f"{box}:/tmp/answers.json")
        self.node.space("cp", HERE + "/attack/guest.py", f"{box}:/tmp/guest.py")
        p = subprocess.Popen([node.SPACE, "exec", box, "--", "/bin/bash", "-c", "sudo setsid -f python3 /tmp/guest.py /tmp/answers.json </dev/null >/tmp/out 2>&1"],
                             env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)

    def test_answers_that_no_agent_gives(self):
        """Its root has the channel. No answer of its says anything in the node's name, leaves its message, or harms another sandbox."""
        box, other = self.node.create(), self.node.create()
        try:
            token = self.token(box)
            self.take_over(box)
            node.wait_for("the guest is taken over", lambda: self.raw(
                self.head("GET", "/files?path=two-answers", box, token, "Connection: close\r\n"))[1].endswith(b"\r\n\r\nok"))
            for name, (_, status) in ANSWERS.items():
                with self.subTest(name):
                    got, answer, cut = self.raw(self.head("GET", f"/files?path={name}", box, token, "Connection: close\r\n"))
                    self.assertNotIn(b"space-", answer.lower().replace(b"space-api", b""), answer[:400])
                    self.assertNotIn(b"second", answer)
                    self.assertNotIn(b"forged", answer)
                    if status is None:
                        self.assertTrue(cut, answer[:400])
                        self.assertNotIn(b"0\r\n\r\n", answer)
                    else:
                        self.assertEqual(got, status, answer[:400])
            # The last one broke the channel's rules: that is the end of this execution and of nothing else.
            node.wait_for("the execution has ended", lambda: self.node.state_of(box) == "stopped")
            self.assertIn("guest channel", self.node.detail(box)["reason"])
            self.assertEqual(self.node.sh(other, "echo unharmed"), "unharmed\n")
            self.no_leases()
        finally:
            self.node.kill(box, other)

    def test_guest_that_ends_itself(self):
        """A panic by the guest's root is an event, no hanging sandbox."""
        box = self.node.create()
        try:
            subprocess.run([node.SPACE, "exec", box, "--", "/bin/bash", "-c", "sudo sh -c 'echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger'"],
                           env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
            node.wait_for("the sandbox is stopped", lambda: self.node.state_of(box) == "stopped")
            self.assertIn("panic", self.node.detail(box)["reason"])
        finally:
            self.node.kill(box)

    def test_root_image_that_is_none(self):
        """Its start fails once, when the guest gives up, and is not tried again and again: workers are for others too."""
        box = self.node.create()
        try:
            self.node.exec(box, "/bin/bash", "-c", "sudo dd if=/dev/zero of=/dev/vda bs=1M count=64 oflag=direct 2>/dev/null", check=False)
            r = self.node.api("POST", f"/v1/sandboxes/{box}/start", timeout=200)
            self.assertEqual(r.status, 500, r.body)
            self.assertIn("ended while it started", r.json()["detail"])
            self.assertEqual(self.node.state_of(box), "stopped")
            events = [e["text"] for e in self.node.api("GET", f"/v1/sandboxes/{box}/logs").json()["events"]]
            self.assertEqual(sum("start failed" in e for e in events), 1, events)
        finally:
            self.node.kill(box)


class HostileClient(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box, cls.other = cls.node.create(), cls.node.create()
        cls.node.sh(cls.box, "echo mine > /home/user/who; head -c 3000000 /dev/zero > /home/user/big")
        cls.node.sh(cls.other, "echo theirs > /home/user/who")

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box, cls.other)

    def test_pipelined_requests_are_admitted_one_by_one(self):
        mine, theirs = self.token(self.box), self.token(self.other)
        who = "/files?path=/home/user/who"
        data = self.head("GET", who, self.box, mine) + self.head("GET", who, self.other, mine) + \
            self.head("GET", who, self.other, theirs, "Connection: close\r\n")
        _, answer, _ = self.raw(data)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answer), [b"200", b"401", b"200"], answer)
        self.assertEqual(answer.count(b"mine\n"), 1)
        self.assertEqual(answer.count(b"theirs\n"), 1)

    def test_framing_that_two_parsers_could_see_differently(self):
        token = self.token(self.box)
        inner = self.head("GET", "/files?path=/home/user/who", self.box, token)
        cases = {
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n": b"0\r\n\r\n" + inner,
            "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n": b"abcd" + inner,
            "Transfer-Encoding: chunked, identity\r\n": b"0\r\n\r\n" + inner,
            "Transfer-Encoding : chunked\r\n": b"0\r\n\r\n" + inner,
            "X-A: b\r\n Transfer-Encoding: chunked\r\n": b"0\r\n\r\n" + inner,
            "Content-Length: 4\r\nContent-Length: 4\r\n": b"abcd" + inner,
            "Content-Length: +4\r\n": b"abcd" + inner,
            "Host: other\r\n": inner,
            "X-A: b\nSpace-Op: lifecycle\r\n": inner,
        }
        for fields, body in cases.items():
            with self.subTest(fields):
                status, answer, _ = self.raw(self.head("POST", "/files?path=/tmp/smuggled", self.box, token, fields) + body)
                self.assertIn(status, (400, 501), answer)
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, "what stood behind it was taken for a request")
        # Trailers are nobody's fields.
        body = b"3\r\nabc\r\n0\r\nSpace-Op: lifecycle\r\nX-Access-Token: x\r\n\r\n"
        status, answer, _ = self.raw(self.head("POST", "/files?path=/tmp/trailers", self.box, token,
                                               "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n") + body)
        self.assertEqual(status, 200, answer)

    def test_what_only_the_node_may_ask_of_a_guest(self):
        token = self.token(self.box)
        for path in ("/init", "//init", "/./init", "/init/", "/%69nit", "/x/../init", "/.%2e/init", "/init%00", "/init?x", "http://h/init", "/shutdown", "/prepare%2f"):
            with self.subTest(path):
                status, answer, _ = self.raw(self.head("POST", path, self.box, token, "Content-Length: 2\r\nConnection: close\r\n") + b"{}")
                self.assertIn(status, (400, 404), answer)
        self.assertEqual(self.node.state_of(self.box), "running")

    def signed(self, path, user=None):
        text = ":".join((path, "read", user or "", self.token(self.box)))
        query = {"path": path, "signature": "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")}
        if user:
            query["username"] = user
        return "/files?" + urllib.parse.urlencode(query)

    def test_signed_address_is_for_its_user_alone(self):
        """Without a user's name it is the default user's, whatever the holder adds to the request."""
        basic = "Authorization: Basic " + base64.b64encode(b"root:").decode() + "\r\nConnection: close\r\n"
        for target, more, want in (
                (self.signed("/home/user/who"), basic, 200), (self.signed("/etc/shadow"), basic, 403), (self.signed("/etc/shadow", "root"), basic, 200),
                (self.signed("/etc/shadow") + "&username=root", basic, 403), (self.signed("/etc/shadow", "root").replace("=root", "=user"), basic, 403)):
            status, answer, _ = self.raw(self.head("GET", target, self.box, None, more))
            self.assertIn(status, (want, 401) if want == 403 else (want,), f"{target}: {answer}")
            self.assertEqual(b"root:" in answer, want == 200 and "shadow" in target)

    def test_clients_that_leave_at_any_moment(self):
        """Nothing of theirs stays: no lease, no descriptor in the node, none in the bridge."""
        token = self.token(self.box)

        def descriptors():
            pids = [self.node.pid_of(d) for d in ("node-api", "sbx-manager")] + [self.node.record(self.box)["bridge_pid"]]
            return [len(os.listdir(f"/proc/{p}/fd")) for p in pids]

        self.no_leases()
        before = descriptors()
        upload = "Content-Type: application/octet-stream\r\n"
        kinds = (self.head("GET", "/files?path=/home/user/big", self.box, token),
                 self.head("POST", "/files?path=/tmp/u", self.box, token, upload + "Content-Length: 100000\r\n") + b"x" * 50000,
                 self.head("POST", "/files?path=/tmp/u", self.box, token, upload + "Transfer-Encoding: chunked\r\n") + b"fff\r\nabc",
                 self.head("GET", "/health", self.box, token) * 5, self.head("GET", "/health", self.box, token)[:60])

        def leave(seed):
            rnd = random.Random(seed)
            for _ in range(25):
                try:
                    with self.connect() as s:
                        s.sendall(rnd.choice(kinds))
                        if rnd.random() < 0.5:
                            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        if rnd.random() < 0.4:
                            s.settimeout(rnd.random() * 0.05)
                            s.recv(1000)
                except OSError:
                    pass

        threads = [threading.Thread(target=leave, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.no_leases()
        node.wait_for("descriptors as before", lambda: all(a <= b + 1 for a, b in zip(descriptors(), before)))
        self.assertEqual(self.node.sh(self.box, "echo well"), "well\n")

    def test_admission_that_comes_too_late(self):
        """sbx-manager stands still for longer than node-api waits: the stream that it then grants is nobody's, and ends."""
        token, pid = self.token(self.box), self.node.pid_of("sbx-manager")
        socks = []
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(5):
                socks.append(self.connect())
                socks[-1].sendall(self.head("GET", "/health", self.box, token))
            for s in socks:
                self.assertEqual(s.recv(12), b"HTTP/1.1 504")
        finally:
            os.kill(pid, signal.SIGCONT)
            for s in socks:
                s.close()
        node.wait_for("the late answers have come", lambda: self.node.log("node-api").count("admitted too late") >= 5)
        self.no_leases()


class TakenOver(Base):
    def test_descriptors_of_jailed_processes(self):
        """What a process in a jail holds: its own disk, memory, sockets and pipes, and what the kernel makes for it."""
        box = self.node.create()
        try:
            record = self.node.record(box)
            plain = r"/dev/null|anon_inode:\[(eventpoll|eventfd|signalfd)\]|socket:\[\d+\]|pipe:\[\d+\]"
            allowed = {"init": r"/dev/null|socket:\[\d+\]", "bridge": plain, "gateway": plain,
                       "vmm": plain + rf"|/dev/net/tun|/dev/kvm|anon_inode:kvm.*|/mem|{re.escape(self.node.state)}/data/sandboxes/{box}/rootfs\.img"}
            for who, pattern in allowed.items():
                folder = f"/proc/{record[who + '_pid']}/fd"
                for fd in os.listdir(folder):
                    self.assertRegex(os.readlink(f"{folder}/{fd}"), f"^({pattern})$", who)
        finally:
            self.node.kill(box)

    def test_stopped_processes_hold_nobody_up(self):
        for who in ("bridge", "vmm", "init", "gateway"):
            with self.subTest(who):
                box = self.node.create()
                pid = self.node.record(box)[who + "_pid"]
                os.kill(pid, signal.SIGSTOP)
                self.node.kill(box)
                self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_node_api_without_a_capability(self):
        """What it may ask sbx-manager for by itself is a report and the end of its own leases."""
        box = self.node.create()
        gone = {"capability": "v4.public.AAAA", "purpose": "control", "access": "read"}
        asks = [("template-ensure", {"template": "evil"}, -1), ("admit", gone, -13), ("lease-end", {"lease": 1}, 0),
                ("lifecycle", {"capability": "v4.public.AAAA", "kind": "stop", "spec": {}}, -13), ("bundle", {"text": "v4.public.AAAA"}, None)]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(self.node.service_uid + 2)
                os.setuid(self.node.service_uid + 2)
                answers = []
                for op, a, _ in asks:
                    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                        s.settimeout(60)
                        s.connect(f"{self.node.run}/sbx-manager/sbx.sock")
                        s.send(json.dumps({"v": 1, "op": op, "id": 1, "a": a}).encode())
                        answers.append(json.loads(s.recv(70000)))
                os.write(write, json.dumps(answers).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as f:
            answers = json.load(f)
        os.waitpid(child, 0)
        for (op, _, want), answer in zip(asks, answers):
            num = answer.get("e", {}).get("num", 0)
            self.assertTrue(num == want if want is not None else num < 0, f"{op}: {answer}")
        self.assertEqual(self.node.state_of(box), "running")
        self.node.kill(box)

    def test_sbx_manager_against_node_manager(self):
        """Thousands of requests under its uid, most of them lies: node-manager lives, and what was made can be taken away again."""
        uid, path, pid = self.node.service_uid + 3, f"{self.node.run}/nm/nm.sock", self.node.pid_of("node-manager")
        before = memory.kernel_objects(self.node)
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                lie(path, 6.0)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(self.node.pid_of("node-manager"), pid)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(60)
            s.connect(path)
            for i, (op, a) in enumerate([("destroy", {"sandbox": box, "generation": g}) for box in LIES["sandbox"][:2] for g in (1, 2)] +
                                        [("disk-delete", {"sandbox": box}) for box in LIES["sandbox"][:2]] + [("template-drop", {"template": "evil"})]):
                s.send(json.dumps({"v": 1, "op": op, "id": i + 1, "a": a}).encode())
                while json.loads(s.recv(70000)).get("id") != i + 1:
                    pass
        node.wait_for("nothing is left over", lambda: memory.kernel_objects(self.node) == before)
        # btrfs gives the space of what was deleted back in its own time.
        made = lambda: (r := self.node.space("create", "--quiet", check=False)).returncode == 0 and r.stdout.strip()
        box = node.wait_for("a sandbox can be made", made)
        self.assertEqual(self.node.sh(box, "echo well"), "well\n")
        self.node.kill(box)


class Resources(Base):
    def test_logs_have_a_limit(self):
        path = f"{self.node.state}/log/space-api.log"
        with open(path, "ab") as f:
            f.write(b"x" * (17 << 20))
        node.wait_for("the log was moved over", lambda: os.path.getsize(path) < 1 << 20)
        self.assertGreater(os.path.getsize(path + ".1"), 16 << 20)
        with self.connect() as s:
            s.sendall(b"GET /nowhere HTTP/1.1\r\nHost: h\r\nX-Request-Id: after-the-cut\r\n\r\n")
            s.recv(100)
        node.wait_for("new lines stand in the cut file", lambda: "after-the-cut" in self.node.log("space-api"))
        os.unlink(path + ".1")

    def test_slow_vmm_and_a_look_at_its_console(self):
        """A VMM that does not answer for some seconds, as on a machine with too much to do, is no crash; and it is still watched."""
        box = self.node.create()
        try:
            pid = self.node.record(box)["vmm_pid"]
            unread = lambda: self.node.log("sbx-manager").count("the console was not read")
            before, answers = unread(), []
            ask = threading.Thread(target=lambda: answers.append(self.node.api("GET", f"/v1/sandboxes/{box}/logs").status))
            os.kill(pid, signal.SIGSTOP)
            try:
                ask.start()
                node.wait_for("the console was not read", lambda: unread() > before)
            finally:
                os.kill(pid, signal.SIGCONT)
            ask.join()
            self.assertEqual(answers, [200])
            self.assertEqual(self.node.sh(box, "echo well"), "well\n")
            self.assertEqual(self.node.state_of(box), "running")
            subprocess.run([node.SPACE, "exec", box, "--", "/bin/bash", "-c", "sudo sh -c 'echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger'"],
                           env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
            node.wait_for("the panic is seen", lambda: self.node.state_of(box) == "stopped")
            self.assertIn("panic", self.node.detail(box)["reason"])
        finally:
            self.node.kill(box)

    def test_client_that_does_not_read(self):
        """What waits for it in the kernel stays small, however large the kernel's buffers may grow."""
        box = self.node.create()
        try:
            self.node.sh(box, "head -c 20000000 /dev/zero > /home/user/big")
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect(("127.0.0.1", self.node.port))
                s.sendall(self.head("GET", "/files?path=/home/user/big", box, self.token(box)))
                pair = f" 0100007F:{self.node.port:04X} 0100007F:{s.getsockname()[1]:04X} "

                def queued():
                    with open("/proc/net/tcp") as f:
                        return int(next(line for line in f if pair in line).split()[4].split(":")[0], 16)

                node.wait_for("the server has begun to wait", lambda: queued() > 100_000)
                end, most = time.monotonic() + 3, 0
                while time.monotonic() < end:
                    most = max(most, queued())
                    time.sleep(0.05)
                self.assertLess(most, 500_000)
        finally:
            self.node.kill(box)

    def test_descriptors_for_all_streams(self):
        for daemon in node.DAEMONS:
            with open(f"/proc/{self.node.pid_of(daemon)}/limits") as f:
                soft, hard = re.search(r"Max open files\s+(\d+)\s+(\d+)", f.read()).groups()
            self.assertEqual(soft, hard, daemon)
            self.assertGreaterEqual(int(soft), 16384, daemon)


LIES = {
    "sandbox": ["i" + "b" * 20, "i" + "c" * 20, "../../etc/passwd", "i/../../../../tmp/x", "i" + "a" * 19, "", "i0123456789abcdefgh/.", "." * 21, "i" + "\u00e9" * 10],
    "template": ["evil", "base", "..", "../x", "a/b", "-x", "x" * 64, ".new"],
    "generation": [1, 2, 0, -1, 2**53 + 1, 2**63 - 1, 2**64, 1.5, "1", None, True],
    "memory_mib": [512, 0, 1, 2**40, -1], "vcpus": [1, 0, 2**40], "cursor": [0, 2**63 - 1, -1], "bridge_pid": [0, 1, 2**63 - 1],
    "gateway_pid": [0, 1, 2**63 - 1], "internet": [True, False, 1, None],
    "mode": ["boot", "restore", "template", "probe", "x"], "accel": ["tcg", "kvm", "x"], "what": ["bridge", "vmm", "gateway", "all", "x"],
    "manifest": [{}, {"a": "b" * 60000}, [1], "x"],
}
OPS = {
    "list": ["cursor"], "stats": [], "disk-create": ["sandbox", "template"], "disk-delete": ["sandbox"], "kill": ["sandbox", "generation", "what"],
    "spawn": ["sandbox", "generation", "template", "mode", "accel", "memory_mib", "vcpus"], "qmp-open": ["sandbox", "generation"],
    "channel-open": ["sandbox", "generation"], "verify": ["sandbox", "generation", "bridge_pid", "gateway_pid"],
    "gateway": ["sandbox", "generation", "internet"], "destroy": ["sandbox", "generation"],
    "template-begin": ["template"], "template-commit": ["template", "manifest"], "template-drop": ["template"], "template-import": ["template"],
    "template-manifest": ["template"], "nothing-of-the-kind": [],
}


def lie(path, seconds):
    rnd, end, s, count = random.Random(7), time.monotonic() + seconds, None, 0
    while time.monotonic() < end:
        try:
            if s is None:
                s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                s.settimeout(5)
                s.connect(path)
            op = rnd.choice(list(OPS))
            # Every second request is a likely one, so that states change too.
            likely = rnd.random() < 0.5
            a = {k: LIES[k][0 if likely and k not in ("sandbox", "generation") else rnd.randrange(2 if likely else len(LIES[k]))] for k in OPS[op]}
            count += 1
            text = json.dumps({"v": 1, "op": op, "id": count, "a": a, **({"x": 1} if rnd.random() < 0.03 else {})}).encode()
            if rnd.random() < 0.03:
                text = text[:rnd.randrange(1, len(text))]
            fds = [os.memfd_create("x") for _ in range(rnd.choice((1, 1, 1, 2, 8)))] if op == "template-commit" or rnd.random() < 0.05 else []
            for fd in fds:
                os.ftruncate(fd, rnd.choice((0, 1, 100000)))
            socket.send_fds(s, [text], fds)
            for fd in fds:
                os.close(fd)
            if rnd.random() < 0.6:
                answer, got, _, _ = socket.recv_fds(s, 70000, 16)
                for fd in got:
                    os.close(fd)
                if not answer:
                    raise ConnectionResetError
        except OSError:
            if s is not None:
                s.close()
            s = None


if __name__ == "__main__":
    unittest.main()
