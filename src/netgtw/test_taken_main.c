/*
 * A main process that was taken over: it runs in main's place, under main's list of system calls
 * and with main's descriptors, and tries to get further. `--attack NAME`; the exit code is 0 when
 * what was tried got nowhere, and a call that is not allowed is the process's death
 * (test_taken.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "netgtw/proto.h"

static struct out_rep rep;

/* Returns the socket or -1; `rep` says why. */
static int ask(int sock, struct out_req q)
{
	size_t n = 1;
	int fd = -1;

	q.magic = PROTO_MAGIC;
	memset(&rep, 0xff, sizeof(rep));
	fd_set_nonblock(sock, false);
	if (send(sock, &q, sizeof(q), 0) != sizeof(q) ||
	    fd_recv(sock, &rep, sizeof(rep), &fd, &n, 0) != sizeof(rep))
		_exit(90);
	return n == 1 ? fd : -1;
}

static int dial(const char *addr, uint16_t port)
{
	struct out_req q = { .kind = OUT_DIAL };

	if (addr_parse(addr, &q.addr) < 0)
		_exit(91);
	q.addr.port = port;
	return ask(GTW_MAIN_OUTSIDE, q);
}

/* A public address, which the guest may dial itself. */
static int good(void)
{
	int fd = dial("9.9.10.2", 80);

	if (fd < 0 || rep.answer != OUT_OK)
		_exit(92);
	return fd;
}

static struct sockaddr_in loopback(void)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(22),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int try_socket(void) { return socket(AF_INET, SOCK_STREAM, 0); }
static int try_socketpair(void) { int sv[2]; return socketpair(AF_UNIX, SOCK_STREAM, 0, sv); }
static int try_listen(void) { return listen(good(), 5); }
static int try_ptrace(void) { return (int)ptrace(PTRACE_ATTACH, getpid() + 1, NULL, NULL); }
static int try_kill(void) { return kill(1, SIGKILL); }
static int try_fork(void) { return (int)syscall(SYS_fork); }
static int try_clone(void) { return (int)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); }
static int try_unshare(void) { return unshare(CLONE_NEWUSER | CLONE_NEWNET); }
static int try_setns(void) { return setns(3, CLONE_NEWNET); }
static int try_mount(void) { return mount("none", "/", "tmpfs", 0, NULL); }
static int try_dup(void) { return dup(3); }
static int try_dup2(void) { return dup2(good(), 3); }
static int try_fcntl_dup(void) { return fcntl(3, F_DUPFD, 100); }
static int try_fcntl_own(void) { return fcntl(3, F_SETOWN, 1); }
static int try_ioctl(void) { int n; return ioctl(3, FIONREAD, &n); }
static int try_io_uring(void)
{
	char p[256] = { 0 };
	return (int)syscall(SYS_io_uring_setup, 8, p);
}
static int try_pidfd(void) { return (int)syscall(SYS_pidfd_open, 1, 0); }
static int try_pidfd_getfd(void) { return (int)syscall(SYS_pidfd_getfd, 3, 3, 0); }
static int try_vm_write(void)
{
	struct iovec v = { "x", 1 };
	return (int)process_vm_writev(1, &v, 1, &v, 1, 0);
}
static int try_memfd(void) { return memfd_create("x", 0); }
static int try_bpf(void) { return (int)syscall(SYS_bpf, 0, NULL, 0); }
static int try_openat2(void) { return (int)syscall(SYS_openat2, AT_FDCWD, "/", "", 0); }
static int try_open(void) { return (int)syscall(SYS_open, "/proc/self/status", O_RDONLY); }

static int try_bind(void)
{
	struct sockaddr_in sa = loopback();

	return bind(good(), (struct sockaddr *)&sa, sizeof(sa));
}

/* The way in which a connected socket is turned. */
static int try_reconnect(void)
{
	struct sockaddr sa = { .sa_family = AF_UNSPEC };

	return connect(good(), &sa, sizeof(sa));
}

