"""Pause and resume, what ends with a sandbox's time, coming back to it (C-3, C-9, C-10)."""

import base64
import datetime
import os
import signal
import threading
import time
import unittest

from harness import connect, node, walk

COUNT = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.02; done"
CLOCK_MS = 50                    # how far a guest's clock may be off after a resume


def cpu_ticks(pid):
    """Of all threads of a process, in clock ticks."""
    with open(f"/proc/{pid}/stat") as f:
        return sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])


def parse(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Pause(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def setUp(self):
        if self.node.state_of(self.box) == "paused":
            self.connect(self.box)

    def create(self, **body):
        r = self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600, **body})
        self.assertEqual(r.status, 201, r.body)
        box = r.json()["sandboxID"]
        self.addCleanup(lambda: self.node.api("DELETE", f"/sandboxes/{box}"))
        return box

    def post(self, box, what, body=None, v2=False):
        return self.node.api("POST", f"{'/v2' if v2 else ''}/sandboxes/{box}/{what}", {} if body is None else body)

    def pause(self, box):
        r = self.post(box, "pause")
        self.assertEqual(r.status, 204, r.body)

    def connect(self, box, **body):
        r = self.post(box, "connect", body)
        self.assertIn(r.status, (200, 201), r.body)
        return r

    def end(self, box):
        return parse(self.node.api("GET", f"/sandboxes/{box}").json()["endAt"]) - time.time()

    def sh(self, box, script, **kw):
        return connect.run(self.node, box, script, **kw)[0]

    def count(self, box):
        # Between two numbers the file is empty for a moment.
        return int(node.wait_for("a number", lambda: self.sh(box, "cat /tmp/count").strip()))

    def test_a_process_stands_still_and_goes_on(self):
        box = self.create(envVars={"MINE": "kept"})
        before, vmm = self.node.detail(box), self.node.record(box)
        ident = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname; echo $MINE"
        was = self.sh(box, ident)
        s = connect.start(self.node, box, "/bin/bash", "-c", COUNT)
        s.next()
        node.wait_for("it counts", lambda: (self.sh(box, "cat /tmp/count 2>/dev/null || echo 0").strip() or "0") != "0")
        # The user's name of his machine is his.
        self.sh(box, "hostname mine", user="root")
        r = self.node.api("POST", f"/sandboxes/{box}/pause", raw=b"")
        self.assertEqual(r.status, 204, r.body)
        # The stream was cut: that is an error to its reader, not an end.
        with self.assertRaises((connect.StreamCut, OSError)):
            while s.next() is not None:
                pass
        self.assertEqual(self.node.api("GET", f"/sandboxes/{box}").json()["state"], "paused")
        self.assertEqual([x["state"] for x in self.node.api("GET", "/v2/sandboxes?state=paused").json() if x["sandboxID"] == box], ["paused"])
        # Its processor time does not grow: none at all while this one waits for a second of its own.
        pid, t0 = vmm["vmm_pid"], time.process_time()
        ticks = cpu_ticks(pid)
        while time.process_time() - t0 < 0.5:
            pass
        self.assertLessEqual(cpu_ticks(pid) - ticks, 1)
        for method, path in (("GET", "/health"), ("POST", "/process.Process/List")):
            r = self.node.data(method, box, path, {} if method == "POST" else None, token=self.token(box))
            self.assertEqual((r.status, r.json()), (502, {"sandboxId": box, "message": "The sandbox was not found", "code": 502}))
        # Whoever looks after it dies and comes again meanwhile.
        for d in ("sbx-manager", "node-manager"):
            self.node.kill_daemon(d)
        self.assertEqual(self.node.state_of(box), "paused")
        r = walk.patient(lambda: self.post(box, "connect", {"timeout": 600}))
        self.assertEqual(r.status, 201, r.body)
        first = self.count(box)
        node.wait_for("it counts on", lambda: self.count(box) > first)
        # The same execution: the numbers, the processes, what the guest knows of itself.
        after = self.node.detail(box)
        self.assertEqual((after["generation"], after["startedAt"]), (before["generation"], before["startedAt"]))
        self.assertEqual({k: self.node.record(box)[k] for k in ("vmm_pid", "bridge_pid", "init_pid")}, {k: vmm[k] for k in ("vmm_pid", "bridge_pid", "init_pid")})
        lines = self.sh(box, ident).splitlines()
        self.assertEqual(lines[2], "mine")
        self.assertEqual(lines[:2] + lines[3:], was.splitlines()[:2] + was.splitlines()[3:])
        # Attached to again by its number.
        again = connect.Stream(self.node, box, "Connect", {"process": {"pid": s.pid}})
        self.assertEqual(again.next()["start"]["pid"], s.pid)
        again.close()
        self.assertEqual(connect.call(self.node, box, "SendSignal", {"process": {"pid": s.pid}, "signal": "SIGNAL_SIGKILL"}).status, 200)

    def token(self, box):
        return self.node.api("GET", f"/sandboxes/{box}").json()["envdAccessToken"]

    def test_the_clock_is_right_after_it(self):
        self.sh(self.box, "true")
        self.pause(self.box)
        time.sleep(1.5)          # time that the guest does not see
        self.connect(self.box)
        s = connect.start(self.node, self.box, "/usr/bin/python3", "-uc",
                          "import os,sys,time\nfor line in sys.stdin: os.write(1, str(time.time()).encode())", stdin=True)
        s.next()
        off = []
        for _ in range(8):
            t0 = time.time()
            connect.call(self.node, self.box, "SendInput", {"process": {"pid": s.pid}, "input": {"stdin": base64.b64encode(b"x\n").decode()}})
            guest = float(base64.b64decode(s.next()["data"]["stdout"]))
            t1 = time.time()
            # Between both, but for what the clocks differ.
            off.append(max(t0 - guest, guest - t1, 0))
        s.close()
        self.assertLess(min(off) * 1000, CLOCK_MS, off)

    def test_codes(self):
        self.pause(self.box)
        r = self.post(self.box, "pause")
        self.assertEqual((r.status, r.json()["code"]), (409, 409))
        r = self.post(self.box, "pause", {"memory": False})
        self.assertEqual(r.status, 400)
        self.assertIn("memory", r.json()["message"])
        self.assertEqual(self.post(self.box, "timeout", {"timeout": 5}).status, 404)
        # Two at once both have it.
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.post(self.box, "resume", {"timeout": 600}).status)) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(answers, [201, 201])
        self.assertEqual(self.connect(self.box).status, 200)
        # A connect right behind a pause waits for it.
        t = threading.Thread(target=lambda: self.post(self.box, "pause"))
        t.start()
        r = self.connect(self.box, timeout=600)
        t.join()
        if self.node.state_of(self.box) == "paused":     # the connect was first
            r = self.connect(self.box, timeout=600)
        self.assertEqual(self.node.state_of(self.box), "running")

    def test_time(self):
        box = self.create(timeout=100)
        self.assertEqual(self.post(box, "timeout", {"timeout": 1000}).status, 204)
        self.assertGreater(self.end(box), 900)
        self.connect(box, timeout=10)
        self.assertGreater(self.end(box), 900)
        self.assertEqual(self.post(box, "timeout", {"timeout": 50}).status, 204)
        self.assertLess(self.end(box), 51)
        self.pause(box)
        r = self.post(box, "connect", {}, v2=True)
        self.assertEqual(r.status, 201)
        self.assertTrue(51 < self.end(box) < 101, self.end(box))
        # Over: gone. Of one that was to be kept: paused, with what it was doing.
        keep = self.create(autoPause=True)
        s = connect.start(self.node, keep, "/bin/bash", "-c", COUNT)
        s.next()
        for b in (box, keep):
            self.assertEqual(self.post(b, "timeout", {"timeout": 0}).status, 204)
        # Whoever should see to it dies and comes again: nothing is lost.
        self.node.kill_daemon("space-control")
        node.wait_for("one is gone", lambda: self.node.api("GET", f"/sandboxes/{box}").status == 404)
        node.wait_for("one is paused", lambda: self.node.state_of(keep) == "paused")
        with self.assertRaises((connect.StreamCut, OSError)):
            while s.next() is not None:
                pass
        self.assertEqual(self.connect(keep).status, 201)
        first = self.count(keep)
        node.wait_for("it counts on", lambda: self.count(keep) > first)

    def test_requests_wake_it(self):
        box = self.create(autoPause=True, autoResume={"enabled": True})
        self.sh(box, "echo kept > /tmp/file")
        token = self.token(box)
        self.pause(box)
        self.assertEqual(self.node.data("GET", box, "/health", token=token).status, 502)
        answers = []
        ask = lambda: answers.append(self.node.data("GET", box, "/files?path=/tmp/file", token=token))
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([(a.status, a.body) for a in answers], [(200, b"kept\n")] * 4)
        self.assertEqual(self.node.state_of(box), "running")

    def test_a_guest_that_is_stuck(self):
        """Neither a guest that eats all its time nor one whose agent gets none keeps a pause up."""
        box = self.create()
        busy = connect.start(self.node, box, "/bin/bash", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait")
        busy.next()
        self.pause(box)
        self.assertEqual(self.connect(box).status, 201)
        self.assertEqual(self.sh(box, "echo well"), "well\n")
        connect.start(self.node, box, "/bin/bash", "-c", "echo -1 > /proc/sys/kernel/sched_rt_runtime_us; exec chrt -f 99 bash -c 'while :; do :; done'", user="root").close()
        token = self.token(box)

        def stuck():
            try:
                return self.node.data("GET", box, "/health", token=token, timeout=1).status != 204
            except TimeoutError:
                return True

        node.wait_for("nothing else gets any time", stuck)
        self.pause(box)
        self.assertEqual(self.node.state_of(box), "paused")

    def test_what_becomes_of_a_paused_one(self):
        """Stop (its disk is written), start, the end of its VMM, delete."""
        box = self.create()
        generation = self.node.detail(box)["generation"]
        self.sh(box, "echo kept > ~/file")               # not synced
        self.pause(box)
        r = self.node.api("POST", f"/v1/sandboxes/{box}/stop")
        self.assertEqual((r.status, r.json()["state"]), (200, "stopped"))
        self.assertIsNone(self.node.record(box))
        # E2B's clients see it as paused all the time; a connect starts it.
        self.assertEqual(self.node.api("GET", f"/sandboxes/{box}").json()["state"], "paused")
        self.assertEqual(self.connect(box).status, 201)
        self.assertEqual(self.node.detail(box)["generation"], generation + 1)
        self.assertEqual(self.sh(box, "cat ~/file"), "kept\n")
        self.pause(box)
        os.kill(self.node.record(box)["vmm_pid"], signal.SIGKILL)
        node.wait_for("it is stopped", lambda: self.node.state_of(box) == "stopped")
        self.assertIn("crashed", self.node.detail(box)["reason"])
        self.assertIsNone(self.node.record(box))
        r = self.node.api("DELETE", f"/sandboxes/{box}")
        self.assertEqual(r.status, 204)
        gone = self.create()
        self.pause(gone)
        self.assertEqual(self.node.api("DELETE", f"/sandboxes/{gone}").status, 204)
        self.assertEqual(self.node.api("GET", f"/sandboxes/{gone}").status, 404)
        self.assertIsNone(self.node.record(gone))


if __name__ == "__main__":
    unittest.main()
