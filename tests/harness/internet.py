"""
An internet of the tests' own, and a node that has no other. Three network namespaces without a name, held by descriptors alone, so that
nothing of them outlives the tests:

    the machine's own      the tests' programs start here
    "the node's machine"   loopback, a private network (10.66.0.1/24, fd66::1/64), and one veth out: 9.9.10.2, 2a10:9999:10::2
    "the internet"         the veth's other end; every address there is (private ones included) answers, with the servers of servers.py

No route leads from there to this machine's own network. Because even 10.1.2.3 answers in this internet, a packet that the gateway should
have stopped is seen: by the servers (seen()), by a capture of all that arrives (capture()).
"""

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

from harness import node as harness

CLONE_NEWNET = 0x40000000
NODE4, NODE6 = "9.9.10.2", "2a10:9999:10::2"                 # the node's public addresses
NODE4_MORE = ("9.9.10.5", "9.9.20.7")                        # of the node as well: the second of its net, one by a local route
PEER4, PEER6 = "9.9.10.1", "2a10:9999:10::1"                 # the internet's side of its link
LAN4, LAN6 = "10.66.0.1", "fd66::1"                          # the node's address in its private network
WEB4, WEB6 = "9.9.20.80", "2a10:9999:20::80"                 # any server: every port of servers.py listens at every address
DNS4, DNS6, OTHER_DNS4, OTHER_DNS6 = "9.9.20.53", "2a10:9999:20::53", "9.9.20.54", "2a10:9999:20::54"
VOID4 = "9.9.99.9"                                           # nothing comes back from there
OPENED4, OPENED6 = "10.77.0.0/16", "fd77::/16"               # what the operator of NetNode has opened,
DENIED4, DENIED6 = "9.9.77.0/24", "2a10:9999:77::/48"        # and closed
HTTP, ECHO, CUT = 80, 7, 9                                   # the servers' ports
DATABASE = 5432                                              # listens on the node's machine
BLOCK = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))

libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd):
    if libc.setns(fd, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def within(fd):
    """This thread, and what it starts, in that namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _setns(fd)
        try:
            yield
        finally:
            _setns(before)
    finally:
        os.close(before)


def new_namespace():
    made = []

    def make():
        if libc.unshare(CLONE_NEWNET) == 0:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    t = threading.Thread(target=make)
    t.start()
    t.join()
    if not made:
        raise AssertionError("no network namespace can be made")
    return made[0]


def bytes_of(n):
    """The n bytes that /bytes?n= answers with, as pieces; no two of their blocks are the same."""
    block = servers_block()
    for i in range((n + BLOCK - 1) // BLOCK):
        piece = i.to_bytes(8, "big") + block
        yield piece[:min(BLOCK, n - i * BLOCK)]


def servers_block():
    from harness import servers
    return servers.BLOCK_TAIL


def sha256_of(n):
    h = hashlib.sha256()
    for piece in bytes_of(n):
        h.update(piece)
    return h.hexdigest()


class Servers:
    """servers.py in a namespace; it ends with this process, whatever happens."""

    def __init__(self, fd, config):
        ours, theirs = socket.socketpair()
        with within(fd):
            self.process = subprocess.Popen([sys.executable, f"{HERE}/servers.py", str(theirs.fileno()), json.dumps(config)],
                                            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        ours.settimeout(200)
        self.sock, self.file, self.lock = ours, ours.makefile("rw"), threading.Lock()
        self.ask("ready")

    def ask(self, what, **more):
        with self.lock:
            self.file.write(json.dumps({"do": what, **more}) + "\n")
            self.file.flush()
            line = self.file.readline()
        if not line:
            raise AssertionError(f"the servers have ended ({what}): exit code {self.process.wait(10)}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(answer["error"])
        return answer

    def seen(self):
        """What came since clear(): dicts with kind (tcp, udp, dns), to, port, from and, where known, name or data."""
        return self.ask("seen")

    def clear(self):
        self.ask("clear")

    def quiet(self, seconds):
        """Until nothing has come for that long: a gateway still asks for a while what nobody answered it."""
        n, since = len(self.seen()), time.monotonic()
        end = since + 120
        while time.monotonic() - since < seconds:
            if time.monotonic() > end:
                raise AssertionError(f"the servers do not become quiet: {self.seen()[-5:]}")
            time.sleep(0.1)
            if len(self.seen()) != n:
                n, since = len(self.seen()), time.monotonic()

    def capture(self):
        """All packets that arrive, from now on; a list of them at packets(). Each: proto, src, dst, sport, dport, length, head (hex)."""
        self.ask("capture", on=True)

    def packets(self, end=True):
        return self.ask("packets", end=end)

    def close(self):
        self.sock.close()
        self.file.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Internet:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="space-test-net-")
        os.chmod(self.dir, 0o755)
        self.open, self.fds = [], []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self):
        self.node_ns, self.net_ns = new_namespace(), new_namespace()
        self.fds = [self.node_ns, self.net_ns]
        self.ca = make_certificates(self.dir)
        make_mirror(f"{self.dir}/mirror")
        self._links()
        self.net = Servers(self.net_ns, {"role": "internet", "dir": self.dir, "device": "net0"})
        self.open.append(self.net)
        # What a node's machine has beside the node: a database, here one that notes who came.
        self.host = Servers(self.node_ns, {"role": "host", "dir": self.dir, "device": "up0", "ports": [DATABASE]})
        self.open.append(self.host)

    def _ip(self, fd, *lines):
        with within(fd):
            for line in lines:
                r = subprocess.run(["ip", *line.split()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if r.returncode:
                    raise AssertionError(f"ip {line}: {r.stdout}")

    def _links(self):
        mac_node, mac_net = "02:00:00:00:0a:02", "02:00:00:00:0a:01"
        self._ip(self.net_ns, "link set lo up",
                 f"link add net0 address {mac_net} type veth peer name up0 address {mac_node} netns /proc/{os.getpid()}/fd/{self.node_ns}")
        for fd, settings in ((self.node_ns, ("net.ipv6.conf.all.accept_ra=0", "net.ipv6.conf.up0.accept_dad=0")),
                             (self.net_ns, ("net.ipv6.conf.all.accept_ra=0", "net.ipv6.conf.net0.accept_dad=0", "net.ipv4.conf.all.rp_filter=0",
                                            "net.ipv4.conf.net0.rp_filter=0", "net.core.somaxconn=16384", "net.ipv4.tcp_max_syn_backlog=16384",
                                            "net.ipv4.conf.all.accept_source_route=1"))):
            with within(fd):
                subprocess.run(["sysctl", "-qw", *settings], check=True, stdout=subprocess.DEVNULL)
        self._ip(self.node_ns, "link set lo up", "link set up0 up", f"addr add {NODE4}/24 dev up0", f"addr add {NODE4_MORE[0]}/24 dev up0",
                 f"route add local {NODE4_MORE[1]} dev lo src {NODE4}", f"-6 addr add {NODE6}/64 dev up0 nodad",
                 f"neigh replace {PEER4} lladdr {mac_net} dev up0 nud permanent", f"neigh replace {PEER6} lladdr {mac_net} dev up0 nud permanent",
                 f"route add default via {PEER4}", f"-6 route add default via {PEER6}",
                 "link add lan0 type veth peer name lan1", "link set lan0 up", "link set lan1 up", f"addr add {LAN4}/24 dev lan0", f"-6 addr add {LAN6}/64 dev lan0 nodad")
        # All addresses are local over there, but for the node's own ones and those where nothing answers.
        self._ip(self.net_ns, "link set net0 up", f"addr add {PEER4}/24 dev net0", f"-6 addr add {PEER6}/64 dev net0 nodad",
                 f"-6 addr add {DNS6}/128 dev lo nodad", f"-6 addr add {OTHER_DNS6}/128 dev lo nodad",
                 f"neigh replace {NODE4} lladdr {mac_node} dev net0 nud permanent", f"neigh replace {NODE6} lladdr {mac_node} dev net0 nud permanent",
                 f"route add {NODE4}/32 dev net0 table local", f"-6 route add {NODE6}/128 dev net0 table local", "-6 route add fe80::/64 dev net0 table local",
                 "route add blackhole 9.9.99.0/24 table local", "-6 route add blackhole 2a10:9999:99::/48 table local",
                 "route add local default dev lo table local", "-6 route add local default dev lo table local")

    def inside(self):
        """with net.inside(): this thread is on the node's machine."""
        return within(self.node_ns)

    def outside(self):
        return within(self.net_ns)

    def close(self):
        for s in reversed(self.open):
            s.close()
        for fd in self.fds:
            os.close(fd)
        self.open, self.fds = [], []
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class NetNode(harness.Node):
    """A node on the internet's node machine: its programs, and the tests' calls of them, run there."""

    def __init__(self, internet, nameservers=(DNS4, DNS6), allow=(OPENED4, OPENED6), deny=(DENIED4, DENIED6), limits=(), **kw):
        super().__init__(**kw)
        self.internet = internet
        self.more = [w for option, values in (("--nameserver", nameservers), ("--net-allow", allow), ("--net-deny", deny), ("--net-limit", limits)) for a in values for w in (option, a)]

    def up(self, *more, **kw):
        with self.internet.inside():
            return super().up(*self.more, *more, **kw)

    def down(self, **kw):
        with self.internet.inside():
            return super().down(**kw)

    def space(self, *args, **kw):
        with self.internet.inside():
            return super().space(*args, **kw)

    def api(self, *args, **kw):
        with self.internet.inside():
            return super().api(*args, **kw)

    def put(self, sandbox, path, data):
        """A file in the guest, root's."""
        self.space("exec", "-i", "-u", "root", sandbox, "--", "sh", "-c", f"cat > '{path}'", input=data, text=False)

    def root(self, sandbox, *command, **kw):
        return self.space("exec", "-u", "root", sandbox, "--", *command, **kw)

    def ask(self, sandbox, orders, timeout=200):
        """Orders to tests/attack/net.py, run as the guest's root: the list of their results."""
        r = self.space("exec", "-i", "-u", "root", sandbox, "--", "python3", "/root/net.py", input=json.dumps(orders), timeout=timeout)
        return json.loads(r.stdout)

    def ready(self, *options):
        """A sandbox with tests/attack/net.py in it, that trusts the internet's certificates."""
        box = self.create(*options)
        with open(f"{harness.ROOT}/tests/attack/net.py", "rb") as f:
            self.put(box, "/root/net.py", f.read())
        with open(self.internet.ca, "rb") as f:
            self.put(box, "/root/ca.crt", f.read())
        self.root(box, "sh", "-c", "cat /root/ca.crt >> /etc/ssl/certs/ca-certificates.crt")     # update-ca-certificates takes a minute
        return box

    def flows(self, sandbox, after=0):
        """The flow log: its records behind number `after`."""
        r = self.api("GET", f"/v1/sandboxes/{sandbox}/net/log?after={after}")
        if r.status != 200:
            raise AssertionError(f"net/log: {r.status} {r.body}")
        return r.json()

    def gateway_pids(self, sandbox):
        """Processes of the sandbox's gateway, by their executable's name and argument."""
        found = []
        for p in os.listdir("/proc"):
            if p.isdigit():
                try:
                    with open(f"/proc/{p}/cmdline", "rb") as f:
                        words = f.read().split(b"\0")
                except OSError:
                    continue
                if os.path.basename(words[0]) == b"netgtw" and sandbox.encode() in words:
                    found.append(int(p))
        return sorted(found)


def make_certificates(folder):
    """A CA and one certificate for all servers; gives the CA's path."""
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=Test CA",
            "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=www.net.test", "-keyout", "server.key", "-out", "server.csr")
    with open(f"{folder}/san", "w") as f:
        f.write(f"subjectAltName=DNS:net.test,DNS:*.net.test,IP:{WEB4},IP:{WEB6}\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", "san", "-out", "server.crt")
    return f"{folder}/ca.crt"


