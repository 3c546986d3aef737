"""
The jails from inside (S-1): a program takes the place of the bridge, of the VMM and of the gateway, and tries what each must not see, open, connect to,
signal or trace. Two walls are looked at apart: everything together, exactly as the real program runs ("as it runs"); and the namespaces,
root, uid and capabilities alone, without the system call filter in front of them ("unfiltered").

Each try is one item of a table with what must come of it; the list with all results lies in build/tests/jail.json.
"""

import json
import os
import shutil
import socket
import struct
import unittest

from harness import cap, intruder, nm, node
from harness.intruder import Killed, Pointer

RESULTS = os.path.join(cap.BUILD, "tests/jail.json")
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID = 0x10000000, 0x00020000, 0x40000000, 0x20000000
PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE = 0, 16, 0x4206
# No EINVAL, no EFAULT: those could mean that only the arguments were wrong.
DENIED = ("EPERM", "EACCES", "ENOENT", "ENOSYS", "ESRCH", "EAFNOSUPPORT", "ENETUNREACH", "EROFS", "killed")

HOST_PATHS = ["/etc/passwd", "/etc/shadow", "/proc/self/status", "/proc/1/environ", "/sys/kernel", "/sys/fs/cgroup", "/run", "/run/space", "/tmp", "/var/lib/space",
              "/root", "/home", "/usr/bin/env", "/bin/sh", "/dev/mem", "/dev/sda", "/dev/loop0", "/dev/fuse", "/dev/net/tun", "/dev/tty", "/dev/random", "/dev/shm"]


VECTOR = struct.pack("<QQ", 4096, 8)       # rights are looked at before the memory

# name -> (the try, the results that are right)
CALLS = {
    "setuid(0)": (lambda i: i.call("setuid", 0), DENIED),
    "setgid(0)": (lambda i: i.call("setgid", 0), DENIED),
    "setresuid(0, 0, 0)": (lambda i: i.call("setresuid", 0, 0, 0), DENIED),
    "setgroups(0)": (lambda i: i.call("setgroups", 1, Pointer(struct.pack("<I", 0))), DENIED),
    "capset(everything)": (lambda i: i.call("capset", Pointer(struct.pack("<II", 0x20080522, 0)), Pointer(struct.pack("<6I", *[0xFFFFFFFF] * 2, 0, *[0xFFFFFFFF] * 2, 0))), DENIED),
    "mount(tmpfs)": (lambda i: i.call("mount", Pointer("none"), Pointer("/"), Pointer("tmpfs"), 0, 0), DENIED),
    "mount(bind)": (lambda i: i.call("mount", Pointer("/"), Pointer("/"), Pointer("none"), 4096, 0), DENIED),
    "umount(/)": (lambda i: i.call("umount2", Pointer("/"), 2), DENIED),
    "fsopen(proc)": (lambda i: i.call("fsopen", Pointer("proc"), 0), DENIED),
    "open_tree(/)": (lambda i: i.call("open_tree", -100, Pointer("/"), 1), DENIED),
    "pivot_root": (lambda i: i.call("pivot_root", Pointer("."), Pointer(".")), DENIED),
    "chroot(..)": (lambda i: i.call("chroot", Pointer("/")), DENIED),
    "unshare(mount)": (lambda i: i.call("unshare", CLONE_NEWNS), DENIED),
    "unshare(net)": (lambda i: i.call("unshare", CLONE_NEWNET), DENIED),
    "setns": (lambda i: i.call("setns", 0, 0), DENIED + ("EINVAL", "EBADF")),
    "ptrace(the other one)": (lambda i: i.call("ptrace", PTRACE_ATTACH, i.other, 0, 0), DENIED),
    "ptrace(1)": (lambda i: i.call("ptrace", PTRACE_SEIZE, 1, 0, 0), DENIED),
    "process_vm_readv(1)": (lambda i: i.call("process_vm_readv", 1, Pointer(VECTOR), 1, Pointer(VECTOR), 1, 0), DENIED),
    "process_vm_readv(the other one)": (lambda i: i.call("process_vm_readv", i.other, Pointer(VECTOR), 1, Pointer(VECTOR), 1, 0), DENIED),
    "process_vm_writev(the other one)": (lambda i: i.call("process_vm_writev", i.other, Pointer(VECTOR), 1, Pointer(VECTOR), 1, 0), DENIED),
    "kill(jail-init)": (lambda i: i.call("kill", 1, 9), DENIED),
    "kill(the other one)": (lambda i: i.call("kill", i.other, 9), DENIED),
    "kill(a daemon's pid)": (lambda i: i.call("kill", i.daemon, 0), DENIED),
    "pidfd_open(1)": (lambda i: i.call("pidfd_open", 1, 0), DENIED + ("number",)),
    "kcmp": (lambda i: i.call("kcmp", 1, i.other, 0, 0, 0), DENIED),
    "init_module": (lambda i: i.call("init_module", Pointer(b"x" * 16), 16, Pointer("")), DENIED),
    "finit_module": (lambda i: i.call("finit_module", 3, Pointer(""), 0), DENIED),
    "delete_module": (lambda i: i.call("delete_module", Pointer("btrfs"), 0x800), DENIED),
    "kexec_load": (lambda i: i.call("kexec_load", 0, 0, 0, 0), DENIED),
    "reboot": (lambda i: i.call("reboot", 0xfee1dead, 672274793, 0, 0), DENIED),
    "swapon": (lambda i: i.call("swapon", Pointer("/x"), 0), DENIED),
    "acct": (lambda i: i.call("acct", 0), DENIED),
    "iopl(3)": (lambda i: i.call("iopl", 3), DENIED),
    "ioperm": (lambda i: i.call("ioperm", 0, 16, 1), DENIED),
    "sethostname": (lambda i: i.call("sethostname", Pointer("x"), 1), DENIED),
    "open_by_handle_at": (lambda i: i.call("open_by_handle_at", -100, Pointer(struct.pack("<Ii8s", 8, 1, b"x" * 8)), 0), DENIED + ("EBADF",)),
    "fanotify_init": (lambda i: i.call("fanotify_init", 0x0c, 0), DENIED),
    "mknod(block)": (lambda i: i.call("mknodat", -100, Pointer("/disk"), 0o60666, 8 << 8), DENIED),
    "socket(raw)": (lambda i: i.call("socket", intruder.AF["inet"], socket.SOCK_RAW, 1), DENIED + ("EPROTONOSUPPORT",)),
    "socket(packet)": (lambda i: i.call("socket", intruder.AF["packet"], socket.SOCK_RAW, 0x300), DENIED),
}

