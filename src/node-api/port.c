/*
 * Space-Op: port (node.h has its interface; spec K-5, B-4). As `forward`, but the stream that
 * sbx-manager hands over leads to the sandbox's gateway, which checks the capability once more and
 * only then dials the guest. Its first bytes are its verdict: until that is yes nothing of the
 * request goes that way.
 *
 *	admitted -> forward made, idle -> verdict -+-> OK, http: the head is sent, forward relays
 *	                                           +-> OK, tcp or h2: 101, forward relays raw bytes
 *	                                           `-> else: answered; the client's connection is kept
 *
 * The gateway ends in order by shutdown(2) alone: a stream that it closes altogether was cut, and
 * its client sees that (forward's closed_is_broken).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "http/forward.h"
#include "ipc/gtw_ops.h"
#include "ipc/sbx_ops.h"
#include "node-api/node.h"
#include "routes/routes.h"

#define PORT_VERDICT_MS (GTW_VERDICT_MS + 1000)

/* ---- heads ---- */

/* What is between the client and the platform is none of the guest's business. */
static bool skip_request_field(const char *name, void *arg)
{
	static const char *const names[] = { "X-API-Key", "X-Access-Token",
					     "E2B-Traffic-Access-Token", "E2b-Sandbox-Id",
					     "E2b-Sandbox-Port", "Expect" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_ieq(name, names[i]))
			return true;
	return stream_skip_space(name, arg);
}

/* ---- the verdict ---- */

struct verdict_row { int status; const char *error, *refusal, *message; };

static const struct verdict_row verdict_rows[GTW_CODE_END] = {
	[0] = { 503, "gateway-lost", NULL, "The sandbox's network gateway has ended; try again." },
	[GTW_DENY] = { 421, "refusal-deny", "deny", "The gateway refuses the capability." },
	[GTW_REFRESH] = { 421, "refusal-refresh-route", "refresh-route",
			  "The gateway serves another execution." },
	[GTW_PORT_CLOSED] = { 502, "port-closed", NULL,
			      "The sandbox is running but port is not open" },
	[GTW_LIMIT] = { 429, "limit", NULL, "Too many connections to this sandbox's ports." },
	[GTW_TIMEOUT] = { 504, "port-timeout", NULL, "The sandbox's network does not answer." },
};

/* One that is closed is said in the words of E2B's proxy, which clients look for. */
static json_t *verdict_body(const struct stream *s, const struct verdict_row *row, bool closed)
{
	return closed ? json_pack("{s:s,s:s,s:i,s:i}", "sandboxId", s->sandbox, "message",
				  row->message, "port", (int)s->port, "code", row->status)
		      : json_pack("{s:i,s:s,s:s}", "num", -EPROTO, "code", row->error, "message",
				  row->message);
}

static void verdict_no(struct stream *s, unsigned code)
{
	const struct verdict_row *row = &verdict_rows[code];
	const struct http_field extra[] = {
		{ "Space-Error", row->error },
		{ row->refusal		? "Space-Refusal"
		  : row->status == 429 ? "Retry-After"
				       : NULL,
		  row->refusal ? row->refusal : "1" },
		{ NULL, NULL },
	};
	json_t *body = verdict_body(s, row, code == GTW_PORT_CLOSED);
	autofree char *text = json_dumps(body, JSON_COMPACT);

	json_decref(body);
	log_info("the gateway refuses", F_REQ(s->req_id), F_STR("sandbox", s->sandbox),
		 F_UINT("port", s->port), F_STR("verdict", gtw_code_names[code]));
	stream_let_go(s, TAKE(s->waiting));
	forward_reply(s->f, row->status, extra, "application/json", text, strlen(text));
}

static void verdict_yes(struct stream *s)
{
	struct conn *up = TAKE(s->waiting);

	if (s->protocol == ID_PROTOCOL_HTTP)
		stream_send(s, up, skip_request_field, NULL);
	else
		forward_tunnel(s->f, up);
}

unsigned port_verdict(const void *p)
{
	struct gtw_verdict v;

	memcpy(&v, p, sizeof(v));
	return v.magic == GTW_VERDICT_MAGIC && v.code < GTW_CODE_END ? v.code : 0;
}

static void on_gateway(struct conn *up, enum conn_event ev, void *arg)
{
	struct stream *s = arg;
	struct buf *in = conn_in(up);
	bool whole = buf_len(in) >= sizeof(struct gtw_verdict);
	unsigned code = 0;

	if (!whole && (ev == CONN_DATA || ev == CONN_CONNECTED || ev == CONN_DRAINED))
		return;
	if (whole) {
		code = port_verdict(buf_data(in));
		buf_consume(in, sizeof(struct gtw_verdict));
	}
	if (code == GTW_OK)
		verdict_yes(s);
	else
		verdict_no(s, code);
}

void port_begin(struct stream *s, struct conn *up)
{
	s->waiting = up;
	conn_set_fn(up, on_gateway, s);
	conn_set_timeout(up, PORT_VERDICT_MS);
	conn_kick(up);
}

/* ---- requests ---- */

/* Only space-api says Space-Tunnel: it takes Space-* out of what clients send. */
static int ask_protocol(const struct http_head *h, enum id_protocol *ret, struct err *e)
{
	static const enum id_protocol tunnels[] = { ID_PROTOCOL_TCP, ID_PROTOCOL_H2 };
	const char *want = http_get(h, "Space-Tunnel"), *upgrade = http_get(h, "Upgrade");

	*ret = ID_PROTOCOL_HTTP;
	if (!want)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(tunnels); i++) {
		if (str_eq(want, id_protocol_names[tunnels[i]]))
			*ret = tunnels[i];
	}
	if (*ret == ID_PROTOCOL_HTTP || http_count(h, "Space-Tunnel") > 1)
		return err_set(e, -EINVAL, "Space-Tunnel is tcp or h2.");
	if (!h->upgrade || !str_ieq(upgrade, ROUTES_TUNNEL) || h->body != HTTP_BODY_NONE)
		return err_set(e, -EINVAL, "A tunnel is asked for with Upgrade: %s and no body.",
			       ROUTES_TUNNEL);
	return 0;
}

int port_ask(const struct http_head *h, uint16_t *ret_port, enum id_protocol *ret_protocol,
	     struct err *e)
{
	const char *text = http_get(h, "Space-Port");
	uint64_t port = 0;

	if (!text || http_count(h, "Space-Port") > 1 || str_to_u64(text, UINT16_MAX, &port) < 0 ||
	    port == 0)
		return err_set(e, -EINVAL, "Space-Port is missing or no port number.");
	if (str_eq(h->method, "CONNECT"))
		return err_set(e, -EINVAL, "CONNECT is not served.");
	*ret_port = (uint16_t)port;
	return ask_protocol(h, ret_protocol, e);
}

void node_port(struct node_call *c)
{
	struct sbx_admit a = { 0 };
	struct err e = { 0 };

	if (port_ask(http_req_head(c->req), &c->port, &c->protocol, &e) < 0 ||
	    node_full(c->node, &e)) {
		node_refuse(c, &e);
		return;
	}
	str_copy(a.capability, sizeof(a.capability), c->capability);
	str_copy(a.purpose, sizeof(a.purpose), id_purpose_names[ID_PURPOSE_SERVICE_PORT]);
	str_copy(a.access, sizeof(a.access), id_access_names[ID_ACCESS_WRITE]);
	str_copy(a.protocol, sizeof(a.protocol), id_protocol_names[c->protocol]);
	a.port = c->port;
	node_admit(c, &a);
	explicit_bzero(&a, sizeof(a));
}
