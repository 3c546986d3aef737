/*
 * The network of a sandbox under /v1: its flow log, its counters (in worker threads), and raw TCP
 * to one of its ports (in the loop's thread; then stream.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "api/query.h"
#include "api/stream.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "routes/routes.h"

const char *const net_log_params[] = { "after", NULL };

int net_ask(struct call *c, struct store *s, const char *kind, json_t *spec, json_t **ret)
{
	struct store_sandbox b = { 0 };
	struct identity id;
	char addr[200];
	int r = change_need_signer(c);

	if (r == 0)
		r = call_load(c, s, &b);
	if (r == 0)
		r = ops_node_addr(s, b.worker, addr, sizeof(addr), &c->err);
	if (r == 0) {
		store_sandbox_identity(&b, &id);
		r = ops_node_call(addr, &c->signer, &id, kind, spec, c->req_id, API_NODE_CALL_MS,
				  ret, &c->err);
	}
	store_sandbox_done(&b);
	return r;
}

/* ---- the flow log ---- */

static const char *text_of(json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));

	return s ? s : "";
}

static json_int_t number_of(json_t *o, const char *name)
{
	return json_integer_value(json_object_get(o, name));
}

/* Times as everywhere under /v1; a flow that goes on has no end. */
static json_t *record_object(json_t *rec)
{
	char start[CLOCK_ISO_LEN], end[CLOCK_ISO_LEN];
	json_t *o;

	clock_iso(start, number_of(rec, "t_ms"));
	o = json_pack("{s:I,s:I,s:s,s:s,s:s,s:s,s:I,s:s,s:I,s:I,s:s,s:s}", "number",
		      number_of(rec, "n"), "flow", number_of(rec, "flow"), "time", start,
		      "direction", text_of(rec, "dir"), "protocol", text_of(rec, "proto"),
		      "address", text_of(rec, "addr"), "port", number_of(rec, "port"), "name",
		      text_of(rec, "name"), "bytesUp", number_of(rec, "up"), "bytesDown",
		      number_of(rec, "down"), "verdict", text_of(rec, "verdict"), "reason",
		      text_of(rec, "reason"));
	if (number_of(rec, "end_ms") > 0) {
		clock_iso(end, number_of(rec, "end_ms"));
		json_object_set_new(o, "endTime", json_string(end));
	}
	return o;
}

json_t *net_log_object(json_t *answer)
{
	json_t *records = json_array(), *rec;
	size_t i;

	json_array_foreach(json_object_get(answer, "records"), i, rec)
		json_array_append_new(records, record_object(rec));
	return json_pack("{s:s,s:o,s:I,s:I}", "epoch", text_of(answer, "epoch"), "records", records,
			 "next", number_of(answer, "next"), "lost", number_of(answer, "lost"));
}

void run_v1_net_log(struct call *c, struct store *s)
{
	uint64_t after = 0;
	json_t *spec, *answer = NULL;
	int r = query_number(c->target, "after", 0, INT64_MAX, &after, &c->err);

	if (r < 0)
		return;
	spec = json_pack("{s:I}", "after", (json_int_t)after);
	r = net_ask(c, s, "netlog", spec, &answer);
	json_decref(spec);
	if (r < 0)
		return;
	call_json(c, 200, net_log_object(answer));
	json_decref(answer);
}

/* ---- counters ---- */

json_t *net_stats_object(json_t *answer)
{
	json_t *counters = json_object(), *v;
	const char *name;

	json_object_foreach(json_object_get(answer, "counters"), name, v)
		if (json_is_integer(v))
			json_object_set(counters, name, v);
	return json_pack("{s:s,s:s,s:b,s:s,s:o}", "epoch", text_of(answer, "epoch"), "gateway",
			 text_of(answer, "gateway"), "internet",
			 json_is_true(json_object_get(answer, "internet")), "reason",
			 text_of(answer, "reason"), "counters", counters);
}

void run_v1_net_stats(struct call *c, struct store *s)
{
	json_t *spec = json_object(), *answer = NULL;
	int r = net_ask(c, s, "netstats", spec, &answer);

	json_decref(spec);
	if (r < 0)
		return;
	call_json(c, 200, net_stats_object(answer));
	json_decref(answer);
}

/* ---- raw TCP ---- */

int net_tunnel_port(const char *target, uint16_t *ret, struct err *e)
{
	const char *p = strstr(target, "/ports/");
	size_t n = p ? strcspn(p + 7, "/") : 0;
	uint64_t port;

	if (n == 0 || str_to_u64_n(p + 7, n, 65535, &port) < 0 || port == 0)
		return err_set(e, -EINVAL, "The port must be a number from 1 to 65535.");
	*ret = (uint16_t)port;
	return 0;
}

static int take_tunnel(const struct call *c, struct stream_ask *ask, struct err *e)
{
	const struct http_head *h = http_req_head(c->req);
	static const char *const none[] = { NULL };
	int r = query_only(h->target, none, e);

	*ask = (struct stream_ask){ .kind = STREAM_TUNNEL };
	str_copy(ask->sandbox, sizeof(ask->sandbox), c->id);
	str_copy(ask->tenant, sizeof(ask->tenant), c->tenant);
	if (r == 0)
		r = net_tunnel_port(h->target, &ask->port, e);
	if (r < 0)
		return r;
	if (!h->upgrade || !str_ieq(http_get(h, "Upgrade"), ROUTES_TUNNEL))
		return err_set(e, -EPROTONOSUPPORT, "A tunnel is asked for with Upgrade: %s.",
			       ROUTES_TUNNEL);
	if (h->body != HTTP_BODY_NONE && !(h->body == HTTP_BODY_LENGTH && h->length == 0))
		return err_set(e, -EINVAL, "The request for a tunnel has no body.");
	if (c->api->n_streams >= API_STREAMS_MAX)
		return err_set(e, -EUSERS, "Too many requests are open.");
	return 0;
}

static void tunnel_start(struct call *c)
{
	struct stream_ask ask;
	struct err e = { 0 };

	if (take_tunnel(c, &ask, &e) < 0)
		call_error(c, &e);
	else
		stream_start(c, &ask);
}

void tunnel_handle(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	const char *token = http_get(h, "X-Access-Token");
	struct err e = { 0 };

	if (!token) {
		auth_check(c, tunnel_start);
	} else if (http_count(h, "X-Access-Token") == 1 && c->id[0] &&
		   token_ok(keys_token(c->api), c->id, token)) {
		tunnel_start(c);
	} else {
		err_set(&e, -ENOKEY, "The access token is wrong.");
		call_error(c, &e);
	}
}
