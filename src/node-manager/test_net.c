/*
 * The network namespace of a sandbox, with this test in the guest's place: it writes frames into the
 * TAP and reads what comes back. As root, in namespaces of its own.
 *
 * That nothing comes back is seen without waiting: after each frame a datagram is sent that is always
 * refused (the fence), and its refusal is the first frame that comes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <nftables/libnftables.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "node-manager/net.h"

#define VNET 10                          /* struct virtio_net_hdr before each frame */
#define ETH 14
#define WAIT_MS 60000
#define PACE_MS 12        /* the rules let 200 refusals a second through; an exchange has two at most */
#define SEEN_MAX 8
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define FENCE_V4 "203.0.113.1"

static char dir[] = "/tmp/space-test-net-XXXXXX";
static char path[64];
static int own = -1, tap = -1, netns = -1, net[NET_SOCKET_COUNT] = { -1, -1, -1, -1 };
static const uint8_t host_mac[6] = { 2, 0, 0, 0, 0, 1 }, guest_mac[6] = { 2, 0, 0, 0, 0, 2 };

/* ---- Frames ---- */

struct frame { uint8_t b[2048]; size_t n; };

static void put(struct frame *f, const void *p, size_t n)
{
	assert_true(f->n + n <= sizeof(f->b));
	memcpy(f->b + f->n, p, n);
	f->n += n;
}

static void put16(uint8_t *p, unsigned v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v & 0xffff);
}

static unsigned get16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }

static uint32_t sum(uint32_t s, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s += (uint32_t)p[i] << (i % 2 ? 0 : 8);
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return s;
}

static size_t parse(int family, const char *text, uint8_t addr[16])
{
	assert_int_equal(inet_pton(family, text, addr), 1);
	return family == AF_INET ? 4 : 16;
}

static int family_of(const char *text) { return strchr(text, ':') ? AF_INET6 : AF_INET; }

static void begin(struct frame *f, unsigned ethertype)
{
	uint8_t type[2];

	memset(f, 0, sizeof(*f));
	f->n = VNET;
	put(f, host_mac, 6);
	put(f, guest_mac, 6);
	put16(type, ethertype);
	put(f, type, 2);
}

/* The checksum at `at` of a segment, over the pseudo-header too (RFC 9293, RFC 8200). */
static void seal(uint8_t *seg, size_t n, size_t at, uint8_t proto, const char *src, const char *dst)
{
	uint8_t a[16], last[4] = { 0, proto };
	size_t len = parse(family_of(src), src, a);
	uint32_t s = sum(0, a, len);

	parse(family_of(src), dst, a);
	put16(last + 2, (unsigned)n);
	s = sum(sum(s, a, len), last, 4);
	put16(seg + at, 0);
	put16(seg + at, ~sum(s, seg, n) & 0xffff);
}

struct shape { uint16_t frag; bool options; uint8_t ext, hop; };

static void packet(struct frame *f, const char *src, const char *dst, uint8_t proto,
		   const struct shape *s, const uint8_t *seg, size_t n)
{
	uint8_t h[40] = { 0 }, ext[8] = { proto };
	static const uint8_t lsrr[8] = { 131, 7, 4, 9, 9, 9, 9, 0 };

	if (family_of(src) == AF_INET) {
		size_t head = s->options ? 28 : 20;

		begin(f, ETH_P_IP);
		h[0] = (uint8_t)(0x40 | head / 4);
		put16(h + 2, (unsigned)(head + n));
		put16(h + 6, s->frag);
		h[8] = 64;
		h[9] = proto;
		parse(AF_INET, src, h + 12);
		parse(AF_INET, dst, h + 16);
		if (s->options)
			memcpy(h + 20, lsrr, 8);
		put16(h + 10, ~sum(0, h, head) & 0xffff);
		put(f, h, head);
	} else {
		begin(f, ETH_P_IPV6);
		h[0] = 0x60;
		put16(h + 4, (unsigned)(n + (s->ext ? 8 : 0)));
		h[6] = s->ext ? (uint8_t)(s->ext & 0x7f) : proto;
		h[7] = s->hop ? s->hop : 64;
		parse(AF_INET6, src, h + 8);
		parse(AF_INET6, dst, h + 24);
		put(f, h, 40);
		if (s->ext)
			put(f, ext, 8);
	}
	put(f, seg, n);
}

