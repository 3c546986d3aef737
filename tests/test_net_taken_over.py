"""
A gateway that was taken over: what whoever makes its processes obey can reach (S-1, S-3, S-12). The system calls are made by the real processes
of a real sandbox, in their places (harness/puppet.py). The list with all results lies in build/tests/gateway.json.
"""

import json
import os
import socket
import struct
import subprocess
import threading
import time
import unittest

from harness import cap, internet, nm, node, packets
from harness.intruder import Killed, Pointer
from harness.puppet import Puppet

RESULTS = os.path.join(cap.BUILD, "tests/gateway.json")
GET = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
DENIED = ("killed", "EPERM", "EACCES", "ENOSYS", "ENOENT")        # ENOENT: its root holds nothing but itself
SOL_SOCKET, IPPROTO_IP, IPPROTO_TCP, IPPROTO_IPV6 = 1, 0, 6, 41
MSG_FASTOPEN = 0x20000000
# src/netgtw/proto.h, src/ipc/gtw_ops.h: what main says to outside
OUTSIDE_FD, RESOLVER_FD, OUT_MAGIC = 6, 7, 0x32777467
ANSWERS = ("ok", "internet", "floor", "no-route", "index", "failed")


def addr(address, port):
    if address is None:
        return struct.pack("<B16sxH", 99, b"", port)
    packed = packets.packed(address)
    return struct.pack("<B16sxH", 6 if len(packed) == 16 else 4, packed, port)


def inet(address, port):
    if ":" in address:
        return struct.pack("<H", 10) + struct.pack("!HI", port, 0) + socket.inet_pton(socket.AF_INET6, address) + b"\0" * 4
    return struct.pack("<H", 2) + struct.pack("!H", port) + socket.inet_aton(address) + b"\0" * 8


def message(i, address, data=b"x"):
    """A msghdr for sendmsg with a destination: name, iovec, bytes lie behind one another in the process."""
    name = inet(address, 53)
    room = lambda b: len(b) + -len(b) % 16
    at_name = i.at(64)
    at_vec = at_name + room(name)
    at_data = at_vec + 16
    return (Pointer(struct.pack("<QIxxxxQQQQiI", at_name, len(name), at_vec, 1, 0, 0, 0, 0)[:64].ljust(64, b"\0") + name + b"\0" * (-len(name) % 16) + struct.pack("<QQ", at_data, len(data)) + data),)


# What none of the three may do, by a name for the list. i.sockets: its descriptors that are sockets.
NEVER = {
    "execve(/bin/sh)": lambda i: i.call("execve", Pointer("/bin/sh"), 0, 0),
    "execveat": lambda i: i.call("execveat", -100, Pointer("/x"), 0, 0, 0),
    "fork": lambda i: i.call("fork"), "clone": lambda i: i.call("clone", 17, 0, 0, 0, 0), "clone3": lambda i: i.call("clone3", Pointer(b"\0" * 88), 88),
    "open(/)": lambda i: i.call("open", Pointer("/"), 0, 0), "openat2": lambda i: i.call("openat2", -100, Pointer("/"), Pointer(b"\0" * 24), 24),
    "mkdir": lambda i: i.call("mkdir", Pointer("/x"), 0o777), "mount": lambda i: i.call("mount", Pointer("none"), Pointer("/"), Pointer("proc"), 0, 0),
    "unshare(net)": lambda i: i.call("unshare", 0x40000000), "unshare(user)": lambda i: i.call("unshare", 0x10000000), "setns": lambda i: i.call("setns", 3, 0),
    "ptrace(1)": lambda i: i.call("ptrace", 16, 1, 0, 0), "process_vm_readv(1)": lambda i: i.call("process_vm_readv", 1, Pointer(b"\0" * 16), 1, Pointer(b"\0" * 16), 1, 0),
    "pidfd_open(1)": lambda i: i.call("pidfd_open", 1, 0), "kill(-1)": lambda i: i.call("kill", -1, 0), "setuid(0)": lambda i: i.call("setuid", 0),
    "bpf": lambda i: i.call("bpf", 0, Pointer(b"\0" * 80), 80), "io_uring_setup": lambda i: i.call("io_uring_setup", 4, Pointer(b"\0" * 120)),
    "userfaultfd": lambda i: i.call("userfaultfd", 0), "perf_event_open": lambda i: i.call("perf_event_open", Pointer(b"\0" * 112), -1, 0, -1, 0),
    "keyctl": lambda i: i.call("keyctl", 0, -3, 1), "add_key": lambda i: i.call("add_key", Pointer("user"), Pointer("x"), Pointer("y"), 1, -3),
    "init_module": lambda i: i.call("init_module", Pointer(b"x"), 1, Pointer("")), "shmget": lambda i: i.call("shmget", 1, 4096, 0o1666),
    "memfd_create": lambda i: i.call("memfd_create", Pointer("x"), 0), "personality": lambda i: i.call("personality", 0x40000),
    "listen": lambda i: i.call("listen", i.sockets[0], 1), "socketpair": lambda i: i.call("socketpair", 1, 1, 0, Pointer(b"\0" * 8)),
    "ioctl(SIOCGIFCONF)": lambda i: i.call("ioctl", i.sockets[0], 0x8912, Pointer(b"\0" * 16)), "bind": lambda i: i.call("bind", i.sockets[0], Pointer(inet("0.0.0.0", 99)), 16),
    "sendmmsg": lambda i: i.call("sendmmsg", i.sockets[0], Pointer(b"\0" * 64), 1, 0), "pidfd_getfd": lambda i: i.call("pidfd_getfd", 3, 3, 0),
}

