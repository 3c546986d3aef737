"""
Records the system calls of confined programs: a BPF program at the kernel's entry of system calls (tracepoint sys_enter, which comes
after seccomp, so what a filter refuses does not count) that counts in a map of its own. Unlike ptrace it stops nobody and changes no
parent, so that the tests run as they always do and node-manager may look at its children.

Only processes count that descend from the caller of follow() and have a seccomp filter in force. The number of filters tells a
jail (two: node-manager's, and its own) from a daemon and its forked children (one).

Sources: bpf(2), Documentation/bpf/standardization/instruction-set.rst, Documentation/bpf/btf.rst; x86-64.
"""

import ctypes
import os
import re
import struct

SYS_BPF = 321
MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_NEXT, PROG_LOAD, RAW_TRACEPOINT_OPEN = 0, 1, 2, 4, 5, 17
MAP_HASH, PROG_RAW_TRACEPOINT = 1, 17
COUNTS_MAX, TREE_MAX = 1 << 20, 1 << 16
F_LOOKUP, F_UPDATE, F_DELETE, F_PID_TGID, F_TASK, F_READ = 1, 2, 3, 14, 35, 113     # helpers (linux/bpf.h)
KEY = struct.Struct("<IIIIQ16s")        # tgid, filters, call, argument, start time, name
REGS_SI, REGS_DI = 104, 112             # struct pt_regs
NR_IOCTL, NR_CLONE, NR_PRCTL = 16, 56, 157

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, data):
    buf = ctypes.create_string_buffer(bytes(data), max(len(data), 128))
    r = libc.syscall(SYS_BPF, command, buf, len(buf))
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, f"bpf({command}): {os.strerror(e)}")
    return r


# -- the layout of the kernel's structures, as the kernel itself describes it

class Btf:
    KINDS = {1: 4, 3: 12, 14: 4, 17: 4}                                  # fixed bytes behind an entry
    PER_ITEM = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}              # and for each of its items

    def __init__(self, path="/sys/kernel/btf/vmlinux"):
        with open(path, "rb") as f:
            d = f.read()
        magic, _, _, head, type_off, type_len, str_off, _ = struct.unpack_from("<HBBIIIII", d)
        assert magic == 0xeb9f
        self.d, self.names = d, head + str_off
        self.types, self.structs = [None], {}
        at, end = head + type_off, head + type_off + type_len
        while at < end:
            name, info, size = struct.unpack_from("<III", d, at)
            kind, n = info >> 24 & 31, info & 0xffff
            if kind == 4 and name:
                self.structs.setdefault(self.name(name), at)
            self.types.append((kind, at, size))
            at += 12 + self.KINDS.get(kind, 0) + n * self.PER_ITEM.get(kind, 0)

    def name(self, off):
        return self.d[self.names + off:self.d.index(b"\0", self.names + off)].decode()

    def member(self, at, wanted, base=0):
        """Offset of a member; looks into members without a name too."""
        info, = struct.unpack_from("<I", self.d, at + 4)
        for i in range(info & 0xffff):
            name, kind_id, off = struct.unpack_from("<III", self.d, at + 12 + 12 * i)
            off = base + (off & 0xffffff if info >> 31 else off) // 8
            if name and self.name(name) == wanted:
                return off
            if not name and self.types[kind_id][0] in (4, 5):
                r = self.member(self.types[kind_id][1], wanted, off)
                if r is not None:
                    return r
        return None

    def offset(self, path):
        """ "task_struct.comm" """
        struct_name, member = path.split(".")
        r = self.member(self.structs[struct_name], member)
        assert r is not None, path
        return r


# -- a very small assembler

class Code:
    def __init__(self):
        self.out, self.labels, self.jumps = [], {}, []

    def op(self, code, dst=0, src=0, off=0, imm=0):
        self.out.append([code, dst | src << 4, off, imm])

    def mov(self, dst, src): self.op(0xbf, dst, src)
    def set(self, dst, imm): self.op(0xb7, dst, imm=imm)
    def add(self, dst, imm): self.op(0x07, dst, imm=imm)
    def load8(self, dst, src, off): self.op(0x79, dst, src, off)
    def load4(self, dst, src, off): self.op(0x61, dst, src, off)
    def store8(self, off, src): self.op(0x7b, 10, src, off)
    def store4(self, off, src): self.op(0x63, 10, src, off)
    def zero8(self, off): self.op(0x7a, 10, 0, off, 0)
    def call(self, helper): self.op(0x85, imm=helper)
    def label(self, name): self.labels[name] = len(self.out)

    def jump(self, name, code=0x05, dst=0, src=0, imm=0):
        self.jumps.append((len(self.out), name))
        self.op(code, dst, src, 0, imm)

    def jeq(self, dst, imm, name): self.jump(name, 0x15, dst, imm=imm)
    def jne(self, dst, imm, name): self.jump(name, 0x55, dst, imm=imm)

    def map(self, dst, fd):
        self.op(0x18, dst, 1, 0, fd)
        self.op(0)

    def at(self, dst, off):
        """dst = address on the stack"""
        self.mov(dst, 10)
        self.add(dst, off)

    def read(self, off, size, base, member):
        """size bytes at base + member onto the stack"""
        self.at(1, off)
        self.set(2, size)
        self.mov(3, base)
        self.add(3, member)
        self.call(F_READ)

    def done(self):
        self.label("end")
        self.set(0, 0)
        self.op(0x95)
        for at, name in self.jumps:
            self.out[at][2] = self.labels[name] - at - 1
        return b"".join(struct.pack("<BBhi", *i) for i in self.out)


