/*
 * What the sandboxes' gateways may reach and use: ranges that the operator opens and closes, name
 * servers, limits.
 */
#include <fcntl.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "cli/up_exec.h"

#define RESOLV_CONF "/etc/resolv.conf"
#define RESOLV_CONF_MAX 65536
#define RANGE "a range like 10.1.0.0/16, with no bits set behind its prefix"

/* The texts of an option, each in the form that the configuration has. */
static int net_list(struct cli *c, const char *option, const char *const *texts,
		    int (*form)(char dst[CONF_NET_TEXT_MAX], const char *text),
		    char ret[][CONF_NET_TEXT_MAX], size_t max, const char *what)
{
	for (size_t i = 0; texts[i]; i++) {
		if (i == max)
			return cli_usage_error(c, "%s: at most %zu times", option, max);
		if (form(ret[i], texts[i]) < 0)
			return cli_usage_error(c, "%s needs %s, not \"%s\"", option, what,
					       texts[i]);
	}
	return 0;
}

int up_net_options(struct cli *c, const struct up_net_strings *s, struct conf_network *ret)
{
	int r = net_list(c, "--net-allow", s->allow, conf_cidr, ret->allow, CONF_NET_ALLOW_MAX, RANGE);

	if (r == 0)
		r = net_list(c, "--net-deny", s->deny, conf_cidr, ret->deny, CONF_NET_DENY_MAX,
			     RANGE);
	if (r == 0)
		r = net_list(c, "--nameserver", s->nameserver, conf_ip_address, ret->nameservers,
			     CONF_NAMESERVERS_MAX, "a numeric address");
	if (r == 0)
		r = net_list(c, "--net-limit", s->limit, conf_limit, ret->limits,
			     CONF_NET_LIMITS_MAX, "a limit like connections=1000");
	return r;
}

/* What can be opened and what limits there are is the gateway's own. Any range can be closed. */
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
