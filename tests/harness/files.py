"""Files of a sandbox, spoken by hand: /files with every header seen, the filesystem service, watches."""

import base64
import http.client
import json
import urllib.parse

from harness import connect


class Files:
    def __init__(self, node, sandbox):
        self.node, self.sandbox = node, sandbox
        self.token = node.api("GET", f"/sandboxes/{sandbox}").json()["envdAccessToken"]

    def headers(self, user=None, more=None):
        h = {"E2b-Sandbox-Id": self.sandbox, "E2b-Sandbox-Port": "49983", "X-Access-Token": self.token}
        if user:
            h["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        return {**h, **(more or {})}

    @staticmethod
    def target(path, user=None):
        query = {} if path is None else {"path": path}
        if user:
            query["username"] = user
        return "/files?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)

    def request(self, method, path, body=None, user=None, timeout=60, **headers):
        """(status, headers, body); underscores of header names stand for dashes."""
        conn = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=timeout)
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        conn.request(method, self.target(path, user), body, self.headers(more=named), encode_chunked=not hasattr(body, "__len__"))
        r = conn.getresponse()
        data = r.read()
        conn.close()
        return r.status, r.headers, data

    def put(self, path, data, user=None, **headers):
        return self.request("POST", path, data, user, **{"Content_Type": "application/octet-stream", **headers})

    def get(self, path, user=None, **headers):
        return self.request("GET", path, None, user, **{"Accept_Encoding": "identity", **headers})

    def rpc(self, method, user=None, **request):
        """(status, message)"""
        conn = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=60)
        conn.request("POST", f"/filesystem.Filesystem/{method}", json.dumps(request),
                     self.headers(user, {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}))
        r = conn.getresponse()
        data = json.loads(r.read())
        conn.close()
        return r.status, data

    def sh(self, script, user=None, timeout=60):
        out, code = connect.run(self.node, self.sandbox, script, user=user, timeout=timeout)
        if code:
            raise AssertionError(f"exit code {code}: {script}\n{out}")
        return out


class Watch(connect.Stream):
    """WatchDir; ("CREATE", name) for each event."""

    def __init__(self, files, path, user=None, headers=None, timeout=60, **options):
        super().__init__(files.node, files.sandbox, "WatchDir", {"path": path, **options}, token=files.token, timeout=timeout,
                         service="filesystem.Filesystem", headers=files.headers(user, headers))
        first = self.next()
        if first is None or "start" not in first:
            raise AssertionError(f"no start: {first}")

    def events(self, until):
        """All events up to one for which until(type, name) is true."""
        got = []
        while True:
            message = self.next()
            if message is None:
                raise AssertionError(f"the stream has ended after {len(got)} events")
            if "filesystem" in message:
                event = message["filesystem"]
                got.append((event["type"].removeprefix("EVENT_TYPE_"), event["name"]))
                if until(*got[-1]):
                    return got
