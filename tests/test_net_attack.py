"""Ways around the network gateway, each a test (S-3, S-4, L-7): a guest's root with sockets of every kind, with frames of its own making.

Everything that the tests' internet gets is looked at, servers and a capture of its link; every address there answers, private ones included.
So that nothing is proved by a tool that does not work, each test has a control: the same try in an allowed form, or from the node's machine.
"""

import ipaddress
import json
import subprocess
import time
import unittest

from harness import internet, memory, node, packets
from harness.internet import DNS4, DNS6, LAN4, LAN6, NODE4, NODE4_MORE, NODE6, OTHER_DNS4, OTHER_DNS6, WEB4, WEB6

GET = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
GUEST4, GUEST6, GATE4, GATE6 = "10.0.2.15", "fd53:5041:4345::15", "10.0.2.2", "fd53:5041:4345::2"      # docs/network.md
MARK = b"space-test-contraband"

# The floor (docs/network.md): the ends of each range, and one address within.
FLOOR4 = ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
          "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")
FLOOR6 = ("::/128", "::1/128", "fe80::/10", "fec0::/10", "fc00::/7", "ff00::/8", "2001:db8::/32", "100::/64", "2001:10::/28", "2001:20::/28", "3fff::/20", "5f00::/16",
          "4000::/3", "8000::/1", "400::/6", "1000::/4")
# Special: what the metadata services of clouds have.
FLOOR_MORE = ("169.254.169.254", "168.63.129.16", "fd00:ec2::254", "100.100.100.200", "255.255.255.255", "127.0.0.53")
# v4 within v6: {0} and {1} are the halves of a v4 address.
WRAPPED = ("::ffff:{0}:{1}", "::{0}:{1}", "64:ff9b::{0}:{1}", "64:ff9b:1::{0}:{1}", "2002:{0}:{1}::1", "2001:0:{0}:{1}::1", "2a10:9999:20::5efe:{0}:{1}", "2a10:9999:20::200:5efe:{0}:{1}",
           "::ffff:0:{0}:{1}")
SPELLINGS = ("0", "0.0.0.0", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "10.66.3", "0xa010203", "012.1.2.3", "167838211", "0x0a.0x01.0x02.0x03", "00000012.1.515",
             "0xa9.0xfe.43518", "0251.0376.0251.0376", "2852039166", "::", "::1", "::ffff:10.1.2.3", "0:0:0:0:0:ffff:0a01:0203", "::ffff:127.0.0.1", "::127.0.0.1", "fd00::1",
             "FE80::1", "64:ff9b::10.1.2.3", "::ffff:169.254.169.254")


