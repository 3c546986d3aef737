"""200 rounds of create and kill."""

import unittest

import test_churn
from harness import node


class Endurance(unittest.TestCase):
    LIMIT_S = 1800

    def test_200_rounds(self):
        # Until all workers of space-api have been busy: seen over 600 rounds, it stays where it is after the first hundred.
        test_churn.rounds(self, node.shared(), 200, 100)


if __name__ == "__main__":
    unittest.main()
