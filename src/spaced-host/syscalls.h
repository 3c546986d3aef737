/*
 * The system calls of the bridge (seccomp allow-list): node-manager loads it just before it executes spaced-host, so
 * execve is there for that one call; with no file, socket or process to be had in its jail there is nothing to execute.
 * No socket, connect, bind, open: all that it has are the two listening sockets, and the guest channel that is handed in.
 */
#ifndef SPACED_HOST_SYSCALLS_H
#define SPACED_HOST_SYSCALLS_H

static const char *const bridge_syscalls[] = {
	/* start of a static program */
	"execve", "brk", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64", "mprotect", "readlink",
	"readlinkat", "getrandom", "uname",
	/* memory */
	"mmap", "munmap", "mremap", "madvise",
	/* the loop */
	"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2", "signalfd4", "timerfd_create",
	"timerfd_settime", "clock_gettime", "rt_sigprocmask", "rt_sigaction", "rt_sigreturn", "restart_syscall",
	/* streams and control socket */
	"listen", "accept4", "recvmsg", "recvfrom", "sendmsg", "sendto", "read", "write", "readv", "writev", "shutdown",
	"close", "fcntl", "getsockopt", "getpid", "gettid", "tgkill", "exit", "exit_group", "prctl",
	/* stdio looks at its descriptor */
	"fstat", "newfstatat",
	NULL
};

#endif
