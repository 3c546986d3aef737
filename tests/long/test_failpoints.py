"""The whole walk: every failpoint with a crash, an error and a delay."""

import unittest

import test_crash


class AllFailpoints(test_crash.Failpoints):
    LIMIT_S = 3600
    ACTIONS = ("crash", "error 5", "error 28", "delay 300")
    SHORT = False


if __name__ == "__main__":
    unittest.main()
