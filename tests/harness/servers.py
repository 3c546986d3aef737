"""
The servers of the tests' internet (internet.py starts this in a namespace): DNS, HTTP, HTTPS, echo, and some that behave badly. Every port
listens at every address of both families; who came, where to, is kept. argv: a descriptor for orders (JSON lines), a JSON configuration.
"""

import asyncio
import collections
import hashlib
import ipaddress
import json
import os
import random
import resource
import socket
import ssl
import struct
import sys
import urllib.parse

BLOCK = 1 << 20
BLOCK_TAIL = random.Random(1).randbytes(BLOCK - 8)           # behind the number of the block (internet.bytes_of)
KEPT, PACKETS_MAX = 200_000, 50_000
ETH_P_ALL, PACKET_OUTGOING, SO_RCVBUFFORCE = 3, 4, 33
SO_ORIGIN_LINGER = struct.pack("ii", 1, 0)

seen = collections.deque(maxlen=KEPT)


def plain(address):
    return str(address[0]).split("%")[0], address[1]


def reset(writer):
    """Ends a connection with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, SO_ORIGIN_LINGER)
    writer.transport.abort()


# -- DNS (RFC 1035)

A, CNAME, TXT, AAAA, OPT = 1, 5, 16, 28, 41
WEB = {A: ["9.9.20.80"], AAAA: ["2a10:9999:20::80"]}
ZONE = {
    "www": WEB, "mirror": WEB, "net": WEB,
    "v4": {A: WEB[A]}, "v6": {AAAA: WEB[AAAA]},
    "void": {A: ["9.9.99.9"], AAAA: ["2a10:9999:99::9"]},
    "alias": {CNAME: "alias2.net.test"}, "alias2": {CNAME: "www.net.test"},
    "many": {A: [f"9.9.21.{i}" for i in range(1, 61)]},
    "mixed": {A: ["10.1.2.3", "9.9.20.80", "169.254.169.254"], AAAA: ["fd00::1", "2a10:9999:20::80", "::ffff:10.1.2.3"]},
    "private": {A: ["10.1.2.3"], AAAA: ["fd00::1"]},
    "opened": {A: ["10.77.1.2"], AAAA: ["fd77::1"]},
    "denied": {A: ["9.9.77.1", "9.9.20.80"], AAAA: ["2a10:9999:77::1"]},
    "chain": {CNAME: "chain2.net.test"}, "chain2": {CNAME: "chain3.net.test"}, "chain3": {CNAME: "private.net.test"},
    "loop": {CNAME: "loop2.net.test"}, "loop2": {CNAME: "loop.net.test"},
}
ZONE["net"] = WEB
flips = collections.Counter()


def encode_name(name):
    out = b""
    for label in name.rstrip(".").split("."):
        raw = label.encode()
        out += bytes([len(raw)]) + raw
    return out + b"\0"


def question(data):
    """(id, flags, name, type, end of the question, what the asker's EDNS takes or 0)"""
    ident, flags, questions, _, _, additional = struct.unpack("!6H", data[:12])
    at, labels = 12, []
    while data[at]:
        labels.append(data[at + 1:at + 1 + data[at]].decode("latin-1"))
        at += 1 + data[at]
    kind, _ = struct.unpack("!2H", data[at + 1:at + 5])
    end = at + 5
    size = 0
    if additional and len(data) >= end + 11 and data[end] == 0:
        opt, size = struct.unpack("!2H", data[end + 1:end + 5])
        size = size if opt == OPT else 0
    return ident, flags, ".".join(labels).lower(), kind, end, size


def rdata(kind, value):
    if kind == A:
        return socket.inet_aton(value)
    if kind == AAAA:
        return socket.inet_pton(socket.AF_INET6, value)
    return encode_name(value)


def look_up(name, kind):
    """(code, [(name, type, value, ttl)]); None: no answer at all."""
    if not name.endswith(".net.test") and name != "net.test":
        return 3, []
    host = name[:-len(".net.test")] if name != "net.test" else "net"
    if host == "none":
        return None
    if host == "servfail":
        return 2, []
    if host.startswith("a-"):                                  # a-10-1-2-3: that address
        return 0, [(name, A, host[2:].replace("-", "."), 60)] if kind == A else []
    if host.startswith("x-"):                                  # x-<32 hex digits>: that one
        return 0, [(name, AAAA, str(ipaddress.IPv6Address(int(host[2:], 16))), 60)] if kind == AAAA else []
    if host.startswith("flip"):                                # a public address and a private one in turns
        flips[host, kind] += 1
        public = flips[host, kind] % 2
        return 0, [(name, kind, (WEB[kind][0] if public else ZONE["private"][kind][0]), 0)] if kind in (A, AAAA) else []
    if host.startswith("unique"):
        return 0, [(name, A, WEB[A][0], 60)] if kind == A else []
    if host.startswith("slow"):
        host = "www"
    answers, at, steps = [], name, 0
    entry = ZONE.get(host)
    if entry is None:
        return 3, []
    while entry and CNAME in entry and steps < 8:
        answers.append((at, CNAME, entry[CNAME], 60))
        at, steps = entry[CNAME], steps + 1
        entry = ZONE.get(at[:-len(".net.test")])
    for value in (entry or {}).get(kind, []):
        answers.append((at, kind, value, 60))
    return 0, answers


def answer(data, most):
    """The answer's bytes (truncated to `most`), or None."""
    ident, flags, name, kind, end, size = question(data)
    found = look_up(name, kind)
    if found is None:
        return None
    code, records = found
    body = b"".join(encode_name(n) + struct.pack("!2HIH", k, 1, ttl, len(r := rdata(k, v))) + r for n, k, v, ttl in records)
    head = lambda more, count: struct.pack("!6H", ident, 0x8180 | (flags & 0x0100) | more | code, 1, count, 0, 0)
    if most and 12 + (end - 12) + len(body) > max(512, min(size, most)):
        return head(0x0200, 0) + data[12:end]
    return head(0, len(records)) + data[12:end] + body


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, address, port, zone):
        self.address, self.port, self.zone = address, port, zone

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        note = {"kind": "udp", "to": self.address, "port": self.port, "from": plain(peer)[0], "data": data[:64].hex()}
        seen.append(note)
        if not self.zone:
            self.transport.sendto(data, peer)                  # an echo
            return
        try:
            name, kind = question(data)[2:4]
            note.update(kind="dns", name=name, type=kind)
            reply = answer(data, 1232)
        except (IndexError, struct.error):
            return
        if reply is not None:
            asyncio.get_running_loop().call_later(2 if name.startswith("slow") else 0, self.transport.sendto, reply, peer)


