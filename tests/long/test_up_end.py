"""The end of a node whose services cannot end its sandboxes any more."""

import json
import os
import unittest

from harness import node
from test_up import nothing_left


class End(unittest.TestCase):
    LIMIT_S = 600

    def test_what_cannot_be_stopped_is_destroyed(self):
        n = node.Node()
        self.addCleanup(n.remove)
        os.makedirs(n.run, mode=0o755)
        n.failpoints("sbx.revoke.marked crash")         # each time that somebody tries to end one
        n.up()
        box = n.create()
        n.down(check=False)
        with open(f"{n.state}/log/up.log") as f:
            self.assertIn("what is left of sandbox " + box, f.read())
        nothing_left(n)
        self.assertFalse(os.path.exists(n.run))
        n.up()

        def state():
            return next(r["state"] for r in json.loads(n.space("ls", "--all", "--json").stdout) if r["id"] == box)
        node.wait_for("the record says so", lambda: state() == "stopped", 60)
        n.space("start", box)
        self.assertEqual(n.sh(box, "echo again"), "again\n")


if __name__ == "__main__":
    unittest.main()
