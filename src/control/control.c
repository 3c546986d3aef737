/* Life of the program's one object; the loops "end", "purge" and "keys". */
#include "control/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "ops/signer.h"

#define END_BATCH 100
#define PURGE_BATCH 500                  /* rows in a transaction: others wait for it */
#define PURGE_ROUNDS 20

void control_job(struct control *c, bool *going, void (*run)(void *job), void (*done)(void *job),
		 void *job)
{
	*going = work_add(c->look, NULL, run, done, job) == 0;
	if (!*going)
		free(job);
}

/* ---- keys ---- */

struct keys_job {
	struct control *c;
	bool have;
	struct key_signer found;
	int result;
	struct err err;
};

static void keys_run(void *arg)
{
	struct keys_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);

	j->result = s ? ops_signer_choose(s, j->c->keys_dir, j->c->root_public,
					  ID_PURPOSE_LIFECYCLE, j->have, &j->found, &j->err)
		      : j->err.num;
}

static void keys_done(void *arg)
{
	static struct log_limit limit;
	struct keys_job *j = arg;
	struct control *c = j->c;

	c->choosing = false;
	if (j->result == 1) {
		if (!c->have_signer || !str_eq(c->signer.kid, j->found.kid))
			log_info("signing key", F_STR("kid", j->found.kid));
		key_signer_done(&c->signer);
		c->signer = j->found;
		c->have_signer = true;
	} else if ((!c->have_signer || j->result < 0) && log_limit_ok(&limit, 6)) {
		log_warn("no signing key that the nodes know", F_ERR(&j->err));
	}
	explicit_bzero(j, sizeof(*j));
	free(j);
}

static void keys_tick(struct loop_timer *t)
{
	struct control *c = t->arg;
	struct keys_job *j;

	loop_timer_set(c->loop, t, CONTROL_KEYS_MS, keys_tick, c);
	if (c->choosing)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	j->have = c->have_signer;
	control_job(c, &c->choosing, keys_run, keys_done, j);
}

/* ---- sandboxes whose time is over: paused or deleted ---- */

struct end_job {
	struct control *c;
	struct store_op ops[END_BATCH];
	unsigned n;
	char cursor[STORE_CURSOR_MAX];
	struct err err;
};

static void end_one(struct end_job *j, struct store *s, const struct store_sandbox *b)
{
	struct store_op *op = &j->ops[j->n];
	struct err e = { 0 };
	char req[65];

	str_format(req, sizeof(req), "end-%s", b->id);
	if (store_submit_end(s, b->id, j->c->claimer, req, op, &e) < 0) {
		/* What happens to it now is waited for. */
		if (e.num != -ENOENT && e.num != -EBUSY)
			log_warn("a sandbox whose time is over cannot be ended",
				 F_STR("sandbox", b->id), F_ERR(&e));
		return;
	}
	if (op->id != 0)
		log_info("time is over", F_REQ(req), F_STR("sandbox", b->id),
			 F_STR("action", life_event_names[op->kind]));
	if (op->id != 0 && op->state == STORE_OP_CLAIMED && str_eq(op->claimer, j->c->claimer))
		j->n++;
}

/* A page a time: those that cannot be ended now do not stand in the way of those behind them. */
static void end_run(void *arg)
{
	struct end_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);
	struct store_list q = { .tenant = "", .limit = END_BATCH, .cursor = j->cursor };
	struct store_sandbox *rows = NULL;
	char next[STORE_CURSOR_MAX] = "";
	size_t n = 0;

	if (!s || store_now(s, &q.expired_before_ms, &j->err) < 0 ||
	    store_sandbox_list(s, &q, &rows, &n, next, &j->err) < 0)
		return;
	str_copy(j->cursor, sizeof(j->cursor), next);
	for (size_t i = 0; i < n; i++) {
		end_one(j, s, &rows[i]);
		store_sandbox_done(&rows[i]);
	}
	free(rows);
}

static void end_done(void *arg)
{
	static struct log_limit limit;
	struct end_job *j = arg;

	j->c->ending = false;
	str_copy(j->c->end_cursor, sizeof(j->c->end_cursor), j->cursor);
	if (j->err.num < 0 && log_limit_ok(&limit, 6))
		log_warn("the list of sandboxes cannot be read", F_ERR(&j->err));
	for (unsigned i = 0; i < j->n; i++)
		drive_op(j->c, &j->ops[i]);
	free(j);
}