static void tcp(struct frame *f, const char *src, const char *dst, uint16_t sport, uint16_t dport,
		uint32_t seq, uint32_t ack, uint8_t flags, const struct shape *s)
{
	uint8_t seg[20] = { 0 };

	put16(seg, sport);
	put16(seg + 2, dport);
	put32(seg + 4, seq);
	put32(seg + 8, ack);
	seg[12] = 0x50;
	seg[13] = flags;
	put16(seg + 14, 64000);
	seal(seg, sizeof(seg), 16, IPPROTO_TCP, src, dst);
	packet(f, src, dst, IPPROTO_TCP, s, seg, sizeof(seg));
}

static void udp(struct frame *f, const char *src, const char *dst, uint16_t sport, uint16_t dport,
		const struct shape *s)
{
	uint8_t seg[16] = { 0 };

	put16(seg, sport);
	put16(seg + 2, dport);
	put16(seg + 4, sizeof(seg));
	memcpy(seg + 8, "question", 8);
	seal(seg, sizeof(seg), 6, IPPROTO_UDP, src, dst);
	packet(f, src, dst, IPPROTO_UDP, s, seg, sizeof(seg));
}

static void other(struct frame *f, const char *src, const char *dst, uint8_t proto,
		  const uint8_t *body, size_t n, const struct shape *s)
{
	uint8_t seg[64] = { 0 };

	memcpy(seg, body, n);
	if (proto == IPPROTO_ICMP)
		put16(seg + 2, ~sum(0, seg, n) & 0xffff);
	else if (proto == IPPROTO_ICMPV6)
		seal(seg, n, 2, proto, src, dst);
	packet(f, src, dst, proto, s, seg, n);
}

static void arp(struct frame *f, unsigned op, const char *who, const char *whom)
{
	uint8_t a[28] = { 0, 1, 8, 0, 6, 4 };

	begin(f, ETH_P_ARP);
	put16(a + 6, op);
	memcpy(a + 8, guest_mac, 6);
	a[13] = op == 2 ? 0x66 : 2;      /* an answer that lies */
	inet_pton(AF_INET, who, a + 14);
	inet_pton(AF_INET, whom, a + 24);
	put(f, a, sizeof(a));
}

static void write_frame(const struct frame *f)
{
	assert_int_equal(write(tap, f->b, f->n), (ssize_t)f->n);
}

/* ---- What comes back ---- */

struct seen {
	unsigned type;                   /* ethertype */
	char src[INET6_ADDRSTRLEN], dst[INET6_ADDRSTRLEN];
	uint8_t proto, b[1600];          /* behind the IP header */
	size_t n;
};

static void read_frame(struct seen *ret)
{
	struct pollfd p = { .fd = tap, .events = POLLIN };
	uint8_t b[2048];
	const uint8_t *ip = b + VNET + ETH;
	ssize_t n;
	size_t head;

	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	n = read(tap, b, sizeof(b));
	assert_true(n > VNET + ETH + 20);
	memset(ret, 0, sizeof(*ret));
	ret->type = get16(b + VNET + 12);
	/* Always to the guest's address, whatever ARP and neighbour discovery were told. */
	assert_memory_equal(b + VNET, guest_mac, 6);
	assert_memory_equal(b + VNET + 6, host_mac, 6);
	if (ret->type == ETH_P_IP) {
		head = 20;
		ret->proto = ip[9];
		inet_ntop(AF_INET, ip + 12, ret->src, sizeof(ret->src));
		inet_ntop(AF_INET, ip + 16, ret->dst, sizeof(ret->dst));
	} else if (ret->type == ETH_P_IPV6) {
		head = 40;
		ret->proto = ip[6];
		inet_ntop(AF_INET6, ip + 8, ret->src, sizeof(ret->src));
		inet_ntop(AF_INET6, ip + 24, ret->dst, sizeof(ret->dst));
	} else {
		head = 0;
	}
	ret->n = (size_t)n - VNET - ETH - head;
	memcpy(ret->b, ip + head, ret->n);
}

