/*
 * Space-Op: forward, and what a request for a port (port.c) has in common with it. The route table
 * says what the request needs; sbx-manager admits it and hands over the stream to the bridge;
 * forward (http/forward.h) relays one message over it. A stream carries this one request and is
 * closed.
 *
 * A stream is in node->streams from its admission to the end of its forward, so that "revoked"
 * finds it. The event can come at any time after the answer to the admission, and that answer is
 * handled in the turn in which it arrived: there is no moment in which a granted stream is not in
 * the list.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "http/forward.h"
#include "ipc/sbx_ops.h"
#include "node-api/node.h"
#include "routes/routes.h"

#define LEASE_END_TIMEOUT_MS 60000
#define ADMISSION_FORGET_MS (24 * 3600 * 1000)     /* sbx-manager answers or its connection breaks long before */
#define HEAD_MAX (2 * HTTP_HEAD_MAX)

static void lease_ended(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	/*
	 * Nothing to do: sbx-manager sees the socket's end too, and asks the bridge after a
	 * restart.
	 */
}

static void lease_end(struct node *n, uint64_t lease, const char *req_id)
{
	const struct sbx_lease a = { .lease = lease };

	if (n->sbx)
		ipc_client_call(n->sbx, &sbx_ops[SBX_LEASE_END], req_id, &a, NULL, 0,
				LEASE_END_TIMEOUT_MS, lease_ended, NULL);
}

/* ---- heads ---- */

bool stream_skip_space(const char *name, void *arg)
{
	return strncasecmp(name, "Space-", 6) == 0;
}

static bool skip_request_field(const char *name, void *arg)
{
	static const char *const names[] = { "X-Access-Token", "X-Request-Id", "Expect" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_ieq(name, names[i]))
			return true;
	return stream_skip_space(name, arg);
}

static int put_head(struct buf *b, const struct stream *s,
		    bool (*skip)(const char *name, void *arg), const struct http_field *more)
{
	const struct http_head *h = forward_req(s->f);
	const char *proto = h->upgrade ? http_get(h, "Upgrade") : NULL;
	int r = http_put_request(b, h->method, h->target);

	if (r == 0)
		r = http_put_forward(b, h, skip, NULL);
	if (r == 0)
		r = http_put_framing(b, h);
	for (; r == 0 && more && more->name; more++)
		r = http_put_field(b, more->name, more->value);
	if (r == 0 && proto)
		r = http_put_field(b, "Upgrade", proto);
	if (r == 0)
		r = http_put_field(b, "Connection", proto ? "Upgrade" : "close");
	return r < 0 ? r : http_put_end(b);
}

static enum forward_head on_head(struct forward *f, const struct http_head *h, struct buf *out,
				 void *arg)
{
	http_put_status(out, h->status);
	http_put_forward(out, h, stream_skip_space, NULL);
	return FORWARD_PASS;
}

/* ---- a stream ---- */

void stream_let_go(struct stream *s, struct conn *up)
{
	if (up) {
		shutdown(conn_fd(up), SHUT_RDWR);    /* sbx-manager holds a duplicate */
		conn_free(up);
	}
	lease_end(s->owner, s->lease, s->req_id);
}

static void on_released(struct forward *f, struct conn *idle, void *arg)
{
	stream_let_go(arg, idle);
}

static void on_failed(struct forward *f, enum forward_why why, void *arg)
{
	static const struct {
		int status;
		const char *code, *message;
	} answers[FORWARD_WHY_COUNT] = {
		[FORWARD_UPSTREAM_GONE] = { 502, "guest-lost",
					    "The connection to the guest ended without an answer." },
		[FORWARD_UPSTREAM_BAD] = { 502, "guest-protocol",
					   "The guest's answer is not valid HTTP." },
		[FORWARD_TIMEOUT] = { 504, "guest-timeout", "The guest did not answer in time." },
		[FORWARD_BODY_BAD] = { 400, "malformed",
				       "The framing of the request's body is malformed." },
		[FORWARD_BODY_STALLED] = { 408, "timeout",
					   "The request's body did not arrive in time." },
	};
	const struct http_field extra[] = { { "Space-Error", answers[why].code }, { NULL, NULL } };
	char body[256];

	str_format(body, sizeof(body), "{\"num\":%d,\"code\":\"%s\",\"message\":\"%s\"}", -EPROTO,
		   answers[why].code, answers[why].message);
	forward_reply(f, answers[why].status, extra, "application/json", body, strlen(body));
}

