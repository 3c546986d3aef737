"""Two sandboxes of one template have nothing in common that should differ (ARCHITECTURE: the guest; I-4)."""

import base64
import time
import unittest

from harness import connect, node


class Identity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.boxes = [cls.node.create() for _ in range(2)]

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(*cls.boxes)

    def each(self, script, user="root"):
        return [connect.run(self.node, b, script, user=user)[0].strip() for b in self.boxes]

    def test_identity_is_fresh(self):
        for what in ("cat /etc/machine-id", "hostname", "cat /proc/sys/kernel/random/boot_id", "cat /proc/sys/kernel/random/uuid"):
            a, b = self.each(what)
            self.assertTrue(a and b, what)
            self.assertNotEqual(a, b, what)
        for name in self.each("grep -c \"$(hostname)\" /etc/hosts"):
            self.assertEqual(name, "1")
        tokens = [self.node.api("GET", f"/sandboxes/{b}").json()["envdAccessToken"] for b in self.boxes]
        self.assertNotEqual(*tokens)
        # The guest's own token is another one than the client's, and is not told to clients.
        self.assertNotIn("guest", str(self.node.detail(self.boxes[0])))

    def test_random_bytes_differ_from_the_first_block_on(self):
        data = []
        for b in self.boxes:
            s = connect.start(self.node, b, "/bin/bash", "-c", "head -c 1000000 /dev/urandom", stdin=False)
            data.append(s.collect()[0])
        self.assertEqual([len(d) for d in data], [1000000, 1000000])
        blocks = [{d[i:i + 16] for i in range(0, 1000000, 16)} for d in data]
        self.assertEqual(blocks[0] & blocks[1], set())

    def test_entropy_right_after_creation_differs(self):
        boxes = [self.node.create() for _ in range(2)]
        try:
            first = [connect.run(self.node, b, "head -c 64 /dev/urandom | xxd -p -c 64 2>/dev/null || head -c 64 /dev/urandom | od -An -tx1")[0] for b in boxes]
            self.assertNotEqual(*first)
        finally:
            self.node.kill(*boxes)

    def test_the_clock_is_right_within_50_ms(self):
        best = []
        for b in self.boxes:
            s = connect.start(self.node, b, "python3", "-u", "-c",
                              "import sys, time\nfor l in sys.stdin: sys.stdout.write(repr(time.time()) + chr(10))", stdin=True)
            pid = s.next()["start"]["pid"]
            offsets = []
            # On a machine with much to do, until one of them was quick.
            end = time.monotonic() + 60
            while len(offsets) < 15 or (min(offsets)[0] >= 0.5 and time.monotonic() < end):
                before = time.time()
                connect.call(self.node, b, "SendInput", {"process": {"pid": pid}, "input": {"stdin": "Cg=="}})
                guest = float(base64.b64decode(s.next()["data"]["stdout"]))
                after = time.time()
                # The true offset lies in [guest - after, guest - before]: the narrowest interval counts.
                offsets.append((after - before, guest - after, guest - before))
            width, low, high = min(offsets)
            best.append((width, low, high))
            s.close()
        for width, low, high in best:
            self.assertLess(width, 0.5)
            self.assertTrue(low < 0.05 and high > -0.05, f"offset between {low * 1000:.0f} and {high * 1000:.0f} ms")


if __name__ == "__main__":
    unittest.main()
