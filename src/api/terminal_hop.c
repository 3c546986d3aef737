#include "api/terminal_hop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "json/strict.h"
#include "routes/routes.h"

#define ENVELOPE_BYTES 5
#define ENVELOPE_LAST 2
#define HEAD_MAX 4096
#define OUT_MAX 262144
#define ERROR_DEPTH 8
#define KEEPALIVE_S "50"

void hop_init(struct hop *h, struct api *a, void (*fn)(void *arg), void *arg)
{
	*h = (struct hop){ .api = a, .fn = fn, .arg = arg };
	buf_init(&h->body, ENVELOPE_BYTES + HOP_MESSAGE_MAX);
}

static void hop_close(struct hop *h)
{
	conn_free(TAKE(h->conn));
	h->st = HOP_IDLE;
}

void hop_done(struct hop *h)
{
	hop_close(h);
	buf_done(&h->body);
}

static void on_conn(struct conn *c, enum conn_event ev, void *arg)
{
	struct hop *h = arg;

	if (h->conn == c)
		h->fn(h->arg);
}

/* Also where the loop has not told it yet: the server closes idle ones when it has too many. */
static bool hop_ended(const struct hop *h)
{
	char c;

	return conn_eof(h->conn) || conn_error(h->conn) ||
	       recv(conn_fd(h->conn), &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static int hop_open(struct hop *h, struct err *e)
{
	int fds[2];

	if (h->conn && (hop_ended(h) || clock_mono_ms() - h->used_ms > HOP_IDLE_MS))
		hop_close(h);
	if (h->conn)
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
		return err_errno(e, -errno, "No connection for a terminal");
	api_accept(h->api, fds[1]);
	h->conn = conn_new(h->api->loop, fds[0], HOP_IN_MAX, OUT_MAX, on_conn, h);
	return 0;
}

static void put_fields(const struct hop *h, const struct hop_ask *q, struct buf *b)
{
	char token[TOKEN_TEXT_MAX], user[128], b64[STR_B64_LEN(sizeof(user)) + 1];

	http_put_field(b, "Host", "localhost");
	http_put_field(b, "E2b-Sandbox-Id", q->sandbox);
	http_put_fieldf(b, "E2b-Sandbox-Port", "%d", ROUTES_CONTROL_PORT);
	http_put_field(b, "X-Request-Id", q->req_id);
	http_put_field(b, "Connect-Protocol-Version", "1");
	http_put_field(b, "Content-Type",
		       q->stream ? "application/connect+json" : "application/json");
	if (q->stream)
		http_put_field(b, "Keepalive-Ping-Interval", KEEPALIVE_S);
	if (q->user[0] && str_format(user, sizeof(user), "%s:", q->user) == 0) {
		str_b64(b64, user, strlen(user));
		http_put_fieldf(b, "Authorization", "Basic %s", b64);
	}
	token_make(keys_token(h->api), q->sandbox, token);
	http_put_field(b, "X-Access-Token", token);
	explicit_bzero(token, sizeof(token));
}

static int hop_write(struct hop *h, const struct hop_ask *q, const char *text)
{
	size_t n = strlen(text);
	uint32_t be = htonl((uint32_t)n);
	char target[64];
	struct buf b;
	int r;

	buf_init(&b, HEAD_MAX + ENVELOPE_BYTES + n);
	str_format(target, sizeof(target), "/process.Process/%s", q->method);
	http_put_request(&b, "POST", target);
	put_fields(h, q, &b);
	http_put_fieldf(&b, "Content-Length", "%zu", n + (q->stream ? ENVELOPE_BYTES : 0));
	r = http_put_end(&b);
	if (r == 0 && q->stream) {
		buf_put(&b, "", 1);
		buf_put(&b, &be, sizeof(be));
	}
	if (r == 0)
		r = buf_put(&b, text, n);
	if (r == 0)
		r = conn_write(h->conn, buf_data(&b), buf_len(&b));
	explicit_bzero((char *)buf_data(&b), buf_len(&b));
	buf_done(&b);
	return r;
}

int hop_send(struct hop *h, const struct hop_ask *q, struct err *e)
{
	autofree char *text = json_dumps(q->body, JSON_COMPACT);
	int r = text ? hop_open(h, e) : err_set(e, -EIO, "A request cannot be written as JSON.");

	if (r < 0)
		return r;
	buf_clear(&h->body);
	h->given = 0;
	h->status = 0;
	h->stream = q->stream;
	h->st = HOP_HEAD;
	r = hop_write(h, q, text);
	if (r < 0)
		hop_close(h);
	return r < 0 ? err_errno(e, r, "The request cannot be sent") : 0;
}

/* ---- the answer ---- */

static int cut(struct hop *h, struct err *e)
{
	hop_close(h);
	return err_set(e, -ECONNRESET, "The connection to the sandbox was lost.");
}

static int malformed(struct hop *h, struct err *e)
{
	hop_close(h);
	return err_set(e, -EBADMSG, "The sandbox's answer is malformed.");
}

/* 1: the head is there; 0: not yet. */
static int step_head(struct hop *h, struct err *e)
{
	struct buf *in = conn_in(h->conn);
	struct http_head head;
	enum http_error why;
	ssize_t n = http_parse_response(buf_data(in), buf_len(in), "POST", &head, &why);
	bool interim;

	if (n < 0)
		return malformed(h, e);
	if (n == 0)
		return conn_eof(h->conn) || conn_error(h->conn) ? cut(h, e) : 0;
	buf_consume(in, (size_t)n);
	interim = head.status < 200;
	if (!interim) {
		h->status = head.status;
		h->keep = head.keep_alive;
		h->st = HOP_BODY;
		http_dec_init(&h->dec, &head,
			      h->stream && head.status == 200 ? UINT64_MAX : HOP_ANSWER_MAX);
	}
	http_head_done(&head);
	return interim ? step_head(h, e) : 1;
}

/* One piece of the body. 1: some came, or the end (HOP_ENDED); 0: none yet. */
static int step_body(struct hop *h, struct err *e)
{
	struct buf *in = conn_in(h->conn);
	size_t n = buf_len(in) < buf_room(&h->body) ? buf_len(in) : buf_room(&h->body), used, len;
	enum http_error why;
	const char *data;
	int r = http_dec_feed(&h->dec, buf_data(in), n, &used, &data, &len, &why);

	if (r < 0)
		return malformed(h, e);
	if (len > 0)
		buf_put(&h->body, data, len);
	buf_consume(in, used);
	if (r == 1)
		h->st = HOP_ENDED;
	if (r == 1 || used > 0)
		return 1;
	return conn_eof(h->conn) || conn_error(h->conn) ? cut(h, e) : 0;
}

static int step(struct hop *h, struct err *e)
{
	if (h->st == HOP_HEAD)
		return step_head(h, e);
	return h->st == HOP_BODY ? step_body(h, e) : 0;
}

/* The sentence of a refusal, of our own server or of the sandbox: {"message":"..."}. */
static int refused(struct hop *h, struct err *e)
{
	json_t *j = strict_parse(buf_data(&h->body), buf_len(&h->body), ERROR_DEPTH, NULL);
	const char *text = json_string_value(json_object_get(j, "message"));

	err_set(e, -EREMOTEIO, "%.200s",
		text ? text : "The sandbox refused the request.");
	json_decref(j);
	return -EREMOTEIO;
}

static void release(struct hop *h)
{
	h->used_ms = clock_mono_ms();
	h->st = HOP_IDLE;
	if (!h->keep)
		hop_close(h);
}

int hop_answer(struct hop *h, struct err *e)
{
	int r;

	while ((r = step(h, e)) == 1)
		;
	if (r < 0 || h->st != HOP_ENDED)
		return r;
	r = h->status == 200 ? 1 : refused(h, e);
	release(h);
	return r;
}

/* 1: a whole message lies in front. */
static int envelope(struct hop *h, struct hop_message *ret, struct err *e)
{
	const char *p = buf_data(&h->body);
	uint32_t be;
	size_t n;

	if (buf_len(&h->body) < ENVELOPE_BYTES)
		return 0;
	memcpy(&be, p + 1, sizeof(be));
	n = ntohl(be);
	if (n > HOP_MESSAGE_MAX || (p[0] & ~ENVELOPE_LAST))
		return malformed(h, e);
	if (buf_len(&h->body) < ENVELOPE_BYTES + n)
		return 0;
	*ret = (struct hop_message){ p + ENVELOPE_BYTES, n, p[0] & ENVELOPE_LAST };
	h->given = ENVELOPE_BYTES + n;
	return 1;
}

int hop_next(struct hop *h, struct hop_message *ret, struct err *e)
{
	bool plain;
	int r;

	buf_consume(&h->body, h->given);
	h->given = 0;
	if (!h->conn)
		return 0;
	for (;;) {
		plain = h->status != 0 && h->status != 200;
		r = plain ? 0 : envelope(h, ret, e);
		if (r != 0)
			return r;
		r = step(h, e);
		if (r < 0)
			return r;
		if (r == 0)
			break;
	}
	if (h->st != HOP_ENDED)
		return 0;
	if (!plain)
		return cut(h, e);        /* over, without the message that says so */
	r = refused(h, e);
	hop_close(h);
	return r;
}
