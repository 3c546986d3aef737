/*
 * Theory of operation. For each node one job at a time: first the rows that should be there are
 * read, then the node's report. In this order, because a row becomes "running" only after the node
 * has committed its record: what the rows say and the report does not have is lost, not merely
 * newer. (Even so it must be missing in CONTROL_LOST_AFTER reports in a row.)
 *
 * Per sandbox of the report, by generation: older than the row's - a start is on its way, nothing
 * to do; newer - the database was set back, nothing that we may decide here; the same - the state
 * is handed to the database, which takes it unless an operation is unfinished. No row at all: it
 * was deleted (or never ours); the node is told to delete it. That is safe, since a row is written
 * before the node is asked to create anything, and an ID is never used again.
 *
 * A reboot inside the guest ends the execution; the node says "stopped" with that reason. The row
 * keeps the reason until something else is decided, so any replica can make a start of it at any
 * time after.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "control/control.h"
#include "http/client.h"
#include "json/strict.h"
#include "ops/signer.h"

#define STARTS_MAX 64                    /* in one report; the others come with the next */
#define LIST_PAGE 1000

struct control_node {
	char worker[ID_UUID_LEN + 1], addr[200];
	bool asking;
	bool reachable;                  /* for the log: changes are said once */
	struct map *missing;             /* sandbox -> times, as (void *)n */
};

struct node_job {
	struct control *c;
	struct control_node *node;       /* `missing` belongs to the job while it runs */
	struct key_signer signer; bool have_signer;
	struct store_op ops[STARTS_MAX]; unsigned n_ops;
	int64_t asked_ms;                /* by the database's clock */
	int result;
	struct err err;
};

/* ---- calls ---- */

static int node_get(struct node_job *j, const char *method, const char *target, const char *op,
		    const char *body, json_t **ret, struct err *e)
{
	const struct http_field fields[] = { { "Space-Op", op },
					     { "Space-Request-Id", j->c->claimer },
					     { NULL, NULL } };
	const struct http_call call = { .addr = j->node->addr,
					.method = method,
					.target = target,
					.host = "node",
					.fields = fields,
					.body = body,
					.body_len = body ? strlen(body) : 0,
					.timeout_ms = CONTROL_CALL_MS,
					.max_answer = CONTROL_REPORT_MAX };
	struct http_answer a = { 0 };
	int r = http_call(&call, &a, e);

	if (r < 0)
		return r;
	if (a.head.status != 200)
		r = err_set(e, -EPROTO, "%s %s: status %d", method, target, a.head.status);
	else if (!(*ret = json_loadb(a.body, a.body_len, JSON_REJECT_DUPLICATES, NULL)))
		r = err_set(e, -EBADMSG, "%s %s: the answer is no JSON", method, target);
	http_answer_done(&a);
	return r;
}

static uint64_t number_of(json_t *o, const char *name)
{
	json_int_t v = json_integer_value(json_object_get(o, name));

	return v > 0 ? (uint64_t)v : 0;
}

static const char *string_of(json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));

	return s ? s : "";
}

/* ---- the node itself ---- */

/* Its number after this; the newest bundle is pushed when it has an older one (K-2, R-5). */
static uint64_t update_bundle(struct node_job *j, struct store *s, uint64_t has)
{
	autofree char *text = NULL;
	json_t *answer = NULL;
	struct err e = { 0 };
	uint64_t number;

	if (store_bundle_get(s, &number, &text, &e) < 0 || number <= has)
		return has;
	if (node_get(j, "PUT", "/bundle", "bundle", text, &answer, &e) < 0) {
		log_warn("the key bundle was not taken", F_STR("worker", j->node->worker),
			 F_UINT("number", number), F_ERR(&e));
		return has;
	}
	has = number_of(answer, "number");
	json_decref(answer);
	log_info("key bundle installed", F_STR("worker", j->node->worker), F_UINT("number", has));
	return has;
}