# What main may not do beside that: make a socket, or turn one that it has.
MAIN = {
    **{f"socket({name})": (lambda a: lambda i: i.call("socket", *a))(a) for name, a in {
        "inet": (2, 1, 0), "inet6": (10, 1, 0), "udp": (2, 2, 0), "unix": (1, 1, 0), "netlink": (16, 3, 0), "packet": (17, 3, 0x300), "raw": (2, 3, 255), "vsock": (40, 1, 0),
        "alg": (38, 5, 0)}.items()},
    "connect(AF_UNSPEC)": lambda i: i.call("connect", i.sockets[0], Pointer(b"\0" * 16), 16), "connect(public)": lambda i: i.call("connect", i.sockets[0], Pointer(inet(internet.WEB4, 80)), 16),
    "connect(private)": lambda i: i.call("connect", i.sockets[0], Pointer(inet("10.1.2.3", 80)), 16),
    "sendto(an address)": lambda i: i.call("sendto", i.sockets[0], Pointer(b"x" * 16), 1, 0, i.at(16), 16),
    "sendto(fast open)": lambda i: i.call("sendto", i.sockets[0], Pointer(b"x" * 16), 1, MSG_FASTOPEN, 0, 0),
    "sendmsg(an address)": lambda i: i.call("sendmsg", i.sockets[0], *message(i, internet.WEB4), 0),
    "setsockopt(IP_TRANSPARENT)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_IP, 19, Pointer(b"\1\0\0\0"), 4),
    "setsockopt(IP_OPTIONS)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_IP, 4, Pointer(packets.source_route(False, ["10.1.2.3"])), 7),
    "setsockopt(SO_BINDTODEVICE)": lambda i: i.call("setsockopt", i.sockets[0], SOL_SOCKET, 25, Pointer("lo"), 3),
    "setsockopt(SO_MARK)": lambda i: i.call("setsockopt", i.sockets[0], SOL_SOCKET, 36, Pointer(b"\1\0\0\0"), 4),
    "setsockopt(TCP_REPAIR)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_TCP, 19, Pointer(b"\1\0\0\0"), 4),
    "setsockopt(TCP_ULP)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_TCP, 31, Pointer("tls"), 3),
    "setsockopt(TCP_FASTOPEN_CONNECT)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_TCP, 30, Pointer(b"\1\0\0\0"), 4),
    "setsockopt(IPV6_RTHDR)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_IPV6, 57, Pointer(packets.routing_header(["fd00::1"])), 24),
    "setsockopt(IPV6_ADDRFORM)": lambda i: i.call("setsockopt", i.sockets[0], IPPROTO_IPV6, 1, Pointer(b"\2\0\0\0"), 4),
    "openat(/)": lambda i: i.call("openat", -100, Pointer("/"), 0, 0),
}


