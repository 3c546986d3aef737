"""A WebSocket client (RFC 6455), small and strict: what a test of a server needs, and nothing that hides what the server does."""

import base64
import hashlib
import json
import os
import socket
import struct
import time

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Refused(Exception):
    """The handshake was answered with something else than 101."""

    def __init__(self, status, headers, body):
        super().__init__(f"{status}: {body[:300]!r}")
        self.status, self.headers, self.body = status, headers, body


class Closed(Exception):
    """The server closed: its code (1006 without a close frame) and reason."""

    def __init__(self, code, reason=""):
        super().__init__(f"closed {code} {reason}")
        self.code, self.reason = code, reason


class WebSocket:
    def __init__(self, port, target, protocols=(), headers=None, timeout=60, receive_buffer=None, key=None):
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", port))
        self.data = bytearray()
        self.key = key or base64.b64encode(os.urandom(16)).decode()
        fields = {"Host": f"127.0.0.1:{port}", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                  "Sec-WebSocket-Key": self.key}
        if protocols:
            fields["Sec-WebSocket-Protocol"] = ", ".join(protocols)
        fields.update(headers or {})
        head = "".join(f"{k}: {v}\r\n" for k, v in fields.items() if v is not None)
        self.sock.sendall(f"GET {target} HTTP/1.1\r\n{head}\r\n".encode())
        try:
            self._answer()
        except BaseException:
            self.sock.close()
            raise

    def _answer(self):
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, _, rest = bytes(self.data).partition(b"\r\n\r\n")
        self.data = bytearray(rest)
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        if self.status != 101:
            while len(self.data) < int(self.headers.get("content-length", 0)):
                self._more()
            raise Refused(self.status, self.headers, bytes(self.data))
        want = base64.b64encode(hashlib.sha1((self.key + GUID).encode()).digest()).decode()
        assert self.headers["sec-websocket-accept"] == want, self.headers

    def _more(self):
        part = self.sock.recv(65536)
        if not part:
            raise Closed(1006)
        self.data += part

    def _first(self, n):
        while len(self.data) < n:
            self._more()
        return bytes(memoryview(self.data)[:n])

    # -- sending

    def frame(self, opcode, payload, fin=True, mask=True, rsv=0):
        head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
        n = len(payload)
        bit = 0x80 if mask else 0
        if n < 126:
            head += bytes([bit | n])
        elif n < 65536:
            head += bytes([bit | 126]) + struct.pack(">H", n)
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", n)
        if mask:
            key = os.urandom(4)
            pad = int.from_bytes((key * (n // 4 + 1))[:n], "big")
            payload = key + (int.from_bytes(payload, "big") ^ pad).to_bytes(n, "big")
        return head + payload

    def send(self, data, **kw):
        self.sock.sendall(self.frame(BINARY, data, **kw))

    def say(self, **message):
        self.sock.sendall(self.frame(TEXT, json.dumps(message).encode()))

    # -- receiving

    def next_frame(self):
        """
        (opcode, payload) of the next frame, taken when all of it is there: a time-out loses nothing. A ping is answered.
        Fragments do not come from our server.
        """
        first, second = self._first(2)
        assert first & 0x70 == 0 and first & 0x80, f"flags of a frame: {first:#x}"
        assert second & 0x80 == 0, "a server must not mask"
        n, at = second & 0x7f, 2
        if n == 126:
            at, (n,) = 4, struct.unpack(">H", self._first(4)[2:])
        elif n == 127:
            at, (n,) = 10, struct.unpack(">Q", self._first(10)[2:])
        payload = self._first(at + n)[at:]
        del self.data[:at + n]
        opcode = first & 0xf
        if opcode == PING:
            self.sock.sendall(self.frame(PONG, payload))
        if opcode == CLOSE:
            code = struct.unpack(">H", payload[:2])[0] if payload else 1005
            try:
                self.sock.sendall(self.frame(CLOSE, payload[:2]))
            except OSError:
                pass
            raise Closed(code, payload[2:].decode())
        return opcode, payload

    def close(self, code=1000):
        """The closing handshake; gives the server's code."""
        try:
            self.sock.sendall(self.frame(CLOSE, struct.pack(">H", code)))
            while True:
                self.next_frame()
        except Closed as e:
            return e.code
        except OSError:
            return 1006
        finally:
            self.sock.close()


class Terminal(WebSocket):
    """A terminal of a sandbox: what it prints is gathered in `text`, what the server says in `said`."""

    def __init__(self, node, sandbox, query="cols=100&rows=30", **kw):
        self.text, self.said = b"", []
        headers = {"X-API-Key": node.key(), **kw.pop("headers", {})}
        super().__init__(node.port, f"/v1/sandboxes/{sandbox}/terminal?{query}", headers=headers, **kw)

    def step(self):
        opcode, payload = self.next_frame()
        if opcode == BINARY:
            self.text += payload
        elif opcode == TEXT:
            self.said.append(json.loads(payload))

    def until(self, condition, what, seconds=60):
        end, usual = time.monotonic() + seconds, self.sock.gettimeout()
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                self.sock.settimeout(usual)
                raise AssertionError(f"{what} did not come; got {self.text[-2000:]!r} {self.said}")
            try:
                self.sock.settimeout(left)
                self.step()
                self.sock.settimeout(usual)
            except TimeoutError:
                continue
            except Closed as e:
                if condition():
                    return
                raise AssertionError(f"{e} before {what}; got {self.text[-2000:]!r} {self.said}") from e

    def expect(self, text, seconds=60):
        """Reads until `text` was seen; gives what came before, and throws both away."""
        self.until(lambda: text in self.text, repr(text), seconds)
        before, _, self.text = self.text.partition(text)
        return before

    def hear(self, kind, seconds=60):
        """The next control message of that type; others before it are dropped."""
        self.until(lambda: any(m["type"] == kind for m in self.said), kind, seconds)
        while (m := self.said.pop(0))["type"] != kind:
            pass
        return m

    def attached(self):
        self.attach = self.hear("attached")
        return self

    def ended(self, seconds=60):
        """Reads to the end: the close code. Messages stay in `said`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.step()
            except Closed as e:
                self.sock.close()
                return e.code
        raise AssertionError(f"no end; got {self.text[-2000:]!r} {self.said}")
