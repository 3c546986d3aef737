/*
 * A change of a sandbox, in worker threads. It is first an operation row (L-10): it is written
 * claimed by this process, which drives it at once (the fast path). If the node cannot be reached
 * now, or this process dies, the row is there for space-control, and the client that still waits
 * here sees the end of it in the database.
 */
#include <errno.h>
#include <time.h>
#include "api/api.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"

#define WAIT_FIRST_MS 20
#define WAIT_MOST_MS 250

int call_not_found(struct call *c)
{
	return err_set_code(&c->err, -ENOENT, "sandbox-not-found", "The sandbox was not found.");
}

int call_load(struct call *c, struct store *s, struct store_sandbox *b)
{
	int r = c->id[0] ? store_sandbox_get(s, c->id, c->tenant, b, &c->err) : -ENOENT;

	return r == -ENOENT ? call_not_found(c) : r;
}

int change_need_signer(struct call *c)
{
	return c->signer_ok
		       ? 0
		       : err_set(&c->err, -EAGAIN,
				 "The server has no signing key that the nodes know yet; try again.");
}

static bool op_ended(const struct store_op *op)
{
	return op->state == STORE_OP_DONE || op->state == STORE_OP_FAILED;
}

void change_nap(int64_t ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* Until the operation has ended, whoever drives it; -EAGAIN when that takes too long. */
static int wait_for(struct store *s, int64_t id, struct store_op *op, struct err *e)
{
	int64_t until = clock_mono_ms() + API_OP_WAIT_MS, ms = WAIT_FIRST_MS;
	int r;

	for (;;) {
		r = store_op_get(s, id, op, e);
		if (r < 0 || op_ended(op))
			return r;
		if (clock_mono_ms() >= until)
			return err_set_code(e, -EAGAIN, "in-progress",
					    "The operation goes on; it has not ended yet.");
		change_nap(ms);
		ms = ms * 2 < WAIT_MOST_MS ? ms * 2 : WAIT_MOST_MS;
	}
}

int change_wait(struct call *c, struct store *s, struct store_op *op)
{
	int r = wait_for(s, op->id, op, &c->err);

	if (r < 0 || op->state != STORE_OP_FAILED)
		return r;
	/* A refusal is between us and the node; to the client it is a try that did not succeed. */
	bool refusal = str_starts(op->err_code, "refusal-");

	return err_set_code(&c->err, refusal || op->err_num == 0 ? -EAGAIN : op->err_num,
			    op->err_code, "%s", op->err_text);
}

int change_complete(struct call *c, struct store *s, struct store_op *op)
{
	struct ops_ctx ctx = { .store = s,
			       .signer = &c->signer,
			       .claimer = c->api->claimer,
			       .timeout_ms = API_NODE_CALL_MS };
	struct err why = { 0 };

	if (op->state == STORE_OP_CLAIMED && str_eq(op->claimer, c->api->claimer) &&
	    str_eq(op->request_id, c->req_id) && ops_drive(&ctx, op, &why) < 0)
		log_warn("operation left to others", F_REQ(c->req_id),
			 F_STR("sandbox", op->sandbox), F_STR("kind", life_event_names[op->kind]),
			 F_ERR(&why));
	return change_wait(c, s, op);
}

int change_ask(struct call *c, struct store *s, enum life_event kind, int64_t timeout_ms,
	       struct store_op *op)
{
	int r = change_need_signer(c);

	if (r == 0 && !c->id[0])
		r = call_not_found(c);
	if (r == 0)
		r = store_submit_timed(s, c->id, c->tenant, kind, timeout_ms, c->api->claimer,
				       c->req_id, op, &c->err);
	if (r == -ENOENT)
		return call_not_found(c);
	if (r < 0 || op->id == 0)
		return r;
	/* The execution that ends: a start has taken the next generation already. */
	if (kind == LIFE_EV_START)
		c->retired = op->generation - 1;
	else if (kind != LIFE_EV_RESUME)
		c->retired = op->generation;
	r = FAULT("api.change.stored");
	return r < 0 ? err_set(&c->err, r, "The failpoint api.change.stored is set.") : 0;
}

int change_run(struct call *c, struct store *s, enum life_event kind)
{
	struct store_op op;
	int r = change_ask(c, s, kind, 0, &op);

	return r < 0 || op.id == 0 ? r : change_complete(c, s, &op);
}
