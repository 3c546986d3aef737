#include "netgtw/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

bool addr_eq(const struct addr *a, const struct addr *b)
{
	return a->family == b->family && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

int addr_parse(const char *text, struct addr *ret)
{
	struct addr a = { .family = 4 };

	if (inet_pton(AF_INET, text, a.ip) != 1) {
		a.family = 6;
		if (inet_pton(AF_INET6, text, a.ip) != 1)
			return -EINVAL;
	}
	*ret = a;
	return 0;
}

int addr_of_sockaddr(const struct sockaddr_storage *ss, struct addr *ret)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)ss;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)ss;
	struct addr a = { 0 };

	if (ss->ss_family == AF_INET) {
		a.family = 4;
		a.port = ntohs(v4->sin_port);
		memcpy(a.ip, &v4->sin_addr, 4);
	} else if (ss->ss_family == AF_INET6) {
		a.family = 6;
		a.port = ntohs(v6->sin6_port);
		memcpy(a.ip, &v6->sin6_addr, 16);
	} else {
		return -EAFNOSUPPORT;
	}
	*ret = a;
	return 0;
}

socklen_t addr_to_sockaddr(const struct addr *a, struct sockaddr_storage *ret)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	if (a->family == 4) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(a->port);
		memcpy(&v4->sin_addr, a->ip, 4);
		return sizeof(*v4);
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(a->port);
	memcpy(&v6->sin6_addr, a->ip, 16);
	return sizeof(*v6);
}

void addr_text(const struct addr *a, char dst[ADDR_TEXT_MAX])
{
	dst[0] = '\0';
	if (a->family == 4 || a->family == 6)
		inet_ntop(a->family == 4 ? AF_INET : AF_INET6, a->ip, dst, ADDR_TEXT_MAX);
}
