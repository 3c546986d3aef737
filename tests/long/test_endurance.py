"""200 rounds of create and kill."""

import unittest

import test_churn
from harness import node


class Endurance(unittest.TestCase):
    LIMIT_S = 1800
    def test_200_rounds(self):
        test_churn.rounds(self, node.shared(), 200)


if __name__ == "__main__":
    unittest.main()
