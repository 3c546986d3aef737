"""The bridge, the VMM and their sockets are looked at before each stream opens (B-1 to B-3)."""

import json
import os
import shutil
import signal
import socket
import threading
import unittest

from harness import cap, connect, nm, node


class Verification(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Its own: what is done to the executables concerns every sandbox of a node.
        cls.node = node.Node()
        cls.node.up()
        cls.signer = cap.Signer(cls.node)

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def setUp(self):
        self.box = self.node.create()
        self.addCleanup(lambda: self.node.api("DELETE", f"/sandboxes/{self.box}"))
        self.assertEqual(self.ask(), 204)
        self.folder = f"{self.node.run}/sbx/{self.box}.1"

    def ask(self):
        """The status of one admission; the capability is fresh and right."""
        return self.signer.api.forward(self.signer.make(self.box, acc="read")).status

    def logged_since(self, mark):
        return [line for line in self.node.log("sbx-manager")[mark:].splitlines()
                if self.box in line and (e := json.loads(line))["msg"] in ("not admitted", "an execution was not verified") and e["error"]]

    def refused_with_a_reason(self):
        mark = len(self.node.log("sbx-manager"))
        token = self.signer.make(self.box, acc="read")
        r = self.signer.api.forward(token)
        self.assertGreaterEqual(r.status, 400, "it was let in")
        node.wait_for("the reason in sbx-manager's log", lambda: self.logged_since(mark))
        return r

    def ends_in_order(self):
        """Whatever was made of it: the sandbox is either well or can be started again."""
        def settled():
            state = self.node.state_of(self.box)
            return state if state in ("running", "stopped") else None

        state = node.wait_for("a settled state", settled)
        if state == "stopped":
            self.assertTrue(self.node.detail(self.box).get("reason"), "stopped without a reason")
        self.node.space("start", self.box)
        self.assertEqual(self.node.sh(self.box, "echo well"), "well\n")

    def test_node_manager_verifies(self):
        rec = self.node.record(self.box)
        with nm.NodeManager(self.node) as m:
            args = {"sandbox": self.box, "generation": 1}
            m.call("verify", **args, bridge_pid=rec["bridge_pid"])
            for what, change in (("the VMM's pid", {"bridge_pid": rec["vmm_pid"]}), ("ours", {"bridge_pid": os.getpid()}), ("another generation", {"generation": 2})):
                with self.assertRaises(nm.NmError, msg=what):
                    m.call("verify", **{**args, "bridge_pid": rec["bridge_pid"], **change})

    def reused_pid(self, who):
        """What a reused PID looks like: the process of that number began at another time than the record says."""
        path = f"{self.node.run}/nm/{self.box}.1.json"
        with open(path) as f:
            rec = json.load(f)
        rec[who + "_start"] += 1
        with open(path + ".new", "w") as f:
            json.dump(rec, f, separators=(",", ":"))
        os.chmod(path + ".new", 0o600)
        os.rename(path + ".new", path)
        # node-manager reads its records when it starts.
        self.node.kill_daemon("node-manager")
        self.assertGreaterEqual(self.ask(), 400, "it was let in")
        node.wait_for("it is not held for running", lambda: self.node.state_of(self.box) != "running")
        self.ends_in_order()

    def test_reused_pid_of_the_bridge(self):
        self.reused_pid("bridge")

    def test_reused_pid_of_the_vmm(self):
        self.reused_pid("vmm")

    def executable(self, who):
        """The file that the process runs, as the host sees it."""
        digest = os.listdir(f"{self.node.state}/data/{who}")
        self.assertEqual(len(digest), 1)
        return f"{self.node.state}/data/{who}/{digest[0]}/" + {"bridge": "spaced-host", "vmm": "qemu-system-x86_64"}[who]

    def replaced(self, who):
        path = self.executable(who)
        keep = path + ".kept"
        shutil.copy2(path, path + ".new")
        os.rename(path, keep)
        os.rename(path + ".new", path)
        try:
            self.refused_with_a_reason()
        finally:
            os.rename(keep, path)
        self.ends_in_order()

    def test_replaced_bridge(self):
        self.replaced("bridge")

    def test_replaced_vmm(self):
        self.replaced("vmm")

    def test_altered_bridge(self):
        # The kernel keeps a running executable from being written to; a change of its times is what an alteration leaves behind.
        path = self.executable("bridge")
        with self.assertRaises(OSError):
            open(path, "r+b").close()
        st = os.stat(path)
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns + 1))
        self.refused_with_a_reason()
        self.ends_in_order()

    def other_listener(self, name, kind):
        """Another listener at the path; gives what it was sent."""
        path, kept = f"{self.folder}/{name}", f"{self.folder}/{name}.kept"
        os.rename(path, kept)
        received, ends = [], threading.Event()
        with socket.socket(socket.AF_UNIX, kind) as s:
            s.bind(path)
            os.chmod(path, 0o666)
            s.listen(8)
            s.settimeout(0.2)

            def serve():
                while not ends.is_set():
                    try:
                        c, _ = s.accept()
                    except TimeoutError:
                        continue
                    c.settimeout(1)
                    try:
                        received.append(c.recv(4096))
                    except OSError:
                        received.append(b"")

            t = threading.Thread(target=serve)
            t.start()
            try:
                self.refused_with_a_reason()
            finally:
                ends.set()
                t.join()
                os.unlink(path)
                if os.path.isdir(self.folder):
                    os.rename(kept, path)
        self.assertEqual([r for r in received if r], [], "the other listener was sent something")
        self.ends_in_order()

    def test_another_listener_at_the_guest_channel(self):
        self.other_listener("chan.sock", socket.SOCK_STREAM)

    def test_another_listener_at_the_bridge(self):
        self.other_listener("bridge.sock", socket.SOCK_STREAM)

    def test_the_bridge_of_another_sandbox(self):
        """A socket path that leads to the bridge of another execution is another listener too."""
        other = self.node.create()
        path, kept = f"{self.folder}/bridge.sock", f"{self.folder}/bridge.sock.kept"
        try:
            os.rename(path, kept)
            os.link(f"{self.node.run}/sbx/{other}.1/bridge.sock", path)
            self.refused_with_a_reason()
            os.unlink(path)
            if os.path.isdir(self.folder):
                os.rename(kept, path)
            self.assertEqual(self.node.sh(other, "echo well"), "well\n")
            self.ends_in_order()
        finally:
            self.node.kill(other)

    def test_a_killed_bridge_is_not_replaced_silently(self):
        """No transparent reconnection: the execution ends with its bridge (B-3)."""
        s = connect.start(self.node, self.box, "/bin/sleep", "1000")
        s.next()
        os.kill(self.node.record(self.box)["bridge_pid"], signal.SIGKILL)
        node.wait_for("it is stopped", lambda: self.node.state_of(self.box) == "stopped")
        with self.assertRaises((connect.StreamCut, OSError)):
            s.next()
        self.assertGreaterEqual(self.node.data("GET", self.box, "/health").status if self.node.api("GET", f"/sandboxes/{self.box}").status == 200 else 502, 500)
        self.ends_in_order()


if __name__ == "__main__":
    unittest.main()
