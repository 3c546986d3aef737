"""A walk over the failpoints: each is hit once on the way of a sandbox through its life, and afterwards everything must be in order."""

import json
import os
import re
import signal
import threading
import time

from harness import memory, node as harness_node

SRC = os.path.join(harness_node.ROOT, "src")
LOOKED_AT_S = 0.15               # the programs look at the file when 100 ms have passed since they last did
SETTLED = ("running", "paused", "stopped", "failed")
OPERATIONS = ("create", "start", "stop", "delete", "pause", "resume")


def names():
    """The failpoints that the programs have, from the sources."""
    found = set()
    for folder, _, files in os.walk(SRC):
        for name in files:
            if name.endswith(".c") and not name.startswith(("test_", "fuzz_")) and os.path.basename(folder) != "base":
                with open(os.path.join(folder, name)) as f:
                    found.update(re.findall(r'\b(?:FAULT|\w*fault\w*)\("([a-z]+\.[a-z0-9.-]+)"\s*[,)]', f.read()))
    # src/ops makes these names of their parts.
    found.update(f"ops.{kind}.{where}" for kind in OPERATIONS for where in ("before-node", "after-node"))
    return sorted(found)


class Watch:
    """Takes the failpoints away as soon as one was hit: counts are kept per process, and a process that crashed begins anew."""

    def __init__(self, node, line):
        self.node, self.line = node, line
        self.log = f"{node.run}/faults.log"
        self.ended = threading.Event()

    def __enter__(self):
        with open(self.log, "w"):
            pass
        os.chmod(self.log, 0o666)
        self.node.failpoints(self.line)
        time.sleep(LOOKED_AT_S)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def was_hit(self):
        return os.path.getsize(self.log) > 0

    def run(self):
        while not self.ended.is_set():
            if self.was_hit():
                self.node.failpoints()
                return
            self.ended.wait(0.005)

    def __exit__(self, *exc):
        self.ended.set()
        self.thread.join()
        self.node.failpoints()
        time.sleep(LOOKED_AT_S)
        os.unlink(self.log)


def patient(fn, seconds=60):
    """An API call that may meet a daemon which is just starting again."""
    end = time.monotonic() + seconds
    while True:
        try:
            r = fn()
            if r.status not in (502, 503, 504) or time.monotonic() > end:
                return r
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def attempt(fn):
    """One API call whose outcome may be anything."""
    try:
        return fn()
    except OSError:
        return None


def mine(node):
    r = patient(lambda: node.api("GET", "/v1/sandboxes"))
    assert r.status == 200, r.body
    return {s["id"]: s["state"] for s in r.json()}


def settle(node, seconds=120):
    """Waits until no sandbox is on its way from one state to the next; gives all of them."""
    end = time.monotonic() + seconds
    while True:
        seen = mine(node)
        if all(s in SETTLED for s in seen.values()):
            return seen
        assert time.monotonic() < end, f"they do not settle: {seen}"
        time.sleep(0.05)


def answers(node, box):
    r = patient(lambda: node.api("GET", f"/sandboxes/{box}"))
    if r.status != 200:
        return False
    token = r.json()["envdAccessToken"]
    return patient(lambda: node.data("POST", box, "/process.Process/List", {}, token=token)).status == 200


# The shortest way to a point, by the beginning of its name; all others are on the way of every sandbox.
SHORT = {"sbx.pause": "pause", "sbx.resume": "resume", "sbx.start": "start anew", "sbx.stop": "stop", "sbx.crash": "crash", "sbx.bundle": "rotate"}


def sample(points):
    """The last point of each kind on the node: for a default run that is to end in time (a driver that dies costs its lease)."""
    groups = {}
    for p in points:
        if p.startswith("ops."):
            continue
        groups.setdefault(p.rsplit(".", 1)[0], []).append(p)
    return [g[-1] for g in groups.values()]


