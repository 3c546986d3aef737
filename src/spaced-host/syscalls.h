/*
 * The system calls of the bridge (seccomp allow-list): node-manager loads it just before it
 * executes spaced-host, so execve is there for that one call; with no file, socket or process to be
 * had in its jail there is nothing to execute. No socket, connect, bind, open: all that it has are
 * the two listening sockets, and the guest channel that is handed in. Recorded (docs/syscalls.md);
 * test_bridge.c runs the bridge under this list too.
 */
#ifndef SPACED_HOST_SYSCALLS_H
#define SPACED_HOST_SYSCALLS_H

static const char *const bridge_syscalls[] = {
	/* start of a static program */
	"execve", "brk", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64",
	"mprotect", "readlink", "getrandom",
	/* memory */
	"mmap", "munmap", "mremap",
	/* the loop */
	"epoll_create1", "epoll_ctl", "epoll_wait", "eventfd2", "fcntl", "close",
	/* streams, channel and control socket */
	"listen", "accept4", "getsockopt", "recvmsg", "recvfrom", "sendto", "read", "write",
	"shutdown",
	/* not seen: the clock where the vDSO has none for the clock source */
	"clock_gettime",
	/* not seen: the end on an error */
	"exit_group",
	NULL
};

#endif