def setUpModule():
    global NET, NODE
    NET, NODE = internet.shared()
    os.makedirs(os.path.dirname(RESULTS), exist_ok=True)


class Places:
    """The three processes of one sandbox's gateway, and the list of what was tried."""

    results = []

    @staticmethod
    def role_of(pid):
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        return words[words.index(b"--role") + 1].decode() if b"--role" in words else ""

    def pids(self):
        """{role: pid} of the gateway; waits until all three are there."""
        def all_three():
            try:
                found = {self.role_of(p): p for p in NODE.gateway_pids(self.box)}
            except OSError:
                return None
            return found if {"main", "inside", "outside"} <= set(found) else None
        return node.wait_for("the gateway's three processes", all_three)

    def puppet(self, role):
        pid = self.pids()[role]
        i = Puppet(pid)
        i.sockets = sorted(int(fd) for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") and int(fd) > 2)
        return i

    def note(self, place, attempt, result, right):
        self.results.append({"place": place, "try": attempt, "result": result, "right": right})
        with open(RESULTS, "w") as f:
            json.dump(self.results, f, indent=1)


class TakenOver(Places, unittest.TestCase):
    """In a sandbox that runs."""

    @classmethod
    def setUpClass(cls):
        cls.box = NODE.ready()

    @classmethod
    def tearDownClass(cls):
        NODE.kill(cls.box)

    def enter(self, role):
        """The process of that role as a puppet, when the gateway works."""
        node.wait_for("the gateway works", lambda: "hello" in NODE.ask(self.box, [{"op": "tcp", "to": internet.WEB4, "port": 80, "send": GET, "timeout": 3}])[0].get("data", ""), 90)
        return self.puppet(role)


class ByHand(Places, unittest.TestCase):
    """In an execution that only node-manager knows: a gateway that was ended is made again at once. Its guest never begins."""

    box = "igatewaytest000000001"

    @classmethod
    def setUpClass(cls):
        with open(f"{NODE.run}/conf.json") as f:
            template = json.load(f)["template_id"]
        cls.nm = nm.NodeManager(NODE)
        cls.nm.call("disk-create", sandbox=cls.box, template=template)
        _, fds = cls.nm.call("spawn", sandbox=cls.box, generation=1, template=template, mode="boot", accel="tcg", memory_mib=512, vcpus=1)
        for fd in fds[1:]:
            os.close(fd)
        cls.qmp = socket.socket(fileno=fds[0])

    @classmethod
    def tearDownClass(cls):
        cls.qmp.close()
        cls.nm.call("destroy", sandbox=cls.box, generation=1)
        cls.nm.call("disk-delete", sandbox=cls.box)
        cls.nm.sock.close()

    def enter(self, role, internet_too=True):
        self.nm.call("gateway", sandbox=self.box, generation=1, internet=internet_too)
        return self.puppet(role)

    def table(self, role, tries):
        """Each try once. A gateway that was ended by one is made again for the next."""
        wrong, i = [], None
        try:
            for name, fn in tries.items():
                i = i or self.enter(role)
                try:
                    result = fn(i)
                    result = "number" if isinstance(result, int) else result
                except Killed:
                    result = "killed"
                    i.close()
                    i = None
                self.note(role, name, result, result in DENIED)
                if result not in DENIED:
                    wrong.append(f"{name}: {result}")
        finally:
            if i:
                i.close()
        self.assertEqual(wrong, [])


class FromOutside(TakenOver):
    """What the machine says about the three processes."""

    def status(self, pid):
        with open(f"/proc/{pid}/status") as f:
            return {k: v.strip() for k, v in (line.split(":", 1) for line in f if ":" in line)}

    def test_rights_namespaces_and_roots(self):
        record = NODE.record(self.box)
        uids = set()
        for role, pid in self.pids().items():
            with self.subTest(role):
                s = self.status(pid)
                self.assertEqual(len(set(s["Uid"].split() + s["Gid"].split()) - {s["Uid"].split()[0]}), 0, s["Gid"])
                uids.add(int(s["Uid"].split()[0]))
                self.assertEqual(s["Groups"].split(), [])
                for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                    self.assertEqual(int(s[c], 16), 0, c)
                self.assertEqual((s["NoNewPrivs"], s["Seccomp"], s["Threads"]), ("1", "2", "1"))
                for ns in ("mnt", "ipc", "pid", "uts"):
                    self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/{ns}"), os.readlink(f"/proc/self/ns/{ns}"), ns)
                with open(f"/proc/{pid}/environ", "rb") as f:
                    self.assertEqual(f.read().strip(b"\0"), b"")
                self.assertEqual(sorted(os.listdir(f"/proc/{pid}/root")), ["netgtw"])
                with open(f"/proc/{pid}/cgroup") as f:
                    self.assertTrue(any(line.strip().endswith("/gateway") for line in f))
                # No memory that two of them can write.
                with open(f"/proc/{pid}/maps") as f:
                    self.assertEqual([line for line in f if line.split()[1][1] == "w" and line.split()[1][3] == "s"], [])
        self.assertEqual(len(uids), 1)
        others = {int(self.status(record[f"{w}_pid"])["Uid"].split()[0]) for w in ("vmm", "bridge", "init")}
        self.assertFalse(uids & others, "a uid of its own")

    def test_networks(self):
        pids = self.pids()
        spaces = {role: os.readlink(f"/proc/{pid}/ns/net") for role, pid in pids.items()}
        with NET.inside():
            self.assertEqual(spaces["outside"], os.readlink("/proc/thread-self/ns/net"))
        self.assertEqual(len(set(spaces.values())), 3)
        with open(f"/proc/{pids['main']}/net/dev") as f:
            self.assertEqual([line.split(":")[0].strip() for line in f.readlines()[2:]], ["lo"])
        with open(f"/proc/{pids['main']}/net/fib_trie") as f:
            self.assertEqual(f.read().count("/32"), 0, "main's own network has no address")
        with open(f"/proc/{pids['inside']}/net/dev") as f:
            self.assertEqual(sorted(line.split(":")[0].strip() for line in f.readlines()[2:]), ["lo", "tap0"])

    def test_descriptors(self):
        for role, pid in self.pids().items():
            with self.subTest(role):
                kinds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
                self.assertEqual([k for k in kinds if not k.startswith(("socket:", "anon_inode:", "pipe:", "/dev/null"))], [])


class Main(ByHand):
    """It reads what the guest and the internet send: the likely victim."""

    def test_what_none_may(self):
        self.table("main", NEVER)

    def test_sockets(self):
        NET.net.clear()
        NET.net.capture()
        self.table("main", MAIN)
        came = [p for p in NET.net.packets() if p.get("dst") == "10.1.2.3" or (p["proto"] == packets.UDP and p.get("dst") == internet.WEB4)]
        self.assertEqual(came, [])

    def test_what_outside_dials_for_it(self):
        """It may ask: for what the guest itself may reach. Not for the floor, in no disguise, no nameserver that there is not, nothing malformed."""
        def asked(i, kind, address="0.0.0.0", port=80, index=0, fd=OUTSIDE_FD, magic=OUT_MAGIC, cut=0):
            """(answer, whether a socket came with it), or the end."""
            q = struct.pack("<4I", magic, kind, 4242, index) + addr(address, port)
            q = q[:len(q) - cut]
            r = i.call("sendto", fd, Pointer(q), len(q), 0, 0, 0)
            if not isinstance(r, int):
                return r, False
            # struct msghdr, iovec, the answer, the control bytes
            at = lambda n: i.at(n)
            msg = struct.pack("<QIxxxxQQQQixxxx", 0, 0, at(64), 1, at(128), 64, 0).ljust(64, b"\0") + struct.pack("<QQ", at(96), 32).ljust(32, b"\0") + b"\0" * 32 + b"\0" * 64
            end = time.monotonic() + 30
            while (n := i.call("recvmsg", fd, Pointer(msg), socket.MSG_DONTWAIT)) == "EAGAIN" and time.monotonic() < end:
                time.sleep(0.01)
            if not isinstance(n, int) or n == 0:
                return "end" if n == 0 else n, False
            _, answer, _, _ = struct.unpack("<3Ii", i.data[96:112])
            room, = struct.unpack("<Q", i.data[40:48])
            if room >= 20:
                i.call("close", struct.unpack("<i", i.data[128 + 16:128 + 20])[0])
            return ANSWERS[answer], room >= 20

        NET.net.clear()
        NET.host.clear()
        NET.net.capture()
        i = self.enter("main")
        try:
            self.assertEqual(asked(i, 0, internet.WEB4), ("ok", True), "the control: a public address is dialled")
            self.assertEqual(asked(i, 0, internet.WEB6), ("ok", True))
            for a in ("10.1.2.3", "127.0.0.1", "169.254.169.254", "192.168.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", internet.NODE4, internet.LAN4, internet.NODE6, internet.LAN6, "::1", "::",
                      "fd00::1", "fe80::1", "::ffff:10.1.2.3", "::ffff:127.0.0.1", "64:ff9b::10.1.2.3", "2002:a01:203::1", "::127.0.0.1"):
                for port in (80, internet.DATABASE, NODE.port):
                    answer, came = asked(i, 0, a, port)
                    self.note("main, through outside", f"{a}:{port}", answer, not came)
                    self.assertEqual((answer in ("floor", "no-route", "failed"), came), (True, False), f"{a}:{port}: {answer}")
            for index in (2, 3, 255, 2**31, 2**32 - 1):
                answer, came = asked(i, 1, internet.OTHER_DNS4, 53, index, RESOLVER_FD)
                self.assertEqual((answer, came), ("index", False), index)
            # A socket to a nameserver leads there and nowhere else, whatever address is said beside it.
            self.assertEqual(asked(i, 1, internet.OTHER_DNS4, 53, 0, RESOLVER_FD), ("ok", True))
        finally:
            i.close()
        for name, bad in {"another magic": {"magic": 1}, "a kind that there is not": {"kind": 99}, "too short": {"cut": 4}, "a family that there is not": {"address": None}}.items():
            with self.subTest(name):
                i = self.enter("main")
                try:
                    result = asked(i, **{"kind": 0, "address": internet.WEB4, **bad})
                    self.assertFalse(result[1], result)
                except Killed:
                    pass
                finally:
                    i.close()
        time.sleep(0.3)
        self.assertEqual(NET.host.seen(), [])
        self.assertEqual([p for p in NET.net.packets() if p["proto"] in (6, 17) and p.get("dst") not in (internet.WEB4, internet.WEB6, internet.DNS4, internet.DNS6)], [])


class Flows(TakenOver):
    def test_a_flows_socket_cannot_be_turned(self):
        """The socket of a living flow, connected to a public address: not to another address, nor to none."""
        def flow(i):
            # The newest sockets are those of the flow that waits in the guest.
            return [s for s in i.sockets if s > 9][-1]

        for name, fn in {"connect(AF_UNSPEC)": lambda i: i.call("connect", flow(i), Pointer(b"\0" * 16), 16),
                         "sendto(another)": lambda i: i.call("sendto", flow(i), Pointer(b"x" * 16 + inet("10.1.2.3", 80)), 1, 0, i.at(16), 16)}.items():
            with self.subTest(name):
                NET.net.capture()
                self.enter("main").close()
                holder = hold(self.box)
                try:
                    i = self.puppet("main")
                    try:
                        with self.assertRaises(Killed):
                            self.fail(f"{name}: {fn(i)}")
                    finally:
                        i.close()
                finally:
                    holder.kill()
                    holder.wait()
                    holder.stdout.close()
                self.assertEqual([p for p in NET.net.packets() if p.get("dst") == "10.1.2.3"], [])



class Inside(ByHand):
    """In the sandbox's network, where every packet leads to the guest."""

    def test_what_none_may(self):
        self.table("inside", {k: v for k, v in NEVER.items()})

    def test_where_its_sockets_lead(self):
        """It may make sockets; they reach nothing but the guest."""
        NET.net.clear()
        NET.net.capture()
        i = self.enter("inside")
        try:
            for address in (internet.WEB4, internet.NODE4, "10.1.2.3", "127.0.0.1", "10.0.2.2", internet.WEB6, internet.LAN4):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    try:
                        fd = i.call("socket", 10 if ":" in address else 2, kind | socket.SOCK_NONBLOCK, 0)
                        if isinstance(fd, int):
                            sa = inet(address, internet.DATABASE if address == internet.NODE4 else 80)
                            self.note("inside", f"connect({address}, {kind})", i.call("connect", fd, Pointer(sa), 28 if ":" in address else 16), True)
                            i.call("sendto", fd, Pointer(b"contraband"), 10, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, 0, 0)
                            i.call("close", fd)
                    except Killed:
                        i = self.enter("inside")
        finally:
            i.close()
        time.sleep(1)
        self.assertEqual([s for s in NET.net.seen() if s.get("data") or s["kind"] not in ("dns", "tcp")], [])
        self.assertEqual([p for p in NET.net.packets() if b"contraband".hex() in p["head"] or p.get("dst") in ("10.1.2.3", internet.LAN4)], [])
        self.assertEqual(NET.host.seen(), [])


class Outside(ByHand):
    """It reads structures of fixed size from main, and nothing else: it is where the floor is checked for the last time."""

    def test_what_none_may(self):
        self.table("outside", NEVER)

    def test_no_unix_sockets(self):
        """It is in the node's network, not in its file system: no daemon's socket, abstract names included."""
        i = self.enter("outside")
        try:
            for path in (f"{NODE.run}/nm/nm.sock", f"{NODE.run}/sbx-manager/sbx.sock", f"{NODE.run}/node-api/node.sock", "/run/dbus/system_bus_socket", "\0space"):
                try:
                    r = i.connect_unix(path)
                except Killed:
                    r = "killed"
                    i = self.enter("outside")
                self.note("outside", f"connect {path!r}", r, r in DENIED + ("ENOENT", "ECONNREFUSED"))
                self.assertIn(r, DENIED + ("ENOENT", "ECONNREFUSED"), path)
        finally:
            i.close()


def hold(box):
    """A connection of the guest to an echo server that stays open."""
    with NET.inside():
        p = subprocess.Popen([node.SPACE, "exec", box, "--", "python3", "-c", "import socket,time\ns=socket.create_connection(('%s',7));s.sendall(b'x');s.recv(1);print('open',flush=True);time.sleep(60)" % internet.WEB4],
                             env=NODE.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "open\n"
    return p


class BeforeTheInit(unittest.TestCase):
    """Egress waits for /init: frames on the sandbox's device before it lead nowhere (S-12)."""

    def test_frames_before_the_init(self):
        # The VMM is made to send them, as a guest's kernel would that does what it likes while it is being restored.
        NET.net.clear()
        before = {s["id"] for s in NODE.api("GET", "/v1/sandboxes").json()}
        NODE.failpoints("sbx.exec.after-attach delay 6000")
        time.sleep(0.2)
        t = threading.Thread(target=lambda: NODE.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600}))
        t.start()
        try:
            box = node.wait_for("it is being made", lambda: next(iter({s["id"] for s in NODE.api("GET", "/v1/sandboxes").json()} - before), None))
            node.wait_for("its gateway is there", lambda: len(NODE.gateway_pids(box)) >= 3)
            self.send(NODE.record(box)["vmm_pid"], "unique-before.net.test")
            time.sleep(1)
            self.assertEqual(NODE.state_of(box), "creating")
            self.assertEqual([s for s in NET.net.seen() if s["kind"].startswith("dns")], [])
        finally:
            NODE.failpoints()
            t.join()
        try:
            node.wait_for("it runs", lambda: NODE.state_of(box) == "running")
            self.send(NODE.record(box)["vmm_pid"], "unique-after.net.test")
            node.wait_for("the same frame afterwards", lambda: [s for s in NET.net.seen() if s.get("name") == "unique-after.net.test"])
            self.assertEqual([s for s in NET.net.seen() if s.get("name") == "unique-before.net.test"], [])
        finally:
            NODE.kill(box)

    @staticmethod
    def send(pid, name):
        dns = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0\0\1\0\1"
        frame = packets.ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", packets.ip("10.0.2.15", "10.0.2.2", packets.UDP, packets.udp("10.0.2.15", "10.0.2.2", 53, dns)))
        i = Puppet(pid)
        try:
            taps = [int(fd) for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}").endswith("/dev/net/tun")]
            assert taps, "the VMM has no TAP"
            for header in (b"", b"\0" * 10, b"\0" * 12):
                r = i.call("write", taps[0], Pointer(header + frame), len(header + frame))
                assert isinstance(r, int), r
        finally:
            i.close()


if __name__ == "__main__":
    unittest.main()
