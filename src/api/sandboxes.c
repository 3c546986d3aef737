/* What the control routes do; all of it in worker threads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"

#define MANIFEST_DEPTH_MAX 4
#define NODE_AWAY_MS 15000

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
	b->timeout_ms = f->timeout_s * 1000;
	b->end_ms = now + b->timeout_ms;
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
		r = change_complete(c, s, &op);
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
		r = change_need_signer(c);
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

void run_get(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	int r = call_load(c, s, &b);

	if (r == 0 && object_visible(&b))
		call_json(c, 200, object_detail(c->api, &b));
	else if (r == 0)
		call_not_found(c);
	store_sandbox_done(&b);
}

void run_v1_get(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };

	if (call_load(c, s, &b) == 0)
		call_json(c, 200, object_v1(c->api, &b));
	store_sandbox_done(&b);
}

void run_v1_version(struct call *c, struct store *s)
{
	call_json(c, 200, json_pack("{s:s}", "version", SPACE_VERSION));
}

/* ---- changes ---- */

void run_delete(struct call *c, struct store *s)
{
	if (change_run(c, s, LIFE_EV_DELETE) == 0)
		c->status = 204;
}

static void change_v1(struct call *c, struct store *s, enum life_event kind)
{
	struct store_sandbox b = { 0 };

	if (fields_none(c->body, c->body_len, &c->err) == 0 && change_run(c, s, kind) == 0 &&
	    call_load(c, s, &b) == 0)
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
	int r = change_need_signer(c);

	if (r == 0)
		r = call_load(c, s, &b);
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
