"""Runs as root in a sandbox: orders as JSON on standard input, one after the other, their results as a JSON list on standard output.

An order is {"op": NAME, ...} with the arguments of the function below that has this name. A failure is {"error": the errno's name, ...};
all results say how long they took ("ms").
"""

import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time

ETH_P_ALL = 3
TYPES = {"A": 1, "CNAME": 5, "TXT": 16, "AAAA": 28}


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def dial(to, port, timeout, source=None, options=()):
    """A connected TCP socket; `to` in any spelling that the resolver of the system takes for an address."""
    last = None
    for family, kind, proto, _, address in socket.getaddrinfo(to, port, 0, socket.SOCK_STREAM):
        s = socket.socket(family, kind, proto)
        s.settimeout(timeout)
        try:
            for level, name, value in options:
                s.setsockopt(level, name, bytes.fromhex(value))
            if source:
                s.bind((source, 0))
            s.connect(address)
            return s
        except OSError as e:
            s.close()
            last = e
    raise last


def read_all(s, most=1 << 20):
    data = b""
    while len(data) < most and (part := s.recv(65536)):
        data += part
    return data


def tcp(to, port, send="", half=False, most=None, timeout=10, source=None, options=()):
    """Connects, sends, reads once (half: says that it has ended, then reads to the other's end)."""
    with dial(to, port, timeout, source, options) as s:
        try:
            if send:
                s.sendall(send.encode("latin-1"))
            if half:
                s.shutdown(socket.SHUT_WR)
                data = read_all(s, most or 1 << 20)
            else:
                data = s.recv(most or 65536)
        except OSError as e:
            return {**failed(e), "connected": True}
        return {"data": data.decode("latin-1"), "connected": True}