async def dns_stream(reader, writer, note):
    while head := await reader.readexactly(2):
        data = await reader.readexactly(int.from_bytes(head, "big"))
        name, kind = question(data)[2:4]
        seen.append({**note, "kind": "dns-tcp", "name": name, "type": kind})
        reply = answer(data, 0)
        if reply is None:
            continue
        writer.write(len(reply).to_bytes(2, "big") + reply)
        await writer.drain()


# -- TCP servers

async def echo(reader, writer, note):
    """Echo; after the other side's end, how many bytes came, then ours."""
    total = 0
    while data := await reader.read(65536):
        total += len(data)
        note["bytes"] = total
        writer.write(data)
        await writer.drain()
    writer.write(b"\nend %d\n" % total)
    await writer.drain()


async def cut(reader, writer, note):
    """A line, then RST."""
    writer.write(b"before the cut\n")
    await writer.drain()
    await reader.readline()
    reset(writer)


async def slow(reader, writer, note):
    """Ten bytes, one each 100 ms."""
    for i in range(10):
        writer.write(b"%d" % i)
        await writer.drain()
        await asyncio.sleep(0.1)


async def half(reader, writer, note):
    """Its own end first; it goes on reading and notes what came afterwards."""
    writer.write(b"no more from here\n")
    await writer.drain()
    writer.write_eof()
    data = b""
    while part := await reader.read(65536):
        data += part
    seen.append({**note, "kind": "half-closed", "data": data[:1000].decode("latin-1"), "bytes": len(data)})


