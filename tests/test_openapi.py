"""The native API against its document (L-10, U-5): every documented answer is seen, every answer is documented; fuzzed in both.

The routes themselves are compared in src/api/test_v1.c.
"""

import json
import os
import random
import unittest

from harness import connect, node, openapi

WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
TUNNEL = {"Connection": "Upgrade", "Upgrade": "space-tunnel"}
NOBODY = "i" + "0" * 20


class Document(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.client = openapi.Client(cls.node, cls.node.new_key("openapi"))
        cls.document = cls.client.send("GET", "/v1/openapi.json", headers={"X-API-Key": None}).json()

    def send(self, status, *args, code=None, **kw):
        r = self.client.send(*args, **kw)
        self.assertEqual(r.status, status, (args, r.body))
        if status >= 400:
            problem = r.json()
            self.assertEqual(problem["request_id"], r.headers["X-Request-Id"])
            if code:
                self.assertEqual(problem["code"], code)
        return r

    def test_it_is_the_one_of_the_source(self):
        with open(os.path.join(node.ROOT, "docs/openapi.json")) as f:
            self.assertEqual(json.load(f), self.document)
        with open(os.path.join(node.PREFIX, "share/doc/space/openapi.json")) as f:
            self.assertEqual(json.load(f), self.document)

    def test_every_answer_is_documented_and_seen(self):
        self.service()
        self.errors_of_all()
        box = self.create()
        self.addCleanup(self.client.send, "DELETE", f"/v1/sandboxes/{box}")
        self.running(box)
        self.terminal(box)
        self.network(box)
        self.paused(box)
        self.stopped(box)
        self.deleted(box)
        wrong = self.client.check(self.document, complete=True)
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))

    def service(self):
        self.assertEqual(self.send(200, "GET", "/v1/version").json()["version"], self.document["info"]["version"])
        page = self.send(200, "GET", "/v1/problems/sandbox-not-found", headers={"X-API-Key": None})
        self.assertIn("sandbox-not-found (404", page.body.decode())
        self.send(404, "GET", "/v1/problems/none-such", headers={"X-API-Key": None})
        self.send(404, "GET", "/v1/none-such", code="no-such-route")
        self.assertEqual(self.send(405, "PATCH", "/v1/sandboxes", code="method-not-allowed").headers["Allow"], "GET, POST")

    def errors_of_all(self):
        """The answers that every operation can give, from its own place in the document."""
        for path, methods in self.document["paths"].items():
            target = path.replace("{id}", NOBODY).replace("{code}", "try-again").replace("{port}", "80")
            for method, op in methods.items():
                m, answers = method.upper(), op["responses"]
                upgrade = {} if "101" not in answers else TUNNEL if path.endswith("/tunnel") else WEBSOCKET
                with self.subTest(f"{m} {path}"):
                    self.send(400, m, target + "?none-such=1", headers=upgrade, code="unknown-parameter")
                    self.send(431, m, target, headers={"X-Long": "x" * 40000}, code="head-too-large", template=path)
                    if "401" in answers:
                        self.send(401, m, target, headers={**upgrade, "X-API-Key": "e2b_" + "0" * 40}, code="unauthenticated")
                        self.send(401, m, target, headers={**upgrade, "X-API-Key": None}, code="unauthenticated")
                    if "requestBody" in op:
                        self.send(415, m, target, raw=b"{}", headers={"Content-Type": "text/plain"}, code="unsupported-media-type")
                        self.send(413, m, target, raw=b" " * 200_000, code="too-large")
                        self.send(400, m, target, {"none-such": 1}, code="unknown-field")
                        self.send(400, m, target, raw=b"{", code="malformed")
                    if "{id}" in path:
                        body = {"timeoutSeconds": 60} if path.endswith("/timeout") else None
                        self.send(404, m, target, body, headers=upgrade, code="sandbox-not-found")

    def create(self):
        body = {"template": "base", "timeoutSeconds": 600, "metadata": {"who": "\x1b[31m\n{\"a\":1}", "": "ü"}, "env": {"A": "1"}}
        self.send(404, "POST", "/v1/sandboxes", {**body, "template": "none-such"}, code="template-not-found")
        key = {"Idempotency-Key": "openapi-" + os.urandom(8).hex()}
        made = self.send(201, "POST", "/v1/sandboxes", body, headers=key)
        box = made.json()
        self.assertEqual(made.headers["Location"], f"/v1/sandboxes/{box['id']}")
        self.assertEqual((box["metadata"], box["timeoutSeconds"], box["onTimeout"], box["state"]), (body["metadata"], 600, "kill", "running"))
        self.assertEqual(self.send(201, "POST", "/v1/sandboxes", body, headers=key).json()["id"], box["id"])
        self.send(409, "POST", "/v1/sandboxes", {**body, "timeoutSeconds": 601}, headers=key, code="idempotency-request-mismatch")
        return box["id"]

    def running(self, box):
        at = f"/v1/sandboxes/{box}"
        self.assertEqual(self.send(200, "GET", at).json()["id"], box)
        self.assertEqual([b["id"] for b in self.send(200, "GET", "/v1/sandboxes?state=running&limit=1").json()], [box])
        self.assertEqual(self.send(200, "GET", "/v1/sandboxes?state=stopped,paused").json(), [])
        self.assertGreater(self.send(200, "GET", at + "/metrics").json()["memoryTotalBytes"], 1 << 27)
        self.assertTrue(self.send(200, "GET", at + "/logs").json()["events"])
        before = self.send(200, "GET", at).json()["endAt"]
        self.assertEqual(self.send(200, "POST", at + "/timeout", {"timeoutSeconds": 10, "onlyExtend": True}).json()["endAt"], before)
        self.assertGreater(self.send(200, "POST", at + "/timeout", {"timeoutSeconds": 3600}).json()["endAt"], before)
        connected = self.send(200, "POST", at + "/connect", {"timeoutSeconds": 60}).json()
        self.assertFalse(connected["woken"])
        self.assertEqual(self.node.data("GET", box, "/envs", token=connected["accessToken"]).json()["A"], "1")

    def terminal(self, box):
        at = f"/v1/sandboxes/{box}/terminal"
        self.send(201, "POST", at + "-tickets")
        self.send(426, "GET", at, code="upgrade-required")
        self.send(403, "GET", at, headers={**WEBSOCKET, "Origin": "http://elsewhere.example"}, code="origin-refused")
        self.send(101, "GET", at, headers=WEBSOCKET)

    def network(self, box):
        at = f"/v1/sandboxes/{box}"
        self.assertEqual(self.send(200, "GET", at + "/net/stats").json()["gateway"], "up")
        token = self.send(200, "POST", f"/v1/sandboxes/{box}/connect").json()["accessToken"]
        connect.run(self.node, box, "setsid python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 </dev/null & true", token=token)
        self.send(426, "GET", at + "/ports/8000/tunnel", code="upgrade-required")
        self.send(502, "GET", at + "/ports/8001/tunnel", headers=TUNNEL, code="port-closed")
        node.wait_for("the server listens", lambda: self.client.send("GET", at + "/ports/8000/tunnel", headers=TUNNEL).status == 101)
        self.assertTrue(self.send(200, "GET", at + "/net/log").json()["records"])

    def paused(self, box):
        at = f"/v1/sandboxes/{box}"
        for _ in range(2):
            paused = self.send(200, "POST", at + "/pause").json()
            self.assertEqual(paused["state"], "paused")
            self.assertNotIn("endAt", paused)
        self.send(409, "POST", at + "/timeout", {"timeoutSeconds": 60}, code="not-running")
        self.send(409, "GET", at + "/metrics", code="not-running")
        self.assertEqual(self.send(200, "POST", at + "/resume", {"timeoutSeconds": 900}).json()["state"], "running")

    def stopped(self, box):
        at = f"/v1/sandboxes/{box}"
        self.assertEqual(self.send(200, "POST", at + "/stop", {}).json()["state"], "stopped")
        self.send(409, "POST", at + "/pause", code="wrong-state")
        self.send(409, "POST", at + "/resume", code="wrong-state")
        started = self.send(200, "POST", at + "/start").json()
        self.assertEqual((started["state"], started["generation"]), ("running", 2))

    def deleted(self, box):
        """Its time is over; space-control deletes it, and meanwhile nothing else can be done to it."""
        at = f"/v1/sandboxes/{box}"
        self.node.failpoints("ops.delete.before-node delay 6000")
        try:
            self.send(200, "POST", at + "/timeout", {"timeoutSeconds": 1})
            node.wait_for("its time is over", lambda: self.send(200, "GET", at).json()["state"] == "deleting")
            for op in ("stop", "start", "connect"):
                self.send(409, "POST", f"{at}/{op}", code="in-transition")
            self.assertEqual(self.send(204, "DELETE", at).body, b"")
            self.send(404, "GET", at, code="sandbox-not-found")
        finally:
            self.node.failpoints()


