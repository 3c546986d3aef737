/*
 * space-test-cut: the host's side of a guest channel, which ends in mid-session at a byte that a
 * test chooses (spec T-1, L-9).
 *
 *	space-test-cut FD GENERATION init                               sends POST /init with the body from standard input
 *	space-test-cut FD GENERATION file TOKEN BYTES                   makes the file that sessions of this size download
 *	space-test-cut FD GENERATION session TOKEN BYTES [out|in AT]    up, down and small requests at once, each compared
 *
 * Files hold a pattern; every byte that comes back is compared as it comes. With `out AT` or `in
 * AT` the channel is closed after exactly AT bytes written or read, wherever that is in a frame;
 * what came before is still compared.
 *
 * Prints "whole OUT IN" (all was right; so many bytes each way) or "cut"; else a sentence and exit
 * code 1.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/http.h"
#include "mux/mux.h"

#define SESSION_MS 60000
#define TALKS_MAX 8
#define HEALTH_CALLS 4
#define HEAD_MAX 16384
#define ACTIVATION_BYTE 0x11         /* 16 of them: the same execution at each connection, as the body of /init says */

/* One request and its answer. */
struct talk {
	const char *name;
	char *head;                      /* request head, owned */
	size_t head_sent;
	const char *body;                /* text, or NULL: the pattern */
	uint64_t body_bytes, body_sent;
	uint64_t want_bytes;             /* of the answer, all of them the pattern; UINT64_MAX = not looked at */
	int want_status;
	uint32_t stream;
	bool control, open, end_sent, done;
	struct buf in;                   /* the answer's head */
	bool has_head;
	struct http_dec dec;
	uint64_t got;
};

struct session {
	int fd;
	struct mux *mux;
	struct mux_epoch epoch;
	struct talk talks[TALKS_MAX];
	size_t n;
	uint64_t out, in, out_max, in_max;
};

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	exit(1);
}

static uint8_t pattern(uint64_t at) { return (uint8_t)((at * 2654435761u) >> 13 ^ at); }

static struct talk *add(struct session *s, const char *name, int status)
{
	struct talk *t = &s->talks[s->n++];

	t->name = name;
	t->want_status = status;
	t->want_bytes = UINT64_MAX;
	buf_init(&t->in, HEAD_MAX);
	return t;
}

/* ---- Answers ---- */

static void take_body(struct talk *t, const char *p, size_t n)
{
	while (n > 0) {
		const char *data;
		size_t used, got;
		enum http_error bad;
		int r = http_dec_feed(&t->dec, p, n, &used, &data, &got, &bad);

		if (r < 0)
			fail("%s: the answer's body is malformed: %s", t->name,
			     http_error_text(bad));
		for (size_t i = 0; i < got && t->want_bytes != UINT64_MAX; i++)
			if ((uint8_t)data[i] != pattern(t->got + i))
				fail("%s: byte %" PRIu64 " is wrong", t->name, t->got + i);
		t->got += got;
		if (used == 0 && got == 0)
			break;
		p += used;
		n -= used;
	}
}

static void take_data(struct talk *t, const uint8_t *p, size_t n)
{
	struct http_head head;
	enum http_error bad;
	ssize_t r;

	if (t->has_head) {
		take_body(t, (const char *)p, n);
		return;
	}
	if (buf_put(&t->in, p, n) < 0)
		fail("%s: the answer's head is too long", t->name);
	r = http_parse_response(buf_data(&t->in), buf_len(&t->in), "GET", &head, &bad);
	if (r < 0)
		fail("%s: the answer's head is malformed: %s", t->name, http_error_text(bad));
	if (r == 0)
		return;
	if (head.status != t->want_status)
		fail("%s: status %d instead of %d: %.200s", t->name, head.status, t->want_status,
		     buf_data(&t->in));
	t->has_head = true;
	http_dec_init(&t->dec, &head, UINT64_MAX);
	http_head_done(&head);
	take_body(t, buf_data(&t->in) + r, buf_len(&t->in) - (size_t)r);
}

static void take_end(struct talk *t)
{
	if (!t->has_head || http_dec_eof(&t->dec) < 0)
		fail("%s: the answer ended early", t->name);
	if (t->want_bytes != UINT64_MAX && t->got != t->want_bytes)
		fail("%s: %" PRIu64 " of %" PRIu64 " bytes came", t->name, t->got, t->want_bytes);
	t->done = true;
}