static int try_sendto(void)
{
	struct sockaddr_in sa = loopback();
	int fd = ask(GTW_MAIN_RESOLVER, (struct out_req){ .kind = OUT_DNS_UDP });

	return (int)sendto(fd, "x", 1, 0, (struct sockaddr *)&sa, sizeof(sa));
}

static int try_fastopen(void) { return (int)sendto(good(), "x", 1, MSG_FASTOPEN, NULL, 0); }

static int try_sendmsg(void)
{
	struct sockaddr_in sa = loopback();
	struct msghdr h = { .msg_name = &sa, .msg_namelen = sizeof(sa) };

	return (int)sendmsg(ask(GTW_MAIN_RESOLVER, (struct out_req){ .kind = OUT_DNS_UDP }), &h, 0);
}

static int try_sendmmsg(void) { struct mmsghdr h = { 0 }; return sendmmsg(good(), &h, 1, 0); }
static int try_sockopt_device(void)
{
	return setsockopt(good(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 2);
}
static int try_sockopt_mark(void)
{
	int one = 1;
	return setsockopt(good(), SOL_SOCKET, SO_MARK, &one, sizeof(one));
}
static int try_sockopt_ip(void)
{
	int one = 1;
	return setsockopt(good(), IPPROTO_IP, IP_TRANSPARENT, &one, sizeof(one));
}
static int try_sockopt_tcp(void)
{
	return setsockopt(good(), IPPROTO_TCP, 31 /* TCP_ULP */, "tls", 3);
}
static int try_getsockopt(void)
{
	char b[64];
	socklen_t n = sizeof(b);
	return getsockopt(3, SOL_SOCKET, SO_PEERSEC, b, &n);
}

/* Not death, but nothing either. */
static int try_openat(void)
{
	return openat(AT_FDCWD, "/proc/self/status", O_RDONLY) == -1 && errno == ENOSYS ? 0 : 1;
}

/* ---- Asking outside ---- */

static int ask_floor(void)
{
	static const char *const addrs[] = {
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "10.255.255.255", "172.31.255.255",
		"192.168.0.1", "169.254.169.254", "100.100.100.100", "224.0.0.1", "255.255.255.255",
		"9.9.10.1", "9.9.10.4", "9.9.20.7", "2a10:9999:0:20::7",
		"::1", "::", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
		"::ffff:9.9.10.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::9",
		"2002:7f00:1::",
		"2002:a00:1::1", "2001:0:a00:1::", "fe80::1", "fec0::1", "fd00::1", "ff02::1",
		"2a10:9999::1", "2a10:9999::200:5efe:a00:1", "4000::1", "5f00::1", "100::1",
	};

	for (size_t i = 0; i < ARRAY_LEN(addrs); i++) {
		if (dial(addrs[i], 80) >= 0 || rep.answer != OUT_FLOOR)
			return (int)i + 1;
	}
	return 0;
}

static int ask_odd(void)
{
	struct out_req q = { .kind = OUT_DIAL,
			     .addr = { .family = 4, .ip = { 9, 9, 10, 2 }, .port = 80 } };

	q.addr.ip[15] = 1;                           /* an IPv4 address with more behind it */
	if (ask(GTW_MAIN_OUTSIDE, q) >= 0 || rep.answer != OUT_FLOOR)
		return 1;
	q.addr.ip[15] = 0;
	q.addr.family = 2;
	if (ask(GTW_MAIN_OUTSIDE, q) >= 0 || rep.answer != OUT_FLOOR)
		return 2;
	q.addr.family = 4;
	q.addr.port = 0;
	if (ask(GTW_MAIN_OUTSIDE, q) >= 0)
		return 3;
	q.addr.port = 80;
	if (ask(GTW_MAIN_RESOLVER, q) < 0)
		return 4;
	return 0;
}

static int ask_nameserver(void)
{
	static const uint32_t bad[] = { 1, 2, 3, 100, UINT32_MAX };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct out_req q = { .kind = OUT_DNS_UDP, .index = bad[i] };

		if (ask(GTW_MAIN_RESOLVER, q) >= 0 || rep.answer != OUT_INDEX)
			return 1;
		q.kind = OUT_DNS_TCP;
		if (ask(GTW_MAIN_RESOLVER, q) >= 0 || rep.answer != OUT_INDEX)
			return 2;
	}
	/* An address is not looked at, and not over the other pair. */
	if (ask(GTW_MAIN_OUTSIDE, (struct out_req){ .kind = OUT_DNS_UDP }) >= 0)
		return 3;
	return ask(GTW_MAIN_RESOLVER, (struct out_req){ .kind = OUT_DNS_UDP }) < 0;
}

