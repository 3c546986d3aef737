"""Runs inside the rig (test_kvm_rig.py): a Debian with its own systemd, cgroup v2 and a working /dev/kvm.

Each limit is reached by a process of the test's own that joins the sandbox's cgroup, so that what holds it is what holds a VMM."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, "/opt/space/tests")
from harness import node as harness    # noqa: E402

harness.PREFIX = "/usr/local"
harness.SPACE = "/usr/local/bin/space"

EATER = "b = bytearray(1 << 20)\nkeep = []\nwhile True: keep.append(bytes(b) + b'x')"
FORKER = """
import os, sys, time
n = 0
while n < 100000:
    try:
        pid = os.fork()
    except BlockingIOError:
        print("limit", n, flush=True); break
    if pid == 0:
        time.sleep(600)
    n += 1
time.sleep(600)
"""
SPINNER = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"


def read(path):
    with open(path) as f:
        return f.read().strip()


def pairs(path):
    return {k: int(v) for k, v in (line.split() for line in read(path).splitlines())}


class Joined:
    """A Python script as a process of the given cgroup, in a process group of its own."""

    def __init__(self, cgroup, script):
        self.process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, process_group=0, preexec_fn=lambda: self.join(cgroup))

    @staticmethod
    def join(cgroup):
        with open(f"{cgroup}/cgroup.procs", "w") as f:
            f.write("0")

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.stdout.close()
        return self.process.wait()


class Inside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = harness.Node(size="8G", max_sandboxes=4)
        begin = time.monotonic()
        try:
            cls.node.up()
        except AssertionError:
            print(cls.node.up_log(), cls.node.logs_tail(40), flush=True)
            raise
        print(f"figure: up with a new template {time.monotonic() - begin:.1f} s", flush=True)
        begin = time.monotonic()
        cls.box = cls.node.create()
        print(f"figure: create {time.monotonic() - begin:.2f} s", flush=True)
        cls.root = f"/sys/fs/cgroup/space-{cls.node.instance}"
        cls.groups = {w: f"{cls.root}/{cls.box}.{cls.node.detail(cls.box)['generation']}/{w}" for w in ("vmm", "bridge")}

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def alive(self):
        self.assertEqual(self.node.sh(self.box, "echo alive"), "alive\n")

    def test_1_cgroup_v2_alone(self):
        with open("/proc/mounts") as f:
            types = {line.split()[2] for line in f if line.split()[2].startswith("cgroup")}
        self.assertEqual(types, {"cgroup2"})

    def test_2_auto_has_chosen_kvm(self):
        with open(f"{self.node.run}/conf.json") as f:
            self.assertEqual(json.load(f)["accel"], "kvm")
        self.assertNotIn("WARNING", self.node.up_log())
        record = self.node.record(self.box)
        with open(f"/proc/{record['vmm_pid']}/cmdline", "rb") as f:
            args = f.read().split(b"\0")
        self.assertIn(b"kvm", args[args.index(b"-accel") + 1])
        fds = {os.readlink(f"/proc/{record['vmm_pid']}/fd/{n}") for n in os.listdir(f"/proc/{record['vmm_pid']}/fd")}
        self.assertIn("anon_inode:kvm-vm", fds)
        self.assertTrue(any(f.startswith("anon_inode:kvm-vcpu") for f in fds), fds)

    def test_3_exec(self):
        out = self.node.sh(self.box, "uname -r; id -un; python3 -c 'print(6 * 7)'")
        self.assertEqual(out.splitlines()[1:], ["user", "42"])
        self.assertIn("cloud-amd64", out)
        self.assertEqual(self.node.exec(self.box, "/bin/bash", "-c", "exit 3", check=False).returncode, 3)

    def test_4_memory_is_reached_and_nothing_goes_to_swap(self):
        subprocess.run("fallocate -l 256M /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap", shell=True, check=True)
        try:
            for who, group in self.groups.items():
                limit = int(read(f"{group}/memory.max"))
                self.assertEqual(read(f"{group}/memory.swap.max"), "0", who)
                before = pairs(f"{group}/memory.events")
                eater = Joined(group, EATER)
                self.assertEqual(eater.process.wait(timeout=120), -signal.SIGKILL, who)
                eater.end()
                after = pairs(f"{group}/memory.events")
                self.assertGreater(after["max"], before["max"], who)
                self.assertGreater(after["oom_kill"], before["oom_kill"], who)
                self.assertEqual(read(f"{group}/memory.swap.current"), "0", who)
                print(f"figure: {who} memory.max {limit >> 20} MiB reached, oom_kill {after['oom_kill'] - before['oom_kill']}", flush=True)
                self.alive()
        finally:
            subprocess.run("swapoff /swap; rm /swap", shell=True, check=True)

    def test_5_processes_are_reached(self):
        for who, group in self.groups.items():
            limit = int(read(f"{group}/pids.max"))
            forker = Joined(group, FORKER)
            try:
                if limit > int(read(f"{group}/pids.current")):
                    self.assertTrue(forker.process.stdout.readline().startswith(b"limit"), who)
                else:
                    # No room even for one more: joining goes above it (cgroups(7)), the first fork fails.
                    self.assertTrue(forker.process.stdout.readline().startswith(b"limit 0"), who)
                self.assertGreater(pairs(f"{group}/pids.events")["max"], 0, who)
                print(f"figure: {who} pids.max {limit} reached", flush=True)
            finally:
                forker.end()
            self.alive()

    def test_6_processor_time_is_reached(self):
        for who, group in self.groups.items():
            quota, period = read(f"{group}/cpu.max").split()
            if quota == "max":
                self.fail(f"{who} has no limit of processor time")
            before = pairs(f"{group}/cpu.stat")
            spinner = Joined(group, SPINNER)
            try:
                harness.wait_for(f"{who} is held back", lambda: pairs(f"{group}/cpu.stat")["nr_throttled"] >= before["nr_throttled"] + 5, 60)
            finally:
                spinner.end()
            print(f"figure: {who} cpu.max {quota}/{period} reached", flush=True)
            self.alive()

    def test_7_start_again_and_kill(self):
        self.node.sh(self.box, "echo kept > ~/file; sync")
        self.node.space("stop", self.box)
        self.node.space("start", self.box)
        self.assertEqual(self.node.sh(self.box, "cat ~/file"), "kept\n")
        self.node.kill(self.box)
        self.assertEqual(self.node.api("GET", f"/sandboxes/{self.box}").status, 404)
        self.assertEqual([d for d in os.listdir(self.root) if os.path.isdir(f"{self.root}/{d}")], [])


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"rig: {max(0, result.testsRun - bad)} passed, {bad} failed", flush=True)
