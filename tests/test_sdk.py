"""The unmodified npm SDK `e2b` 2.51.0 (U-1)."""

import json
import os
import shutil
import subprocess
import unittest

from harness import node

HERE = os.path.dirname(os.path.abspath(__file__))


def installed(folder="sdk"):
    """node_modules of the pinned SDK, in the build folder; installed once."""
    target = os.path.join(node.ROOT, "build", folder)
    os.makedirs(target, exist_ok=True)
    for name in ("package.json", "package-lock.json", "e2b.mjs"):
        shutil.copy(os.path.join(HERE, folder, name), target)
    stamp = os.path.join(target, "node_modules/.package-lock.json")
    if not os.path.exists(stamp):
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=target, check=True, stdout=subprocess.DEVNULL)
    return target


class Sdk(unittest.TestCase):
    def test_javascript(self):
        n = node.shared()
        env = n.env(E2B_API_KEY=n.key(), E2B_API_URL=n.api_url, E2B_SANDBOX_URL=n.api_url)
        r = subprocess.run(["node", "e2b.mjs"], cwd=installed(), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(r.returncode, 0, r.stderr + n.logs_tail())
        seen = json.loads(r.stdout.splitlines()[-1])
        self.assertEqual(seen["run"], {"stdout": "out\nyes\n", "stderr": "err\n", "exitCode": 0})
        self.assertEqual(seen["exit"], {"isExitError": True, "code": 7, "stdout": "before\n"})
        self.assertEqual(seen["background"], {"stdout": "got one\ngot two\nend\n", "streamed": "got one\ngot two\nend\n", "exitCode": 0})
        self.assertTrue(seen["listed"])
        self.assertTrue(seen["bytesEqual"])
        self.assertEqual(seen["text"], "häuser\n")
        self.assertEqual(seen["list"], [["data.bin", "file", 3000001]])
        self.assertIn("NotFound", seen["missing"])
        self.assertTrue(seen["killed"])
        self.assertFalse(seen["killedAgain"])
        self.assertTrue(seen["running"])
        self.assertEqual(seen["info"]["metadata"], {"who": "sdk test"})
        self.assertEqual(seen["info"]["state"], "running")
        self.assertTrue(seen["inList"])
        self.assertTrue(seen["kill"])
        self.assertFalse(seen["runningAfter"])
        self.assertFalse(seen["killAfter"])


if __name__ == "__main__":
    unittest.main()
