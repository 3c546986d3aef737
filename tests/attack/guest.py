"""Runs as root in a sandbox: takes the channel away from the agent (process 1) and answers in its place as no agent would.

The channel's descriptor is duplicated with pidfd_getfd(2), process 1 is stopped with ptrace(2), and the nonce that the tags of frames are
made from is found in its memory (src/mux/mux.c: struct mux). A request for /files?path=NAME is answered with ANSWERS[NAME]. argv[1]: a
file with the answers as JSON, base64; "SPECIAL:what" is done by hand.
"""

import base64
import ctypes
import json
import os
import select
import struct
import sys
import time

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
OPEN, DATA, END = 3, 4, 5
PAYLOAD_MAX = 32768


def tag(nonce, side):
    h = 2166136261
    for c in nonce + side:
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return bytes(x or 0x5A for x in struct.pack("<I", h))


def take_channel():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    pidfd = libc.syscall(SYS_PIDFD_OPEN, 1, 0)
    fd = next(int(f) for f in os.listdir("/proc/1/fd") if "vport" in os.readlink("/proc/1/fd/" + f))
    channel = libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
    assert channel >= 0 and libc.ptrace(PTRACE_SEIZE, 1, None, None) == 0 and libc.ptrace(PTRACE_INTERRUPT, 1, None, None) == 0
    while "(init) t" not in open("/proc/1/stat").read():
        time.sleep(0.01)
    os.set_blocking(channel, True)
    return channel


def find_nonce():
    """struct mux begins: side = 1, sync = 1, four bools, nonce[16], tag_in[4]."""
    with open("/proc/1/mem", "rb", buffering=0) as mem, open("/proc/1/maps") as maps:
        for line in maps:
            span, rights = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            if not rights.startswith("rw") or high - low > 8 << 20:
                continue
            mem.seek(low)
            try:
                data = mem.read(high - low)
            except OSError:
                continue
            at = data.find(b"\1\0\0\0\1\0\0\0")
            while at >= 0:
                nonce = data[at + 12:at + 28]
                if nonce.strip(b"\0") and tag(nonce, b"h") == data[at + 28:at + 32]:
                    return nonce
                at = data.find(b"\1\0\0\0\1\0\0\0", at + 1)
    raise SystemExit("no nonce found")


class Guest:
    def __init__(self, answers):
        self.answers, self.streams, self.buf = answers, {}, b""
        self.channel = take_channel()
        self.tag = tag(find_nonce(), b"g")

    def write(self, data):
        while data:
            data = data[os.write(self.channel, data):]

    def frame(self, kind, stream, payload=b""):
        self.write(struct.pack("<BBHI", kind, 0, len(payload), stream) + payload + self.tag)

    def answer(self, stream, name):
        special = {
            "unknown-stream": lambda: self.frame(DATA, stream + 1000, b"x"),
            "no-credit": lambda: [self.frame(DATA, stream, b"z" * PAYLOAD_MAX) for _ in range(12)],
            "noise": lambda: self.write(os.urandom(4096)),
        }
        data = self.answers.get(name)
        if data is not None and data.startswith(b"SPECIAL:"):
            special[data[8:].decode()]()
            return
        for at in range(0, len(data or b""), PAYLOAD_MAX):
            self.frame(DATA, stream, data[at:at + PAYLOAD_MAX])
        self.frame(END, stream)

    def on_frame(self, kind, stream, payload):
        if kind == OPEN:
            self.streams[stream] = b""
        if kind != DATA or stream not in self.streams:
            return
        self.streams[stream] += payload
        if b"\r\n\r\n" in self.streams[stream]:
            line = self.streams.pop(stream).split(b"\r\n", 1)[0].decode()
            self.answer(stream, line.partition("path=")[2].partition(" ")[0])

    def serve(self):
        while True:
            select.select([self.channel], [], [])
            self.buf += os.read(self.channel, 65536)
            while True:
                self.buf = self.buf.lstrip(b"\0")
                if len(self.buf) < 8:
                    break
                kind, _, length, stream = struct.unpack("<BBHI", self.buf[:8])
                if len(self.buf) < 12 + length:
                    break
                payload, self.buf = self.buf[8:8 + length], self.buf[12 + length:]
                self.on_frame(kind, stream, payload)


with open(sys.argv[1]) as f:
    Guest({name: base64.b64decode(text) for name, text in json.load(f).items()}).serve()