def make_mirror(folder):
    """A package archive for apt (debian/) and one for pip (simple/), with one package each: both say `installed`."""
    deb = f"{folder}/debian"
    tree = f"{folder}/tree"
    os.makedirs(f"{tree}/DEBIAN")
    os.makedirs(f"{tree}/usr/bin")
    os.makedirs(deb)
    with open(f"{tree}/DEBIAN/control", "w") as f:
        f.write("Package: space-test\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@net.test>\nDescription: a test\n")
    with open(f"{tree}/usr/bin/space-test", "w") as f:
        f.write("#!/bin/sh\necho installed\n")
    os.chmod(f"{tree}/usr/bin/space-test", 0o755)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, f"{deb}/space-test_1.0_all.deb"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    with open(f"{deb}/space-test_1.0_all.deb", "rb") as f:
        data = f.read()
    entry = ("Package: space-test\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@net.test>\nDescription: a test\n"
             f"Filename: ./space-test_1.0_all.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n").encode()
    with open(f"{deb}/Packages", "wb") as f:
        f.write(entry)
    with open(f"{deb}/Release", "w") as f:
        f.write(f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {hashlib.sha256(entry).hexdigest()} {len(entry)} Packages\n")
    simple = f"{folder}/simple/space-test"
    os.makedirs(simple)
    wheel = io.BytesIO()
    info = "space_test-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("space_test.py", "print('installed')\n")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: space-test\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", f"space_test.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    name = "space_test-1.0-py3-none-any.whl"
    with open(f"{simple}/{name}", "wb") as f:
        f.write(wheel.getvalue())
    with open(f"{simple}/index.html", "w") as f:
        f.write(f'<!DOCTYPE html><a href="{name}#sha256={hashlib.sha256(wheel.getvalue()).hexdigest()}">{name}</a>\n')


_shared = None


def shared():
    """(internet, its node), one for all tests of a run that leave them as they found them. shared_end() is called by tests/run."""
    global _shared
    if _shared is None:
        net = Internet()
        try:
            n = NetNode(net)
            n.up()
        except BaseException:
            net.close()
            raise
        _shared = (net, n)
    return _shared


def shared_end():
    global _shared
    if _shared is not None:
        (net, n), _shared = _shared, None
        try:
            r = n.down(check=False)
            n.remove()
        finally:
            net.close()
        if r.returncode:
            raise AssertionError("space down failed:\n" + r.stdout.decode())
