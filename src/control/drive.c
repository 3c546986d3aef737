/*
 * Operations without a driver: looked for every CONTROL_CLAIM_MS, and again at once while there are
 * some.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "control/control.h"
#include "ops/signer.h"

struct drive_job {
	struct control *c;
	struct store_op op;
	struct key_signer signer;
	int result;
	int64_t start_ms;
	struct err err;
};
struct claim_job { struct control *c; struct store_op op; int result; struct err err; };

static void claim(struct control *c);

static void drive_run(void *arg)
{
	struct drive_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);
	struct ops_ctx ctx = { .store = s,
			       .signer = &j->signer,
			       .claimer = j->c->claimer,
			       .timeout_ms = CONTROL_LIFECYCLE_MS };

	j->result = s ? ops_drive(&ctx, &j->op, &j->err) : j->err.num;
}

static void drive_done(void *arg)
{
	struct drive_job *j = arg;
	struct control *c = j->c;

	c->n_driving--;
	if (j->result < 0)
		log_info("operation not ended", F_REQ(j->op.request_id),
			 F_STR("sandbox", j->op.sandbox),
			 F_STR("kind", life_event_names[j->op.kind]), F_UINT("tries", j->op.tries),
			 F_ERR(&j->err));
	else
		log_info("operation ended", F_REQ(j->op.request_id),
			 F_STR("sandbox", j->op.sandbox),
			 F_STR("kind", life_event_names[j->op.kind]), F_UINT("tries", j->op.tries),
			 F_INT("ms", clock_mono_ms() - j->start_ms));
	key_signer_done(&j->signer);
	free(j);
	claim(c);
}

void drive_op(struct control *c, const struct store_op *op)
{
	struct drive_job *j = x_alloc(sizeof(*j));

	j->c = c;
	j->op = *op;
	j->signer = c->signer;
	j->start_ms = clock_mono_ms();
	c->n_driving++;
	if (work_add(c->drive, op->sandbox, drive_run, drive_done, j) == 0)
		return;
	c->n_driving--;                          /* full, or ended: its lease runs out, then it is claimed anew */
	key_signer_done(&j->signer);
	free(j);
}

static void claim_run(void *arg)
{
	struct claim_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);

	j->result = s ? store_claim(s, j->c->claimer, &j->op, &j->err) : j->err.num;
}

static void claim_done(void *arg)
{
	static struct log_limit limit;
	struct claim_job *j = arg;
	struct control *c = j->c;

	c->claiming = false;
	if (j->result == 0) {
		log_info("operation claimed", F_REQ(j->op.request_id),
			 F_STR("sandbox", j->op.sandbox),
			 F_STR("kind", life_event_names[j->op.kind]), F_UINT("tries", j->op.tries));
		drive_op(c, &j->op);
		claim(c);
	} else if (j->result != -ENOENT && log_limit_ok(&limit, 6)) {
		log_warn("operations cannot be claimed", F_ERR(&j->err));
	}
	free(j);
}

static void claim(struct control *c)
{
	struct claim_job *j;

	if (c->leaving || c->claiming || !c->have_signer || c->n_driving >= CONTROL_DRIVE_MAX)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	control_job(c, &c->claiming, claim_run, claim_done, j);
}

static void claim_tick(struct loop_timer *t)
{
	struct control *c = t->arg;

	claim(c);
	loop_timer_set(c->loop, t, CONTROL_CLAIM_MS, claim_tick, c);
}

void drive_start(struct control *c)
{
	loop_timer_set(c->loop, &c->claim_timer, CONTROL_CLAIM_MS, claim_tick, c);
}
