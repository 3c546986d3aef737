/*
 * What the sandboxes' gateways may reach and use: ranges that the operator opens, name servers,
 * limits.
 */
#include <fcntl.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "cli/up_exec.h"

#define RESOLV_CONF "/etc/resolv.conf"
#define RESOLV_CONF_MAX 65536

static int net_allow(struct cli *c, const char *const *allow, struct conf_network *ret)
{
	for (size_t i = 0; allow[i]; i++) {
		if (i == CONF_NET_ALLOW_MAX)
			return cli_usage_error(c, "--net-allow: at most %d ranges",
					       CONF_NET_ALLOW_MAX);
		if (conf_cidr(ret->allow[i], allow[i]) < 0)
			return cli_usage_error(
				c,
				"--net-allow needs a range like 10.1.0.0/16, with no bits set "
				"behind its prefix, not \"%s\"",
				allow[i]);
	}
	return 0;
}

static int net_servers(struct cli *c, const char *const *nameserver, struct conf_network *ret)
{
	for (size_t i = 0; nameserver[i]; i++) {
		if (i == CONF_NAMESERVERS_MAX)
			return cli_usage_error(c, "--nameserver: at most %d addresses",
					       CONF_NAMESERVERS_MAX);
		if (conf_ip_address(ret->nameservers[i], nameserver[i]) < 0)
			return cli_usage_error(
				c, "--nameserver needs a numeric address, not \"%s\"",
				nameserver[i]);
	}
	return 0;
}

static int net_limits(struct cli *c, const char *const *limit, struct conf_network *ret)
{
	for (size_t i = 0; limit[i]; i++) {
		if (i == CONF_NET_LIMITS_MAX)
			return cli_usage_error(c, "--net-limit: at most %d limits",
					       CONF_NET_LIMITS_MAX);
		if (conf_limit(ret->limits[i], limit[i]) < 0)
			return cli_usage_error(
				c, "--net-limit needs a limit like connections=1000, not \"%s\"",
				limit[i]);
	}
	return 0;
}

int up_net_options(struct cli *c, const struct up_net_strings *s, struct conf_network *ret)
{
	int r = net_allow(c, s->allow, ret);

	if (r == 0)
		r = net_servers(c, s->nameserver, ret);
	if (r == 0)
		r = net_limits(c, s->limit, ret);
	return r;
}

/* What can be opened and what limits there are is the gateway's own. */
int up_net_check(const struct up_options *o, struct err *e)
{
	autofree char *program = x_asprintf("%s/netgtw", o->lib_dir);
	const char *argv[3 + 2 * (CONF_NET_ALLOW_MAX + CONF_NET_LIMITS_MAX) + 1] = {
		program, "--role", "check"
	};
	size_t n = 3;

	for (size_t i = 0; i < CONF_NET_ALLOW_MAX && o->network.allow[i][0]; i++) {
		argv[n++] = "--allow";
		argv[n++] = o->network.allow[i];
	}
	for (size_t i = 0; i < CONF_NET_LIMITS_MAX && o->network.limits[i][0]; i++) {
		argv[n++] = "--limit";
		argv[n++] = o->network.limits[i];
	}
	return n == 3 ? 0 : up_exec(argv, NULL, e);
}

void up_net_conf(const struct up_options *o, struct conf *k)
{
	autofree char *text = NULL;

	k->network = o->network;
	/* Without one, names cannot be resolved in sandboxes, and the gateway answers so. */
	if (!k->network.nameservers[0][0] &&
	    fd_read_file(AT_FDCWD, RESOLV_CONF, RESOLV_CONF_MAX, &text, NULL) == 0)
		up_nameservers(text, &k->network);
}
