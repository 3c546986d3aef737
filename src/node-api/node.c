/* Who may connect, what is asked for, and how errors are answered. */
#include "node-api/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "ipc/sbx_ops.h"

#define ADMIT_TIMEOUT_MS 5000
#define LIFECYCLE_TIMEOUT_MS 180000
#define HEAD_TIMEOUT_MS 600000
#define STALL_TIMEOUT_MS 600000
#define SERVER_HEAD_TIMEOUT_MS 10000
#define SERVER_IDLE_TIMEOUT_MS 120000        /* longer than the pool of space-api keeps an idle connection */

#define TOKEN_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-."

static const struct node_op {
	const char *name;
	const char *method, *path;           /* NULL = any */
	bool capability;                     /* must be there (K-7) */
	void (*fn)(struct node_call *c);
} node_ops[] = {
	{ "forward", NULL, NULL, true, node_forward },
	{ "port", NULL, NULL, true, node_port },
	{ "lifecycle", "POST", "/lifecycle/", true, node_lifecycle },
	{ "bundle", "PUT", "/bundle", false, node_bundle },
	{ "report", "GET", "/report", false, node_report },
};

/* ---- answers ---- */

void node_answer_json(struct node_call *c, int status, json_t *body)
{
	char *text = json_dumps(body, JSON_COMPACT);

	json_decref(body);
	if (text)
		http_req_answer(c->req, status, NULL, "application/json", text, strlen(text));
	else
		http_req_error(c->req, 500, NULL, "The answer cannot be written as JSON.");
	free(text);
}

static int refusal_status(const struct err *e, const char **ret_refusal)
{
	const char *code = err_code(e);

	*ret_refusal = NULL;
	if (str_starts(code, "refusal-")) {
		*ret_refusal = code + strlen("refusal-");
		return 421;
	}
	if (str_eq(code, "limit"))
		return 429;
	return err_http_status(e);
}

void node_refuse(struct node_call *c, const struct err *e)
{
	const char *refusal;
	int status = refusal_status(e, &refusal);
	const struct http_field extra[] = {
		{ "Space-Error", err_code(e) },
		{ refusal	  ? "Space-Refusal"
		  : status == 429 ? "Retry-After"
				  : NULL,
		  refusal ? refusal : "1" },
		{ NULL, NULL },
	};
	json_t *body =
		json_pack("{s:i,s:s,s:s}", "num", e->num, "code", err_code(e), "message", e->text);
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

	log_info("refused", F_REQ(c->req_id), F_STR("op", c->kind), F_INT("status", status),
		 F_ERR(e));
	http_req_answer(c->req, status, extra, "application/json", text ? text : "{}",
			text ? strlen(text) : 2);
	free(text);
	json_decref(body);
}

/* ---- requests ---- */

static int take_fields(struct node_call *c, const struct http_head *h, const struct node_op *op,
		       struct err *e)
{
	const char *req_id = http_get(h, "Space-Request-Id"),
		   *cap = http_get(h, "Space-Capability");

	if (http_count(h, "Space-Request-Id") > 1 || http_count(h, "Space-Capability") > 1 ||
	    http_count(h, "Space-Op") > 1)
		return err_set(e, -EBADMSG, "A Space- field stands twice.");
	if (req_id && (!str_is(req_id, 1, IPC_REQ_ID_MAX, TOKEN_CHARS) ||
		       str_copy(c->req_id, sizeof(c->req_id), req_id) < 0))
		return err_set(e, -EBADMSG, "Space-Request-Id is malformed.");
	if (!op->capability)
		return 0;
	if (!cap || str_copy(c->capability, sizeof(c->capability), cap) < 0)
		return err_set_code(e, -EACCES, "refusal-deny",
				    "The request carries no capability.");
	return 0;
}

static const struct node_op *op_of(const struct http_head *h, struct err *e)
{
	const char *name = http_get(h, "Space-Op");

	for (size_t i = 0; name && i < ARRAY_LEN(node_ops); i++) {
		const struct node_op *op = &node_ops[i];

		if (!str_eq(name, op->name))
			continue;
		if ((op->method && !str_eq(op->method, h->method)) ||
		    (op->path && !str_starts(h->target, op->path))) {
			err_set(e, -ENOENT, "There is no such call.");
			return NULL;
		}
		return op;
	}
	err_set(e, -EINVAL, "Space-Op is missing or unknown.");
	return NULL;
}

