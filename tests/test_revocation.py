"""After the confirmation of a kill or of a replacement not one more byte passes, whatever was queued (T-1, R-2, ARCHITECTURE: revocation)."""

import array
import base64
import fcntl
import json
import os
import signal
import socket
import struct
import termios
import threading
import time
import unittest

from harness import connect, node


def pending(sock):
    """Bytes that this machine's kernel holds for us already (SIOCINQ)."""
    buf = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, buf)
    return buf[0]


def unsent(sock):
    """Bytes that the node's socket at the other end of `sock` holds and cannot get rid of."""
    ends = tuple(f":{port:04X}" for port in (sock.getpeername()[1], sock.getsockname()[1]))
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(path) as f:
            for fields in map(str.split, f):
                if (fields[1][-5:], fields[2][-5:]) == ends:
                    return int(fields[4].split(":")[0], 16)
    return 0


class RawStream:
    """A request on a socket of its own, read and written by hand."""

    def __init__(self, n, box, token, method, path, content_type, chunked):
        self.sock = socket.create_connection(("127.0.0.1", n.port), timeout=120)
        framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: {length}"
        self.head = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {box}\r\nE2b-Sandbox-Port: 49983\r\n"
                     f"X-Access-Token: {token}\r\nContent-Type: {content_type}\r\n{framing}\r\n\r\n")
        self.total = 0
        self.first, self.last = b"", b""         # of what was read
        self.ended = None
        self.lock = threading.Lock()

    def send_body(self, body):
        self.sock.sendall(self.head.format(length=len(body)).encode() + body)

    def read_some(self):
        """One read under the lock; False at the end, which is kept in `ended`."""
        with self.lock:
            try:
                data = self.sock.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError as e:
                self.ended = e
                return False
            self.total += len(data)
            self.first = self.first or data
            self.last = (self.last + data)[-5:]
            if not data:
                self.ended = "end of file"
            return bool(data)

    def looks_whole(self):
        """An end without an error, which the framing of the answer does not show as a cut either."""
        chunked = b"\r\ntransfer-encoding: chunked\r\n" in self.first.lower()
        return self.ended == "end of file" and not (chunked and self.last != b"0\r\n\r\n")

    def limit(self):
        """No more than this may ever be read, if nothing arrives from now on."""
        with self.lock:
            return self.total + pending(self.sock)

    def drain(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.read_some():
                return
            if not pending(self.sock):
                time.sleep(0.002)


def start_body(*argv, stdin=False):
    payload = json.dumps({"process": {"cmd": argv[0], "args": list(argv[1:])}, "stdin": stdin}).encode()
    return struct.pack(">BI", 0, len(payload)) + payload


class Revocation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def setUp(self):
        self.box = self.node.create()
        self.token = self.node.api("GET", f"/sandboxes/{self.box}").json()["envdAccessToken"]
        self.addCleanup(lambda: self.node.api("DELETE", f"/sandboxes/{self.box}"))

    def stream(self, *argv, **kw):
        s = RawStream(self.node, self.box, self.token, "POST", "/process.Process/Start", "application/connect+json", False)
        s.send_body(start_body(*argv, **kw))
        return s

    def full(self, s):
        """Waits until the stream's queues are full: what is pending here has stopped to grow, and there is more."""
        seen = [0, time.monotonic()]

        def steady():
            n = pending(s.sock)
            if n != seen[0]:
                seen[:] = [n, time.monotonic()]
            return unsent(s.sock) > 0 and time.monotonic() - seen[1] > 0.7

        node.wait_for("full queues", steady)

    def upload(self, path):
        """An upload without an end, by a thread that writes what the socket takes."""
        s = RawStream(self.node, self.box, self.token, "POST", f"/files?path={path}", "application/octet-stream", True)
        s.sock.sendall(s.head.encode())
        s.sent, s.refused = 0, threading.Event()
        block = b"10000\r\n" + b"u" * 0x10000 + b"\r\n"

        def pump():
            try:
                while True:
                    s.sock.sendall(block)
                    s.sent += 0x10000
            except OSError as e:
                s.ended = e
            s.refused.set()

        s.thread = threading.Thread(target=pump, daemon=True)
        s.thread.start()
        return s

    def pump_stdin(self, pid):
        """Input for a command that does not read it, by a thread, until the first refusal."""
        p = type("Pump", (), {})()
        p.ok, p.status, p.done = 0, None, threading.Event()
        body = json.dumps({"process": {"pid": pid}, "input": {"stdin": base64.b64encode(b"i" * 30000).decode()}}).encode()

        def run():
            try:
                while True:
                    r = self.node.data("POST", self.box, "/process.Process/SendInput", token=self.token, raw=body, timeout=60)
                    if r.status != 200:
                        p.status = r.status
                        break
                    p.ok += 1
            except OSError as e:
                p.status = repr(e)
            p.done.set()

        p.thread = threading.Thread(target=run, daemon=True)
        p.thread.start()
        return p

    def under_load(self, end):
        """Streams of each kind, then `end()`; what passes after it has returned is counted."""
        never_read = self.stream("/bin/bash", "-c", "cat /dev/urandom")
        is_read = self.stream("/bin/bash", "-c", "cat /dev/urandom")
        echo = connect.start(self.node, self.box, "/bin/cat", stdin=True, token=self.token)
        pid = echo.next()["start"]["pid"]
        stuck = connect.start(self.node, self.box, "/bin/bash", "-c", "sleep 1000", stdin=True, token=self.token)
        inputs = [self.pump_stdin(pid), self.pump_stdin(stuck.next()["start"]["pid"])]
        upload = self.upload("/home/user/upload")
        stop = threading.Event()

        def reader():
            while not stop.is_set() and is_read.read_some():
                if not pending(is_read.sock):
                    time.sleep(0.001)

        t = threading.Thread(target=reader, daemon=True)
        t.start()
        self.full(never_read)
        node.wait_for("something was read", lambda: is_read.total > 1 << 20)
        node.wait_for("something was uploaded", lambda: upload.sent > 1 << 20)
        node.wait_for("input was taken", lambda: inputs[0].ok > 0)

        end()
        limits = [never_read.limit(), is_read.limit()]
        with_echo = pending(echo.sock)
        self.assertGreater(limits[0], 0)
        never_read.drain()
        t.join(60)
        stop.set()
        self.assertEqual([never_read.total, is_read.total], limits, "bytes arrived after the confirmation")
        for name, s in (("not read", never_read), ("read", is_read)):
            self.assertIsNotNone(s.ended, f"the stream that was {name} is still open")
            self.assertFalse(s.looks_whole(), f"the stream that was {name} had a clean end, as if its output was whole")
        self.assertLessEqual(pending(echo.sock), with_echo)
        with self.assertRaises((OSError, connect.StreamCut, connect.StreamError)):
            for _ in range(1 << 20):
                if echo.next() is None:
                    self.fail("the echo had a clean end")
        self.assertTrue(upload.refused.wait(60), "the upload goes on")
        for p in inputs:
            self.assertTrue(p.done.wait(90), "input is still taken")
            self.assertNotEqual(p.status, 200)
        for s in (never_read, is_read, upload):
            s.sock.close()
        return upload

    def test_kill(self):
        self.under_load(lambda: self.assertEqual(self.node.api("DELETE", f"/sandboxes/{self.box}").status, 204))
        self.assertEqual(self.node.api("GET", f"/sandboxes/{self.box}").status, 404)
        self.assertEqual(self.node.data("GET", self.box, "/health", token=self.token).status, 502)

    def test_stop(self):
        self.under_load(lambda: self.node.space("stop", self.box))
        self.assertEqual(self.node.data("GET", self.box, "/health", token=self.token).status, 502)

    def test_replacement(self):
        sizes = []

        def replace():
            self.node.space("start", self.box)

        self.node.sh(self.box, "sync")
        self.under_load(replace)
        # The old execution's upload, if it left something on the disk, does not grow; the new one knows no old command.
        for _ in range(3):
            sizes.append(connect.run(self.node, self.box, "stat -c '%n %s' /home/user/upload* /home/user/.upload* 2>/dev/null; true")[0])
        self.assertEqual(len(set(sizes)), 1, "a file of the old execution grows in the new one")
        self.assertEqual(connect.call(self.node, self.box, "List", {}).json().get("processes", []), [])
        self.assertEqual(connect.run(self.node, self.box, "pgrep -c -x cat")[0].strip(), "0")

    def test_only_the_streams_of_that_sandbox_end(self):
        other = self.node.create()
        try:
            s = connect.start(self.node, other, "/bin/cat", stdin=True)
            pid = s.next()["start"]["pid"]
            mine = self.stream("/bin/bash", "-c", "cat /dev/urandom")
            self.full(mine)
            self.assertEqual(self.node.api("DELETE", f"/sandboxes/{self.box}").status, 204)
            mine.drain()
            self.assertIsInstance(mine.ended, OSError)
            for method, more in (("SendInput", {"input": {"stdin": base64.b64encode(b"still here\n").decode()}}), ("CloseStdin", {})):
                self.assertEqual(connect.call(self.node, other, method, {"process": {"pid": pid}, **more}).status, 200)
            self.assertEqual(s.collect()[0], b"still here\n")
        finally:
            self.node.kill(other)

    def test_a_bridge_that_does_not_answer_is_killed(self):
        """100 ms for the confirmation, then its process is ended; the kill is confirmed all the same."""

        s = self.stream("/bin/bash", "-c", "cat /dev/urandom")
        self.full(s)
        os.kill(self.node.record(self.box)["bridge_pid"], signal.SIGSTOP)
        self.assertEqual(self.node.api("DELETE", f"/sandboxes/{self.box}").status, 204)
        limit = s.limit()
        s.drain()
        self.assertEqual(s.total, limit)
        self.assertIsInstance(s.ended, OSError)

    def test_the_end_of_the_client_ends_the_lease(self):
        """Leases do not pile up: many more requests than there are leases for one sandbox, each cut by the client."""
        for i in range(1200):
            s = RawStream(self.node, self.box, self.token, "POST", "/process.Process/List", "application/json", False)
            s.send_body(b"{}")
            s.sock.close()
        node.wait_for("the sandbox answers", lambda: self.node.data("POST", self.box, "/process.Process/List", {}, token=self.token).status == 200)


if __name__ == "__main__":
    unittest.main()
