#include "node-manager/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"

#define NET_MESSAGE_MAX 256
#define NET_ANSWER_MAX 4096
#define NET_LOOPBACK 1                   /* the index of lo, in every namespace */
#define NET_UDP_BUFFER (256 << 10)       /* questions that wait for the gateway */

static const uint8_t net_tap_mac[6] = { 0x02, 0, 0, 0, 0, 0x01 };       /* VMM_TAP_MAC */
static const uint8_t net_guest_mac[6] = { 0x02, 0, 0, 0, 0, 0x02 };     /* VMM_GUEST_MAC */

struct net_message {
	struct nlmsghdr head;
	char body[NET_MESSAGE_MAX];
};

static void *message_body(struct net_message *m, uint16_t type, uint16_t flags, size_t size)
{
	memset(m, 0, sizeof(*m));
	m->head = (struct nlmsghdr){
		.nlmsg_len = NLMSG_LENGTH(size),
		.nlmsg_type = type,
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags,
	};
	return NLMSG_DATA(&m->head);
}

static void message_attr(struct net_message *m, uint16_t type, const void *p, size_t n)
{
	struct rtattr *a = (struct rtattr *)((char *)m + NLMSG_ALIGN(m->head.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(n);
	memcpy(RTA_DATA(a), p, n);
	m->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(m->head.nlmsg_len) + RTA_ALIGN(a->rta_len));
}

static int message_send(int sock, const struct net_message *m)
{
	char answer[NET_ANSWER_MAX] __attribute__((aligned(NLMSG_ALIGNTO)));
	const struct nlmsghdr *h = (const struct nlmsghdr *)answer;
	ssize_t n;

	if (send(sock, m, m->head.nlmsg_len, 0) < 0)
		return -errno;
	n = recv(sock, answer, sizeof(answer), 0);
	if (n < 0)
		return -errno;
	if ((size_t)n < NLMSG_LENGTH(sizeof(struct nlmsgerr)) || h->nlmsg_type != NLMSG_ERROR)
		return -EBADMSG;
	return ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
}

struct net_family {
	int family;
	uint8_t prefix;
	uint32_t flags;                  /* of the address; beside IFA_F_NOPREFIXROUTE */
	const char *host, *guest;
};

static const struct net_family net_families[] = {
	{ AF_INET, 24, 0, GTW_HOST_V4, GTW_GUEST_V4 },
	{ AF_INET6, 64, IFA_F_NODAD, GTW_HOST_V6, GTW_GUEST_V6 },
};

static void message_address(struct net_message *m, uint16_t type, int family, const char *text)
{
	uint8_t addr[16];

	inet_pton(family, text, addr);
	message_attr(m, type, addr, family == AF_INET ? 4 : 16);
}

static int set_address(int sock, unsigned index, const struct net_family *f)
{
	struct net_message m;
	struct ifaddrmsg *a = message_body(&m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof(*a));
	uint32_t flags = f->flags | IFA_F_PERMANENT | IFA_F_NOPREFIXROUTE;

	a->ifa_family = (uint8_t)f->family;
	a->ifa_prefixlen = f->prefix;
	a->ifa_index = index;
	message_address(&m, IFA_LOCAL, f->family, f->host);
	message_address(&m, IFA_ADDRESS, f->family, f->host);
	message_attr(&m, IFA_FLAGS, &flags, sizeof(flags));
	return message_send(sock, &m);
}

/* dst NULL: everything. Both routes stand in the local table, which is asked first. */
static int add_route(int sock, unsigned index, const struct net_family *f, const char *dst)
{
	struct net_message m;
	struct rtmsg *t = message_body(&m, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, sizeof(*t));
	uint32_t oif = index;

	*t = (struct rtmsg){
		.rtm_family = (uint8_t)f->family,
		.rtm_dst_len = !dst ? 0 : f->family == AF_INET ? 32 : 128,
		.rtm_table = RT_TABLE_LOCAL,
		.rtm_protocol = RTPROT_STATIC,
		.rtm_scope = dst ? RT_SCOPE_LINK : RT_SCOPE_HOST,
		.rtm_type = dst ? RTN_UNICAST : RTN_LOCAL,
	};
	if (dst)
		message_address(&m, RTA_DST, f->family, dst);
	message_attr(&m, RTA_OIF, &oif, sizeof(oif));
	return message_send(sock, &m);
}

static int add_neighbour(int sock, unsigned index, const struct net_family *f)
{
	struct net_message m;
	struct ndmsg *n = message_body(&m, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, sizeof(*n));

	n->ndm_family = (uint8_t)f->family;
	n->ndm_ifindex = (int)index;
	n->ndm_state = NUD_PERMANENT;
	message_address(&m, NDA_DST, f->family, f->guest);
	message_attr(&m, NDA_LLADDR, net_guest_mac, sizeof(net_guest_mac));
	return message_send(sock, &m);
}

static int set_up(int sock, unsigned index, const uint8_t *mac)
{
	struct net_message m;
	struct ifinfomsg *i = message_body(&m, RTM_NEWLINK, 0, sizeof(*i));

	i->ifi_family = AF_UNSPEC;
	i->ifi_index = (int)index;
	i->ifi_flags = IFF_UP;
	i->ifi_change = IFF_UP;
	if (mac)
		message_attr(&m, IFLA_ADDRESS, mac, sizeof(net_tap_mac));
	return message_send(sock, &m);
}

/*
 * Before there is another interface than the loopback. A path with * stands for two: "all", which
 * some settings are joined with, and "default", which a new interface takes over.
 */
static const struct net_setting { const char *path, *value; } net_settings[] = {
	/* First: it resets others. */
	{ "ipv4/ip_forward", "0" },
	{ "ipv4/conf/*/accept_local", "0" },
	{ "ipv4/conf/*/accept_redirects", "0" },
	{ "ipv4/conf/*/accept_source_route", "0" },
	{ "ipv4/conf/*/arp_accept", "0" },
	{ "ipv4/conf/*/arp_announce", "0" },
	{ "ipv4/conf/*/arp_filter", "0" },
	/* Asked for any address the gateway answers: neighbours of the guest's net are refused at once too. */
	{ "ipv4/conf/*/arp_ignore", "0" },
	{ "ipv4/conf/*/bc_forwarding", "0" },
	{ "ipv4/conf/*/log_martians", "0" },
	{ "ipv4/conf/*/proxy_arp", "0" },
	{ "ipv4/conf/*/route_localnet", "0" },
	{ "ipv4/conf/*/rp_filter", "1" },
	{ "ipv4/conf/*/send_redirects", "0" },
	{ "ipv4/icmp_echo_ignore_all", "1" },
	/* The rules limit refusals; the kernel's own limit is shared by the machine before Linux 6.12. */
	{ "ipv4/icmp_ratemask", "0" },
	{ "ipv4/ip_nonlocal_bind", "0" },
	/* Of both families. The way to the guest is short: more would only wait there. */
	{ "ipv4/tcp_rmem", "4096 131072 1048576" },
	{ "ipv4/tcp_wmem", "4096 65536 1048576" },
	/* So that the maker of port 53 needs no further capability. */
	{ "ipv4/ip_unprivileged_port_start", "53" },
	{ "ipv6/conf/*/disable_ipv6", "0" },
	{ "ipv6/conf/*/forwarding", "0" },
	{ "ipv6/conf/*/accept_dad", "0" },
	{ "ipv6/conf/*/accept_ra", "0" },
	{ "ipv6/conf/*/accept_redirects", "0" },
	{ "ipv6/conf/*/accept_source_route", "-1" },
	/* 1: no link-local address. */
	{ "ipv6/conf/*/addr_gen_mode", "1" },
	{ "ipv6/conf/*/autoconf", "0" },
	{ "ipv6/conf/*/dad_transmits", "0" },
	{ "ipv6/conf/*/proxy_ndp", "0" },
	{ "ipv6/conf/*/router_solicitations", "0" },
	/* As in IPv4: no type but one that is never sent. */
	{ "ipv6/icmp/ratemask", "255" },
	{ "ipv6/ip_nonlocal_bind", "0" },
};

static int set_sysctl(const struct net_setting *s, const char *where, struct err *e)
{
	const char *star = strchr(s->path, '*');
	autofree char *path = star ? x_asprintf("/proc/sys/net/%.*s%s%s", (int)(star - s->path),
						s->path, where, star + 1)
				   : x_asprintf("/proc/sys/net/%s", s->path);
	autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, s->value, strlen(s->value)) < 0)
		return err_errno(e, -errno, "the setting %s", path);
	return 0;
}

