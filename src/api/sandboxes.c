/*
 * What the control routes do; all of it in worker threads. A change is first an operation row
 * (L-10): it is written claimed by this process, which drives it at once (the fast path). If the
 * node cannot be reached now, or this process dies, the row is there for space-control, and the
 * client that still waits here sees the end of it in the database.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"

#define WAIT_FIRST_MS 20
#define WAIT_MOST_MS 250
#define MANIFEST_DEPTH_MAX 4
#define NODE_AWAY_MS 15000

/* ---- operations ---- */

static int need_signer(struct call *c)
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

static void nap(int64_t ms)
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
		nap(ms);
		ms = ms * 2 < WAIT_MOST_MS ? ms * 2 : WAIT_MOST_MS;
	}
}

/* Drives what is ours and waits for what is not. 0: it was done; its own error when it failed. */
static int complete(struct call *c, struct store *s, struct store_op *op)
{
	struct ops_ctx ctx = { .store = s,
			       .signer = &c->signer,
			       .claimer = c->api->claimer,
			       .timeout_ms = API_NODE_CALL_MS };
	struct err why = { 0 };
	int r;

	if (op->state == STORE_OP_CLAIMED && str_eq(op->claimer, c->api->claimer) &&
	    str_eq(op->request_id, c->req_id)) {
		r = ops_drive(&ctx, op, &why);
		if (r < 0)
			log_warn("operation left to others", F_REQ(c->req_id),
				 F_STR("sandbox", op->sandbox),
				 F_STR("kind", life_event_names[op->kind]), F_ERR(&why));
	}
	r = wait_for(s, op->id, op, &c->err);
	if (r < 0)
		return r;
	if (op->state == STORE_OP_FAILED) {
		/*
		 * A refusal is between us and the node; to the client it is a try that did not
		 * succeed.
		 */
		bool refusal = str_starts(op->err_code, "refusal-");

		return err_set_code(&c->err, refusal || op->err_num == 0 ? -EAGAIN : op->err_num,
				    op->err_code, "%s", op->err_text);
	}
	return 0;
}

/* ---- create ---- */

/* The node for a new sandbox: the one that was seen last. */
static int place(struct store *s, char worker[ID_UUID_LEN + 1], struct err *e)
{
	autofree struct store_node *nodes = NULL;
	const struct store_node *best = NULL;
	size_t n;
	int r = store_node_list(s, &nodes, &n, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		if (!best || nodes[i].seen_ms > best->seen_ms)
			best = &nodes[i];
	if (!best)
		return err_set_code(e, -EAGAIN, "no-node", "No node has joined yet; try again.");
	return str_copy(worker, ID_UUID_LEN + 1, best->worker);
}

static uint64_t number_of(json_t *o, const char *name, uint64_t otherwise)
{
	json_int_t v = json_integer_value(json_object_get(o, name));

	return v > 0 ? (uint64_t)v : otherwise;
}

static int take_template(struct store *s, const char *tenant, const char *name,
			 struct store_sandbox *b, struct err *e)
{
	autofree char *text = NULL;
	json_t *manifest;
	int r = store_template_find(s, tenant, name, b->template, b->template_name, &text, e);

	if (r == -ENOENT)
		return err_set_code(e, r, "template-not-found",
				    "The template \"%s\" was not found.", name);
	if (r < 0)
		return r;
	manifest = text ? strict_parse(text, strlen(text), MANIFEST_DEPTH_MAX, NULL) : NULL;
	b->memory_mib = number_of(manifest, "memory_mib", 512);
	b->vcpus = number_of(manifest, "vcpus", 1);
	b->disk_mib = number_of(manifest, "disk_bytes", 8ull << 30) >> 20;
	json_decref(manifest);
	return 0;
}

static int fill(struct call *c, struct store *s, const struct fields_create *f,
		struct store_sandbox *b)
{
	int64_t now;
	int r = take_template(s, c->tenant, f->template, b, &c->err);

	if (r == 0)
		r = place(s, b->worker, &c->err);
	if (r == 0)
		r = store_now(s, &now, &c->err);
	if (r < 0)
		return r;
	if (id_new_sandbox(b->id) < 0 || id_new_activation(b->activation) < 0)
		return err_set(&c->err, -EIO, "The server has no random numbers.");
	str_copy(b->tenant, sizeof(b->tenant), c->tenant);
	b->generation = b->attempt = 1;
	b->created_ms = now;
	b->end_ms = now + f->timeout_s * 1000;
	b->metadata = json_dumps(f->metadata, JSON_COMPACT);
	b->env = json_dumps(f->env, JSON_COMPACT);
	b->options = json_dumps(f->options, JSON_COMPACT);
	return 0;
}

/*
 * After a create that failed, or whose end nobody here has seen: nothing half made stays. Driven by
 * others if need be.
 */
static void undo(struct call *c, struct store *s, const char *id)
{
	struct ops_ctx ctx = { .store = s,
			       .signer = &c->signer,
			       .claimer = c->api->claimer,
			       .timeout_ms = API_NODE_CALL_MS };
	struct store_op op;
	struct err e = { 0 };

	if (store_submit(s, id, c->tenant, LIFE_EV_DELETE, c->api->claimer, c->req_id, &op, &e) < 0)
		log_warn("a failed create was not undone", F_REQ(c->req_id), F_STR("sandbox", id),
			 F_ERR(&e));
	else if (op.id != 0 && op.state == STORE_OP_CLAIMED && str_eq(op.claimer, c->api->claimer))
		ops_drive(&ctx, &op, NULL);
}

static int create(struct call *c, struct store *s, const struct fields_create *f,
		  struct store_sandbox *b)
{
	struct store_op op;
	int r = fill(c, s, f, b);

	if (r == 0)
		r = store_create(s, b, c->api->claimer, c->req_id, &op, &c->err);
	if (r < 0)
		return r;
	str_copy(c->id, sizeof(c->id), b->id);
	r = FAULT("api.create.stored");
	if (r < 0)
		err_set(&c->err, r, "The failpoint api.create.stored is set.");
	else
		r = complete(c, s, &op);
	if (r < 0)
		undo(c, s, b->id);
	return r;
}

static void run_create(struct call *c, struct store *s, enum fields_version v)
{
	struct fields_create f = { 0 };
	struct store_sandbox b = { 0 };
	int r = fields_create(v, c->body, c->body_len, &f, &c->err);

	if (r == 0)
		r = need_signer(c);
	if (r == 0)
		r = create(c, s, &f, &b);
	if (r == 0)
		call_json(c, 201, object_created(c->api, &b));
	store_sandbox_done(&b);
	fields_create_done(&f);
}

void run_create_v1(struct call *c, struct store *s)
{
	run_create(c, s, FIELDS_V1);
}

void run_create_v2(struct call *c, struct store *s)
{
	run_create(c, s, FIELDS_V2);
}

/* ---- get ---- */

static int not_found(struct call *c)
{
	return err_set_code(&c->err, -ENOENT, "sandbox-not-found", "The sandbox was not found.");
}

static int load(struct call *c, struct store *s, struct store_sandbox *b)
{
	int r = c->id[0] ? store_sandbox_get(s, c->id, c->tenant, b, &c->err) : -ENOENT;

	return r == -ENOENT ? not_found(c) : r;
}

void run_get(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	int r = load(c, s, &b);

	if (r == 0 && object_visible(&b))
		call_json(c, 200, object_detail(c->api, &b));
	else if (r == 0)
		not_found(c);
	store_sandbox_done(&b);
}

void run_v1_get(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };

	if (load(c, s, &b) == 0)
		call_json(c, 200, object_v1(c->api, &b));
	store_sandbox_done(&b);
}

