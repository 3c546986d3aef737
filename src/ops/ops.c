/*
 * Theory of operation. An operation row says what shall happen to which sandbox; the sandbox's row
 * has the execution that it is about (store_submit wrote both in one transaction). Driving it is:
 * read the sandbox, make the request from it, send it to the node, write what came of it. Nothing
 * is remembered in between, so whoever takes over after a kill at any point does exactly the same
 * again, and the node gives the same result for the same execution.
 *
 *	claimed --ask the node--> answer: store_finish(done)
 *	                          refused for good: store_finish(failed), the state table says what the sandbox is then
 *	                          lost, busy, not yet: store_release with a growing delay (-EAGAIN)
 *
 * Work carries the generation that it was decided for: when the row has passed on, the operation
 * has lost its sense and ends as failed without a call. Deletions are for the sandbox, not for an
 * execution; they never give up.
 */
#include "ops/ops.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/fault.h"
#include "base/str.h"
#include "json/strict.h"
#include "ops/internal.h"

#define OPS_TRIES_MAX 10                 /* then an operation that is not a deletion has failed */
#define OPS_DELAY_FIRST_MS 250
#define OPS_DELAY_MAX_MS 15000
#define SPEC_DEPTH_MAX 6

struct step {
	enum life_event kind;
	enum life_state running;         /* the state while it is driven */
	json_t *(*spec)(const struct store_sandbox *b);
};

static json_t *object_of(const char *text)
{
	json_t *v = text && *text ? strict_parse(text, strlen(text), SPEC_DEPTH_MAX, NULL) : NULL;

	return v ? v : json_object();
}

static json_t *spec_create(const struct store_sandbox *b)
{
	return json_pack("{s:s,s:I,s:I,s:I,s:o,s:o,s:b}", "template", b->template, "memory_mib",
			 (json_int_t)b->memory_mib, "vcpus", (json_int_t)b->vcpus, "disk_mib",
			 (json_int_t)b->disk_mib, "env", object_of(b->env), "metadata",
			 object_of(b->metadata), "internet", b->internet);
}

static json_t *spec_start(const struct store_sandbox *b)
{
	return json_pack("{s:o,s:b}", "env", object_of(b->env), "internet", b->internet);
}

static json_t *spec_none(const struct store_sandbox *b)
{
	return json_object();
}

static const struct step steps[] = {
	{ LIFE_EV_CREATE, LIFE_CREATING, spec_create },
	{ LIFE_EV_START, LIFE_STARTING, spec_start },
	{ LIFE_EV_STOP, LIFE_STOPPING, spec_none },
	{ LIFE_EV_PAUSE, LIFE_PAUSING, spec_none },
	{ LIFE_EV_RESUME, LIFE_RESUMING, spec_start },
	{ LIFE_EV_DELETE, LIFE_DELETING, spec_none },
};

static const struct step *step_of(enum life_event kind)
{
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (steps[i].kind == kind)
			return &steps[i];
	return NULL;
}

int ops_node_addr(struct store *s, const char *worker, char *dst, size_t size, struct err *e)
{
	autofree struct store_node *nodes = NULL;
	size_t n = 0;
	int r = store_node_list(s, &nodes, &n, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		if (str_eq(nodes[i].worker, worker))
			return str_copy(dst, size, nodes[i].addr);
	return err_set_code(e, -EAGAIN, "node-unknown", "The node %s has not joined yet.", worker);
}

/*
 * Errors that another try may cure: the node or one of its daemons is away or busy, or does not
 * know our key yet. A node that is full stays so until somebody deletes or stops something: who
 * asked is told, and asks again.
 */
static bool transient(const struct err *e)
{
	static const int nums[] = { EAGAIN, EBUSY,    ECONNRESET, ECONNREFUSED,
				    EPIPE,  ENOTCONN, EHOSTDOWN,  ENOBUFS,
				    EMFILE, ENFILE,   ETIMEDOUT };

	if (str_eq(err_code(e), "node-full"))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(nums); i++)
		if (e->num == -nums[i])
			return true;
	return str_starts(err_code(e), "refusal-");
}

static int fault(const char *kind, const char *where, struct err *e)
{
	char name[64];
	int r;

	str_format(name, sizeof(name), "ops.%s.%s", kind, where);
	r = FAULT(name);
	return r < 0 ? err_set(e, r, "The failpoint %s is set.", name) : 0;
}

