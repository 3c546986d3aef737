"""Ports of sandboxes as clients reach them: by host and header, plain and with TLS, HTTP/2, WebSocket, tunnels (L-7, K-5, B-4, S-12)."""

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import threading
import unittest

from harness import grpc, node, sdk, websocket

HARNESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness")
HTTP, LOOPBACK, ECHO, CLOSED, WEBSOCKET, H2, GRPC = 8000, 8001, 9000, 8009, 8100, 8200, 8300
DOMAIN = "box.test"
MB = 1 << 20


def certificate(folder, serial):
    """A key and a certificate that signs itself, as files."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                    "-set_serial", str(serial), "-addext", f"subjectAltName=DNS:api.{DOMAIN},DNS:*.{DOMAIN},DNS:console.test",
                    "-keyout", f"{folder}/new.key", "-out", f"{folder}/new.crt"], check=True, stderr=subprocess.DEVNULL)
    os.rename(f"{folder}/new.key", f"{folder}/tls.key")
    os.rename(f"{folder}/new.crt", f"{folder}/tls.crt")


def read_answer(sock, data=b""):
    """(status, fields, body) of one answer with a length."""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    while len(body) < int(fields.get("content-length", 0)):
        part = sock.recv(65536)
        assert part, (head, body)
        body += part
    return int(lines[0].split()[1]), fields, body


def read_all(sock):
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


class H2Client:
    """Enough of HTTP/2 (RFC 9113, 7541) to hold one stream; no compression of its own."""

    def __init__(self, sock, authority, path="/h2"):
        self.sock, self.data, self.streams = sock, b"", {}
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, b""))
        name = authority.encode()
        block = b"\x83\x87\x44" + bytes([len(path)]) + path.encode() + b"\x41" + bytes([len(name)]) + name
        sock.sendall(self.frame(1, 4, 1, block))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def next(self):
        """(kind, flags, stream, payload); SETTINGS are acknowledged. None: the end."""
        while True:
            while len(self.data) < 9 or len(self.data) < 9 + int.from_bytes(self.data[:3], "big"):
                part = self.sock.recv(65536)
                if not part:
                    return None
                self.data += part
            n = int.from_bytes(self.data[:3], "big")
            kind, flags, stream = self.data[3], self.data[4], int.from_bytes(self.data[5:9], "big")
            payload, self.data = self.data[9:9 + n], self.data[9 + n:]
            if kind == 4 and not flags & 1:
                self.sock.sendall(self.frame(4, 1, 0, b""))
            return kind, flags, stream, payload

    def send(self, data, end=False):
        self.sock.sendall(self.frame(0, 1 if end else 0, 1, data))


class Base(unittest.TestCase):
    """One node and one sandbox with servers, for all classes."""

    made = None

    @classmethod
    def setUpClass(cls):
        if Base.made is None:
            n = Base.node = Base.made = node.Node()
            unittest.addModuleCleanup(n.remove)
            Base.folder, Base.tls_port = n.dir, node.free_port()
            certificate(n.dir, 1)
            n.up("--tls-cert", f"{n.dir}/tls.crt", "--tls-key", f"{n.dir}/tls.key", "--tls-port", str(Base.tls_port), "--domain", f"{DOMAIN}:{Base.tls_port}")
            Base.box = cls.new_box()

    @classmethod
    def new_box(cls, *options, servers=("guest_server", "preview_server")):
        box = cls.node.create(*options)
        for name in servers:
            cls.node.space("cp", f"{HARNESS}/{name}.py", f"{box}:/tmp/{name}.py")
            cls.node.sh(box, f"setsid python3 /tmp/{name}.py > /tmp/{name}.log 2>&1 < /dev/null & for i in $(seq 600); do grep -q ready /tmp/{name}.log && exit 0; "
                             f"sleep 0.1; done; cat /tmp/{name}.log; exit 1", timeout=240)
        return box

    def host(self, port, box=None):
        return f"{port}-{box or self.box}.{DOMAIN}"

    def plain(self):
        s = socket.create_connection(("127.0.0.1", self.node.port), timeout=60)
        self.addCleanup(s.close)
        return s

    def tls(self, name, alpn=None, check=True):
        context = ssl.create_default_context(cafile=f"{self.folder}/tls.crt")
        if not check:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if alpn:
            context.set_alpn_protocols(alpn)
        s = context.wrap_socket(socket.create_connection(("127.0.0.1", self.tls_port), timeout=60), server_hostname=name, suppress_ragged_eofs=False)
        self.addCleanup(s.close)
        return s

    @classmethod
    def grpc(cls, kind, port, box):
        c = grpc.Client(kind)
        cls.addClassCleanup(c.close)
        c.ask("open", target=f"127.0.0.1:{cls.tls_port}", name=f"{port}-{box}.{DOMAIN}", ca=f"{cls.folder}/tls.crt")
        return c

    def ask(self, sock, host, path="/", method="GET", body=None, **fields):
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n" + "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in fields.items())
        if body is not None:
            head += f"Content-Length: {len(body)}\r\n"
        sock.sendall(head.encode() + b"\r\n" + (body or b""))
        return read_answer(sock)


class Previews(Base):
    def test_by_host_and_by_header(self):
        s = self.plain()
        for port in (HTTP, LOOPBACK):
            status, _, body = self.ask(s, self.host(port), "/a?b=c")
            self.assertEqual((status, body), (200, f"/a?b=c on {port}".encode()))
        status, _, body = self.ask(s, f"127.0.0.1:{self.node.port}", "/x", E2b_Sandbox_Id=self.box, E2b_Sandbox_Port=HTTP)
        self.assertEqual((status, body), (200, b"/x on 8000"))
        big = os.urandom(3 * MB)
        self.assertEqual(self.ask(s, self.host(HTTP), "/", "POST", big)[2], big)
        s.sendall(f"POST / HTTP/1.1\r\nHost: {self.host(HTTP)}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".encode())
        self.assertEqual(read_answer(s)[2], b"hello")

    def test_what_reaches_the_guest(self):
        secret = {"X-API-Key": self.node.key(), "X-Access-Token": "t", "E2B-Traffic-Access-Token": "t", "Space-Capability": "x", "Space-Op": "lifecycle",
                  "E2b-Sandbox-Id": self.box, "E2b-Sandbox-Port": HTTP}
        mine = {"Authorization": "Bearer mine", "Cookie": "a=b", "Origin": "https://page.test", "X-Request-Id": "mine"}
        status, _, body = self.ask(self.plain(), self.host(HTTP), "/fields", **secret, **mine)
        got = dict(line.split(": ", 1) for line in body.decode().splitlines())
        got = {k.lower(): v for k, v in got.items()}
        self.assertEqual(status, 200)
        for name in secret:
            self.assertNotIn(name.lower(), got)
        for name, value in mine.items():
            self.assertEqual(got[name.lower()], value)
        self.assertEqual(got["host"], self.host(HTTP))
        self.assertFalse([k for k in got if k.startswith("space-")])

    def test_a_guest_does_not_speak_for_us(self):
        status, fields, body = self.ask(self.plain(), self.host(HTTP), "/for-the-platform")
        self.assertEqual((status, body, fields["x-own"]), (421, b"guest", "yes"))
        self.assertFalse([k for k in fields if k.startswith("space-")])

    def test_a_closed_port(self):
        for sock, host in ((self.plain(), self.host(CLOSED)), (self.tls(self.host(CLOSED)), self.host(CLOSED))):
            status, fields, body = self.ask(sock, host)
            self.assertEqual(status, 502)
            self.assertEqual(json.loads(body), {"sandboxId": self.box, "message": "The sandbox is running but port is not open", "port": CLOSED, "code": 502})
        status, _, body = self.ask(self.plain(), f"{HTTP}-i{'0' * 20}.{DOMAIN}")
        self.assertEqual((status, json.loads(body)["message"]), (502, "The sandbox was not found"))

    def test_the_api_is_not_there(self):
        """Beneath the domain there are sandboxes alone; the API has its own name."""
        key = self.node.key()
        s = self.plain()
        self.assertEqual(self.ask(s, self.host(HTTP), "/v2/sandboxes", X_API_Key=key)[2], b"/v2/sandboxes on 8000")
        self.assertEqual(self.ask(s, f"www.{DOMAIN}", "/v2/sandboxes", X_API_Key=key)[0], 404)
        status, fields, _ = self.ask(s, f"api.{DOMAIN}", "/v2/sandboxes", X_API_Key=key, Origin="https://evil.test")
        self.assertEqual(status, 200)
        self.assertFalse([k for k in fields if k.startswith("access-control-")])
        status, _, body = self.ask(s, self.host(HTTP), "/", E2b_Sandbox_Id="i" + "0" * 20, E2b_Sandbox_Port=HTTP)
        self.assertEqual(status, 400, body)

    def test_a_stream_flows(self):
        """The first piece is there before the second is made."""
        go = "/tmp/go-" + os.urandom(4).hex()
        s = self.tls(self.host(HTTP))
        s.sendall(f"GET /two-pieces?file={go} HTTP/1.1\r\nHost: {self.host(HTTP)}\r\n\r\n".encode())
        data = b""
        while b"one\n" not in data:
            data += s.recv(4096)
        self.assertNotIn(b"two", data)
        self.node.sh(self.box, f"touch {go}")
        while not data.endswith(b"0\r\n\r\n"):
            data += s.recv(4096)
        self.assertIn(b"two\n", data)

    def test_smuggling_ends_here(self):
        host = self.host(HTTP)
        forms = ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
                 "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
                 "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "Content-Length: +4\r\n\r\nabcd",
                 "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "X: y\nTransfer-Encoding: chunked\r\n\r\n", "Host: other\r\n\r\n")
        for form in forms:
            for sock in (self.plain(), self.tls(host)):
                sock.sendall(f"POST / HTTP/1.1\r\nHost: {host}\r\n{form}".encode())
                status, fields, body = read_answer(sock)
                self.assertIn(status, (400, 501), (form, body))
                self.assertEqual(fields.get("connection"), "close", form)

    def test_http2_without_tls(self):
        s = self.plain()
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        status, _, body = read_answer(s)
        self.assertEqual(status, 505)
        self.assertIn("over TLS", json.loads(body)["message"])
        status, _, body = self.ask(self.plain(), self.host(HTTP), "/fields", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
        self.assertEqual(status, 200)
        self.assertNotIn("h2c", body.decode())

    def test_websocket(self):
        for secure in (False, True):
            with self.subTest(tls=secure):
                w = object.__new__(websocket.WebSocket)
                sock = self.tls(self.host(WEBSOCKET)) if secure else self.plain()
                w.sock, w.data, w.key = sock, bytearray(), "AAAAAAAAAAAAAAAAAAAAAA=="
                sock.sendall(f"GET /chat HTTP/1.1\r\nHost: {self.host(WEBSOCKET)}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {w.key}\r\n\r\n".encode())
                w._answer()
                for n in (0, 5, 126, 70000):
                    data = os.urandom(n)
                    w.send(data)
                    self.assertEqual(w.next_frame(), (websocket.BINARY, data))
                self.assertEqual(w.close(1000), 1000)

    def test_a_paused_one_wakes(self):
        box = self.new_box("--auto-resume")
        self.addCleanup(self.node.kill, box)
        self.node.space("pause", box)
        self.assertEqual(self.ask(self.plain(), self.host(HTTP, box), "/up")[2], b"/up on 8000")
        self.assertEqual(self.node.state_of(box), "running")
        self.node.space("pause", box)
        s = self.tls(self.host(H2, box), ["h2"])
        c = H2Client(s, self.host(H2, box))
        while (f := c.next())[0] != 1:
            pass
        self.assertEqual(f[2], 1)

    def test_the_log_and_the_counters(self):
        self.ask(self.plain(), self.host(HTTP), "/logged")
        self.ask(self.plain(), self.host(CLOSED), "/closed")
        records = node.wait_for("the records", lambda: [r for r in json.loads(self.node.space("net", "log", "--json", self.box).stdout)
                                                        if r["direction"] == "in" and r["port"] == HTTP and r.get("endTime")])
        self.assertEqual(records[-1]["protocol"], "http")
        self.assertGreater(records[-1]["bytesUp"], 0)
        self.assertIn("8000", self.node.space("net", "log", self.box).stdout)
        stats = json.loads(self.node.space("net", "stats", "--json", self.box).stdout)
        self.assertEqual((stats["gateway"], stats["internet"]), ("up", True))
        self.assertTrue(any(stats["counters"].values()))
        self.assertIn("gateway", self.node.space("net", "stats", self.box).stdout)
        follow = subprocess.Popen([node.SPACE, "net", "log", "--follow", self.box], env=self.node.env(), stdout=subprocess.PIPE, text=True)
        self.addCleanup(follow.wait)
        self.addCleanup(follow.kill)
        lines = []
        threading.Thread(target=lambda: lines.extend(iter(follow.stdout.readline, "")), daemon=True).start()
        node.wait_for("old records", lambda: lines)
        before = len(lines)
        self.ask(self.plain(), self.host(LOOPBACK), "/followed")
        node.wait_for("new ones", lambda: any(f":{LOOPBACK}" in line for line in lines[before:]))


class Private(Base):
    """network.allowPublicTraffic is false."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.private = cls.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3000, "network": {"allowPublicTraffic": False},
                                                             "allow_internet_access": False}).json()
        cls.token = cls.private["trafficAccessToken"]

    def test_the_token(self):
        box = self.private["sandboxID"]
        self.assertRegex(self.token, "^[0-9a-f]{64}$")
        detail = self.node.api("GET", f"/sandboxes/{box}").json()
        self.assertEqual((detail["allowInternetAccess"], detail["network"]), (False, {"allowPublicTraffic": False}))
        self.node.sh(box, "setsid python3 -m http.server 8000 > /dev/null 2>&1 < /dev/null & sleep 1")
        s = self.plain()
        for fields in ({}, {"E2B-Traffic-Access-Token": "0" * 64}, {"E2B-Traffic-Access-Token": self.private["envdAccessToken"]}, {"X-API-Key": self.node.key()},
                       {"X-Access-Token": self.private["envdAccessToken"]}):
            status, _, body = self.ask(s, self.host(HTTP, box), **fields)
            self.assertEqual((status, json.loads(body)["code"]), (403, 403), fields)
        node.wait_for("the server", lambda: self.ask(self.plain(), self.host(HTTP, box), E2B_Traffic_Access_Token=self.token)[0] == 200)
        self.assertEqual(self.ask(self.tls(self.host(HTTP, box)), self.host(HTTP, box), E2B_Traffic_Access_Token=self.token)[0], 200)
        again = self.node.api("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 3000}).json()
        self.assertEqual(again["trafficAccessToken"], self.token)
        public = self.node.api("POST", f"/v2/sandboxes/{self.box}/connect", {"timeout": 3000}).json()
        self.assertIsNone(public["trafficAccessToken"])

    def test_no_http2(self):
        """A frame cannot be asked for a token: ALPN has http/1.1 alone."""
        host = self.host(H2, self.private["sandboxID"])
        self.assertEqual(self.tls(host, ["h2", "http/1.1"]).selected_alpn_protocol(), "http/1.1")
        with self.assertRaisesRegex(ssl.SSLError, "(?i)no.application.protocol"):
            self.tls(host, ["h2"])
        for kind in grpc.KINDS:
            r = self.grpc(kind, GRPC, self.private["sandboxID"]).ask("unary", size=10)
            self.assertEqual(r["code"], "UNAVAILABLE", r)
            self.assertRegex(r["details"], "(?i)no.application.protocol")


class Tls(Base):
    def test_names(self):
        s = self.tls(f"api.{DOMAIN}", ["http/1.1"])
        self.assertEqual(s.selected_alpn_protocol(), "http/1.1")
        self.assertEqual(self.ask(s, f"api.{DOMAIN}", "/health")[2], b'{"status":"ok"}')
        s = self.tls(self.host(HTTP))
        self.assertEqual(self.ask(s, f"{self.host(HTTP)}:{self.tls_port}", "/tls")[2], b"/tls on 8000")
        self.assertEqual(self.ask(s, f"api.{DOMAIN}", "/health")[0], 421)
        self.assertEqual(self.ask(self.tls("console.test"), "console.test", "/health")[0], 200)
        self.assertEqual(self.ask(self.tls(None, check=False), f"127.0.0.1:{self.tls_port}", "/health")[0], 200)
        for name in ("evil.test", f"www.{DOMAIN}", f"a.b.{DOMAIN}"):
            with self.assertRaisesRegex(ssl.SSLError, "(?i)unrecognized.name"):
                self.tls(name, check=False)
        s = socket.create_connection(("127.0.0.1", self.tls_port), timeout=60)
        self.addCleanup(s.close)
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertIn(b"HTTPS", read_all(s))

    def test_http2_is_one_tunnel(self):
        host = self.host(H2)
        s = self.tls(host, ["h2"])
        self.assertEqual(s.selected_alpn_protocol(), "h2")
        c = H2Client(s, host)
        sent = [os.urandom(1000) for _ in range(8)]
        got, trailers, i = b"", False, 0
        while not trailers:
            kind, flags, stream, payload = c.next()
            if kind == 1 and not got:
                self.assertIn(b"\x88", payload[:4])      # :status 200
                self.assertIn(b"/h2", payload)
            trailers |= kind == 1 and bool(flags & 1)
            got += payload if kind == 0 else b""
            if kind in (0, 1) and i < len(sent) and len(got) == 1000 * i:
                c.send(sent[i], end=i + 1 == len(sent))
                i += 1
        self.assertEqual(got, b"".join(sent))
        log = json.loads(self.node.space("net", "log", "--json", self.box).stdout)
        self.assertTrue([r for r in log if r["protocol"] == "h2" and r["port"] == H2])
        # who can do without is served without: nobody knows what the port speaks
        self.assertEqual(self.tls(self.host(HTTP), ["h2", "http/1.1"]).selected_alpn_protocol(), "http/1.1")
        # what we say ourselves is an answer and a farewell
        c = H2Client(self.tls(self.host(CLOSED), ["h2"]), self.host(CLOSED))
        frames = []
        while f := c.next():
            frames.append(f)
        self.assertEqual([f[0] for f in frames], [4, 4, 1, 7])
        for f in frames[2:]:
            self.assertIn(b"port is not open", f[3])

    def test_a_client_of_node(self):
        """A real client, if there is one on this machine."""
        script = f"""
            const s = require('http2').connect('https://{self.host(H2)}', {{ ca: require('fs').readFileSync('{self.folder}/tls.crt'),
              createConnection: () => require('tls').connect({{ port: {self.tls_port}, host: '127.0.0.1', servername: '{self.host(H2)}', ALPNProtocols: ['h2'],
              ca: require('fs').readFileSync('{self.folder}/tls.crt') }}) }})
            let left = 3
            for (let i = 0; i < 3; i++) {{
              const r = s.request({{ ':method': 'POST', ':path': '/r' + i }})
              let body = ''
              r.on('response', (h) => console.log(h[':status'], h['x-path']))
              r.on('data', (d) => (body += d)).on('trailers', (t) => console.log('trailers', t['grpc-status']))
              r.on('end', () => {{ console.log(body.length); if (--left === 0) s.close() }})
              r.end('x'.repeat(100000))
            }}"""
        try:
            r = subprocess.run(["node", "-e", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        except FileNotFoundError:
            self.skipTest("no node on this machine")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(sorted(r.stdout.split()), sorted("200 /r0 200 /r1 200 /r2 trailers 0 trailers 0 trailers 0 100000 100000 100000".split()))

    def test_an_sdk_by_domain(self):
        """E2B_DOMAIN alone, as E2B's own service is used."""
        env = self.node.env(E2B_API_KEY=self.node.key(), E2B_DOMAIN=f"{DOMAIN}:{self.tls_port}", NODE_EXTRA_CA_CERTS=f"{self.folder}/tls.crt", SPACE_RESOLVE="127.0.0.1")
        r = subprocess.run(["node", "domain.mjs", "e2b-2.51.0"], cwd=sdk.javascript(), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual((r.returncode, r.stdout.split()), (0, "command 42 file hello signed hello closed 502 port hello".split()), r.stderr)

    def test_a_new_certificate_cuts_nothing(self):
        def serial():
            s = self.tls(f"api.{DOMAIN}", check=False)
            text = subprocess.run(["openssl", "x509", "-noout", "-serial"], input=ssl.DER_cert_to_PEM_cert(s.getpeercert(True)), text=True, stdout=subprocess.PIPE)
            return int(text.stdout.strip().split("=")[1], 16)

        go = "/tmp/go-" + os.urandom(4).hex()
        running = self.tls(self.host(HTTP))
        running.sendall(f"GET /two-pieces?file={go} HTTP/1.1\r\nHost: {self.host(HTTP)}\r\n\r\n".encode())
        first = running.recv(4096)
        self.assertEqual(serial(), 1)
        certificate(self.folder, 2)
        node.wait_for("the new certificate", lambda: serial() == 2)
        # half a change is none
        os.rename(f"{self.folder}/tls.key", f"{self.folder}/kept.key")
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{self.folder}/tls.key"], check=True, stderr=subprocess.DEVNULL)
        node.wait_for("it says so", lambda: "the one before stays" in self.node.log("space-api"))
        self.assertEqual(serial(), 2)
        os.rename(f"{self.folder}/kept.key", f"{self.folder}/tls.key")
        self.node.sh(self.box, f"touch {go}")
        data = first
        while not data.endswith(b"0\r\n\r\n"):
            part = running.recv(4096)
            self.assertTrue(part, data)
            data += part
        self.assertIn(b"two\n", data)

    def test_handshakes_that_never_end(self):
        """Each of them costs little, and who does speak is served."""
        idle = [socket.create_connection(("127.0.0.1", self.tls_port), timeout=60) for _ in range(400)]
        try:
            self.assertEqual(self.ask(self.tls(f"api.{DOMAIN}"), f"api.{DOMAIN}", "/health")[0], 200)
        finally:
            for s in idle:
                s.close()

    def test_a_cut_is_no_end(self):
        """The sandbox goes in the middle of an answer: the client sees no orderly end of its stream."""
        box = self.new_box()
        s = self.tls(self.host(HTTP, box))
        s.sendall(f"GET /two-pieces?file=/none HTTP/1.1\r\nHost: {self.host(HTTP, box)}\r\n\r\n".encode())
        data = b""
        while b"one\n" not in data:
            data += s.recv(4096)
        self.node.kill(box)
        with self.assertRaises(OSError):                 # a reset, or at least no close_notify
            while s.recv(4096):
                pass
        self.assertNotIn(b"two", data)

    def test_plain_http_stays_here(self):
        with open("/proc/net/tcp") as f:
            listens = [line.split()[1] for line in f if line.split()[3] == "0A"]
        self.assertIn(f"0100007F:{self.node.port:04X}", listens)
        r = subprocess.run([node.SPACE, "up", *self.node.options(), "--listen", "0.0.0.0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(r.returncode, 2)
        self.assertIn("--plain-http", r.stderr)


class Grpc(Base):
    """Two libraries as clients of a server on the guest's loopback, which speaks HTTP/2 without TLS."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        box = cls.ours = cls.new_box("--auto-resume", servers=())
        grpc.put(cls.node, box)
        # Asked before anybody listens.
        cls.early = [cls.grpc(kind, GRPC, box) for kind in grpc.KINDS]
        calls = ({"do": "unary", "size": grpc.BIG}, {"do": "many", "count": 1, "size": 10}, {"do": "sum", "count": 10, "size": 1000})
        cls.refused = [c.ask(**call, timeout=30) for c in cls.early for call in calls]
        cls.refused_at_once = [c.ask("at_once", count=20, size=1000, timeout=30) for c in cls.early]
        grpc.serve(cls.node, box, GRPC)

    def leases(self):
        log = json.loads(self.node.space("net", "log", "--json", self.ours).stdout)
        return {r["flow"] for r in log if (r["protocol"], r["port"], r["verdict"]) == ("h2", GRPC, "allow")}

    def test_calls(self):
        for kind in grpc.KINDS:
            with self.subTest(kind):
                before = self.leases()
                grpc.check_calls(self, self.grpc(kind, GRPC, self.ours))
                self.assertEqual(len(self.leases() - before), 1)

    def test_what_is_said_instead(self):
        """An answer to each call; the same channel gets through once there is a server."""
        for r in self.refused:
            self.assertEqual((r["code"], r["details"]), ("UNAVAILABLE", "The sandbox is running but port is not open"), r)
        self.assertEqual(self.refused_at_once, [{"codes": ["UNAVAILABLE"], "same": 0}] * len(self.early))
        for c in self.early:
            self.assertEqual(c.ask("unary", size=10)["code"], "OK")
        for kind in grpc.KINDS:
            r = self.grpc(kind, GRPC, "i" + "0" * 20).ask("unary", size=10)
            self.assertEqual((r["code"], r["details"]), ("UNAVAILABLE", "The sandbox was not found"), r)

    def test_a_pause(self):
        """It ends the calls that wait, with their connection. The next call makes another one, which wakes the sandbox."""
        watcher = self.grpc("grpcio", GRPC, self.ours)
        for kind in grpc.KINDS:
            with self.subTest(kind):
                client, results, begun = self.grpc(kind, GRPC, self.ours), [], watcher.seen()["begun"]
                waits = threading.Thread(target=lambda: results.append(client.ask("wait", timeout=100)))
                waits.start()
                node.wait_for("the call", lambda: watcher.seen()["begun"] > begun)
                self.node.space("pause", self.ours)
                waits.join()
                self.assertEqual(results[0]["code"], "UNAVAILABLE", results)
                r = client.ask("unary", size=10)
                self.assertEqual((r["code"], r["same"]), ("OK", True), r)


class Forward(Base):
    def command(self, *args):
        return [node.SPACE, *args], self.node.env()

    def start(self, *ports, box=None):
        command, env = self.command("port-forward", box or self.box, *ports)
        p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        lines = [p.stdout.readline() for _ in ports]
        self.assertTrue(all(lines), lines)
        return p, [int(line.split(" -> ")[0].rpartition(":")[2]) for line in lines]

    def test_ten_megabytes_both_ways(self):
        p, (port,) = self.start(f"0:{ECHO}")
        data = os.urandom(10 * MB)
        with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
            sender = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
            sender.start()
            back = read_all(s)
            sender.join()
        self.assertEqual(len(back), len(data) + len(b"%d bytes\n" % len(data)))
        self.assertEqual(back[:len(data)], data)
        self.assertTrue(back.endswith(b"%d bytes\n" % len(data)))
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(90), 0)

    def test_an_open_connection_is_cut_when_it_ends(self):
        p, (port,) = self.start(f"0:{ECHO}")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(b"x")
            self.assertEqual(s.recv(1), b"x")
            p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(90), 0)
            with self.assertRaises(ConnectionResetError):           # not the end of what the guest sends
                s.recv(1)

    def test_several_ports_and_one_that_is_closed(self):
        p, ports = self.start(f"0:{HTTP}", f"0:{LOOPBACK}", f"0:{CLOSED}")
        for port, remote in zip(ports[:2], (HTTP, LOOPBACK)):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
                self.assertEqual(self.ask(s, "any", "/forwarded")[2], f"/forwarded on {remote}".encode())
        with socket.create_connection(("127.0.0.1", ports[2]), timeout=60) as s:
            with self.assertRaises(ConnectionResetError):
                self.assertNotEqual(s.recv(1), b"")
        p.terminate()
        self.assertIn("port is not open", p.communicate(timeout=90)[1])

    def test_many_connections(self):
        _, (port,) = self.start(f"0:{ECHO}")
        socks = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50)]
        for i, s in enumerate(socks):
            s.sendall(b"%d" % i)
        for i, s in enumerate(socks):
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(read_all(s), b"%d%d bytes\n" % (i, len(b"%d" % i)))
            s.close()

    def test_who_may(self):
        other = self.node.new_key("other")
        target = f"/v1/sandboxes/{self.box}/ports/{ECHO}/tunnel"
        s = self.plain()
        up = {"Connection": "Upgrade", "Upgrade": "space-tunnel"}
        self.assertEqual(self.ask(s, "x", target, **up)[0], 401)
        self.assertEqual(self.ask(s, "x", target, X_API_Key=other, **up)[0], 404)
        self.assertEqual(self.ask(s, "x", target, X_API_Key=self.node.key())[0], 426)
        r = self.node.space("port-forward", "i" + "0" * 20, "80", check=False)
        self.assertEqual(r.returncode, 1)
        for words in ((self.box,), (self.box, "x"), (self.box, "1:0"), (self.box, "70000")):
            self.assertEqual(self.node.space("port-forward", *words, check=False).returncode, 2)

    def test_a_sandbox_that_goes(self):
        box = self.new_box(servers=("guest_server",))
        _, (port,) = self.start(f"0:{ECHO}", box=box)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(b"x")
            self.assertEqual(s.recv(1), b"x")
            self.node.kill(box)
            with self.assertRaises(ConnectionResetError):
                while s.recv(4096):
                    pass


class ByHttps(Forward):
    """`space` from another machine: a name that is looked up, HTTPS, a certificate of an authority that it was told of."""

    def command(self, *args, ca="tls.crt"):
        with open(f"{self.folder}/hosts", "w") as f:
            f.write(f"127.0.0.1 localhost\n::1 api.{DOMAIN}\n127.0.0.1 api.{DOMAIN}\n")     # nobody listens at the first
        return (["unshare", "-m", "sh", "-c", f"mount --bind {self.folder}/hosts /etc/hosts && exec \"$@\"", "sh", node.SPACE, *args],
                {**self.node.env(E2B_API_URL=f"https://api.{DOMAIN}:{self.tls_port}", E2B_API_KEY=self.node.key(), SSL_CERT_FILE=f"{self.folder}/{ca}"),
                 "XDG_CONFIG_HOME": "/nowhere"})

    def space(self, *args, input=b"", **kw):
        command, env = self.command(*args, **kw)
        return subprocess.run(command, env=env, input=input, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)

    def test_commands(self):
        r = self.space("env")
        self.assertIn(f"E2B_SANDBOX_URL='https://api.{DOMAIN}:{self.tls_port}'", r.stdout.decode())
        self.assertIn(self.box, self.space("ls", "-q").stdout.decode())
        r = self.space("exec", self.box, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (7, b"out\n", b"err\n"))
        data = os.urandom(4 * MB)
        self.assertEqual(self.space("exec", "-i", self.box, "--", "cat", input=data).stdout, data)
        self.assertEqual(self.space("cp", "-", f"{self.box}:/tmp/by-https", input=data).stderr, b"")
        self.assertEqual(self.space("cp", f"{self.box}:/tmp/by-https", "-").stdout, data)
        command, env = self.command("exec", self.box, "--", "sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 1; done")
        p = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.assertEqual(p.stdout.readline(), b"ready\n")
        p.send_signal(signal.SIGINT)
        self.assertEqual((p.communicate(timeout=60), p.returncode)[1], 9)

    def test_a_certificate_that_nobody_vouches_for(self):
        with open(f"{self.folder}/empty.crt", "w"):
            pass
        r = self.space("ls", ca="empty.crt")
        self.assertEqual((r.returncode, r.stdout), (1, b""))
        self.assertIn(f"the certificate of api.{DOMAIN} is refused", r.stderr.decode())
        self.assertIn("SSL_CERT_FILE", r.stderr.decode())


if __name__ == "__main__":
    unittest.main()