static void save_report(struct node_job *j, struct store *s, json_t *node, uint64_t bundle)
{
	autofree char *text = json_dumps(node, JSON_COMPACT);
	struct err e = { 0 };

	if (!text || strlen(text) >= sizeof(((struct store_node *)0)->report)) {
		free(text);
		text = x_strdup("{}");
	}
	if (store_node_seen(s, j->node->worker, bundle, text, &e) < 0)
		log_warn("the report was not stored", F_STR("worker", j->node->worker), F_ERR(&e));
}

/* ---- its sandboxes ---- */

static int identity_of(const struct node_job *j, json_t *box, struct identity *ret)
{
	*ret = (struct identity) { .substrate = ID_SUBSTRATE_MICROVM,
				   .generation = number_of(box, "generation"),
				   .attempt = number_of(box, "attempt") };
	if (str_copy(ret->tenant, sizeof(ret->tenant), string_of(box, "tenant")) < 0 ||
	    str_copy(ret->sandbox, sizeof(ret->sandbox), string_of(box, "sandbox")) < 0 ||
	    str_copy(ret->worker, sizeof(ret->worker), j->node->worker) < 0 ||
	    str_unhex(ret->activation, sizeof(ret->activation), string_of(box, "activation")) < 0)
		return -EBADMSG;
	return id_check(ret, NULL);
}

static void delete_unwanted(struct node_job *j, const struct identity *id)
{
	json_t *spec = json_object(), *answer = NULL;
	struct err e = { 0 };
	char req[65];
	int r;

	str_format(req, sizeof(req), "unwanted-%s", id->sandbox);
	r = ops_node_call(j->node->addr, &j->signer, id, "delete", spec, req, CONTROL_CALL_MS,
			  &answer, &e);
	if (r < 0)
		log_warn("a sandbox that nobody wants was not deleted", F_REQ(req),
			 F_STR("sandbox", id->sandbox), F_ERR(&e));
	else
		log_info("deleted on the node: no row wants it", F_REQ(req),
			 F_STR("sandbox", id->sandbox), F_STR("worker", id->worker),
			 F_UINT("generation", id->generation));
	json_decref(answer);
	json_decref(spec);
}

static void start_again(struct node_job *j, struct store *s, const char *sandbox)
{
	struct store_op *op = &j->ops[j->n_ops];
	struct err e = { 0 };
	char req[65];

	if (j->n_ops == STARTS_MAX)
		return;
	str_format(req, sizeof(req), "reboot-%s", sandbox);
	if (store_submit(s, sandbox, "", LIFE_EV_START, j->c->claimer, req, op, &e) < 0) {
		if (e.num != -EBUSY && e.num != -ENOENT)
			log_warn("no start after the guest's reboot", F_REQ(req),
				 F_STR("sandbox", sandbox), F_ERR(&e));
	} else if (op->id != 0 && op->state == STORE_OP_CLAIMED &&
		   str_eq(op->claimer, j->c->claimer)) {
		log_info("the guest has rebooted: the next execution starts", F_REQ(req),
			 F_STR("sandbox", sandbox), F_UINT("generation", op->generation));
		j->n_ops++;
	}
}

static void compare(struct node_job *j, struct store *s, const struct store_sandbox *b,
		    const struct identity *id, enum life_state state, const char *reason)
{
	struct err e = { 0 };
	int r = 0;

	if (b->generation != id->generation ||
	    memcmp(b->activation, id->activation, ID_ACTIVATION_BYTES) != 0)
		return;
	if (state != LIFE_RUNNING && state != LIFE_PAUSED && state != LIFE_STOPPED)
		return;
	if (b->observed != state) {
		r = store_sandbox_observed(s, b->id, id->generation, state, reason, j->asked_ms,
					   &e);
		if (r == 0)
			log_info("observed", F_STR("sandbox", b->id),
				 F_UINT("generation", id->generation),
				 F_STR("was", life_state_names[b->observed]),
				 F_STR("is", life_state_names[state]), F_STR("reason", reason));
		else if (r != -EBUSY && r != -ESTALE && r != -ENOENT)
			log_warn("the observed state was not stored", F_STR("sandbox", b->id),
				 F_ERR(&e));
	}
	if (r == 0 && state == LIFE_STOPPED &&
	    str_eq(reason, life_event_names[LIFE_EV_GUEST_REBOOT]) &&
	    (b->observed != LIFE_STOPPED || str_eq(b->reason, reason)))
		start_again(j, s, b->id);
}

