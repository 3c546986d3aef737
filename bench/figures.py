"""Small statistics, and what a node says about itself."""

import http.client
import json
import socket


def quantile(values, q):
    s = sorted(values)
    return s[min(len(s) - 1, int(len(s) * q))]


def summary(values):
    return {"n": len(values), "p50": quantile(values, 0.5), "p90": quantile(values, 0.9), "min": min(values), "max": max(values)}


class UnixHTTP(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def node_report(node):
    """The node's own report, as the control plane reads it (root is one of node-api's peers)."""
    c = UnixHTTP(f"{node.run}/node-api/node.sock")
    c.request("GET", "/report", headers={"Space-Op": "report", "Space-Request-Id": "bench"})
    r = c.getresponse()
    body = r.read()
    c.close()
    if r.status != 200:
        raise AssertionError(f"report: {r.status} {body[:200]!r}")
    return json.loads(body)