def reach(targets, timeout=4, all_within=60):
    """Connections to many [address, port] at once, each with a request: which of them were answered, or how they failed, and when.
    A connection that is only accepted and then reset has reached nobody. It ends when nothing has come for `timeout` seconds."""
    begun, out, waiting = time.monotonic(), [None] * len(targets), {}
    last = begun
    poll = select.poll()
    for i, (to, port) in enumerate(targets):
        s = socket.socket(family_of(to))
        s.setblocking(False)
        try:
            s.connect((to, port))
        except BlockingIOError:
            pass
        except OSError as e:
            out[i] = failed(e)
            s.close()
            continue
        waiting[s.fileno()] = (i, s, False)
        poll.register(s, select.POLLOUT)
    while waiting and (now := time.monotonic()) - last < timeout and now - begun < all_within:
        for fd, _ in poll.poll(200):
            i, s, sent = waiting[fd]
            last = time.monotonic()
            try:
                if not sent:
                    code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code:
                        raise OSError(code, "")
                    s.send(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
                    waiting[fd] = (i, s, True)
                    poll.modify(s, select.POLLIN)
                    continue
                data = s.recv(4096)
                out[i] = {"data": data.decode("latin-1")}
            except OSError as e:
                out[i] = failed(e)
            out[i]["ms"] = int((time.monotonic() - begun) * 1000)
            poll.unregister(fd)
            s.close()
            del waiting[fd]
    for i, s, _ in waiting.values():
        out[i] = {"error": "ETIMEDOUT"}
        s.close()
    return {"results": out}


def stuff(to, port, n, quiet):
    """Many connections, into each as much as it takes, and nothing is read from any; until none has taken anything for so many seconds."""
    socks, block, sent = [], b"x" * 65536, 0
    for _ in range(n):
        s = socket.socket(family_of(to))
        s.settimeout(20)
        s.connect((to, port))
        s.setblocking(False)
        socks.append(s)
    last = begun = time.monotonic()
    while (now := time.monotonic()) - last < quiet and now - begun < 100:
        _, ready, _ = select.select([], socks, [], 1)
        last = time.monotonic() if ready else last
        for s in ready:
            try:
                sent += s.send(block)
            except OSError:
                socks.remove(s)
                s.close()
    left = len(socks)
    for s in socks:
        s.close()
    return {"sent": sent, "left": left}


def udp(to, port, send="ping", wait=3):
    with socket.socket(family_of(to), socket.SOCK_DGRAM) as s:
        s.settimeout(wait)
        s.connect((to, port))
        s.send(send.encode("latin-1"))
        return {"data": s.recv(65536).decode("latin-1")}


def read_name(data, at):
    labels, jumps, end = [], 0, None
    while data[at]:
        if data[at] & 0xc0:
            end = at + 2 if end is None else end
            at = struct.unpack("!H", data[at:at + 2])[0] & 0x3fff
            jumps += 1
            if jumps > 20:
                raise ValueError("a name that never ends")
            continue
        labels.append(data[at + 1:at + 1 + data[at]].decode("latin-1"))
        at += 1 + data[at]
    return ".".join(labels), (at + 1 if end is None else end)


def query(name, kind, ident):
    labels = b"".join(bytes([len(p)]) + p.encode("latin-1") for p in name.split("."))
    return struct.pack("!6H", ident, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", TYPES[kind], 1)


def read_answer(data):
    ident, flags, questions, n, _, _ = struct.unpack("!6H", data[:12])
    at, answers = 12, []
    for _ in range(questions):
        at = read_name(data, at)[1] + 4
    for _ in range(n):
        name, at = read_name(data, at)
        kind, _, ttl, size = struct.unpack("!2HIH", data[at:at + 10])
        at += 10
        value = data[at:at + size]
        if kind in (1, 28):
            value = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, value)
        else:
            value = read_name(data, at)[0] if kind == 5 else value.hex()
        at += size
        answers.append([name, kind, value])
    return {"code": flags & 15, "truncated": bool(flags & 0x0200), "answers": answers, "size": len(data)}


def dns(name, type="A", server=None, over="udp", timeout=15):
    """One question, by hand, to `server` (else the first one of resolv.conf)."""
    if server is None:
        with open("/etc/resolv.conf") as f:
            server = next(line.split()[1] for line in f if line.startswith("nameserver"))
    ident = int.from_bytes(os.urandom(2), "big")
    data = query(name, type, ident)
    with socket.socket(family_of(server), socket.SOCK_DGRAM if over == "udp" else socket.SOCK_STREAM) as s:
        s.settimeout(timeout)
        s.connect((server, 53))
        if over == "udp":
            s.send(data)
            answer = s.recv(65536)
        else:
            s.sendall(len(data).to_bytes(2, "big") + data)
            head = s.recv(2, socket.MSG_WAITALL)
            answer = s.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    if len(answer) < 12:
        return {"error": "nothing"}
    if answer[:2] != ident.to_bytes(2, "big"):
        return {"error": "another question's answer"}
    return read_answer(answer)


def look_up(name, family=0):
    """As programs do: the addresses that the system's resolver gives."""
    try:
        found = socket.getaddrinfo(name, 80, family, socket.SOCK_STREAM)
    except socket.gaierror as e:
        return {"error": str(e.args[0]), "text": e.args[1]}
    return {"addresses": sorted({a[4][0] for a in found})}


def link():
    """The guest's device and addresses."""
    show = lambda *a: json.loads(subprocess.run(["ip", "-json", *a], stdout=subprocess.PIPE, check=True).stdout or "[]")
    device = next(d for d in show("addr") if d["ifname"] != "lo" and d.get("operstate") != "DOWN")
    return {"device": device["ifname"], "mac": device["address"], "addresses": [a["local"] for a in device["addr_info"]],
            "routes": show("route") + show("-6", "route"), "neighbours": show("neigh")}


def frames(device, send, wait=1.0, repeat=1, only=None):
    """Frames by hand (hex), as they are; what then arrives from the other side within `wait` seconds."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as s:
        s.bind((device, ETH_P_ALL))
        s.settimeout(0.1)
        sent = 0
        for _ in range(repeat):
            for frame in send:
                sent += s.send(bytes.fromhex(frame)) > 0
        found, end = [], time.monotonic() + wait
        while time.monotonic() < end and len(found) < 500:
            try:
                data, address = s.recvfrom(65536)
            except TimeoutError:
                continue
            if address[2] != 4:
                found.append(data[:200].hex())
    return {"sent": sent, "got": found}


def sh(script, timeout=30):
    r = subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    return {"code": r.returncode, "out": r.stdout}


def raw_socket(family, kind, protocol):
    """Whether the guest can have such a socket at all."""
    socket.socket(family, kind, protocol).close()
    return {}


def failed(e):
    if isinstance(e, TimeoutError) and e.errno is None:
        return {"error": "ETIMEDOUT"}
    return {"error": errno.errorcode.get(e.errno, str(e))}


def main():
    results = []
    for order in json.load(sys.stdin):
        begun = time.monotonic()
        try:
            r = globals()[order.pop("op")](**order)
        except OSError as e:
            r = failed(e)
        r["ms"] = int((time.monotonic() - begun) * 1000)
        results.append(r)
    json.dump(results, sys.stdout)


main()