static void node_handle(struct http_req *r, void *arg)
{
	struct node_call *c = x_alloc(sizeof(*c));
	const struct node_op *op;
	struct err e = { 0 };

	c->node = arg;
	c->req = r;
	c->start_ms = clock_mono_ms();
	http_req_set_user(r, c);
	op = c->node->sbx ? op_of(http_req_head(r), &e) : NULL;
	if (!c->node->sbx)
		err_set(&e, -EAGAIN, "node-api is being stopped.");
	if (op)
		str_copy(c->kind, sizeof(c->kind), op->name);
	if (!op || take_fields(c, http_req_head(r), op, &e) < 0)
		node_refuse(c, &e);
	else
		op->fn(c);
}

static void node_req_end(struct http_req *r, void *arg)
{
	struct node_call *c = http_req_user(r);

	if (!c)
		return;
	json_decref(c->report_node);
	json_decref(c->report_sandboxes);
	explicit_bzero(c->capability, sizeof(c->capability));
	free(c);
}

/* ---- life ---- */

static void on_event(const char *name, json_t *a, void *arg)
{
	struct sbx_lease ev = { 0 };
	struct err e = { 0 };

	if (!str_eq(name, "revoked"))
		return;
	if (ipc_decode(sbx_revoked_fields, a, &ev, sizeof(ev), &e) < 0)
		log_error("malformed event", F_STR("event", name), F_ERR(&e));
	else
		node_revoked(arg, ev.lease);
}

static void on_state(bool connected, void *arg)
{
	log_info(connected ? "connected to sbx-manager" : "sbx-manager is gone");
}

struct node *node_new(struct loop *l, const struct node_conf *conf)
{
	struct node *n = x_alloc(sizeof(*n));
	const struct http_server_conf sc = {
		.head_timeout_ms = SERVER_HEAD_TIMEOUT_MS,
		.idle_timeout_ms = SERVER_IDLE_TIMEOUT_MS,
		.max_conns = NODE_CONNS_MAX,
		.max_body = NODE_BODY_MAX,
		.handle = node_handle,
		.end = node_req_end,
		.arg = n,
	};

	n->loop = l;
	n->conf = *conf;
	if (!n->conf.admit_timeout_ms)
		n->conf.admit_timeout_ms = ADMIT_TIMEOUT_MS;
	if (!n->conf.lifecycle_timeout_ms)
		n->conf.lifecycle_timeout_ms = LIFECYCLE_TIMEOUT_MS;
	if (!n->conf.head_timeout_ms)
		n->conf.head_timeout_ms = HEAD_TIMEOUT_MS;
	if (!n->conf.stall_timeout_ms)
		n->conf.stall_timeout_ms = STALL_TIMEOUT_MS;
	list_init(&n->streams);
	n->http = http_server_new(l, &sc);
	n->sbx = ipc_client_new(l, conf->sbx_path, conf->sbx_uid);
	ipc_client_on_event(n->sbx, on_event, n);
	ipc_client_on_state(n->sbx, on_state, n);
	return n;
}

void node_free(struct node *n)
{
	if (!n)
		return;
	ipc_client_free(TAKE(n->sbx));               /* the calls in flight answer their clients now */
	node_cut_all(n);
	while (!list_empty(&n->streams))
		loop_turn(n->loop, 0);
	http_server_free(n->http);
	free(n);
}

void node_accept(struct node *n, int fd)
{
	static struct log_limit limit;
	struct fd_peer peer = { 0 };

	if (fd_peer_cred(fd, &peer) == 0)
		for (size_t i = 0; i < n->conf.n_peers; i++)
			if (n->conf.peers[i] == peer.uid) {
				http_server_accept(n->http, fd);
				return;
			}
	if (log_limit_ok(&limit, 10))
		log_warn("connection refused: this user may not speak to the node",
			 F_INT("uid", peer.uid), F_INT("pid", peer.pid));
	fd_close(fd);
}