static void on_end(struct forward *f, const struct forward_end *end, void *arg)
{
	struct stream *s = arg;
	struct node *n = s->owner;
	const struct http_head *h = forward_req(f);
	autofree char *path = x_strndup(h->target, strcspn(h->target, "?"));

	if (s->waiting)
		stream_let_go(s, TAKE(s->waiting));
	log_info("request", F_REQ(s->req_id), F_STR("sandbox", s->sandbox),
		 F_UINT("generation", s->generation), F_UINT("lease", s->lease),
		 F_UINT("port", s->port), F_STR("protocol", id_protocol_names[s->protocol]),
		 F_STR("method", h->method), F_STR("path", path), F_INT("status", end->status),
		 F_STR("end", forward_why_names[end->why]), F_UINT("in", end->in_bytes),
		 F_UINT("out", end->out_bytes), F_INT("admit_ms", s->admitted_ms - s->start_ms),
		 F_INT("ms", clock_mono_ms() - s->start_ms));
	if (end->client)
		http_server_return(n->http, end->client);
	list_del(&s->node);
	n->n_streams--;
	explicit_bzero(s->guest_token, sizeof(s->guest_token));
	free(s);
}

void stream_send(struct stream *s, struct conn *up, bool (*skip)(const char *name, void *arg),
		 const struct http_field *more)
{
	struct buf head;

	buf_init(&head, HEAD_MAX);
	if (put_head(&head, s, skip, more) == 0) {
		forward_start(s->f, up, buf_data(&head), buf_len(&head));
	} else {
		stream_let_go(s, up);
		forward_reply(s->f, 431, NULL, NULL, NULL, 0);
	}
	explicit_bzero((char *)buf_data(&head), buf_len(&head));
	buf_done(&head);
	explicit_bzero(s->guest_token, sizeof(s->guest_token));
}

static void send_to_agent(struct stream *s, struct conn *up)
{
	const struct http_field more[] = {
		{ "X-Access-Token", s->guest_token },
		{ s->req_id[0] ? "X-Request-Id" : NULL, s->req_id },
		{ NULL, NULL },
	};

	stream_send(s, up, skip_request_field, more);
}

static void unused_event(struct conn *c, enum conn_event ev, void *arg)
{
}

static void stream_begin(struct node_call *c, const struct sbx_admit_rep *a, int fd)
{
	struct node *n = c->node;
	struct stream *s = x_alloc(sizeof(*s));
	const struct forward_conf fc = {
		.loop = n->loop,
		.rechunk = true,
		.closed_is_broken = c->port != 0,
		.head_timeout_ms = n->conf.head_timeout_ms,
		.stall_timeout_ms = n->conf.stall_timeout_ms,
		.head = on_head,
		.released = on_released,
		.failed = on_failed,
		.end = on_end,
		.arg = s,
	};
	struct http_head h;
	struct conn *client, *up;

	s->owner = n;
	s->lease = a->lease;
	s->generation = a->generation;
	s->port = c->port;
	s->protocol = c->protocol;
	s->start_ms = c->start_ms;
	s->admitted_ms = clock_mono_ms();
	str_copy(s->sandbox, sizeof(s->sandbox), a->sandbox);
	str_copy(s->req_id, sizeof(s->req_id), c->req_id);
	str_copy(s->guest_token, sizeof(s->guest_token), a->guest_token);
	client = http_req_take(c->req, &h);          /* c is gone */
	if (!client) {
		http_head_done(&h);
		shutdown(fd, SHUT_RDWR);
		fd_close(fd);
		lease_end(n, s->lease, s->req_id);
		explicit_bzero(s->guest_token, sizeof(s->guest_token));
		free(s);
		return;
	}
	list_add_tail(&n->streams, &s->node);
	n->n_streams++;
	s->f = forward_new(&fc, client, &h);
	up = conn_new(n->loop, fd, FORWARD_BUFFER_BYTES, FORWARD_BUFFER_BYTES, unused_event, NULL);
	if (s->port)
		port_begin(s, up);
	else
		send_to_agent(s, up);
}

