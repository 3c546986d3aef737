#include "spaced-guest/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

static struct sockaddr addr(const char *text)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr sa;

	inet_pton(AF_INET, text, &in.sin_addr);
	memcpy(&sa, &in, sizeof(sa));
	return sa;
}

static int set_up(int fd, const char *dev)
{
	struct ifreq q = { 0 };

	str_copy(q.ifr_name, sizeof(q.ifr_name), dev);
	if (ioctl(fd, SIOCGIFFLAGS, &q) < 0)
		return -errno;
	q.ifr_flags |= IFF_UP;
	return ioctl(fd, SIOCSIFFLAGS, &q) < 0 ? -errno : 0;
}

/* After a restore all is as it was: nothing to do, and nothing is announced anew. */
static bool is_set(int fd)
{
	struct ifreq q = { 0 };
	struct sockaddr want = addr(NETWORK_ADDRESS);
	struct sockaddr_in is, should;

	str_copy(q.ifr_name, sizeof(q.ifr_name), NETWORK_DEVICE);
	if (ioctl(fd, SIOCGIFADDR, &q) < 0)
		return false;
	memcpy(&is, &q.ifr_addr, sizeof(is));
	memcpy(&should, &want, sizeof(should));
	if (is.sin_addr.s_addr != should.sin_addr.s_addr || ioctl(fd, SIOCGIFFLAGS, &q) < 0)
		return false;
	return q.ifr_flags & IFF_UP;
}

static int set_address(int fd)
{
	struct ifreq q = { 0 };
	struct rtentry rt = { .rt_dst = addr("0.0.0.0"),
			      .rt_genmask = addr("0.0.0.0"),
			      .rt_flags = RTF_UP | RTF_GATEWAY };
	char dev[] = NETWORK_DEVICE;

	str_copy(q.ifr_name, sizeof(q.ifr_name), NETWORK_DEVICE);
	q.ifr_addr = addr(NETWORK_ADDRESS);
	if (ioctl(fd, SIOCSIFADDR, &q) < 0)
		return -errno;
	q.ifr_netmask = addr(NETWORK_MASK);
	if (ioctl(fd, SIOCSIFNETMASK, &q) < 0)
		return -errno;
	rt.rt_gateway = addr(NETWORK_GATEWAY);
	rt.rt_dev = dev;
	return ioctl(fd, SIOCADDRT, &rt) < 0 && errno != EEXIST ? -errno : 0;
}

static int set_sysctl6(const char *name, const char *value)
{
	char path[96];
	autoclose int fd = -1;

	str_format(path, sizeof(path), "/proc/sys/net/ipv6/conf/" NETWORK_DEVICE "/%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, value, strlen(value)) < 0 ? -errno : 0;
}

/* Before the device is up: then the kernel would begin by itself. */
static int quiet6(void)
{
	static const struct { const char *name, *value; } settings[] = {
		{ "accept_ra", "0" }, { "autoconf", "0" }, { "router_solicitations", "0" },
		{ "accept_dad", "0" }, { "addr_gen_mode", "1" }, { "accept_redirects", "0" },
	};

	for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
		int r = set_sysctl6(settings[i].name, settings[i].value);

		if (r < 0)
			return r;
	}
	return 0;
}

static int route6(int fd, unsigned long what, int index, const char *dst, uint16_t len,
		  const char *gateway)
{
	struct in6_rtmsg rt = { .rtmsg_dst_len = len, .rtmsg_metric = 256, .rtmsg_flags = RTF_UP,
				.rtmsg_ifindex = index };

	inet_pton(AF_INET6, dst, &rt.rtmsg_dst);
	if (gateway) {
		inet_pton(AF_INET6, gateway, &rt.rtmsg_gateway);
		rt.rtmsg_flags |= RTF_GATEWAY;
	}
	return ioctl(fd, what, &rt) < 0 && errno != EEXIST && errno != ESRCH ? -errno : 0;
}

static int set_address6(void)
{
	autoclose int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct in6_ifreq q = { .ifr6_prefixlen = NETWORK_PREFIX6_LEN };
	struct ifreq dev = { 0 };
	int r;

	str_copy(dev.ifr_name, sizeof(dev.ifr_name), NETWORK_DEVICE);
	if (fd < 0 || ioctl(fd, SIOCGIFINDEX, &dev) < 0)
		return -errno;
	q.ifr6_ifindex = dev.ifr_ifindex;
	inet_pton(AF_INET6, NETWORK_ADDRESS6, &q.ifr6_addr);
	if (ioctl(fd, SIOCSIFADDR, &q) < 0 && errno != EEXIST)
		return -errno;
	r = route6(fd, SIOCDELRT, q.ifr6_ifindex, NETWORK_PREFIX6, NETWORK_PREFIX6_LEN, NULL);
	if (r == 0)
		r = route6(fd, SIOCADDRT, q.ifr6_ifindex, NETWORK_GATEWAY6, 128, NULL);
	return r < 0 ? r : route6(fd, SIOCADDRT, q.ifr6_ifindex, "::", 0, NETWORK_GATEWAY6);
}

int network_up(struct err *e)
{
	autoclose int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return err_errno(e, -errno, "cannot open a socket");
	if (is_set(fd))
		return 0;
	r = set_up(fd, "lo");
	if (r < 0)
		return err_errno(e, r, "cannot bring lo up");
	r = quiet6();
	if (r < 0 && r != -ENOENT)
		return err_errno(e, r, "cannot prepare IPv6 of " NETWORK_DEVICE);
	r = set_up(fd, NETWORK_DEVICE);
	if (r == -ENODEV)
		return 0;
	if (r == 0)
		r = set_address(fd);
	if (r == 0)
		r = set_address6();
	return r < 0 ? err_errno(e, r, "cannot set up " NETWORK_DEVICE) : 0;
}
