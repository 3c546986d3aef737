#include "http/h2_refuse.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "loop/conn.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define PREFACE_LEN (sizeof(PREFACE) - 1)
#define FRAME_HEAD_LEN 9
#define FRAME_MAX 16384                  /* RFC 9113 4.2, as long as we have said nothing else */

enum { FRAME_HEADERS = 1, FRAME_SETTINGS = 4, FRAME_GOAWAY = 7 };
enum { FLAG_ACK = 1, FLAG_END_STREAM = 1, FLAG_END_HEADERS = 4 };
enum { NO_ERROR = 0, PROTOCOL_ERROR = 1 };
enum { GRPC_PERMISSION_DENIED = 7, GRPC_UNAVAILABLE = 14 };

struct h2_refuse {
	struct conn *client;
	struct h2_scan scan;
	const char *message;
	bool left;                       /* GOAWAY was said */
	void (*end)(void *arg);
	void *arg;
};

/* ---- what is said ---- */

static void put32(unsigned char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (unsigned char)(v >> (24 - 8 * i));
}

static int put_frame(struct buf *b, unsigned char type, unsigned char flags, uint32_t stream,
		     const void *payload, size_t n)
{
	unsigned char head[FRAME_HEAD_LEN];

	if (buf_room(b) < sizeof(head) + n)
		return -ENOBUFS;
	put32(head, (uint32_t)n << 8 | type);
	head[4] = flags;
	put32(head + 5, stream);
	buf_put(b, head, sizeof(head));
	return buf_put(b, payload, n);
}

/* Without the table, name as text (RFC 7541 6.2.2); a length of up to 126 is one byte. */
static void add_field(struct h2_scan *s, const char *name, const char *value)
{
	size_t n = strlen(name), m = strlen(value);
	char *p = s->answer + s->answer_len;

	assert(n <= H2_REFUSE_MESSAGE_MAX && m <= H2_REFUSE_MESSAGE_MAX &&
	       s->answer_len + 3 + n + m <= sizeof(s->answer));
	*p++ = 0;
	*p++ = (char)n;
	memcpy(p, name, n);
	p[n] = (char)m;
	memcpy(p + n + 1, value, m);
	s->answer_len += 3 + n + m;
}

/* gRPC's code for the status, as its clients take it (grpc/doc/http-grpc-status-mapping.md). */
void h2_scan_init(struct h2_scan *s, int status, const char *message)
{
	char text[16];

	*s = (struct h2_scan){ 0 };
	snprintf(text, sizeof(text), "%d", status);
	add_field(s, ":status", text);
	add_field(s, "content-type", "application/grpc");
	snprintf(text, sizeof(text), "%d",
		 status == 403 ? GRPC_PERMISSION_DENIED : GRPC_UNAVAILABLE);
	add_field(s, "grpc-status", text);
	add_field(s, "grpc-message", message);
}

/* ---- what is read ---- */

static int on_frame(struct h2_scan *s, struct buf *out)
{
	const unsigned char *h = s->head;
	uint32_t n = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
	uint32_t stream = (uint32_t)(h[5] & 0x7f) << 24 | (uint32_t)h[6] << 16 |
			  (uint32_t)h[7] << 8 | h[8];

	s->head_len = 0;
	s->skip = n;
	if (n > FRAME_MAX)
		return -EPROTO;
	if (h[3] == FRAME_SETTINGS && !(h[4] & FLAG_ACK))
		return put_frame(out, FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0);
	/* Of a stream that was answered these are trailers. */
	if (h[3] != FRAME_HEADERS || stream <= s->last)
		return 0;
	if (!(stream & 1))
		return -EPROTO;
	s->last = stream;
	return put_frame(out, FRAME_HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream, s->answer,
			 s->answer_len);
}

int h2_scan_feed(struct h2_scan *s, const void *data, size_t n, struct buf *out)
{
	const unsigned char *p = data;
	int r = 0;

	for (size_t used; r == 0 && n > 0; p += used, n -= used) {
		used = 1;
		if (s->preface_len < PREFACE_LEN) {
			r = *p == (unsigned char)PREFACE[s->preface_len++] ? 0 : -EPROTO;
		} else if (s->skip > 0) {
			used = s->skip < n ? s->skip : n;
			s->skip -= (uint32_t)used;
		} else {
			s->head[s->head_len++] = *p;
			r = s->head_len == FRAME_HEAD_LEN ? on_frame(s, out) : 0;
		}
	}
	return r;
}

/* ---- the connection ---- */

static void leave(struct h2_refuse *r, uint32_t why)
{
	unsigned char payload[8 + H2_REFUSE_MESSAGE_MAX];
	size_t n = strlen(r->message);

	put32(payload, r->scan.last);
	put32(payload + 4, why);
	memcpy(payload + 8, r->message, n);
	r->left = true;
	put_frame(conn_out(r->client), FRAME_GOAWAY, 0, 0, payload, 8 + n);
	conn_flush(r->client);
	conn_shutdown_write(r->client);
	conn_set_timeout(r->client, H2_REFUSE_LINGER_MS);
}

static void take(struct h2_refuse *r)
{
	struct buf *in = conn_in(r->client), out;
	bool was_asked = r->scan.last != 0;
	int bad;

	if (r->left) {
		buf_consume(in, buf_len(in));
		return;
	}
	buf_init(&out, H2_REFUSE_OUT_MAX);
	bad = h2_scan_feed(&r->scan, buf_data(in), buf_len(in), &out);
	buf_consume(in, buf_len(in));
	if (conn_write(r->client, buf_data(&out), buf_len(&out)) == -ENOBUFS)
		bad = -ENOBUFS;
	buf_done(&out);
	if (bad)
		leave(r, bad == -EPROTO ? PROTOCOL_ERROR : NO_ERROR);
	else if (r->scan.last && !was_asked)
		conn_set_timeout(r->client, H2_REFUSE_STAY_MS);
}

static void on_client(struct conn *c, enum conn_event ev, void *arg)
{
	struct h2_refuse *r = arg;

	if (ev == CONN_DATA) {
		take(r);
	} else if (ev == CONN_TIMEOUT && !r->left) {
		leave(r, NO_ERROR);
	} else if (ev == CONN_TIMEOUT || ev == CONN_EOF || ev == CONN_ERROR) {
		r->end(r->arg);
		h2_refuse_free(r);
	}
}

struct h2_refuse *h2_refuse_new(struct conn *client, int status, const char *message,
				void (*end)(void *arg), void *arg)
{
	struct h2_refuse *r = x_alloc(sizeof(*r));

	h2_scan_init(&r->scan, status, message);
	r->client = client;
	r->message = message;
	r->end = end;
	r->arg = arg;
	conn_set_fn(client, on_client, r);
	conn_set_timeout(client, H2_REFUSE_WAIT_MS);
	put_frame(conn_out(client), FRAME_SETTINGS, 0, 0, NULL, 0);
	conn_flush(client);
	conn_kick(client);
	return r;
}

void h2_refuse_free(struct h2_refuse *r)
{
	if (!r)
		return;
	conn_free(r->client);
	free(r);
}
