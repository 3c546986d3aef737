/* space-control: its rights. What it does stands in control.h. */
#include <limits.h>
#include "base/alloc.h"
#include "base/str.h"
#include "control/control.h"
#include "daemon/daemon.h"

static int start(struct daemon_ctx *d, struct err *e)
{
	char db[PATH_MAX], url[PATH_MAX + 8], keys[PATH_MAX], root_pub[PATH_MAX];
	const struct control_conf cc = { .store_url = url, .keys_dir = keys, .root_pub = root_pub };
	int r = conf_path(&d->conf, db, CONF_STATE, "control/space.db");

	if (r == 0)
		r = str_format(url, sizeof(url), "sqlite:%s", db);
	if (r == 0)
		r = conf_path(&d->conf, keys, CONF_STATE, "keys/ctl");
	if (r == 0)
		r = conf_path(&d->conf, root_pub, CONF_STATE, "keys/root.pub");
	if (r < 0)
		return err_errno(e, r, "cannot build the paths of the state folder");
	d->self = control_new(d->loop, &cc, e);
	return d->self ? 0 : e->num;
}

static void stop(struct daemon_ctx *d)
{
	control_free(d->self);
}

static const char *const syscalls[] = { NULL };     /* no more than every daemon needs */

static const struct daemon_def def = {
	.name = "space-control",
	.user = "space-ctl",
	.umask = 007,
	.syscalls = syscalls,
	.start = start,
	.stop = stop,
};

int main(int argc, char **argv)
{
	return daemon_main(argc, argv, &def);
}
