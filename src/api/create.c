/*
 * Create, in worker threads. With an Idempotency-Key (E2B's; facts: e2b-protocol, 6) the key is
 * written in the transaction of the create: of two requests with one key the second finds the
 * first's operation, waits for it whoever drives it, and answers with the same sandbox. A create
 * that fails gives its key back, so that a try again is one.
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/alloc.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "json/strict.h"

#define MANIFEST_DEPTH_MAX 4

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
	b->end_pauses = f->auto_pause;
	b->auto_resume = f->auto_resume;
	b->internet = !f->no_internet;
	b->public_traffic = !f->no_public_traffic;
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
	int r = c->once_key[0] ? store_once_forget(s, id, &e) : 0;

	if (r == 0)
		r = store_submit(s, id, c->tenant, LIFE_EV_DELETE, c->api->claimer, c->req_id, &op,
				 &e);
	if (r < 0)
		log_warn("a failed create was not undone", F_REQ(c->req_id), F_STR("sandbox", id),
			 F_ERR(&e));
	else if (op.id != 0 && op.state == STORE_OP_CLAIMED && str_eq(op.claimer, c->api->claimer))
		ops_drive(&ctx, &op, NULL);
}

/* The request as its key knows it: the route and the body, byte by byte. */
static void hash_request(const struct call *c, char dst[65])
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	crypto_hash_sha256_state st;

	crypto_hash_sha256_init(&st);
	crypto_hash_sha256_update(&st, (const unsigned char *)c->route->path,
				  strlen(c->route->path) + 1);
	crypto_hash_sha256_update(&st, (const unsigned char *)c->body, c->body_len);
	crypto_hash_sha256_final(&st, hash);
	str_hex(dst, hash, sizeof(hash));
}

/* A create with this key was there before: its end is this one's too. */
static int replay(struct call *c, struct store *s, struct store_op *op, struct store_sandbox *b)
{
	int r = change_wait(c, s, op);

	str_copy(c->id, sizeof(c->id), op->sandbox);
	if (r == -EAGAIN && str_eq(c->err.code, "in-progress"))
		return err_set_code(&c->err, r, "idempotency-in-progress",
				    "The create with this Idempotency-Key has not ended yet.");
	if (r < 0)
		return r;
	store_sandbox_done(b);
	*b = (struct store_sandbox){ 0 };
	r = store_sandbox_get(s, op->sandbox, c->tenant, b, &c->err);
	if (r == -ENOENT || (r == 0 && b->desired == LIFE_NONE))
		return err_set_code(&c->err, -ESTALE, "idempotency-sandbox-gone",
				    "The sandbox that this Idempotency-Key made has been deleted "
				    "since; use a new key.");
	return r;
}

int create_run(struct call *c, struct store *s, const struct fields_create *f,
	       struct store_sandbox *b)
{
	struct store_once once = { .key = c->once_key };
	struct store_op op;
	int r = change_need_signer(c);

	if (r == 0)
		r = fill(c, s, f, b);
	if (r == 0 && once.key[0])
		hash_request(c, once.request);
	if (r == 0)
		r = store_create(s, b, once.key[0] ? &once : NULL, c->api->claimer, c->req_id,
				 &op, &c->err);
	if (r < 0)
		return r;
	if (r == 1)
		return replay(c, s, &op, b);
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

static void create(struct call *c, struct store *s, enum fields_version v)
{
	struct fields_create f = { 0 };
	struct store_sandbox b = { 0 };
	int r = fields_create(v, c->body, c->body_len, &f, &c->err);

	if (r == 0)
		r = create_run(c, s, &f, &b);
	if (r == 0)
		call_json(c, 201, object_created(c->api, &b));
	store_sandbox_done(&b);
	fields_create_done(&f);
}

void run_create_v1(struct call *c, struct store *s)
{
	create(c, s, FIELDS_V1);
}

void run_create_v2(struct call *c, struct store *s)
{
	create(c, s, FIELDS_V2);
}
