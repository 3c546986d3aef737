#include "netgtw/outside.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define OUTSIDE_DNS_PORT 53
#define OUTSIDE_PROBE_PORT 9
#define OUTSIDE_BATCH 16

static int outside_socket(const struct addr *a, int type, struct sockaddr_storage *ss,
			  socklen_t *ret_len)
{
	int fd;

	*ret_len = addr_to_sockaddr(a, ss);
	fd = socket(ss->ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

/* A UDP socket without an address and a peer. */
static int outside_probe(struct outside *o, const struct addr *a)
{
	const struct sockaddr none = { .sa_family = AF_UNSPEC };
	bool v6 = a->family == 6;
	int fd;

	if (o->probe[v6].made)
		return connect(o->probe[v6].fd, &none, sizeof(none)) < 0 ? -errno : o->probe[v6].fd;
	fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	o->probe[v6].fd = fd;
	o->probe[v6].made = true;
	return fd;
}

/*
 * Is it one of ours, and is there a way to it? A UDP socket is connected without a packet being
 * sent, and then has the address that its packets would come from: of a local destination that is
 * the destination itself.
 */
static uint32_t outside_route(struct outside *o, const struct addr *a)
{
	struct addr to = *a, from;
	struct sockaddr_storage ss;
	int fd = outside_probe(o, a);
	socklen_t n;

	if (fd < 0)
		return fd == -EAFNOSUPPORT ? OUT_NO_ROUTE : OUT_FAILED;
	to.port = OUTSIDE_PROBE_PORT;
	n = addr_to_sockaddr(&to, &ss);
	if (connect(fd, (struct sockaddr *)&ss, n) < 0)
		return OUT_NO_ROUTE;
	n = sizeof(ss);
	if (getsockname(fd, (struct sockaddr *)&ss, &n) < 0 || addr_of_sockaddr(&ss, &from) < 0)
		return OUT_FAILED;
	return addr_eq(a, &from) ? OUT_FLOOR : OUT_OK;
}

static uint32_t outside_check(struct outside *o, const struct addr *a)
{
	static const uint8_t zero[12];
	struct addr v4;

	if (a->family == 4 && memcmp(a->ip + 4, zero, sizeof(zero)) != 0)
		return OUT_FLOOR;
	if (floor_check(a, &o->allow))
		return OUT_FLOOR;
	if (floor_inside(a, &v4) && outside_route(o, &v4) == OUT_FLOOR)
		return OUT_FLOOR;
	return outside_route(o, a);
}

static int outside_connect(const struct addr *a, int type)
{
	struct sockaddr_storage ss;
	socklen_t n;
	autoclose int fd = outside_socket(a, type, &ss, &n);
	int one = 1;

	if (fd < 0)
		return fd;
	if (type == SOCK_STREAM)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, (struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS)
		return -errno;
	return TAKE_FD(fd);
}

/* The address that the question is about, if it may be dialled. */
static uint32_t outside_target(struct outside *o, const struct out_req *q, bool resolver,
			       struct addr *ret)
{
	bool dns = q->kind == OUT_DNS_UDP || q->kind == OUT_DNS_TCP;

	if (!o->internet)
		return OUT_INTERNET;
	if (dns && (!resolver || q->index >= o->n_nameservers))
		return OUT_INDEX;
	*ret = dns ? o->nameservers[q->index] : q->addr;
	if (dns)
		ret->port = OUTSIDE_DNS_PORT;
	return dns ? OUT_OK : outside_check(o, ret);
}

void outside_answer(struct outside *o, const struct out_req *q, bool resolver,
		    struct out_rep *rep, int *ret_fd)
{
	struct addr a;

	*ret_fd = -1;
	*rep = (struct out_rep){ .magic = PROTO_MAGIC, .id = q->id };
	rep->answer = outside_target(o, q, resolver, &a);
	if (rep->answer != OUT_OK || q->kind == OUT_CHECK)
		return;
	if (a.port == 0) {
		rep->answer = OUT_FAILED;
		rep->error = -EADDRNOTAVAIL;
		return;
	}
	*ret_fd = outside_connect(&a, q->kind == OUT_DNS_UDP ? SOCK_DGRAM : SOCK_STREAM);
	if (*ret_fd < 0) {
		rep->error = *ret_fd;
		rep->answer = rep->error == -ENETUNREACH ? OUT_NO_ROUTE : OUT_FAILED;
		*ret_fd = -1;
	}
}

/* One packet. 0 or negative errno; -EAGAIN: there is none; -EPIPE: main is gone. */
static int outside_serve(struct outside *o, int sock, bool resolver)
{
	struct out_req q;
	struct out_rep rep;
	int passed[FD_PASS_MAX];
	size_t n_passed = 0;
	autoclose int fd = -1;
	ssize_t n = fd_recv(sock, &q, sizeof(q), passed, &n_passed, MSG_DONTWAIT);

	if (n == 0)
		return -EPIPE;
	if (n < 0)
		return n == -EINTR ? 0 : (int)n;
	if (n != sizeof(q) || q.magic != PROTO_MAGIC || q.kind >= OUT_KIND_COUNT)
		return -EBADMSG;
	outside_answer(o, &q, resolver, &rep, &fd);
	n = fd_send(sock, &rep, sizeof(rep), &fd, fd >= 0 ? 1 : 0, 0);
	return n < 0 ? (int)n : 0;
}

/* What waits for an answer on one of the two. */
static int outside_serve_some(struct outside *o, int sock, bool resolver)
{
	int r = 0;

	for (int i = 0; i < OUTSIDE_BATCH && r == 0; i++)
		r = outside_serve(o, sock, resolver);
	return r == -EAGAIN ? 0 : r;
}

int outside_run(struct outside *o)
{
	struct pollfd p[] = { { .fd = GTW_OUTSIDE_MAIN, .events = POLLIN },
			      { .fd = GTW_OUTSIDE_RESOLVER, .events = POLLIN } };
	int r = 0;

	while (r == 0) {
		if (poll(p, ARRAY_LEN(p), -1) < 0)
			r = errno == EINTR ? 0 : -errno;
		else if (p[1].revents)
			/* The resolver's first: main waits for it. */
			r = outside_serve_some(o, GTW_OUTSIDE_RESOLVER, true);
		if (r == 0 && p[0].revents)
			r = outside_serve_some(o, GTW_OUTSIDE_MAIN, false);
	}
	return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}
