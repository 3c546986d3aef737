/* node-api: its rights and its socket. What it does stands in node.h. */
#include <limits.h>
#include "base/alloc.h"
#include "base/str.h"
#include "daemon/daemon.h"
#include "loop/listen.h"
#include "node-api/node.h"

struct self {
	struct node *node;
	struct listener *listener;
	char sbx_path[PATH_MAX];
};

static void on_accept(int fd, void *arg)
{
	struct self *s = arg;

	node_accept(s->node, fd);
}

static int start(struct daemon_ctx *d, struct err *e)
{
	struct self *s = d->self = x_alloc(sizeof(*s));
	char path[PATH_MAX], addr[PATH_MAX + 8];
	struct node_conf nc = {
		.sbx_uid = d->conf.users[CONF_USER_SBX],
		.peers = { 0, d->conf.users[CONF_USER_API], d->conf.users[CONF_USER_CTL] },
		.n_peers = 3,
	};
	int r = conf_path(&d->conf, s->sbx_path, CONF_RUN, "sbx-manager/sbx.sock");

	if (r == 0)
		r = conf_path(&d->conf, path, CONF_RUN, "node-api/node.sock");
	if (r == 0)
		r = str_format(addr, sizeof(addr), "unix:%s", path);
	if (r < 0)
		return err_errno(e, r, "cannot build the socket's path");
	nc.sbx_path = s->sbx_path;
	s->node = node_new(d->loop, &nc);
	return listener_new(d->loop, "node", addr, 0666, on_accept, s, &s->listener, e);
}

static void stop(struct daemon_ctx *d)
{
	struct self *s = d->self;

	if (!s)
		return;
	listener_free(s->listener);
	node_free(s->node);
}

static const char *const syscalls[] = { NULL };     /* no more than every daemon needs */

static const struct daemon_def def = {
	.name = "node-api",
	.user = "space-node",
	.syscalls = syscalls,
	.start = start,
	.stop = stop,
};

int main(int argc, char **argv)
{
	return daemon_main(argc, argv, &def);
}
