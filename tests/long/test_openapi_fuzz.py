"""The long form of tests/test_openapi.py: more examples without sandboxes, and sequences of calls with some."""

import json
import os
import random
import unittest

from harness import node, openapi

EXAMPLES = os.environ.get("SPACE_FUZZ_EXAMPLES", "150")

# With sandboxes: a node that is full says 503 or 507 in order, and an operation that has not ended after 45 s says 503.
WITH_SANDBOXES = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "507"]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "503", "507"]
""" + openapi.NO_TERMINALS


class Fuzz(unittest.TestCase):
    LIMIT_S = 3600

    @classmethod
    def setUpClass(cls):
        cls.node = node.Node(max_sandboxes=4)
        cls.node.up()

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def seed(self):
        return str(random.SystemRandom().randrange(1 << 32))

    def test_without_sandboxes(self):
        key = self.node.new_key("fuzz")
        report = openapi.fuzz(self.node, key, "--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", self.seed(), timeout=3000)
        print(report[report.index("Test cases:"):].strip(), flush=True)
        self.assertEqual(self.node.api("GET", "/v1/sandboxes", key=key).json(), [])

    def test_sequences_with_sandboxes(self):
        """The tester learns IDs from answers and goes on with them: what is there is stopped, started, paused, deleted; all as documented."""
        key = self.node.new_key("sequences")
        made = self.node.api("POST", "/v1/sandboxes", {"template": "base", "timeoutSeconds": 3600}, key=key)
        self.assertEqual(made.status, 201, made.body)
        report = openapi.fuzz(self.node, key, "--phases", "coverage,stateful", "--max-examples", "12", "--seed", self.seed(), config=WITH_SANDBOXES, timeout=3000)
        print(report[report.index("Test cases:"):].strip(), flush=True)
        codes = set()
        for line in self.node.log("space-api").splitlines():
            d = json.loads(line)
            if d.get("status", 0) >= 500:
                codes.add((d["status"], d.get("code")))
        self.assertLessEqual({status for status, _ in codes}, {503, 507}, codes)
        for b in self.node.api("GET", "/v1/sandboxes", key=key).json():
            self.assertIn(self.node.api("DELETE", f"/v1/sandboxes/{b['id']}", key=key).status, (204, 404))
        node.wait_for("all are gone", lambda: self.node.api("GET", "/v1/sandboxes", key=key).json() == [], 60)


if __name__ == "__main__":
    unittest.main()