# Refused by the filter, whatever the other walls would say: no program of ours in a jail has a use for them.
FILTER_ONLY = {
    "kill(everybody)": lambda i: i.call("kill", -1, 0),
    "unshare(user)": lambda i: i.call("unshare", CLONE_NEWUSER),
    "bpf": lambda i: i.call("bpf", 0, Pointer(struct.pack("<4I", 2, 4, 4, 1) + b"\0" * 64), 80),
    "perf_event_open": lambda i: i.call("perf_event_open", Pointer(struct.pack("<II", 0, 112) + b"\0" * 104), -1, 0, -1, 0),
    "userfaultfd": lambda i: i.call("userfaultfd", 0),
    "syslog(read all)": lambda i: i.call("syslog", 3, Pointer(b"\0" * 1024), 1024),
    "add_key": lambda i: i.call("add_key", Pointer("user"), Pointer("x"), Pointer("y"), 1, -3),
    "keyctl": lambda i: i.call("keyctl", 0, -3, 1),
    "request_key": lambda i: i.call("request_key", Pointer("user"), Pointer("x"), 0, -3),
    "io_uring_setup": lambda i: i.call("io_uring_setup", 4, Pointer(b"\0" * 120)),
    "personality": lambda i: i.call("personality", 0x0040000),
    "ptrace(me)": lambda i: i.call("ptrace", PTRACE_TRACEME, 0, 0, 0),
    "socket(netlink)": lambda i: i.call("socket", intruder.AF["netlink"], socket.SOCK_RAW, 0),
    "socket(alg)": lambda i: i.call("socket", intruder.AF["alg"], socket.SOCK_SEQPACKET, 0),
    "socket(vsock)": lambda i: i.call("socket", intruder.AF["vsock"], socket.SOCK_STREAM, 0),
    "socket(inet)": lambda i: i.call("socket", intruder.AF["inet"], socket.SOCK_STREAM, 0),
    "fork": lambda i: i.call("fork"),
    "vfork": lambda i: i.call("clone", 17, 0, 0, 0, 0),
    "execveat": lambda i: i.call("execveat", -100, Pointer("/x"), 0, 0, 0),
    "shmget": lambda i: i.call("shmget", 1, 4096, 0o1666),
    "msgget": lambda i: i.call("msgget", 1, 0o1666),
    "mq_open": lambda i: i.call("mq_open", Pointer("x"), 0o102, 0o666, 0),
    "name_to_handle_at": lambda i: i.call("name_to_handle_at", -100, Pointer("/"), Pointer(struct.pack("<Ii", 64, 0) + b"\0" * 64), Pointer(b"\0" * 8), 0),
    "modify_ldt": lambda i: i.call("modify_ldt", 0, Pointer(b"\0" * 16), 16),
    "quotactl": lambda i: i.call("quotactl", 0, Pointer("/"), 0, 0),
}