static bool refusal(const struct seen *s)
{
	/* Administratively prohibited (RFC 1812, RFC 4443). */
	return (s->proto == IPPROTO_ICMP && s->b[0] == 3 && s->b[1] == 13) ||
	       (s->proto == IPPROTO_ICMPV6 && s->b[0] == 1 && s->b[1] == 1);
}

/* Sends it and collects what comes before the fence's refusal. */
static size_t exchange(const struct frame *f, struct seen seen[SEEN_MAX])
{
	static uint16_t fence = 1000;
	static const struct shape plain;
	struct frame last;

	poll(NULL, 0, PACE_MS);
	if (f)
		write_frame(f);
	udp(&last, GTW_GUEST_V4, FENCE_V4, ++fence, 9, &plain);
	write_frame(&last);
	for (size_t i = 0; i < SEEN_MAX; i++) {
		read_frame(&seen[i]);
		if (refusal(&seen[i]) && str_eq(seen[i].src, FENCE_V4) &&
		    get16(seen[i].b + 8 + 20) == fence)
			return i;
	}
	fail_msg("more frames than one can cause");
	return 0;
}

/* ---- The namespace ---- */

static void inside(bool in) { assert_int_equal(setns(in ? netns : own, CLONE_NEWNET), 0); }

static int setup(void **state)
{
	struct err e = { 0 };

	if (geteuid() != 0)
		return 0;
	if (!mkdtemp(dir) || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -1;
	str_format(path, sizeof(path), "%s/netns", dir);
	own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (net_make(path, &tap, &e) < 0) {
		fprintf(stderr, "%s\n", e.text);
		return -1;
	}
	netns = open(path, O_RDONLY | O_CLOEXEC);
	return setns(own, CLONE_NEWNET);
}

static int teardown(void **state)
{
	if (geteuid() != 0)
		return 0;
	for (int i = 0; i < NET_SOCKET_COUNT; i++)
		fd_close(net[i]);
	close(tap);
	close(netns);
	return net_remove(path) < 0 || rmdir(dir) < 0;
}

static void close_sockets(void)
{
	for (int i = 0; i < NET_SOCKET_COUNT; i++)
		fd_close(TAKE_FD(net[i]));
}

static void open_sockets(void)
{
	struct err e = { 0 };
	int fd = -1;

	if (geteuid() != 0)
		skip();
	close_sockets();
	if (net_open_sockets(path, &fd, net, &e) < 0)
		fail_msg("%s", e.text);
	close(fd);
}

/* ---- Tests ---- */

enum want { NOTHING, REFUSED, RESET, ACCEPTED, ASKED };

#define G4 GTW_GUEST_V4
#define G6 GTW_GUEST_V6
#define TCP IPPROTO_TCP
#define UDP IPPROTO_UDP
#define EXT(x) { .ext = 0x80 | (x) }

static const struct row {
	const char *what, *src, *dst;
	uint8_t proto;
	uint16_t dport;
	struct shape shape;
	enum want without, with;         /* a gateway */
} rows[] = {
	{ "TCP", G4, "9.9.10.1", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to port 53", G4, "9.9.10.1", TCP, 53, {}, RESET, ACCEPTED },
	{ "TCP to a private address", G4, "192.168.1.1", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to the gateway", G4, GTW_HOST_V4, TCP, 22, {}, RESET, ACCEPTED },
	{ "TCP to the listener's own port", G4, GTW_HOST_V4, TCP, GTW_TCP_PORT, {}, RESET, ACCEPTED },
	{ "TCP to a neighbour's address", G4, "10.0.2.3", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP over IPv6", G6, "2a10:9999::1", TCP, 443, {}, RESET, ACCEPTED },
	{ "TCP to the gateway over IPv6", G6, GTW_HOST_V6, TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to a neighbour over IPv6", G6, "fd53:5041:4345::3", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to a link-local address", G6, "fe80::1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to NAT64", G6, "64:ff9b::a00:1", TCP, 80, {}, RESET, ACCEPTED },
	{ "DNS", G4, "9.9.9.9", UDP, 53, {}, REFUSED, ASKED },
	{ "DNS to the gateway", G4, GTW_HOST_V4, UDP, 53, {}, REFUSED, ASKED },
	{ "DNS over IPv6", G6, "2620:fe::fe", UDP, 53, {}, REFUSED, ASKED },
	{ "DNS to the gateway over IPv6", G6, GTW_HOST_V6, UDP, 53, {}, REFUSED, ASKED },
	{ "QUIC", G4, "9.9.10.1", UDP, 443, {}, REFUSED, REFUSED },
	{ "QUIC over IPv6", G6, "2a10:9999::1", UDP, 443, {}, REFUSED, REFUSED },
	{ "UDP to the gateway", G4, GTW_HOST_V4, UDP, 123, {}, REFUSED, REFUSED },
	{ "UDP to the gateway over IPv6", G6, GTW_HOST_V6, UDP, 123, {}, REFUSED, REFUSED },
	{ "ping", G4, "9.9.9.9", IPPROTO_ICMP, 0, {}, REFUSED, REFUSED },
	{ "ping of the gateway", G4, GTW_HOST_V4, IPPROTO_ICMP, 0, {}, REFUSED, REFUSED },
	{ "ping over IPv6", G6, "2a10:9999::1", IPPROTO_ICMPV6, 0, {}, REFUSED, REFUSED },
	{ "ping of the gateway over IPv6", G6, GTW_HOST_V6, IPPROTO_ICMPV6, 0, {}, REFUSED, REFUSED },
	{ "SCTP", G4, "9.9.9.9", IPPROTO_SCTP, 0, {}, REFUSED, REFUSED },
	{ "SCTP over IPv6", G6, "2a10:9999::1", IPPROTO_SCTP, 0, {}, REFUSED, REFUSED },
	{ "GRE", G4, "9.9.9.9", IPPROTO_GRE, 0, {}, REFUSED, REFUSED },
	{ "ESP", G4, "9.9.9.9", IPPROTO_ESP, 0, {}, REFUSED, REFUSED },
	/* The kernel answers nothing whose checksum is wrong, and takes what these carry for one. */
	{ "IP in IP", G4, "9.9.9.9", IPPROTO_IPIP, 0, {}, NOTHING, NOTHING },
	{ "IPv6 in IP", G4, "9.9.9.9", IPPROTO_IPV6, 0, {}, NOTHING, NOTHING },
	{ "IGMP", G4, "9.9.9.9", IPPROTO_IGMP, 0, {}, NOTHING, NOTHING },
	{ "TCP from a public address", "9.9.9.9", "9.9.10.1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP from another guest's address", "10.0.2.16", "9.9.10.1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP from the gateway's address", GTW_HOST_V4, "9.9.10.1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP from the loopback", "127.0.0.1", GTW_HOST_V4, TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP from nowhere", "0.0.0.0", "9.9.10.1", TCP, 80, {}, NOTHING, NOTHING },
	{ "DNS from another address", "9.9.9.9", GTW_HOST_V4, UDP, 53, {}, NOTHING, NOTHING },
	{ "TCP over IPv6 from another", "2a10::1", "2a10::2", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP over IPv6 from link-local", "fe80::2", GTW_HOST_V6, TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP over IPv6 from the gateway", GTW_HOST_V6, "2a10::2", TCP, 80, {}, NOTHING, NOTHING },
	{ "DNS over IPv6 from nowhere", "::", GTW_HOST_V6, UDP, 53, {}, NOTHING, NOTHING },
	{ "TCP to the guest itself", G4, G4, TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to the guest itself, IPv6", G6, G6, TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to 127.0.0.1", G4, "127.0.0.1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to 0.0.0.0", G4, "0.0.0.0", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to 0/8", G4, "0.0.0.1", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to 240/4", G4, "240.0.0.1", TCP, 80, {}, RESET, ACCEPTED },
	{ "TCP to ::1", G6, "::1", TCP, 80, {}, NOTHING, NOTHING },
	{ "TCP to ::", G6, "::", TCP, 80, {}, NOTHING, NOTHING },
	{ "DNS to everybody", G4, "255.255.255.255", UDP, 53, {}, NOTHING, NOTHING },
	{ "DNS to a group", G4, "224.0.0.251", UDP, 53, {}, NOTHING, NOTHING },
	{ "DNS to a group, IPv6", G6, "ff02::1", UDP, 53, {}, NOTHING, NOTHING },
	{ "first fragment", G4, "9.9.9.9", UDP, 53, { .frag = 0x2000 }, NOTHING, NOTHING },
	{ "later fragment", G4, "9.9.9.9", UDP, 53, { .frag = 0x0010 }, NOTHING, NOTHING },
	{ "fragment of TCP", G4, "9.9.9.9", TCP, 80, { .frag = 0x2000 }, NOTHING, NOTHING },
	{ "source route", G4, "9.9.9.9", TCP, 80, { .options = true }, NOTHING, NOTHING },
	{ "IPv6 fragment", G6, "2a10::1", UDP, 53, EXT(44), NOTHING, NOTHING },
	{ "hop-by-hop options", G6, "2a10::1", TCP, 80, EXT(0), NOTHING, NOTHING },
	{ "routing header", G6, "2a10::1", TCP, 80, EXT(43), NOTHING, NOTHING },
	{ "destination options", G6, "2a10::1", TCP, 80, EXT(60), NOTHING, NOTHING },
	{ "authentication header", G6, "2a10::1", TCP, 80, EXT(51), NOTHING, NOTHING },
};

static void make(const struct row *r, uint16_t sport, struct frame *f)
{
	static const uint8_t echo[16] = { 8 }, echo6[16] = { 128 };

	if (r->proto == TCP)
		tcp(f, r->src, r->dst, sport, r->dport, 5000, 0, SYN, &r->shape);
	else if (r->proto == UDP)
		udp(f, r->src, r->dst, sport, r->dport, &r->shape);
	else
		other(f, r->src, r->dst, r->proto, r->proto == IPPROTO_ICMPV6 ? echo6 : echo, 16,
		      &r->shape);
}

/* The address that a socket got in the guest's place. */
static void check_address(const struct sockaddr_storage *ss, const char *want, unsigned port)
{
	const struct sockaddr_in *in = (const void *)ss;
	const struct sockaddr_in6 *in6 = (const void *)ss;
	char text[INET6_ADDRSTRLEN];
	bool v4 = ss->ss_family == AF_INET;

	inet_ntop(ss->ss_family, v4 ? (const void *)&in->sin_addr : (const void *)&in6->sin6_addr,
		  text, sizeof(text));
	assert_string_equal(text, want);
	assert_int_equal(ntohs(v4 ? in->sin_port : in6->sin6_port), port);
}

/* The rest of the handshake: the listener gets the connection with the address that was called. */
static void finish(const struct row *r, uint16_t sport, const struct seen *s)
{
	struct pollfd p = { .fd = net[family_of(r->dst) == AF_INET ? NET_TCP4 : NET_TCP6],
			    .events = POLLIN };
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct frame f;
	int fd;

	tcp(&f, r->src, r->dst, sport, r->dport, 5001, get32(s->b + 4) + 1, ACK, &r->shape);
	write_frame(&f);
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	fd = accept(p.fd, NULL, NULL);
	assert_true(fd >= 0);
	assert_int_equal(getsockname(fd, (void *)&ss, &len), 0);
	check_address(&ss, r->dst, r->dport);
	len = sizeof(ss);
	assert_int_equal(getpeername(fd, (void *)&ss, &len), 0);
	check_address(&ss, r->src, sport);
	/* A reset, so that nothing comes later. */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
				    sizeof(struct linger)), 0);
	close(fd);
	read_frame(&(struct seen){ 0 });
}

/* The datagram with the address that was asked; the answer comes from there. */
static void answer(const struct row *r, uint16_t sport)
{
	int fd = net[family_of(r->dst) == AF_INET ? NET_UDP4 : NET_UDP6];
	struct sockaddr_storage ss;
	char data[64], control[256];
	struct iovec iov = { data, sizeof(data) };
	struct msghdr m = { .msg_name = &ss, .msg_namelen = sizeof(ss), .msg_iov = &iov,
			    .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	struct seen s;

	assert_int_equal(recvmsg(fd, &m, MSG_DONTWAIT), 8);
	check_address(&ss, r->src, sport);
	c = CMSG_FIRSTHDR(&m);
	assert_non_null(c);
	if (c->cmsg_level == SOL_IP) {
		struct in_pktinfo *i = (void *)CMSG_DATA(c);

		i->ipi_spec_dst = i->ipi_addr;
		i->ipi_ifindex = 0;
	} else {
		((struct in6_pktinfo *)(void *)CMSG_DATA(c))->ipi6_ifindex = 0;
	}
	iov.iov_len = 8;
	m.msg_controllen = c->cmsg_len;
	assert_int_equal(sendmsg(fd, &m, 0), 8);
	read_frame(&s);
	assert_int_equal(s.proto, UDP);
	assert_string_equal(s.src, r->dst);
	assert_string_equal(s.dst, r->src);
	assert_int_equal(get16(s.b), 53);
	assert_int_equal(get16(s.b + 2), sport);
}

static void check_row(const struct row *r, enum want want, uint16_t sport)
{
	struct seen seen[SEEN_MAX];
	struct frame f;
	size_t n;
	bool good = false;

	make(r, sport, &f);
	n = exchange(&f, seen);
	if (want == NOTHING || want == ASKED)
		good = n == 0;
	else if (want == REFUSED)
		good = n == 1 && refusal(&seen[0]);
	else
		good = n == 1 && seen[0].proto == TCP && str_eq(seen[0].src, r->dst) &&
		       (want == RESET ? (seen[0].b[13] & RST) != 0
				      : seen[0].b[13] == (SYN | ACK) && get32(seen[0].b + 8) == 5001);
	if (!good)
		fail_msg("%s: %zu frames; the first of protocol %u, %u %u", r->what, n,
			 n ? seen[0].proto : 0, n ? seen[0].b[0] : 0, n ? seen[0].b[1] : 0);
	if (want == ACCEPTED)
		finish(r, sport, &seen[0]);
	if (want == ASKED)
		answer(r, sport);
}

static void test_without_gateway(void **state)
{
	if (geteuid() != 0)
		skip();
	close_sockets();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		check_row(&rows[i], rows[i].without, (uint16_t)(20000 + i));
}

static void test_with_gateway(void **state)
{
	open_sockets();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		check_row(&rows[i], rows[i].with, (uint16_t)(21000 + i));
}

static void test_arp(void **state)
{
	static const struct { unsigned op; const char *who, *whom; bool answered; } asks[] = {
		{ 1, G4, GTW_HOST_V4, true }, { 1, G4, "10.0.2.77", true },
		{ 1, "10.0.2.16", GTW_HOST_V4, false }, { 1, "9.9.9.9", GTW_HOST_V4, false },
		{ 1, "0.0.0.0", GTW_HOST_V4, false }, { 1, G4, G4, false },
		{ 2, G4, GTW_HOST_V4, false }, { 2, "10.0.2.99", GTW_HOST_V4, false },
	};
	struct seen seen[SEEN_MAX];
	struct frame f;

	if (geteuid() != 0)
		skip();
	for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
		size_t n;

		arp(&f, asks[i].op, asks[i].who, asks[i].whom);
		n = exchange(&f, seen);
		if (n != (asks[i].answered ? 1 : 0))
			fail_msg("ARP row %zu: %zu frames", i, n);
		if (n)
			assert_memory_equal(seen[0].b + 8, host_mac, 6);
	}
}

static void test_neighbours(void **state)
{
	static const struct { uint8_t type; const char *src, *dst, *target; uint8_t hop; bool answered; } asks[] = {
		{ 135, G6, "ff02::1:ff00:2", GTW_HOST_V6, 255, true },
		{ 135, G6, GTW_HOST_V6, GTW_HOST_V6, 255, true },
		{ 135, G6, "ff02::1:ff00:3", "fd53:5041:4345::3", 255, false },
		{ 135, G6, "ff02::1:ff00:2", "fd53:5041:4345:1::2", 255, false },
		{ 135, G6, "ff02::1:ff00:2", GTW_HOST_V6, 254, false },
		{ 135, "fe80::2", "ff02::1:ff00:2", GTW_HOST_V6, 255, false },
		{ 135, "::", "ff02::1:ff00:2", GTW_HOST_V6, 255, false },
		{ 136, G6, GTW_HOST_V6, G6, 255, false },
		{ 136, G6, "ff02::1", G6, 255, false },
		{ 133, G6, "ff02::2", "::", 255, false },
		{ 134, G6, "ff02::1", "::", 255, false },
		{ 137, G6, GTW_HOST_V6, "2a10::1", 255, false },
	};
	struct seen seen[SEEN_MAX];
	struct frame f;

	if (geteuid() != 0)
		skip();
	for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
		/* With the source's link-layer address, which is another one than before. */
		uint8_t body[32] = { asks[i].type, [24] = asks[i].type == 135 ? 1 : 2, 1, 2, 0, 0, 0, 0, 0x66 };
		struct shape s = { .hop = asks[i].hop };
		size_t n;

		parse(AF_INET6, asks[i].target, body + 8);
		if (asks[i].type == 136)
			body[4] = 0x60;          /* solicited, override */
		other(&f, asks[i].src, asks[i].dst, IPPROTO_ICMPV6, body, sizeof(body), &s);
		n = exchange(&f, seen);
		if (asks[i].answered) {
			assert_int_equal(n, 1);
			assert_int_equal(seen[0].b[0], 136);
			assert_string_equal(seen[0].src, GTW_HOST_V6);
		} else if (n > 1 || (n == 1 && !refusal(&seen[0]))) {
			fail_msg("neighbour row %zu: %zu frames, type %u", i, n, seen[0].b[0]);
		}
	}
}

/* A dial of the gateway to the guest; `flags` is what the guest answers. */
static int dial(int family, uint8_t flags)
{
	const char *src = family == AF_INET ? GTW_HOST_V4 : GTW_HOST_V6;
	const char *dst = family == AF_INET ? G4 : G6;
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(8000) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(8000) };
	static const struct shape plain;
	struct pollfd p = { .events = POLLOUT };
	struct seen seen[SEEN_MAX];
	socklen_t len = sizeof(int);
	struct frame f;
	int error = -1;

	inet_pton(AF_INET, dst, &in.sin_addr);
	inet_pton(AF_INET6, dst, &in6.sin6_addr);
	inside(true);
	p.fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	inside(false);
	assert_int_equal(connect(p.fd, family == AF_INET ? (void *)&in : (void *)&in6,
				 family == AF_INET ? sizeof(in) : sizeof(in6)), -1);
	assert_int_equal(errno, EINPROGRESS);
	assert_int_equal(exchange(NULL, seen), 1);
	assert_string_equal(seen[0].src, src);
	assert_int_equal(seen[0].b[13] & ~0xc0, SYN);
	tcp(&f, dst, src, 8000, (uint16_t)get16(seen[0].b), 77, get32(seen[0].b + 4) + 1, flags,
	    &plain);
	write_frame(&f);
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_int_equal(getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &len), 0);
	if (!error) {
		read_frame(&seen[0]);            /* the third of the handshake */
		assert_int_equal(setsockopt(p.fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
					    sizeof(struct linger)), 0);
		close(p.fd);
		read_frame(&seen[0]);
		assert_true(seen[0].b[13] & RST);
	} else {
		close(p.fd);
	}
	return error;
}