def count_calls(btf, tree, counts):
    o = btf.offset
    seccomp, key = o("task_struct.seccomp"), -56
    c = Code()
    c.load8(9, 1, 0)                            # registers of the caller
    c.load8(8, 1, 8)                            # number of the call
    c.call(F_PID_TGID)
    c.op(0x77, 0, imm=32)
    c.store4(-4, 0)
    c.map(1, tree)
    c.at(2, -4)
    c.call(F_LOOKUP)
    c.jeq(0, 0, "end")
    c.call(F_TASK)
    c.mov(7, 0)
    for off in range(key, -8, 8):
        c.zero8(off)
    c.zero8(-16)
    c.read(-16, 4, 7, seccomp + o("seccomp.mode"))
    c.load4(1, 10, -16)
    c.jne(1, 2, "end")
    c.load4(1, 10, -4)
    c.store4(key, 1)
    c.read(key + 4, 4, 7, seccomp + o("seccomp.filter_count"))
    c.store4(key + 8, 8)
    c.jeq(8, NR_IOCTL, "second")
    c.jeq(8, NR_CLONE, "first")
    c.jeq(8, NR_PRCTL, "first")
    c.jump("named")
    c.label("first")
    c.read(key + 12, 4, 9, REGS_DI)
    c.jump("named")
    c.label("second")
    c.read(key + 12, 4, 9, REGS_SI)
    c.label("named")
    c.read(-16, 8, 7, o("task_struct.group_leader"))
    c.load8(7, 10, -16)
    c.read(key + 16, 8, 7, o("task_struct.start_time"))
    c.read(key + 24, 16, 7, o("task_struct.comm"))
    c.map(1, counts)
    c.at(2, key)
    c.call(F_LOOKUP)
    c.jeq(0, 0, "new")
    c.set(1, 1)
    c.op(0xdb, 0, 1)                            # atomic add
    c.jump("end")
    c.label("new")
    c.set(1, 1)
    c.store8(-64, 1)
    c.map(1, counts)
    c.at(2, key)
    c.at(3, -64)
    c.set(4, 0)
    c.call(F_UPDATE)
    return c.done()


def follow_forks(btf, tree):
    """A child of the tree belongs to it; any other process that gets a number of the tree's does not."""
    tgid = btf.offset("task_struct.tgid")
    c = Code()
    c.load8(7, 1, 0)                            # parent
    c.load8(8, 1, 8)                            # child
    c.zero8(-8)
    c.zero8(-16)
    c.read(-8, 4, 7, tgid)
    c.read(-16, 4, 8, tgid)
    c.load4(1, 10, -8)
    c.load4(2, 10, -16)
    c.jump("end", 0x1d, 1, 2)                   # a thread
    c.map(1, tree)
    c.at(2, -8)
    c.call(F_LOOKUP)
    c.jeq(0, 0, "foreign")
    c.map(1, tree)
    c.at(2, -16)
    c.at(3, -8)
    c.set(4, 0)
    c.call(F_UPDATE)
    c.jump("end")
    c.label("foreign")
    c.map(1, tree)
    c.at(2, -16)
    c.call(F_DELETE)
    return c.done()


class Recorder:
    def __init__(self):
        btf = Btf()
        self.tree = self.new_map(4, 4, TREE_MAX)
        self.counts = self.new_map(KEY.size, 8, COUNTS_MAX)
        self.fds = [self.attach("sched_process_fork", follow_forks(btf, self.tree)),
                    self.attach("sys_enter", count_calls(btf, self.tree, self.counts))]

    @staticmethod
    def new_map(key, value, entries):
        no_prealloc = 1
        return bpf(MAP_CREATE, struct.pack("<IIIII", MAP_HASH, key, value, entries, no_prealloc))

    @staticmethod
    def attach(point, code):
        text, lic, log = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(1 << 18)
        try:
            fd = bpf(PROG_LOAD, struct.pack("<IIQQIIQII", PROG_RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(text), ctypes.addressof(lic),
                                            1, len(log), ctypes.addressof(log), 0, 0))
        except OSError as e:
            raise OSError(e.errno, f"the kernel refuses the program for {point}:\n{log.value.decode()[-2000:]}")
        name = ctypes.create_string_buffer(point.encode())
        return bpf(RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(name), fd))

    def follow(self, pid):
        key, value = ctypes.c_uint32(pid), ctypes.c_uint32(1)
        bpf(MAP_UPDATE, struct.pack("<IIQQQ", self.tree, 0, ctypes.addressof(key), ctypes.addressof(value), 0))

    def entries(self):
        """(tgid, filters, call, argument, start time, name, count) of everything so far."""
        key, following, value = None, ctypes.create_string_buffer(KEY.size), ctypes.c_uint64()
        out = []
        while True:
            try:
                bpf(MAP_NEXT, struct.pack("<IIQQQ", self.counts, 0, ctypes.addressof(key) if key else 0, ctypes.addressof(following), 0))
            except FileNotFoundError:
                return out
            key = ctypes.create_string_buffer(following.raw, KEY.size)
            bpf(MAP_LOOKUP, struct.pack("<IIQQQ", self.counts, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
            tgid, filters, call, argument, start, name = KEY.unpack(key.raw)
            out.append((tgid, filters, call, argument, start, name.split(b"\0")[0].decode(errors="replace"), value.value))


def names():
    """Number of each x86-64 system call, and its name, from the kernel's header."""
    with open("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") as f:
        return {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)", f.read())}