static void end_tick(struct loop_timer *t)
{
	struct control *c = t->arg;
	struct end_job *j;

	loop_timer_set(c->loop, t, CONTROL_END_MS, end_tick, c);
	if (c->ending || !c->have_signer)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	str_copy(j->cursor, sizeof(j->cursor), c->end_cursor);
	control_job(c, &c->ending, end_run, end_done, j);
}

/* ---- rows of what is over ---- */

struct purge_job { struct control *c; int n; struct err err; };

static void purge_run(void *arg)
{
	struct purge_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);
	int r = s ? 1 : 0;

	for (int i = 0; i < PURGE_ROUNDS && r > 0; i++) {
		r = store_purge(s, PURGE_BATCH, &j->err);
		j->n += r > 0 ? r : 0;
	}
}

static void purge_done(void *arg)
{
	struct purge_job *j = arg;

	j->c->purging = false;
	if (j->err.num < 0)
		log_warn("old rows were not removed", F_ERR(&j->err));
	else if (j->n > 0)
		log_info("old rows removed", F_INT("rows", j->n));
	free(j);
}

static void purge_tick(struct loop_timer *t)
{
	struct control *c = t->arg;
	struct purge_job *j;

	loop_timer_set(c->loop, t, CONTROL_PURGE_MS, purge_tick, c);
	if (c->purging)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	control_job(c, &c->purging, purge_run, purge_done, j);
}

/* ---- life ---- */

static int set_strings(struct control *c, const struct control_conf *conf)
{
	char rnd[17];
	int r = str_copy(c->store_url, sizeof(c->store_url), conf->store_url);

	if (r == 0)
		r = str_copy(c->keys_dir, sizeof(c->keys_dir), conf->keys_dir);
	if (r == 0)
		r = str_copy(c->root_pub, sizeof(c->root_pub), conf->root_pub);
	if (r == 0)
		r = str_random_hex(rnd, 8);
	if (r == 0)
		r = conf->claimer ? str_copy(c->claimer, sizeof(c->claimer), conf->claimer)
				  : str_format(c->claimer, sizeof(c->claimer),
					       "space-control.%d.%s", (int)getpid(), rnd);
	return r;
}

struct control *control_new(struct loop *l, const struct control_conf *conf, struct err *e)
{
	struct control *c = x_alloc(sizeof(*c));
	struct store *s = NULL;
	int r = set_strings(c, conf);

	if (r < 0 || key_init() < 0)
		r = err_set(e, r < 0 ? r : -EIO,
			    "A setting is too long, or there are no random numbers.");
	if (r == 0)
		r = ops_root_public(c->root_pub, c->root_public, e);
	if (r == 0)
		r = store_open(c->store_url, &s, e);         /* an unusable database is said at the start */
	store_close(s);
	if (r < 0) {
		free(c);
		return NULL;
	}
	c->loop = l;
	c->nodes = map_new(CONTROL_NODES_MAX);
	c->drive = work_new(l, CONTROL_DRIVE_THREADS);
	c->look = work_new(l, CONTROL_LOOK_THREADS);
	loop_timer_set(l, &c->keys_timer, 0, keys_tick, c);
	loop_timer_set(l, &c->end_timer, CONTROL_END_MS, end_tick, c);
	loop_timer_set(l, &c->purge_timer, 0, purge_tick, c);
	nodes_start(c);
	drive_start(c);
	return c;
}

void control_free(struct control *c)
{
	if (!c)
		return;
	c->leaving = true;
	loop_timer_stop(&c->claim_timer);
	loop_timer_stop(&c->nodes_timer);
	loop_timer_stop(&c->end_timer);
	loop_timer_stop(&c->keys_timer);
	loop_timer_stop(&c->purge_timer);
	/* Jobs that end now begin no others: what they have claimed is claimed anew by others. */
	work_stop(c->drive);
	work_stop(c->look);
	work_free(c->drive);
	work_free(c->look);
	nodes_free(c);
	key_signer_done(&c->signer);
	free(c);
}
