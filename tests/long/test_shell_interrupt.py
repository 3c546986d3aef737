"""A login shell that is resized and interrupted. Known to fail now and then (about 1 in 9): after a change of its size the shell may
take the next line for an end of file and log out; the cause is not found yet."""

import time
import unittest

from harness import node
from test_shell import Terminal


class Interrupt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def test_resize_and_ctrl_c(self):
        t = Terminal(self.node, "shell", self.box)
        t.expect(b"$ ")
        t.resize(77, 22)
        t.type(b"sleep 0.5; stty size; echo size-$((1+2))\r")
        self.assertIn(b"22 77", t.expect(b"\r\nsize-3\r\n"))
        t.expect(b"$ ")
        t.type(b"sleep 1000\r")
        t.expect(b"sleep 1000")
        time_before = time.monotonic()
        # Ctrl-C is a byte for the terminal inside, not a signal for us; typed again in case the sleep had not begun. What is typed
        # right behind it is lost, since a terminal empties its queue at an interrupt: so the prompt comes first.
        for _ in range(20):
            t.type(b"\x03")
            try:
                t.expect(b"$ ", 2)
                t.type(b"echo back-$((2+2))\r")
                t.expect(b"back-4", 2)
                t.expect(b"$ ", 2)
                break
            except AssertionError as e:
                last = e
        else:
            self.fail(f"Ctrl-C did not end the command: {last}")
        self.assertLess(time.monotonic() - time_before, 60)
        t.type("echo häuser-$TERM-$LANG\r".encode())
        t.expect("häuser-xterm-256color-C.UTF-8".encode())
        t.expect(b"$ ")
        t.type(b"exit 7\r")
        self.assertEqual(t.wait(), 7)


if __name__ == "__main__":
    unittest.main()
