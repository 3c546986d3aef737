"""A create whose space-api dies after it was written: the same request with its key gives that sandbox, and no other (L-10)."""

import http.client
import threading
import time
import unittest
import urllib.error

from harness import node


class Idempotency(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def create(self, key, mark, timeout=120):
        return self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300, "metadata": {"mark": mark}},
                             headers={"Idempotency-Key": key}, timeout=timeout)

    def listed(self, mark):
        return [b["sandboxID"] for b in self.node.api("GET", f"/sandboxes?metadata=mark%3D{mark}").json()]

    def test_api_dies_within_a_create(self):
        key = mark = f"long-{time.time_ns()}"
        self.node.failpoints("api.create.stored crash")
        time.sleep(0.3)                 # the file is looked at once in 100 ms (base/fault.h)
        with self.assertRaises((OSError, http.client.HTTPException, urllib.error.URLError)):
            self.create(key, mark)
        self.node.failpoints()
        # The row is there; another process drives it when the lease of the dead one is over.
        node.wait_for("space-api is back", lambda: self.alive(), 30)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.create(key, mark))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([a.status for a in answers], [201] * 4, [a.body for a in answers])
        boxes = {a.json()["sandboxID"] for a in answers}
        self.assertEqual(len(boxes), 1)
        box = boxes.pop()
        self.assertEqual(self.listed(mark), [box])
        self.assertEqual(self.node.sh(box, "echo well"), "well\n")
        self.node.kill(box)
        self.assertEqual(self.listed(mark), [])

    def alive(self):
        try:
            return self.node.api("GET", "/sandboxes").status == 200
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main()
