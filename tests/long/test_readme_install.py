"""The README's agents with what npm and PyPI give out today (U-1)."""

import unittest

import test_readme


class Install(test_readme.Readme):
    LIMIT_S = 900
    test_commands = None

    def installed(self):
        pass

    def said(self, text):
        self.assertEqual(text.count(test_readme.LOOP), 2, text)         # between what the installers say


if __name__ == "__main__":
    unittest.main()