static void test_dial(void **state)
{
	open_sockets();
	assert_int_equal(dial(AF_INET, SYN | ACK), 0);
	assert_int_equal(dial(AF_INET6, SYN | ACK), 0);
	assert_int_equal(dial(AF_INET, RST | ACK), ECONNREFUSED);
	assert_int_equal(dial(AF_INET6, RST | ACK), ECONNREFUSED);
}

/* What a process in the namespace can send: to the guest alone, and no datagrams of its own. */
static void test_output(void **state)
{
	static const char *const to[] = { "9.9.9.9", "10.0.2.3", GTW_HOST_V4, "127.0.0.1", G4,
					  "2a10::1", GTW_HOST_V6, "::1", G6, "255.255.255.255" };
	struct seen seen[SEEN_MAX];

	if (geteuid() != 0)
		skip();
	for (size_t i = 0; i < ARRAY_LEN(to); i++) {
		struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(7) };
		struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(7) };
		int family = family_of(to[i]), fd, r;

		inet_pton(AF_INET, to[i], &in.sin_addr);
		inet_pton(AF_INET6, to[i], &in6.sin6_addr);
		inside(true);
		fd = socket(family, SOCK_DGRAM, 0);
		inside(false);
		setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &(int){ 1 }, sizeof(int));
		r = (int)sendto(fd, "x", 1, 0, family == AF_INET ? (void *)&in : (void *)&in6,
				family == AF_INET ? sizeof(in) : sizeof(in6));
		if (r != -1 || (errno != EPERM && errno != ENETUNREACH))
			fail_msg("a datagram to %s: %d, errno %d", to[i], r, errno);
		close(fd);
		assert_int_equal(exchange(NULL, seen), 0);
	}
}

