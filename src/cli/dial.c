/* A connection to the API: the addresses behind the URL's host, and TLS where it says https. */
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"
#include "loop/listen.h"

#define DIAL_MS 15000                    /* for one address; there may be others */

/* "tcp:192.0.2.1:443", "tcp:[2001:db8::1]:443" */
static int numeric_of(const struct addrinfo *ai, char *dst, size_t n)
{
	char host[NI_MAXHOST], port[NI_MAXSERV];

	if (getnameinfo(ai->ai_addr, ai->ai_addrlen, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		return -EINVAL;
	return str_format(dst, n, ai->ai_family == AF_INET6 ? "tcp:[%s]:%s" : "tcp:%s:%s", host,
			  port);
}

/* All addresses of the name, in their order; the first that answers is kept in c->addr. */
static int dial_name(struct cli *c, struct err *e)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	struct addrinfo *list = NULL;
	char addr[sizeof(c->addr)];
	int why = getaddrinfo(c->name, c->port, &hints, &list), fd = -ENOENT;

	if (why)
		return err_set_code(e, -EHOSTUNREACH, "no-such-host",
				    "the host %s cannot be looked up: %s; is %s right?", c->name,
				    gai_strerror(why), c->api_url);
	for (const struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next) {
		if (numeric_of(ai, addr, sizeof(addr)) < 0)
			continue;
		fd = dial_wait(addr, DIAL_MS, e);
		if (fd >= 0)
			(void)str_copy(c->addr, sizeof(c->addr), addr);
	}
	freeaddrinfo(list);
	return fd;
}

int cli_dial(void *arg, int timeout_ms, struct err *e)
{
	struct cli *c = arg;
	int64_t end_ms = clock_mono_ms() + timeout_ms;
	int fd = c->addr[0] ? dial_wait(c->addr, timeout_ms < DIAL_MS ? timeout_ms : DIAL_MS, e)
			    : dial_name(c, e);

	if (fd == -ECONNREFUSED)
		return err_set_code(e, fd, "no-node",
				    "nothing answers at %s; start a node with `sudo space up`",
				    c->api_url);
	return fd < 0 || !c->tls ? fd : tls_pump(fd, c->name, end_ms, e);
}
