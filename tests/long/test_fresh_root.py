"""The README's two commands in a fresh Debian: a root by mmdebstrap with make, sudo, ca-certificates and this machine's apt sources,
entered with new mount, PID and network namespaces; cgroups and loop devices are the host's (U-2, U-7, C-1).

What it last said stands in docs/long-tests.md. `make test` runs there with SPACE_FRESH_TEST_ARGS (default: DEFAULT_ARGS)."""

import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import unittest

from harness import node as harness
from harness import results

PACKAGES = "make,sudo,ca-certificates"
DEFAULT_ARGS = "--no-sanitize --only test_first"
SETUP_AND_UP_S = 2400
AGAIN_S = 300
TEST_S = 2400
NET = "10.213.77"                    # a /30 between host and root
TABLE = "space_fresh_test"

# PID 1 in there: enters the root, then reaps. Bash waits for whatever becomes its child.
ENTER = r"""
set -e
mount --make-rprivate /
mount --rbind "$1" "$1"; cd "$1"
mount --rbind /dev dev
mount -t proc proc proc
mount --rbind /sys sys
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
cd /
exec bash -c 'echo ready; while :; do sleep 3600 & wait; done'
"""


def sh(command, **kw):
    return subprocess.run(["bash", "-ec", command], check=True, capture_output=True, text=True, **kw).stdout


