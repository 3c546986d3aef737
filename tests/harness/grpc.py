"""
gRPC of two implementations: grpcio (C-core, what most languages have) and grpc-js (its own HTTP/2). The service, its servers and clients are
tests/grpc; a guest has grpc-js, the tests' internet grpcio.
"""

import contextlib
import json
import os
import subprocess

from harness import locked, node

HERE = os.path.join(node.ROOT, "tests/grpc")
CACHE = os.path.join(node.ROOT, "build/grpc")
KINDS = ("grpcio", "grpc-js")
TLS_PORT, PORT = 50051, 50052            # of the internet's server
QUIET = {**os.environ, "GRPC_VERBOSITY": "NONE"}
GUEST = "/tmp/grpc"                      # where a guest has it


def python():
    with open(os.path.join(HERE, "requirements.txt")) as f:
        return locked.pip(f.read(), os.path.join(CACHE, "pypi"))


def javascript():
    return locked.npm(HERE, os.path.join(CACHE, "npm"))


def put(n, box):
    """grpc-js and the programs into a guest; types and maps stay here."""
    tar = ["tar", "-czf", "-", "--exclude=*.ts", "--exclude=*.map", "--exclude=*.md", "--exclude=@types", "--exclude=undici-types",
           "-C", javascript(), "node_modules", "echo.mjs", "server.mjs", "client.mjs"]
    data = subprocess.run(tar, stdout=subprocess.PIPE, check=True).stdout
    n.space("exec", "-i", box, "--", "sh", "-c", f"mkdir {GUEST} && tar -xzC {GUEST}", input=data, text=False)


def serve(n, box, port):
    """The service in a guest, at 127.0.0.1 alone."""
    n.sh(box, f"cd {GUEST}; setsid node server.mjs 127.0.0.1:{port} > {port}.log 2>&1 < /dev/null & cd {GUEST}; "
              f"for i in $(seq 600); do grep -q ready {port}.log && exit 0; sleep 0.1; done; cat {port}.log; exit 1")


class Program:
    """One of the programs; it ends with its standard input."""

    def __init__(self, command, **kw):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kw)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Server(Program):
    """On the tests' internet: TLS at TLS_PORT, without at PORT."""

    def __init__(self, net):
        program = python()               # installs where there is a network
        with net.outside():
            super().__init__([program, f"{HERE}/server.py", f"{net.dir}/server.crt", f"{net.dir}/server.key", str(TLS_PORT), str(PORT)], env=QUIET)
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError("the gRPC server did not start")


class Client(Program):
    """client.py or client.mjs: on this machine, or (box) in a guest."""

    def __init__(self, kind, n=None, box=None):
        if box:
            command, more = [node.SPACE, "exec", "-i", box, "--", "node", f"{GUEST}/client.mjs"], {"env": n.env()}
        elif kind == "grpcio":
            command, more = [python(), f"{HERE}/client.py"], {"env": QUIET}
        else:
            command, more = ["node", f"{javascript()}/client.mjs"], {}
        super().__init__(command, **more)

    def ask(self, do, **order):
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the client has ended ({do}): exit code {self.process.wait(20)}")
        return json.loads(line)

    def seen(self):
        return json.loads(self.ask("seen")["reply"])


# -- what is to be seen through any tunnel

SENTENCE = "not “now”: 100 %"             # goes percent-encoded (grpc-message)
BIG = 150_000                            # more than the windows of HTTP/2 hold at first


def good(test, r, trailing=None):
    test.assertEqual((r["code"], r["same"]), ("OK", True), r)
    if trailing is not None:
        test.assertEqual(r["trailing"]["x-size"], str(trailing), r)
    return r


def check_some(test, client):
    """One call, and streams each way. Gives who the server says that the client is."""
    r = good(test, client.ask("unary", size=BIG), BIG)
    test.assertEqual(good(test, client.ask("many", count=50, size=3000), BIG)["count"], 50)
    # A message is sent when the one before has come back: nothing waits on the way for more.
    test.assertEqual(good(test, client.ask("chat", count=10, size=1000), 10_000)["count"], 10)
    return r["initial"]["x-peer"]


def check_calls(test, client):
    """Every kind of call on one channel, which is one connection."""
    ask = client.ask
    peer = check_some(test, client)
    r = good(test, ask("unary", size=10, metadata=[["x-ask", "a"], ["x-ask", "b"], ["x-ask-bin", "00ff0a0d"]], timeout=60), 10)["initial"]
    test.assertEqual((r["x-got"].replace(" ", ""), r["x-got-bin"], r["x-deadline"]), ("a,b", "00ff0a0d", "yes"), r)
    good(test, ask("sum", count=50, size=3000))
    r = ask("fail", code=9, details=SENTENCE)
    test.assertEqual((r["code"], r["details"]), ("FAILED_PRECONDITION", SENTENCE), r)
    test.assertIn("x-size", r["trailing"])
    # A deadline that was over before the server had begun says nothing: once more with a later one.
    for why, orders in (("CANCELLED", [{"cancel": True}]), ("DEADLINE_EXCEEDED", [{"timeout": 1}, {"timeout": 5}, {"timeout": 25}])):
        for order in orders:
            before = client.seen()["ended"]
            r = ask("wait", **order)
            if r["initial"]:
                break
        test.assertEqual((r["code"], r["initial"]["x-deadline"]), (why, "yes" if "timeout" in order else "no"), r)
        node.wait_for(f"the server knows that the call has ended: {why}", lambda: client.seen()["ended"] > before)
    test.assertEqual(ask("at_once", count=25, size=5000), {"codes": ["OK"], "same": 25})
    test.assertEqual(good(test, ask("unary", size=10))["initial"]["x-peer"], peer)
    return peer
