/* sbx-manager; what it does stands in sbx.h. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "sbx-manager/job.h"

static const char *const sbx_syscalls[] = { "memfd_create", NULL };

static void sbx_main_adopted(struct job *j)
{
	struct err e = { 0 };

	if (j->e.num == 0 && sbx_serve(j->s, &e) == 0) {
		gateway_look_all(j->s, false);
		return;
	}
	if (!atomic_load(&j->s->leaving))
		log_error("cannot serve", F_ERR(j->e.num < 0 ? &j->e : &e));
	loop_stop(j->s->loop);
}

static int sbx_main_start(struct daemon_ctx *d, struct err *e)
{
	struct sbx *s = x_alloc(sizeof(*s));
	struct job *j;
	int r;

	d->self = s;
	s->conf = d->conf;
	s->loop = d->loop;
	r = sbx_open(s, e);
	if (r < 0)
		return r;
	j = job_new(s, "adopt", "", "", adopt_run);
	j->done = sbx_main_adopted;
	return job_start(j);
}

static void sbx_main_stop(struct daemon_ctx *d)
{
	if (!d->self)
		return;
	sbx_close(d->self);
	free(d->self);
}

static const struct daemon_def sbx_daemon = {
	.name = "sbx-manager",
	.user = "space-sbx",
	.syscalls = sbx_syscalls,
	.start = sbx_main_start,
	.stop = sbx_main_stop,
};

int main(int argc, char **argv)
{
	return daemon_main(argc, argv, &sbx_daemon);
}
