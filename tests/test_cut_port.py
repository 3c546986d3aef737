"""The guest channel is cut in mid-session through a VM's port (T-1, L-9). The long form does it at 200 offsets."""

import unittest

from harness import node, port


class CutPort(unittest.TestCase):
    def test_20_offsets(self):
        self.assertEqual(port.cut_at_offsets(node.shared(), 20), 20)


if __name__ == "__main__":
    unittest.main()
