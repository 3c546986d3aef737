"""The guest channel is cut at 200 offsets of sessions through a VM's port, in big transfers too (T-1, L-9)."""

import time
import unittest

from harness import node, port, results


class CutPort(unittest.TestCase):
    def test_200_offsets(self):
        begin = time.monotonic()
        self.assertEqual(port.cut_at_offsets(node.shared(), 200, seed=7), 200)
        results.record("The channel cut through a VM's port (tests/long/test_cut_port.py)",
                       f"200 cuts, each followed by a whole session that was right, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    unittest.main()
