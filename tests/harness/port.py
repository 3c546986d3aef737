"""The guest channel of a real VM through its port, with a test in the bridge's place: sessions that end at a byte which the test
chooses, and whole ones after them (T-1, L-9)."""

import base64
import json
import os
import random
import subprocess
import time
import uuid

from harness import node as harness
from harness.nm import NodeManager
from harness.qmp import Qmp

CUT = os.path.join(os.environ.get("SPACE_TEST_TOOLS", os.path.join(harness.ROOT, "build/tests/tools")), "space-test-cut")
SMALL, BIG = 700, 3_000_000
SANDBOX = "icutport%013d"
TOKEN = "ab" * 32


class Port:
    """A VM of the node's template that only node-manager knows; its own bridge never gets the channel."""

    def __init__(self, node, number=1):
        with open(f"{node.run}/conf.json") as f:
            conf = json.load(f)
        self.sandbox = SANDBOX % number
        self.nm = NodeManager(node)
        self.nm.call("disk-create", sandbox=self.sandbox, template=conf["template_id"])
        _, (qmp, state) = self.nm.call("spawn", sandbox=self.sandbox, generation=1, template=conf["template_id"], mode="restore",
                                       accel=conf["accel"], memory_mib=512, vcpus=1)
        self.qmp = Qmp(qmp)
        self.qmp.load(state)
        os.close(state)
        self.tool("init", stdin=json.dumps({
            "sandbox": self.sandbox, "tenant": "test", "generation": 1, "activation": "11" * 16, "hostname": self.sandbox,
            "machine_id": "22" * 16, "boot_id": str(uuid.uuid4()), "entropy": base64.b64encode(os.urandom(128)).decode(),
            "wall_ms": int(time.time() * 1000), "access_token": TOKEN, "env": {}, "default_user": "user", "default_workdir": "",
            "template": "base"}))
        for size in (SMALL, BIG):
            self.tool("file", TOKEN, size)

    def close(self):
        self.qmp.close()
        self.nm.call("destroy", sandbox=self.sandbox, generation=1)
        self.nm.call("disk-delete", sandbox=self.sandbox)
        self.nm.sock.close()

    def tool(self, *args, stdin=""):
        """One connection to the port: the words of the answer. Raises with the tool's sentence."""
        _, (fd,) = self.nm.call("channel-open", sandbox=self.sandbox, generation=1)
        try:
            r = subprocess.run([CUT, str(fd), "1", *map(str, args)], input=stdin, text=True, capture_output=True, timeout=120, pass_fds=[fd])
        finally:
            os.close(fd)
        if r.returncode:
            raise AssertionError(f"{' '.join(map(str, args))}: {r.stdout}{r.stderr}")
        return r.stdout.split()

    def session(self, size, *cut):
        return self.tool("session", TOKEN, size, *cut)


def cut_at_offsets(node, count, seed=1):
    """Cuts `count` sessions, small and big ones, by bytes written and bytes read in turns; after each a whole session must be right.
    Gives how many were cut."""
    dice = random.Random(seed)
    port = Port(node)
    try:
        total = {}
        for size in (SMALL, BIG):
            word, out, into = port.session(size)
            if word != "whole" or int(out) < size or int(into) < size:
                raise AssertionError(f"a session without a cut: {word} {out} {into}")
            total[size] = {"out": int(out), "in": int(into)}
        cuts = 0
        for i in range(count):
            size, way = (SMALL, BIG)[i % 2], ("out", "in")[i // 2 % 2]
            # Spread over the session, so that each part of it is met, and at no round number.
            step = total[size][way] / ((count + 3) // 4)
            at = max(1, min(int(step * (i // 4) + dice.random() * step), int(total[size][way] * 0.98)))
            where = f"session of {size}, {way} {at} of {total[size][way]} (cut {i + 1})"
            word = port.session(size, way, at)[0]
            if word != "cut":
                raise AssertionError(f"{where}: the session ended before the cut")
            cuts += 1
            try:
                word = port.session(SMALL)[0]
                if i % 10 == 0:
                    word = port.session(BIG)[0]
            except AssertionError as e:
                raise AssertionError(f"after {where}: {e}") from None
            if word != "whole":
                raise AssertionError(f"after {where}: {word}")
        return cuts
    finally:
        port.close()
