#include "node-manager/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define NET_PREFIX 24
#define NET_MESSAGE_MAX 256
#define NET_ANSWER_MAX 4096

static const uint8_t net_gateway[4] = { 10, 0, 2, 2 };
static const uint8_t net_tap_mac[6] = { 0x02, 0, 0, 0, 0, 0x01 };       /* VMM_TAP_MAC */

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

static int set_address(int sock, unsigned index)
{
	struct net_message m;
	struct ifaddrmsg *a = message_body(&m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof(*a));

	a->ifa_family = AF_INET;
	a->ifa_prefixlen = NET_PREFIX;
	a->ifa_index = index;
	message_attr(&m, IFA_LOCAL, net_gateway, sizeof(net_gateway));
	message_attr(&m, IFA_ADDRESS, net_gateway, sizeof(net_gateway));
	return message_send(sock, &m);
}

static int set_up(int sock, unsigned index)
{
	struct net_message m;
	struct ifinfomsg *i = message_body(&m, RTM_NEWLINK, 0, sizeof(*i));

	i->ifi_family = AF_UNSPEC;
	i->ifi_index = (int)index;
	i->ifi_flags = IFF_UP;
	i->ifi_change = IFF_UP;
	message_attr(&m, IFLA_ADDRESS, net_tap_mac, sizeof(net_tap_mac));
	return message_send(sock, &m);
}

/*
 * A new namespace has the settings of the first one (devconf_inherit_init_net), which may forward.
 */
static int set_sysctl(const char *path, const char *value)
{
	autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;     /* a kernel without IPv6 */
	return write(fd, value, strlen(value)) < 0 ? -errno : 0;
}

static int quiet_namespace(struct err *e)
{
	static const struct { const char *path, *value; } settings[] = {
		{ "/proc/sys/net/ipv4/ip_forward", "0" },
		{ "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1" },
		{ "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1" },
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		int r = set_sysctl(settings[i].path, settings[i].value);

		if (r < 0)
			return err_errno(e, r, "%s cannot be set", settings[i].path);
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

static int configure_tap(struct err *e)
{
	autoclose int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	unsigned index = 0;
	int r;

	if (sock < 0)
		return err_errno(e, -errno, "no netlink socket");
	r = find_index(sock, &index);
	if (r == 0)
		r = set_up(sock, index);
	if (r == 0)
		r = set_address(sock, index);
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
	if (r == 0)
		r = make_tap(&tap, e);
	if (r == 0)
		r = configure_tap(e);
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