def steps(node, only=None):
    """The way through: (name, call); `box` is known after the first. `only`: beside create, use and kill only this step."""
    state = {}

    def create():
        before = set(mine(node))
        r = attempt(lambda: node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600}))
        settle(node)
        # A create whose answer was lost may have been done all the same.
        new = set(mine(node)) - before
        assert len(new) <= 1, new
        state["box"] = new.pop() if new else None
        if r is not None and r.status == 201:
            assert r.json()["sandboxID"] == state["box"], "it was answered and is not there"
        return r

    def use():
        return attempt(lambda: node.data("POST", state["box"], "/process.Process/List", {}))

    def life(what):
        return attempt(lambda: node.api("POST", f"/v1/sandboxes/{state['box']}/{what}"))

    def pause():
        return attempt(lambda: node.api("POST", f"/sandboxes/{state['box']}/pause"))

    def resume():
        return attempt(lambda: node.api("POST", f"/sandboxes/{state['box']}/connect", {"timeout": 3600}))

    def kill():
        return attempt(lambda: node.api("DELETE", f"/sandboxes/{state['box']}"))

    def crash():
        """The VMM is killed; the answer is that of a start, which is what then is due."""
        os.kill(node.record(state["box"])["vmm_pid"], signal.SIGKILL)
        end = time.monotonic() + 60
        while mine(node).get(state["box"]) == "running" and time.monotonic() < end:
            time.sleep(0.02)
        return life("start")

    def rotate():
        node.space("key", "rotate", "--run-dir", node.run, check=False)
        return patient(lambda: node.api("GET", "/sandboxes"))

    extra = [("pause", pause), ("resume", resume), ("stop", lambda: life("stop")), ("start", lambda: life("start")), ("start anew", lambda: life("start")), ("crash", crash), ("rotate", rotate)]
    if only is not None:
        extra = [s for s in extra if s[0] == only or (s[0] == "pause" and only == "resume")]
    return state, [("create", create), ("use", use), *extra, ("kill", kill)]


def once(node, line, baseline, short=False):
    """
    One failpoint; gives the step in which it was hit, or None. Raises AssertionError when something is out of order then:
    what is said to run does not answer, what is said to be gone is there, or anything is left in the kernel or on the disk.
    """
    where = None
    state, way = steps(node, SHORT.get(line.rsplit(".", 1)[0], "") if short else None)
    with Watch(node, line) as w:
        for name, call in way:
            if name != "create" and (not state.get("box") or mine(node).get(state["box"]) == "failed"):
                break
            if name == "use" and mine(node).get(state["box"]) != "running":
                continue
            answer = call()
            if w.was_hit():
                where = name
                break
            assert answer is not None and answer.status < 300, f"{name}: {answer and answer.body} though nothing was hit"
    seen = settle(node)
    box = state.get("box")
    if box and seen.get(box) == "running":
        # Or it does not run after all: the node's word, which comes a little later, counts (L-4).
        harness_node.wait_for("what runs answers", lambda: answers(node, box) or mine(node).get(box) != "running")
        seen = settle(node)
    if box and seen.get(box) == "paused":
        r = patient(lambda: node.api("POST", f"/sandboxes/{box}/connect", {}))
        assert r.status == 201, f"what is paused cannot be resumed: {r.body}"
        assert answers(node, box)
    if box and seen.get(box) == "stopped":
        r = patient(lambda: node.api("POST", f"/v1/sandboxes/{box}/start"))
        assert r.status < 300, f"what is stopped cannot be started: {r.body}"
        assert answers(node, box)
    if box and box in mine(node):
        r = patient(lambda: node.api("DELETE", f"/sandboxes/{box}"))
        assert r.status in (204, 404), f"it cannot be deleted: {r.body}"
    last = [None]

    def back():
        last[0] = {k: v for k, v in memory.kernel_objects(node).items() if v != baseline[k]}
        return not last[0]

    try:
        harness_node.wait_for("everything is back", back)
    except AssertionError:
        raise AssertionError(f"left over: {json.dumps(last[0])}, before: { {k: baseline[k] for k in last[0]} }")
    return where