class FreshRoot:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="space-fresh-", dir=os.environ.get("SPACE_TEST_TMP", "/var/tmp"))
        self.root = self.dir + "/root"
        self.link = "vfr%d" % (os.getpid() % 100000)
        self.init = None
        self.forward = None

    def make(self):
        entry = '. image/apt-sources.sh; e=$(find_source bookworm); source_stanza "$e" bookworm'
        with open(self.dir + "/debian.sources", "w") as f:
            f.write(sh(entry, cwd=harness.ROOT))
        with open(self.dir + "/log", "w") as log:
            subprocess.run(["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", f"--include={PACKAGES}",
                            "bookworm", self.root, self.dir + "/debian.sources"], check=True, stdout=log, stderr=log)
        self.own_sources()
        self.own_authorities()
        shutil.copy("/etc/resolv.conf", self.root + "/etc/resolv.conf")
        with open(self.root + "/etc/hosts", "w") as f:
            f.write(f"127.0.0.1 localhost {os.uname().nodename}\n")
        shutil.copytree(harness.ROOT, self.root + "/space", symlinks=True, ignore=shutil.ignore_patterns(".git", "build", "build-*", "node_modules", "__pycache__"))

    def own_authorities(self):
        """Whom this machine's administrator trusts: its way to the package registries may need them, as its sources are needed."""
        own = "/usr/local/share/ca-certificates"
        if os.path.isdir(own) and os.listdir(own):
            shutil.copytree(own, self.root + own, dirs_exist_ok=True)
            subprocess.run(["chroot", self.root, "update-ca-certificates"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def own_sources(self):
        """This machine's sources and their keys, without what SPACE's set-up wrote."""
        for path in os.listdir(self.root + "/etc/apt/sources.list.d"):
            os.unlink(self.root + "/etc/apt/sources.list.d/" + path)
        for path in ("/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/keyrings", "/etc/apt/trusted.gpg.d", "/usr/share/keyrings"):
            if os.path.isdir(path):
                shutil.copytree(path, self.root + path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("space-backports*"))
            elif os.path.exists(path):
                shutil.copy(path, self.root + path)
        for path in os.listdir("/etc/apt/apt.conf.d"):
            with open("/etc/apt/apt.conf.d/" + path) as f:
                if re.search(r"Acquire::(https?|Check)", f.read()):
                    shutil.copy("/etc/apt/apt.conf.d/" + path, self.root + "/etc/apt/apt.conf.d/" + path)

    def enter(self):
        self.init = subprocess.Popen(["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "bash", "-c", ENTER, "enter", self.root],
                                     stdout=subprocess.PIPE, text=True)
        if self.init.stdout.readline() != "ready\n":
            raise AssertionError("the root could not be entered")
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children") as f:
            self.pid = int(f.read().split()[0])
        self.network()

    def network(self):
        """The package archive is behind the host's own way out: a pair of interfaces, and the host's address on what leaves."""
        with open("/proc/sys/net/ipv4/ip_forward") as f:
            self.forward = f.read()
        sh(f"""ip link add {self.link} type veth peer name eth0 netns {self.pid}
               ip addr add {NET}.1/30 dev {self.link}; ip link set {self.link} up
               nsenter -t {self.pid} -n ip addr add {NET}.2/30 dev eth0
               nsenter -t {self.pid} -n ip link set lo up; nsenter -t {self.pid} -n ip link set eth0 mtu 1400 up
               nsenter -t {self.pid} -n ip route add default via {NET}.1
               nft add table ip {TABLE}
               nft 'add chain ip {TABLE} out {{ type nat hook postrouting priority 100 ; }}'
               nft add rule ip {TABLE} out ip saddr {NET}.0/30 masquerade
               echo 1 >/proc/sys/net/ipv4/ip_forward""")

    def leave(self):
        if self.init is not None:
            self.init.kill()
            self.init.wait()
            self.init.stdout.close()
        # A node that was ended with its namespaces leaves its loop device behind, and with that its storage.
        storage = self.root + "/var/lib/space/default/storage.img"
        if os.path.exists(storage):
            for line in sh(f"losetup -j {storage}").splitlines():
                subprocess.run(["losetup", "-d", line.split(":")[0]])
        subprocess.run(["ip", "link", "del", self.link], stderr=subprocess.DEVNULL)
        subprocess.run(["nft", "delete", "table", "ip", TABLE], stderr=subprocess.DEVNULL)
        if self.forward is not None:
            with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
                f.write(self.forward)
        if not os.environ.get("SPACE_TEST_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)

    def argv(self, command):
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-r", "-w", "--", "env", "-i", "TERM=dumb", "HOME=/root", "USER=root",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", "cd /space && " + command]

    def run(self, command, timeout, check=True):
        r = subprocess.run(self.argv(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", timeout=timeout)
        if check and r.returncode:
            raise AssertionError(f"{command}: exit code {r.returncode}\n{r.stdout[-6000:]}")
        return r.stdout

    # -- what is left in the kernel

    def processes(self):
        """Command lines in the PID namespace, but for PID 1 and its sleep."""
        space, out = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{p}/ns/pid") != space or int(p) == self.pid:
                    continue
                with open(f"/proc/{p}/cmdline", "rb") as f:
                    line = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
                with open(f"/proc/{p}/comm") as f:
                    line = line or "[" + f.read().strip() + "]"
            except OSError:
                continue
            if line != "sleep 3600":
                out.append(line)
        return out

    def left(self):
        with open(f"/proc/{self.pid}/mountinfo") as f:
            mounts = sorted(" ".join(line.split()[3:5]) for line in f)
        loops = [b for b in os.listdir("/sys/block") if os.path.exists(f"/sys/block/{b}/loop/backing_file")
                 and ("space-fresh-" in open(f"/sys/block/{b}/loop/backing_file").read() or "/var/lib/space" in open(f"/sys/block/{b}/loop/backing_file").read())]
        cgroups = [os.path.join(path, d) for base in ("/sys/fs/cgroup",) for path, dirs, _ in os.walk(base) for d in dirs if d.startswith("space-default")]
        inside = lambda c: sh(f"nsenter -t {self.pid} -n {c}")
        return {"processes": self.processes(), "mounts": mounts, "loop devices": loops, "cgroups": cgroups,
                "interfaces": sorted(i["ifname"] for i in json.loads(inside("ip -j link"))),
                "nftables": inside("nft list tables"), "namespaces": inside("ip netns list"),
                "run folder": sorted(n for n in os.listdir(self.root + "/run/space") if not n.endswith(".lock")) if os.path.isdir(self.root + "/run/space") else []}


class Terminal:
    """A command at a terminal of its own, so that Ctrl-C is what it is at a desk."""

    def __init__(self, argv):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)      # whoever runs the tests in the background has it ignored
            os.execvp(argv[0], argv)

    def wait_for(self, pattern, seconds):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {pattern}\n{self.text[-6000:]}")
            if not self.read(1.0):
                raise AssertionError(f"it ended before {pattern}:\n{self.text[-6000:]}")

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.text += data.decode(errors="replace").replace("\r", "")
        return bool(data)

    def ctrl_c(self, seconds):
        os.write(self.fd, b"\x03")
        end = time.monotonic() + seconds
        while self.read(1.0):
            if time.monotonic() > end:
                raise AssertionError(f"Ctrl-C did not end it:\n{self.text[-6000:]}")
        return self.close()

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            return os.waitpid(self.pid, 0)[1]
        return 0

    def kill(self):
        if self.fd >= 0:
            os.kill(self.pid, signal.SIGKILL)
            self.close()


class Fresh(unittest.TestCase):
    LIMIT_S = 7200                       # tests/run ends a test that takes longer

    def setUp(self):
        self.root = FreshRoot()
        self.addCleanup(self.root.leave)
        self.figures = []

    def timed(self, what, begin):
        self.figures.append(f"{what}: {time.monotonic() - begin:.0f} s")

    def same(self, before, when):
        for what, value in self.root.left().items():
            self.assertEqual(value, before[what], f"{what}, {when}")

    def up_and_ctrl_c(self, what, seconds, before):
        begin = time.monotonic()
        t = Terminal(self.root.argv("sudo make up"))
        try:
            t.wait_for(r"the node runs; Ctrl-C", seconds)
            self.timed(what, begin)
            self.assertRegex(t.text, r"Linux \S+ 6\.1\.\S+-cloud-amd64 #1")
            box = self.root.run("space create --quiet", 60).strip()
            self.assertEqual(self.root.run(f"space exec {box} -- echo hello", 60), "hello\n")
            begin = time.monotonic()
            t.ctrl_c(120)
            self.timed(f"{what}: Ctrl-C to the end", begin)
        finally:
            t.kill()
        self.assertIn("the node has ended", t.text)
        harness.wait_for("no process is left", lambda: not self.root.processes(), 10)
        self.same(before, f"after {what} and Ctrl-C")
        self.assertEqual(self.observed().pop(box), "stopped")
        self.assertEqual(set(self.observed().values()), {"stopped"})

    def observed(self):
        """State of each sandbox that is not deleted, by the control plane's database (a copy: reading must not change it)."""
        folder = self.root.dir + "/db"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.root.root + "/var/lib/space/default/control", folder)
        db = sqlite3.connect(folder + "/space.db")
        try:
            return dict(db.execute("SELECT id, observed FROM sandboxes WHERE deleted_ms = 0"))
        finally:
            db.close()

    def test_readme(self):
        begin = time.monotonic()
        self.root.make()
        self.root.enter()
        self.timed("the root itself", begin)
        self.root.run("true", 60)
        before = self.root.left()
        self.assertEqual(before["processes"], [])
        self.up_and_ctrl_c("make up, the first time", SETUP_AND_UP_S, before)
        self.up_and_ctrl_c("make up, again", AGAIN_S, before)
        self.detach_and_down(before)
        self.make_test(before)
        self.uninstall()
        self.same(before, "at the end")
        results.record("The README in a fresh Debian (tests/long/test_fresh_root.py)", "passed", self.figures)

    def detach_and_down(self, before):
        self.root.run("sudo make up ARGS=--detach", AGAIN_S)
        self.assertTrue(self.root.processes())
        self.root.run("sudo make up ARGS=--detach", AGAIN_S)          # runs already: shows its job once more
        begin = time.monotonic()
        self.root.run("sudo space down", 120)
        self.timed("space down", begin)
        harness.wait_for("no process is left", lambda: not self.root.processes(), 10)
        self.same(before, "after down")
        self.assertEqual(set(self.observed().values()), {"stopped"})

    def make_test(self, before):
        args = os.environ.get("SPACE_FRESH_TEST_ARGS", DEFAULT_ARGS)
        begin = time.monotonic()
        text = self.root.run(f"sudo make test ARGS='{args}'", TEST_S)
        self.timed(f"make test ARGS='{args}'", begin)
        self.assertRegex(text.strip().splitlines()[-1], r"^[1-9]\d* passed, 0 failed")
        self.figures.append(text.strip().splitlines()[-1])
        self.same(before, "after make test")

    def uninstall(self):
        have = lambda p: os.path.exists(self.root.root + p)
        users = lambda: sh(f"cut -d: -f1 {self.root.root}/etc/passwd").split()
        self.assertIn("space-node", users())
        self.root.run("sudo make uninstall", 120)
        for path in ("/usr/local/bin/space", "/usr/local/lib/space", "/run/space"):
            self.assertFalse(have(path), path)
        self.assertEqual([u for u in users() if u.startswith("space")], [])
        self.assertTrue(have("/var/lib/space/default"))
        self.assertTrue(have("/var/cache/space"))
        self.root.run("sudo make uninstall PURGE=1", 120)
        for path in ("/var/lib/space", "/var/cache/space"):
            self.assertFalse(have(path), path)


if __name__ == "__main__":
    unittest.main()