static void take_events(struct session *s)
{
	struct mux_event e;

	while (mux_next(s->mux, &e)) {
		struct talk *t = e.user;

		if (e.type == MUX_EV_DATA && t) {
			take_data(t, e.data, e.len);
			mux_taken(s->mux, e.stream, e.len);
		} else if (e.type == MUX_EV_END && t) {
			take_end(t);
		} else if (e.type == MUX_EV_RST && t && !t->done) {
			fail("%s: the guest reset the stream", t->name);
		}
	}
	if (mux_error(s->mux))
		fail("the guest broke a rule: %s", mux_error(s->mux));
}

/* ---- Requests ---- */

static bool push_body(struct session *s, struct talk *t)
{
	size_t room = mux_can_send(s->mux, t->stream);
	uint64_t left = t->body_bytes - t->body_sent;
	char chunk[MUX_PAYLOAD_MAX];
	size_t n = room < sizeof(chunk) ? room : sizeof(chunk);

	n = left < n ? (size_t)left : n;
	if (n == 0)
		return false;
	for (size_t i = 0; i < n; i++)
		chunk[i] = t->body ? t->body[t->body_sent + i] : (char)pattern(t->body_sent + i);
	mux_send(s->mux, t->stream, chunk, n);
	t->body_sent += n;
	return true;
}

static bool push(struct session *s, struct talk *t)
{
	size_t left = strlen(t->head) - t->head_sent, room = mux_can_send(s->mux, t->stream);

	if (left) {
		size_t n = left < room ? left : room;

		if (n)
			mux_send(s->mux, t->stream, t->head + t->head_sent, n);
		t->head_sent += n;
		return n > 0;
	}
	if (t->body_sent < t->body_bytes)
		return push_body(s, t);
	if (t->end_sent)
		return false;
	t->end_sent = true;
	mux_end(s->mux, t->stream);
	return true;
}

static bool push_all(struct session *s)
{
	bool busy = false;

	for (size_t i = 0; i < s->n && mux_ready(s->mux); i++) {
		struct talk *t = &s->talks[i];

		if (!t->open) {
			if (mux_open(s->mux, t->control, &t->stream) < 0)
				continue;
			t->open = true;
			mux_set_user(s->mux, t->stream, t);
		}
		busy |= !t->done && push(s, t);
	}
	return busy;
}

/* ---- The channel ---- */

static void __attribute__((noreturn)) cut(struct session *s)
{
	close(s->fd);
	printf("cut\n");
	exit(0);
}

static void write_some(struct session *s)
{
	struct buf *b = mux_out(s->mux);
	uint64_t left = s->out_max - s->out;
	size_t n = buf_len(b) < left ? buf_len(b) : (size_t)left;
	ssize_t r = n ? write(s->fd, buf_data(b), n) : 0;

	if (r < 0 && errno != EAGAIN)
		fail("writing to the channel: %s", strerror(errno));
	if (r > 0) {
		buf_consume(b, (size_t)r);
		s->out += (uint64_t)r;
	}
	if (s->out == s->out_max)
		cut(s);
}

static void read_some(struct session *s)
{
	uint64_t left = s->in_max - s->in;
	size_t room;
	void *p = mux_in_reserve(s->mux, &room);
	ssize_t r;

	if (!p)
		return;
	r = read(s->fd, p, room < left ? room : (size_t)left);
	if (r == 0)
		fail("the VMM closed the channel");
	if (r < 0 && errno != EAGAIN)
		fail("reading from the channel: %s", strerror(errno));
	if (r > 0) {
		s->in += (uint64_t)r;
		mux_in_commit(s->mux, (size_t)r);
		take_events(s);
	}
	if (s->in == s->in_max)
		cut(s);
}

static bool all_done(const struct session *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!s->talks[i].done)
			return false;
	return mux_ready(s->mux);
}

