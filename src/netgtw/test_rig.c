#include "netgtw/test_rig.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "daemon/seccomp.h"
#include "netgtw/syscalls.h"

/*
 * In the sandbox's namespace every address is local; the table after `main`, so that the guest's
 * own stays a neighbour.
 */
#define RIG_NFT \
	"table inet gateway {\n" \
	"	chain pre {\n" \
	"		type filter hook prerouting priority mangle; policy accept;\n" \
	"		iifname \"tap0\" meta nfproto ipv4 meta l4proto tcp tproxy ip to :15001 accept\n" \
	"		iifname \"tap0\" meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :15001 accept\n" \
	"	}\n" \
	"}\n"

void rig_enter(struct rig *r, enum rig_ns ns)
{
	assert_int_equal(setns(r->ns[ns], CLONE_NEWNET), 0);
}

void rig_leave(struct rig *r)
{
	assert_int_equal(setns(r->home, CLONE_NEWNET), 0);
}

void rig_sh(struct rig *r, enum rig_ns ns, const char *program, const char *arg, const char *input)
{
	int p[2], status;
	pid_t pid;

	assert_int_equal(pipe(p), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (setns(r->ns[ns], CLONE_NEWNET) < 0)
			_exit(126);
		dup2(p[0], 0);
		close(p[1]);
		if (str_eq(arg, "-6batch"))
			execl(program, program, "-6", "-batch", "-", (char *)NULL);
		execl(program, program, arg, "-", (char *)NULL);
		_exit(127);
	}
	close(p[0]);
	assert_int_equal(fd_write_all(p[1], input, strlen(input), -1), 0);
	close(p[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != 0)
		fail_msg("%s in namespace %d: %x, with\n%s", program, ns, status, input);
}

static void rig_ip(struct rig *r, enum rig_ns ns, const char *batch)
{
	rig_sh(r, ns, "/usr/sbin/ip", "-batch", batch);
}

/* By itself, IPv6 does not look into the table that IPv4 calls default. */
static void rig_rule6(struct rig *r, enum rig_ns ns)
{
	rig_sh(r, ns, "/usr/sbin/ip", "-6batch", "rule add pref 32767 table 253\n");
}

static void rig_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void rig_pair(struct rig *r, enum rig_ns a, const char *name_a, enum rig_ns b,
		     const char *name_b)
{
	char text[256];

	str_format(text, sizeof(text), "link add %s type veth peer name %s netns /proc/%d/fd/%d\n",
		   name_a, name_b, (int)getpid(), r->ns[b]);
	rig_ip(r, a, text);
}

void rig_net(struct rig *r)
{
	memset(r, 0, sizeof(*r));
	r->home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	assert_true(r->home >= 0);
	for (int i = 0; i < RIG_NS_COUNT; i++) {
		assert_int_equal(unshare(CLONE_NEWNET), 0);
		r->ns[i] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		assert_true(r->ns[i] >= 0);
		rig_write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
		rig_leave(r);
	}
	rig_pair(r, RIG_SANDBOX_NS, "tap0", RIG_GUEST, "eth0");
	rig_pair(r, RIG_NODE, "wan", RIG_INTERNET, "wan");
	rig_ip(r, RIG_GUEST, "link set lo up\nlink set eth0 up\naddr add 10.0.2.15/24 dev eth0\n"
			     "addr add fd53:5041:4345::15/64 dev eth0 nodad\nroute add default via 10.0.2.2\n"
			     "route add ::/0 via fd53:5041:4345::2\n");
	rig_ip(r, RIG_SANDBOX_NS,
	       "link set lo up\nlink set tap0 up\naddr add 10.0.2.2/24 dev tap0\n"
	       "addr add fd53:5041:4345::2/64 dev tap0 nodad\n"
	       "route add local 0.0.0.0/0 dev lo table default\nroute add local ::/0 dev lo table 253\n");
	rig_rule6(r, RIG_SANDBOX_NS);
	rig_rule6(r, RIG_INTERNET);
	rig_sh(r, RIG_SANDBOX_NS, "/usr/sbin/nft", "-f", RIG_NFT);
	/*
	 * Of its own addresses the kernel gives 9.9.10.4 (a second one of its net) and those of the
	 * local routes another source than themselves.
	 */
	rig_ip(r, RIG_NODE, "link set lo up\nlink set wan up\naddr add 9.9.10.1/24 dev wan\n"
			    "addr add 9.9.10.4/24 dev wan\naddr add 2a10:9999::1/64 dev wan nodad\n"
			    "route add local 9.9.20.0/24 dev lo src 9.9.10.1\n"
			    "route add local 2a10:9999:0:20::/64 dev lo\n"
			    "route add default via 9.9.10.2\nroute add ::/0 via 2a10:9999::2\n");
	/* Whatever address is called there, somebody answers: what is refused is refused before. */
	rig_ip(r, RIG_INTERNET, "link set lo up\nlink set wan up\naddr add 9.9.10.2/24 dev wan\n"
				"addr add 9.9.10.53/24 dev wan\naddr add 9.9.10.54/24 dev wan\n"
				"addr add 2a10:9999::2/64 dev wan nodad\n"
				"route add local 10.0.0.0/8 dev lo\nroute add local 172.16.0.0/12 dev lo\n"
				"route add local 192.168.0.0/16 dev lo\nroute add local 169.254.0.0/16 dev lo\n"
				"route add local 100.64.0.0/10 dev lo\nroute add local 198.18.0.0/15 dev lo\n"
				"route add local 8.8.8.0/24 dev lo\nroute add local 240.0.0.0/5 dev lo\n"
				"route add local ::/0 dev lo table 253\n"
				"route add blackhole 9.9.11.0/24\n");
}

/* ---- The processes ---- */

static int bind_unix(const char *path, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	str_copy(sa.sun_path, sizeof(sa.sun_path), path);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static void set_on(int fd, int level, int name)
{
	int one = 1;

	assert_int_equal(setsockopt(fd, level, name, &one, sizeof(one)), 0);
}

static int bind_ip(int family, int type, unsigned port)
{
	int fd = socket(family, type | SOCK_CLOEXEC, 0);
	struct addr a = { .family = family == AF_INET ? 4 : 6, .port = (uint16_t)port };
	struct sockaddr_storage ss;
	socklen_t n = addr_to_sockaddr(&a, &ss);

	assert_true(fd >= 0);
	set_on(fd, SOL_SOCKET, SO_REUSEADDR);
	set_on(fd, family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
	       family == AF_INET ? IP_TRANSPARENT : IPV6_TRANSPARENT);
	if (family == AF_INET6)
		set_on(fd, IPPROTO_IPV6, IPV6_V6ONLY);
	if (type == SOCK_DGRAM)
		set_on(fd, family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
		       family == AF_INET ? IP_PKTINFO : IPV6_RECVPKTINFO);
	assert_int_equal(bind(fd, (struct sockaddr *)&ss, n), 0);
	if (type == SOCK_STREAM)
		assert_int_equal(listen(fd, GTW_LISTEN_BACKLOG), 0);
	return fd;
}

struct role {
	const char *name;
	enum rig_ns ns;
	const int *fds;
	int n_fds, listen;               /* the first so many of them listen */
	const char *const *calls;
	const struct seccomp_rule *rules;
	const char *const *enosys;
	unsigned files;
};

static void role_exec(struct rig *r, const struct role *role, const char *program,
		      char *const *argv)
{
	const char *const *const lists[] = { gtw_common_syscalls, role->calls, NULL };
	struct rlimit files;
	int high[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setns(r->ns[role->ns], CLONE_NEWNET) < 0 || getrlimit(RLIMIT_NOFILE, &files) < 0)
		_exit(120);
	if (files.rlim_max > role->files)
		files.rlim_max = role->files;
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		_exit(120);
	for (int i = 0; i < role->n_fds; i++)
		high[i] = fcntl(role->fds[i], F_DUPFD, 100);
	for (int i = 0; i < role->n_fds; i++)
		dup2(high[i], 3 + i);
	close_range(3 + (unsigned)role->n_fds, ~0u, 0);
	if (setgroups(0, NULL) < 0 || setresgid(RIG_UID, RIG_UID, RIG_UID) < 0 ||
	    setresuid(RIG_UID, RIG_UID, RIG_UID) < 0)
		_exit(121);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < role->listen; i++)
		if (listen(3 + i, 512) < 0)
			_exit(122);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (seccomp_apply_rules(lists, role->rules, role->enosys, NULL) < 0)
		_exit(123);
	execve(program, argv, (char *[]){ NULL });
	_exit(124);
}

static pid_t role_start(struct rig *r, const struct role *role, const char *program,
			const char *const *more)
{
	char hex[2 * KEY_PUBLIC_BYTES + 1];
	const char *argv[48] = { "netgtw", "--role", role->name, "--sandbox", RIG_SANDBOX };
	int n = 5;
	pid_t pid;

	str_hex(hex, r->root_public, sizeof(r->root_public));
	if (str_eq(role->name, "main")) {
		const char *const own[] = { "--generation", "7", "--peer-uid", "0",
					    "--root-key",   hex, "--worker",   RIG_WORKER };

		memcpy(argv + n, own, sizeof(own));
		n += ARRAY_LEN(own);
	}
	for (; more && *more; more++)
		argv[n++] = *more;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		role_exec(r, role, program, (char *const *)argv);
	return pid;
}

static void rig_keys(struct rig *r)
{
	uint8_t public[KEY_PUBLIC_BYTES];

	assert_int_equal(key_init(), 0);
	assert_int_equal(key_generate("root", &r->root, r->root_public), 0);
	assert_int_equal(key_generate("api-1", &r->signer, public), 0);
	r->bundle = (struct key_bundle){ .number = 3, .n_keys = 1 };
	str_copy(r->bundle.keys[0].kid, sizeof(r->bundle.keys[0].kid), "api-1");
	memcpy(r->bundle.keys[0].public, public, sizeof(public));
	r->bundle.keys[0].purposes = 1u << ID_PURPOSE_CONTROL | 1u << ID_PURPOSE_SERVICE_PORT;
	r->id = (struct identity) { .tenant = "acme",
				    .sandbox = RIG_SANDBOX,
				    .worker = RIG_WORKER,
				    .generation = RIG_GENERATION,
				    .attempt = 2,
				    .activation = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
						    15, 16 } };
	r->next_lease = 100;
}