void run_v1_version(struct call *c, struct store *s)
{
	call_json(c, 200, json_pack("{s:s}", "version", SPACE_VERSION));
}

/* ---- changes ---- */

static int change(struct call *c, struct store *s, enum life_event kind)
{
	struct store_op op;
	int r = need_signer(c);

	if (r == 0 && !c->id[0])
		r = not_found(c);
	if (r == 0)
		r = store_submit(s, c->id, c->tenant, kind, c->api->claimer, c->req_id, &op,
				 &c->err);
	if (r == -ENOENT)
		return not_found(c);
	if (r < 0 || op.id == 0)
		return r;
	/* The execution that ends: a start has taken the next generation already. */
	c->retired = kind == LIFE_EV_START ? op.generation - 1 : op.generation;
	r = FAULT("api.change.stored");
	if (r < 0)
		return err_set(&c->err, r, "The failpoint api.change.stored is set.");
	return complete(c, s, &op);
}

void run_delete(struct call *c, struct store *s)
{
	if (change(c, s, LIFE_EV_DELETE) == 0)
		c->status = 204;
}

static void change_v1(struct call *c, struct store *s, enum life_event kind)
{
	struct store_sandbox b = { 0 };

	if (fields_none(c->body, c->body_len, &c->err) == 0 && change(c, s, kind) == 0 &&
	    load(c, s, &b) == 0)
		call_json(c, 200, object_v1(c->api, &b));
	store_sandbox_done(&b);
}

void run_v1_stop(struct call *c, struct store *s)
{
	change_v1(c, s, LIFE_EV_STOP);
}

void run_v1_start(struct call *c, struct store *s)
{
	change_v1(c, s, LIFE_EV_START);
}

void run_v1_logs(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	struct identity id;
	char addr[200];
	json_t *spec = json_object(), *answer = NULL;
	int r = need_signer(c);

	if (r == 0)
		r = load(c, s, &b);
	if (r == 0)
		r = ops_node_addr(s, b.worker, addr, sizeof(addr), &c->err);
	if (r == 0) {
		store_sandbox_identity(&b, &id);
		r = ops_node_call(addr, &c->signer, &id, "console", spec, c->req_id,
				  API_NODE_CALL_MS, &answer, &c->err);
	}
	if (r == 0)
		call_json(c, 200, answer);
	json_decref(spec);
	store_sandbox_done(&b);
}
