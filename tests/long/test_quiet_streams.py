"""Minutes without traffic (L-8): streams that nobody writes to, clients that come back, input that pauses. All wait at the same time."""

import base64
import os
import time
import unittest

from harness import connect, node, results

QUIET_S = int(os.environ.get("SPACE_TEST_QUIET_S", "660"))      # longer than any time limit of the daemons for a message (docs/limits.md)
INPUT_QUIET_S = QUIET_S // 2
KEEPALIVE_S = 50                                                # what the SDKs ask for


class QuietStreams(unittest.TestCase):
    LIMIT_S = QUIET_S + 300

    def test_minutes_without_traffic(self):
        n = node.shared()
        box = n.create("--timeout", str(QUIET_S + 600))
        self.addCleanup(n.kill, box)

        def start(script, **kw):
            s = connect.start(n, box, "/bin/bash", "-c", script, timeout=QUIET_S + 120, **kw)
            self.addCleanup(s.close)
            return s, s.next()["start"]["pid"]

        def say(pid, text, kind="stdin"):
            r = connect.call(n, box, "SendInput", {"process": {"pid": pid}, "input": {kind: base64.b64encode(text).decode()}})
            self.assertEqual(r.status, 200)

        echo = "while read x; do echo \"got $x\"; done; exit 6"
        silent, silent_pid = start(echo, headers={"Keepalive-Ping-Interval": "3600"})       # not one byte in either direction
        pinged, pinged_pid = start(echo, headers={"Keepalive-Ping-Interval": str(KEEPALIVE_S)})
        left, left_pid = start(echo)
        left.close()
        shell, shell_pid = start("exec bash --norc -i", pty=(80, 24))
        shell.close()
        inputs = [(connect.Input(n, box, {"pid": start(echo)[1]}, timeout=120)) for _ in range(2)]
        ended, ended_pid = start(f"sleep {QUIET_S - 20}; exit 5")                            # ends with nobody there, shortly before we come
        ended.close()

        begun, rounds = time.monotonic(), 0
        while time.monotonic() - begun < QUIET_S:
            time.sleep(1)
            rounds += 1
            if rounds % KEEPALIVE_S == 0:
                inputs[1].keepalive()
            if rounds == INPUT_QUIET_S:
                inputs[0].input(b"after a silence\n")
                self.assertEqual(inputs[0].close(), {})
        inputs[1].input(b"after pings\n")
        self.assertEqual(inputs[1].close(), {})

        pings = 0
        for s, pid in ((silent, silent_pid), (pinged, pinged_pid)):
            say(pid, b"again\n")
            while "keepalive" in (event := s.next()):
                pings += 1
            self.assertEqual(base64.b64decode(event["data"]["stdout"]), b"got again\n")
            connect.call(n, box, "CloseStdin", {"process": {"pid": pid}})
            self.assertEqual(s.collect()[2]["exitCode"], 6)
        self.assertTrue(QUIET_S // KEEPALIVE_S - 1 <= pings <= QUIET_S // KEEPALIVE_S + 1, pings)
        # The client that left, and the terminal that nobody watched.
        again = connect.Stream(n, box, "Connect", {"process": {"pid": left_pid}})
        self.assertEqual(again.next()["start"]["pid"], left_pid)
        say(left_pid, b"back\n")
        self.assertEqual(base64.b64decode(again.next()["data"]["stdout"]), b"got back\n")
        again.close()
        tty = connect.Stream(n, box, "Connect", {"process": {"pid": shell_pid}})
        tty.next()
        say(shell_pid, b"echo $((20 + 22)); exit 3\n", "pty")
        out, _, end = tty.collect()
        self.assertIn(b"42\r\n", out)
        self.assertEqual(end["exitCode"], 3)
        tty.close()
        _, _, end = connect.Stream(n, box, "Connect", {"process": {"pid": ended_pid}}).collect()
        self.assertEqual(end["exitCode"], 5)
        results.record("Minutes without traffic (tests/long/test_quiet_streams.py)",
                       f"streams and input were quiet for {QUIET_S} s, {pings} pings; all went on",
                       ["a stream without pings, one with, a client and a terminal that were left and attached to again, input after "
                        f"{INPUT_QUIET_S} s of silence and with pings, an exit code 20 s after the end"])


if __name__ == "__main__":
    unittest.main()