static int ask_kind(void)
{
	struct out_req q = { .magic = PROTO_MAGIC, .kind = OUT_KIND_COUNT };
	char c;

	/* outside ends, and with it all. */
	send(GTW_MAIN_OUTSIDE, &q, sizeof(q), 0);
	fd_set_nonblock(GTW_MAIN_OUTSIDE, false);
	return recv(GTW_MAIN_OUTSIDE, &c, 1, 0) == 0 ? 0 : 1;
}

static int ask_closed(void)
{
	return dial("9.9.10.2", 80) < 0 && rep.answer == OUT_INTERNET &&
			       ask(GTW_MAIN_RESOLVER, (struct out_req) { .kind = OUT_DNS_UDP }) <
				       0 &&
			       rep.answer == OUT_INTERNET
		       ? 0
		       : 1;
}

/* inside dials the guest, whatever is said. */
static int ask_inside(void)
{
	struct in_msg m = { .magic = PROTO_MAGIC, .kind = IN_DIAL, .id = 1, .port = 80,
			    .guest = { .family = 4, .ip = { 127, 0, 0, 1 } } };
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct addr peer, guest;
	size_t n = 1;
	int fd = -1;

	fd_set_nonblock(GTW_MAIN_INSIDE, false);
	if (send(GTW_MAIN_INSIDE, &m, sizeof(m), 0) != sizeof(m) ||
	    fd_recv(GTW_MAIN_INSIDE, &m, sizeof(m), &fd, &n, 0) != sizeof(m))
		return 1;
	if (n == 0)
		return 0;
	addr_parse(GTW_GUEST_V4, &guest);
	return getpeername(fd, (struct sockaddr *)&ss, &len) < 0 ||
	       addr_of_sockaddr(&ss, &peer) < 0 || !addr_eq(&peer, &guest);
}

#define TRY(name) { #name, try_##name }
#define ASK(name) { "ask-" #name, ask_##name }
static const struct { const char *name; int (*fn)(void);
} attacks[] = {
	TRY(socket),	   TRY(socketpair), TRY(listen),      TRY(ptrace),     TRY(kill),
	TRY(fork),	   TRY(clone),	    TRY(unshare),     TRY(setns),      TRY(mount),
	TRY(dup),	   TRY(dup2),	    TRY(fcntl_dup),   TRY(fcntl_own),  TRY(ioctl),
	TRY(io_uring),	   TRY(pidfd),	    TRY(pidfd_getfd), TRY(vm_write),   TRY(memfd),
	TRY(bpf),	   TRY(openat2),    TRY(open),	      TRY(bind),       TRY(reconnect),
	TRY(sendto),	   TRY(fastopen),   TRY(sendmsg),     TRY(sendmmsg),   TRY(sockopt_device),
	TRY(sockopt_mark), TRY(sockopt_ip), TRY(sockopt_tcp), TRY(getsockopt), TRY(openat),
	ASK(floor),	   ASK(odd),	    ASK(nameserver),  ASK(kind),       ASK(closed),
	ASK(inside),
};

int main(int argc, char **argv)
{
	/* The names alone, for the test. */
	for (size_t i = 0; argc == 1 && i < ARRAY_LEN(attacks); i++) {
		if (write(1, attacks[i].name, strlen(attacks[i].name)) < 0 || write(1, "\n", 1) < 0)
			return 99;
	}
	for (int k = 1; k + 1 < argc; k++) {
		for (size_t i = 0; str_eq(argv[k], "--attack") && i < ARRAY_LEN(attacks); i++) {
			if (str_eq(argv[k + 1], attacks[i].name))
				return attacks[i].fn();
		}
	}
	return argc == 1 ? 0 : 99;
}
