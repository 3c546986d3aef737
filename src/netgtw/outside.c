#include "netgtw/outside.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define OUTSIDE_DNS_PORT 53
#define OUTSIDE_ROUTE_MAX 4096           /* a route in netlink's form */
#define OUTSIDE_BATCH 16

/* ---- Where the kernel would send it ---- */

struct route_ask { struct nlmsghdr head; struct rtmsg route; struct rtattr attr; uint8_t ip[16]; };
_Static_assert(sizeof(struct route_ask) == NLMSG_LENGTH(sizeof(struct rtmsg)) + RTA_LENGTH(16),
	       "as on the wire");
union route_said { struct nlmsghdr head; char bytes[OUTSIDE_ROUTE_MAX]; };

static int outside_routes(struct outside *o)
{
	int fd;

	if (o->routes.made)
		return o->routes.fd;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		return -errno;
	o->routes.fd = fd;
	o->routes.made = true;
	return fd;
}

/* The kernel's answer is there when send has returned. */
static int outside_ask_route(struct outside *o, const struct addr *a, union route_said *ret)
{
	uint16_t n_ip = a->family == 4 ? 4 : 16;
	struct route_ask q = {
		.head = { .nlmsg_len = (uint32_t)(sizeof(q) - sizeof(q.ip) + n_ip),
			  .nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST },
		.route = { .rtm_family = a->family == 4 ? AF_INET : AF_INET6,
			   .rtm_dst_len = (uint8_t)(8 * n_ip) },
		.attr = { .rta_len = (uint16_t)RTA_LENGTH(n_ip), .rta_type = RTA_DST },
	};
	int fd = outside_routes(o);
	ssize_t n;

	if (fd < 0)
		return fd;
	q.head.nlmsg_seq = ++o->routes.asked;
	memcpy(q.ip, a->ip, n_ip);
	if (send(fd, &q, q.head.nlmsg_len, 0) < 0)
		return -errno;
	do
		n = fd_recv(fd, ret, sizeof(*ret), NULL, NULL, MSG_DONTWAIT);
	while (n >= (ssize_t)sizeof(ret->head) && ret->head.nlmsg_seq != q.head.nlmsg_seq);
	if (n < 0)
		return (int)n;
	return n >= (ssize_t)sizeof(ret->head) && ret->head.nlmsg_len <= (size_t)n ? 0 : -EBADMSG;
}

/* Without an address that packets to there could come from, there is no way either. */
static bool route_has_source(const struct nlmsghdr *h)
{
	const struct rtattr *at = RTM_RTA(NLMSG_DATA(h));
	int left = (int)RTM_PAYLOAD(h);

	for (; RTA_OK(at, left); at = RTA_NEXT(at, left)) {
		if (at->rta_type == RTA_PREFSRC)
			return true;
	}
	return false;
}

/*
 * Is it one of ours, and is there a way to it? The route's kind says it. The address that packets
 * would come from does not: of a local address that is another one when it is the second of its
 * net, or is local by a route.
 */
static uint32_t outside_route(struct outside *o, const struct addr *a)
{
	union route_said said;
	const struct rtmsg *route = NLMSG_DATA(&said.head);

	if (outside_ask_route(o, a, &said) < 0)
		return OUT_FAILED;
	if (said.head.nlmsg_type == NLMSG_ERROR)
		return OUT_NO_ROUTE;
	if (said.head.nlmsg_type != RTM_NEWROUTE ||
	    said.head.nlmsg_len < NLMSG_LENGTH(sizeof(*route)))
		return OUT_FAILED;
	if (route->rtm_type == RTN_LOCAL || route->rtm_type == RTN_ANYCAST ||
	    route->rtm_type == RTN_BROADCAST)
		return OUT_FLOOR;
	return route->rtm_type == RTN_UNICAST && route_has_source(&said.head) ? OUT_OK
									      : OUT_NO_ROUTE;
}

/* ---- What may be dialled ---- */

static uint32_t outside_check(struct outside *o, const struct addr *a)
{
	static const uint8_t zero[12];
	struct addr v4;
	uint32_t inside = OUT_OK;

	if (a->family == 4 && memcmp(a->ip + 4, zero, sizeof(zero)) != 0)
		return OUT_FLOOR;
	if (floor_check(a, &o->floor))
		return OUT_FLOOR;
	if (floor_inside(a, &v4))
		inside = outside_route(o, &v4);
	/* Without a route here it may still be what a translator elsewhere leads to. */
	return inside == OUT_FLOOR || inside == OUT_FAILED ? inside : outside_route(o, a);
}

static int outside_socket(const struct addr *a, int type, struct sockaddr_storage *ss,
			  socklen_t *ret_len)
{
	int fd;

	*ret_len = addr_to_sockaddr(a, ss);
	fd = socket(ss->ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

static int outside_connect(const struct addr *a, int type)
{
	struct sockaddr_storage ss;
	socklen_t n;
	autoclose int fd = outside_socket(a, type, &ss, &n);
	int one = 1;

	if (fd < 0)
		return fd;
	if (type == SOCK_STREAM) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
		/* The guest's own are answered by this machine, whatever has become of the peer. */
		fd_keep_alive(fd);
	}
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
