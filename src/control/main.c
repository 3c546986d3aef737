/* space-control: its rights. What it does stands in control.h. */
#include "control/control.h"
#include "daemon/daemon.h"

static int start(struct daemon_ctx *d, struct err *e)
{
	struct conf_control paths;
	const struct control_conf cc = { .store_url = paths.store_url,
					 .keys_dir = paths.keys,
					 .root_pub = paths.root_pub };
	int r = conf_control(&d->conf, "ctl", &paths, e);

	if (r < 0)
		return r;
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
