/* Space-Op: lifecycle, bundle, report. Each is one call to sbx-manager (a report: one a page). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "ipc/sbx_ops.h"
#include "node-api/node.h"

#define SPEC_DEPTH_MAX 6
#define CALL_TIMEOUT_MS 10000
#define KIND_CHARS "abcdefghijklmnopqrstuvwxyz"

/* ---- life cycle ---- */

static void lifecycle_done(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	struct node_call *c = arg;
	const struct sbx_lifecycle_rep *a = rep;

	if (e) {
		node_refuse(c, e);
		return;
	}
	log_info("life cycle", F_REQ(c->req_id), F_STR("kind", c->kind));
	node_answer_json(c, 200, json_incref(a->result));
}

static void lifecycle_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct node_call *c = arg;
	struct sbx_lifecycle a = { 0 };
	struct err e = { 0 };

	str_copy(a.capability, sizeof(a.capability), c->capability);
	str_copy(a.kind, sizeof(a.kind), c->kind);
	if (len > SBX_SPEC_MAX)
		err_set(&e, -EMSGSIZE, "The spec is larger than %d bytes.", SBX_SPEC_MAX);
	else
		a.spec = len ? ipc_parse_json(body, len, SPEC_DEPTH_MAX, &e) : json_object();
	if (a.spec && !json_is_object(a.spec))
		err_set(&e, -EBADMSG, "The spec must be a JSON object.");
	if (e.num)
		node_refuse(c, &e);
	else
		ipc_client_call(c->node->sbx, &sbx_ops[SBX_LIFECYCLE], c->req_id, &a, NULL, 0,
				c->node->conf.lifecycle_timeout_ms, lifecycle_done, c);
	json_decref(a.spec);
	explicit_bzero(a.capability, sizeof(a.capability));
}

void node_lifecycle(struct node_call *c)
{
	const char *kind = http_req_head(c->req)->target + strlen("/lifecycle/");
	struct err e = { 0 };

	if (!str_is(kind, 1, sizeof(c->kind) - 1, KIND_CHARS) ||
	    str_copy(c->kind, sizeof(c->kind), kind) < 0) {
		err_set(&e, -ENOENT, "There is no such life-cycle call.");
		node_refuse(c, &e);
		return;
	}
	http_req_read_body(c->req, lifecycle_body, c);
}

/* ---- key bundle ---- */

static void bundle_done(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	struct node_call *c = arg;
	const struct sbx_bundle_rep *a = rep;

	if (e) {
		node_refuse(c, e);
		return;
	}
	log_info("key bundle", F_REQ(c->req_id), F_UINT("number", a->number));
	node_answer_json(c, 200, json_pack("{s:I}", "number", (json_int_t)a->number));
}

static void bundle_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct node_call *c = arg;
	struct sbx_bundle a = { 0 };
	struct err e = { 0 };

	if (len == 0 || len >= sizeof(a.text) || memchr(body, '\0', len)) {
		err_set(&e, -EBADMSG, "The bundle is empty or longer than %zu bytes.",
			sizeof(a.text) - 1);
		node_refuse(c, &e);
		return;
	}
	memcpy(a.text, body, len);
	ipc_client_call(c->node->sbx, &sbx_ops[SBX_BUNDLE], c->req_id, &a, NULL, 0, CALL_TIMEOUT_MS,
			bundle_done, c);
}

void node_bundle(struct node_call *c)
{
	http_req_read_body(c->req, bundle_body, c);
}

/* ---- report ---- */

static void report_page(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds);

static void report_ask(struct node_call *c, uint64_t cursor)
{
	const struct sbx_report a = { .cursor = cursor };

	ipc_client_call(c->node->sbx, &sbx_ops[SBX_REPORT], c->req_id, &a, NULL, 0, CALL_TIMEOUT_MS,
			report_page, c);
}

static void report_page(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	struct node_call *c = arg;
	const struct sbx_report_rep *a = rep;

	if (e) {
		node_refuse(c, e);
		return;
	}
	if (!c->report_node)
		c->report_node = json_incref(a->node);
	json_array_extend(c->report_sandboxes, a->sandboxes);
	if (a->next && ++c->pages < NODE_REPORT_PAGES_MAX)
		report_ask(c, a->next);
	else
		node_answer_json(c, 200,
				 json_pack("{s:O,s:O}", "node", c->report_node, "sandboxes",
					   c->report_sandboxes));
}

void node_report(struct node_call *c)
{
	c->report_sandboxes = json_array();
	report_ask(c, 0);
}
