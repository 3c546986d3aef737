"""Packets by hand, wrong ones too: what a guest's root can put on its wire (RFC 791, 8200, 9293, 768, 792, 826, 4861, 9260)."""

import os
import socket
import struct

TCP, UDP, ICMP, ICMP6, SCTP = 6, 17, 1, 58, 132
HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60


def checksum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def packed(address):
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def pseudo(src, dst, proto, length):
    if ":" in src:
        return packed(src) + packed(dst) + struct.pack("!IHBB", length, 0, 0, proto)
    return packed(src) + packed(dst) + struct.pack("!BBH", 0, proto, length)


def tcp(src, dst, dport, flags=0x02, sport=None, payload=b""):
    """SYN unless said otherwise."""
    sport = sport or 20000 + int.from_bytes(os.urandom(2), "big") % 20000
    head = lambda check: struct.pack("!2H2I2B3H", sport, dport, 1000, 0, 5 << 4, flags, 65535, check, 0)
    return head(checksum(pseudo(src, dst, TCP, 20 + len(payload)) + head(0) + payload)) + payload


def udp(src, dst, dport, payload=b"", sport=None):
    sport = sport or 40000 + int.from_bytes(os.urandom(2), "big") % 20000
    head = lambda check: struct.pack("!4H", sport, dport, 8 + len(payload), check)
    return head(checksum(pseudo(src, dst, UDP, 8 + len(payload)) + head(0) + payload) or 0xffff) + payload


def icmp(payload=b"ping", kind=8):
    head = lambda check: struct.pack("!2B3H", kind, 0, check, 77, 1)
    return head(checksum(head(0) + payload)) + payload


def icmp6(src, dst, body=b"\0\0\0\1ping", kind=128, code=0):
    head = lambda check: struct.pack("!2BH", kind, code, check)
    return head(checksum(pseudo(src, dst, ICMP6, 4 + len(body)) + head(0) + body)) + body


def sctp(dport):
    """An INIT; its checksum is left out, which nothing before the receiver looks at."""
    return struct.pack("!2H2I", 5000, dport, 0, 0) + struct.pack("!2BHI2HI", 1, 0, 20, 7, 10, 10, 1) + b"\0\0\0\0"


def ip(src, dst, proto, payload, options=b"", fragment=0, ttl=64, extension=()):
    """fragment: the flags and offset (v4); extension: [(number, bytes behind its first byte)] (v6)."""
    if ":" in src:
        chain, following = b"", proto
        for number, body in reversed(extension):
            chain, following = bytes([following]) + body + chain, number
        return struct.pack("!IHBB", 6 << 28, len(chain) + len(payload), following, ttl) + packed(src) + packed(dst) + chain + payload
    options += b"\0" * (-len(options) % 4)
    size = 20 + len(options)
    head = lambda check: struct.pack("!BBHHHBBH", 0x40 | size // 4, 0, size + len(payload), 4242, fragment, ttl, proto, check) + packed(src) + packed(dst) + options
    return head(checksum(head(0))) + payload


def ethernet(src_mac, dst_mac, packet, kind=None):
    kind = kind or (0x86dd if packet[0] >> 4 == 6 else 0x0800)
    return mac(dst_mac) + mac(src_mac) + struct.pack("!H", kind) + packet


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def arp(op, sender_mac, sender, target_mac, target):
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, op) + mac(sender_mac) + packed(sender) + mac(target_mac) + packed(target)


def fragments4(src, dst, proto, payload, first=8):
    """The same payload in two pieces; the first one may be too short for its header."""
    return [ip(src, dst, proto, payload[:first], fragment=0x2000), ip(src, dst, proto, payload[first:], fragment=first // 8)]


def fragments6(src, dst, proto, payload, first=8):
    head = lambda offset, more: struct.pack("!BHI", 0, offset << 3 | more, 99)
    return [ip(src, dst, proto, payload[:first], extension=[(FRAGMENT, head(0, 1))]), ip(src, dst, proto, payload[first:], extension=[(FRAGMENT, head(first // 8, 0))])]


def source_route(strict, via, pointer=4):
    """The IPv4 option LSRR or SSRR."""
    return struct.pack("!3B", 137 if strict else 131, 3 + 4 * len(via), pointer) + b"".join(packed(v) for v in via)


def routing_header(via, kind=0):
    return struct.pack("!3BI", 2 * len(via), kind, len(via), 0) + b"".join(packed(v) for v in via)


def read(frame):
    """(ethertype, proto, src, dst, sport, dport) of a frame (hex or bytes); what it does not have is None."""
    f = bytes.fromhex(frame) if isinstance(frame, str) else frame
    kind = struct.unpack("!H", f[12:14])[0]
    if kind == 0x0800 and len(f) >= 34:
        size, proto, src, dst = (f[14] & 15) * 4, f[23], socket.inet_ntoa(f[26:30]), socket.inet_ntoa(f[30:34])
        rest = f[14 + size:]
    elif kind == 0x86dd and len(f) >= 54:
        proto, src, dst = f[20], socket.inet_ntop(socket.AF_INET6, f[22:38]), socket.inet_ntop(socket.AF_INET6, f[38:54])
        rest = f[54:]
    else:
        return kind, None, None, None, None, None
    ports = struct.unpack("!2H", rest[:4]) if proto in (TCP, UDP, SCTP) and len(rest) >= 4 else (None, None)
    return kind, proto, src, dst, *ports
