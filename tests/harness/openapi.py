"""The API document, a validator and a property-based tester for it (from PyPI, pinned, in the build folder)."""

import http.client
import json
import os
import re
import subprocess

from harness import locked, node

FOLDER = os.path.join(node.ROOT, "tests/openapi")


def python():
    """The Python that has what requirements.txt names."""
    with open(os.path.join(FOLDER, "requirements.txt")) as f:
        return locked.pip(f.read(), os.path.join(node.ROOT, "build/openapi"))


class Client:
    """Asks /v1 and keeps every answer for the comparison with the document."""

    def __init__(self, n, key):
        self.node, self.key, self.seen = n, key, []

    def send(self, method, path, body=None, raw=None, headers=None, template=None):
        """template: the path in the document, when it does not follow from the path."""
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        fields = {"X-API-Key": self.key, **({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})}
        c = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=90)
        try:
            c.request(method, path, body=data, headers={k: v for k, v in fields.items() if v is not None})
            r = c.getresponse()
            answer = node.Answer(r.status, r.headers, r.read())
        finally:
            c.close()
        bare = path.split("?")[0]
        bare = re.sub(r"^/v1/sandboxes/[^/]+", "/v1/sandboxes/{id}", bare)
        bare = re.sub(r"^/v1/problems/[^/]+", "/v1/problems/{code}", bare)
        bare = re.sub(r"/ports/[0-9]+/", "/ports/{port}/", bare)
        self.seen.append({"method": method.lower(), "path": template or bare, "status": answer.status, "headers": list(answer.headers.items()),
                          "body": answer.body.decode()})
        return answer

    def check(self, document, complete):
        """What validate.py has to say about all answers; with complete also which documented ones were not seen."""
        r = subprocess.run([python(), f"{FOLDER}/validate.py", *(["--complete"] if complete else [])],
                           input=json.dumps({"document": document, "seen": self.seen}), stdout=subprocess.PIPE, text=True, check=True)
        return r.stdout.splitlines()


# The fuzzer speaks no WebSocket and no tunnel: with sandboxes it gets 426 alone. Without one none can open, so it may ask for one; that some
# parameters exclude each other is said in words only, so well-formed requests can be refused.
ASK_FOR_TERMINALS = """
[[operations]]
include-operation-id = "openTerminal"
headers = { Connection = "Upgrade", Upgrade = "websocket", Sec-WebSocket-Version = "13", Sec-WebSocket-Key = "AAAAAAAAAAAAAAAAAAAAAA==" }
checks.positive_data_acceptance.enabled = false

[[operations]]
include-operation-id = "openTunnel"
headers = { Connection = "Upgrade", Upgrade = "space-tunnel" }
checks.positive_data_acceptance.enabled = false
"""
NO_TERMINALS = """
[[operations]]
include-operation-id = "openTerminal"
enabled = false

[[operations]]
include-operation-id = "openTunnel"
enabled = false
"""


def fuzz(n, key, *options, config=ASK_FOR_TERMINALS, timeout=600):
    """schemathesis against the node; raises with its report. Gives the report."""
    folder = os.path.join(n.dir, "fuzz")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/schemathesis.toml", "w") as f:
        f.write(config)
    try:
        r = subprocess.run([os.path.join(os.path.dirname(python()), "st"), "--config-file", f"{folder}/schemathesis.toml", "run", f"{n.api_url}/v1/openapi.json", "--header", f"X-API-Key: {key}",
                            "--continue-on-failure", "--no-color", "--suppress-health-check", "all", *options],
                           cwd=folder, env=n.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise AssertionError(f"the fuzzer took more than {timeout} s\n{(e.stdout or b'').decode(errors='replace')[-4000:]}")
    if r.returncode:
        raise AssertionError(r.stdout)
    return r.stdout
