"""
The rights of every running process of a node, as the kernel tells them (S-1): uid and gid, no supplementary groups, exactly the
capabilities that its work needs, no_new_privs, a seccomp filter, no core file, and which network sockets are open. Two processes are
no services and confine nothing: `space up`, which mounts, makes the image and starts the others as root; and what node-manager forks
for one operation, which lives for that operation alone and has node-manager's bounding set and filter.
"""

import json
import os
import signal
import unittest

from harness import node

CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_PTRACE, SYS_ADMIN = 0, 1, 3, 5, 6, 7, 8, 12, 19, 21
NAMES = {v: k for k, v in list(globals().items()) if isinstance(v, int) and k.isupper()}
# What node-manager may take for an operation, and what is in force between operations.
NODE_MANAGER = {CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_PTRACE, SYS_ADMIN}
NODE_MANAGER_IDLE = {KILL, SYS_PTRACE}
# daemon -> (user, user whose number is the gid)
SERVICES = {"sbx-manager": ("space-sbx", "space-sbx"), "node-api": ("space-node", "space-node"), "space-api": ("space-api", "space-ctl"),
            "space-control": ("space-ctl", "space-ctl")}
IP_TABLES = ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6", "packet", "netlink")
LISTEN = "0A"


def fields(path):
    with open(path) as f:
        return {k: v.strip() for k, v in (line.split(":", 1) for line in f if ":" in line)}


def bits(text):
    value = int(text, 16)
    return {NAMES.get(i, i) for i in range(64) if value >> i & 1}


def sockets(pid):
    """{inode: (table, local address, state)} of the process's own network sockets (without Unix sockets)."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = {}
    for table in IP_TABLES:
        try:
            with open(f"/proc/{pid}/net/{table}") as f:
                head, *rows = f.read().splitlines()
        except FileNotFoundError:
            continue
        ip = table not in ("packet", "netlink")
        column = 9 if ip else head.split().index("Inode")
        for row in rows:
            row = row.split()
            if row[column] in inodes:
                found[row[column]] = (table, row[1], row[3]) if ip else (table, "", "")
    return found


class Rights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        with open(f"{cls.node.run}/conf.json") as f:
            cls.users = json.load(f)["users"]
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def check(self, who, pid, uid, gid, permitted=frozenset(), effective=None):
        """Of every thread: credentials are a thread's own."""
        effective = permitted if effective is None else effective
        want = {"CapInh": set(), "CapAmb": set(), "CapPrm": permitted, "CapEff": effective, "CapBnd": permitted}
        for tid in os.listdir(f"/proc/{pid}/task"):
            s = fields(f"/proc/{pid}/task/{tid}/status")
            name = f"{who}, thread {s['Name']}"
            self.assertEqual(s["Uid"].split(), [str(uid)] * 4, name)
            self.assertEqual(s["Gid"].split(), [str(gid)] * 4, name)
            self.assertEqual(s["Groups"].split(), [], name)
            for key, caps in want.items():
                self.assertEqual(bits(s[key]), {NAMES[c] for c in caps}, f"{name}: {key}")
            self.assertEqual((s["NoNewPrivs"], s["Seccomp"]), ("1", "2"), name)
        with open(f"/proc/{pid}/limits") as f:
            self.assertRegex(f.read(), r"Max core file size +0 +0 ", who)

    def test_node_manager(self):
        pid = self.node.pid_of("node-manager")
        self.check("node-manager", pid, 0, 0, NODE_MANAGER, NODE_MANAGER_IDLE)
        self.assertEqual(fields(f"/proc/{pid}/status")["Seccomp_filters"], "1")
        self.assertEqual(sockets(pid), {})

    def test_services(self):
        for daemon, (user, group) in SERVICES.items():
            with self.subTest(daemon):
                pid = self.node.pid_of(daemon)
                self.check(daemon, pid, self.users[user], self.users[group])
                self.assertEqual(fields(f"/proc/{pid}/status")["Seccomp_filters"], "1")
                # Undumpable: not even a process of the same user reads its memory.
                self.assertEqual(os.stat(f"/proc/{pid}/environ").st_uid, 0)

    def test_services_have_users_of_their_own(self):
        uids = [self.users[u] for u, _ in SERVICES.values()]
        self.assertEqual(len(set(uids)), len(uids))
        self.assertNotIn(0, uids)

    def test_jails(self):
        rec = self.node.record(self.box)
        base = rec["vmm_uid"]
        self.assertEqual((base - self.node.uid_base) % 4, 0)
        for who, uid in (("vmm", base), ("bridge", base + 1), ("gateway", base + 2), ("init", base + 3)):
            with self.subTest(who):
                pid = rec[who + "_pid"]
                self.check(who, pid, uid, uid)
                # node-manager's filter, the jail's on top of it, and what QEMU adds by -sandbox.
                self.assertEqual(fields(f"/proc/{pid}/status")["Seccomp_filters"], "3" if who == "vmm" else "2")
                # Those of the gateway belong to other network namespaces than its own, which is empty.
                self.assertEqual(sockets(pid), {})

    def test_network_sockets(self):
        """The API's listener is the only network socket of a node's services."""
        for daemon in ("sbx-manager", "node-api", "space-control"):
            self.assertEqual(sockets(self.node.pid_of(daemon)), {}, daemon)
        self.assertEqual(sockets(self.node.up_pid()), {}, "space up")
        found = sockets(self.node.pid_of("space-api")).values()
        port = f":{self.node.port:04X}"
        self.assertEqual([(t, a) for t, a, state in found if state == LISTEN], [("tcp", "0100007F" + port)])
        # Whatever else there is came in through it.
        self.assertEqual([f for f in found if not f[0].startswith("tcp") or not f[1].endswith(port)], [])

    def test_stopped_and_continued(self):
        """The kernel lets what was waited for go on by a system call of its own, restart_syscall."""
        rec = self.node.record(self.box)
        pids = [rec[who + "_pid"] for who in ("vmm", "bridge", "init")] + [self.node.pid_of(d) for d in node.DAEMONS]
        pids += self.node.gateway(self.box).values()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            try:
                node.wait_for("it is stopped", lambda: fields(f"/proc/{pid}/status")["State"].startswith("T"))
            finally:
                os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.node.sh(self.box, "echo alive"), "alive\n")
        self.assertEqual([p for p in pids if not os.path.exists(f"/proc/{p}")], [])
        self.assertEqual(self.node.pid_of("sbx-manager"), pids[4])

    def test_the_guest_gives_blocks_back(self):
        """The one system call of the VMM that only a guest's discard brings about, and what it is for."""
        disk = f"{self.node.state}/data/sandboxes/{self.box}/rootfs.img"
        mib = 64

        def used():
            os.sync()
            return os.stat(disk).st_blocks * 512 >> 20

        self.node.sh(self.box, f"head -c {mib}M /dev/urandom > ~/block; sync")
        full = used()
        self.node.sh(self.box, "rm ~/block; sync")
        node.wait_for("the blocks are free", lambda: used() <= full - mib + 8)

    def test_up_is_the_only_one_with_all_rights(self):
        s = fields(f"/proc/{self.node.up_pid()}/status")
        self.assertEqual((s["Uid"].split(), s["Seccomp"]), (["0"] * 4, "0"))


if __name__ == "__main__":
    unittest.main()