static int give_back(struct ops_ctx *c, struct store_op *op, struct err *why)
{
	int64_t delay = OPS_DELAY_FIRST_MS;
	struct err e = { 0 };

	for (unsigned i = 0; i < op->tries && delay < OPS_DELAY_MAX_MS; i++)
		delay *= 2;
	store_release(c->store, op, delay < OPS_DELAY_MAX_MS ? delay : OPS_DELAY_MAX_MS, &e);
	why->num = -EAGAIN;
	return -EAGAIN;
}

static int finish_failed(struct ops_ctx *c, struct store_op *op, const struct step *step,
			 const struct err *why, struct err *e)
{
	const struct life_rule *rule = life_find(step->running, LIFE_EV_FAILED);

	return store_finish(c->store, op, rule ? rule->to : LIFE_FAILED, why, e);
}

/*
 * A create or start that was done before may tell of an execution that has ended meanwhile; the
 * operation has ended well all the same, and what became of its execution comes with the node's
 * reports.
 */
static enum life_state state_of(const struct step *step)
{
	const struct life_rule *rule = life_find(step->running, LIFE_EV_DONE);

	return rule ? rule->to : LIFE_FAILED;
}

struct renewal { struct ops_ctx *c; struct store_op *op; };

static int renew(void *arg)
{
	struct renewal *r = arg;

	return store_renew(r->c->store, r->op, NULL);
}

static int ask_node(struct ops_ctx *c, struct store_op *op, const struct step *step,
		    const struct store_sandbox *b, json_t **ret, struct err *e)
{
	const char *kind = life_event_names[op->kind];
	struct renewal renewal = { c, op };
	char addr[200];
	struct identity id;
	json_t *spec;
	int r;

	store_sandbox_identity(b, &id);
	r = ops_node_addr(c->store, b->worker, addr, sizeof(addr), e);
	if (r == 0)
		r = fault(kind, "before-node", e);
	if (r < 0)
		return r;
	spec = step->spec(b);
	r = ops_post(addr, c->signer, &id, kind, spec, op->request_id, c->timeout_ms, renew,
		     &renewal, ret, e);
	json_decref(spec);
	if (r == 0)
		r = fault(kind, "after-node", e);
	if (r < 0 && step->kind == LIFE_EV_DELETE && r == -ENOENT) {
		*ret = json_object();            /* the node has nothing of it: that is what was wanted */
		return 0;
	}
	return r;
}

static int drive(struct ops_ctx *c, struct store_op *op, const struct step *step,
		 const struct store_sandbox *b, struct err *e)
{
	struct err why = { 0 };
	json_t *result = NULL;
	int r;

	if (op->kind != LIFE_EV_DELETE && op->generation != b->generation) {
		err_set_code(&why, -ESTALE, "execution-replaced",
			     "The operation was decided for execution %llu, which has passed.",
			     (unsigned long long)op->generation);
		return finish_failed(c, op, step, &why, e);
	}
	r = ask_node(c, op, step, b, &result, &why);
	if (r == 0) {
		r = store_finish(c->store, op, state_of(step), NULL, e);
		json_decref(result);
		return r;
	}
	json_decref(result);
	if (str_eq(why.code, "claim-lost")) {
		if (e)
			*e = why;
		return -ESTALE;
	}
	if (transient(&why) && (op->kind == LIFE_EV_DELETE || op->tries < OPS_TRIES_MAX)) {
		r = give_back(c, op, &why);
		if (e)
			*e = why;
		return r;
	}
	return finish_failed(c, op, step, &why, e);
}

int ops_drive(struct ops_ctx *c, struct store_op *op, struct err *e)
{
	const struct step *step = step_of(op->kind);
	struct store_sandbox b = { 0 };
	struct err why = { 0 };
	int r;

	assert(step);                            /* store_submit takes no other kinds */
	r = store_sandbox_get(c->store, op->sandbox, "", &b, &why);
		if (r < 0) {
		give_back(c, op, &why);
		if (e)
			*e = why;
		return -EAGAIN;
	}
	r = drive(c, op, step, &b, e);
	store_sandbox_done(&b);
	return r;
}