static void test_rules(void **state)
{
	static const char *const lines[] = {
		"type filter hook prerouting priority -450; policy drop;",
		"type filter hook input priority filter; policy drop;",
		"type filter hook forward priority filter; policy drop;",
		"type filter hook output priority filter; policy drop;",
		"ip saddr != " G4 " counter", "ip6 saddr != " G6 " counter",
		"tproxy ip to :15001", "tproxy ip6 to :15001", "table arp space",
	};
	struct nft_ctx *ctx;
	struct err e = { 0 };
	const char *text;

	if (geteuid() != 0)
		skip();
	inside(true);
	/* Loading them again replaces them. */
	assert_int_equal(net_rules_load(&e), 0);
	ctx = nft_ctx_new(NFT_CTX_DEFAULT);
	nft_ctx_buffer_output(ctx);
	assert_int_equal(nft_run_cmd_from_buffer(ctx, "list ruleset"), 0);
	inside(false);
	text = nft_ctx_get_output_buffer(ctx);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		const char *at = strstr(text, lines[i]);

		if (!at)
			fail_msg("there is no rule \"%s\" in\n%s", lines[i], text);
		if (strstr(at + 1, lines[i]) && !strstr(lines[i], "hook"))
			fail_msg("\"%s\" is there twice", lines[i]);
	}
	/* Nothing keeps connections, and nothing rewrites addresses. */
	assert_null(strstr(text, " ct "));
	assert_null(strstr(text, "type nat"));
	nft_ctx_free(ctx);
}

