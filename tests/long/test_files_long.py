"""Files: 1 GiB up and down, and watches under thousands of changes (L-8, U-1)."""

import hashlib
import http.client
import os
import threading
import time
import unittest

from harness import connect, files, memory, node, results

GIB = 1 << 30
BLOCK = 1 << 20
GROWTH_KIB = 8192
ROUNDS = 3
SEEDS = 8
STEPS = 500

# Makes, writes, moves and removes files and folders in the current folder.
CHURN = r"""
import os, random, shutil, sys
rnd = random.Random(int(sys.argv[1]))
dirs, n = ["."], 0
for i in range(int(sys.argv[2])):
    d = rnd.choice(dirs)
    if not os.path.isdir(d):
        dirs.remove(d)
        continue
    n += 1
    what = rnd.random()
    names = os.listdir(d)
    if what < .45:
        with open(f"{d}/f{n}", "w") as f:
            f.write("x" * rnd.randrange(3))
    elif what < .6:
        os.makedirs(f"{d}/d{n}/e/f")
        open(f"{d}/d{n}/e/f/g", "w").close()
        dirs += [f"{d}/d{n}", f"{d}/d{n}/e"]
    elif what < .8 and names:
        to = rnd.choice(dirs)
        source = f"{d}/{rnd.choice(names)}"
        try:
            os.rename(source, f"{to}/m{n}")
            if os.path.isdir(f"{to}/m{n}"):
                dirs.append(f"{to}/m{n}")
        except OSError:
            pass
    elif what < .9 and names:
        path = f"{d}/{rnd.choice(names)}"
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    elif names:
        os.chmod(f"{d}/{rnd.choice(names)}", 0o750)
"""

# 2,000 files in 40 new folders, each made and changed twice, without a pause.
QUICK = r"""
import os
for d in range(40):
    os.makedirs(f"d{d}/e")
    for f in range(50):
        for i in range(3):
            with open(f"d{d}/e/f{f}", "a") as out:
                out.write("x")
"""


def model(events):
    """What is there when the events are believed: a folder that goes takes all below with it."""
    there = set()
    for kind, name in events:
        if kind == "CREATE":
            there.add(name)
        elif kind in ("REMOVE", "RENAME"):
            there = {p for p in there if p != name and not p.startswith(name + "/")}
    return there


class Memory(threading.Thread):
    """The most that daemons, bridge and agent have used, beside what they had at first."""

    def __init__(self, n, f):
        super().__init__(daemon=True)
        self.n, self.f, self.stop = n, f, threading.Event()
        self.first = self.now()
        self.most = dict(self.first)
        self.agent = self.agent_kib()
        self.start()

    def now(self):
        bridge = {f"bridge-{p}": memory.pss_kib(p) for p in self.bridges()}
        return {**memory.daemons_pss(self.n), **bridge}

    def bridges(self):
        return [p for p in memory.sandbox_processes(self.n) if self.program(p) == "spaced-host"]

    @staticmethod
    def program(pid):
        try:
            with open(f"/proc/{pid}/comm") as f:
                return f.read().strip()
        except OSError:
            return ""

    def agent_kib(self):
        return int(self.f.sh("awk '/VmRSS/ {print $2}' /proc/1/status", user="root"))

    def run(self):
        while not self.stop.wait(0.1):
            for name, kib in self.now().items():
                self.most[name] = max(self.most.get(name, 0), kib)

    def done(self):
        """KiB that each has grown by."""
        self.stop.set()
        self.join()
        grown = {name: self.most[name] - self.first.get(name, self.most[name]) for name in self.most}
        grown["agent"] = self.agent_kib() - self.agent
        return grown


