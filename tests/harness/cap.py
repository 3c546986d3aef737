"""Capabilities of the tests' own making, and requests straight to node-api with them."""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

from harness import node as harness_node

BUILD = os.environ.get("SPACE_TEST_BUILD", os.path.join(harness_node.ROOT, "build"))
TOOL = os.path.join(BUILD, "tests/tools/space-test-cap")
INTRUDER = os.path.join(BUILD, "tests/tools/intruder")
LIFETIME = 120
SKEW = 15


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def take_apart(token):
    """(message, signature, footer) as bytes."""
    parts = token.split(".")
    body = unb64(parts[2])
    return body[:-64], body[-64:], unb64(parts[3])


def put_together(message, signature, footer):
    return f"v4.public.{b64(message + signature)}.{b64(footer)}"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=90):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class NodeApi:
    """Speaks to node-api as the control plane does (root is one of its peers)."""

    def __init__(self, node):
        self.node = node
        self.count = 0

    def request(self, method, path, op, capability=None, body=None, headers=None, request_id=None, timeout=90):
        self.count += 1
        fields = {"Space-Op": op, "Space-Request-Id": request_id or f"test-{os.getpid()}-{self.count}", **(headers or {})}
        if capability is not None:
            fields["Space-Capability"] = capability
        conn = UnixConnection(f"{self.node.run}/node-api/node.sock", timeout)
        try:
            conn.request(method, path, body, fields)
            r = conn.getresponse()
            return harness_node.Answer(r.status, r.headers, r.read())
        finally:
            conn.close()

    def forward(self, capability, method="GET", path="/health", body=None, headers=None, **kw):
        return self.request(method, path, "forward", capability, body, headers, **kw)

    def report(self):
        return self.request("GET", "/report", "report").json()

    def of(self, sandbox):
        """What the node reports about one sandbox: the installed identity."""
        return next((s for s in self.report()["sandboxes"] if s["sandbox"] == sandbox), None)

    def put_bundle(self, text):
        return self.request("PUT", "/bundle", "bundle", body=text)


class Signer:
    """Signs with the node's real keys; claims are changed at will."""

    def __init__(self, node):
        self.node = node
        self.api = NodeApi(node)
        with open(f"{node.state}/worker") as f:
            self.worker = f.read(36)

    def newest(self, who="api"):
        folder = f"{self.node.state}/keys/{who}"
        return os.path.join(folder, sorted(k for k in os.listdir(folder) if k.startswith(who + "-") and k.endswith(".key"))[-1])

    def claims(self, sandbox, **changes):
        """The right claims for the execution that is installed now; a change to None takes the claim away."""
        seen = self.api.of(sandbox)
        now = int(time.time())
        claims = {"iss": "space", "aud": self.worker, "iat": now, "exp": now + LIFETIME, "ten": seen["tenant"], "sbx": sandbox,
                  "sub": "microvm", "pod": "", "gen": seen["generation"], "act": seen["activation"], "att": seen["attempt"],
                  "pur": "control", "acc": "write", "prt": 0, "pro": ""}
        claims.update(changes)
        return {k: v for k, v in claims.items() if v is not None}

    def sign(self, claims, key=None, kid=None):
        message = claims if isinstance(claims, bytes) else json.dumps(claims, separators=(",", ":")).encode()
        with tempfile.TemporaryDirectory() as d:
            copy = d + "/key"
            shutil.copyfile(key or self.newest(), copy)
            os.chmod(copy, 0o400)
            r = subprocess.run([TOOL, "sign", copy, *([kid] if kid else [])], input=message, stdout=subprocess.PIPE, check=True)
        return r.stdout.decode().strip()

    def stranger(self, claims, kid):
        r = subprocess.run([TOOL, "stranger", kid], input=json.dumps(claims, separators=(",", ":")).encode(), stdout=subprocess.PIPE, check=True)
        return r.stdout.decode().strip()

    def kid(self, who="api"):
        return os.path.basename(self.newest(who))[:-len(".key")]

    def make(self, sandbox, **changes):
        return self.sign(self.claims(sandbox, **changes))


def waiting_connections(path):
    """Connections in the accept queue of a listening Unix socket."""
    r = subprocess.run(["ss", "-xlH"], stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.split() for line in r.stdout.splitlines() if path in line.split()]
    assert len(lines) == 1, f"{path}: {r.stdout}"
    return int(lines[0][2])
