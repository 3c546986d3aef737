/*
 * The system calls of the three processes of a gateway (seccomp allow-lists, death as default):
 * node-manager loads them just before it executes netgtw, so execve is there for that one call.
 * What is allowed with certain arguments alone stands in the tables of rules beside the lists.
 * Recorded (docs/syscalls.md); the unit tests run the processes under these lists too, and a
 * hostile program in main's place.
 *
 * main must not be able to make a socket or to turn one that it was given to another address. A
 * TCP socket is turned by connect(2) with AF_UNSPEC and again; by listen(2) after a failed connect
 * (that is why it has no listen, and node-manager's child calls it); by MSG_FASTOPEN. A UDP one by
 * an address in sendto(2) or sendmsg(2). So: no socket, connect, bind, listen, sendmsg, sendmmsg,
 * ioctl; sendto without an address and without MSG_FASTOPEN; options of sockets as listed.
 */
#ifndef NETGTW_SYSCALLS_H
#define NETGTW_SYSCALLS_H

#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "daemon/seccomp.h"

/* All three: start of a static program, memory, text on descriptor 2, the end. */
static const char *const gtw_common_syscalls[] = {
	"execve", "brk", "arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64",
	"mprotect", "readlink", "getrandom",
	"mmap", "munmap",
	"write", "close", "recvmsg",
	/* not seen: realloc(3) of large buffers */
	"mremap",
	/* not seen: the clock where the vDSO has none for the clock source */
	"clock_gettime",
	/* not seen: poll goes on by this after SIGSTOP and SIGCONT */
	"restart_syscall",
	/* not seen: the end on an error, by abort(3) or a failed assertion with its message */
	"exit_group", "rt_sigprocmask", "gettid", "getpid", "tgkill", "writev",
	NULL
};

static const char *const gtw_main_syscalls[] = {
	/* the loop */
	"epoll_create1", "epoll_ctl", "epoll_wait", "eventfd2", "read", "poll",
	/* flows, control socket */
	"accept4", "recvfrom", "shutdown", "getsockname", "getpeername",
	NULL
};

#define GTW_KEEP_ALIVE_RULES                                                                      \
	{ "setsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_KEEPALIVE } } },  \
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_KEEPIDLE } } }, \
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_KEEPINTVL } } }, \
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_KEEPCNT } } }

static const struct seccomp_rule gtw_main_rules[] = {
	{ "sendto", { { 3, MSG_FASTOPEN, 0 }, { 4, SECCOMP_ALL, 0 } } },
	{ "getsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_ERROR } } },
	{ "getsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_PEERCRED } } },
	{ "getsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_TYPE } } },
	{ "setsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_LINGER } } },
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_NODELAY } } },
	{ "setsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_OOBINLINE } } },
	GTW_KEEP_ALIVE_RULES,
	{ "fcntl", { { 1, SECCOMP_INT, F_GETFL } } },
	{ "fcntl", { { 1, SECCOMP_INT, F_SETFL } } },
	{ "fcntl", { { 1, SECCOMP_INT, F_GETFD } } },
	{ "fcntl", { { 1, SECCOMP_INT, F_SETFD } } },
	{ NULL }
};

/* These answer ENOSYS in main: c-ares asks /dev/urandom for a key that nothing here depends on. */
static const char *const gtw_main_enosys[] = { "openat", NULL };

/* No Unix socket (those without a file belong to the network namespace). */
#define GTW_SOCKET_RULES \
	{ "socket", { { 0, SECCOMP_INT, AF_INET } } }, { "socket", { { 0, SECCOMP_INT, AF_INET6 } } }

/* inside: in the sandbox's netns, where every packet goes to the guest. */
static const char *const gtw_inside_syscalls[] = {
	"epoll_create1", "epoll_ctl", "epoll_wait", "eventfd2",
	"connect", "sendto", "sendmsg", "recvfrom",
	/* not seen: the answer to a dial waits until main has room for it */
	"poll",
	NULL
};
static const struct seccomp_rule gtw_inside_rules[] = {
	GTW_SOCKET_RULES,
	{ "getsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_ERROR } } },
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_NODELAY } } },
	{ "setsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_OOBINLINE } } },
	{ NULL }
};

/* outside: in the node's netns; a loop around poll(2) and structs of fixed size. */
static const char *const gtw_outside_syscalls[] = {
	"poll", "connect", "sendmsg", "sendto",
	NULL
};
/* It asks the kernel for routes; without capabilities netlink only tells. */
static const struct seccomp_rule gtw_outside_rules[] = {
	GTW_SOCKET_RULES,
	{ "socket", { { 0, SECCOMP_INT, AF_NETLINK }, { 2, SECCOMP_INT, NETLINK_ROUTE } } },
	{ "setsockopt", { { 1, SECCOMP_INT, IPPROTO_TCP }, { 2, SECCOMP_INT, TCP_NODELAY } } },
	{ "setsockopt", { { 1, SECCOMP_INT, SOL_SOCKET }, { 2, SECCOMP_INT, SO_OOBINLINE } } },
	GTW_KEEP_ALIVE_RULES,
	{ NULL }
};

#endif