def ends(cidr):
    """First, some and last address of a range."""
    n = ipaddress.ip_network(cidr)
    return sorted({str(n[0]), str(n[n.num_addresses // 2]), str(n[-1])})


def wrap(form, v4):
    digits = ipaddress.IPv4Address(v4).packed.hex()
    return str(ipaddress.IPv6Address(form.format(digits[:4], digits[4:])))


def never_leaves(address):
    """What the guest's own kernel keeps, or takes no answer from: that one may be found out by waiting."""
    a = ipaddress.ip_address(address)
    if a.version == 4:
        return a in ipaddress.ip_network("0.0.0.0/8")
    return a.is_link_local or a.is_multicast or a.is_site_local or a.ipv4_mapped is not None or int(a) >> 32 == 0


def setUpModule():
    global NET, NODE, BOX, LINK
    NET, NODE = internet.shared()
    BOX = NODE.ready()
    LINK = NODE.ask(BOX, [{"op": "sh", "script": f"ping -c1 -W1 {GATE4}; ping -6 -c1 -W1 {GATE6}"}, {"op": "link"}])[1]
    LINK["gate"] = next((n["lladdr"] for n in LINK["neighbours"] if n.get("dst") in (GATE4, GATE6) and "lladdr" in n), "02:00:00:00:00:01")


def tearDownModule():
    NODE.kill(BOX)


class Base(unittest.TestCase):
    def setUp(self):
        NET.net.clear()
        NET.host.clear()
        NET.net.capture()

    def ask(self, *orders, box=None, timeout=200):
        return NODE.ask(box or BOX, list(orders), timeout)

    def allowed(self, box=None):
        """The way out works: a refusal proves something."""
        r, = self.ask({"op": "tcp", "to": WEB4, "port": 80, "send": GET}, box=box)
        self.assertIn(f"hello from {WEB4}", r.get("data", ""), r)

    def arrived(self, wanted=lambda p: True):
        """What the internet's link got beside TCP and DNS that the gateway may send, from the node's own addresses."""
        return [p for p in NET.net.packets() if wanted(p) and not self.usual(p)]

    @staticmethod
    def usual(p):
        ours = p.get("src") in (NODE4, NODE6)
        if p["ethertype"] == 0x0806 or (p["proto"] == packets.ICMP6 and p["head"][108:110] in ("85", "86", "87", "88", "8f")) or (p["proto"] == 0):
            return True                                       # neighbours and listeners of the link itself
        if ours and p["proto"] == packets.UDP:
            return p["dst"] in (DNS4, DNS6) and p["dport"] == 53
        return ours and p["proto"] == packets.TCP and ipaddress.ip_address(p["dst"]).is_global

    def nothing_arrived(self, what=""):
        """No server was reached and nothing unusual came; the database of the node's machine was not reached either."""
        time.sleep(0.3)                                       # what is on its way arrives
        self.assertEqual([s for s in NET.net.seen() if s["kind"] != "dns" and s["to"] not in (WEB4, WEB6, DNS4, DNS6)], [], what)
        self.assertEqual(NET.host.seen(), [], what)
        self.assertEqual(self.arrived(), [], what)

    def none_reached(self, targets, results):
        bad = [(t, r) for t, r in zip(targets, results) if "data" in r and r["data"]]
        self.assertEqual(bad, [])
        late = [(t, r) for t, r in zip(targets, results) if r.get("error") == "ETIMEDOUT" and not never_leaves(t[0])]
        self.assertEqual(late, [], "refused, but not at once")

    def from_the_nodes_machine(self, script):
        """A control: the tools see it when it happens."""
        with NET.inside():
            return subprocess.run(["python3", "-c", "import socket,struct,sys\n" + script], stdout=subprocess.PIPE, text=True, timeout=30, check=True).stdout

    def frames(self, *raw, box=None, wait=1.0, link=None):
        """Packets by hand, to the gateway's hardware address: what came back, as packets.read() gives it."""
        link = link or LINK
        r, = self.ask({"op": "frames", "device": link["device"], "wait": wait, "send": [packets.ethernet(link["mac"], link["gate"], p).hex() for p in raw]}, box=box)
        self.assertEqual(r.get("sent"), len(raw), r)
        return [packets.read(f) for f in r["got"]]

    def answered_by_hand(self):
        """The control of what is made by hand: a right packet, a question, is taken and answered."""
        dns = bytes.fromhex("0007010000010000000000000377777703") + b"net\4test\0\0\1\0\1"
        ask = lambda: self.frames(packets.ip(GUEST4, GATE4, packets.UDP, packets.udp(GUEST4, GATE4, 53, dns, sport=4053)), wait=1.5)
        node.wait_for("a right packet is answered", lambda: [g for g in ask() if g[1] == packets.UDP and g[4] == 53 and g[5] == 4053])


class Addresses(Base):
    def test_every_range_of_the_floor(self):
        """By address, IPv4 and IPv6, first, some and last of each range; on several ports."""
        targets = [[a, 80] for cidr in FLOOR4 + FLOOR6 for a in ends(cidr)] + [[a, 80] for a in FLOOR_MORE]
        targets += [["10.1.2.3", 443], ["10.1.2.3", 22], ["192.168.1.1", 5432], ["169.254.169.254", 7]]
        r, = self.ask({"op": "reach", "targets": targets, "timeout": 8})
        self.none_reached(targets, r["results"])
        self.nothing_arrived()
        # The control: from the node's machine most of them answer.
        self.assertIn("hello from 10.1.2.3", self.from_the_nodes_machine(
            f"s=socket.create_connection(('10.1.2.3',80),3);s.sendall({GET.encode()!r});print(s.recv(1000).decode())"))
        self.allowed()

    def test_v4_within_v6(self):
        targets = [[wrap(form, v4), 80] for form in WRAPPED for v4 in ("10.1.2.3", "127.0.0.1", "169.254.169.254", NODE4, LAN4)]
        r, = self.ask({"op": "reach", "targets": targets, "timeout": 8})
        self.none_reached(targets, r["results"])
        self.nothing_arrived()
        # Not the addresses' form is forbidden, but where it leads.
        public, = self.ask({"op": "tcp", "to": WEB6, "port": 80, "send": GET})
        self.assertIn(f"hello from {WEB6}", public.get("data", ""))

    def test_every_spelling(self):
        """Decimal, octal, hexadecimal, short: libc makes an address of them, and the address is what counts."""
        results = self.ask(*({"op": "tcp", "to": s, "port": 80, "send": GET, "timeout": 4} for s in SPELLINGS), timeout=150)
        self.assertEqual([(s, r) for s, r in zip(SPELLINGS, results) if r.get("data")], [])
        # And asked of a resolver they are names that nobody has, never addresses.
        names = [s for s in SPELLINGS if ":" not in s]
        results = self.ask(*({"op": "dns", "name": s, "type": t, "timeout": 6} for s in names for t in ("A", "AAAA")), timeout=150)
        self.assertEqual([r for r in results if r.get("answers")], [])
        self.nothing_arrived()
        control, = self.ask({"op": "tcp", "to": "0x09.9.0x1450", "port": 80, "send": GET})
        self.assertIn(f"hello from {WEB4}", control.get("data", ""), "the public address in hexadecimal")

    def test_the_nodes_own_addresses(self):
        """Its public ones, its private network's, its loopback: daemons, API, database, gateway."""
        api = NODE.port
        targets = [[a, p] for a in (NODE4, *NODE4_MORE, NODE6, LAN4, LAN6, "127.0.0.1", "10.0.2.2", "fd53:5041:4345::2") for p in (api, internet.DATABASE, 22, 15001, 49982, 49983, 111)]
        r, = self.ask({"op": "reach", "targets": targets, "timeout": 8})
        self.none_reached(targets, r["results"])
        self.nothing_arrived()
        # The control: they are there for who is on the node's machine.
        for a in (NODE4, *NODE4_MORE, LAN4, "127.0.0.1"):
            self.assertIn("should not", self.from_the_nodes_machine(f"print(socket.create_connection(('{a}',{internet.DATABASE}),3).recv(100).decode())"))
        NET.host.clear()
        self.allowed()


class Names(Base):
    def dial_each(self, names):
        """Each name looked up as programs do, each address that comes of it dialled: what was reached."""
        reached = []
        for name, found in zip(names, self.ask(*({"op": "look_up", "name": n} for n in names))):
            for a in found.get("addresses", []):
                r, = self.ask({"op": "tcp", "to": a, "port": 80, "send": GET})
                if r.get("data"):
                    reached.append((name, a))
        return reached

    def in_answers(self, names, types=("A", "AAAA"), over="udp"):
        results = self.ask(*({"op": "dns", "name": n, "type": t, "over": over} for n in names for t in types), timeout=120)
        self.assertEqual([r for r in results if "error" in r], [], "every question has an answer")
        return [a[2] for r in results for a in r["answers"] if a[1] in (1, 28)]

    def test_names_that_resolve_to_the_floor(self):
        four = [f"a-{a.replace('.', '-')}.net.test" for cidr in FLOOR4 for a in ends(cidr)[:2]] + [f"a-{NODE4.replace('.', '-')}.net.test", f"a-{LAN4.replace('.', '-')}.net.test"]
        six = ["x-%032x.net.test" % int(ipaddress.IPv6Address(a)) for a in
               [e for cidr in FLOOR6 for e in ends(cidr)[:2]] + [wrap(form, "10.1.2.3") for form in WRAPPED] + [NODE6, LAN6]]
        for over in ("udp", "tcp"):
            self.assertEqual(self.in_answers(four, ("A",), over), [], over)
            self.assertEqual(self.in_answers(six, ("AAAA",), over), [], over)
        self.assertTrue([r for r in NODE.flows(BOX)["records"] if r["direction"] == "dns"])
        # The control: such names exist, and the public ones among them are answered.
        self.assertEqual(self.in_answers([f"a-{WEB4.replace('.', '-')}.net.test"], ("A",)), [WEB4])
        self.assertEqual(self.in_answers(["x-%032x.net.test" % int(ipaddress.IPv6Address(WEB6))], ("AAAA",)), [WEB6])

    def test_private_and_public_in_one_answer(self):
        self.assertEqual(sorted(self.in_answers(["mixed.net.test"])), sorted([WEB4, WEB6]))
        self.assertEqual(self.dial_each(["mixed.net.test", "private.net.test"]), [("mixed.net.test", a) for a in sorted([WEB4, WEB6])])
        self.nothing_arrived()

    def test_chains_of_names(self):
        self.assertEqual(self.in_answers(["chain.net.test", "chain2.net.test"]), [])
        self.assertEqual(self.dial_each(["chain.net.test", "alias.net.test"]), [("alias.net.test", a) for a in sorted([WEB4, WEB6])])
        loop, = self.ask({"op": "look_up", "name": "loop.net.test"})
        self.assertIn("error", loop)
        self.nothing_arrived()

    def test_a_name_that_changes_between_check_and_dial(self):
        """Public and private in turns, without a time to live: whatever is dialled, nothing private is reached."""
        script = ("import socket\nhit=set()\n"
                  "for i in range(12):\n"
                  " for f in (2,10):\n"
                  "  try: s=socket.create_connection(socket.getaddrinfo('flip%d.net.test'%(i%3),80,f,1)[0][4][:2],3)\n"
                  "  except OSError: continue\n"
                  "  try:\n"
                  f"   s.sendall({GET.encode()!r}); d=s.recv(1000)\n"
                  "   hit.add(d.split()[-1].decode() if d else '-')\n"
                  "  except OSError: hit.add('-')\n"
                  "print(sorted(hit))")
        out = NODE.root(BOX, "python3", "-c", script, timeout=100).stdout
        self.assertIn(WEB4, out)
        self.assertTrue([s for s in NET.net.seen() if s["kind"] == "dns" and s["name"].startswith("flip")], "asked anew")
        self.nothing_arrived()
        # Guest and gateway do not agree on what was asked: a name said to a server is none of the gateway's business here, the address is.
        r, = self.ask({"op": "tcp", "to": "10.1.2.3", "port": 80, "send": "GET /hello HTTP/1.1\r\nHost: www.net.test\r\n\r\n"})
        self.assertNotIn("data", r)


class Dns(Base):
    def test_another_server(self):
        """Whomever the guest asks, the node's nameservers are asked; the other one gets no packet. Over UDP, over TCP, in both families."""
        orders = [{"op": "dns", "name": f"unique{i}.net.test", "server": s, "over": over, "timeout": 5}
                  for i, (s, over) in enumerate((s, over) for s in (OTHER_DNS4, OTHER_DNS6, "8.8.8.8", "10.1.2.3", NODE4) for over in ("udp", "tcp"))]
        results = self.ask(*orders)
        self.assertEqual([s for s in NET.net.seen() if s["to"] not in (DNS4, DNS6)], [])
        self.assertEqual([p for p in NET.net.packets() if p.get("dst") in (OTHER_DNS4, OTHER_DNS6, "8.8.8.8", "10.1.2.3")], [])
        for order, r in zip(orders, results):
            self.assertTrue(r.get("error") or [a[2] for a in r["answers"]] == [WEB4], (order, r))
        right, = self.ask({"op": "dns", "name": "unique99.net.test"})
        self.assertEqual([a[2] for a in right.get("answers", [])], [WEB4], right)

    def test_the_nameservers_themselves(self):
        """No raw way to them: neither their port 53 nor another one carries bytes that are no question."""
        tcp, other = self.ask({"op": "tcp", "to": DNS4, "port": 53, "send": "\x00\x20" + MARK.decode() + " " * 11}, {"op": "udp", "to": DNS4, "port": 5353, "send": MARK.decode(), "wait": 1.5})
        self.assertFalse(tcp.get("data") and MARK.decode() in tcp["data"], tcp)
        self.assertNotIn("data", other)
        self.assertEqual([p for p in NET.net.packets() if MARK.hex()[:40] in p["head"]], [])

    def test_what_looks_like_dns_on_other_ports(self):
        """UDP to port 53 alone is taken, as questions; datagrams to other ports go nowhere."""
        results = self.ask(*({"op": "udp", "to": a, "port": p, "send": MARK.decode(), "wait": 1.0} for a in (OTHER_DNS4, WEB4) for p in (52, 54, 123, 443, 5353)))
        self.assertEqual([r for r in results if "data" in r], [])
        self.nothing_arrived()


class Protocols(Base):
    """What is neither TCP nor DNS: by sockets, then by hand."""

    def test_udp(self):
        results = self.ask(*({"op": "udp", "to": a, "port": 7, "send": MARK.decode(), "wait": 1.5} for a in (WEB4, WEB6, "10.1.2.3", NODE4, "255.255.255.255", "224.0.0.1")))
        self.assertEqual([r for r in results if "data" in r], [])
        self.frames(*(packets.ip(s, d, packets.UDP, packets.udp(s, d, port, MARK)) for s, d in ((GUEST4, WEB4), (GUEST6, WEB6)) for port in (7, 443, 33434)))
        self.nothing_arrived()
        self.from_the_nodes_machine(f"socket.socket(2,2).sendto(b'x',('{WEB4}',7))")
        node.wait_for("the control", lambda: [s for s in NET.net.seen() if s["kind"] == "udp"])

    def test_icmp(self):
        pings = self.ask(*({"op": "sh", "script": f"ping {six} -c 1 -W 1 {a}"} for six, a in (("", WEB4), ("-6", WEB6), ("", "10.1.2.3"), ("", NODE4))))
        self.assertTrue(all(p["code"] for p in pings), pings)
        self.frames(*(packets.ip(GUEST4, WEB4, packets.ICMP, packets.icmp(MARK, kind)) for kind in (8, 0, 3, 5, 11, 13)),
                    *(packets.ip(GUEST6, WEB6, packets.ICMP6, packets.icmp6(GUEST6, WEB6, b"\0\0\0\1" + MARK, kind)) for kind in (128, 129, 1, 2, 137)))
        self.nothing_arrived()
        self.answered_by_hand()

    def test_sctp_and_every_other_protocol(self):
        by_socket = self.ask({"op": "raw_socket", "family": 2, "kind": 1, "protocol": 132}, {"op": "raw_socket", "family": 2, "kind": 3, "protocol": 255})
        self.assertNotIn("error", by_socket[1], "the guest's root has raw sockets: the tries below mean something")
        v4 = [packets.ip(GUEST4, d, proto, packets.sctp(80) if proto == packets.SCTP else MARK) for d in (WEB4, "10.1.2.3") for proto in range(256) if proto not in (packets.TCP, packets.UDP)]
        v6 = [packets.ip(GUEST6, WEB6, proto, packets.sctp(80) if proto == packets.SCTP else MARK) for proto in range(256) if proto not in (packets.TCP, packets.UDP, 0, 43, 44, 60)]
        self.frames(*v4, *v6)
        self.nothing_arrived()
        self.answered_by_hand()
        self.from_the_nodes_machine(f"socket.socket(2,3,132).sendto(b'x'*20,('{WEB4}',0))")

    def test_raw_tcp_of_its_own_making(self):
        """Segments that no kernel sends: they end in the gateway's kernel, which never forwards any."""
        flags = (0x00, 0x01, 0x02, 0x03, 0x04, 0x10, 0x12, 0x18, 0x29, 0x3f, 0xff)
        self.frames(*(packets.ip(s, d, packets.TCP, packets.tcp(s, d, 80, f, payload=MARK)) for s, d in ((GUEST4, WEB4), (GUEST4, "10.1.2.3"), (GUEST6, WEB6)) for f in flags),
                    *(packets.ip(GUEST4, WEB4, packets.TCP, packets.tcp(GUEST4, WEB4, 80, 2), ttl=t) for t in (0, 1, 255)))
        marked = [p for p in NET.net.packets() if MARK.hex() in p["head"]]
        self.assertEqual(marked, [])
        self.allowed()

    def test_other_ethertypes(self):
        """VLAN tags, IPv4 in the wrong frame, PPPoE, MPLS, LLDP, jumbo noise."""
        inner = packets.ip(GUEST4, WEB4, packets.UDP, packets.udp(GUEST4, WEB4, 7, MARK))
        raw = [packets.ethernet(LINK["mac"], LINK["gate"], b"\0\x05\x08\0" + inner, 0x8100), packets.ethernet(LINK["mac"], LINK["gate"], b"\0\x05\x81\0\0\x06\x08\0" + inner, 0x88a8),
               packets.ethernet(LINK["mac"], LINK["gate"], inner, 0x86dd), packets.ethernet(LINK["mac"], LINK["gate"], b"\x11\0\0\0\0\x40\0\x21" + inner, 0x8864),
               packets.ethernet(LINK["mac"], LINK["gate"], b"\0\x01\x01\xff" + inner, 0x8847), packets.ethernet(LINK["mac"], LINK["gate"], MARK, 0x88cc), packets.ethernet(LINK["mac"], LINK["gate"], MARK * 60, 0x1234)]
        r, = self.ask({"op": "frames", "device": LINK["device"], "send": [f.hex() for f in raw], "wait": 0.5})
        self.assertEqual(r["sent"], len(raw))
        self.nothing_arrived()
        self.answered_by_hand()


class Headers:
    """Packets by hand through a whole VM: long/test_net_packets.py. In short node-manager/test_net.c plays the guest on the TAP."""

    def both(self, tries):
        """Each try is a packet whose plain form would be taken: a SYN to a server, a question. Nothing of it is answered, nothing arrives."""
        results = self.ask(*({"op": "frames", "device": LINK["device"], "wait": 0.3, "send": [packets.ethernet(LINK["mac"], LINK["gate"], p).hex() for p in raw]} for raw in tries.values()))
        for (name, raw), r in zip(tries.items(), results):
            with self.subTest(name):
                self.assertEqual(r.get("sent"), len(raw), r)
                got = [packets.read(f) for f in r["got"]]
                self.assertEqual([g for g in got if (g[1] == packets.TCP and g[4] == 80) or (g[1] == packets.UDP and g[4] == 53)], [])
        self.nothing_arrived()
        self.answered_by_hand()

    def test_spoofed_sources(self):
        """Addresses that are not the guest's: the gateway's, the node's, another guest's, a public one's, none."""
        dns = bytes.fromhex("0007010000010000000000000377777703") + b"net\4test\0\0\1\0\1"
        sources4 = (GATE4, NODE4, LAN4, "127.0.0.1", "10.0.2.16", "8.8.8.8", "0.0.0.0", "255.255.255.255", "224.0.0.1")
        sources6 = (GATE6, NODE6, LAN6, "::1", "::", "fd53:5041:4345::16", "2a10:9999:20::99", "ff02::1")
        self.both({**{s: [packets.ip(s, WEB4, packets.TCP, packets.tcp(s, WEB4, 80)), packets.ip(s, GATE4, packets.UDP, packets.udp(s, GATE4, 53, dns))] for s in sources4},
                   **{s: [packets.ip(s, WEB6, packets.TCP, packets.tcp(s, WEB6, 80)), packets.ip(s, GATE6, packets.UDP, packets.udp(s, GATE6, 53, dns))] for s in sources6}})
        self.assertEqual([s for s in NET.net.seen() if s["kind"] == "tcp"], [])

    def test_an_address_of_its_own_choice(self):
        """The same with the guest's kernel: another address on its device, and connections from it."""
        more, = self.ask({"op": "sh", "script": f"ip addr add 10.0.2.77/24 dev {LINK['device']}; ip addr add 9.9.55.5/32 dev {LINK['device']}; ip -6 addr add fd53:5041:4345::77/64 dev {LINK['device']} nodad"})
        self.assertEqual(more["code"], 0, more)
        try:
            results = self.ask(*({"op": "tcp", "to": to, "port": 80, "send": GET, "source": src, "timeout": 2} for to, src in ((WEB4, "10.0.2.77"), (WEB4, "9.9.55.5"), (WEB6, "fd53:5041:4345::77"))),
                               {"op": "tcp", "to": WEB4, "port": 80, "send": GET, "source": GUEST4})
            self.assertEqual([r for r in results[:3] if r.get("data")], [])
            self.assertIn("hello", results[3].get("data", ""), "the control: from its own address")
        finally:
            self.ask({"op": "sh", "script": f"ip addr del 10.0.2.77/24 dev {LINK['device']}; ip addr del 9.9.55.5/32 dev {LINK['device']}; ip -6 addr del fd53:5041:4345::77/64 dev {LINK['device']}"})
        self.assertEqual([s["from"] for s in NET.net.seen() if s["kind"] == "tcp"], [NODE4])

    def test_fragments(self):
        tcp4, tcp6 = packets.tcp(GUEST4, WEB4, 80), packets.tcp(GUEST6, WEB6, 80)
        udp4, udp6 = packets.udp(GUEST4, WEB4, 7, MARK * 3), packets.udp(GUEST6, WEB6, 7, MARK * 3)
        self.both({
            "a SYN in two pieces": packets.fragments4(GUEST4, WEB4, packets.TCP, tcp4), "the same the other way round": packets.fragments4(GUEST4, WEB4, packets.TCP, tcp4)[::-1],
            "a SYN in two pieces, v6": packets.fragments6(GUEST6, WEB6, packets.TCP, tcp6), "a datagram": packets.fragments4(GUEST4, WEB4, packets.UDP, udp4, 16),
            "a datagram, v6": packets.fragments6(GUEST6, WEB6, packets.UDP, udp6, 16), "one piece that is all (atomic), v6": [packets.ip(GUEST6, WEB6, packets.TCP, tcp6, extension=[(packets.FRAGMENT, b"\0\0\0\0\0\0\1")])],
            "pieces that overlap": [packets.ip(GUEST4, WEB4, packets.TCP, tcp4[:16], fragment=0x2000), packets.ip(GUEST4, WEB4, packets.TCP, tcp4[8:], fragment=1)],
            "only a first piece": [packets.ip(GUEST4, WEB4, packets.TCP, tcp4, fragment=0x2000)]})

    def test_ip_options_and_source_routes(self):
        syn = packets.tcp(GUEST4, WEB4, 80)
        self.both({
            "loose source route": [packets.ip(GUEST4, WEB4, packets.TCP, syn, options=packets.source_route(False, ["10.1.2.3"]))],
            "strict source route": [packets.ip(GUEST4, WEB4, packets.TCP, syn, options=packets.source_route(True, ["10.1.2.3", NODE4]))],
            "loose source route through the gateway": [packets.ip(GUEST4, GATE4, packets.TCP, packets.tcp(GUEST4, WEB4, 80), options=packets.source_route(False, [WEB4]))],
            "record route": [packets.ip(GUEST4, WEB4, packets.TCP, syn, options=b"\7\7\4\0\0\0\0")], "timestamp": [packets.ip(GUEST4, WEB4, packets.TCP, syn, options=b"\x44\x08\5\0\0\0\0\0")],
            "router alert": [packets.ip(GUEST4, WEB4, packets.TCP, syn, options=b"\x94\4\0\0")]})

    def test_ipv6_extension_headers(self):
        syn = packets.tcp(GUEST6, WEB6, 80)
        one = lambda *chain: [packets.ip(GUEST6, WEB6, packets.TCP, syn, extension=list(chain))]
        nothing = b"\0\1\4\0\0\0\0"
        via = packets.routing_header(["fd00::1"])
        self.both({
            "hop by hop": one((packets.HOP, nothing)), "destination options": one((packets.DESTINATION, nothing)), "a type 0 routing header": one((packets.ROUTING, via)),
            "segment routing": one((packets.ROUTING, packets.routing_header(["fd00::1"], 4))), "home address": one((packets.DESTINATION, b"\2\1\2\0\0\xc9\x10" + packets.packed("fd00::1"))),
            "twenty of them": one(*[(packets.DESTINATION, nothing)] * 20), "all kinds": one((packets.HOP, nothing), (packets.DESTINATION, nothing), (packets.ROUTING, via), (packets.FRAGMENT, b"\0\0\0\0\0\0\1")),
            "IPv4 in it": [packets.ip(GUEST6, WEB6, 4, packets.ip(GUEST4, WEB4, packets.TCP, packets.tcp(GUEST4, WEB4, 80)))],
            "IPv6 in IPv4": [packets.ip(GUEST4, WEB4, 41, packets.ip(GUEST6, WEB6, packets.TCP, syn))]})

    def test_broken_packets(self):
        """Lengths and versions that are wrong: dropped, and the gateway's kernel lives on."""
        good4, good6 = packets.ip(GUEST4, WEB4, packets.TCP, packets.tcp(GUEST4, WEB4, 80)), packets.ip(GUEST6, WEB6, packets.TCP, packets.tcp(GUEST6, WEB6, 80))
        self.both({"cut short": [good4[:19], good4[:30], good6[:39], good6[:50]], "header length 4": [b"\x44" + good4[1:]], "version 5": [b"\x55" + good4[1:]],
                   "total length too big": [good4[:2] + b"\xff\xff" + good4[4:]], "total length 0": [good4[:2] + b"\0\0" + good4[4:]], "payload length 0 (jumbo)": [good6[:4] + b"\0\0" + good6[6:]]})


class Neighbours:
    """The link: its other end is the gateway, and nobody can be made to believe something else. As Headers."""

    def test_arp_and_neighbour_tricks(self):
        broadcast = "ff:ff:ff:ff:ff:ff"
        frame = lambda payload, kind, to=None: packets.ethernet(LINK["mac"], to or LINK["gate"], payload, kind).hex()
        lies = [frame(packets.arp(2, LINK["mac"], GATE4, LINK["gate"], GATE4), 0x0806), frame(packets.arp(1, LINK["mac"], GATE4, "00:00:00:00:00:00", GATE4), 0x0806, broadcast),
                frame(packets.arp(2, "02:66:66:66:66:66", GUEST4, LINK["gate"], GATE4), 0x0806), frame(packets.arp(2, LINK["mac"], NODE4, LINK["gate"], GATE4), 0x0806),
                frame(packets.arp(1, LINK["mac"], "10.0.2.99", "00:00:00:00:00:00", GATE4), 0x0806, broadcast)]
        advert = lambda target, mac_text, flags=0x60: packets.ip(GUEST6, GATE6, packets.ICMP6, packets.icmp6(
            GUEST6, GATE6, bytes([flags, 0, 0, 0]) + packets.packed(target) + b"\2\1" + packets.mac(mac_text), 136), ttl=255)
        router = packets.ip("fe80::1", "ff02::1", packets.ICMP6, packets.icmp6("fe80::1", "ff02::1", b"\x40\0\x07\x08" + b"\0" * 8 + b"\3\4\x40\xc0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0" + packets.packed("2a10:9999:66::"), 134), ttl=255)
        redirect = packets.ip(GATE6, GUEST6, packets.ICMP6, packets.icmp6(GATE6, GUEST6, b"\0\0\0\0" + packets.packed("fd00::1") + packets.packed(WEB6), 137), ttl=255)
        lies += [frame(advert(t, m), 0x86dd) for t, m in ((GATE6, LINK["mac"]), (GUEST6, "02:66:66:66:66:66"), (NODE6, LINK["mac"]))] + [frame(router, 0x86dd, "33:33:00:00:00:01"), frame(redirect, 0x86dd)]
        r, = self.ask({"op": "frames", "device": LINK["device"], "send": lies, "repeat": 5, "wait": 0.5})
        self.assertEqual(r["sent"], 5 * len(lies))
        # Its own connections go on as if nothing had been said.
        self.answered_by_hand()
        r4, r6 = self.ask({"op": "tcp", "to": WEB4, "port": 80, "send": GET}, {"op": "tcp", "to": WEB6, "port": 80, "send": GET})
        self.assertIn("hello", r4.get("data", ""), r4)
        self.assertIn("hello", r6.get("data", ""), r6)
        self.assertEqual([s["from"] for s in NET.net.seen() if s["kind"] == "tcp"], [NODE4, NODE6])

    def test_other_hardware_addresses(self):
        """Frames to all, to a stranger, from a stranger: with right packets in them they may be taken or not, but lead nowhere else."""
        inner = packets.ip(GUEST4, WEB4, packets.UDP, packets.udp(GUEST4, WEB4, 7, MARK))
        raw = [packets.ethernet(s, d, inner).hex() for s in (LINK["mac"], "02:66:66:66:66:66", LINK["gate"]) for d in ("ff:ff:ff:ff:ff:ff", "02:77:77:77:77:77", "01:00:5e:00:00:01", LINK["gate"])]
        self.ask({"op": "frames", "device": LINK["device"], "send": raw, "wait": 0.5})
        self.nothing_arrived()
        self.answered_by_hand()

    def test_a_flood(self):
        """Many packets of all kinds in a short time: the way out works afterwards, in bounded memory."""
        raw = [packets.ethernet(LINK["mac"], LINK["gate"], packets.ip(GUEST4, f"9.9.20.{i % 250 + 1}", packets.TCP, packets.tcp(GUEST4, f"9.9.20.{i % 250 + 1}", 80))).hex() for i in range(500)]
        r, = self.ask({"op": "frames", "device": LINK["device"], "send": raw, "repeat": 4, "wait": 0.1})
        self.assertEqual(r["sent"], 2000)
        for pid in NODE.gateway_pids(BOX):
            self.assertLess(memory.pss_kib(pid), 96 * 1024)
        node.wait_for("the way out works", lambda: "hello" in self.ask({"op": "tcp", "to": WEB4, "port": 80, "send": GET, "timeout": 3})[0].get("data", ""))


class Memory(Base):
    def test_connections_that_nobody_reads(self):
        """What waits in the kernel's sockets is memory of the machine: a sandbox has its share of it, and beyond that only slows itself."""
        box = NODE.ready()
        try:
            r, = self.ask({"op": "stuff", "to": WEB4, "port": 7, "n": 150, "quiet": 5}, box=box, timeout=150)
            self.assertGreater(r["sent"], 64 << 20, r)
            held = memory.tcp_of(NODE, box)
            if held is not None:
                self.assertGreater(held, 1 << 20, "it is counted only where there is a limit")
                self.assertLessEqual(held, 192 << 20)               # the kernel lets the least of each socket through
            self.allowed(box)
        finally:
            NODE.kill(box)
        self.allowed()


class TwoSandboxes(Base):
    """Of one node and one tenant: each has its own network, and the other one is not in it."""

    def test_they_cannot_reach_each_other(self):
        other = NODE.ready()
        try:
            server = ("import socket,threading\n"
                      "s=socket.socket(socket.AF_INET6);s.setsockopt(41,26,0);s.setsockopt(1,2,1);s.bind(('::',8080));s.listen()\n"
                      "def go():\n"
                      " while 1:\n"
                      "  c,a=s.accept();c.sendall(b'the other one');c.close()\n"
                      "go()")
            NODE.root(other, "sh", "-c", f"setsid -f python3 -c \"{server}\" </dev/null >/dev/null 2>&1")
            own = lambda: self.ask({"op": "tcp", "to": GUEST4, "port": 8080, "timeout": 2}, box=other)[0].get("data")
            node.wait_for("it listens", own)
            link = self.ask({"op": "link"}, box=other)[0]
            # Both have the same addresses, each in its own network. Nothing listens at ours.
            self.assertIn(GUEST4, link["addresses"])
            results = self.ask(*({"op": "tcp", "to": a, "port": 8080, "timeout": 3} for a in (GUEST4, GUEST6, GATE4, GATE6, "127.0.0.1", NODE4, NODE6, LAN4, LAN6, "10.0.2.16", "fd53:5041:4345::16")))
            self.assertEqual([r for r in results if r.get("data")], [])
            # By hand, to its hardware address, to everybody's, to neighbours that there may be.
            got = self.frames(*(packets.ip(GUEST4, d, packets.TCP, packets.tcp(GUEST4, d, 8080)) for d in ("10.0.2.15", "10.0.2.16", "10.0.2.1", "10.0.2.255")), link={**LINK, "gate": link["mac"]})
            self.assertEqual([g for g in got if g[1] == packets.TCP and g[4] == 8080], [])
            got = self.frames(*(packets.ip(GUEST4, d, packets.TCP, packets.tcp(GUEST4, d, 8080)) for d in ("10.0.2.15", "10.0.2.16", "10.0.2.255")), link={**LINK, "gate": "ff:ff:ff:ff:ff:ff"})
            self.assertEqual([g for g in got if g[1] == packets.TCP and g[4] == 8080], [])
            # What one of them broadcasts the other one does not hear.
            mark = packets.ethernet(LINK["mac"], "ff:ff:ff:ff:ff:ff", packets.ip(GUEST4, "255.255.255.255", packets.UDP, packets.udp(GUEST4, "255.255.255.255", 68, MARK))).hex()
            ear = subprocess.Popen([node.SPACE, "exec", "-i", "-u", "root", other, "--", "python3", "/root/net.py"], env=NODE.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: internet._setns(NET.node_ns))
            ear.stdin.write(json.dumps([{"op": "frames", "device": link["device"], "send": [], "wait": 5}]))
            ear.stdin.close()
            time.sleep(1.5)
            self.ask({"op": "frames", "device": LINK["device"], "send": [mark] * 20, "wait": 0.2})
            heard = json.loads(ear.stdout.read())[0]["got"]
            ear.wait(30)
            ear.stdout.close()
            self.assertEqual([h for h in heard if MARK.hex() in h], [])
            self.nothing_arrived()
            self.allowed()
            self.allowed(other)
        finally:
            NODE.kill(other)


if __name__ == "__main__":
    unittest.main()