static void run(struct session *s)
{
	int64_t until = clock_mono_ms() + SESSION_MS;

	fd_set_nonblock(s->fd, true);
	mux_start(s->mux, &s->epoch);
	while (!all_done(s)) {
		struct pollfd p = { .fd = s->fd, .events = POLLIN };

		while (push_all(s))
			;
		if (buf_len(mux_out(s->mux)))
			p.events |= POLLOUT;
		if (clock_mono_ms() > until)
			fail("the session did not end (ready: %d, out %" PRIu64 ", in %" PRIu64 ")",
			     mux_ready(s->mux), s->out, s->in);
		if (poll(&p, 1, 1000) < 0 && errno != EINTR)
			fail("poll: %s", strerror(errno));
		if (p.revents & POLLOUT)
			write_some(s);
		if (p.revents & (POLLIN | POLLHUP))
			read_some(s);
	}
	printf("whole %" PRIu64 " %" PRIu64 "\n", s->out, s->in);
}

static char *request(const char *method, const char *target, const char *token, const char *type,
		     uint64_t length)
{
	return x_asprintf(
		"%s %s HTTP/1.1\r\nHost: guest\r\nX-Access-Token: %s\r\nContent-Type: %s\r\nContent-Length: %" PRIu64
		"\r\nConnection: close\r\n\r\n",
		method, target, token, type, length);
}

static void make_init(struct session *s, char **ret_body)
{
	struct talk *t = add(s, "/init", 204);
	char *body = x_alloc(65537);
	size_t n = fread(body, 1, 65536, stdin);

	t->control = true;
	t->body = *ret_body = body;
	t->body_bytes = n;
	t->head = request("POST", "/init", "none", "application/json", n);
}

static void make_session(struct session *s, const char *token, uint64_t bytes)
{
	struct talk *t = add(s, "upload", 200);

	t->body_bytes = bytes;
	t->head = request("POST", "/files?path=/home/user/cut-up&username=user", token,
			  "application/octet-stream", bytes);
	t = add(s, "download", 200);
	t->want_bytes = bytes;
	t->head = x_asprintf("GET /files?path=/home/user/cut-down-%" PRIu64
			     "&username=user HTTP/1.1\r\nHost: guest\r\nX-Access-Token: %s\r\n"
			     "Connection: close\r\n\r\n",
			     bytes, token);
	for (int i = 0; i < HEALTH_CALLS; i++) {
		t = add(s, "health", 204);
		t->head = x_strdup(
			"GET /health HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n");
	}
}

/* The file that sessions download. */
static void make_file(struct session *s, const char *token, uint64_t bytes)
{
	autofree char *target =
		x_asprintf("/files?path=/home/user/cut-down-%" PRIu64 "&username=user", bytes);
	struct talk *t = add(s, "making the file", 200);

	t->body_bytes = bytes;
	t->head = request("POST", target, token, "application/octet-stream", bytes);
}

int main(int argc, char **argv)
{
	struct session s = { .out_max = UINT64_MAX, .in_max = UINT64_MAX };
	uint64_t fd, bytes = 0, at;
	char *body = NULL;

	if (argc < 4 || str_to_u64(argv[1], 1 << 20, &fd) < 0 ||
	    str_to_u64(argv[2], UINT32_MAX, &s.epoch.generation) < 0)
		fail("usage: FD GENERATION init | file TOKEN BYTES | session TOKEN BYTES [out|in AT]");
	s.fd = (int)fd;
	memset(s.epoch.activation, ACTIVATION_BYTE, sizeof(s.epoch.activation));
	s.mux = mux_new(MUX_HOST);
	if (str_eq(argv[3], "init"))
		make_init(&s, &body);
	else if (argc >= 6 && str_to_u64(argv[5], 1ull << 40, &bytes) == 0 &&
		 str_eq(argv[3], "file"))
		make_file(&s, argv[4], bytes);
	else if (argc >= 6 && str_eq(argv[3], "session"))
		make_session(&s, argv[4], bytes);
	else
		fail("unknown: %s", argv[3]);
	if (argc == 8 && str_to_u64(argv[7], UINT64_MAX, &at) == 0) {
		if (str_eq(argv[6], "out"))
			s.out_max = at;
		else
			s.in_max = at;
	}
	run(&s);
	for (size_t i = 0; i < s.n; i++) {
		free(s.talks[i].head);
		buf_done(&s.talks[i].in);
	}
	free(body);
	mux_free(s.mux);
	return 0;
}