class Http:
    def __init__(self, folder):
        self.mirror = os.path.realpath(os.path.join(folder, "mirror"))

    async def __call__(self, reader, writer, note):
        while line := await reader.readline():
            method, target, _ = line.decode("latin-1").split()
            fields = {}
            while (line := await reader.readline()) not in (b"\r\n", b""):
                k, _, v = line.decode("latin-1").partition(":")
                fields[k.strip().lower()] = v.strip()
            url = urllib.parse.urlsplit(target)
            query = {k: v[-1] for k, v in urllib.parse.parse_qs(url.query).items()}
            note["path"], note["host"] = url.path, fields.get("host", "")
            if not await self.serve(reader, writer, method, url.path, query, fields, note):
                return

    @staticmethod
    async def plain_answer(writer, body, status="200 OK", kind="text/plain"):
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True

    async def serve(self, reader, writer, method, path, query, fields, note):
        n = int(query.get("n", 0))
        if "content-length" in fields or "transfer-encoding" in fields:
            return await self.upload(reader, writer, fields)
        if path == "/hello":
            return await self.plain_answer(writer, b"hello from " + note["to"].encode() + b"\n")
        if path == "/who":
            return await self.plain_answer(writer, json.dumps({**note, "fields": fields}).encode())
        if path == "/bytes":
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n".encode())
            for i in range((n + BLOCK - 1) // BLOCK):
                writer.write((i.to_bytes(8, "big") + BLOCK_TAIL)[:min(BLOCK, n - i * BLOCK)])
                await writer.drain()
            return True
        if path == "/slow":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(n):
                writer.write(b"2\r\n%d\n\r\n" % (i % 10))
                await writer.drain()
                await asyncio.sleep(int(query.get("ms", 100)) / 1000)
            writer.write(b"0\r\n\r\n")
            return True
        if path in ("/cut", "/close"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * n)
            await writer.drain()
            await asyncio.sleep(0.3)
            if path == "/cut":
                reset(writer)
            return False
        if path.startswith("/mirror/"):
            return await self.file(writer, method, path[len("/mirror/"):])
        return await self.plain_answer(writer, b"no such page\n", "404 Not Found")

    async def upload(self, reader, writer, fields):
        if fields.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        h, size = hashlib.sha256(), 0

        async def take(n):
            nonlocal size
            while n:
                data = await reader.read(min(n, 1 << 18))
                if not data:
                    raise asyncio.IncompleteReadError(b"", n)
                h.update(data)
                size, n = size + len(data), n - len(data)

        if "content-length" in fields:
            await take(int(fields["content-length"]))
        else:
            while n := int(await reader.readline(), 16):
                await take(n)
                await reader.readline()
            await reader.readline()
        return await self.plain_answer(writer, json.dumps({"size": size, "sha256": h.hexdigest()}).encode(), kind="application/json")

    async def file(self, writer, method, name):
        full = os.path.realpath(os.path.join(self.mirror, name))
        if os.path.isdir(full):
            full += "/index.html"
        if not full.startswith(self.mirror + "/") or not os.path.isfile(full):
            return await self.plain_answer(writer, b"no such file\n", "404 Not Found")
        with open(full, "rb") as f:
            data = f.read()
        return await self.plain_answer(writer, data, kind="text/html" if full.endswith(".html") else "application/octet-stream")


async def silent(reader, writer, note):
    """Takes the connection and says what it is; what a database on the node's machine would be."""
    writer.write(b"you should not be here\n")
    await writer.drain()
    await reader.read(65536)


def guarded(handler):
    async def on(reader, writer):
        try:
            (to, port), (peer, peer_port) = plain(writer.get_extra_info("sockname")), plain(writer.get_extra_info("peername"))
        except TypeError:                                      # gone already
            writer.close()
            return
        note = {"kind": "tcp", "to": to, "port": port, "from": peer, "from_port": peer_port}
        seen.append(note)
        try:
            await handler(reader, writer, note)
        except (OSError, ValueError, IndexError, struct.error, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()
    return on


def bound(address, port, kind):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in address:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((address, port))
    if kind == socket.SOCK_STREAM:
        s.listen(16384)
    s.setblocking(False)
    return s


async def serve(ports):
    for port, (handler, context) in ports.items():
        for any_address in ("0.0.0.0", "::"):
            await asyncio.start_server(guarded(handler), sock=bound(any_address, port, socket.SOCK_STREAM), ssl=context)


async def datagrams(addresses, port, zone):
    for a in addresses:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda a=a: Datagrams(a, port, zone), sock=bound(a, port, socket.SOCK_DGRAM))


# -- the capture

def read_packet(data):
    """The fields of a frame that tests ask for."""
    kind = struct.unpack("!H", data[12:14])[0]
    p = {"ethertype": kind, "length": len(data), "head": data[:120].hex(), "proto": None}
    if kind == 0x0800 and len(data) >= 34:
        size = (data[14] & 15) * 4
        p.update(proto=data[23], src=socket.inet_ntoa(data[26:30]), dst=socket.inet_ntoa(data[30:34]),
                 options=size - 20, fragment=struct.unpack("!H", data[20:22])[0] & 0x3fff)
        rest = data[14 + size:]
    elif kind == 0x86dd and len(data) >= 54:
        p.update(proto=data[20], src=socket.inet_ntop(socket.AF_INET6, data[22:38]), dst=socket.inet_ntop(socket.AF_INET6, data[38:54]))
        rest = data[54:]
    else:
        return p
    if p["proto"] in (6, 17, 132) and len(rest) >= 4:
        p["sport"], p["dport"] = struct.unpack("!2H", rest[:4])
    return p


class Capture:
    """What arrives at a device; what leaves it is not looked at."""

    def __init__(self, device):
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
        self.sock.bind((device, ETH_P_ALL))
        self.sock.setblocking(False)
        self.found = []
        asyncio.get_running_loop().add_reader(self.sock, self.take)

    def take(self):
        try:
            while True:
                data, address = self.sock.recvfrom(65536)
                if address[2] != PACKET_OUTGOING and len(self.found) < PACKETS_MAX and len(data) >= 14:
                    self.found.append(read_packet(data))
        except BlockingIOError:
            pass

    def close(self):
        self.take()
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


class Orders:
    def __init__(self, device):
        self.device, self.capture = device, None

    def obey(self, order):
        do = order["do"]
        if do == "seen":
            return list(seen)
        if do == "clear":
            seen.clear()
            flips.clear()
        elif do == "capture":
            if self.capture:
                self.capture.close()
            self.capture = Capture(self.device)
        elif do == "packets":
            self.capture.take()
            found = self.capture.found
            if order.get("end"):
                self.capture.close()
                self.capture = None
            return found
        elif do != "ready":
            return {"error": f"unknown: {do}"}
        return {}

    async def run(self, fd):
        reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fd), limit=1 << 20)
        while line := await reader.readline():
            try:
                r = self.obey(json.loads(line))
            except Exception as e:
                r = {"error": repr(e)}
            writer.write(json.dumps(r).encode() + b"\n")
            await writer.drain()


async def main(fd, config):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if config["role"] == "internet":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{config['dir']}/server.crt", f"{config['dir']}/server.key")
        http = Http(config["dir"])
        await serve({80: (http, None), 443: (http, context), 7: (echo, None), 9: (cut, None), 19: (slow, None), 81: (half, None), 53: (dns_stream, None),
                     22: (echo, None), 5432: (echo, None)})
        await datagrams(("9.9.20.53", "2a10:9999:20::53", "9.9.20.54", "2a10:9999:20::54"), 53, True)
        await datagrams(("0.0.0.0", "::"), 7, False)
    else:
        await serve({port: (silent, None) for port in config["ports"]})
        await datagrams(("0.0.0.0", "::"), config["ports"][0], False)
    await Orders(config["device"]).run(fd)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
