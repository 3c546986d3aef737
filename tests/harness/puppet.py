"""
A running process made to do system calls that it would never do: what whoever takes it over could. Its own filter, descriptors, namespaces
and peers apply, for it is the process itself: it is stopped with ptrace(2), its registers are set to a system call, it does one step, and gets
its registers back. The interface is the intruder's.
"""

import ctypes
import errno
import os
import re
import signal
import struct

from harness.intruder import NR, Intruder, Killed, Pointer

GETREGS, SETREGS, SINGLESTEP, DETACH, SEIZE, INTERRUPT = 12, 13, 9, 17, 0x4206, 0x4207
REGS = ("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs").split()
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
SCRATCH = 16384
WALL = 0x40000000
MORE = dict(accept4=288, recvfrom=45, sendmsg=46, recvmsg=47, shutdown=48, getsockname=51, setsockopt=54, getsockopt=55, fcntl=72, sendmmsg=307, socketpair=53,
            epoll_create1=291, epoll_ctl=233, poll=7, munmap=11, mprotect=10, rt_sigaction=13, sched_setaffinity=203, prlimit64=302, writev=20, preadv=295,
            timer_create=222, seccomp=317, io_uring_enter=426, splice=275, sendfile=40, mlockall=151, setrlimit=160, pipe2=293, gettid=186, umask=95)
for _name, _nr in MORE.items():
    NR.setdefault(_name, _nr)

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def signed(v):
    return v - (1 << 64) if v >> 63 else v


class Puppet(Intruder):
    def __init__(self, pid):
        self.pid, self.data = pid, b""
        self._trace(SEIZE)
        self._trace(INTERRUPT)
        self._wait()
        self.regs = self._get()
        with open(f"/proc/{pid}/maps") as f:
            maps = [re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups() for line in f]
        self.mem = open(f"/proc/{pid}/mem", "r+b", buffering=0)
        self.gadget = self.scratch = None
        for low, high, rights in maps:
            low, size = int(low, 16), int(high, 16) - int(low, 16)
            if "x" in rights and self.gadget is None and size < 64 << 20:
                at = self._peek(low, size).find(b"\x0f\x05")
                self.gadget = low + at if at >= 0 else None
            if rights.startswith("rw") and size >= SCRATCH and self.scratch is None:
                self.scratch = low + size - SCRATCH
        assert self.gadget and self.scratch, maps
        self.kept = self._peek(self.scratch, SCRATCH)

    def _trace(self, request, address=0, data=0):
        if libc.ptrace(request, self.pid, address, data) < 0:
            e = ctypes.get_errno()
            raise OSError(e, f"ptrace({request:#x}): {os.strerror(e)}")

    def _wait(self):
        """Its next stop; Killed when it has ended."""
        _, status = os.waitpid(self.pid, WALL)
        if not os.WIFSTOPPED(status):
            raise Killed(str(status))
        return os.WSTOPSIG(status)

    def _peek(self, at, n):
        try:
            self.mem.seek(at)
            return self.mem.read(n)
        except OSError:
            return b""

    def _get(self):
        buf = ctypes.create_string_buffer(8 * len(REGS))
        self._trace(GETREGS, 0, ctypes.addressof(buf))
        return dict(zip(REGS, struct.unpack(f"<{len(REGS)}Q", buf.raw)))

    def _set(self, regs):
        buf = ctypes.create_string_buffer(struct.pack(f"<{len(REGS)}Q", *(regs[r] & (1 << 64) - 1 for r in REGS)))
        self._trace(SETREGS, 0, ctypes.addressof(buf))

    def call(self, name, *args):
        """As Intruder.call; a Pointer's bytes lie in the process's memory, and what the call wrote there is in self.data."""
        values, data = [], b""
        for a in args:
            if isinstance(a, Pointer):
                values.append(self.scratch + len(data))
                data += a.data + b"\0" * (-len(a.data) % 16)
            else:
                values.append(a)
        assert len(data) <= SCRATCH
        self.mem.seek(self.scratch)
        self.mem.write(data or b"\0")
        regs = {**self.regs, "rip": self.gadget, "rax": NR[name] if isinstance(name, str) else name, "orig_rax": -1}
        regs.update(zip(ARGUMENTS, values + [0] * (6 - len(values))))
        try:
            self._set(regs)
            while True:
                self._trace(SINGLESTEP)
                if self._wait() == signal.SIGTRAP and self._get()["rip"] != self.gadget:
                    break
        except OSError as e:
            if e.errno == errno.ESRCH:
                self._gone()
                raise Killed(str(name))
            raise
        except Killed:
            self._gone()
            raise Killed(str(name))
        result = signed(self._get()["rax"])
        self.data = self._peek(self.scratch, max(len(data), 1))
        return errno.errorcode.get(-result, str(result)) if -4096 < result < 0 else result

    def at(self, pointer_bytes_before):
        """The address that a Pointer has when so many bytes (rounded up to 16 each) stand before it: for structures of pointers."""
        return self.scratch + pointer_bytes_before

    def _gone(self):
        self.mem.close()
        self.pid = None

    def close(self):
        """Lets it go on as if nothing had happened."""
        if self.pid is None:
            return
        self.mem.seek(self.scratch)
        self.mem.write(self.kept)
        regs = dict(self.regs)
        if signed(regs["orig_rax"]) >= 0 and -516 <= signed(regs["rax"]) <= -512:      # a call that was to be restarted
            regs.update(rax=regs["orig_rax"], rip=regs["rip"] - 2)
        regs["orig_rax"] = -1
        self._set(regs)
        self._trace(DETACH)
        self._gone()