static void seqpacket(int sv[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
}

void rig_start(struct rig *r, const struct rig_conf *c)
{
	static const char *const outside_args[] = { "--internet", "yes", "--nameserver",
						    "9.9.10.53", NULL };
	unsigned files = c->files ? c->files : GTW_MAIN_NOFILE;
	unsigned part_files = c->part_files ? c->part_files : GTW_PART_NOFILE;
	int inside[2], dials[2], resolver[2], main_fds[7], inside_fds[3], outside_fds[2];

	rig_keys(r);
	str_copy(r->dir, sizeof(r->dir), "/tmp/test-netgtw-XXXXXX");
	assert_non_null(mkdtemp(r->dir));
	str_format(r->stream, sizeof(r->stream), "%s/gtw.sock", r->dir);
	str_format(r->control, sizeof(r->control), "%s/gtwctl.sock", r->dir);
	seqpacket(inside);
	seqpacket(dials);
	seqpacket(resolver);
	rig_enter(r, RIG_SANDBOX_NS);
	memcpy(main_fds,
	       (int[]) { bind_unix(r->stream, SOCK_STREAM), bind_unix(r->control, SOCK_SEQPACKET),
			 inside[0], dials[0], resolver[0],
			 bind_ip(AF_INET, SOCK_STREAM, GTW_TCP_PORT),
			 bind_ip(AF_INET6, SOCK_STREAM, GTW_TCP_PORT) },
	       sizeof(main_fds));
	memcpy(inside_fds,
	       (int[]) { inside[1], bind_ip(AF_INET, SOCK_DGRAM, GTW_DNS_PORT),
			 bind_ip(AF_INET6, SOCK_DGRAM, GTW_DNS_PORT) },
	       sizeof(inside_fds));
	memcpy(outside_fds, (int[]){ dials[1], resolver[1] }, sizeof(outside_fds));
	rig_leave(r);
	r->pid[1] =
		role_start(r,
			   &(struct role) { "inside", RIG_SANDBOX_NS, inside_fds, 3, 0,
					    gtw_inside_syscalls, gtw_inside_rules, NULL,
					    part_files },
			   c->program, NULL);
	r->pid[2] =
		role_start(r,
			   &(struct role) { "outside", RIG_NODE, outside_fds, 2, 0,
					    gtw_outside_syscalls, gtw_outside_rules, NULL,
					    part_files },
			   c->program, c->outside_args ? c->outside_args : outside_args);
	r->pid[0] =
		role_start(r,
			   &(struct role) { "main", RIG_EMPTY, main_fds, 7, 2, gtw_main_syscalls,
					    gtw_main_rules, gtw_main_enosys, files },
			   c->main_program ? c->main_program : c->program, c->main_args);
	for (int i = 0; i < 7; i++)
		close(main_fds[i]);
	for (int i = 0; i < 3; i++)
		close(inside_fds[i]);
	close(outside_fds[0]);
	close(outside_fds[1]);
}

void rig_stop_processes(struct rig *r)
{
	ipc_sync_close(TAKE(r->ctl));
	for (int i = 0; i < 3; i++) {
		if (r->pid[i] <= 0)
			continue;
		kill(r->pid[i], SIGKILL);
		waitpid(r->pid[i], NULL, 0);
		r->pid[i] = 0;
	}
	unlink(r->stream);
	unlink(r->control);
	rmdir(r->dir);
}

void rig_stop(struct rig *r)
{
	rig_stop_processes(r);
	for (int i = 0; i < RIG_NS_COUNT; i++)
		close(r->ns[i]);
	close(r->home);
}

static struct ipc_sync *rig_ctl(struct rig *r)
{
	int64_t until = clock_mono_ms() + RIG_WAIT_MS;

	while (!r->ctl && clock_mono_ms() < until) {
		if (ipc_sync_open(r->control, (uid_t)-1, &r->ctl, NULL) < 0)
			poll(NULL, 0, 5);
	}
	assert_non_null(r->ctl);
	return r->ctl;
}

void rig_install(struct rig *r)
{
	struct gtw_install i = { .generation = r->id.generation, .attempt = r->id.attempt,
				 .substrate = "microvm" };
	struct gtw_bundle_rep rep;
	struct err e = { 0 };
	autofree char *text = NULL;

	str_copy(i.tenant, sizeof(i.tenant), r->id.tenant);
	str_copy(i.sandbox, sizeof(i.sandbox), r->id.sandbox);
	str_copy(i.worker, sizeof(i.worker), r->id.worker);
	str_hex(i.activation, r->id.activation, sizeof(r->id.activation));
	assert_int_equal(bundle_sign(&r->bundle, &r->root, &text, &e), 0);
	str_copy(i.bundle, sizeof(i.bundle), text);
	if (ipc_sync_call(rig_ctl(r), &gtw_ops[GTW_INSTALL], "r", &i, NULL, 0, &rep, NULL, NULL,
			  RIG_WAIT_MS, &e) < 0)
		fail_msg("install: %s", e.text);
	assert_int_equal(rep.number, r->bundle.number);
}

void rig_open(struct rig *r)
{
	struct err e = { 0 };

	if (ipc_sync_call(rig_ctl(r), &gtw_ops[GTW_OPEN], "r", NULL, NULL, 0, NULL, NULL, NULL,
			  RIG_WAIT_MS, &e) < 0)
		fail_msg("open: %s", e.text);
}

void rig_fresh(struct rig *r, const struct rig_conf *c)
{
	rig_stop_processes(r);
	rig_start(r, c);
	rig_install(r);
	rig_open(r);
}

uint64_t rig_revoke(struct rig *r, uint64_t lease)
{
	struct ipc_revoke q = { lease };
	struct ipc_revoke_rep rep;

	assert_int_equal(ipc_sync_call(rig_ctl(r), &gtw_ops[GTW_REVOKE], "r", &q, NULL, 0, &rep,
				       NULL, NULL, RIG_WAIT_MS, NULL),
			 0);
	return rep.ended;
}

/* ---- Sockets ---- */

int rig_socket(struct rig *r, enum rig_ns ns, int family, int type)
{
	int fd;

	rig_enter(r, ns);
	fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	rig_leave(r);
	assert_true(fd >= 0);
	return fd;
}

static socklen_t to_sockaddr(const char *addr, unsigned port, struct sockaddr_storage *ss)
{
	struct addr a;

	assert_int_equal(addr_parse(addr, &a), 0);
	a.port = (uint16_t)port;
	return addr_to_sockaddr(&a, ss);
}

static int rig_bound(struct rig *r, enum rig_ns ns, const char *addr, unsigned port, int type)
{
	struct sockaddr_storage ss;
	socklen_t n = to_sockaddr(addr, port, &ss);
	int fd = rig_socket(r, ns, ss.ss_family, type);

	set_on(fd, SOL_SOCKET, SO_REUSEADDR);
	if (ss.ss_family == AF_INET6)
		set_on(fd, IPPROTO_IPV6, IPV6_V6ONLY);
	if (bind(fd, (struct sockaddr *)&ss, n) < 0)
		fail_msg("bind %s port %u: %s", addr, port, strerror(errno));
	return fd;
}

int rig_listen(struct rig *r, enum rig_ns ns, const char *addr, unsigned port)
{
	int fd = rig_bound(r, ns, addr, port, SOCK_STREAM);

	assert_int_equal(listen(fd, 8192), 0);
	return fd;
}

int rig_udp(struct rig *r, enum rig_ns ns, const char *addr, unsigned port)
{
	return rig_bound(r, ns, addr, port, SOCK_DGRAM);
}

bool rig_wait(int fd, short events, int ms)
{
	struct pollfd p = { .fd = fd, .events = events };

	return poll(&p, 1, ms) == 1;
}

int rig_call(struct rig *r, enum rig_ns ns, const char *addr, unsigned port)
{
	struct sockaddr_storage ss;
	socklen_t n = to_sockaddr(addr, port, &ss);
	int fd = rig_socket(r, ns, ss.ss_family, SOCK_STREAM), error;

	if (connect(fd, (struct sockaddr *)&ss, n) == 0 || errno == EINPROGRESS)
		return fd;
	error = errno;
	close(fd);
	return -error;
}

int rig_connect(struct rig *r, enum rig_ns ns, const char *addr, unsigned port)
{
	int fd = rig_call(r, ns, addr, port), error = 0;
	socklen_t n = sizeof(error);

	if (fd < 0)
		return fd;
	if (!rig_wait(fd, POLLOUT, RIG_WAIT_MS))
		error = ETIMEDOUT;
	else
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
	if (error == 0)
		return fd;
	close(fd);
	return -error;
}

int rig_accept(int listener)
{
	int fd;

	if (!rig_wait(listener, POLLIN, RIG_WAIT_MS))
		fail_msg("nobody has connected");
	fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

void rig_send(int fd, const void *p, size_t n)
{
	assert_int_equal(fd_write_all(fd, p, n, RIG_WAIT_MS), 0);
}

size_t rig_recv(int fd, void *p, size_t n)
{
	ssize_t got = fd_read_full(fd, p, n, RIG_WAIT_MS);

	if (got < 0)
		fail_msg("recv: %s", strerror((int)-got));
	return (size_t)got;
}

bool rig_ended(int fd)
{
	char c;

	return rig_wait(fd, POLLIN, RIG_WAIT_MS) && recv(fd, &c, 1, 0) == 0;
}

bool rig_was_reset(int fd)
{
	char c;

	return rig_wait(fd, POLLIN, RIG_WAIT_MS) && recv(fd, &c, 1, 0) < 0 && errno == ECONNRESET;
}

/* ---- ServicePort ---- */

void rig_capability(struct rig *r, unsigned port, enum id_protocol protocol, struct capability *c,
		    struct gtw_preamble *p)
{
	*c = (struct capability){ .id = r->id, .purpose = ID_PURPOSE_SERVICE_PORT, .access = ID_ACCESS_WRITE,
				  .port = (uint16_t)port, .protocol = protocol };
	*p = (struct gtw_preamble){ .magic = GTW_PREAMBLE_MAGIC, .lease = r->next_lease++,
				    .generation = r->id.generation, .port = (uint16_t)port,
				    .protocol = (uint8_t)protocol };
	memcpy(p->activation, r->id.activation, sizeof(p->activation));
}

int rig_port_open(struct rig *r, const struct capability *c, const struct key_signer *signer,
		  struct gtw_preamble *p)
{
	char token[CAP_TEXT_MAX], all[sizeof(*p) + CAP_TEXT_MAX];
	struct err e = { 0 };
	int64_t until = clock_mono_ms() + RIG_WAIT_MS;
	int fd = -1;

	/* Its socket is listened on when the process is about to be there. */
	while (fd < 0 && clock_mono_ms() < until) {
		fd = fd_unix_connect(r->stream, SOCK_STREAM, RIG_WAIT_MS);
		if (fd < 0)
			poll(NULL, 0, 5);
	}
	assert_true(fd >= 0);
	if (cap_sign(c, signer, clock_wall_ms() / 1000, token, &e) < 0)
		fail_msg("cap_sign: %s", e.text);
	if (p->token_len == 0)
		p->token_len = (uint32_t)strlen(token);
	memcpy(all, p, sizeof(*p));
	memcpy(all + sizeof(*p), token, strlen(token));
	rig_send(fd, all, sizeof(*p) + strlen(token));
	fd_set_nonblock(fd, true);
	return fd;
}

unsigned rig_verdict(int fd)
{
	struct gtw_verdict v = { 0 };

	if (rig_recv(fd, &v, sizeof(v)) != sizeof(v))
		return 0;
	assert_int_equal(v.magic, GTW_VERDICT_MAGIC);
	return v.code;
}

int rig_port(struct rig *r, unsigned port, unsigned *ret_verdict)
{
	struct capability c;
	struct gtw_preamble p;
	int fd;

	rig_capability(r, port, ID_PROTOCOL_TCP, &c, &p);
	fd = rig_port_open(r, &c, &r->signer, &p);
	*ret_verdict = rig_verdict(fd);
	return fd;
}

/* ---- Log ---- */

json_t *rig_log(struct rig *r)
{
	struct gtw_log q = { 0 };
	struct gtw_log_rep rep;
	json_t *all = json_array();

	do {
		memset(&rep, 0, sizeof(rep));
		assert_int_equal(ipc_sync_call(rig_ctl(r), &gtw_ops[GTW_LOG], "r", &q, NULL, 0,
					       &rep, NULL, NULL, RIG_WAIT_MS, NULL),
				 0);
		json_array_extend(all, rep.records);
		ipc_done(gtw_ops[GTW_LOG].rep, &rep);
		q.after = rep.next;
	} while (rep.more);
	return all;
}

json_t *rig_find(json_t *log, const char *dir, const char *addr)
{
	for (size_t i = json_array_size(log); i > 0; i--) {
		json_t *o = json_array_get(log, i - 1);

		if (str_eq(json_string_value(json_object_get(o, "dir")), dir) &&
		    (!addr || str_eq(json_string_value(json_object_get(o, "addr")), addr)))
			return o;
	}
	return NULL;
}

uint64_t rig_counter(struct rig *r, const char *name)
{
	struct gtw_stats_rep rep = { 0 };
	uint64_t v;

	assert_int_equal(ipc_sync_call(rig_ctl(r), &gtw_ops[GTW_STATS], "r", NULL, NULL, 0, &rep,
				       NULL, NULL, RIG_WAIT_MS, NULL),
			 0);
	assert_non_null(json_object_get(rep.counters, name));
	v = (uint64_t)json_integer_value(json_object_get(rep.counters, name));
	ipc_done(gtw_ops[GTW_STATS].rep, &rep);
	return v;
}

size_t rig_main_fds(struct rig *r)
{
	char path[64];
	size_t n = 0;
	DIR *d;

	/* An answer of main: what it was at before has ended. */
	rig_counter(r, "flows");
	str_format(path, sizeof(path), "/proc/%d/fd", (int)r->pid[0]);
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
