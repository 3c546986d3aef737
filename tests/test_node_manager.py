"""node-manager alone: the real program, QEMU, bridge, a btrfs of its own; spoken to over nm.sock."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from harness.intruder import Intruder, Pointer
from harness.nm import NmError, NodeManager

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PREFIX = os.environ.get("SPACE_TEST_PREFIX", os.path.join(ROOT, "build/stage/usr/local"))
LIB = os.environ.get("SPACE_TEST_LIB", os.path.join(PREFIX, "lib/space"))
TOOLS = os.environ.get("SPACE_TEST_TOOLS", os.path.join(ROOT, "build/tests/tools"))
INTRUDER = os.path.join(TOOLS, "intruder")
GUEST = os.environ.get("SPACE_TEST_GUEST", os.path.join(ROOT, "build/src/vmm/test_guest"))

UID_BASE = 1_700_000_000
SBX = 60_123
MEMORY = 128
ROOT_KEY = "02b97ebc9b43e3613739afcea10133cc0d3a3e2f03d08698dc0c5dd237087573"
CGROUPS = [l.split()[4] for l in open("/proc/self/mountinfo") if " - cgroup" in l]


def sandbox(n=1):
    return "i%020d" % n


def run(*cmd, **kw):
    return subprocess.run(cmd, check=True, capture_output=True, text=True, **kw).stdout.strip()


def wait_for(what, condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)
    return value


def start_time(pid):
    """Ticks since boot; None when there is no such process or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


class Qmp:
    """Just enough of the protocol; the driver itself is tested in src/vmm."""

    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.sock.settimeout(120)
        self.file = self.sock.makefile("r")
        json.loads(self.file.readline())
        self("qmp_capabilities")

    def __call__(self, command, fd=None, **args):
        m = json.dumps({"execute": command, "arguments": args}).encode()
        socket.send_fds(self.sock, [m], [fd] if fd is not None else [])
        while True:
            m = json.loads(self.file.readline())
            if "error" in m:
                raise RuntimeError(m["error"])
            if "return" in m:
                return m["return"]

    def close(self):
        self.file.close()
        self.sock.close()


class Instance:
    """Folders, storage and one node-manager."""

    def __init__(self, lib=LIB, vmm=None, size="2G"):
        self.dir = tempfile.mkdtemp(prefix="space-nm-")
        os.chmod(self.dir, 0o755)
        self.name = "n" + os.urandom(4).hex()
        self.state, self.run, self.cache = (f"{self.dir}/{n}" for n in ("state", "run", "cache"))
        for d in (self.state + "/data", self.state + "/keys", self.run, self.cache, self.dir + "/lib"):
            os.makedirs(d)
        with open(self.state + "/keys/root.pub", "w") as f:
            f.write(ROOT_KEY + "\n")
        os.chmod(self.run, 0o755)
        open(self.run + "/faults.log", "w").close()
        for program in ("node-manager", "jail-init", "spaced-host", "netgtw"):
            shutil.copy(f"{lib}/{program}", f"{self.dir}/lib/{program}")
        image = f"{self.state}/storage.img"
        run("truncate", "-s", size, image)
        run("mkfs.btrfs", "-q", image)
        run("mount", "-o", "loop", image, self.state + "/data")
        os.chmod(self.state + "/data", 0o700)
        kernel = run("bash", f"{ROOT}/image/kernel.sh")
        vmm = vmm or run("bash", f"{ROOT}/image/vmm.sh")
        run("bash", f"{ROOT}/image/initramfs.sh", kernel, GUEST, f"{self.dir}/initrd.gz")
        self.base = f"{self.dir}/base.img"
        with open(self.base, "wb") as f:
            f.write(os.urandom(1 << 20))
            f.truncate(64 << 20)
        conf = {
            "instance": self.name, "state_dir": self.state, "run_dir": self.run, "cache_dir": self.cache,
            "lib_dir": self.dir + "/lib", "vmm": vmm, "cgroup_root": "space-" + self.name, "uid_base": UID_BASE,
            "users": {"space-api": 60_121, "space-ctl": 60_122, "space-sbx": SBX, "space-node": 60_124},
            "worker": "01234567-89ab-4def-8123-456789abcdef", "accel": "tcg", "api_listen": "tcp:127.0.0.1:1",
            "domain": "localhost", "max_sandboxes": 16, "kernel": kernel + "/vmlinuz", "initrd": self.dir + "/initrd.gz",
            "base_image": self.base, "template_id": "base-0123456789abcdef",
            "network": {"allow": ["10.77.0.0/16", "fd77::/16"], "deny": ["9.9.77.0/24"], "nameservers": ["9.9.9.9"]},
        }
        self.conf = self.run + "/conf.json"
        with open(self.conf, "w") as f:
            json.dump(conf, f)
        self.log = open(self.dir + "/log", "w+")
        self.daemon = None

    def up(self, ok=True):
        mark = len(self.text())
        self.daemon = subprocess.Popen([f"{self.dir}/lib/node-manager", "--config", self.conf], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log,
                                       start_new_session=True)
        if ok:
            def listening():
                assert self.daemon.poll() is None, self.text()
                return '"msg":"ready"' in self.text()[mark:]
            wait_for("node-manager is ready", listening)

    def configure(self, **change):
        """Seen at the next start."""
        with open(self.conf) as f:
            conf = json.load(f)
        with open(self.conf, "w") as f:
            json.dump(conf | change, f)

    def kill(self, sig=signal.SIGKILL):
        self.daemon.send_signal(sig)
        self.daemon.wait()

    def text(self):
        self.log.flush()
        with open(self.dir + "/log") as f:
            return f.read()

    def nm(self):
        return NodeManager(self)

    def failpoints(self, *lines):
        with open(self.run + "/failpoints", "w") as f:
            f.write("".join(l + "\n" for l in lines))
        time.sleep(0.12)                # the file is looked at ten times a second

    def down(self):
        if self.daemon and self.daemon.poll() is None:
            with self.nm() as nm:
                for i in nm.list():
                    if i["kind"] == "execution":
                        nm.call("destroy", sandbox=i["sandbox"], generation=i["generation"])
            self.kill(signal.SIGTERM)
        # A child that has answered may still leave.
        wait_for("unmounted", lambda: subprocess.run(["umount", self.state + "/data"], stderr=subprocess.DEVNULL).returncode == 0)
        self.log.close()
        shutil.rmtree(self.dir)
        left = [p for c in CGROUPS if os.path.exists(p := f"{c}/space-{self.name}")]
        assert not left, left

    # What is left in the kernel, without asking node-manager.
    def remains(self):
        found = [n for c in CGROUPS if os.path.isdir(p := f"{c}/space-{self.name}") for n in os.listdir(p) if len(n) > 22 and n[21] == "."]
        found += os.listdir(self.run + "/nm/netns") + os.listdir(self.run + "/sbx")
        found += [n for n in os.listdir(self.run + "/nm") if n.endswith(".json")]
        with open("/proc/self/mountinfo") as f:
            found += [l for l in f if f"{self.run}/nm/" in l]
        return found + self.processes()

    @staticmethod
    def processes():
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/status") as f:
                    s = f.read()
            except OSError:
                continue
            if 0 <= int(s.split("\nUid:\t")[1].split()[0]) - UID_BASE < 64 and "\nState:\tZ" not in s:
                found.append(int(pid))
        return found