class FilesLong(unittest.TestCase):
    LIMIT_S = 3600          # on a machine that does other things, under emulation

    @classmethod
    def setUpClass(cls):
        cls.node = node.Node(size="6G")
        cls.node.up()
        cls.box = cls.node.create("--timeout", "3600")
        cls.f = files.Files(cls.node, cls.box)

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def memory(self):
        m = Memory(self.node, self.f)
        self.addCleanup(m.stop.set)
        return m

    def upload(self, path, blocks, length):
        conn = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=600)
        conn.putrequest("POST", self.f.target(path))
        for k, v in self.f.headers(more={"Content-Type": "application/octet-stream", "Content-Length": str(length)}).items():
            conn.putheader(k, v)
        conn.endheaders()
        for block in blocks:
            conn.send(block)
        status = conn.getresponse().status
        conn.close()
        return status

    def download(self, path):
        """(length, digest)"""
        conn = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=600)
        conn.request("GET", self.f.target(path), headers=self.f.headers())
        r, digest, n = conn.getresponse(), hashlib.sha256(), 0
        self.assertEqual(r.status, 200)
        while part := r.read(BLOCK):
            digest.update(part)
            n += len(part)
        conn.close()
        return n, digest.hexdigest()

    def test_1_gib(self):
        seed, digest = os.urandom(BLOCK), hashlib.sha256()

        def blocks():
            for i in range(GIB // BLOCK):
                block = i.to_bytes(8, "big") + seed[8:]
                digest.update(block)
                yield block

        m = self.memory()
        t0 = time.monotonic()
        self.assertEqual(self.upload("big", blocks(), GIB), 200)
        t1 = time.monotonic()
        self.assertEqual(self.f.sh("sha256sum big", timeout=600).split()[0], digest.hexdigest())
        t2 = time.monotonic()
        self.assertEqual(self.download("big"), (GIB, digest.hexdigest()))
        t3 = time.monotonic()
        grown = m.done()
        for name, kib in grown.items():
            self.assertLess(kib, GROWTH_KIB, f"{name} grew: {grown}")
        self.f.sh("rm big")
        results.record("1 GiB up and down", "both digests as they must be", [
            f"up {GIB / (t1 - t0) / 1e6:.0f} MB/s, down {GIB / (t3 - t2) / 1e6:.0f} MB/s",
            "most that each grew by, KiB: " + ", ".join(f"{k.split('-')[0] if k.startswith('bridge') else k} {v}" for k, v in grown.items())])

    def wanted(self):
        files_ = [f"d{d}/e/f{f}" for d in range(40) for f in range(50)]
        return [("CREATE", n) for n in files_] + [("WRITE", n) for n in files_] + [("CREATE", f"d{d}") for d in range(40)]

    def test_2000_files_changed_quickly(self):
        told = []
        for round_ in range(ROUNDS):
            self.f.sh("rm -rf quick; mkdir quick")
            streams = [files.Watch(self.f, "quick", recursive=True, timeout=600), files.Watch(self.f, "quick", recursive=True, includeEntry=True, timeout=600)]
            _, watcher = self.f.rpc("CreateWatcher", path="quick", recursive=True)
            self.f.sh(f"cd quick && python3 -c '{QUICK}' && touch end", timeout=600)
            polled = self.f.rpc("GetWatcherEvents", watcherId=watcher["watcherId"])[1]["events"]
            seen = [s.events(lambda *e: e == ("CREATE", "end")) for s in streams]
            seen.append([(e["type"].removeprefix("EVENT_TYPE_"), e["name"]) for e in polled])
            for events in seen:
                missing = set(self.wanted()) - set(events)
                self.assertFalse(missing, f"round {round_}: {len(missing)} events are missing")
                creates = [e for e in events if e[0] == "CREATE"]
                self.assertEqual(len(creates), len(set(creates)), "something was made twice")
            told.append(len(seen[0]))
            for s in streams:
                s.close()
            self.f.rpc("RemoveWatcher", watcherId=watcher["watcherId"])
        results.record("2,000 files under a recursive watch", f"nothing was lost in {len(told)} rounds with three watches each",
                       [f"events of a round: {', '.join(map(str, told))}"])

    def test_events_are_what_happened(self):
        """A random tree that changes: whoever believes the events knows what is there."""
        for seed in range(SEEDS):
            self.f.sh("rm -rf churn; mkdir churn")
            s = files.Watch(self.f, "churn", recursive=True, timeout=600)
            self.f.sh(f"cd churn && python3 -c '{CHURN}' {seed} {STEPS} && touch end", timeout=600)
            # What is read from a folder comes after the mark that was made later; a second one waits for it.
            events = s.events(lambda *e: e == ("CREATE", "end"))
            self.f.sh("touch churn/end2")
            events += s.events(lambda *e: e == ("CREATE", "end2"))
            there = set(self.f.sh("cd churn && find . -mindepth 1 -printf '%P\\n'").split("\n")) - {""}
            self.assertEqual(model(events), there, f"seed {seed}")
            s.close()

    def test_an_overflow_is_said(self):
        """Nobody takes the events: what is told has no gap, then the loss is said, and nothing grows."""
        self.f.sh("mkdir -p flood")
        m = self.memory()
        stream = files.Watch(self.f, "flood", timeout=900)
        _, watcher = self.f.rpc("CreateWatcher", path="flood")
        self.f.sh("cd flood && python3 -c 'import os\nfor i in range(60000):\n  n = \"n\" * 240 + \"%05d\" % i\n  open(n, \"w\").close()\n  os.unlink(n)'", timeout=900)
        name = lambda i: (("CREATE", "REMOVE")[i % 2], "n" * 240 + "%05d" % (i // 2))
        polled = []
        while True:
            status, body = self.f.rpc("GetWatcherEvents", watcherId=watcher["watcherId"])
            if status != 200:
                break
            polled += [(e["type"].removeprefix("EVENT_TYPE_"), e["name"]) for e in body["events"]]
            if not body["events"]:
                self.fail("all events were kept; make more")
        self.assertEqual((status, body["code"]), (429, "resource_exhausted"))
        self.assertEqual(polled, [name(i) for i in range(len(polled))])
        self.assertGreater(len(polled), 10000)
        streamed = 0
        with self.assertRaisesRegex(connect.StreamError, "resource_exhausted"):
            while True:
                event = stream.next()
                if "filesystem" in event:
                    e = event["filesystem"]
                    self.assertEqual((e["type"].removeprefix("EVENT_TYPE_"), e["name"]), name(streamed))
                    streamed += 1
        stream.close()
        grown = m.done()
        for daemon, kib in grown.items():
            self.assertLess(kib, GROWTH_KIB, f"{daemon} grew: {grown}")
        self.f.rpc("RemoveWatcher", watcherId=watcher["watcherId"])
        results.record("A watch that nobody reads", "the overflow was said, without a gap before it",
                       [f"events of the polled watcher {len(polled)}, of the stream {streamed}, of 120000"])


if __name__ == "__main__":
    unittest.main()
