"""E2B's control routes, and the edge of its data surface, as its clients use them (U-1, U-5, L-10)."""

import base64
import concurrent.futures
import datetime
import hashlib
import json
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from harness import connect, node

HOSTILE = "a\x1b[2J\u009b2J\x07\r\n{\"level\":\"error\",\"msg\":\"forged\"}\u2028\u202e</script>\x7f"


def parse(iso):
    return datetime.datetime.fromisoformat(iso.replace("Z", "+00:00"))


def plain(url, method="GET", data=None, headers=None):
    """A request of somebody who has no key."""
    req = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(req, timeout=60) as r:
            return node.Answer(r.status, r.headers, r.read())
    except urllib.error.HTTPError as e:
        return node.Answer(e.code, e.headers, e.read())


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.mark = f"routes-{time.time_ns()}"
        cls.boxes = []

    @classmethod
    def tearDownClass(cls):
        for box in cls.boxes:
            cls.node.api("DELETE", f"/sandboxes/{box}")

    @classmethod
    def create(cls, path="/v2/sandboxes", headers=None, **body):
        r = cls.node.api("POST", path, {"templateID": "base", **body}, headers=headers)
        if r.status == 201:
            cls.boxes.append(r.json()["sandboxID"])
        return r

    def get(self, path, status=200, **kw):
        r = self.node.api("GET", path, **kw)
        self.assertEqual(r.status, status, r.body)
        return r.json()


