/* What the control routes do; all of it in worker threads. */
#include <errno.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/str.h"

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