static int quiet_namespace(struct err *e)
{
	if (access("/proc/sys/net/ipv6", F_OK) < 0)
		return err_set(e, -EAFNOSUPPORT,
			       "this kernel runs without IPv6, which the sandboxes' gateways need; "
			       "start it without ipv6.disable=1");
	for (size_t i = 0; i < ARRAY_LEN(net_settings); i++) {
		int r = set_sysctl(&net_settings[i], "all", e);

		if (r == 0 && strchr(net_settings[i].path, '*'))
			r = set_sysctl(&net_settings[i], "default", e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int make_tap(int *ret_tap, struct err *e)
{
	struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	autoclose int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);

	if (tap < 0)
		return err_errno(e, -errno, "/dev/net/tun cannot be opened; load the module tun");
	str_copy(req.ifr_name, sizeof(req.ifr_name), NET_TAP);
	if (ioctl(tap, TUNSETIFF, &req) < 0)
		return err_errno(e, -errno, "the TAP cannot be made");
	*ret_tap = TAKE_FD(tap);
	return 0;
}

/* The index of tap0: by netlink, since if_nametoindex(3) opens an IP socket. */
static int find_index(int sock, unsigned *ret)
{
	char answer[NET_ANSWER_MAX] __attribute__((aligned(NLMSG_ALIGNTO)));
	const struct nlmsghdr *h = (const struct nlmsghdr *)answer;
	struct net_message m;
	struct ifinfomsg *i = message_body(&m, RTM_GETLINK, 0, sizeof(*i));
	ssize_t n;

	m.head.nlmsg_flags = NLM_F_REQUEST;
	message_attr(&m, IFLA_IFNAME, NET_TAP, sizeof(NET_TAP));
	if (send(sock, &m, m.head.nlmsg_len, 0) < 0)
		return -errno;
	n = recv(sock, answer, sizeof(answer), 0);
	if (n < 0)
		return -errno;
	if ((size_t)n < NLMSG_LENGTH(sizeof(*i)) || h->nlmsg_type != RTM_NEWLINK)
		return -ENODEV;
	*ret = (unsigned)((const struct ifinfomsg *)NLMSG_DATA(h))->ifi_index;
	return 0;
}

static int configure_family(int sock, unsigned index, const struct net_family *f)
{
	int r = set_address(sock, index, f);

	if (r == 0)
		r = add_route(sock, index, f, f->guest);
	if (r == 0)
		r = add_route(sock, NET_LOOPBACK, f, NULL);
	return r < 0 ? r : add_neighbour(sock, index, f);
}

static int configure_links(struct err *e)
{
	autoclose int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	unsigned index = 0;
	int r;

	if (sock < 0)
		return err_errno(e, -errno, "no netlink socket");
	r = find_index(sock, &index);
	if (r == 0)
		r = set_up(sock, NET_LOOPBACK, NULL);
	if (r == 0)
		r = set_up(sock, index, net_tap_mac);
	for (size_t i = 0; i < ARRAY_LEN(net_families) && r == 0; i++)
		r = configure_family(sock, index, &net_families[i]);
	return r < 0 ? err_errno(e, r, "the TAP cannot be configured") : 0;
}

int net_make(const char *path, int *ret_tap, struct err *e)
{
	autoclose int tap = -1, file = -1;
	int r;

	file = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400);
	if (file < 0)
		return err_errno(e, -errno, "the network namespace's file %s cannot be made", path);
	if (unshare(CLONE_NEWNET) < 0)
		return err_errno(e, -errno, "no network namespace");
	if (mount("/proc/self/ns/net", path, NULL, MS_BIND, NULL) < 0)
		return err_errno(e, -errno, "the network namespace cannot be kept at %s", path);
	r = quiet_namespace(e);
	/* The rules first: not one packet meets a namespace without them. */
	if (r == 0)
		r = net_rules_load(e);
	if (r == 0)
		r = make_tap(&tap, e);
	if (r == 0)
		r = configure_links(e);
	if (r < 0)
		return r;
	*ret_tap = TAKE_FD(tap);
	return 0;
}

int net_remove(const char *path)
{
	if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno != EINVAL && errno != ENOENT)
		return -errno;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- The gateway's sockets ---- */

struct net_option { int level, name, value; };
#define NET_OPTIONS_END { 0, 0, 0 }

/* clang-format off */
static const struct net_kind {
	int family, type;
	uint16_t port;
	struct net_option options[6];
} net_kinds[NET_SOCKET_COUNT] = {
	[NET_TCP4] = { AF_INET, SOCK_STREAM, GTW_TCP_PORT, {
		{ SOL_SOCKET, SO_REUSEADDR, 1 }, { SOL_IP, IP_TRANSPARENT, 1 }, NET_OPTIONS_END } },
	[NET_TCP6] = { AF_INET6, SOCK_STREAM, GTW_TCP_PORT, {
		{ SOL_SOCKET, SO_REUSEADDR, 1 }, { SOL_IPV6, IPV6_V6ONLY, 1 },
		{ SOL_IPV6, IPV6_TRANSPARENT, 1 }, NET_OPTIONS_END } },
	[NET_UDP4] = { AF_INET, SOCK_DGRAM, GTW_DNS_PORT, {
		{ SOL_SOCKET, SO_RCVBUF, NET_UDP_BUFFER }, { SOL_IP, IP_TRANSPARENT, 1 },
		{ SOL_IP, IP_PKTINFO, 1 }, NET_OPTIONS_END } },
	[NET_UDP6] = { AF_INET6, SOCK_DGRAM, GTW_DNS_PORT, {
		{ SOL_SOCKET, SO_RCVBUF, NET_UDP_BUFFER }, { SOL_IPV6, IPV6_V6ONLY, 1 },
		{ SOL_IPV6, IPV6_TRANSPARENT, 1 }, { SOL_IPV6, IPV6_RECVPKTINFO, 1 }, NET_OPTIONS_END } },
};
/* clang-format on */

static int open_socket(const struct net_kind *k, int *ret)
{
	autoclose int fd = socket(k->family, k->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(k->port) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(k->port) };
	bool v4 = k->family == AF_INET;

	if (fd < 0)
		return -errno;
	for (const struct net_option *o = k->options; o->value; o++) {
		if (setsockopt(fd, o->level, o->name, &o->value, sizeof(o->value)) < 0)
			return -errno;
	}
	if (bind(fd, v4 ? (struct sockaddr *)&in : (struct sockaddr *)&in6,
		 v4 ? sizeof(in) : sizeof(in6)) < 0 ||
	    (k->type == SOCK_STREAM && listen(fd, GTW_LISTEN_BACKLOG) < 0))
		return -errno;
	*ret = TAKE_FD(fd);
	return 0;
}

int net_open_sockets(const char *path, int *ret_netns, int ret_fds[NET_SOCKET_COUNT],
		     struct err *e)
{
	autoclose int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	autoclose int netns = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	int r = 0;

	if (own < 0 || netns < 0 || setns(netns, CLONE_NEWNET) < 0)
		return err_errno(e, -errno, "the network namespace %s cannot be entered", path);
	for (int i = 0; i < NET_SOCKET_COUNT && r == 0; i++)
		r = open_socket(&net_kinds[i], &ret_fds[i]);
	if (r < 0)
		return err_errno(e, r, "the gateway's sockets cannot be made");
	if (setns(own, CLONE_NEWNET) < 0)
		return err_errno(e, -errno, "the network namespace cannot be left");
	*ret_netns = TAKE_FD(netns);
	return 0;
}
