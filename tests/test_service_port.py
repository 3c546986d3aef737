"""Ports of a sandbox, with capabilities of the tests' own making put before node-api and before the gateway itself (K-5, B-4, I-3, R-2)."""

import array
import json
import os
import select
import signal
import socket
import struct
import termios
import time
import unittest
import fcntl

from harness import cap, node

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness/guest_server.py")
HTTP, LOOPBACK, LOOPBACK6, ECHO, FLOOD, UPGRADE, ENDS, CLOSED, DOOR = 8000, 8001, 8002, 9000, 9001, 9002, 9003, 8009, 49982
PREAMBLE = struct.Struct("<IIQQ16sHB5s")
VERDICT = struct.Struct("<II")
PREAMBLE_MAGIC, VERDICT_MAGIC = 0x31777467, 0x31767467
OK, DENY, REFRESH, PORT_CLOSED = 1, 2, 3, 4
PROTOCOLS = {"": 0, "http": 1, "tcp": 2, "h2": 3}


def connect_as(uid, path):
    """A connection to a Unix socket that was made by a process of that user; PermissionError when it does not get there."""
    here, there = socket.socketpair()
    with here, there:
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                s = socket.socket(socket.AF_UNIX)
                s.connect(path)
                socket.send_fds(there, [b"x"], [s.fileno()])
            finally:
                os._exit(0)
        there.close()
        data, fds, _, _ = socket.recv_fds(here, 1, 1)
        os.waitpid(pid, 0)
    if not data:
        raise PermissionError(path)
    s = socket.socket(fileno=fds[0])
    s.settimeout(90)
    return s


def pending(sock):
    buf = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, buf)
    return buf[0]


class Tunnel:
    """A raw tunnel through node-api, as space-api asks for one; or through space-api, as a client does."""

    def __init__(self, n, token, port, protocol="tcp", api_box=None):
        self.sock = socket.socket() if api_box else socket.socket(socket.AF_UNIX)
        self.sock.settimeout(90)
        self.sock.connect(("127.0.0.1", n.port) if api_box else f"{n.run}/node-api/node.sock")
        target = f"/v1/sandboxes/{api_box}/ports/{port}/tunnel" if api_box else "/"
        fields = f"X-API-Key: {n.key()}\r\n" if api_box else (f"Space-Op: port\r\nSpace-Request-Id: test\r\nSpace-Capability: {token}\r\nSpace-Port: {port}\r\n"
                                                              f"Space-Tunnel: {protocol}\r\n")
        self.sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: Upgrade\r\nUpgrade: space-tunnel\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            c = self.sock.recv(1)
            assert c, head
            head += c
        self.status = int(head.split()[1])
        self.head = head.decode()
        if self.status != 101:
            self.head += self.sock.recv(4096).decode()       # why

    def cut(self):
        """How the other side's silence ends: "end", "reset", or the byte that came."""
        try:
            return self.sock.recv(1) or "end"
        except ConnectionResetError:
            return "reset"

    def read(self, n):
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                break
            data += part
        return data

    def rest(self):
        data = b""
        while part := self.sock.recv(65536):
            data += part
        return data


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.signer = cap.Signer(cls.node)
        cls.api = cls.signer.api
        cls.box = cls.new_box()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    @classmethod
    def new_box(cls, *ports):
        box = cls.node.create()
        cls.node.space("cp", SERVER, f"{box}:/tmp/server.py")
        cls.serve(box, *ports)
        return box

    @classmethod
    def serve(cls, box, *ports):
        ports = " ".join(map(str, ports))
        cls.node.sh(box, f"exec 3< <(exec setsid python3 -S /tmp/server.py {ports} 2>&1 < /dev/null); read -r -t 60 line <&3; [ \"$line\" = ready ] || {{ echo $line; exit 1; }}")

    def token(self, port, protocol="http", box=None, **changes):
        return self.signer.make(box or self.box, **{"pur": "service-port", "prt": port, "pro": protocol, **changes})

    def ask(self, port, method="GET", path="/", body=None, headers=None, token=None, box=None, timeout=90):
        return self.api.request(method, path, "port", self.token(port, box=box) if token is None else token, body, {"Space-Port": str(port), **(headers or {})}, timeout=timeout)

    def ends(self, sock):
        """Not one byte more, and an end or a reset."""
        try:
            self.assertEqual(sock.recv(1), b"")
        except ConnectionError:
            pass

    def echoes(self, box):
        t = self.tunnel(ECHO, box)
        t.sock.sendall(b"hello")
        self.assertEqual(t.read(5), b"hello")

    def tunnel(self, port, box=None, protocol="tcp"):
        t = Tunnel(self.node, self.token(port, protocol, box), port, protocol)
        self.addCleanup(t.sock.close)
        self.assertEqual(t.status, 101, t.head)
        return t

    def gateway_pid(self, box=None):
        """The process that listens at the gateway's stream socket."""
        box = box or self.box
        s = connect_as(self.sbx_uid(), self.gateway_socket(box))
        with s:
            return struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def gateway_socket(self, box):
        return f"{self.node.run}/sbx/{box}.{self.api.of(box)['generation']}/gtw.sock"

    def sbx_uid(self):
        with open(f"{self.node.run}/conf.json") as f:
            return json.load(f)["users"]["space-sbx"]


