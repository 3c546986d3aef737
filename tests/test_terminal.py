"""Terminals over WebSocket (U-1): who may open one, what it carries, what it does to a slow client, how a shell is found again."""

import hashlib
import json
import os
import struct
import threading
import unittest

from harness import node
from harness.memory import COUNTS
from harness.websocket import CLOSE, PING, PONG, TEXT, Refused, Terminal, WebSocket

PROTOCOL = "space.terminal.v1"

# A program that says each new size of its terminal. Shells are left out where a size is tested: they draw their line anew.
# The signal is waited for, not caught: a handler could run between the loop's test and its pause, which then never ends.
SIZES = """exec python3 -c '
import signal, os
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
while True: os.write(1, b"size %d %d\\n" % os.get_terminal_size()[::-1]); signal.sigwait([signal.SIGWINCH])
'"""


def refused(test, status, *args, **kw):
    with test.assertRaises(Refused) as r:
        WebSocket(*args, **kw)
    test.assertEqual(r.exception.status, status, r.exception)
    return r.exception


class Door(unittest.TestCase):
    """Handshakes: nothing is opened for who may not."""

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()
        cls.path = f"/v1/sandboxes/{cls.box}/terminal"
        cls.origin = f"http://127.0.0.1:{cls.node.port}"
        cls.key = {"X-API-Key": cls.node.key()}

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def ticket(self, box=None):
        r = self.node.api("POST", f"/v1/sandboxes/{box or self.box}/terminal-tickets")
        self.assertEqual(r.status, 201, r.body)
        return r.json()

    def open_with(self, ticket, box=None, origin=True):
        headers = {"Origin": self.origin} if origin else {}
        return WebSocket(self.node.port, f"/v1/sandboxes/{box or self.box}/terminal", (PROTOCOL, f"ticket.{ticket}"), headers)

    def test_what_is_no_handshake(self):
        self.assertEqual(self.node.api("GET", self.path).status, 426)
        r = refused(self, 426, self.node.port, self.path, headers={**self.key, "Sec-WebSocket-Version": "8"})
        self.assertEqual((r.headers["sec-websocket-version"], r.headers["upgrade"]), ("13", "websocket"))
        for field, value in (("Sec-WebSocket-Key", "short"), ("Sec-WebSocket-Key", None), ("Sec-WebSocket-Protocol", "chat"),
                             ("Content-Length", "3")):
            refused(self, 400, self.node.port, self.path, headers={**self.key, field: value})
        for query in ("cols=0", "rows=1001", "pid=x", "session=1", "key=e2b_00", "cols=1&cols=1", "window=5"):
            refused(self, 400, self.node.port, f"{self.path}?{query}", headers=self.key)
        self.assertEqual(self.node.api("POST", self.path).status, 405)

    def test_who_may_not(self):
        port = self.node.port
        refused(self, 401, port, self.path)
        refused(self, 401, port, self.path, headers={"X-API-Key": "e2b_" + "0" * 64})
        refused(self, 401, port, self.path, headers={"X-Access-Token": self.box + "." + "0" * 64})
        refused(self, 404, port, "/v1/sandboxes/i" + "a" * 20 + "/terminal", headers=self.key)
        refused(self, 404, port, "/v1/sandboxes/x/terminal", headers=self.key)
        other = self.node.new_key("elsewhere")
        refused(self, 404, port, self.path, headers={"X-API-Key": other})
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{self.box}/terminal-tickets", key=other).status, 404)
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{self.box}/terminal-tickets", key="e2b_00").status, 401)

    def test_origin(self):
        for origin in ("http://evil.example", "null", "http://127.0.0.1", self.origin + ".evil.example"):
            refused(self, 403, self.node.port, self.path, headers={**self.key, "Origin": origin})
            refused(self, 403, self.node.port, self.path, (PROTOCOL, f"ticket.{self.ticket()['ticket']}"), {"Origin": origin})
        w = WebSocket(self.node.port, self.path, (PROTOCOL,), {**self.key, "Origin": self.origin})
        self.assertEqual(w.headers["sec-websocket-protocol"], PROTOCOL)
        w.close()

    def test_a_ticket_opens_once(self):
        t = self.ticket()
        self.assertEqual(t["path"], f"/ui/terminal?sandbox={self.box}#ticket={t['ticket']}")
        refused_without = lambda: self.open_with(t["ticket"], origin=False)     # noqa: E731
        with self.assertRaises(Refused) as r:
            refused_without()
        self.assertEqual(r.exception.status, 403)
        w = self.open_with(t["ticket"])
        self.assertEqual(w.headers["sec-websocket-protocol"], PROTOCOL)
        w.close()
        with self.assertRaises(Refused) as r:
            self.open_with(t["ticket"])
        self.assertEqual(r.exception.status, 401)
        with self.assertRaises(Refused) as r:
            self.open_with("0" * 64)
        self.assertEqual(r.exception.status, 401)
        self.assertNotIn(t["ticket"], self.node.log("space-api"))

    def test_a_ticket_is_for_one_sandbox(self):
        t = self.ticket()["ticket"]
        with self.assertRaises(Refused) as r:
            self.open_with(t, box="i" + "a" * 20)
        self.assertEqual(r.exception.status, 401)
        with self.assertRaises(Refused) as r:       # and is gone by that
            self.open_with(t)
        self.assertEqual(r.exception.status, 401)

    def test_of_two_at_once_one_gets_in(self):
        t, got = self.ticket()["ticket"], []

        def go():
            try:
                self.open_with(t).close()
                got.append(101)
            except Refused as e:
                got.append(e.status)

        threads = [threading.Thread(target=go) for _ in range(4)]
        for x in threads:
            x.start()
        for x in threads:
            x.join()
        self.assertEqual(sorted(got), [101, 401, 401, 401])

    def test_pages(self):
        r = self.node.api("GET", f"/ui/terminal?sandbox={self.box}", key="none")
        self.assertEqual((r.status, r.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        policy = r.headers["Content-Security-Policy"]
        for word in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            self.assertIn(word, policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(r.headers["X-Content-Type-Options"], "nosniff")
        for inline in (b"<script>", b"<style", b"onclick", b"javascript:", b"http://", b"https://"):
            self.assertNotIn(inline, r.body)
        for name, kind in (("terminal.mjs", "text/javascript"), ("xterm.mjs", "text/javascript"), ("xterm.css", "text/css"),
                           ("licence.txt", "text/plain")):
            r = self.node.api("GET", f"/ui/{name}", key="none")
            self.assertEqual((r.status, r.headers["Content-Type"].split(";")[0]), (200, kind))
        self.assertEqual(self.node.api("GET", "/ui/xterm.css", headers={"If-None-Match": self.node.api("GET", "/ui/xterm.css").headers["ETag"]}).status, 304)
        self.assertEqual(self.node.api("POST", "/ui/terminal").status, 405)
        for path in ("/ui/", "/ui/../etc/passwd", "/ui/terminal.html", "/ui/terminal/", "/ui/%74erminal"):
            self.assertEqual(self.node.api("GET", path).status, 404, path)


class Frames(unittest.TestCase):
    """What a client may send, and how the server ends it when it sends something else."""

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def ends_with(self, code, *frames):
        t = Terminal(self.node, self.box)
        for opcode, payload, kw in frames:
            t.sock.sendall(t.frame(opcode, payload, **kw))
        self.assertEqual(t.ended(), code, frames)
        return t

    def test_violations(self):
        self.ends_with(1002, (2, b"x", {"mask": False}))
        self.ends_with(1002, (3, b"x", {}))
        self.ends_with(1002, (2, b"x", {"rsv": 4}))
        self.ends_with(1002, (0, b"x", {}))
        self.ends_with(1005, (PING, b"x" * 126, {}))
        self.ends_with(1007, (TEXT, b"\xff", {}))
        self.ends_with(1009, (2, b"x" * 65537, {}))
        self.ends_with(1009, (2, b"x" * 65536, {"fin": False}), (0, b"x", {}))
        self.assertEqual(self.ends_with(1000, (CLOSE, struct.pack(">H", 1000), {})).said, [])

    def test_messages(self):
        for text in (b"{", b"[]", b'{"type":"resize","cols":0,"rows":1}', b'{"type":"shutdown"}', b'{"type":"ping","x":1}', b" " * 4097,
                     b'{"type":"ack","bytes":1}'):
            t = self.ends_with(4400, (TEXT, text, {}))
            self.assertEqual((t.said[-1]["type"], t.said[-1]["code"]), ("error", "bad-message"))

    def test_answers_that_nobody_reads(self):
        """Pings of a client that takes no answers are not read for long, and cost no memory."""
        pid = self.node.pid_of("space-api")
        memory = lambda: int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096      # noqa: E731
        t = Terminal(self.node, self.box, receive_buffer=8192).attached()
        before, sent = memory(), 0
        data = t.frame(PING, b"x" * 100) * 1000
        t.sock.settimeout(1)
        with self.assertRaises(TimeoutError):
            while sent < 64 << 20:
                sent += t.sock.send(data)
        if COUNTS:
            self.assertLess(memory() - before, 4 << 20)
        t.sock.close()

    def test_pings_and_pieces(self):
        t = Terminal(self.node, self.box).attached()
        t.expect(b"$ ")
        t.sock.sendall(t.frame(PING, b"abc"))
        t.say(type="ping")
        t.sock.sendall(t.frame(2, b"echo $((40+", fin=False) + t.frame(0, b"2", fin=False) + t.frame(0, b"))\r"))
        pong = None
        while pong is None:
            opcode, payload = t.next_frame()
            pong = payload if opcode == PONG else None
            if opcode == TEXT:
                t.said.append(json.loads(payload))
            elif opcode == 2:
                t.text += payload
        self.assertEqual(pong, b"abc")
        t.hear("pong")
        t.expect(b"\r42\r\n")
        self.assertEqual(t.close(), 1000)


class Shell(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def terminal(self, query="cols=100&rows=30", **kw):
        return Terminal(self.node, self.box, query, **kw).attached()

    def test_a_shell(self):
        t = self.terminal()
        self.assertIn(b"\x1b[01;32muser@", t.expect(b"$ "))             # in colours
        t.send("stty size; id -un; tty; echo häuser-$TERM-$COLORTERM\r".encode())
        got = t.expect("\r\nhäuser-xterm-256color-truecolor\r\n".encode())
        self.assertIn(b"30 100\r\nuser\r\n/dev/pts/", got)
        t.expect(b"$ ")
        t.send(b"sleep 1000; echo not-$((1+1))\r")
        t.expect(b"sleep 1000")
        # The interrupt may come before bash has begun the sleep: then it is typed again.
        for _ in range(20):
            t.send(b"\x03")
            try:
                t.expect(b"$ ", 2)
                break
            except AssertionError:
                pass
        self.assertNotIn(b"not-2", t.text)
        t.send(b"exit 7\r")
        self.assertEqual(t.ended(), 1000)
        self.assertEqual(t.said[-1], {"type": "exit", "code": 7})

    def test_as_root_with_a_token(self):
        token = self.node.api("GET", f"/sandboxes/{self.box}").json()["envdAccessToken"]
        w = WebSocket(self.node.port, f"/v1/sandboxes/{self.box}/terminal?user=root", headers={"X-Access-Token": token})
        text = b""
        while b"# " not in text:
            opcode, payload = w.next_frame()
            text += payload if opcode == 2 else b""
        self.assertIn(b"root@", text)
        w.close()
        t = Terminal(self.node, self.box, "user=nobody-there")
        self.assertEqual(t.ended(), 1011)
        self.assertEqual(t.said[-1]["code"], "shell-failed")

    def test_sizes(self):
        t = self.terminal("cols=91&rows=19")
        t.expect(b"$ ")
        t.send(SIZES.replace("\n", "\r").encode() + b"\r")
        t.expect(b"\rsize 19 91")
        for cols, rows in ((120, 40), (3, 2), (1000, 1000)):
            t.say(type="resize", cols=cols, rows=rows)
            t.expect(b"size %d %d" % (rows, cols))
        # A row less and one more: told once or twice, as quick as the program is.
        t.say(type="redraw")
        t.expect(b"size 1000 1000")
        t.send(b"\x1c")                                                   # SIGQUIT
        self.assertEqual(t.ended(), 1000)
        self.assertEqual(t.said[-1], {"type": "exit", "signal": "SIGQUIT"})

    def test_found_again(self):
        t = self.terminal()
        t.expect(b"$ ")
        t.send(b"X=here; echo set-$((1+1))\r")
        t.expect(b"\rset-2\r\n")
        t.expect(b"$ ")
        t.sock.close()                                                   # as a reload does: without a word
        for query in (f"session={t.attach['session']}", f"pid={t.attach['pid']}"):
            u = self.terminal(query + "&cols=100&rows=30")
            self.assertEqual(u.attach["pid"], t.attach["pid"])
            u.send(b"echo still-$X\r")
            u.expect(b"\rstill-here\r\n")
            u.expect(b"$ ")
            u.close()
        two = [self.terminal(f"session={t.attach['session']}&cols=100&rows=30") for _ in range(2)]
        two[0].send(b"exit 3\r")
        for u in two:
            self.assertEqual(u.ended(), 1000)
            self.assertEqual(u.said[-1], {"type": "exit", "code": 3})

    def test_not_found_again(self):
        for query in ("session=" + "0" * 32, "pid=999999"):
            t = Terminal(self.node, self.box, query)
            self.assertEqual(t.ended(), 4404)
            self.assertEqual(t.said[-1]["code"], "shell-gone")

    def test_no_terminal_to_attach_to(self):
        s = self.node.space("exec", "--detach", self.box, "--", "/bin/sh", "-c", "sleep 0.2; echo x; sleep 60")
        t = Terminal(self.node, self.box, f"pid={s.stdout.split()[-1]}")
        self.assertEqual(t.ended(), 1011)
        self.assertEqual(t.said[-1]["code"], "not-a-terminal")

    def test_hostile_text_stays_text(self):
        t = self.terminal()
        t.expect(b"$ ")
        t.send(b"printf '\\033]0;<script>alert(1)</script>\\007\\377\\376 \\033]52;c;eA==\\007end\\n'\r")
        self.assertIn(b"\x1b]0;<script>alert(1)</script>\x07\xff\xfe ", t.expect(b"\x07end\r\n"))
        t.close()


class Slow(unittest.TestCase):
    """A client that does not keep up makes the command wait, not the daemons grow."""

    HELD_MAX = 8 << 20          # what all the buffers on the way hold, with room to spare
    WRITER = "i = 0; f = open('/tmp/written', 'w')\rwhile i < %d:\r i += 1; os.write(1, b'x' * 1024); os.pwrite(f.fileno(), b'%%8d' %% i, 0)\r"

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def setUp(self):
        self.node.sh(self.box, "rm -f /tmp/written")

    def memory(self):
        with open(f"/proc/{self.node.pid_of('space-api')}/statm") as f:
            return int(f.read().split()[1]) * 4096

    def written(self):
        return int(self.node.sh(self.box, "cat /tmp/written").strip() or 0) * 1024

    def start(self, query, kib, **kw):
        t = Terminal(self.node, self.box, query, **kw).attached()
        t.expect(b"$ ")
        t.send(f"stty -onlcr; exec python3 -c \"\rimport os\r{self.WRITER % kib}\rprint('end' + 'ed')\r\"\r".encode())
        return t

    def test_who_does_not_read(self):
        before = self.memory()
        t = self.start("", 1 << 30, receive_buffer=8192)
        node.wait_for("some output", lambda: self.node.sh(self.box, "test -s /tmp/written && echo yes || :"))
        last = [-1, -2]
        while last[-1] != last[-2]:                                      # until it waits
            last.append(self.written())
            self.assertLess(last[-1], self.HELD_MAX, "the command does not wait for the client")
        if COUNTS:
            self.assertLess(self.memory() - before, 4 << 20)
        t.sock.close()

    def test_a_window(self):
        t = self.start("window=65536", 400)
        got = marks = 0
        while got < 65536:
            t.step()
            got, marks, t.text = got + len(t.text), marks + t.text.count(b"x"), b""
        # More than a window and one event does not come, however long one waits.
        t.sock.settimeout(1)
        try:
            while True:
                t.step()
                got, marks, t.text = got + len(t.text), marks + t.text.count(b"x"), b""
        except TimeoutError:
            pass
        self.assertLess(got, 65536 + 65536)
        t.sock.settimeout(60)
        owed, tail = got, b""
        while not tail.endswith(b"ended\n"):
            if owed:
                t.say(type="ack", bytes=owed)
            t.step()
            owed, marks, tail, t.text = len(t.text), marks + t.text.count(b"x"), (tail + t.text)[-6:], b""
        self.assertGreaterEqual(marks, 400 * 1024)
        self.assertEqual(t.ended(), 1000)

    def test_input_that_nobody_reads(self):
        """Input waits too, and none of it is lost."""
        t = Terminal(self.node, self.box, "window=65536").attached()
        t.expect(b"$ ")
        t.send(b"stty raw -echo; echo re''ady; sleep 1; head -c 150000 | md5sum; exit\r")
        t.expect(b"ready")
        data = os.urandom(150000)
        done = threading.Event()

        def feed():
            for i in range(0, len(data), 30000):
                t.send(data[i:i + 30000])
            done.set()

        threading.Thread(target=feed, daemon=True).start()
        t.expect(hashlib.md5(data).hexdigest().encode(), 120)
        self.assertTrue(done.wait(60))
        self.assertEqual(t.ended(), 1000)
        self.assertGreaterEqual(sum(m["bytes"] for m in t.said if m["type"] == "taken"), len(data))


class Ends(unittest.TestCase):
    """What the client is told when its sandbox goes away."""

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def test_paused_resumed_stopped_gone(self):
        box = self.node.create()
        t = Terminal(self.node, box).attached()
        t.expect(b"$ ")
        t.send(b"X=here\r")
        t.expect(b"$ ")
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{box}/pause", {}).status, 200)
        self.assertEqual(t.ended(), 4409)
        self.assertEqual(t.said[-1]["code"], "sandbox-paused")
        session = f"session={t.attach['session']}"
        t = Terminal(self.node, box, session)
        self.assertEqual((t.ended(), t.said[-1]["code"]), (4409, "sandbox-paused"))
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{box}/resume", {}).status, 200)
        t = Terminal(self.node, box, session).attached()
        t.send(b"echo still-$X\r")
        t.expect(b"\rstill-here\r\n")
        self.node.space("stop", box)
        self.assertEqual((t.ended(), t.said[-1]["code"]), (4410, "sandbox-stopped"))
        t = Terminal(self.node, box)
        self.assertEqual((t.ended(), t.said[-1]["code"]), (4410, "sandbox-stopped"))
        self.node.kill(box)
        refused(self, 404, self.node.port, f"/v1/sandboxes/{box}/terminal", headers={"X-API-Key": self.node.key()})

    def test_gone(self):
        box = self.node.create()
        t = Terminal(self.node, box).attached()
        self.node.kill(box)
        self.assertEqual((t.ended(), t.said[-1]["code"]), (4410, "sandbox-gone"))

    def test_a_process_that_ends_by_a_signal(self):
        box = self.node.create()
        t = Terminal(self.node, box).attached()
        t.expect(b"$ ")
        t.send(b"kill -9 $$\r")
        self.assertEqual(t.ended(), 1000)
        self.assertEqual(t.said[-1], {"type": "exit", "signal": "SIGKILL"})
        self.node.kill(box)


if __name__ == "__main__":
    unittest.main()