class Fuzz(unittest.TestCase):
    """Without a sandbox: the long form (long/test_openapi_fuzz.py) has some."""

    def setUp(self):
        self.node = node.shared()
        self.key = self.node.new_key("fuzz")

    def tearDown(self):
        self.assertEqual(self.node.api("GET", "/v1/sandboxes", key=self.key).json(), [])

    def test_native_routes(self):
        report = openapi.fuzz(self.node, self.key, "--phases", "examples,coverage,fuzzing", "--max-examples", "8", "--seed", os.environ.get("SPACE_FUZZ_SEED", "1"))
        self.assertIn("Tested: ", report)

    def test_e2b_routes(self):
        """Any body and query: refused with a reason or answered, never a 5xx but 501."""
        rnd = random.Random(1)
        values = [None, True, 0, -1, 1.5, 10**18, "", "x", "\u0000", "\ud7ff", "a" * 3000, [], {}, [[]], {"a": 1}, {"enabled": 1}, "running", "2026-01-01T00:00:00Z"]
        fields = ["templateID", "timeout", "metadata", "envVars", "autoPause", "autoPauseMemory", "autoResume", "secure", "allow_internet_access", "network", "iam",
                  "mcp", "volumeMounts", "duration", "memory", "x", ""]
        params = ["limit", "nextToken", "state", "metadata", "order", "template", "startedAfter", "start", "end", "cursor", "direction", "level", "search",
                  "sandbox_ids", "x"]
        routes = [("POST", p) for p in ("/sandboxes", "/v2/sandboxes", *(f"{v}/sandboxes/{{}}/{op}" for v in ("", "/v2") for op in ("connect", "pause", "resume", "timeout", "refreshes")))]
        routes += [("GET", p) for p in ("/sandboxes", "/v2/sandboxes", "/sandboxes/metrics", "/sandboxes/{}", "/sandboxes/{}/metrics", "/sandboxes/{}/logs", "/v2/sandboxes/{}/logs",
                                        "/templates", "/snapshots", "/v3/templates", "/secrets/a/b")]
        routes += [("DELETE", "/sandboxes/{}"), ("PUT", "/sandboxes/{}/network"), ("POST", "/sandboxes/{}/fork")]
        for i in range(400):
            method, path = rnd.choice(routes)
            path = path.format(rnd.choice([NOBODY, "x", "%00", "%2e%2e%2f", "i" * 300, NOBODY + "-a"]))
            if rnd.random() < 0.5:
                path += "?" + "&".join(f"{rnd.choice(params)}={rnd.choice(['', '1', '-1', '%00', '%ff', '%', 'a%2525b', '9' * 30, 'running,paused'])}" for _ in range(rnd.randint(1, 3)))
            body = {rnd.choice(fields): rnd.choice(values) for _ in range(rnd.randint(0, 4))} if method in ("POST", "PUT") else None
            r = self.node.api(method, path, body, key=self.key)
            self.assertTrue(r.status < 500 or r.status == 501, (method, path, body, r.status, r.body))
            if r.status >= 400:
                error = r.json()
                self.assertEqual(error["code"], r.status, (method, path, body))
                self.assertTrue(error["message"])


if __name__ == "__main__":
    unittest.main()
