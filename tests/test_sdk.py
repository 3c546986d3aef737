"""The newest E2B SDKs of each language, unmodified (U-1); all versions: long/test_sdk_matrix.py."""

import unittest

from harness import node, sdk


class Sdk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        n = node.shared()
        wanted = [("npm", sdk.NPM[0], None)] + [("PyPI", sdk.PYPI[0], m) for m in sdk.MODES]
        for language, version, mode in wanted:
            sdk.command("matrix", language, version, mode)      # installs what is not there
        cls.node, cls.runs = n, [sdk.Run(n, *w) for w in wanted]

    def check(self, i):
        run = self.runs[i].end()
        self.assertEqual(run.complaints, [], self.node.logs_tail())
        self.assertGreater(len(run.rows), 50)

    def test_javascript(self):
        self.check(0)

    def test_python(self):
        self.check(1)

    def test_python_async(self):
        self.check(2)


if __name__ == "__main__":
    unittest.main()