class Http(Base):
    def test_a_server_in_the_sandbox(self):
        r = self.ask(HTTP, path="/some/path?q=1")
        self.assertEqual((r.status, r.body), (200, b"/some/path?q=1 on 8000"))
        big = os.urandom(3_000_000)
        self.assertEqual(self.ask(HTTP, "POST", "/", big).body, big)
        r = self.ask(HTTP, "POST", "/", iter([big[:70_000], big[70_000:100_001]]))          # chunked
        self.assertEqual(r.body, big[:100_001])
        self.assertEqual(self.ask(HTTP, "HEAD", "/").status, 501)       # the server's own answer: it knows no HEAD
        self.assertEqual(self.ask(HTTP, path="/until-close").body, b"no length")

    def test_paths_of_the_agent_are_ordinary_here(self):
        for path in ("/init", "/files", "/shutdown", "/../x"):
            self.assertEqual(self.ask(HTTP, path=path).body, f"{path} on 8000".encode())

    def test_what_is_bound_to_loopback_is_reachable(self):
        self.assertEqual(self.ask(LOOPBACK).body, b"/ on 8001")
        self.assertEqual(self.ask(LOOPBACK6).body, b"/ on 8002")

    def test_a_port_that_is_not_open(self):
        r = self.ask(CLOSED)
        self.assertEqual((r.status, r.headers["Space-Error"]), (502, "port-closed"), r.body)
        self.assertEqual(r.json(), {"sandboxId": self.box, "message": "The sandbox is running but port is not open", "port": CLOSED, "code": 502})
        t = Tunnel(self.node, self.token(CLOSED, "tcp"), CLOSED)
        self.assertEqual(t.status, 502, t.head)

    def test_fields(self):
        r = self.ask(HTTP, path="/fields", headers={"X-Own": "kept", "Authorization": "Bearer kept", "Host": "8000-x.example", "X-API-Key": "secret1", "X-Access-Token": "secret2",
                                                    "E2B-Traffic-Access-Token": "secret3", "E2b-Sandbox-Id": "secret4", "Space-Anything": "secret5"})
        self.assertEqual(r.status, 200)
        for line in (b"X-Own: kept", b"Authorization: Bearer kept", b"Host: 8000-x.example"):
            self.assertIn(line, r.body)
        self.assertNotIn(b"secret", r.body)
        self.assertNotIn(b"space-", r.body.lower())

    def test_a_guest_cannot_speak_for_the_platform(self):
        r = self.ask(HTTP, path="/for-the-platform")
        self.assertEqual((r.status, r.body, r.headers["X-Own"]), (421, b"guest", "yes"))
        self.assertFalse([k for k in r.headers if k.lower().startswith("space-")])

    def test_an_answer_comes_as_it_is_made(self):
        go = f"/tmp/go-{os.getpid()}"
        conn = cap.UnixConnection(f"{self.node.run}/node-api/node.sock")
        conn.request("GET", f"/two-pieces?go={go}", None, {"Space-Op": "port", "Space-Port": str(HTTP), "Space-Request-Id": "t", "Space-Capability": self.token(HTTP)})
        r = conn.getresponse()
        self.assertEqual(r.read(4), b"one\n")
        self.node.sh(self.box, f"touch {go}")
        self.assertEqual(r.read(), b"two\n")
        conn.close()

    def test_an_upgrade(self):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(90)
            s.connect(f"{self.node.run}/node-api/node.sock")
            s.sendall((f"GET / HTTP/1.1\r\nHost: h\r\nSpace-Op: port\r\nSpace-Request-Id: t\r\nSpace-Port: {UPGRADE}\r\nSpace-Capability: {self.token(UPGRADE)}\r\n"
                       "Connection: Upgrade\r\nUpgrade: echo\r\n\r\n").encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += s.recv(1)
            self.assertIn(b" 101 ", head)
            self.assertNotIn(b"space-", head.lower())
            for word in (b"hello", b"x" * 300_000):
                s.sendall(word)
                got = b""
                while len(got) < len(word):
                    got += s.recv(65536)
                self.assertEqual(got, word.upper())


class Raw(Base):
    def test_an_echo_and_its_ends(self):
        t = self.tunnel(ECHO)
        t.sock.sendall(b"hello")
        self.assertEqual(t.read(5), b"hello")
        t.sock.sendall(b"x" * 100_000)
        self.assertEqual(t.read(100_000), b"x" * 100_000)
        t.sock.shutdown(socket.SHUT_WR)
        self.assertEqual(t.rest(), b"100005 bytes\n")

    def test_http2_is_a_tunnel_of_its_own_protocol(self):
        t = self.tunnel(ECHO, protocol="h2")
        t.sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.assertEqual(t.read(24), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    def test_many_at_once(self):
        tunnels = [self.tunnel(ECHO) for _ in range(100)]
        for i, t in enumerate(tunnels):
            t.sock.sendall(b"%4d" % i)
        for i, t in enumerate(tunnels):
            self.assertEqual(t.read(4), b"%4d" % i)
        for t in tunnels:
            t.sock.close()
        node.wait_for("their leases end", lambda: self.api.of(self.box)["leases"] == 0)


class Checks(Base):
    """The first check, in sbx-manager."""

    def refused(self, token, verdict, what, port=HTTP):
        r = self.ask(port, token=token)
        self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, verdict), f"{what}: {r.body}")

    def test_capabilities_for_something_else(self):
        other = self.node.create()
        try:
            mine, theirs = (self.signer.claims(b, pur="service-port", prt=HTTP, pro="http") for b in (self.box, other))
            for what, changes, verdict in (
                    ("another port", {"prt": HTTP + 1}, "deny"), ("another protocol", {"pro": "tcp"}, "deny"), ("h2", {"pro": "h2"}, "deny"),
                    ("requests for the agent", {"pur": "control", "prt": 0, "pro": ""}, "deny"),
                    ("the life cycle", {"pur": "lifecycle", "acc": "start", "prt": 0, "pro": ""}, "deny"), ("reading alone", {"acc": "read"}, "deny"),
                    ("a later generation", {"gen": mine["gen"] + 1}, "refresh-route"), ("another activation", {"act": theirs["act"]}, "refresh-route"),
                    ("a later attempt", {"att": mine["att"] + 1}, "refresh-route"), ("another tenant", {"ten": "someone-else"}, "deny"),
                    ("another sandbox with this one's execution", {"sbx": other}, "refresh-route"),
                    ("yesterday", {"iat": mine["iat"] - 86400, "exp": mine["exp"] - 86400}, "deny")):
                self.refused(self.signer.sign({**mine, **changes}), verdict, what)
            self.refused("", "deny", "none")
            self.refused(self.signer.stranger(mine, self.signer.kid()), "deny", "a stranger's key")
            self.refused(self.signer.sign(mine, self.signer.newest("ctl")), "deny", "space-control's key")
            self.assertEqual(self.ask(HTTP, token=self.signer.sign(mine)).status, 200)
        finally:
            self.node.kill(other)

    def refused_for(self, fields):
        r = self.api.request("GET", "/", "port", self.token(HTTP), None, fields)
        self.assertEqual(r.status, 400, f"{fields}: {r.body}")

    def test_malformed_requests(self):
        for fields in ({}, {"Space-Port": "0"}, {"Space-Port": "65536"}, {"Space-Port": "8000x"}, {"Space-Port": str(HTTP), "Space-Tunnel": "tcp"}):
            self.refused_for(fields)

    def test_another_listener_at_the_gateway(self):
        path = self.gateway_socket(self.box)
        aside = path + ".aside"
        os.rename(path, aside)
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(path)
                os.chmod(path, 0o666)
                s.listen(8)
                self.refused(self.token(HTTP), "deny", "another process listens")
                # Whoever connected has sent nothing: neither a preamble nor the capability.
                s.settimeout(60)
                c, _ = s.accept()
                with c:
                    c.settimeout(60)
                    self.assertEqual(c.recv(1), b"")
            os.unlink(path)
            self.assertEqual(self.ask(HTTP).headers["Space-Error"], "gateway-away")
        finally:
            if os.path.exists(path):
                os.unlink(path)
            os.rename(aside, path)
        self.assertEqual(self.ask(HTTP).status, 200)

    def test_a_paused_and_a_stopped_sandbox(self):
        box = self.new_box(ECHO, UPGRADE)
        try:
            t = self.tunnel(ECHO, box)
            t.sock.sendall(b"a")
            self.assertEqual(t.read(1), b"a")
            pid = self.gateway_pid(box)
            self.node.space("pause", box)
            self.ends(t.sock)
            self.assertEqual(self.ask(UPGRADE, box=box).headers["Space-Refusal"], "refresh-route")
            self.node.space("connect", box)
            self.echoes(box)
            self.assertEqual(self.gateway_pid(box), pid, "the gateway was another one after the pause")
            old = self.token(ECHO, box=box)
            self.node.space("stop", box)
            self.assertEqual(self.ask(ECHO, token=old).headers["Space-Refusal"], "refresh-route")
            self.node.space("start", box)
            self.serve(box, ECHO)
            self.assertEqual(self.ask(ECHO, token=old).headers["Space-Refusal"], "refresh-route")
            self.echoes(box)
        finally:
            self.node.kill(box)


