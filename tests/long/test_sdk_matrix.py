"""Every version of the E2B SDKs that docs/sdk-matrix.md lists, against one node; writes that table (U-1)."""

import unittest

from harness import node, sdk

AT_ONCE = 2


class Matrix(unittest.TestCase):
    LIMIT_S = 3600

    def test_all_versions(self):
        n = node.shared()
        wanted = [("npm", v, None) for v in sdk.NPM] + [("PyPI", v, m) for v in sdk.PYPI for m in sdk.MODES]
        runs = []
        for i in range(0, len(wanted), AT_ONCE):
            runs += [r.end() for r in [sdk.Run(n, *w) for w in wanted[i:i + AT_ONCE]]]
        sdk.write_doc(runs)
        self.assertEqual([c for r in runs for c in r.complaints], [])
        self.assertEqual(len({frozenset(r.rows) for r in runs}), 1, "not every program has the same rows")


if __name__ == "__main__":
    unittest.main()
