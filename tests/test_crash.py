"""What dies and comes again: daemons, `space up`, the three processes of an execution, guests, every named step (C-1, L-5, L-10)."""

import base64
import os
import signal
import unittest

from harness import connect, memory, node, walk

ECHO = ("/bin/bash", "-c", "while read l; do echo \"got $l\"; done")

# mov $0x505, %dx; mov $2 (a crash kernel was loaded), %al; out %al, (%dx); jmp to the out
FLOOD = """
import ctypes, mmap
assert ctypes.CDLL(None).syscall(172, 3) == 0           # iopl
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("66ba0505b002eeebfd"))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.Node()
        cls.node.up()

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def setUp(self):
        self.boxes = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        self.node.failpoints()
        for b in list(walk.mine(self.node)):
            walk.patient(lambda: self.node.api("DELETE", f"/sandboxes/{b}"))

    def create(self):
        self.boxes.append(self.node.create())
        return self.boxes[-1]

    def running_command(self, box):
        """A command that echoes lines; gives (its stream, pid)."""
        s = connect.start(self.node, box, *ECHO, stdin=True)
        return s, s.next()["start"]["pid"]

    def say(self, box, pid, line):
        r = connect.call(self.node, box, "SendInput", {"process": {"pid": pid}, "input": {"stdin": base64.b64encode(line.encode() + b"\n").decode()}})
        self.assertEqual(r.status, 200, r.body)

    def attach(self, box, pid, line="again"):
        """Attaches to a running command and has it answer."""
        s = connect.Stream(self.node, box, "Connect", {"process": {"pid": pid}})
        self.assertEqual(s.status, 200)
        self.assertEqual(s.next()["start"]["pid"], pid)
        self.say(box, pid, line)
        self.assertEqual(base64.b64decode(s.next()["data"]["stdout"]).decode(), f"got {line}\n")
        return s

    def boot_id(self, box):
        return connect.run(self.node, box, "cat /proc/sys/kernel/random/boot_id")[0]


class Daemons(Base):
    def test_sigkill_of_each_daemon(self):
        boxes = [self.create() for _ in range(2)]
        commands = {b: self.running_command(b) for b in boxes}
        boots = {b: self.boot_id(b) for b in boxes}
        for daemon in node.DAEMONS:
            with self.subTest(daemon):
                self.node.kill_daemon(daemon)
                for b in boxes:
                    self.assertTrue(walk.answers(self.node, b), f"{b} does not answer")
                    self.assertEqual(self.boot_id(b), boots[b])
                    stream, pid = commands[b]
                    if daemon in ("node-manager", "space-control"):
                        # None of them is on the way of the bytes: the stream has not even noticed.
                        self.say(b, pid, daemon)
                        self.assertEqual(base64.b64decode(stream.next()["data"]["stdout"]).decode(), f"got {daemon}\n")
                    else:
                        with self.assertRaises((connect.StreamCut, OSError)):
                            stream.next()
                        stream.close()
                    # Attached to again.
                    again = self.attach(b, pid, f"after {daemon}")
                    if daemon in ("node-manager", "space-control"):
                        self.assertEqual(base64.b64decode(stream.next()["data"]["stdout"]).decode(), f"got after {daemon}\n")
                        stream.close()
                    commands[b] = (again, pid)
                self.assertEqual({b: self.node.state_of(b) for b in boxes}, {b: "running" for b in boxes})
        # The life goes on for all of them: a stop, a start, a kill, a create.
        self.node.space("stop", boxes[0])
        self.node.space("start", boxes[0])
        self.assertEqual(self.node.sh(boxes[0], "echo well"), "well\n")
        self.node.kill(boxes[1])
        self.assertEqual(self.node.sh(self.create(), "echo new"), "new\n")

    def test_sigkill_of_all_daemons_at_once(self):
        box = self.create()
        _, pid = self.running_command(box)
        boot = self.boot_id(box)
        for d in node.DAEMONS:
            os.kill(self.node.pid_of(d), signal.SIGKILL)
        node.wait_for("it answers", lambda: walk.answers(self.node, box))
        self.assertEqual(self.boot_id(box), boot)
        self.attach(box, pid).close()

    def test_sigkill_of_up(self):
        box = self.create()
        _, pid = self.running_command(box)
        boot, vmm = self.boot_id(box), self.node.record(box)["vmm_pid"]
        os.kill(self.node.up_pid(), signal.SIGKILL)
        node.wait_for("the daemons have ended", lambda: not any(self.node.pid_of(d) for d in node.DAEMONS))
        self.assertTrue(alive(vmm), "the sandbox ended with `up`")
        self.node.up()
        self.assertEqual(self.node.state_of(box), "running")
        self.assertEqual(self.boot_id(box), boot)
        self.assertEqual(self.node.record(box)["vmm_pid"], vmm)
        self.attach(box, pid).close()


class Processes(Base):
    """The three processes of an execution (the rows "running, crash" of docs/life-cycle.md)."""

    def crash(self, box, action, event=None):
        """After the action: stopped, with a reason, its disk kept, nothing else left; then it starts again and goes."""
        before = self.node.detail(box)
        self.node.sh(box, "echo kept > ~/file; sync")
        s = connect.start(self.node, box, "/bin/sleep", "1000")
        s.next()
        action()
        node.wait_for("it is stopped", lambda: self.node.state_of(box) == "stopped")
        detail = self.node.detail(box)
        self.assertTrue(detail["reason"])
        if event:
            self.assertIn(event, detail["reason"])
        self.assertEqual(detail["generation"], before["generation"])
        with self.assertRaises((connect.StreamCut, OSError)):
            s.next()
        self.assertIsNone(self.node.record(box))
        objects = memory.kernel_objects(self.node)
        self.assertEqual(objects["sandbox processes"], 0)
        for kind in ("cgroups", "namespaces", "sockets", "records"):
            self.assertEqual([o for o in objects[kind] if box in o], [], kind)
        self.assertIn(box, objects["subvolumes"])
        self.node.space("start", box)
        self.assertEqual(self.node.sh(box, "cat ~/file"), "kept\n")
        self.assertEqual(self.node.detail(box)["generation"], before["generation"] + 1)
        return detail

    def test_sigkill_of_vmm_bridge_and_init(self):
        before = memory.kernel_objects(self.node)
        box = self.create()
        for who in ("vmm", "bridge", "init"):
            with self.subTest(who):
                self.crash(box, lambda: os.kill(self.node.record(box)[who + "_pid"], signal.SIGKILL))
        self.node.kill(box)
        self.assertEqual(memory.kernel_objects(self.node), before)

    def test_they_are_found_dead_after_a_restart(self):
        """They die while node-manager and sbx-manager are dead too."""
        box = self.create()

        def all_at_once():
            pids = [self.node.record(box)[w + "_pid"] for w in ("vmm", "bridge", "init")]
            for d in ("node-manager", "sbx-manager"):
                os.kill(self.node.pid_of(d), signal.SIGKILL)
            for p in pids:
                try:
                    os.kill(p, signal.SIGKILL)
                except ProcessLookupError:
                    pass

        self.crash(box, all_at_once)

    def test_sbx_manager_dies_while_it_clears_up(self):
        box = self.create()
        with walk.Watch(self.node, "sbx.crash.seen crash") as w:
            self.crash(box, lambda: os.kill(self.node.record(box)["vmm_pid"], signal.SIGKILL))
            self.assertTrue(w.was_hit())

    def test_clearing_up_is_tried_again(self):
        box = self.create()
        with walk.Watch(self.node, "sbx.crash.seen error 5") as w:
            self.crash(box, lambda: os.kill(self.node.record(box)["vmm_pid"], signal.SIGKILL))
            self.assertTrue(w.was_hit())

    def trigger(self, box, letter):
        def fn():
            try:
                s = connect.start(self.node, box, "/bin/bash", "-c", f"sync; echo {letter} > /proc/sysrq-trigger", user="root", stdin=False)
                s.collect()
            except (connect.StreamCut, connect.StreamError, OSError):
                pass
        return fn

    def events(self, box):
        return str(self.node.api("GET", f"/v1/sandboxes/{box}/logs").json().get("events"))

    def test_the_guest_powers_itself_off(self):
        box = self.create()
        detail = self.crash(box, self.trigger(box, "o"), "guest-off")
        self.assertNotIn("crash", detail["reason"])
        self.assertIn("guest-off", self.events(box))

    def test_the_guest_panics(self):
        box = self.create()
        self.crash(box, self.trigger(box, "c"))
        self.assertIn("panic", self.events(box).lower())

    def test_the_guest_makes_events_without_end(self):
        """The port of pvpanic takes them as fast as a guest can write; whoever reads them has other sandboxes too."""
        box = self.create()
        self.crash(box, lambda: connect.start(self.node, box, "/usr/bin/python3", "-c", FLOOD, user="root", stdin=False).next(), "events without end")

    def test_the_guest_reboots(self):
        box = self.create()
        self.node.sh(box, "echo kept > ~/file; sync")
        boot, generation = self.boot_id(box), self.node.detail(box)["generation"]
        self.trigger(box, "b")()
        node.wait_for("the next generation runs", lambda: (lambda d: d["generation"] == generation + 1 and d["state"] == "running")(self.node.detail(box)))
        self.assertEqual(self.node.sh(box, "cat ~/file"), "kept\n")
        self.assertNotEqual(self.boot_id(box), boot)
        self.assertIn("guest-reboot", self.events(box))


class Failpoints(Base):
    LIMIT_S = 900
    ACTIONS = ("crash",)
    SHORT = True
    # Only on the way of a template, which was made before; of new keys; of an execution that ends by itself.
    ELSEWHERE = ("nm.template", "sbx.template", "sbx.bundle", "sbx.crash")

    def test_walk(self):
        points = [p for p in walk.names() if not p.startswith(self.ELSEWHERE)]
        if self.SHORT:
            points = walk.sample(points)
        self.assertGreater(len(points), 5)
        self.node.kill(self.node.create())
        baseline = memory.kernel_objects(self.node)
        for action in self.ACTIONS:
            for p in points:
                with self.subTest(f"{p} {action}"):
                    self.kill_all()
                    where = walk.once(self.node, f"{p} {action}", baseline, self.SHORT)
                    self.assertIsNotNone(where, "it was never hit")
        self.assertEqual(self.node.sh(self.create(), "echo well"), "well\n")

    def test_a_command_goes_on_while_steps_fail_beside_it(self):
        box = self.create()
        _, pid = self.running_command(box)
        self.node.kill(self.node.create())
        baseline = memory.kernel_objects(self.node)
        points = [p for p in walk.names() if p.startswith(("nm.spawn", "sbx.create"))]
        self.assertTrue(points)
        for p in points:
            walk.once(self.node, f"{p} error 5", baseline)
        self.attach(box, pid).close()


if __name__ == "__main__":
    unittest.main()
