"""Orders to the intruder (tests/tools/intruder.c): system calls made from where the VMM or the bridge would stand."""

import ctypes
import errno
import os
import socket
import struct

DATA = 16384
ORDER = struct.Struct(f"<qqqqqqqqq{DATA}s")

# x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)
NR = dict(read=0, write=1, open=2, close=3, stat=4, mmap=9, ioctl=16, pipe=22, dup=32, getpid=39, socket=41, connect=42, sendto=44, bind=49, listen=50,
          fork=57, vfork=58, execve=59, exit=60, kill=62, uname=63, getdents=78, chdir=80, rename=82, mkdir=83, unlink=87, chmod=90, chown=92, getuid=102, syslog=103,
          setuid=105, ptrace=101, setgid=106, getppid=110, setreuid=113, setgroups=116, setresuid=117, capget=125, capset=126, mknod=133, personality=135, prctl=157,
          chroot=161, pivot_root=155, mount=165, umount2=166, swapon=167, reboot=169, sethostname=170, init_module=175, finit_module=313, delete_module=176,
          tkill=200, io_setup=206, keyctl=250, add_key=248, request_key=249, openat=257, mkdirat=258, mknodat=259, unshare=272, setns=308,
          name_to_handle_at=303, open_by_handle_at=304, process_vm_readv=310, process_vm_writev=311, kcmp=312, bpf=321, userfaultfd=323,
          perf_event_open=298, kexec_load=246, clone3=435, clone=56, pidfd_open=434, pidfd_getfd=438, pidfd_send_signal=424, io_uring_setup=425, openat2=437, memfd_create=319,
          shmget=29, msgget=68, semget=64, mq_open=240, getdents64=217, tgkill=234, execveat=322, statx=332, open_tree=428, move_mount=429, fsopen=430,
          fanotify_init=300, inotify_init1=294, acct=163, quotactl=179, iopl=172, ioperm=173, modify_ldt=154, lookup_dcookie=212, landlock_create_ruleset=444)

AF = dict(unix=1, inet=2, inet6=10, netlink=16, packet=17, alg=38, vsock=40, bluetooth=31, can=29)


class Killed(Exception):
    """The process was ended by the call."""


class Pointer:
    def __init__(self, data):
        self.data = data if isinstance(data, bytes) else data.encode() + b"\0"


class Intruder:
    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(20)

    def call(self, name, *args):
        """The result, or the name of the error ("EPERM"); Killed when the process did not survive it. Also gives self.data."""
        values, pointers, data = [], 0, b""
        for i, a in enumerate(args):
            if isinstance(a, Pointer):
                pointers |= 1 << i
                values.append(len(data))
                data += a.data + b"\0" * (-len(a.data) % 16)
            else:
                values.append(a)
        values += [0] * (6 - len(values))
        order = ORDER.pack(NR[name], *values, pointers, 0, data)
        try:
            self.sock.sendall(order)
            answer = b""
            while len(answer) < ORDER.size:
                part = self.sock.recv(ORDER.size - len(answer))
                if not part:
                    raise Killed(name)
                answer += part
        except (ConnectionError, BrokenPipeError):
            raise Killed(name)
        fields = ORDER.unpack(answer)
        self.data = fields[9]
        result = fields[8]
        return errno.errorcode.get(-result, str(result)) if -4096 < result < 0 else result

    def open(self, path, flags=os.O_RDONLY):
        return self.call("openat", -100, Pointer(path), flags, 0)

    def names(self, path):
        """The names in a folder; the error's name when it cannot be read."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        if not isinstance(fd, int):
            return fd
        found, size = [], 8192
        while isinstance(n := self.call("getdents64", fd, Pointer(b"\0" * size), size), int) and n > 0:
            at = 0
            while at < n:
                length = struct.unpack_from("<H", self.data, at + 16)[0]
                found.append(self.data[at + 19:at + length].split(b"\0")[0].decode())
                at += length
        self.call("close", fd)
        return sorted(set(found) - {".", ".."})

    def connect_unix(self, path, kind=socket.SOCK_STREAM):
        fd = self.call("socket", AF["unix"], kind, 0)
        if not isinstance(fd, int):
            return fd
        r = self.call("connect", fd, Pointer(struct.pack("<H", AF["unix"]) + path.encode() + b"\0"), 2 + len(path) + 1)
        self.call("close", fd)
        return r

    def connect_inet(self, address, port):
        fd = self.call("socket", AF["inet"], socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0)
        if not isinstance(fd, int):
            return fd
        r = self.call("connect", fd, Pointer(struct.pack("!2sH4s8x", struct.pack("<H", AF["inet"]), port, socket.inet_aton(address))), 16)
        self.call("close", fd)
        return r

    def close(self):
        self.sock.close()


libc = ctypes.CDLL(None, use_errno=True)
NAMESPACES = ("cgroup", "ipc", "uts", "net", "pid", "mnt")


def beside(pid, program):
    """
    The intruder in the namespaces, root, uid, groups and (absent) capabilities of a running process, but without its system call
    filter: what the other walls hold by themselves. Gives (Intruder, pid).
    """
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
    uid, gid = int(status["Uid"].split()[0]), int(status["Gid"].split()[0])
    ours, theirs = socket.socketpair()
    fds = [os.open(f"/proc/{pid}/ns/{n}", os.O_RDONLY) for n in NAMESPACES]
    root, exe = os.open(f"/proc/{pid}/root", os.O_RDONLY), os.open(program, os.O_RDONLY)
    # A pidfd's process must be a child after setns(CLONE_NEWPID): so a middle process forks it and reports its pid.
    r, w = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            for fd in fds:
                if libc.setns(fd, 0) < 0:
                    os._exit(10)
            os.fchdir(root)
            os.chroot(".")
            child = os.fork()
            if child:
                os.write(w, struct.pack("<i", child))
                os._exit(0)
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            libc.prctl(38, 1, 0, 0, 0)          # PR_SET_NO_NEW_PRIVS
            os.dup2(exe, 100, inheritable=False)
            os.dup2(theirs.fileno(), 3)
            os.execve(100, ["intruder"], {})
        finally:
            os._exit(11)
    os.close(w)
    _, code = os.waitpid(middle, 0)
    for fd in (*fds, root, exe):
        os.close(fd)
    theirs.close()
    os.close(r)
    if code:
        raise AssertionError(f"could not enter the jail of {pid}: {code}")
    return Intruder(ours)