static void look_at(struct node_job *j, struct store *s, json_t *box)
{
	struct store_sandbox b = { 0 };
	struct err e = { 0 };
	enum life_state state;
	struct identity id;
	int r;

	if (identity_of(j, box, &id) < 0 || life_state_of(string_of(box, "state"), &state) < 0) {
		log_warn("the node reports a malformed sandbox", F_STR("worker", j->node->worker),
			 F_STR("sandbox", string_of(box, "sandbox")));
		return;
	}
	map_del(j->node->missing, id.sandbox);
	r = store_sandbox_get(s, id.sandbox, "", &b, &e);
	if (r == -ENOENT && state != LIFE_NONE && j->have_signer)
		delete_unwanted(j, &id);
	else if (r == 0)
		compare(j, s, &b, &id, state, string_of(box, "reason"));
	else if (r != -ENOENT)
		log_warn("a row cannot be read", F_STR("sandbox", id.sandbox), F_ERR(&e));
	store_sandbox_done(&b);
}

/* ---- what should run there ---- */

struct wanted { char id[ID_SANDBOX_LEN + 1]; uint64_t generation; };

static int list_wanted(struct node_job *j, struct store *s, struct wanted **ret, size_t *ret_n,
		       struct err *e)
{
	char cursor[64] = "", next[64] = "";
	int r;

	do {
		const struct store_list q = {
			.tenant = "", .state_csv = "running,paused", .cursor = cursor, .limit = LIST_PAGE
		};
		struct store_sandbox *rows = NULL;
		size_t n = 0;

		r = store_sandbox_list(s, &q, &rows, &n, next, e);
		for (size_t i = 0; i < n; i++) {
			if (str_eq(rows[i].worker, j->node->worker)) {
				*ret = x_realloc(*ret, (*ret_n + 1) * sizeof(**ret));
				str_copy((*ret)[*ret_n].id, ID_SANDBOX_LEN + 1, rows[i].id);
				(*ret)[(*ret_n)++].generation = rows[i].generation;
			}
			store_sandbox_done(&rows[i]);
		}
		free(rows);
		str_copy(cursor, sizeof(cursor), next);
	} while (r == 0 && next[0]);
	return r;
}

static bool reported(json_t *boxes, const char *id)
{
	size_t i;
	json_t *box;

	json_array_foreach(boxes, i, box)
		if (str_eq(string_of(box, "sandbox"), id))
			return true;
	return false;
}

static void look_for_lost(struct node_job *j, struct store *s, const struct wanted *w, size_t n,
			  json_t *boxes)
{
	struct map *missing = map_new(STORE_JSON_MAX);

	for (size_t i = 0; i < n; i++) {
		uintptr_t times = (uintptr_t)map_get(j->node->missing, w[i].id) + 1;
		struct err e = { 0 };

		if (reported(boxes, w[i].id))
			continue;
		map_put(missing, w[i].id, (void *)times);
		if (times < CONTROL_LOST_AFTER)
			continue;
		if (store_sandbox_observed(s, w[i].id, w[i].generation, LIFE_STOPPED,
					   "lost: the node does not have it", j->asked_ms,
					   &e) == 0)
			log_warn("the node does not have a sandbox that should be there",
				 F_STR("worker", j->node->worker), F_STR("sandbox", w[i].id),
				 F_UINT("generation", w[i].generation));
	}
	map_free(j->node->missing);
	j->node->missing = missing;
}

/* ---- a job ---- */

