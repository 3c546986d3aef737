"""Commands in a sandbox (T-1, L-8): output whole and in order, flow control, trees of processes, terminals."""

import base64
import hashlib
import subprocess
import threading
import unittest

from harness import connect, memory, node


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def run_sh(self, script, **kw):
        return connect.run(self.node, self.box, script, **kw)

    def test_100_mb_of_binary_output(self):
        script = ("import sys\nx = bytes((i * 7 + 3) % 256 for i in range(1 << 20))\n"
                  "for i in range(100): sys.stdout.buffer.write(i.to_bytes(4, 'big') + x[4:])")
        expected = hashlib.sha256()
        block = bytes((i * 7 + 3) % 256 for i in range(1 << 20))
        for i in range(100):
            expected.update(i.to_bytes(4, "big") + block[4:])
        got, size = hashlib.sha256(), 0
        p = subprocess.Popen([node.SPACE, "exec", self.box, "--", "python3", "-c", script], env=self.node.env(),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        while part := p.stdout.read(1 << 16):
            got.update(part)
            size += len(part)
        self.assertEqual(p.wait(60), 0)
        self.assertEqual(size, 100 << 20)
        self.assertEqual(got.hexdigest(), expected.hexdigest())

    def test_a_reader_that_stops_does_not_make_memory_grow(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "head -c 300000000 /dev/zero", stdin=False)
        for _ in range(20):
            s.next()
        bridge = self.node.record(self.box)
        before = memory.daemons_pss(self.node)
        guest = self.agent_rss()
        # The command must come to a halt: wait until the agent has moved nothing for a while.
        node.wait_for("the command waits", lambda: self.is_blocked("head"))
        after = memory.daemons_pss(self.node)
        for d in before if memory.COUNTS else ():
            self.assertLess(after[d] - before[d], 4096, f"{d} grew")
        self.assertLess(self.agent_rss() - guest, 4096)
        self.assertIsNotNone(bridge)
        s.close()
        # With no reader the output is read and dropped: the command ends by itself.
        node.wait_for("the command ends", lambda: not self.run_sh("pgrep -x head")[0].strip(), 120)

    def is_blocked(self, name):
        out, _ = self.run_sh(f"p=$(pgrep -x {name}) && cat /proc/$p/wchan; cat /proc/$p/io | grep ^wchar")
        if "pipe" not in out:
            return False
        last, self.last_out = getattr(self, "last_out", None), out
        return last == out

    def agent_rss(self):
        out, _ = self.run_sh("awk '/VmRSS/ {print $2}' /proc/1/status", user="root")
        return int(out)

    def test_64_commands_at_once(self):
        streams = [connect.start(self.node, self.box, "/bin/bash", "-c", f"read x; echo {i}; exit {i}", stdin=True) for i in range(64)]
        for s in streams:
            self.assertIn("start", s.next())
        listed = connect.call(self.node, self.box, "List", {}).json()["processes"]
        self.assertGreaterEqual(len(listed), 64)
        for s in streams:
            connect.call(self.node, self.box, "SendInput", {"process": {"pid": s.pid}, "input": {"stdin": base64.b64encode(b"go\n").decode()}})
        for i, s in enumerate(streams):
            out, _, end = s.collect()
            self.assertEqual((out, end.get("exitCode", 0)), (f"{i}\n".encode(), i))
            s.close()

    def test_a_command_ends_though_its_stdin_stays_open(self):
        s = connect.start(self.node, self.box, "/bin/echo", "done", stdin=True)
        out, _, end = s.collect()
        self.assertEqual((out, end["exited"]), (b"done\n", True))

    def test_the_end_does_not_wait_for_children_that_keep_the_pipe(self):
        out, code = self.run_sh("sleep 1000 & echo out; exit 5")
        self.assertEqual((out, code), ("out\n", 5))
        self.assertIn("sleep", self.run_sh("pgrep -a -x sleep")[0])
        self.run_sh("pkill -x sleep")

    def test_a_kill_ends_the_whole_tree(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "setsid sleep 7771 & (setsid setsid sleep 7771 &) ; sleep 7771", stdin=False)
        s.next()
        node.wait_for("three sleeps", lambda: self.run_sh("pgrep -fc '^sleep 7771'")[0].strip() == "3")
        r = connect.call(self.node, self.box, "SendSignal", {"process": {"pid": s.pid}, "signal": "SIGNAL_SIGKILL"})
        self.assertEqual(r.status, 200)
        _, _, end = s.collect()
        self.assertIn("signal", end["status"] + end.get("error", ""))
        node.wait_for("no sleep is left", lambda: self.run_sh("pgrep -fc '^sleep 7771'")[0].strip() == "0")

    def test_sigterm_goes_to_the_group_of_the_first_process(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done", stdin=False)
        s.next()
        s.next()
        connect.call(self.node, self.box, "SendSignal", {"process": {"pid": s.pid}, "signal": "SIGNAL_SIGTERM"})
        out, _, end = s.collect()
        self.assertEqual((out, end["exitCode"]), (b"caught\n", 9))

    def test_a_terminal_has_its_size_before_its_first_byte(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "stty size; read x; stty size", pty=(123, 45))
        pid = s.next()["start"]["pid"]
        first = base64.b64decode(s.next()["data"]["pty"])
        self.assertIn(b"45 123", first)
        r = connect.call(self.node, self.box, "Update", {"process": {"pid": pid}, "pty": {"size": {"cols": 99, "rows": 33}}})
        self.assertEqual(r.status, 200)
        connect.call(self.node, self.box, "SendInput", {"process": {"pid": pid}, "input": {"pty": base64.b64encode(b"\n").decode()}})
        out, _, _ = s.collect()
        self.assertIn(b"33 99", out)

    def test_1000_double_forked_children_leave_no_zombie(self):
        script = ("import os, sys\n"
                  "for i in range(1000):\n"
                  "    p = os.fork()\n"
                  "    if p == 0:\n"
                  "        if os.fork() == 0: os._exit(0)\n"
                  "        os._exit(0)\n"
                  "    os.waitpid(p, 0)\n")
        s = connect.start(self.node, self.box, "python3", "-c", script, stdin=False, timeout=240)
        _, err, end = s.collect()
        self.assertEqual(end.get("exitCode", 0), 0, err)
        node.wait_for("no zombie", lambda: self.run_sh("ps -eo stat | grep -c ^Z")[0].strip() == "0")

    def test_a_number_that_is_used_again(self):
        """A command that has exited and waits for its reader does not keep the end of the next one with its number."""
        # Now and then a thread of the kernel gets the number first.
        node.wait_for("a command with a number that is used again", self.number_is_used_again)

    def number_is_used_again(self):
        old = connect.start(self.node, self.box, "/bin/bash", "-c", "setsid yes & read x; exit 3", stdin=True)
        self.addCleanup(old.close)
        pid = old.next()["start"]["pid"]
        written = lambda: self.run_sh("grep wchar /proc/$(pgrep -x yes)/io", user="root")[0]
        node.wait_for("the reader is full", lambda: (n := written()) and n == written())
        connect.call(self.node, self.box, "CloseStdin", {"process": {"pid": pid}})
        node.wait_for("it has exited", lambda: self.run_sh(f"test -e /proc/{pid}")[1] == 1)
        self.run_sh(f"pkill -x yes; echo {pid - 1} > /proc/sys/kernel/ns_last_pid", user="root")
        new = connect.start(self.node, self.box, "/bin/bash", "-c", "read x; exit 4", stdin=True)
        self.addCleanup(new.close)
        got = new.next()["start"]["pid"]
        connect.call(self.node, self.box, "CloseStdin", {"process": {"pid": got}})
        self.assertEqual(new.collect()[2]["exitCode"], 4)
        self.assertEqual(old.collect()[2]["exitCode"], 3)
        return got == pid

    def test_what_root_does_to_a_cgroup_is_not_the_next_commands(self):
        """Cgroups are used again, but not with the limits and the folders that root made there, and not when root has removed them."""
        own = "c=/sys/fs/cgroup$(sed -n s/0:://p /proc/self/cgroup); "
        for change in ("echo 50000 100000 > $c/cpu.max", "echo 1 > $c/cpu.weight", "mkdir -p $c/a/b"):
            out, code = self.run_sh(f"{own} echo $c; {change}", user="root")
            self.assertEqual(code, 0, out)
            node.wait_for("it is gone", lambda: self.run_sh(f"test -e {out.strip()}")[1] == 1)
            self.assertEqual(self.run_sh(f"{own} cat $c/cpu.max $c/cpu.weight; ls -d $c/*/")[0].split()[:3], ["max", "100000", "100"])
        # A killed one goes with what is below it, too.
        s = connect.start(self.node, self.box, "/bin/bash", "-c", f"{own} mkdir -p $c/a/b; echo $c; sleep 1000", stdin=False, user="root")
        s.next()
        path = base64.b64decode(s.next()["data"]["stdout"]).decode().strip()
        connect.call(self.node, self.box, "SendSignal", {"process": {"pid": s.pid}, "signal": "SIGNAL_SIGKILL"})
        s.collect()
        node.wait_for("it is gone", lambda: self.run_sh(f"test -e {path}")[1] == 1)
        out, code = self.run_sh("cd /sys/fs/cgroup && echo $$ > cgroup.procs && rmdir w/*/ w", user="root")
        self.assertEqual(code, 0, out)
        out = self.run_sh("cat /proc/self/cgroup; cat /sys/fs/cgroup/w/pids.max")[0].split()
        self.assertRegex(out[0], "^0::/w/[0-9]+$")
        self.assertGreater(int(out[1]), 1000)

    def test_connect_attaches_again_and_several_read_at_once(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "while read l; do echo \"got $l\"; done", stdin=True)
        pid = s.next()["start"]["pid"]
        s.close()
        readers = [connect.Stream(self.node, self.box, "Connect", {"process": {"pid": pid}}) for _ in range(3)]
        for r in readers:
            self.assertEqual(r.next()["start"]["pid"], pid)
        connect.call(self.node, self.box, "SendInput", {"process": {"pid": pid}, "input": {"stdin": base64.b64encode(b"x\n").decode()}})
        connect.call(self.node, self.box, "CloseStdin", {"process": {"pid": pid}})
        for r in readers:
            self.assertEqual(r.collect()[0], b"got x\n")

    def test_a_timeout_kills_the_command(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "setsid sleep 7773 & sleep 7773", stdin=False, headers={"Connect-Timeout-Ms": "700"})
        with self.assertRaises(connect.StreamError) as e:
            s.collect()
        self.assertEqual(e.exception.args[0]["code"], "deadline_exceeded")
        node.wait_for("no sleep is left", lambda: self.run_sh("pgrep -fc '^sleep 7773'")[0].strip() == "0")

    def test_locked_memory(self):
        """The agent's memory is locked whatever user it acts as; what it starts has the kernel's usual limit."""
        limits = connect.run(self.node, self.box, "cat /proc/1/limits; ulimit -l", user="root")[0]
        self.assertRegex(limits, r"Max locked memory +unlimited +unlimited")
        self.assertEqual(limits.splitlines()[-1], "8192")

    def test_users_cwd_and_environment(self):
        s = connect.start(self.node, self.box, "/bin/bash", "-c", "id -un; echo $A $HOME", stdin=False, env={"A": "b c"}, user="root")
        self.assertEqual(s.collect()[0], b"root\nb c /root\n")
        s = connect.Stream(self.node, self.box, "Start", {"process": {"cmd": "/bin/pwd", "cwd": "/no/such"}})
        with self.assertRaises(connect.StreamError) as e:
            s.collect()
        self.assertEqual(e.exception.args[0]["code"], "invalid_argument")
        s = connect.start(self.node, self.box, "/bin/pwd", user="nobody-here")
        with self.assertRaises(connect.StreamError) as e:
            s.collect()
        self.assertEqual(e.exception.args[0]["code"], "unauthenticated")

    def test_many_streams_do_not_mix(self):
        results = [None] * 16

        def one(i):
            s = connect.start(self.node, self.box, "python3", "-c", f"import sys\nfor k in range(400): sys.stdout.write('{i:02d}' * 500 + '\\n')", stdin=False)
            results[i] = s.collect()[0]
            s.close()

        threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(16):
            self.assertEqual(results[i], (f"{i:02d}" * 500 + "\n").encode() * 400, f"stream {i}")


if __name__ == "__main__":
    unittest.main()
