/* space-api: its rights and its socket. What it does stands in api.h. */
#include "api/api.h"
#include "base/alloc.h"
#include "base/fd.h"
#include "daemon/daemon.h"
#include "loop/listen.h"

struct self {
	struct api *api;
	struct listener *listener, *tls;
	int tls_fd;                      /* -1 = none, or the listener's */
};

static void on_accept(int fd, void *arg)
{
	struct self *s = arg;

	api_accept(s->api, fd);
}

static void on_accept_tls(int fd, void *arg)
{
	struct self *s = arg;

	api_accept_tls(s->api, fd);
}

/* Port 443 is root's to bind. */
static int init(struct daemon_ctx *d, struct err *e)
{
	struct self *s = d->self = x_alloc(sizeof(*s));

	s->tls_fd = -1;
	if (!d->conf.tls_listen[0])
		return 0;
	s->tls_fd = listen_named("tls", d->conf.tls_listen, 0, e);
	return s->tls_fd < 0 ? s->tls_fd : 0;
}

static int start(struct daemon_ctx *d, struct err *e)
{
	struct self *s = d->self;
	struct conf_control cc;
	char pem[PATH_MAX];
	bool tls = d->conf.tls_listen[0];
	const struct api_conf ac = { .store_url = cc.store_url,
				     .keys_dir = cc.keys,
				     .root_pub = cc.root_pub,
				     .domain = d->conf.domain,
				     .origins = d->conf.origins,
				     .tls_pem = tls ? pem : NULL };
	int r = conf_control(&d->conf, "api", &cc, e);

	if (r == 0)
		r = conf_path(&d->conf, pem, CONF_STATE, "keys/api/tls.pem");
	if (r < 0)
		return r;
	s->api = api_new(d->loop, &ac, e);
	if (!s->api)
		return e->num;
	r = listener_new(d->loop, "api", d->conf.api_listen, 0666, on_accept, s, &s->listener, e);
	if (r == 0 && tls)
		r = listener_new_fd(d->loop, TAKE_FD(s->tls_fd), on_accept_tls, s, &s->tls, e);
	return r;
}

static void stop(struct daemon_ctx *d)
{
	struct self *s = d->self;

	if (!s)
		return;
	listener_free(s->tls);
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
	.init = init,
	.start = start,
	.stop = stop,
};

int main(int argc, char **argv)
{
	return daemon_main(argc, argv, &def);
}