static int visit(struct node_job *j, struct store *s, struct err *e)
{
	autofree struct wanted *wanted = NULL;
	json_t *report = NULL, *node, *boxes, *box;
	size_t n = 0, i;
	int r = store_now(s, &j->asked_ms, e);

	if (r == 0)
		r = list_wanted(j, s, &wanted, &n, e);
	if (r == 0)
		r = node_get(j, "GET", "/report", "report", NULL, &report, e);
	if (r < 0)
		return r;
	node = json_object_get(report, "node");
	boxes = json_object_get(report, "sandboxes");
	if (!str_eq(string_of(node, "worker"), j->node->worker) || !json_is_array(boxes)) {
		r = err_set(e, -EPROTO, "another worker answers at %s", j->node->addr);
	} else {
		save_report(j, s, node, update_bundle(j, s, number_of(node, "bundle")));
		json_array_foreach(boxes, i, box)
			look_at(j, s, box);
		look_for_lost(j, s, wanted, n, boxes);
	}
	json_decref(report);
	return r;
}

static void node_run(void *arg)
{
	struct node_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);

	j->result = s ? visit(j, s, &j->err) : j->err.num;
}

static void node_done(void *arg)
{
	struct node_job *j = arg;
	struct control_node *n = j->node;

	n->asking = false;
	if (j->result == 0 && !n->reachable)
		log_info("the node answers", F_STR("worker", n->worker));
	else if (j->result < 0 && n->reachable)
		log_warn("the node does not answer", F_STR("worker", n->worker), F_ERR(&j->err));
	n->reachable = j->result == 0;
	for (unsigned i = 0; i < j->n_ops; i++)
		drive_op(j->c, &j->ops[i]);
	key_signer_done(&j->signer);
	free(j);
}

static void node_ask(struct control *c, struct control_node *n)
{
	struct node_job *j;

	if (n->asking)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	j->node = n;
	j->have_signer = c->have_signer;
	j->signer = c->signer;
	n->asking = work_add(c->look, n->worker, node_run, node_done, j) == 0;
	if (n->asking)
		return;
	key_signer_done(&j->signer);
	free(j);
}

/* ---- which nodes ---- */

struct list_job { struct control *c; struct store_node *nodes; size_t n; struct err err; };

static void list_run(void *arg)
{
	struct list_job *j = arg;
	struct store *s = ops_thread_store(j->c->store_url, &j->err);

	if (s)
		store_node_list(s, &j->nodes, &j->n, &j->err);
}

static struct control_node *node_of(struct control *c, const struct store_node *sn)
{
	struct control_node *n = map_get(c->nodes, sn->worker);

	if (!n) {
		n = x_alloc(sizeof(*n));
		str_copy(n->worker, sizeof(n->worker), sn->worker);
		n->missing = map_new(STORE_JSON_MAX);
		if (map_put(c->nodes, n->worker, n) < 0) {
			map_free(n->missing);
			free(n);
			return NULL;
		}
	}
	if (!n->asking)
		str_copy(n->addr, sizeof(n->addr), sn->addr);
	return n;
}

static void list_done(void *arg)
{
	static struct log_limit limit;
	struct list_job *j = arg;

	j->c->listing = false;
	if (j->err.num < 0 && log_limit_ok(&limit, 6))
		log_warn("the list of nodes cannot be read", F_ERR(&j->err));
	for (size_t i = 0; i < j->n; i++) {
		struct control_node *n = node_of(j->c, &j->nodes[i]);

		if (n)
			node_ask(j->c, n);
	}
	free(j->nodes);
	free(j);
}

static void nodes_tick(struct loop_timer *t)
{
	struct control *c = t->arg;
	struct list_job *j;

	loop_timer_set(c->loop, t, CONTROL_NODES_MS, nodes_tick, c);
	if (c->listing)
		return;
	j = x_alloc(sizeof(*j));
	j->c = c;
	control_job(c, &c->listing, list_run, list_done, j);
}

void nodes_start(struct control *c)
{
	loop_timer_set(c->loop, &c->nodes_timer, 0, nodes_tick, c);
}

static int free_node(const char *key, void *value, void *arg)
{
	struct control_node *n = value;

	map_free(n->missing);
	free(n);
	return 0;
}

void nodes_free(struct control *c)
{
	map_each(c->nodes, free_node, NULL);
	map_free(c->nodes);
	c->nodes = NULL;
}
