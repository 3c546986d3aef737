"""
The process service of a sandbox beyond test_commands.py (L-8): streams of input, environment and users, ends that are unusual,
what the agent says of itself (metrics), and what counts as activity (C-9, docs/activity.md).
"""

import base64
import hashlib
import os
import select
import socket
import threading
import time
import unittest

from harness import connect, node

ROW_TESTS = {
    "a running command": "test_a_running_command_counts_and_background_cpu_does_not",
    "a shell at its prompt": "test_what_counts_in_a_terminal",
    "a program in a terminal's foreground": "test_what_counts_in_a_terminal",
    "terminal input": "test_what_counts_in_a_terminal",
    "a file write": "test_a_file_write_counts",
    "an open stream": "test_an_open_stream_counts_and_its_pings_do_not",
    "a connection through the door": "test_a_connection_through_the_door_counts",
    "pings": "test_an_open_stream_counts_and_its_pings_do_not",
    "health checks": "test_health_checks_do_not_count",
    "background CPU": "test_a_running_command_counts_and_background_cpu_does_not",
}


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create("--env", "GLOBAL=created", "--env", "BOTH=created", "--env", "HOME=/srv")
        cls.token = cls.node.api("GET", f"/sandboxes/{cls.box}").json()["envdAccessToken"]

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def start(self, script, **kw):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", script, token=self.token, **kw)
        self.addCleanup(s.close)
        return s

    def run_sh(self, script, **kw):
        return connect.run(self.node, self.box, script, token=self.token, **kw)

    def call(self, method, request):
        return connect.call(self.node, self.box, method, request, token=self.token)

    def attach(self, process, headers=None):
        s = connect.Stream(self.node, self.box, "Connect", {"process": process}, token=self.token, headers=headers)
        self.addCleanup(s.close)
        return s

    def input(self, pid, **kw):
        i = connect.Input(self.node, self.box, {"pid": pid}, token=self.token, **kw)
        self.addCleanup(i.sock.close)
        return i

    def until(self, stream, text):
        """Reads until the output ends with the text."""
        got = b""
        while not got.endswith(text):
            got += base64.b64decode(stream.next()["data"]["pty"])

    def kill_pid(self, pid):
        return self.call("SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}).status


class Input(Base):
    def test_bytes_arrive_while_the_stream_is_open(self):
        s = self.start("cat; echo end")
        pid = s.next()["start"]["pid"]
        i = self.input(pid)
        for text in (b"one\n", "zwei ä\n".encode(), bytes(range(256))):
            i.input(text)
            i.keepalive()
            got = b""
            while len(got) < len(text):
                got += base64.b64decode(s.next()["data"]["stdout"])
            self.assertEqual(got, text)
        self.assertEqual(i.close(), {})
        # The end of the input stream does not close stdin.
        self.assertEqual(self.call("CloseStdin", {"process": {"pid": pid}}).status, 200)
        out, _, end = s.collect()
        self.assertEqual((out, end["exited"]), (b"end\n", True))

    def test_a_command_that_does_not_read_makes_the_client_wait(self):
        self.run_sh("mkfifo -m 666 /tmp/go")
        s = self.start("read -r go < /tmp/go; sha256sum", tag="slow")
        pid = s.next()["start"]["pid"]
        i = connect.Input(self.node, self.box, {"tag": "slow"}, token=self.token)
        piece, sent = os.urandom(20000), 0
        chunk = i.chunk({"data": {"input": {"stdin": base64.b64encode(piece).decode()}}})
        i.sock.setblocking(False)
        rest = b""
        # Everything on the way fills up, then nothing moves any more.
        while select.select([], [i.sock], [], 1.5)[1]:
            rest = rest or chunk
            n = i.sock.send(rest)
            sent += n == len(rest)
            rest = rest[n:]
            self.assertLess(sent, 1000, "27 MB are somewhere")
        i.sock.settimeout(60)
        self.run_sh("echo > /tmp/go; rm -f /tmp/go")
        i.sock.sendall(rest)
        sent += rest != b""
        self.assertEqual(i.close(), {})
        self.call("CloseStdin", {"process": {"pid": pid}})
        out, _, _ = s.collect()
        self.assertEqual(out.split()[0].decode(), hashlib.sha256(piece * sent).hexdigest())

    def test_a_terminal_and_errors(self):
        s = self.start("stty -echo; echo ready; read x; echo \"<$x>\"", pty=(80, 24))
        pid = s.next()["start"]["pid"]
        self.until(s, b"ready\r\n")
        i = self.input(pid)
        i.input(b"typed\n", "pty")
        self.assertEqual(i.close(), {})
        self.assertEqual(s.collect()[0], b"<typed>\r\n")
        for process, code in (({"pid": 999999}, "not_found"), ({"tag": "none"}, "not_found"), ({}, "invalid_argument")):
            i = connect.Input(self.node, self.box, process, token=self.token)
            with self.assertRaises(connect.StreamError) as e:
                i.reply()       # though the stream was not ended
            self.assertEqual(e.exception.args[0]["code"], code)


class Ends(Base):
    def test_a_client_that_leaves_ends_nothing(self):
        s = self.start("read x; echo \"got $x\"; read x; exit 7", tag="left")
        pid = s.next()["start"]["pid"]
        s.close()
        self.assertIn(pid, [p["pid"] for p in self.call("List", {}).json()["processes"]])
        again = self.attach({"tag": "left"})
        self.assertEqual(again.next()["start"]["pid"], pid)
        self.call("SendInput", {"process": {"tag": "left"}, "input": {"stdin": base64.b64encode(b"a\n").decode()}})
        self.assertEqual(base64.b64decode(again.next()["data"]["stdout"]), b"got a\n")
        again.close()
        # It ends with nobody there: the exit code is still to be had.
        self.call("CloseStdin", {"process": {"pid": pid}})
        node.wait_for("the end", lambda: pid not in [p["pid"] for p in self.call("List", {}).json()["processes"]])
        out, _, end = self.attach({"pid": pid}).collect()
        self.assertEqual((out, end["exitCode"], end["status"], end["exited"]), (b"", 7, "exit status 7", True))
        self.assertEqual(self.kill_pid(pid), 404)

    def test_closed_output_and_daemons(self):
        s = self.start("echo a; exec >&- 2>&-; sleep 0.5; exit 4")
        out, _, end = s.collect()
        self.assertEqual((out, end["exitCode"]), (b"a\n", 4))
        # A daemon outlives the command, which ends at once though the daemon holds its output.
        s = self.start("setsid bash -c 'echo $$ > /tmp/daemon; for i in 1 2 3 4 5 6 7 8 9; do echo out; sleep 0.1; done; "
                       "echo done >> /tmp/daemon; exec sleep 1000' & sleep 0.1; exit 5", user="root")
        self.assertEqual(s.collect()[2]["exitCode"], 5)
        node.wait_for("the daemon writes on without a reader", lambda: "done" in self.run_sh("cat /tmp/daemon")[0])
        node.wait_for("it is a sleep now", lambda: self.run_sh("ps -o comm= -p $(head -1 /tmp/daemon)")[0].strip() == "sleep")
        out, code = self.run_sh("d=$(head -1 /tmp/daemon); ps -o comm= -p $d; ps -o ppid= -p $d; kill $d", user="root")
        self.assertEqual((out.split(), code), (["sleep", "1"], 0))

    def test_a_signal_in_the_end_event(self):
        s = self.start("kill -KILL $$")
        end = s.collect()[2]
        self.assertEqual((end["exitCode"], end["exited"], end["status"], end["error"]), (-1, False, "signal: killed", "signal: killed"))

    def test_a_killed_sandbox_cuts_its_streams(self):
        box = self.node.create()
        s = connect.start(self.node, box, "/bin/bash", "-c", "echo up; sleep 1000")
        self.assertEqual([list(s.next())[0], list(s.next())[0]], ["start", "data"])
        threading.Thread(target=self.node.kill, args=(box,)).start()
        # Never an end event, which would be a command that ended.
        with self.assertRaises((connect.StreamCut, OSError)):
            self.fail(f"the stream says {s.next()}")
        s.close()
        node.wait_for("it is gone", lambda: self.node.state_of(box) is None)

    def test_keepalives_come_on_a_quiet_stream(self):
        s = self.start("sleep 1000", stdin=False, headers={"Keepalive-Ping-Interval": "1"})
        pid = s.next()["start"]["pid"]
        self.assertEqual(s.next(), {"keepalive": {}})
        again = self.attach({"pid": pid}, headers={"Keepalive-Ping-Interval": "1"})
        again.next()
        self.assertEqual(again.next(), {"keepalive": {}})
        self.kill_pid(pid)


class Surroundings(Base):
    def test_environment_files_and_rights(self):
        s = self.start("echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID; echo $GLOBAL $BOTH $MINE $HOME $USER $LOGNAME; pwd; "
                       "cd /run/e2b; cat .E2B_SANDBOX; echo; cat .E2B_SANDBOX_ID; echo; cat .E2B_TEMPLATE_ID; echo; "
                       "cat /proc/self/oom_score_adj; nice; umask; id -un; ls -l /proc/self/fd/0 | grep -o '[^ ]*$'",
                       env={"BOTH": "mine", "MINE": "m"}, stdin=False)
        lines = s.collect()[0].decode().splitlines()
        self.assertEqual(lines[:2], [f"true {self.box} base", "created mine m /srv user user"])
        self.assertEqual(lines[2:], ["/home/user", "true", self.box, "base", "100", "0", "0022", "user", "/dev/null"])
        # stdin absent: a pipe.
        self.assertIn(b"pipe:", self.start("ls -l /proc/self/fd/0").collect()[0])
        envs = self.node.data("GET", self.box, "/envs", token=self.token).json()
        self.assertEqual(envs, {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": self.box, "E2B_TEMPLATE_ID": "base",
                                "GLOBAL": "created", "BOTH": "created", "HOME": "/srv"})

    def test_users(self):
        self.assertEqual(self.run_sh("id -un; pwd; sudo -n id -un", user="user")[0], "user\n/home/user\nroot\n")
        self.assertEqual(self.run_sh("id -un; pwd; echo $USER", user="root")[0], "root\n/root\nroot\n")
        for user, cwd, code, text in (("nobody-here", None, "unauthenticated", "invalid username: 'nobody-here'"),
                                      ("user", "/no/where", "invalid_argument", "cwd '/no/where' does not exist"),
                                      ("user", "/root", "invalid_argument", "cwd '/root' cannot be entered")):
            auth = base64.b64encode(f"{user}:".encode()).decode()
            s = connect.Stream(self.node, self.box, "Start", {"process": {"cmd": "/bin/pwd", **({"cwd": cwd} if cwd else {})}},
                               token=self.token, headers={"Authorization": f"Basic {auth}"})
            with self.assertRaises(connect.StreamError) as e:
                s.collect()
            self.assertEqual(e.exception.args[0], {"code": code, "message": text})

    def test_a_fifo_for_passwd_does_not_stop_the_agent(self):
        box = self.node.create()
        self.addCleanup(self.node.kill, box)
        s = connect.start(self.node, box, "/bin/bash", "-c", "mv /etc/passwd /etc/kept; mkfifo /etc/passwd; echo moved; "
                          "read x; mv /etc/kept /etc/passwd; echo back; read x", user="root", stdin=True)
        pid = s.next()["start"]["pid"]
        self.assertEqual(base64.b64decode(s.next()["data"]["stdout"]), b"moved\n")
        with self.assertRaises(connect.StreamError) as e:
            connect.start(self.node, box, "/bin/true", user="root").collect()
        self.assertEqual(e.exception.args[0]["code"], "unauthenticated")
        connect.call(self.node, box, "SendInput", {"process": {"pid": pid}, "input": {"stdin": "Cg=="}})
        self.assertEqual(base64.b64decode(s.next()["data"]["stdout"]), b"back\n")
        self.assertEqual(connect.run(self.node, box, "echo well", user="root"), ("well\n", 0))
        s.close()

    def test_metrics_are_those_of_the_guest(self):
        m = self.node.data("GET", self.box, "/metrics", token=self.token).json()
        out = self.run_sh("nproc; awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo; stat -f -c '%b %S' /; date +%s")[0].split()
        self.assertEqual(m["cpu_count"], int(out[0]))
        self.assertEqual(m["mem_total"], int(float(out[1])))
        self.assertEqual(m["disk_total"], int(out[2]) * int(out[3]))
        self.assertLess(abs(m["ts"] - int(out[4])), 30)
        self.assertEqual((m["mem_total_mib"], m["mem_used_mib"]), (m["mem_total"] >> 20, m["mem_used"] >> 20))
        self.assertTrue(0 < m["mem_used"] < m["mem_total"] and 0 < m["mem_cache"] < m["mem_total"])
        self.assertTrue(0 < m["disk_used"] < m["disk_total"])
        s = self.start("head -c 30000000 /dev/zero > /tmp/metrics; sync /tmp/metrics; while :; do :; done", stdin=False)
        pid = s.next()["start"]["pid"]

        def busy():
            now = self.node.data("GET", self.box, "/metrics", token=self.token).json()
            return now["cpu_used_pct"] > 60 / m["cpu_count"] and now["disk_used"] - m["disk_used"] > 20e6

        node.wait_for("the load is seen", busy)
        self.kill_pid(pid)
        self.run_sh("rm /tmp/metrics")


class Activity(Base):
    """Yes: the idle time is no longer than what passed since before the event. No: it reaches IDLE_MS all the same."""

    IDLE_MS = 400

    def idle(self):
        return self.node.data("GET", self.box, "/metrics", token=self.token).json()["idle_ms"]

    def rests(self, meanwhile=lambda: None):
        node.wait_for("the sandbox is idle", lambda: meanwhile() or self.idle() >= self.IDLE_MS)

    def stays_active(self):
        end = time.monotonic() + 2 * self.IDLE_MS / 1000
        while time.monotonic() < end:
            self.assertEqual(self.idle(), 0)

    def was_active_since(self, begun):
        idle = self.idle()
        self.assertLessEqual(idle, (time.monotonic() - begun) * 1000 + 1)

    def test_the_table_is_the_one_that_is_tested(self):
        with open(os.path.join(node.ROOT, "docs/activity.md")) as f:
            rows = [line.split("|")[1].strip() for line in f if line.startswith("| ")]
        self.assertEqual(rows[2:], list(ROW_TESTS))
        for test in ROW_TESTS.values():
            self.assertTrue(hasattr(self, test), test)

    def test_a_running_command_counts_and_background_cpu_does_not(self):
        s = self.start("exec sleep 1000", stdin=False)
        pid = s.next()["start"]["pid"]
        s.close()
        self.stays_active()
        self.kill_pid(pid)
        self.rests()
        self.start("(while :; do echo x > /tmp/file; done) > /dev/null 2>&1 & echo $! > /tmp/pid", stdin=False).collect()
        self.rests()
        self.run_sh("kill -9 $(cat /tmp/pid); rm /tmp/file")

    def test_what_counts_in_a_terminal(self):
        def keys(text):
            self.call("SendInput", {"process": {"tag": "tty"}, "input": {"pty": base64.b64encode(text).decode()}})

        s = connect.start(self.node, self.box, "/bin/bash", "-i", "-l", pty=(80, 24), tag="tty", token=self.token)
        pid = s.next()["start"]["pid"]
        s.next()
        s.close()
        self.rests()                                    # the prompt that nobody watches
        begun = time.monotonic()
        keys(b"x")
        self.was_active_since(begun)                    # input
        keys(b"\x15sleep 1000\n")
        node.wait_for("it runs", lambda: self.run_sh("pgrep -x sleep")[1] == 0)
        self.stays_active()                             # a program
        keys(b"\x03")
        self.rests()
        self.kill_pid(pid)

    def test_a_file_write_counts(self):
        self.rests()
        begun = time.monotonic()
        r = self.node.data("POST", self.box, "/files?path=/tmp/f", token=self.token, raw=b"x", headers={"Content-Type": "application/octet-stream"})
        self.assertEqual(r.status, 200)
        self.was_active_since(begun)

    def test_an_open_stream_counts_and_its_pings_do_not(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-i", "-l", pty=(80, 24), token=self.token,
                          headers={"Keepalive-Ping-Interval": "1"})
        pid = s.next()["start"]["pid"]
        while "keepalive" not in s.next():
            pass
        self.stays_active()
        s.close()
        self.rests()
        self.kill_pid(pid)

    def test_a_connection_through_the_door_counts(self):
        """The server is left behind by its command (so it does not count), and listens on the guest's loopback alone."""
        script = "import socket\ns = socket.create_server(('127.0.0.1', 7777))\nprint('listens', flush=True)\nkept = []\nwhile True: kept.append(s.accept())"
        self.run_sh(f"setsid python3 -c \"{script}\" > /tmp/door.log 2>&1 < /dev/null & echo $! > /tmp/door.pid; until grep -q listens /tmp/door.log; do sleep 0.1; done")
        self.rests()
        s = socket.create_connection(("127.0.0.1", self.node.port), timeout=90)
        s.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {self.box}\r\nE2b-Sandbox-Port: 7777\r\n\r\n".encode())
        node.wait_for("it counts", lambda: self.idle() == 0)
        self.stays_active()
        s.close()
        self.rests()
        self.run_sh("pkill -9 -f create_server; rm /tmp/door.*")

    def test_health_checks_do_not_count(self):
        self.rests(lambda: self.node.data("GET", self.box, "/health", token=self.token) and
                   self.node.data("GET", self.box, "/envs", token=self.token) and None)

    def test_clients_do_not_reach_the_hosts_view(self):
        self.assertEqual(self.node.data("GET", self.box, "/activity", token=self.token).status, 404)


del Base

if __name__ == "__main__":
    unittest.main()
