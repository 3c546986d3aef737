/*
 * For tests over TCP: a port that the kernel chooses. A number of one's own may be that of any
 * connection of this machine.
 */
#ifndef LOOP_TEST_PORT_H
#define LOOP_TEST_PORT_H

#include <arpa/inet.h>
#include <sys/socket.h>

#include "base/str.h"

struct test_port {
	struct sockaddr_storage sa;
	socklen_t n;
	char addr[80];                   /* as dial_start takes it */
};

/* Where fd, which was bound to port 0, listens. */
static inline void test_port_of(int fd, struct test_port *p)
{
	const struct sockaddr_in *in = (const void *)&p->sa;
	const struct sockaddr_in6 *in6 = (const void *)&p->sa;
	char text[INET6_ADDRSTRLEN];

	p->n = sizeof(p->sa);
	assert_int_equal(getsockname(fd, (void *)&p->sa, &p->n), 0);
	if (p->sa.ss_family == AF_INET6)
		str_format(p->addr, sizeof(p->addr), "tcp:[%s]:%u",
			   inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text)),
			   ntohs(in6->sin6_port));
	else
		str_format(p->addr, sizeof(p->addr), "tcp:%s:%u",
			   inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)),
			   ntohs(in->sin_port));
}

/* Fails while somebody listens there; afterwards nobody does. Returns what holds the port. */
static inline int test_port_hold(const struct test_port *p)
{
	int fd = socket(p->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	assert_true(fd >= 0);
	/* What was accepted there may be in TIME_WAIT. */
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(bind(fd, (const void *)&p->sa, p->n), 0);
	return fd;
}

#endif