class Routes(Base):
    """Three sandboxes serve all of these."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tags = [{"mark": cls.mark, "n": str(i), "k 1": "v&2=%"} for i in range(3)]
        tags[2]["hostile"] = HOSTILE
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda i: cls.create(metadata=tags[i], timeout=600, autoPause=i == 1, autoResume={"enabled": i == 1},
                                                      allow_internet_access=i == 0, envVars={"HOSTILE": HOSTILE, "LONG": "x" * 3000}), range(3)))
        for r in made:
            if r.status != 201:
                raise AssertionError(r.body)
        cls.ids = [r.json()["sandboxID"] for r in made]
        cls.tokens = [r.json()["envdAccessToken"] for r in made]

    # -- objects and lists

    def filter(self, **tags):
        """As the clients encode it: three times."""
        q = urllib.parse.quote
        return q("&".join(f"{q(q(k, safe=''), safe='')}={q(q(v, safe=''), safe='')}" for k, v in {"mark": self.mark, **tags}.items()), safe="")

    def list(self, query="", tags=None):
        r = self.node.api("GET", f"/v2/sandboxes?metadata={self.filter(**(tags or {}))}{query}")
        self.assertEqual(r.status, 200, r.body)
        return [b["sandboxID"] for b in r.json()], r.headers.get("X-Next-Token")

    def test_objects(self):
        for i, box in enumerate(self.ids):
            d = self.get(f"/sandboxes/{box}")
            self.assertEqual(d["lifecycle"], {"onTimeout": "pause" if i == 1 else "kill", "autoResume": i == 1})
            self.assertIs(d["allowInternetAccess"], i == 0)
            self.assertEqual((d["state"], d["alias"], d["envdAccessToken"]), ("running", "base", self.tokens[i]))
            self.assertAlmostEqual((parse(d["endAt"]) - datetime.datetime.now(datetime.timezone.utc)).total_seconds(), 600, delta=200)
            for key, kind in (("templateID", str), ("clientID", str), ("cpuCount", int), ("memoryMB", int), ("diskSizeMB", int), ("envdVersion", str),
                              ("startedAt", str), ("domain", str), ("volumeMounts", list), ("metadata", dict)):
                self.assertIsInstance(d[key], kind, key)
        self.assertEqual(self.get(f"/sandboxes/{self.ids[0]}-space")["sandboxID"], self.ids[0])

    def test_list_and_pages(self):
        every, token = self.list()
        self.assertEqual((set(every), token), (set(self.ids), None))
        self.assertEqual(self.list("&order=asc")[0], every[::-1])
        seen, token = [], ""
        for want in (2, 1):
            got, token = self.list("&limit=2" + (f"&nextToken={token}" if token else ""))
            self.assertEqual(len(got), want)
            seen += got
        self.assertEqual((seen, token), (every, None))
        self.assertIsNone(self.list("&limit=3")[1])              # the last page is exactly full
        self.assertEqual(self.list(tags={"n": "1", "k 1": "v&2=%"})[0], [self.ids[1]])
        self.assertEqual(self.list(tags={"n": "1", "k 1": "v"})[0], [])
        self.assertEqual(self.list("&state=paused")[0], [])
        self.assertEqual(set(self.list("&state=running,paused&template=base")[0]), set(self.ids))
        self.assertEqual(self.list("&template=other")[0], [])
        later = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        self.assertEqual(self.list(f"&startedAfter={urllib.parse.quote(later)}")[0], [])
        self.assertEqual(set(self.list("&startedAfter=2020-01-01T00:00:00Z")[0]), set(self.ids))
        self.assertEqual({b["sandboxID"] for b in self.get(f"/sandboxes?metadata={self.filter()}")}, set(self.ids))
        for bad in ("nextToken=x", "nextToken=1.2", "limit=0", "limit=101", "order=up", "state=stopped", "startedAfter=now", "metadata=x", "colour=red", "limit=1&limit=2"):
            self.get("/v2/sandboxes?" + bad, 400)
        self.assertEqual(self.get("/v2/sandboxes", key=self.node.new_key("routes-other")), [])

    # -- text of others

    def test_hostile_text(self):
        box = self.ids[2]
        for o in (self.get(f"/sandboxes/{box}"), next(b for b in self.get("/v2/sandboxes") if b["sandboxID"] == box)):
            self.assertEqual(o["metadata"]["hostile"], HOSTILE)
        raw = self.node.api("GET", f"/sandboxes/{box}").body
        self.assertFalse([c for c in raw.decode() if ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u202e"], "control characters in an answer")
        self.assertEqual(connect.run(self.node, box, "printf %s \"$HOSTILE\"; printf %s ${#LONG}")[0], HOSTILE + "3000")
        name = "\x1b]0;x\x07" + HOSTILE
        for r in (self.create(metadata={"a": 1, HOSTILE: "b"}), self.create(**{name: 1}), self.create(envVars={HOSTILE + "=": "x"}),
                  self.node.api("POST", "/v2/sandboxes", {"templateID": name}), self.node.api("GET", "/sandboxes?" + urllib.parse.quote(name))):
            self.assertIn(r.status, (400, 404), r.body)
            self.assertFalse([c for c in r.body if c < 32], r.body)
            self.assertEqual(r.json()["code"], r.status)
        for line in self.node.log("space-api").strip("\n").split("\n"):
            entry = json.loads(line)
            self.assertNotEqual(entry.get("msg"), "forged")
            self.assertFalse([c for c in line if ord(c) < 32 or ord(c) == 127], line)

    # -- logs and metrics

    def test_logs(self):
        box, said = self.ids[0], f"said-{self.mark}"
        self.assertEqual(connect.run(self.node, box, f"printf '{said} \\033[2J one\\n' > /dev/console", user="root")[1], 0)
        found = lambda: [e for e in self.get(f"/v2/sandboxes/{box}/logs?search={said}")["logs"]]
        node.wait_for("the line", lambda: len(found()) == 1)
        first = found()[0]
        self.assertEqual(first["message"], f"{said} \x1b[2J one")
        self.assertEqual((first["level"], first["fields"]["source"]), ("info", "console"))
        self.assertEqual(found()[0], first, "its time stays")
        every = self.get(f"/v2/sandboxes/{box}/logs")["logs"]
        self.assertTrue(any(e["fields"]["source"] == "node" and e["message"].startswith("created") for e in every))
        self.assertEqual(sorted(every, key=lambda e: e["timestamp"]), every)
        self.assertEqual(self.get(f"/v2/sandboxes/{box}/logs?direction=backward&limit=2")["logs"], every[:-3:-1])
        # What comes later is behind a cursor of now.
        start = int(parse(first["timestamp"]).timestamp() * 1000) + 1
        self.assertEqual(connect.run(self.node, box, f"printf '{said} two\\n' > /dev/console", user="root")[1], 0)
        node.wait_for("the next line", lambda: any(said in l["line"] for l in self.get(f"/sandboxes/{box}/logs?start={start}")["logs"]))
        old = self.get(f"/sandboxes/{box}/logs?start={start}")
        self.assertEqual([json.loads(l["line"])["message"] for l in old["logs"] if said in l["line"]], [f"{said} two"])
        self.assertEqual(len(old["logs"]), len(old["logEntries"]))
        self.get("/sandboxes/i00000000000000000000/logs", 404)
        self.get(f"/v2/sandboxes/{box}/logs?level=loud", 400)

    def test_metrics(self):
        box, now = self.ids[0], int(time.time())
        m = self.get(f"/sandboxes/{box}/metrics")[-1]
        detail = self.get(f"/sandboxes/{box}")
        self.assertEqual(m["cpuCount"], detail["cpuCount"])
        self.assertGreater(m["memTotal"], detail["memoryMB"] * 2**20 * 0.7)
        self.assertLess(m["memTotal"], detail["memoryMB"] * 2**20 * 1.1)
        self.assertTrue(0 < m["memUsed"] < m["memTotal"] and 0 < m["diskUsed"] < m["diskTotal"] and 0 <= m["cpuUsedPct"] <= 100 * m["cpuCount"])
        self.assertAlmostEqual(m["timestampUnix"], time.time(), delta=30)
        self.assertEqual(int(parse(m["timestamp"]).timestamp()), m["timestampUnix"])
        # What the guest uses is seen.
        connect.run(self.node, box, "fallocate -l 50000000 ~/large")
        again = self.get(f"/sandboxes/{box}/metrics?start={now}&end={now + 3600}")
        self.assertGreaterEqual(len(again), 2)
        self.assertGreater(again[-1]["diskUsed"], m["diskUsed"] + 40_000_000)
        self.assertEqual(self.get(f"/sandboxes/{box}/metrics?start=1&end=2"), [])
        many = self.get(f"/sandboxes/metrics?sandbox_ids={','.join(self.ids)},i00000000000000000000")["sandboxes"]
        self.assertEqual(set(many), set(self.ids))
        self.get("/sandboxes/i00000000000000000000/metrics", 404)
        self.get("/sandboxes/metrics", 400)

    def test_paused(self):
        box, token = self.ids[2], self.tokens[2]
        last = self.get(f"/sandboxes/{box}/metrics")
        self.assertEqual(self.node.api("POST", f"/sandboxes/{box}/pause", {}).status, 204)
        d = self.get(f"/sandboxes/{box}")
        self.assertEqual((d["state"], d["pauseMode"]), ("paused", "full"))
        self.assertLess(abs((parse(d["endAt"]) - datetime.datetime.now(datetime.timezone.utc)).total_seconds()), 60)
        self.assertEqual(self.list("&state=paused")[0], [box])
        self.assertNotIn(box, [b["sandboxID"] for b in self.get("/sandboxes")])
        self.assertEqual(self.get(f"/sandboxes/{box}/metrics"), last)
        self.assertTrue(self.get(f"/v2/sandboxes/{box}/logs")["logs"])
        r = self.node.data("GET", box, "/health", token=token)
        self.assertEqual((r.status, r.json()["message"]), (502, "The sandbox was not found"))
        self.assertEqual(self.node.api("POST", f"/v2/sandboxes/{box}/connect", {"timeout": 600}).status, 201)
        self.assertNotIn("pauseMode", self.get(f"/sandboxes/{box}"))
        self.assertGreater(len(self.get(f"/sandboxes/{box}/metrics")), len(last))

    # -- signed addresses

    def signed(self, path, op, user="user", expiration=None, token=None):
        text = f"{path}:{op}:{user}:{token or self.tokens[0]}" + (f":{expiration}" if expiration else "")
        query = {"username": user, "path": path, "signature": "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")}
        if expiration:
            query["signature_expiration"] = expiration
        return f"{self.node.api_url}/files?{urllib.parse.urlencode(query)}"

    def test_signed_addresses(self):
        later, past = int(time.time()) + 300, int(time.time()) - 300
        r = plain(self.signed("signed file ü.txt", "write", expiration=later), "POST", b"signed\n", {"Content-Type": "application/octet-stream"})
        self.assertEqual(r.status, 200, r.body)
        url = self.signed("signed file ü.txt", "read", expiration=later)
        for _ in range(2):
            self.assertEqual(plain(url).body, b"signed\n")
        self.assertEqual(connect.run(self.node, self.ids[0], "stat -c %U 'signed file ü.txt'; cat signed*")[0], "user\nsigned\n")
        self.assertEqual(plain(self.signed("/etc/hostname", "read")).status, 200)
        # Each by itself breaks it.
        for bad in (self.signed("signed file ü.txt", "write", expiration=later), url.replace("signed+file", "signed+files"), url.replace("username=user", "username=root"),
                    url.replace(str(later), str(later + 1)), url.replace("v1_", "v2_"), self.signed("x", "read", token=self.tokens[0][:-1] + "x")):
            self.assertEqual(plain(bad).status, 401, bad)
        r = plain(self.signed("signed file ü.txt", "read", expiration=past))
        self.assertEqual((r.status, r.json()["code"], r.json()["message"]), (401, 401, "signature is already expired"))
        # The right token in its place; another sandbox's is none.
        r = plain(self.signed("signed file ü.txt", "read", expiration=past), headers={"X-Access-Token": self.tokens[0]})
        self.assertEqual((r.status, r.body), (200, b"signed\n"))
        headers = {"E2b-Sandbox-Id": self.ids[0], "E2b-Sandbox-Port": "49983"}
        self.assertEqual(plain(url, headers=headers).status, 200)
        self.assertEqual(plain(url, headers={**headers, "E2b-Sandbox-Id": self.ids[1]}).status, 401)
        self.assertEqual(plain(url, headers={**headers, "X-Access-Token": self.tokens[1]}).status, 401)

    # -- pages of other origins, and what nobody outside may ask

    def test_pages_of_other_origins(self):
        page = {"Origin": "https://page.example"}
        ask = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-access-token,content-type"}
        for path in ("/files?path=x", "/process.Process/Start", "/filesystem.Filesystem/Stat"):
            r = plain(self.node.api_url + path, "OPTIONS", headers=ask)
            self.assertEqual(r.status, 204)
            self.assertEqual(r.headers["Access-Control-Allow-Origin"], "*")
            self.assertEqual(r.headers["Access-Control-Allow-Headers"], "x-access-token,content-type")
            self.assertEqual(r.headers["Access-Control-Max-Age"], "7200")
            self.assertIn("POST", r.headers["Access-Control-Allow-Methods"])
        r = plain(self.node.api_url + "/envs", headers={**page, "X-Access-Token": self.tokens[0]})
        self.assertEqual((r.status, r.headers["Access-Control-Allow-Origin"]), (200, "*"))
        for path in ("/sandboxes", "/v2/sandboxes", "/v1/sandboxes", f"/sandboxes/{self.ids[0]}"):
            self.assertNotEqual(plain(self.node.api_url + path, "OPTIONS", headers=ask).status, 204)
            self.assertIsNone(self.node.api("GET", path, headers=page).headers["Access-Control-Allow-Origin"])

    def test_inside_only(self):
        for path in ("/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/%69nit", "//init", "/init/"):
            for method in ("POST", "GET"):
                r = self.node.data(method, self.ids[0], path, token=self.tokens[0])
                self.assertEqual((r.status, r.json()["code"]), (404, 404), path)

    def test_not_built(self):
        for method, path in (("PUT", "/sandboxes/{}/network"), ("POST", "/sandboxes/{}/fork"), ("POST", "/sandboxes/{}/snapshots"), ("GET", "/snapshots"),
                             ("GET", "/templates"), ("POST", "/v3/templates"), ("DELETE", "/templates/a%2Fb%3Ac"), ("GET", "/templates/aliases/base"),
                             ("POST", "/v2/templates/x/builds/y"), ("GET", "/volumes"), ("POST", "/secrets"), ("GET", "/teams"), ("GET", "/api-keys"),
                             ("GET", "/nodes"), ("POST", "/admin/teams/x/sandboxes/kill")):
            r = self.node.api(method, path.format(self.ids[0]), {} if method in ("POST", "PUT") else None)
            self.assertEqual((r.status, r.json()["code"], r.json()["error_code"]), (501, 501, "not_built_yet"), path)
            self.assertEqual(r.headers["Should-Retry"], "false")
            self.assertIn("not built", r.json()["message"])
        for field, value in (("autoPauseMemory", False), ("network", {"allowOut": ["1.1.1.1"]}), ("network", {"maskRequestHost": "x"}), ("iam", {"tokens": {"a": {}}}),
                             ("mcp", {}), ("volumeMounts", [{"name": "v", "path": "/v"}]), ("secure", False)):
            for path in ("/sandboxes", "/v2/sandboxes"):
                r = self.create(path, **{field: value})
                self.assertEqual((r.status, r.json()["error_code"]), (400, "not_built_yet"), r.body)
                self.assertIn(field, r.json()["message"])


class Once(Base):
    """Idempotency-Key."""

    def test_once(self):
        key, body = f"a-{time.time_ns()}", {"metadata": {"mark": self.mark}, "timeout": 300}
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda _: self.create(headers={"Idempotency-Key": key}, **body), range(3)))
        self.assertEqual([r.status for r in made], [201] * 3, [r.body for r in made])
        self.assertEqual(len({r.body for r in made}), 1)
        box = made[0].json()["sandboxID"]
        self.assertEqual([b["sandboxID"] for b in self.get(f"/sandboxes?metadata=mark%3D{self.mark}")], [box])
        self.node.kill_daemon("space-api")
        node.wait_for("space-api is back", lambda: self.alive())
        again = self.create(headers={"Idempotency-Key": key}, **body)
        self.assertEqual((again.status, again.json()["sandboxID"]), (201, box))
        for other in ({**body, "timeout": 301}, {}):
            r = self.create(headers={"Idempotency-Key": key}, **other)
            self.assertEqual((r.status, r.json()["error_code"]), (409, "idempotency_request_mismatch"))
        self.assertEqual(self.create(headers={"Idempotency-Key": "no key"}, **body).status, 400)
        self.assertEqual(self.node.api("DELETE", f"/sandboxes/{box}").status, 204)
        r = self.create(headers={"Idempotency-Key": key}, **body)
        self.assertEqual((r.status, r.json()["error_code"]), (409, "idempotency_sandbox_gone"))
        self.assertEqual(self.get(f"/sandboxes?metadata=mark%3D{self.mark}"), [])

    def alive(self):
        try:
            return plain(self.node.api_url + "/health").status == 200
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main()
