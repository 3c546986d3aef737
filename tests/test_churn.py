"""Many sandboxes, many times: what is made goes away again (ARCHITECTURE: names in the kernel; L-8)."""

import concurrent.futures
import threading
import unittest

from harness import connect, memory, node

WARM_UP, PSS_GROWTH_KIB = 10, 1024


def rounds(test, n, count, warm_up=WARM_UP):
    """`count` rounds of create, use and kill; everything counted must be back afterwards."""
    for _ in range(warm_up):
        box = n.create()
        test.assertEqual(connect.run(n, box, "echo well")[0], "well\n")
        n.kill(box)
    objects, descriptors, pss = memory.kernel_objects(n), memory.descriptors(n), memory.daemons_pss(n)
    for i in range(count):
        box = n.create()
        if i % 10 == 0:
            test.assertEqual(connect.run(n, box, "echo well")[0], "well\n")
        n.kill(box)
    test.assertEqual(memory.kernel_objects(n), objects)
    # Keep-alive connections and idle workers come and go; the bound is far below one descriptor a round.
    node.wait_for("descriptors are back", lambda: all(v <= descriptors[d] + 2 for d, v in memory.descriptors(n).items()))
    after = memory.daemons_pss(n)
    for d in pss:
        test.assertLess(after[d] - pss[d], PSS_GROWTH_KIB, f"{d} grew from {pss[d]} to {after[d]} KiB in {count} rounds")


class Churn(unittest.TestCase):
    COUNT = 30

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def test_create_and_kill_rounds(self):
        rounds(self, self.node, self.COUNT)

    def test_20_at_once(self):
        before = memory.kernel_objects(self.node)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            boxes = list(pool.map(lambda _: self.node.create(), range(20)))
        try:
            self.assertEqual(len(set(boxes)), 20)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                said = list(pool.map(lambda b: connect.run(self.node, b, f"echo {b}; hostname")[0].splitlines(), boxes))
            self.assertEqual([s[0] for s in said], boxes)
            self.assertEqual(len({s[1] for s in said}), 20)
            self.assertEqual(len(memory.kernel_objects(self.node)["records"]), len(before["records"]) + 20)
            running = {s["id"] for s in self.node.api("GET", "/v1/sandboxes?state=running").json()}
            self.assertLessEqual(set(boxes), running)
            # E2B's list gives them page by page.
            seen, token = [], ""
            while True:
                r = self.node.api("GET", "/v2/sandboxes?limit=7" + (f"&nextToken={token}" if token else ""))
                self.assertLessEqual(len(r.json()), 7)
                seen += [s["sandboxID"] for s in r.json()]
                token = r.headers.get("X-Next-Token") or ""
                if not token:
                    break
            self.assertEqual(len(seen), len(set(seen)))
            self.assertLessEqual(set(boxes), set(seen))
        finally:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(self.node.kill, boxes))
        self.assertEqual(memory.kernel_objects(self.node), before)

    def test_create_and_kill_meet(self):
        """Kills that come while the create is on its way, from another connection."""
        before = memory.kernel_objects(self.node)
        for _ in range(5):
            made, seen = [], set()
            t = threading.Thread(target=lambda: made.append(self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600})))
            t.start()
            while t.is_alive():
                for s in self.node.api("GET", "/v1/sandboxes").json():
                    if s["state"] == "creating" and s["id"] not in seen:
                        seen.add(s["id"])
                        self.assertIn(self.node.api("DELETE", f"/sandboxes/{s['id']}").status, (204, 409))
            t.join()
            if made[0].status == 201:
                self.node.api("DELETE", f"/sandboxes/{made[0].json()['sandboxID']}")
        node.wait_for("nothing is left", lambda: memory.kernel_objects(self.node) == before)

    def test_stop_and_start_rounds(self):
        box = self.node.create()
        try:
            before = memory.kernel_objects(self.node)
            for i in range(3):
                self.node.sh(box, f"echo {i} >> ~/rounds; sync")
                self.node.space("stop", box)
                self.node.space("start", box)
            self.assertEqual(self.node.sh(box, "cat ~/rounds"), "0\n1\n2\n")
            after = memory.kernel_objects(self.node)
            for kind in before:
                count = lambda v: v if isinstance(v, int) else len(v)
                self.assertEqual(count(after[kind]), count(before[kind]), kind)
        finally:
            self.node.kill(box)


if __name__ == "__main__":
    unittest.main()
