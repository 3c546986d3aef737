#include "spaced-guest/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

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
	r = set_up(fd, NETWORK_DEVICE);
	if (r == -ENODEV)
		return 0;
	if (r == 0)
		r = set_address(fd);
	return r < 0 ? err_errno(e, r, "cannot set up " NETWORK_DEVICE) : 0;
}