class SecondCheck(Base):
    """sbx-manager has been tricked: the gateway gets a wrong capability from the right user."""

    def say(self, token, box=None, uid=None, **changes):
        """The gateway's verdict on a stream with this token; None: it was closed without one."""
        box = box or self.box
        seen = self.api.of(box)
        p = {"magic": PREAMBLE_MAGIC, "lease": int(time.time() * 1e6) % (1 << 52), "gen": seen["generation"], "act": bytes.fromhex(seen["activation"]), "port": HTTP, "protocol": "http",
             "zero": b"", "size": len(token), **changes}
        with connect_as(self.sbx_uid() if uid is None else uid, self.gateway_socket(box)) as s:
            try:
                s.sendall(PREAMBLE.pack(p["magic"], p["size"], p["lease"], p["gen"], p["act"], p["port"], PROTOCOLS[p["protocol"]], p["zero"]) + token.encode())
                answer = s.recv(VERDICT.size)
            except ConnectionError:
                return None
            if not answer:
                return None
            magic, code = VERDICT.unpack(answer)
            self.assertEqual(magic, VERDICT_MAGIC)
            if code == OK:
                s.sendall(b"GET /seen HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                self.assertIn(b" 200 ", s.recv(65536))
            else:
                self.ends(s)
            return code

    def test_the_right_one(self):
        self.assertEqual(self.say(self.token(HTTP)), OK)
        self.assertEqual(self.say(self.token(CLOSED), port=CLOSED), PORT_CLOSED)

    def test_wrong_ones(self):
        other = self.node.create()
        try:
            mine, theirs = (self.signer.claims(b, pur="service-port", prt=HTTP, pro="http") for b in (self.box, other))
            sign = self.signer.sign
            for what, token, expected, changes in (
                    ("another port", sign({**mine, "prt": HTTP + 1}), DENY, {}), ("another protocol", sign({**mine, "pro": "tcp"}), DENY, {}),
                    ("the port of the preamble is another", sign(mine), DENY, {"port": ECHO}), ("its protocol", sign(mine), DENY, {"protocol": "h2"}),
                    ("another purpose", sign({**mine, "pur": "control", "prt": 0, "pro": ""}), DENY, {}),
                    ("no port and no protocol", sign({**mine, "pur": "control", "prt": 0, "pro": ""}), DENY, {"port": 0, "protocol": ""}),
                    ("a later generation", sign({**mine, "gen": mine["gen"] + 1}), REFRESH, {}), ("an earlier activation", sign({**mine, "act": theirs["act"]}), REFRESH, {}),
                    ("another sandbox", sign(theirs), DENY, {}), ("another tenant", sign({**mine, "ten": "someone-else"}), DENY, {}),
                    ("another worker", sign({**mine, "aud": "3b241101-e2bb-4255-8caf-4136c566a962"}), REFRESH, {}),
                    ("expired", sign({**mine, "iat": mine["iat"] - 300, "exp": mine["exp"] - 300}), DENY, {}),
                    ("a stranger's", self.signer.stranger(mine, self.signer.kid()), DENY, {}), ("space-control's", sign(mine, self.signer.newest("ctl")), DENY, {}),
                    ("another epoch", sign(mine), DENY, {"gen": mine["gen"] + 1}), ("another activation", sign(mine), DENY, {"act": b"\1" * 16}),
                    ("the way to the guest's loopback", sign({**mine, "prt": DOOR}), DENY, {"port": DOOR}),
                    ("no lease", sign(mine), DENY, {"lease": 0}), ("another magic", sign(mine), DENY, {"magic": 1}), ("what must be zero", sign(mine), DENY, {"zero": b"\1"})):
                with self.subTest(what):
                    self.assertEqual(self.say(token, **changes), expected, what)
            self.assertEqual(self.say(sign(mine)), OK)
        finally:
            self.node.kill(other)

    def test_keys_that_rotate(self):
        """The gateway knows a new key as soon as it signs, and sbx-manager does."""
        for _ in range(2):
            old = self.signer.kid()
            self.node.space("key", "rotate", "--run-dir", self.node.run)
            self.assertNotEqual(self.signer.kid(), old)
            self.assertEqual(self.say(self.token(HTTP)), OK)
            self.assertEqual(self.ask(HTTP).status, 200)

    def test_another_user(self):
        for uid in (0, self.record_uid("bridge_uid"), self.record_uid("vmm_uid")):
            try:
                self.assertIsNone(self.say(self.token(HTTP), uid=uid), f"uid {uid}")
            except PermissionError:
                pass                             # it does not even get to the socket

    def record_uid(self, name):
        return self.node.record(self.box)[name]


class Ends(Base):
    def full(self, sock):
        seen = [0, time.monotonic()]

        def steady():
            n = pending(sock)
            if n != seen[0]:
                seen[:] = [n, time.monotonic()]
            return n > 0 and time.monotonic() - seen[1] > 0.5

        node.wait_for("full queues", steady)

    def fill(self, sock):
        """Writes until nothing more is taken."""
        sock.setblocking(False)
        sent = 0
        while select.select([], [sock], [], 0.5)[1]:
            sent += sock.send(b"i" * 65536)
        sock.settimeout(90)
        return sent

    def test_revocation_with_full_queues(self):
        for how in ("kill", "start"):
            box = self.new_box(FLOOD)
            try:
                t = self.tunnel(FLOOD, box)
                self.assertGreater(self.fill(t.sock), 65536)
                self.full(t.sock)
                self.node.space(how, box)
                limit, total = pending(t.sock), 0
                try:
                    while data := t.sock.recv(65536):
                        total += len(data)
                except ConnectionError:
                    pass
                self.assertLessEqual(total, limit, f"{how}: bytes arrived after the confirmation")
                with self.assertRaises(OSError):
                    t.sock.sendall(b"x")
            finally:
                if how == "start":
                    self.node.kill(box)

    def events(self, box):
        return str(self.node.api("GET", f"/v1/sandboxes/{box}/logs").json())

    def test_a_gateway_that_does_not_confirm_is_killed(self):
        box = self.new_box(ECHO)
        t = self.tunnel(ECHO, box)
        t.sock.sendall(b"a")
        self.assertEqual(t.read(1), b"a")
        pid = self.gateway_pid(box)
        os.kill(pid, signal.SIGSTOP)
        self.node.kill(box)
        self.ends(t.sock)
        self.assertFalse(os.path.exists(f"/proc/{pid}/exe"), "it is still there")
        node.wait_for("the log says so", lambda: "a revocation was not confirmed" in self.node.log("sbx-manager"))

    def test_a_gateway_that_dies_is_started_again(self):
        pid = self.gateway_pid()
        t = self.tunnel(ECHO)
        t.sock.sendall(b"a")
        self.assertEqual(t.read(1), b"a")
        os.kill(pid, signal.SIGKILL)
        self.ends(t.sock)

        def again():
            r = self.ask(HTTP)
            self.assertIn(r.status, (200, 503), r.body)
            return r.status == 200

        node.wait_for("its port is served again", again)
        self.assertNotEqual(self.gateway_pid(), pid)
        node.wait_for("its log says so", lambda: "the network gateway was started again; its connections have ended" in self.events(self.box))
        self.assertEqual(self.node.state_of(self.box), "running")
        self.assertEqual(self.node.sh(self.box, "echo $((6 * 7))").strip(), "42")
        self.assertEqual(self.tunnel(ECHO).status, 101)

    def test_a_cut_is_no_end_for_a_client(self):
        """Whoever reads a raw stream until its end must see that it was cut."""
        box = self.new_box(ECHO)
        cuts = (("the gateway dies", lambda: os.kill(self.gateway_pid(box), signal.SIGKILL)), ("a pause", lambda: self.node.space("pause", box)),
                ("a kill", lambda: self.node.kill(box)))
        for what, cut in cuts:
            if what == "a kill":
                self.node.space("connect", box)
            t = node.wait_for("a tunnel", lambda: self.try_tunnel(box))
            t.sock.sendall(b"a")
            self.assertEqual(t.read(1), b"a")
            cut()
            self.assertEqual(t.cut(), "reset", what)

    def test_a_reset_of_the_guests_program_is_no_end(self):
        t = Tunnel(self.node, None, ENDS, api_box=self.box)
        self.addCleanup(t.sock.close)
        t.sock.sendall(b"reset\n")
        self.assertEqual(t.read(4), b"half")
        t.sock.sendall(b"!")
        self.assertEqual(t.cut(), "reset")
        with socket.create_connection(("127.0.0.1", self.node.port), 90) as s:
            s.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nE2b-Sandbox-Id: {self.box}\r\nE2b-Sandbox-Port: {ENDS}\r\n\r\n".encode())
            got, told = b"", False
            try:
                while data := s.recv(65536):
                    got += data
                    if not told and b"half" in got:
                        s.sendall(b"!")
                        told = True
            except ConnectionResetError:
                pass
        self.assertIn(b" 200 ", got)
        self.assertNotIn(b"\r\n0\r\n", got, "the answer looks whole")

    def test_a_reset_of_a_client_is_one_for_the_guests_program(self):
        ends = (("end", lambda s: s.shutdown(socket.SHUT_WR)),
                ("reset", lambda s: (s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)), s.close())))
        for what, end in ends:
            t = Tunnel(self.node, None, ENDS, api_box=self.box)
            self.addCleanup(t.sock.close)
            t.sock.sendall(f"note /tmp/{what}\n".encode())
            self.assertEqual(t.read(1), b"!")
            t.sock.sendall(b"12345678")
            self.assertEqual(t.read(1), b"!")
            end(t.sock)
            noted = self.node.sh(self.box, f"for i in $(seq 600); do [ -e /tmp/{what} ] && break; sleep 0.1; done; cat /tmp/{what}").split()
            self.assertEqual(noted[1], what)

    def try_tunnel(self, box):
        """None while its gateway is being started."""
        t = Tunnel(self.node, None, ECHO, api_box=box)
        self.addCleanup(t.sock.close)
        self.assertIn(t.status, (101, 503), t.head)
        return t if t.status == 101 else None

    def test_sbx_manager_is_started_again(self):
        pid = self.gateway_pid()
        t = self.tunnel(ECHO)
        t.sock.sendall(b"a")
        self.assertEqual(t.read(1), b"a")
        self.node.kill_daemon("sbx-manager")
        self.ends(t.sock)
        node.wait_for("its port is served again", lambda: (self.api.of(self.box) or {}).get("gateway") == "up" and self.ask(HTTP).status == 200)
        self.assertEqual(self.gateway_pid(), pid, "another gateway took the place of one that lived")

    def test_log_and_counters(self):
        self.assertEqual(self.ask(HTTP).status, 200)
        cycle = lambda kind, spec: self.api.request("POST", f"/lifecycle/{kind}", "lifecycle", self.signer.make(self.box, pur="lifecycle", acc=kind), json.dumps(spec).encode())
        r = cycle("netlog", {}).json()
        seen = [x for x in r["records"] if x["dir"] == "in" and x["port"] == HTTP and x["verdict"] == "allow"]
        self.assertTrue(seen, r)
        self.assertEqual(seen[-1]["proto"], "http")
        later = cycle("netlog", {"after": r["next"]}).json()
        self.assertEqual(later["epoch"], r["epoch"])
        self.assertFalse([x for x in later["records"] if x["n"] <= r["next"]])
        self.assertEqual(self.ask(CLOSED).status, 502)
        later = cycle("netlog", {"after": r["next"]}).json()
        self.assertTrue([x for x in later["records"] if x["port"] == CLOSED and x["verdict"] == "refuse"], later)
        r = cycle("netstats", {}).json()
        self.assertEqual((r["gateway"], r["internet"], r["reason"]), ("up", True, ""))
        self.assertTrue(r["counters"], r)
        # One for the log is none for the counters, nor the other way round.
        for has, wanted in (("netlog", "netstats"), ("netstats", "netlog"), ("console", "netlog")):
            r = self.api.request("POST", f"/lifecycle/{wanted}", "lifecycle", self.signer.make(self.box, pur="lifecycle", acc=has), b"{}")
            self.assertEqual((r.status, r.headers["Space-Refusal"]), (421, "deny"), f"{has} used as {wanted}")


if __name__ == "__main__":
    unittest.main()