class Jail(unittest.TestCase):
    sandbox = "ijailtest000000000001"
    results = []

    @classmethod
    def setUpClass(cls):
        cls.node = node.Node()
        cls.node.up()
        # Another sandbox is alive beside it, with secrets of its own; and the jail's real inhabitants are those of a real sandbox.
        cls.neighbour = cls.node.create()
        data = f"{cls.node.state}/data"
        cls.original = {}
        for who, name in (("bridge", "spaced-host"), ("vmm", "qemu-system-x86_64")):
            (digest,) = os.listdir(f"{data}/{who}")
            cls.original[who] = f"{data}/{who}/{digest}/{name}"

    @classmethod
    def tearDownClass(cls):
        try:
            os.makedirs(os.path.dirname(RESULTS), exist_ok=True)
            with open(RESULTS, "w") as f:
                json.dump(cls.results, f, indent=1)
        finally:
            cls.node.remove()

    def setUp(self):
        self.m = nm.NodeManager(self.node)
        self.generation = 0
        self.template = json.load(open(f"{self.node.run}/conf.json"))["template_id"]
        self.addCleanup(self.m.sock.close)

    # -- the intruder's place

    def take_place(self, who):
        """The executable is replaced before the spawn, so that it is the one that is recorded; put back afterwards."""
        path = self.original[who]
        os.rename(path, path + ".kept")
        shutil.copyfile(cap.INTRUDER, path)
        st = os.stat(path + ".kept")
        os.chmod(path, st.st_mode & 0o7777)
        os.chown(path, st.st_uid, st.st_gid)
        self.addCleanup(os.rename, path + ".kept", path)

    def spawn(self):
        """A new execution straight from node-manager; gives (its answer, the VMM's connection)."""
        self.generation += 1
        if self.generation == 1:
            self.m.call("disk-create", sandbox=self.sandbox, template=self.template)
            self.addCleanup(self.m.call, "disk-delete", sandbox=self.sandbox)
        self.addCleanup(self.m.call, "destroy", sandbox=self.sandbox, generation=self.generation)
        r, fds = self.m.call("spawn", sandbox=self.sandbox, generation=self.generation, template=self.template, mode="boot", accel="tcg", memory_mib=512, vcpus=1)
        for fd in fds[1:]:
            os.close(fd)
        return r, socket.socket(fileno=fds[0])

    def destroy(self):
        self.m.call("destroy", sandbox=self.sandbox, generation=self.generation)

    def enter(self, who):
        """The intruder as it runs in that place, in a fresh execution."""
        if self.generation:
            self.destroy()
        r, qmp = self.spawn()
        if who == "vmm":
            i = intruder.Intruder(qmp)
        else:
            qmp.close()
            s = socket.socket(socket.AF_UNIX)
            path = f"{self.node.run}/sbx/{self.sandbox}.{self.generation}/bridge.sock"
            node.wait_for("the bridge's place listens", lambda: s.connect_ex(path) == 0)
            i = intruder.Intruder(s)
        i.other = {"vmm": 3, "bridge": 2}[who]
        i.daemon = self.node.pid_of("sbx-manager")
        i.pid = r[who + "_pid"]
        return i

    def attempt(self, i, name, fn, again):
        """(result, an intruder that is alive)."""
        try:
            result = fn(i)
        except Killed:
            i.close()
            return "killed", again()
        return ("number" if isinstance(result, int) else result), i

    def table(self, who, how, tries, i, again):
        wrong = []
        for name, (fn, right) in tries.items():
            result, i = self.attempt(i, name, fn, again)
            good = result in right
            self.results.append({"place": who, "how": how, "try": name, "result": result, "right": good})
            if not good:
                wrong.append(f"{name}: {result}")
        return wrong, i

    def paths(self):
        """What lies on the host and must not be there inside."""
        neighbour = f"{self.node.run}/sbx/{self.neighbour}.1"
        return HOST_PATHS + [self.node.run, self.node.state, f"{self.node.state}/data", f"{self.node.state}/keys/root.key", f"{self.node.state}/control/space.db",
                             f"{self.node.run}/conf.json", neighbour, f"{self.node.state}/data/sandboxes/{self.neighbour}/rootfs.img", "/proc", "/sys"]

    def sockets(self):
        neighbour = f"{self.node.run}/sbx/{self.neighbour}.1"
        return [f"{self.node.run}/nm/nm.sock", f"{self.node.run}/sbx-manager/sbx.sock", f"{self.node.run}/node-api/node.sock",
                *(f"{neighbour}/{s}" for s in ("qmp.sock", "chan.sock", "bridge.sock", "control.sock")), "/run/systemd/private", "/run/dbus/system_bus_socket"]

    def open_tries(self):
        tries = {f"open {p}": ((lambda p: lambda i: i.open(p))(p), DENIED + ("ENOTDIR",)) for p in self.paths()}
        for up in ("..", "../..", "/..", "/../../../../etc/passwd"):
            tries[f"open {up} leads nowhere"] = ((lambda p: lambda i: self.only_the_root(i, p))(up), ("same", "ENOENT", "EACCES", "killed"))
        tries["make a file in the root"] = (lambda i: i.open("/intruder", os.O_CREAT | os.O_WRONLY), DENIED)
        return tries

    @staticmethod
    def only_the_root(i, path):
        fd = i.call("openat", -100, Pointer(path), os.O_RDONLY, 0)
        if not isinstance(fd, int):
            return fd
        i.call("close", fd)
        here, there = i.names("/"), i.names(path)
        return "same" if here == there else f"other: {there}"

    def connect_tries(self):
        tries = {}
        for p in self.sockets():
            for kind, name in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_SEQPACKET, "seqpacket")):
                tries[f"connect {p} ({name})"] = ((lambda p, k: lambda i: i.connect_unix(p, k))(p, kind), DENIED + ("ECONNREFUSED", "EPROTOTYPE"))
        for address, port in (("127.0.0.1", self.node.port), ("127.0.0.1", 22), ("10.0.2.2", 80), ("8.8.8.8", 53), ("169.254.169.254", 80)):
            tries[f"connect {address}:{port}"] = ((lambda a, p: lambda i: i.connect_inet(a, p))(address, port), DENIED + ("ECONNREFUSED", "EHOSTUNREACH"))
        for name in ("space", f"space-{self.node.instance}"):
            tries[f"connect abstract {name}"] = ((lambda n: lambda i: i.connect_unix("\0" + n))(name), DENIED + ("ECONNREFUSED",))
        return tries

    # -- both walls

    def check_as_it_runs(self, who):
        self.take_place(who)
        i = self.enter(who)
        tries = {**CALLS, **{name: (fn, DENIED) for name, fn in FILTER_ONLY.items()}, **self.open_tries(), **self.connect_tries()}
        wrong, i = self.table(who, "as it runs", tries, i, lambda: self.enter(who))
        self.check_process(who, i.pid)
        i.close()
        self.assertEqual(wrong, [])

    def test_bridge_as_it_runs(self):
        self.check_as_it_runs("bridge")

    def test_vmm_as_it_runs(self):
        self.check_as_it_runs("vmm")

    def check_unfiltered(self, who):
        """In the place of a real sandbox's process, beside it."""
        target = self.node.create()
        pid = self.node.record(target)[who + "_pid"]

        def enter():
            i = intruder.beside(pid, cap.INTRUDER)
            i.other, i.daemon = {"vmm": 3, "bridge": 2}[who], self.node.pid_of("sbx-manager")
            return i

        i = enter()
        neighbour = self.node.create()
        try:
            tries = {**CALLS, **self.open_tries(), **self.connect_tries()}
            # Sees itself: the root holds what it needs, no more.
            names = i.names("/")
            allowed = {"bridge": {"spaced-host"}, "vmm": {"qemu-system-x86_64", "fw", "mem", "vmlinuz", "initrd.gz", "dev", "lib", "lib64", "usr", "etc", "disk"}}[who]
            self.results.append({"place": who, "how": "unfiltered", "try": "names in the root", "result": names, "right": isinstance(names, list) and set(names) <= allowed})
            self.assertIsInstance(names, list)
            self.assertLessEqual(set(names), allowed)
            wrong, i = self.table(who, "unfiltered", tries, i, enter)
            # Its own processes only: of the numbers that are seen by kill(2), all are of this namespace.
            rec = self.node.record(target)
            threads = lambda: sum(len(os.listdir(f"/proc/{rec[w + '_pid']}/task")) for w in ("init", "vmm", "bridge"))     # kill(2) finds threads too
            own = threads()                                   # QEMU's come and go
            seen = [p for p in range(1, 600) if i.call("kill", p, 0) != "ESRCH"]
            own = max(own, threads())
            self.assertLessEqual(len(seen), own + 2, f"more than its own processes: {seen}")
        finally:
            i.close()
            for box in (target, neighbour):
                self.assertEqual(self.node.sh(box, "echo unharmed"), "unharmed\n")
                self.node.kill(box)
        self.assertEqual(wrong, [])

    def test_bridge_unfiltered(self):
        self.check_unfiltered("bridge")

    def test_vmm_unfiltered(self):
        self.check_unfiltered("vmm")

    # -- the gateway: what its three processes can do as they run is in test_net_taken_over.py

    def check_gateway_unfiltered(self, role):
        """
        Files, rights, other processes, Unix sockets, for each of the three. What keeps the three from each other is the filter alone: they share
        a uid and a PID namespace, whose process 1 is main. Where their network sockets lead: test_net_taken_over.py.
        """
        target = self.node.create()
        rec, pids = self.node.record(target), self.node.gateway(target)
        siblings = ("ptrace(1)", "process_vm_readv(1)", "kill(jail-init)", "pidfd_open(1)", "kcmp")

        def enter():
            i = intruder.beside(pids[role], cap.INTRUDER)
            i.other, i.daemon = rec["bridge_pid"], self.node.pid_of("sbx-manager")
            return i

        i = enter()
        try:
            calls = {n: t for n, t in CALLS.items() if n not in siblings}
            connects = {n: t for n, t in self.connect_tries().items() if role == "main" or "/" in n or "abstract" in n}
            names = i.names("/")
            self.results.append({"place": f"gateway {role}", "how": "unfiltered", "try": "names in the root", "result": names, "right": names == ["netgtw"]})
            self.assertEqual(names, ["netgtw"])
            wrong, i = self.table(f"gateway {role}", "unfiltered", {**calls, **self.open_tries(), **connects}, i, enter)
            seen = [p for p in range(1, 600) if i.call("kill", p, 0) != "ESRCH"]
            self.assertLessEqual(len(seen), 3 + 2, f"more than its own processes: {seen}")
        finally:
            i.close()
            self.assertEqual(self.node.sh(target, "echo unharmed"), "unharmed\n")
            self.node.kill(target)
        self.assertEqual(wrong, [])

    def test_gateway_main_unfiltered(self):
        self.check_gateway_unfiltered("main")

    def test_gateway_inside_unfiltered(self):
        self.check_gateway_unfiltered("inside")

    def test_gateway_outside_unfiltered(self):
        self.check_gateway_unfiltered("outside")

    # -- what the host sees of them

    def check_process(self, who, pid):
        with open(f"/proc/{pid}/status") as f:
            status = {k: v.strip() for k, v in (line.split(":", 1) for line in f if ":" in line)}
        uids, gids = set(status["Uid"].split()), set(status["Gid"].split())
        self.assertEqual(len(uids), 1)
        self.assertTrue(self.node.uid_base <= int(uids.pop()) < self.node.uid_base + 4 * self.node.max_sandboxes, who)
        self.assertTrue(all(int(g) >= self.node.uid_base for g in gids), f"{who}: groups {gids}")
        self.assertEqual(status["Groups"].split(), [], who)
        for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(status[c], 16), 0, f"{who}: {c}")
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), who)
        for ns in ("mnt", "net", "ipc", "pid"):
            self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/{ns}"), os.readlink(f"/proc/self/ns/{ns}"), f"{who}: {ns}")
        with open(f"/proc/{pid}/limits") as f:
            limits = f.read()
        for line in limits.splitlines():
            if line.startswith("Max core file size"):
                self.assertEqual(line.split()[4], "0", f"{who}: {line}")
            if line.startswith("Max open files"):
                self.assertLessEqual(int(line.split()[3]), 4096, f"{who}: {line}")
        with open(f"/proc/{pid}/environ", "rb") as f:
            self.assertEqual(f.read().strip(b"\0"), b"", f"{who}: its environment")
        with open(f"/proc/{pid}/mountinfo") as f:
            mounts = [line.split() for line in f]
        self.assertLessEqual(len(mounts), 10, mounts)
        for m in mounts:
            options = m[5].split(",")
            self.assertIn("nosuid", options, f"{who}: {m[4]}")
            if m[4] != "/dev/kvm":
                self.assertIn("nodev", options, f"{who}: {m[4]}")
        self.assertFalse([m for m in mounts if "proc" in m[m.index("-") + 1:][:1] or m[m.index("-") + 1] in ("proc", "sysfs", "cgroup", "cgroup2", "devtmpfs")], mounts)

    def test_a_real_sandbox_from_outside(self):
        rec = self.node.record(self.neighbour)
        for who in ("vmm", "bridge"):
            pid = rec[who + "_pid"]
            with self.subTest(who):
                self.check_process(who, pid)
                with open(f"/proc/{pid}/net/dev") as f:
                    devices = sorted(line.split(":")[0].strip() for line in f.readlines()[2:])
                self.assertLessEqual(set(devices), {"lo", "tap0"} if who == "vmm" else {"lo"})
                with open(f"/proc/{pid}/net/route") as f:
                    self.assertEqual(len(f.readlines()[1:]) if who == "bridge" else 0, 0, f"{who}: routes")
                fds = {}
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    try:
                        fds[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
                    except OSError:
                        pass
                files = [t for t in fds.values() if t.startswith("/") and not t.startswith(("/dev/null", "/null", "/memfd:"))]
                if who == "bridge":
                    self.assertEqual([t for t in files if not t.endswith("spaced-host")], [], fds)
                else:
                    for t in files:
                        self.assertTrue(t in ("/dev/kvm", "/dev/net/tun") or self.neighbour in t or "qemu" in t or t in ("/mem", "/vmlinuz", "/initrd.gz") or "/fw" in t, f"{fds}")
        # VMM and bridge have uids and roots of their own; the init has no capability left.
        self.assertEqual(len({os.readlink(f"/proc/{rec[w + '_pid']}/ns/mnt") for w in ("vmm", "bridge")}), 2)
        status = lambda w: open(f"/proc/{rec[w + '_pid']}/status").read()
        uids = {w: [line for line in status(w).splitlines() if line.startswith("Uid:")][0].split()[1] for w in ("vmm", "bridge", "init")}
        self.assertEqual(len(set(uids.values())), 3, uids)
        self.assertIn("CapEff:\t0000000000000000", status("init"))
        self.assertIn("CapPrm:\t0000000000000000", status("init"))

    def test_cgroup_limits_are_there(self):
        rec = self.node.record(self.neighbour)
        for who in ("vmm", "bridge", "gateway"):
            with open(f"/proc/{rec[who + '_pid']}/cgroup") as f:
                paths = [line.strip().split(":", 2) for line in f]
            ours = [p for p in paths if p[2].endswith(f"/{self.neighbour}.1/{who}")]
            self.assertTrue(ours, f"{who}: {paths}")
        limits = []
        for base, _, files in os.walk("/sys/fs/cgroup"):
            if base.endswith(f"/{self.neighbour}.1/bridge"):
                for name in ("memory.max", "memory.limit_in_bytes", "pids.max"):
                    if name in files:
                        with open(os.path.join(base, name)) as f:
                            limits.append((name, f.read().strip()))
        self.assertTrue([v for n, v in limits if n.startswith("memory") and v not in ("max", "9223372036854771712")], limits)
        self.assertTrue([v for n, v in limits if n == "pids.max" and v != "max"], limits)


if __name__ == "__main__":
    unittest.main()