/*
 * An admission that is waited for. The answer may come after the client was told that it took too
 * long; the lease that it brings is held here by then, so it must be ended here. So the call itself
 * has no limit that counts.
 */
struct admission {
	struct node *node;
	struct node_call *c;             /* NULL: given up */
	struct loop_timer timer;
	char req_id[IPC_REQ_ID_MAX + 1];
};

static void admission_overdue(struct loop_timer *t)
{
	struct admission *a = t->arg;
	struct node_call *c = TAKE(a->c);
	struct err e = { 0 };

	err_set(&e, -ETIMEDOUT, "%s: no answer in time", sbx_ops[SBX_ADMIT].name);
	node_refuse(c, &e);
}

static void admission_late(struct admission *a, const struct sbx_admit_rep *rep, int *fds,
			   size_t n_fds)
{
	log_warn("a request was admitted too late", F_REQ(a->req_id),
		 F_STR("sandbox", rep->sandbox), F_UINT("lease", rep->lease));
	for (size_t i = 0; i < n_fds; i++) {
		shutdown(fds[i], SHUT_RDWR);
		fd_close(fds[i]);
	}
	lease_end(a->node, rep->lease, a->req_id);
}

static void admitted(void *arg, const struct err *e, const void *rep, int *fds, size_t n_fds)
{
	struct admission *a = arg;
	struct node_call *c = a->c;
	struct err missing = { 0 };

	loop_timer_stop(&a->timer);
	if (!c) {
		if (!e)
			admission_late(a, rep, fds, n_fds);
		free(a);
		return;
	}
	free(a);
	if (!e && n_fds != 1) {
		err_set(&missing, -EPROTO, "sbx-manager admitted the request without a stream.");
		e = &missing;
	}
	if (e) {
		for (size_t i = 0; i < n_fds; i++)
			fd_close(fds[i]);
		node_refuse(c, e);
		return;
	}
	stream_begin(c, rep, fds[0]);
}

void node_admit(struct node_call *c, const struct sbx_admit *q)
{
	struct admission *a = x_alloc(sizeof(*a));

	a->node = c->node;
	a->c = c;
	str_copy(a->req_id, sizeof(a->req_id), c->req_id);
	loop_timer_set(a->node->loop, &a->timer, a->node->conf.admit_timeout_ms, admission_overdue,
		       a);
	ipc_client_call(a->node->sbx, &sbx_ops[SBX_ADMIT], a->req_id, q, NULL, 0,
			ADMISSION_FORGET_MS, admitted, a);
}

bool node_full(const struct node *n, struct err *e)
{
	if (n->n_streams < NODE_STREAMS_MAX)
		return false;
	err_set_code(e, -EUSERS, "limit", "The node relays as many requests as it can.");
	return true;
}

void node_forward(struct node_call *c)
{
	const struct http_head *h = http_req_head(c->req);
	const struct route *route = routes_find(h->method, h->target);
	struct sbx_admit a = { 0 };
	struct err e = { 0 };
	int r = FAULT("node.forward");

	if (r < 0)
		err_set(&e, r, "The failpoint node.forward is set.");
	else if (route->host_only)
		err_set(&e, -ENOENT, "There is no such path.");
	if (e.num || node_full(c->node, &e)) {
		node_refuse(c, &e);
		return;
	}
	str_copy(a.capability, sizeof(a.capability), c->capability);
	str_copy(a.purpose, sizeof(a.purpose), id_purpose_names[ID_PURPOSE_CONTROL]);
	str_copy(a.access, sizeof(a.access), id_access_names[route->access]);
	node_admit(c, &a);
	explicit_bzero(&a, sizeof(a));
}

void node_revoked(struct node *n, uint64_t lease)
{
	LIST_FOR_SAFE(&n->streams, s, struct stream, node)
		if (s->lease == lease)
			forward_cut(s->f);
}

void node_cut_all(struct node *n)
{
	LIST_FOR_SAFE(&n->streams, s, struct stream, node)
		forward_cut(s->f);
}
