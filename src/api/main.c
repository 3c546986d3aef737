/* space-api: its rights and its socket. What it does stands in api.h. */
#include "api/api.h"
#include "base/alloc.h"
#include "daemon/daemon.h"
#include "loop/listen.h"

struct self {
	struct api *api;
	struct listener *listener;
};

static void on_accept(int fd, void *arg)
{
	struct self *s = arg;

	api_accept(s->api, fd);
}

static int start(struct daemon_ctx *d, struct err *e)
{
	struct self *s = d->self = x_alloc(sizeof(*s));
	struct conf_control cc;
	const struct api_conf ac = { .store_url = cc.store_url,
				     .keys_dir = cc.keys,
				     .root_pub = cc.root_pub,
				     .domain = d->conf.domain,
				     .origins = d->conf.origins };
	int r = conf_control(&d->conf, "api", &cc, e);

	if (r < 0)
		return r;
	s->api = api_new(d->loop, &ac, e);
	if (!s->api)
		return e->num;
	return listener_new(d->loop, "api", d->conf.api_listen, 0666, on_accept, s, &s->listener,
			    e);
}

static void stop(struct daemon_ctx *d)
{
	struct self *s = d->self;

	if (!s)
		return;
	listener_free(s->listener);
	api_free(s->api);
}

/* A terminal's calls to its sandbox come over connections to our own server (terminal_hop.h). */
static const char *const syscalls[] = { "socketpair", NULL };

static const struct daemon_def def = {
	.name = "space-api",
	.user = "space-api",
	.group = "space-ctl",
	.umask = 007,
	.syscalls = syscalls,
	.start = start,
	.stop = stop,
};

int main(int argc, char **argv)
{
	return daemon_main(argc, argv, &def);
}