static void test_settings(void **state)
{
	static const struct { const char *path, *value; } want[] = {
		{ "ipv4/ip_forward", "0" }, { "ipv4/conf/tap0/forwarding", "0" },
		{ "ipv4/conf/tap0/accept_source_route", "0" }, { "ipv4/conf/tap0/rp_filter", "1" },
		{ "ipv4/conf/tap0/accept_redirects", "0" }, { "ipv4/conf/tap0/accept_local", "0" },
		{ "ipv4/conf/all/log_martians", "0" }, { "ipv4/conf/tap0/log_martians", "0" },
		{ "ipv6/conf/tap0/forwarding", "0" }, { "ipv6/conf/tap0/accept_ra", "0" },
		{ "ipv6/conf/tap0/autoconf", "0" }, { "ipv6/conf/tap0/accept_source_route", "-1" },
		{ "ipv6/conf/tap0/accept_redirects", "0" }, { "ipv6/conf/tap0/addr_gen_mode", "1" },
		{ "netfilter/nf_conntrack_count", "0" },
		{ "ipv4/tcp_rmem", "4096\t131072\t1048576" },
		{ "ipv4/tcp_wmem", "4096\t65536\t1048576" },
	};

	if (geteuid() != 0)
		skip();
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		autofree char *file = x_asprintf("/proc/sys/net/%s", want[i].path), *text = NULL;
		int r;

		inside(true);
		r = fd_read_file(AT_FDCWD, file, 64, &text, NULL);
		inside(false);
		if (r == -ENOENT && str_starts(want[i].path, "netfilter/"))
			continue;
		assert_int_equal(r, 0);
		text[strcspn(text, "\n")] = '\0';
		if (!str_eq(text, want[i].value))
			fail_msg("%s is %s", want[i].path, text);
	}
}

/* A new gateway's sockets, while connections of the former one are still waited for. */
static void test_again(void **state)
{
	static const struct row row = { "TCP", G4, "9.9.10.1", TCP, GTW_TCP_PORT, {}, RESET, ACCEPTED };

	for (int i = 0; i < 3; i++) {
		open_sockets();
		check_row(&row, ACCEPTED, (uint16_t)(30000 + i));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_gateway), cmocka_unit_test(test_with_gateway),
		cmocka_unit_test(test_arp),             cmocka_unit_test(test_neighbours),
		cmocka_unit_test(test_dial),            cmocka_unit_test(test_output),
		cmocka_unit_test(test_rules),           cmocka_unit_test(test_settings),
		cmocka_unit_test(test_again),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