def spawn(nm, n=1, generation=1, mode="boot", template="t", accel="tcg", memory=MEMORY):
    return nm.call("spawn", sandbox=sandbox(n), generation=generation, template=template, mode=mode, accel=accel, memory_mib=memory, vcpus=1)


def destroy(nm, n=1, generation=1):
    nm.call("destroy", sandbox=sandbox(n), generation=generation)


def gateway(nm, n=1, generation=1, internet=True):
    return nm.call("gateway", sandbox=sandbox(n), generation=generation, internet=internet)[0]


def ask_spawn(nm, number):
    """Without waiting for the answer."""
    q = dict(sandbox=sandbox(), generation=1, template="t", mode="boot", accel="tcg", memory_mib=MEMORY, vcpus=1)
    nm.sock.send(json.dumps({"v": 1, "op": "spawn", "id": number, "req": "t", "a": q}).encode())


def close_all(fds):
    for fd in fds:
        os.close(fd)


def commit(nm, name, state):
    """The device state goes along as a descriptor. "done", or the error's code."""
    nm.id += 1
    m = {"v": 1, "op": "template-commit", "id": nm.id, "req": "test", "a": {"template": name, "manifest": {"version": 1}}}
    socket.send_fds(nm.sock, [json.dumps(m).encode()], [state])
    while (r := json.loads(nm.sock.recv(65536))).get("id") != nm.id:
        pass
    return r.get("e", {}).get("code", "done")


def make_template(nm, name="t"):
    """Boots the test guest, saves it as a template."""
    nm.call("template-begin", template=name)
    _, (fd,) = spawn(nm, 99, mode="template", template=name)
    qmp = Qmp(fd)
    _, (port,) = nm.call("channel-open", sandbox=sandbox(99), generation=1)
    with socket.socket(fileno=port) as guest:
        guest.settimeout(60)
        guest.sendall(b"ex")
        assert guest.recv(1) == b"x"
    qmp("stop")
    state = os.memfd_create("state")
    out = os.open(f"/proc/self/fd/{state}", os.O_WRONLY)
    number = qmp("add-fd", fd=out)["fdset-id"]
    qmp("xen-save-devices-state", filename=f"/dev/fdset/{number}", live=False)
    qmp.close()
    os.close(out)
    destroy(nm, 99)
    assert (r := commit(nm, name, state)) == "done", r
    os.close(state)


class NodeManagerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.i = Instance()
        cls.addClassCleanup(cls.i.down)
        cls.i.up()
        with cls.i.nm() as nm:
            make_template(nm)

    @classmethod
    def tearDownClass(cls):
        if os.environ.get("SPACE_TEST_LOG"):
            print(cls.i.text())

    def setUp(self):
        self.nm = self.i.nm()

    def tearDown(self):
        self.i.failpoints()
        if self.i.daemon.poll() is not None:
            self.i.up()
        with self.i.nm() as nm:
            for i in nm.list():
                if i["kind"] == "execution":
                    nm.call("destroy", sandbox=i["sandbox"], generation=i["generation"])
                elif i["kind"] == "subvolume" and i["sandbox"]:
                    nm.call("disk-delete", sandbox=i["sandbox"])
        self.nm.sock.close()
        self.assertEqual(self.i.remains(), [])

    def reconnect(self):
        self.nm.sock.close()
        self.nm = self.i.nm()

    def disk(self, n=1):
        self.nm.call("disk-create", sandbox=sandbox(n), template="t")

    def refused(self, code, op, **args):
        with self.assertRaises(NmError) as e:
            self.nm.call(op, **args)
        self.assertEqual(e.exception.code, code, e.exception)
        return e.exception

    def test_restore_answers(self):
        """A restored VM answers through the channel; its state comes with the spawn."""
        self.disk()
        r, (fd, state) = spawn(self.nm, mode="restore")
        qmp = Qmp(fd)
        number = qmp("add-fd", fd=state)["fdset-id"]
        qmp("migrate-incoming", uri=f"file:/dev/fdset/{number}")
        wait_for("loaded", lambda: qmp("query-migrate").get("status") == "completed")
        qmp("cont")
        _, (port,) = self.nm.call("channel-open", sandbox=sandbox(), generation=1)
        with socket.socket(fileno=port) as guest:
            guest.settimeout(60)
            # The channel's bytes of before were lost with the old process; the guest goes on.
            guest.sendall(b"ew")
            self.assertEqual(guest.recv(1), b"w")
        self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
        os.close(state)
        qmp.close()

    def test_uids_and_rights(self):
        """Three uids, no capability anywhere, no_new_privs, a filter, no core; cgroup limits set."""
        self.disk()
        r, fds = spawn(self.nm)
        for who, uid in (("vmm", r["vmm_uid"]), ("bridge", r["bridge_uid"]), ("init", r["vmm_uid"] + 3)):
            with open(f"/proc/{r[who + '_pid']}/status") as f:
                s = dict(l.split(":\t", 1) for l in f.read().splitlines() if ":\t" in l)
            self.assertEqual(s["Uid"].split(), [str(uid)] * 4, who)
            self.assertEqual(s["Gid"].split(), [str(uid)] * 4, who)
            self.assertEqual(s["Groups"].strip(), "", who)
            for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                self.assertEqual(int(s[c], 16), 0, (who, c))
            self.assertEqual((s["NoNewPrivs"], s["Seccomp"]), ("1", "2"), who)
            self.assertEqual(s.get("THP_enabled"), "0" if who == "vmm" else "1", who)
            with open(f"/proc/{r[who + '_pid']}/limits") as f:
                self.assertRegex(f.read(), r"Max core file size +0 +0")
        self.assertEqual(int(r["vmm_uid"]), UID_BASE + 4 * r["slot"])
        for c in CGROUPS:
            for leaf, limit in (("vmm", MEMORY + 160), ("bridge", 64)):
                for f in ("memory.limit_in_bytes", "memory.max"):
                    p = f"{c}/space-{self.i.name}/{sandbox()}.1/{leaf}/{f}"
                    if os.path.exists(p):
                        with open(p) as file:
                            self.assertEqual(int(file.read()), limit << 20)
        close_all(fds)

    def test_namespaces(self):
        """Shared by the three: PID, IPC, UTS, net. Mounts: each its own. None is the host's."""
        self.disk()
        r, fds = spawn(self.nm)
        ns = {w: {n: os.readlink(f"/proc/{r[w + '_pid']}/ns/{n}") for n in ("pid", "ipc", "uts", "net", "mnt")} for w in ("vmm", "bridge", "init")}
        host = {n: os.readlink(f"/proc/self/ns/{n}") for n in ("pid", "ipc", "uts", "net", "mnt")}
        for n in ("pid", "ipc", "uts", "net"):
            self.assertEqual(len({ns[w][n] for w in ns}), 1, n)
        self.assertEqual(len({ns[w]["mnt"] for w in ns}), 3)
        for w in ns:
            for n in host:
                self.assertNotEqual(ns[w][n], host[n], (w, n))
        with open(f"/proc/{r['vmm_pid']}/net/dev") as f:
            self.assertEqual([l.split(":")[0].strip() for l in f.readlines()[2:]], ["lo"])
        inside = run("nsenter", f"--net={self.i.run}/nm/netns/{sandbox()}.1", "ip", "-j", "addr")
        links = {l["ifname"]: l for l in json.loads(inside)}
        self.assertEqual(sorted(links), ["lo", "tap0"])
        self.assertEqual(links["tap0"]["address"], "02:00:00:00:00:01")
        self.assertEqual([a["local"] for a in links["tap0"]["addr_info"]], ["10.0.2.2", "fd53:5041:4345::2"])
        self.assertEqual(run("nsenter", f"--net={self.i.run}/nm/netns/{sandbox()}.1", "ss", "-Hlntu"), "")
        self.assertEqual(run("nsenter", f"--net={self.i.run}/nm/netns/{sandbox()}.1", "cat", "/proc/sys/net/ipv4/ip_forward"), "0")
        close_all(fds)

    def test_roots(self):
        """What each sees as its root, read-only."""
        self.disk()
        r, fds = spawn(self.nm)
        def tree(pid):
            return sorted(os.listdir(f"/proc/{pid}/root"))
        self.assertEqual(tree(r["init_pid"]), [])
        self.assertEqual(tree(r["bridge_pid"]), ["spaced-host"])
        self.assertEqual(tree(r["vmm_pid"]), ["fw", "initrd.gz", "lib", "lib64", "mem", "qemu-system-x86_64", "vmlinuz"])
        for who in ("init", "bridge", "vmm"):
            with open(f"/proc/{r[who + '_pid']}/mountinfo") as f:
                mounts = [l.split() for l in f]
            for m in mounts:
                for word in ("ro", "nosuid", "nodev"):
                    self.assertIn(word, m[5].split(","), (who, m))
                self.assertNotIn("shared", " ".join(m), m)
            self.assertEqual(len(mounts), {"init": 1, "bridge": 1, "vmm": 4}[who], mounts)
        fds_of = lambda pid: sorted(int(f) for f in os.listdir(f"/proc/{pid}/fd"))
        self.assertEqual(fds_of(r["init_pid"]), [0, 1, 2, 3])
        self.assertNotIn(str(self.i.state), " ".join(os.readlink(f"/proc/{r['bridge_pid']}/fd/{f}") for f in fds_of(r["bridge_pid"])))
        close_all(fds)

    def test_verify(self):
        """B-1, B-2: each change is seen."""
        self.disk()
        r, fds = spawn(self.nm)
        args = dict(sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
        self.nm.call("verify", **args)
        start = time.perf_counter()
        for _ in range(500):
            self.nm.call("verify", **args)
        if os.environ.get("SPACE_TEST_LOG"):
            print(f"verify: {(time.perf_counter() - start) / 500 * 1e6:.0f} us a call")
        self.refused("bridge-peer", "verify", sandbox=sandbox(), generation=1, bridge_pid=os.getpid())
        self.refused("execution-gone", "verify", sandbox=sandbox(), generation=2, bridge_pid=r["bridge_pid"])
        # Another listener at the path of the channel.
        path = f"{self.i.run}/sbx/{sandbox()}.1/chan.sock"
        os.rename(path, path + ".old")
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen()
            self.refused("socket-replaced", "verify", **args)
            self.refused("socket-replaced", "channel-open", sandbox=sandbox(), generation=1)
        os.rename(path + ".old", path)
        self.nm.call("verify", **args)
        # A replaced executable: the running one has lost its name.
        exe = f"{self.i.state}/data/bridge/" + os.listdir(self.i.state + "/data/bridge")[0] + "/spaced-host"
        before = os.stat(exe)
        os.rename(exe, exe + ".old")
        shutil.copy(exe + ".old", exe)
        os.unlink(exe + ".old")
        self.refused("executable-changed", "verify", **args)
        close_all(fds)
        destroy(self.nm)
        self.assertNotEqual(before.st_ino, os.stat(exe).st_ino)
        # An altered one.
        r, fds = spawn(self.nm, generation=2)
        args = dict(sandbox=sandbox(), generation=2, bridge_pid=r["bridge_pid"])
        self.nm.call("verify", **args)
        os.chmod(exe, 0o755)
        self.refused("executable-changed", "verify", **args)
        os.chmod(exe, 0o555)
        self.refused("executable-changed", "verify", **args)
        close_all(fds)

    def test_reused_pid(self):
        """A record whose start time is another one: the PID was reused while node-manager was away."""
        self.disk()
        r, fds = spawn(self.nm)
        close_all(fds)
        self.i.kill()
        path = f"{self.i.run}/nm/{sandbox()}.1.json"
        with open(path) as f:
            rec = json.load(f)
        rec["bridge_start"] -= 1
        with open(path, "w") as f:
            json.dump(rec, f)
        self.i.up()
        self.reconnect()
        self.refused("execution-gone", "verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])

    def test_adoption(self):
        """SIGKILL of node-manager: sandboxes live on, are adopted, and can be used and destroyed."""
        self.disk(1)
        self.disk(2)
        a, fa = spawn(self.nm, 1)
        b, fb = spawn(self.nm, 2, generation=7)
        qmp = Qmp(fa[0])
        self.i.kill()
        self.assertEqual(qmp("query-status")["status"], "running")
        self.i.up()
        self.reconnect()
        self.nm.call("verify", sandbox=sandbox(1), generation=1, bridge_pid=a["bridge_pid"])
        self.nm.call("verify", sandbox=sandbox(2), generation=7, bridge_pid=b["bridge_pid"])
        qmp.close()
        _, (fd,) = self.nm.call("qmp-open", sandbox=sandbox(1), generation=1)
        Qmp(fd).close()
        self.nm.call("kill", sandbox=sandbox(1), generation=1, what="bridge")
        m = json.loads(self.nm.sock.recv(65536))
        self.assertEqual((m["ev"], m["a"]["who"], m["a"]["status"]), ("exited", "bridge", -1))
        self.refused("execution-gone", "verify", sandbox=sandbox(1), generation=1, bridge_pid=a["bridge_pid"])
        destroy(self.nm, 1)
        destroy(self.nm, 2, 7)
        close_all(fb)

    def test_adoption_with_fewer_slots(self):
        """A smaller --max-sandboxes is for those to come."""
        answers = {}
        for n in (1, 2):
            self.disk(n)
            answers[n], fds = spawn(self.nm, n)
            close_all(fds)
        self.assertGreater(max(int(r["slot"]) for r in answers.values()), 0)
        self.i.kill()
        self.i.configure(max_sandboxes=1)
        self.i.up()
        self.reconnect()
        try:
            for n, r in answers.items():
                self.nm.call("verify", sandbox=sandbox(n), generation=1, bridge_pid=r["bridge_pid"])
                destroy(self.nm, n)
        finally:
            self.i.configure(max_sandboxes=16)
            self.i.kill()

    def test_exits_are_told(self):
        """Events with the status that wait(2) gave; process 1's death ends all three."""
        for what, ends in (("vmm", {"vmm"}), ("bridge", {"bridge"}), ("all", {"vmm", "bridge", "init"})):
            self.disk()
            r, fds = spawn(self.nm)
            self.nm.call("kill", sandbox=sandbox(), generation=1, what=what)
            seen = {}
            while set(seen) != ends:
                m = json.loads(self.nm.sock.recv(65536))
                self.assertEqual((m["ev"], m["a"]["sandbox"], m["a"]["generation"]), ("exited", sandbox(), 1))
                seen[m["a"]["who"]] = m["a"]["status"]
            self.assertEqual(seen.get("init" if what == "all" else what), signal.SIGKILL, seen)
            self.assertIsNotNone(start_time(r["init_pid"])) if what != "all" else self.assertEqual(self.i.processes(), [])
            close_all(fds)
            destroy(self.nm)

    # -- the gateway

    def gateway_of(self, n=1, generation=1, **kw):
        """A sandbox with its gateway: (spawn's answer, gateway's answer, {role: pid})."""
        self.disk(n)
        r, fds = spawn(self.nm, n, generation)
        close_all(fds)
        return r, *self.new_gateway(n, generation, **kw)

    def new_gateway(self, n=1, generation=1, **kw):
        g = gateway(self.nm, n, generation, **kw)
        pids = {self.role(p): p for p in self.gateway_pids(n, generation)}
        self.assertEqual((sorted(pids), pids["main"]), (["inside", "main", "outside"], g["pid"]))
        return g, pids

    def gateway_pids(self, n=1, generation=1):
        path = next(p for c in CGROUPS if os.path.exists(p := f"{c}/space-{self.i.name}/{sandbox(n)}.{generation}/gateway/cgroup.procs"))
        with open(path) as f:
            return [int(l) for l in f if start_time(int(l)) is not None]

    @staticmethod
    def words(pid):
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read().rstrip("\0").split("\0")

    def role(self, pid):
        w = self.words(pid)
        return w[w.index("--role") + 1]

    def event(self):
        m = json.loads(self.nm.sock.recv(65536))
        return m["ev"], m["a"]["who"], m["a"]["status"]

    def no_event(self):
        self.nm.sock.settimeout(0.7)             # an end is told within half a second
        self.assertRaises(TimeoutError, self.nm.sock.recv, 65536)
        self.nm.sock.settimeout(60)

    def test_gateway(self):
        """Three processes of one uid and no right, each in its network namespace; nothing else of the host."""
        r, g, pids = self.gateway_of()
        self.assertEqual((g["uid"], g["start"]), (r["vmm_uid"] + 2, start_time(g["pid"])))
        netns = os.stat(f"{self.i.run}/nm/netns/{sandbox()}.1").st_ino
        net = {w: os.stat(f"/proc/{p}/ns/net").st_ino for w, p in pids.items()}
        self.assertEqual((net["inside"], net["outside"]), (netns, os.stat("/proc/self/ns/net").st_ino))
        self.assertNotIn(net["main"], (netns, net["outside"], os.stat(f"/proc/{r['vmm_pid']}/ns/net").st_ino))
        with open(f"/proc/{g['pid']}/net/dev") as f:
            self.assertEqual([l.split(":")[0].strip() for l in f.readlines()[2:]], ["lo"])
        for n in ("pid", "ipc", "uts"):
            of = {os.readlink(f"/proc/{p}/ns/{n}") for p in pids.values()}
            self.assertEqual(len(of), 1, n)
            self.assertFalse(of & {os.readlink(f"/proc/{p}/ns/{n}") for p in (os.getpid(), r["vmm_pid"])}, n)
        self.assertEqual(len({os.readlink(f"/proc/{p}/ns/mnt") for p in (*pids.values(), os.getpid())}), 4)
        for who, pid in pids.items():
            with open(f"/proc/{pid}/status") as f:
                s = dict(l.split(":\t", 1) for l in f.read().splitlines() if ":\t" in l)
            self.assertEqual((s["Uid"].split(), s["Gid"].split(), s["Groups"].strip()), ([str(g["uid"])] * 4, [str(g["uid"])] * 4, ""), who)
            for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                self.assertEqual(int(s[c], 16), 0, (who, c))
            self.assertEqual((s["NoNewPrivs"], s["Seccomp"], s["Threads"]), ("1", "2", "1"), who)
            self.assertEqual(os.listdir(f"/proc/{pid}/root"), ["netgtw"], who)
            with open(f"/proc/{pid}/mountinfo") as f:
                (mount,) = [l.split() for l in f]
            self.assertTrue({"ro", "nosuid", "nodev"} <= set(mount[5].split(",")), (who, mount))
            with open(f"/proc/{pid}/environ", "rb") as f:
                self.assertEqual(f.read(), b"", who)
            with open(f"/proc/{pid}/limits") as f:
                limits = f.read()
            for limit in ("core file size", "file size", "locked memory", "msgqueue size"):
                self.assertRegex(limits, rf"Max {limit} +0 +0", who)
        for c in CGROUPS:
            for name in ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes", "memory.max", "pids.max"):
                p = f"{c}/space-{self.i.name}/{sandbox()}.1/gateway/{name}"
                if os.path.exists(p):
                    with open(p) as f:
                        self.assertEqual(int(f.read()), 8 if name == "pids.max" else 128 << 20)

    def test_gateway_words(self):
        """What each is told: outside alone knows what the operator opened, main alone the key."""
        _, g, pids = self.gateway_of(internet=False)
        common = ["--sandbox", sandbox(), "--generation", "1"]
        self.assertEqual(self.words(pids["inside"]), ["netgtw", "--role", "inside", *common])
        self.assertEqual(self.words(pids["main"]), ["netgtw", "--role", "main", *common, "--peer-uid", str(SBX), "--root-key", ROOT_KEY,
                                                   "--worker", "01234567-89ab-4def-8123-456789abcdef"])
        self.assertEqual(self.words(pids["outside"]), ["netgtw", "--role", "outside", *common, "--internet", "no", "--nameserver", "9.9.9.9",
                                                      "--allow", "10.77.0.0/16", "--allow", "fd77::/16", "--deny", "9.9.77.0/24"])
        _, pids = self.new_gateway()
        self.assertIn("--internet yes", " ".join(self.words(pids["outside"])))
        # The key of the first gateway stays: another one that is offered later is not taken.
        with open(self.i.state + "/keys/root.pub", "r+") as f:
            f.write("ff")
        _, pids = self.new_gateway()
        self.assertIn(ROOT_KEY, self.words(pids["main"]))
        with open(self.i.state + "/keys/root.pub", "w") as f:
            f.write(ROOT_KEY + "\n")

    def test_gateway_sockets(self):
        """Who connects sees the main process; in the sandbox's namespace two listeners and two sockets for names."""
        _, g, pids = self.gateway_of()
        for name, kind in (("gtw.sock", socket.SOCK_STREAM), ("gtwctl.sock", socket.SOCK_SEQPACKET)):
            path = f"{self.i.run}/sbx/{sandbox()}.1/{name}"
            st = os.stat(path)
            self.assertEqual((st.st_uid, st.st_gid, st.st_mode & 0o777), (SBX, SBX, 0o600))
            with socket.socket(socket.AF_UNIX, kind) as s:
                s.connect(path)
                pid, uid, gid = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                self.assertEqual((pid, uid, gid), (g["pid"], g["uid"], g["uid"]))
        listening = run("nsenter", f"--net={self.i.run}/nm/netns/{sandbox()}.1", "ss", "-Hlntu").splitlines()
        self.assertEqual(sorted((l.split()[0], l.split()[4]) for l in listening),
                         [("tcp", "0.0.0.0:15001"), ("tcp", "[::]:15001"), ("udp", "0.0.0.0:53"), ("udp", "[::]:53")])
        fds = lambda who: sorted(int(f) for f in os.listdir(f"/proc/{pids[who]}/fd") if not os.readlink(f"/proc/{pids[who]}/fd/{f}").startswith("anon_inode"))
        self.assertEqual([fds(w) for w in ("main", "inside", "outside")], [list(range(10)), list(range(6)), list(range(5))])
        for who in pids:
            for f in range(3):
                self.assertRegex(os.readlink(f"/proc/{pids[who]}/fd/{f}"), r"^(/dev/null|pipe:\[\d+\])$")

    def test_gateway_verify(self):
        """B-4: what is said of the gateway is asked for apart, and its end is not the sandbox's."""
        r, g, pids = self.gateway_of()
        args = dict(sandbox=sandbox(), generation=1, bridge_pid=0, gateway_pid=g["pid"])
        self.nm.call("verify", **args)
        self.refused("gateway-peer", "verify", **{**args, "gateway_pid": pids["outside"]})
        self.refused("gateway-peer", "verify", **{**args, "gateway_pid": r["bridge_pid"]})
        self.refused("bridge-peer", "verify", **{**args, "bridge_pid": g["pid"]})
        path = f"{self.i.run}/sbx/{sandbox()}.1/gtw.sock"
        os.rename(path, path + ".old")
        self.refused("socket-replaced", "verify", **args)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            self.refused("socket-replaced", "verify", **args)
        self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
        os.rename(path + ".old", path)
        exe = f"{self.i.state}/data/gateway/" + os.listdir(self.i.state + "/data/gateway")[0] + "/netgtw"
        os.chmod(exe, 0o755)
        self.refused("executable-changed", "verify", **args)
        os.chmod(exe, 0o555)
        g, _ = self.new_gateway()
        self.refused("gateway-peer", "verify", **args)
        args["gateway_pid"] = g["pid"]
        self.nm.call("verify", **args)
        self.nm.call("kill", sandbox=sandbox(), generation=1, what="gateway")
        self.assertEqual(self.event(), ("exited", "gateway", signal.SIGKILL))
        self.refused("process-gone", "verify", **args)
        self.refused("process-gone", "kill", sandbox=sandbox(), generation=1, what="gateway")
        self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])

    def test_gateway_ends_as_one(self):
        """SIGKILL of any of the three ends all; it is told once; the sandbox goes on and gets another one."""
        r, g, pids = self.gateway_of()
        for who in ("main", "inside", "outside"):
            with self.subTest(who):
                os.kill(pids[who], signal.SIGKILL)
                self.assertEqual(self.event()[:2], ("exited", "gateway"))
                wait_for("all three are gone", lambda: self.gateway_pids() == [])
                self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
                self.assertEqual([i["state"] for i in self.nm.list() if i["kind"] == "execution"], ["alive"])
                g, pids = self.new_gateway()
        self.no_event()

    def test_gateway_again(self):
        """A new one in place of one that lives: that one is gone before, and nothing is told of it."""
        _, g, pids = self.gateway_of()
        for _ in range(3):
            before = {p: start_time(p) for p in pids.values()}
            g, pids = self.new_gateway()
            self.assertFalse([p for p, t in before.items() if start_time(p) == t])
        # Also one whose processes do not run.
        for p in pids.values():
            os.kill(p, signal.SIGSTOP)
        g, pids = self.new_gateway()
        self.no_event()
        self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=0, gateway_pid=g["pid"])

    def test_gateway_adoption(self):
        r, g, pids = self.gateway_of()
        self.i.kill()
        self.i.up()
        self.reconnect()
        args = dict(sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"], gateway_pid=g["pid"])
        self.nm.call("verify", **args)
        os.kill(pids["inside"], signal.SIGKILL)
        self.assertEqual(self.event(), ("exited", "gateway", -1))
        # It ends while node-manager is away.
        g, pids = self.new_gateway()
        self.i.kill()
        os.kill(pids["main"], signal.SIGKILL)
        self.i.up()
        self.reconnect()
        self.refused("process-gone", "verify", **{**args, "gateway_pid": g["pid"]})
        self.nm.call("verify", **{**args, "gateway_pid": 0})
        self.new_gateway()

    GATEWAY_STEPS = ("begin", "sockets", "net", "jail", "record", "recorded", "answer")

    def test_failpoints_of_gateway(self):
        """At every step: an error, no gateway, an unharmed sandbox, and the next try works."""
        r, _, _ = self.gateway_of()
        for action in ("crash", "error 5"):
            for step in self.GATEWAY_STEPS[:None if action == "error 5" else -1]:
                with self.subTest(step=step, action=action):
                    self.i.failpoints(f"nm.gateway.{step} {action} 1")
                    self.assertRaises(NmError, gateway, self.nm)
                    self.i.failpoints()
                    wait_for("nothing is left of it", lambda: self.gateway_pids() == [])
                    self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
                    self.new_gateway()
        self.no_event()

    def test_node_manager_dies_while_making_a_gateway(self):
        r, _, _ = self.gateway_of()
        for step in self.GATEWAY_STEPS[:-1]:
            with self.subTest(step=step):
                mark = os.path.getsize(self.i.run + "/faults.log")
                self.i.failpoints(f"nm.gateway.{step} delay 3000 1")
                self.nm.sock.send(json.dumps({"v": 1, "op": "gateway", "id": 1, "req": "t", "a": {"sandbox": sandbox(), "generation": 1, "internet": True}}).encode())
                wait_for("the child is there", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
                self.i.kill()
                self.i.failpoints()
                self.i.up()
                self.reconnect()
                # One that was recorded lives; of all others nothing does.
                if step == "recorded":
                    self.assertEqual(len(self.gateway_pids()), 3)
                else:
                    wait_for("nothing is left of it", lambda: self.gateway_pids() == [])
                self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])
                self.new_gateway()

    def test_destroy_while_making_a_gateway(self):
        self.gateway_of()
        mark = os.path.getsize(self.i.run + "/faults.log")
        self.i.failpoints("nm.gateway.jail delay 5000 1")
        with self.i.nm() as other:
            other.sock.send(json.dumps({"v": 1, "op": "gateway", "id": 900, "req": "t", "a": {"sandbox": sandbox(), "generation": 1, "internet": True}}).encode())
            wait_for("the child is there", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
            self.refused("busy", "gateway", sandbox=sandbox(), generation=1, internet=True)
            destroy(self.nm)
            self.assertIn("e", json.loads(other.sock.recv(65536)))
        self.assertEqual(self.i.remains(), [])

    def test_gateway_refused(self):
        self.refused("execution-gone", "gateway", sandbox=sandbox(), generation=1, internet=True)
        r, _, _ = self.gateway_of()
        self.refused("execution-gone", "gateway", sandbox=sandbox(), generation=2, internet=True)
        self.nm.call("kill", sandbox=sandbox(), generation=1, what="all")
        while self.event()[1] != "init":
            pass
        self.refused("execution-gone", "gateway", sandbox=sandbox(), generation=1, internet=True)
        # The guest is gone, its gateway goes with the rest.
        self.assertEqual(len(self.gateway_pids()), 3)
        destroy(self.nm)
        for args in (dict(sandbox="../" + sandbox()[3:], generation=1, internet=True), dict(sandbox=sandbox(), generation=0, internet=True),
                     dict(sandbox=sandbox(), generation=1), dict(sandbox=sandbox(), generation=1, internet=1)):
            with self.i.nm() as other:
                with self.assertRaises((ConnectionError, NmError), msg=args) as e:
                    other.call("gateway", **args)
                if isinstance(e.exception, NmError):
                    self.assertEqual(other.sock.recv(1), b"", args)

    def test_talkative_vmm(self):
        """What it complains beyond a bound it loses, and is not waited for; others are heard all the same."""
        (digest,) = os.listdir(f"{self.i.state}/data/vmm")
        program = f"{self.i.state}/data/vmm/{digest}/qemu-system-x86_64"
        os.rename(program, program + ".kept")
        shutil.copyfile(INTRUDER, program)
        os.chmod(program, 0o555)
        self.addCleanup(os.rename, program + ".kept", program)
        self.disk()
        self.disk(2)
        r, (fd,) = spawn(self.nm)
        vmm = Intruder(socket.socket(fileno=fd))
        _, (fd,) = spawn(self.nm, 2)
        other = Intruder(socket.socket(fileno=fd))
        line = Pointer(b"x" * 4095 + b"\n")
        taken = sum(n for _ in range(2000) if isinstance(n := vmm.call("write", 2, line, 4096), int))
        self.assertLess(taken, 1 << 20)
        words = b"words of the other one\n"
        self.assertEqual(other.call("write", 2, Pointer(words), len(words)), len(words))
        wait_for("the other's words", lambda: "words of the other one" in self.i.text())
        # Heard again after a while, and to the end.
        wait_for("room", lambda: isinstance(vmm.call("write", 2, line, 4096), int))
        os.kill(r["vmm_pid"], signal.SIGKILL)
        self.assertEqual(self.event()[1], "vmm")
        vmm.close()
        other.close()

    def test_one_writer_of_a_template(self):
        self.nm.call("template-begin", template="x")
        _, fds = spawn(self.nm, 98, mode="template", template="x")
        close_all(fds)
        self.refused("busy", "spawn", sandbox=sandbox(97), generation=1, template="x", mode="template", accel="tcg", memory_mib=MEMORY, vcpus=1)
        destroy(self.nm, 98)
        self.nm.call("template-drop", template="x")

    def test_out_of_order(self):
        """Each closes the peer, and only that one."""
        self.disk()
        r, fds = spawn(self.nm)
        close_all(fds)
        for op, args in (
            ("spawn", dict(sandbox=sandbox(), generation=1, template="t", mode="boot", accel="tcg", memory_mib=MEMORY, vcpus=1)),
            ("spawn", dict(sandbox=sandbox(2), generation=1, template="t", mode="probe", accel="tcg", memory_mib=MEMORY, vcpus=1)),
            ("spawn", dict(sandbox=sandbox(2), generation=1, template="../t", mode="boot", accel="tcg", memory_mib=MEMORY, vcpus=1)),
            ("spawn", dict(sandbox=sandbox(2), generation=1, template="t", mode="boot", accel="x", memory_mib=MEMORY, vcpus=1)),
            ("spawn", dict(sandbox=sandbox(2), generation=1, template="t", mode="boot")),
            ("disk-create", dict(sandbox="../" + sandbox()[3:], template="t")),
            ("disk-create", dict(sandbox=sandbox(3), template="a/b")),
            ("disk-delete", dict(sandbox=sandbox()[:-1])),
            ("verify", dict(sandbox=sandbox(), generation=0, bridge_pid=1)),
            ("kill", dict(sandbox=sandbox(), generation=1, what="node")),
            ("template-commit", dict(template="t2", manifest={})),
            ("template-drop", dict(template="-t")),
            ("nothing", dict()),
            ("list", dict(cursor=0, more=1)),
        ):
            with self.i.nm() as other:
                with self.assertRaises((ConnectionError, NmError), msg=(op, args)) as e:
                    other.call(op, **args)
                if isinstance(e.exception, NmError):
                    self.assertEqual(other.sock.recv(1), b"", (op, args))
        for raw in (b"", b"{", b"[]", b'{"v":9,"op":"list","id":1,"req":"","a":{}}', b'{"v":1,"op":"list","op":"list","id":1,"req":"","a":{}}', b"x" * 65536):
            with self.i.nm() as other:
                if raw:
                    other.sock.send(raw)
                    self.assertEqual(other.sock.recv(65536), b"", raw[:60])
        self.nm.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])

    def test_answers_without_closing(self):
        self.refused("execution-gone", "channel-open", sandbox=sandbox(), generation=1)
        self.refused("execution-gone", "kill", sandbox=sandbox(), generation=1, what="all")
        destroy(self.nm)
        self.nm.call("disk-delete", sandbox=sandbox())
        self.refused("template-not-found", "disk-create", sandbox=sandbox(), template="none")
        self.refused("template-exists", "template-begin", template="t")
        self.refused("template-not-found", "template-manifest", template="none")
        self.assertEqual(self.nm.call("template-manifest", template="t")[0]["manifest"], {"version": 1})
        self.assertRaises(NmError, spawn, self.nm)                 # no disk
        self.disk()
        self.disk()                                                # again: the same
        self.assertRaises(NmError, spawn, self.nm, memory=64)
        self.assertRaises(NmError, spawn, self.nm, mode="restore", memory=256)
        r, fds = spawn(self.nm)
        close_all(fds)
        self.refused("execution-exists", "disk-delete", sandbox=sandbox())
        with self.assertRaises(NmError) as e:
            spawn(self.nm, generation=2)
        self.assertEqual(e.exception.code, "execution-exists")
        stats = self.nm.call("stats")[0]
        self.assertEqual((stats["slots"], stats["slots_used"]), (16, 1))

    def test_disk_is_a_reflink(self):
        free = lambda: self.nm.call("stats")[0]["data_free_bytes"]
        run("sync", "-f", self.i.state + "/data")
        before = free()
        self.disk()
        run("sync", "-f", self.i.state + "/data")
        self.assertLess(before - free(), 1 << 20)
        with open(self.i.base, "rb") as a, open(f"{self.i.state}/data/templates/t/rootfs.img", "rb") as b, \
             open(f"{self.i.state}/data/sandboxes/{sandbox()}/rootfs.img", "rb") as c:
            base, template, disk = a.read(), b.read(), c.read()
        self.assertEqual(len(base), len(disk))
        self.assertEqual(template, disk)
        with self.assertRaises(OSError):
            open(f"{self.i.state}/data/templates/t/mem", "r+b").close()

    def test_cache(self):
        """Another node of the machine takes the template from the cache; what is read is what was committed."""
        other = Instance()
        shutil.rmtree(other.cache)
        os.symlink(self.i.cache, other.cache)
        other.up()
        try:
            with other.nm() as nm:
                with self.assertRaises(NmError) as e:
                    nm.call("template-import", template="u")
                self.assertEqual(e.exception.num, -2)
                nm.call("template-import", template="t")
                nm.call("template-import", template="t")
                for f in ("rootfs.img", "mem", "state", "vmlinuz", "initrd.gz", "manifest.json"):
                    self.assertEqual(run("sha256sum", f"{other.state}/data/templates/t/{f}").split()[0],
                                     run("sha256sum", f"{self.i.state}/data/templates/t/{f}").split()[0], f)
                a, b = os.stat(f"{other.cache}/template/t/rootfs.img"), os.stat(self.i.base)
                self.assertLess(a.st_blocks, b.st_blocks + 4096)
        finally:
            other.down()

    def test_failpoints_of_spawn(self):
        """The child dies or fails at every step: the answer is an error, nothing is left, and the next try works."""
        self.disk()
        steps = ("begin", "cgroups", "sockets", "disk", "net", "jail", "qmp", "record", "recorded", "gone")
        for action in ("crash", "error 5"):
            for step in steps:
                with self.subTest(step=step, action=action):
                    self.i.failpoints(f"nm.spawn.{step} {action} 1")
                    with self.assertRaises(NmError):
                        spawn(self.nm)
                    self.i.failpoints()
                    self.assertEqual(self.i.remains(), [])
        r, fds = spawn(self.nm)
        close_all(fds)

    def test_failpoints_of_destroy(self):
        self.disk()
        for action in ("crash", "error 5"):
            for step in ("begin", "killed", "net", "sockets", "cgroups"):
                with self.subTest(step=step, action=action):
                    _, fds = spawn(self.nm)
                    close_all(fds)
                    self.i.failpoints(f"nm.destroy.{step} {action} 1")
                    with self.assertRaises(NmError):
                        destroy(self.nm)
                    self.i.failpoints()
                    destroy(self.nm)
                    self.assertEqual(self.i.remains(), [])

    def test_node_manager_dies_while_spawning(self):
        """SIGKILL of the main process while its child stands at each step: after the restart nothing or everything is there."""
        self.disk()
        for step, whole in (("cgroups", False), ("sockets", False), ("disk", False), ("net", False), ("jail", False), ("qmp", False),
                            ("record", False), ("recorded", False), ("gone", True)):
            with self.subTest(step=step):
                mark = os.path.getsize(self.i.run + "/faults.log")
                self.i.failpoints(f"nm.spawn.{step} delay 3000 1")
                ask_spawn(self.nm, 1)
                wait_for("the child is there", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
                self.i.kill()
                self.i.failpoints()
                self.i.up()
                self.reconnect()
                if whole:
                    self.assertEqual([i["state"] for i in self.nm.list() if i["kind"] == "execution"], ["alive"])
                else:
                    # A record without "go" is kept as ended, or it was never written.
                    for i in self.nm.list():
                        if i["kind"] == "execution":
                            self.assertEqual((step, i["state"]), ("recorded", "ended"))
                destroy(self.nm)
                self.assertEqual(self.i.remains(), [])

    def test_remains_that_stay(self):
        """What cannot be removed at the start does not keep node-manager from its work, and is destroyed later."""
        self.disk()
        mark = os.path.getsize(self.i.run + "/faults.log")
        self.i.failpoints("nm.spawn.jail delay 3000 1")
        ask_spawn(self.nm, 1)
        wait_for("the child is there", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
        self.i.kill()
        # The record's writer was killed too.
        open(f"{self.i.run}/nm/{sandbox()}.1.json.0123456789abcdef.tmp", "w").close()
        self.i.failpoints("nm.destroy.net error 5 1")
        self.i.up()
        self.reconnect()
        self.assertEqual([i["state"] for i in self.nm.list() if i["kind"] == "execution"], ["ended"])
        self.assertEqual([n for n in os.listdir(self.i.run + "/nm") if n.endswith(".tmp")], [])
        self.refused("execution-exists", "spawn", sandbox=sandbox(), generation=2, template="t", mode="boot", accel="tcg", memory_mib=MEMORY, vcpus=1)
        destroy(self.nm)
        self.assertEqual(self.i.remains(), [])

    def test_one_node_manager(self):
        """A second one for the same instance gives up, and harms nothing."""
        self.disk()
        r, fds = spawn(self.nm)
        close_all(fds)
        second = subprocess.run([f"{self.i.dir}/lib/node-manager", "--config", self.i.conf], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another node-manager works in", second.stderr)
        with self.i.nm() as other:
            other.call("verify", sandbox=sandbox(), generation=1, bridge_pid=r["bridge_pid"])

    def test_node_manager_dies_while_destroying(self):
        self.disk()
        for step in ("begin", "killed", "net", "sockets", "cgroups"):
            with self.subTest(step=step):
                _, fds = spawn(self.nm)
                close_all(fds)
                mark = os.path.getsize(self.i.run + "/faults.log")
                self.i.failpoints(f"nm.destroy.{step} delay 3000 1")
                self.nm.sock.send(json.dumps({"v": 1, "op": "destroy", "id": 1, "req": "t", "a": {"sandbox": sandbox(), "generation": 1}}).encode())
                wait_for("the child is there", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
                self.i.kill()
                self.i.failpoints()
                self.i.up()
                self.reconnect()
                destroy(self.nm)
                self.assertEqual(self.i.remains(), [])

    def test_destroy_while_spawning(self):
        self.disk()
        self.i.failpoints("nm.spawn.net delay 5000 1")
        with self.i.nm() as other:
            ask_spawn(other, 900)
            wait_for("the child is there", lambda: any(i["kind"] == "socket" for i in self.nm.list()))
            destroy(self.nm)
            self.assertIn("e", json.loads(other.sock.recv(65536)))
        self.assertEqual(self.i.remains(), [])

    def test_destroy_as_a_spawn_ends(self):
        """What comes when the child has answered, and nobody has read that yet, is not forgotten."""
        self.disk()
        mark = os.path.getsize(self.i.run + "/faults.log")
        self.i.failpoints("nm.spawn.gone delay 2000 1")
        destroy = {"v": 1, "op": "destroy", "id": 901, "req": "t", "a": dict(sandbox=sandbox(), generation=1)}
        with self.i.nm() as other:
            ask_spawn(other, 900)
            wait_for("the child is at its end", lambda: os.path.getsize(self.i.run + "/faults.log") > mark)
            with open(f"/proc/{self.i.daemon.pid}/task/{self.i.daemon.pid}/children") as f:
                child = int(f.read().split()[0])
            self.i.daemon.send_signal(signal.SIGSTOP)
            try:
                self.nm.sock.send(json.dumps(destroy).encode())
                wait_for("the child has ended", lambda: start_time(child) is None)
            finally:
                self.i.daemon.send_signal(signal.SIGCONT)
            self.assertIn("e", json.loads(other.sock.recv(65536)))
            while (r := json.loads(self.nm.sock.recv(65536))).get("id") != 901:
                pass
            self.assertIn("r", r)
        self.assertEqual(self.i.remains(), [])

    def test_storage_failpoints(self):
        """Half-made disks and templates are never seen under their names."""
        for point, op, args in (("nm.disk-create.filled", "disk-create", dict(sandbox=sandbox(5), template="t")),
                                ("nm.template-begin.filled", "template-begin", dict(template="x"))):
            for action in ("crash", "error 5"):
                with self.subTest(point=point, action=action):
                    self.i.failpoints(f"{point} {action} 1")
                    self.assertRaises(NmError, self.nm.call, op, **args)
                    self.i.failpoints()
                    self.assertFalse([i for i in self.nm.list() if i["kind"] == "subvolume" and i["name"] != "templates/t"])
        self.nm.call("disk-create", sandbox=sandbox(5), template="t")
        self.i.failpoints("nm.disk-delete.moved crash 1")
        self.assertRaises(NmError, self.nm.call, "disk-delete", sandbox=sandbox(5))
        self.i.failpoints()
        self.nm.call("disk-delete", sandbox=sandbox(5))
        self.i.kill()
        self.i.up()
        data = self.i.state + "/data"
        self.assertEqual(sorted(os.listdir(data + "/templates") + os.listdir(data + "/sandboxes")), ["t"])

    def test_commit_failpoints(self):
        """A commit that ends anywhere leaves the template whole or not there, also over a restart; and can be tried again."""
        state = os.memfd_create("state")
        self.assertNotEqual(commit(self.nm, "x", state), "done")        # not begun
        names = lambda: [i["name"] for i in self.nm.list() if i["kind"] == "subvolume"]
        for point, restart in (("written", False), ("written", True), ("named", False), ("named", True)):
            for action in ("crash", "error 5"):
                with self.subTest(point=point, restart=restart, action=action):
                    self.nm.call("template-begin", template="x")
                    os.ftruncate(state, 0)
                    self.assertNotEqual(commit(self.nm, "x", state), "done")        # an empty state
                    os.pwrite(state, b"state", 0)
                    self.i.failpoints(f"nm.template-commit.{point} {action} 1")
                    self.assertNotEqual(commit(self.nm, "x", state), "done")
                    self.i.failpoints()
                    self.refused("template-not-found", "disk-create", sandbox=sandbox(), template="x")
                    if restart:
                        self.i.kill()
                        self.i.up()
                        self.reconnect()
                        self.assertEqual(names(), ["templates/t"])
        self.nm.call("template-begin", template="x")
        self.nm.call("template-drop", template="x")
        self.assertEqual(names(), ["templates/t"])
        # The cache is only a cache: without it the template stands.
        self.nm.call("template-begin", template="y")
        self.i.failpoints("nm.template-commit.cached error 5 1")
        self.assertEqual(commit(self.nm, "y", state), "done")
        self.assertEqual(sorted(os.listdir(self.i.cache + "/template")), ["t"])
        self.nm.call("disk-create", sandbox=sandbox(), template="y")
        with open(f"{self.i.state}/data/templates/y/state") as f:
            self.assertEqual(f.read(), "state")
        os.close(state)
        run("btrfs", "property", "set", "-ts", f"{self.i.state}/data/templates/y", "ro", "false")
        run("btrfs", "subvolume", "delete", f"{self.i.state}/data/templates/y")

    def test_templates_that_nothing_needs(self):
        """They go at the next start. What a disk or the configuration names stays, and the newest until the configured one is there."""
        i = Instance()
        names = lambda: [n["name"] for n in nm.list() if n["kind"] == "subvolume" and n["name"].startswith("templates/")]

        def again(**conf):
            nonlocal nm
            nm.sock.close()
            i.kill()
            i.configure(**conf)
            i.up()
            nm = i.nm()
            return names()

        i.up()
        nm = i.nm()
        try:
            state = os.memfd_create("state")
            os.write(state, b"state")
            for t in ("a", "c", "b"):
                nm.call("template-begin", template=t)
                self.assertEqual(commit(nm, t, state), "done")
            os.close(state)
            nm.call("disk-create", sandbox=sandbox(1), template="a")
            self.assertEqual(again(), ["templates/a", "templates/b"])
            note = f"{i.state}/data/sandboxes/{sandbox(1)}/template"
            os.rename(note, note + ".away")
            self.assertEqual(again(template_id="b"), ["templates/a", "templates/b"])
            self.assertIn("templates are not pruned", i.text())
            os.rename(note + ".away", note)
            self.assertEqual(again(template_id="a"), ["templates/a"])
            nm.call("disk-delete", sandbox=sandbox(1))
            self.assertEqual(again(template_id="z"), ["templates/a"])
        finally:
            nm.sock.close()
            i.down()

    @contextlib.contextmanager
    def filled(self):
        filler = f"{self.i.state}/data/filler"
        free = lambda: self.nm.call("stats")[0]["data_free_bytes"]
        run("btrfs", "subvolume", "sync", self.i.state + "/data")        # what was deleted before is free now
        run("btrfs", "filesystem", "sync", self.i.state + "/data")
        try:
            with open(filler, "w") as f:
                at = 0
                while (left := free()) > 240 << 20:
                    step = min(max((left - (200 << 20)) // 2, 1 << 20), 64 << 20)
                    try:
                        os.posix_fallocate(f.fileno(), at, step)
                    except OSError:             # btrfs gave its last chunk to metadata: fuller than it said
                        break
                    os.fsync(f.fileno())
                    at += step
            yield
        finally:
            os.unlink(filler)
            run("btrfs", "filesystem", "sync", self.i.state + "/data")
            wait_for("room again", lambda: free() > 512 << 20)

    def test_full_storage(self):
        """Refused before anything is begun; deleting still works."""
        self.disk(1)
        with self.filled():
            self.refused("node-disk-full", "disk-create", sandbox=sandbox(2), template="t")
            self.refused("node-disk-full", "template-begin", template="x")
            self.nm.call("disk-delete", sandbox=sandbox(1))
            self.assertEqual([i["name"] for i in self.nm.list() if i["kind"] == "subvolume"], ["templates/t"])

    def test_upgrade_of_a_full_storage(self):
        """Guests may have written to the last block: the programs of another version find the room of those before."""
        more = f"{self.i.state}/data/more"
        with self.filled():
            with open(more, "wb", buffering=0) as f:
                for size in (1 << 20, 65536, 4096):
                    with self.assertRaises(OSError):
                        while True:
                            f.write(bytes(size))
                with contextlib.suppress(OSError):
                    os.fsync(f.fileno())
            self.i.kill(signal.SIGTERM)
            with open(f"{self.i.dir}/lib/spaced-host", "ab") as f:
                f.write(b"\0")
            try:
                self.i.up()
            finally:
                os.unlink(more)
            self.reconnect()

    def test_room_of_what_was_deleted(self):
        """It is there for the next disk, although btrfs by itself would give it back half a minute later."""
        self.disk(1)
        with open(f"{self.i.state}/data/sandboxes/{sandbox(1)}/ballast", "w") as f:
            os.posix_fallocate(f.fileno(), 0, 256 << 20)
        with self.filled():
            self.refused("node-disk-full", "disk-create", sandbox=sandbox(2), template="t")
            self.nm.call("disk-delete", sandbox=sandbox(1))
            self.disk(2)

    def test_rounds_leave_nothing(self):
        """Ten at once, three times: descriptors of node-manager, loop devices and slots are back where they were."""
        count = lambda: len(os.listdir(f"/proc/{self.i.daemon.pid}/fd"))
        self.nm.call("stats")                                      # so that this connection is accepted
        before = count()
        for generation in (1, 2, 3):
            for n in range(1, 11):
                self.disk(n)
            for n in range(1, 11):
                _, fds = spawn(self.nm, n, generation)
                close_all(fds)
                for _ in range(2):
                    gateway(self.nm, n, generation)
            kinds = [i["kind"] for i in self.nm.list()]
            self.assertEqual([kinds.count(k) for k in ("execution", "process", "netns", "mount", "socket")], [10, 60, 10, 10, 10])
            for n in range(1, 11):
                destroy(self.nm, n, generation)
                self.nm.call("disk-delete", sandbox=sandbox(n))
        self.assertEqual(self.i.remains(), [])
        self.assertEqual(count(), before)
        self.assertEqual(self.nm.call("stats")[0]["slots_used"], 0)


if __name__ == "__main__":
    unittest.main()
