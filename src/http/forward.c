/*
 * Theory of operation.
 *
 *	IDLE -> HEAD -> BODY ----> DRAIN -> ENDED      (client kept)
 *	 ^       |  |     |  `---> FLUSH -> ENDED      (client closed after its answer)
 *	 `-------'  |     `------------------> ENDED   (cut)
 *	  failed    `-> TUNNEL --------------> ENDED
 *
 * IDLE: no upstream; the user is asked with `failed`, or has not started yet. HEAD: the request
 * flows, the answer's head is awaited. BODY: the answer flows, and what is left of the request too.
 * DRAIN: the answer is out, the rest of the request is thrown away so that the connection can be
 * kept. FLUSH: the answer is queued, the connection ends with it: our side is shut when it has gone
 * out, then we wait a little for the client (RFC 9112 9.6).
 *
 * forward_run() is the only place that moves bytes; every event of both conns ends there. It
 * repeats its pumps as long as one of them moved something; pumps only move bytes that are in
 * buffers already, so it ends. All callbacks but `head` and `released` come from one deferred
 * function (forward_on_later), so that the user may call anything from them.
 *
 * Invariants: `up` is set exactly in HEAD, BODY and TUNNEL. Bytes of the request that were taken
 * from the client are in `kept` as long as `kept_ok`; an attempt first sends those (`kept_at`),
 * then goes on with the client's buffer. Once a byte of an answer was queued for the client
 * (`spoke`), an attempt can only end in ENDED.
 *
 * A dead upstream (error on writing) may still have an answer for us in the kernel: a server that
 * refuses a large body answers and closes. So its socket is read to the end (up_refill) before it
 * is given up.
 */
#include "http/forward.h"

#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/alloc.h"
#include "base/str.h"
#include "loop/pair.h"

#define HEAD_OUT_MAX (2 * HTTP_HEAD_MAX)
#define CHUNK_OVERHEAD 32                    /* size line, CRLF, and the last chunk */

enum state { ST_IDLE, ST_HEAD, ST_BODY, ST_TUNNEL, ST_DRAIN, ST_FLUSH, ST_ENDED };
enum phase { PH_NONE, PH_CONNECT, PH_STALL, PH_ANSWER, PH_FLUSH, PH_LINGER };
enum mode { MODE_RAW, MODE_CHUNK, MODE_PLAIN };

struct forward {
	struct forward_conf c;
	struct http_head req;
	struct conn *client, *up;
	enum state st;

	struct http_dec in_dec;              /* the request's body */
	bool in_done, said_continue;
	struct buf kept;
	bool kept_ok;
	size_t kept_at;

	struct http_dec out_dec;             /* the answer's body */
	enum mode mode;
	bool out_done, up_keep, keep, spoke; /* keep: the client was told that its connection stays */
	bool up_connected, up_dead;
	bool shut_up, shut_client;           /* tunnel: end of file was passed on */

	struct loop_timer timer;
	enum phase phase;
	bool progress;
	size_t flush_left;

	struct loop_defer later;
	bool ask_user;
	enum forward_why why;
	struct forward_end end;
};

const char *const forward_why_names[FORWARD_WHY_COUNT] = {
	[FORWARD_OK] = "ok",
	[FORWARD_SWALLOWED] = "swallowed",
	[FORWARD_UPSTREAM_GONE] = "upstream-gone",
	[FORWARD_UPSTREAM_BAD] = "upstream-bad",
	[FORWARD_TIMEOUT] = "timeout",
	[FORWARD_BODY_BAD] = "body-bad",
	[FORWARD_BODY_STALLED] = "body-stalled",
	[FORWARD_CLIENT_GONE] = "client-gone",
	[FORWARD_CUT] = "cut",
	[FORWARD_LEFT] = "left",
};

static void forward_run(struct forward *f);
static void forward_on_later(struct loop_defer *d);
static void forward_arm(struct forward *f);

static void forward_later(struct forward *f)
{
	loop_defer(f->c.loop, &f->later, forward_on_later, f);
}

/* ---- ends ---- */

static void unused_event(struct conn *c, enum conn_event ev, void *arg)
{
}

/* shutdown before close: others may hold duplicates of this socket. */
static void up_release(struct forward *f, bool reusable)
{
	struct conn *up = TAKE(f->up);

	if (!up)
		return;
	if (reusable) {
		conn_set_fn(up, unused_event, NULL);
	} else {
		shutdown(conn_fd(up), SHUT_RDWR);
		conn_free(TAKE(up));
	}
	if (f->c.released)
		f->c.released(f, up, f->c.arg);
	else
		conn_free(up);
}

static void client_close(struct forward *f, bool reset)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	if (!f->client)
		return;
	if (reset && !pair_reset(conn_fd(f->client)))
		setsockopt(conn_fd(f->client), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	conn_free(TAKE(f->client));
}

/* The last step: `end` follows from the loop. */
static void forward_over(struct forward *f, enum forward_why why)
{
	if (f->st == ST_ENDED)
		return;
	up_release(f, false);
	loop_timer_stop(&f->timer);
	f->phase = PH_NONE;
	f->st = ST_ENDED;
	f->end.why = why;
	forward_later(f);
}

/*
 * Whether a cut answer ends with an ordinary close: the framing alone shows that it is not whole,
 * and nothing is on its way (a reset takes back what the client did not get yet). Clients that ask
 * for the sandbox's health after a cut, to say that it is gone, differ in what they take for one:
 * httpcore (Python SDK 2.30) an answer that is not whole, pyqwest (2.45 to 2.51) a reset, all
 * others both. The first gives its requests a length, the second sends those of streams in chunks.
 */
static bool cut_shows(const struct forward *f)
{
	struct tcp_info i = { 0 };
	socklen_t n = sizeof(i);

	if (f->st != ST_BODY || f->mode == MODE_PLAIN || f->req.body != HTTP_BODY_LENGTH ||
	    conn_out_len(f->client) > 0)
		return false;
	return pair_idle(conn_fd(f->client)) ||
	       (getsockopt(conn_fd(f->client), IPPROTO_TCP, TCP_INFO, &i, &n) == 0 &&
		n == sizeof(i) && i.tcpi_unacked == 0 && i.tcpi_notsent_bytes == 0);
}

static void forward_break(struct forward *f, enum forward_why why)
{
	if (f->st == ST_ENDED)
		return;
	client_close(f, f->client && !cut_shows(f));
	forward_over(f, why);
}

/* The attempt failed: the user is asked, unless the client has seen some of the answer. */
static void forward_fail(struct forward *f, enum forward_why why)
{
	if (f->spoke) {
		forward_break(f, why);
		return;
	}
	up_release(f, false);
	f->st = ST_IDLE;
	f->why = why;
	f->ask_user = true;
	forward_later(f);
}

static void forward_on_later(struct loop_defer *d)
{
	struct forward *f = d->arg;

	if (f->st == ST_ENDED) {
		f->end.client = TAKE(f->client);
		if (f->end.client)
			conn_set_fn(f->end.client, unused_event, NULL);
		f->c.end(f, &f->end, f->c.arg);
		http_head_done(&f->req);
		buf_done(&f->kept);
		free(f);
		return;
	}
	if (f->ask_user) {
		f->ask_user = false;
		f->c.failed(f, f->why, f->c.arg);
		return;
	}
	forward_run(f);
}

/* The whole answer is queued. */
static void forward_finish(struct forward *f)
{
	bool reusable = f->up && f->up_keep && f->in_done && f->kept_at == buf_len(&f->kept) &&
			!f->up_dead && !conn_eof(f->up) && conn_out_len(f->up) == 0 &&
			buf_len(conn_in(f->up)) == 0;

	up_release(f, reusable);
	f->kept_ok = false;
	buf_done(&f->kept);
	f->end.why = FORWARD_OK;
	if (!f->keep || conn_eof(f->client)) {
		f->st = ST_FLUSH;
		conn_shutdown_write(f->client);
	} else if (!f->in_done) {
		f->st = ST_DRAIN;
		f->flush_left = FORWARD_DRAIN_MAX;
	} else {
		forward_over(f, FORWARD_OK);
	}
}

/* What may be queued: the conns of a server have far larger buffers than a stream should fill. */
static size_t room_of(struct conn *c)
{
	size_t room = buf_room(conn_out(c)), len = conn_out_len(c);

	if (len >= FORWARD_BUFFER_BYTES)
		return 0;
	return room < FORWARD_BUFFER_BYTES - len ? room : FORWARD_BUFFER_BYTES - len;
}

/* ---- the request's way ---- */

static void keep_bytes(struct forward *f, const char *p, size_t n)
{
	if (f->kept_ok && buf_put(&f->kept, p, n) == 0) {
		f->kept_at += n;
		return;
	}
	f->kept_ok = false;
	if (f->kept_at == buf_len(&f->kept)) {
		buf_done(&f->kept);
		f->kept_at = 0;
	}
}

static bool pump_kept(struct forward *f)
{
	size_t n = buf_len(&f->kept) - f->kept_at, room = room_of(f->up);

	if (n > room)
		n = room;
	if (n == 0 || conn_write(f->up, buf_data(&f->kept) + f->kept_at, n) < 0)
		return false;
	f->kept_at += n;
	return true;
}

static bool pump_in(struct forward *f)
{
	struct buf *in;
	enum http_error err;
	size_t n, used;
	int r;

	if (f->up_dead)
		return false;
	if (f->kept_at < buf_len(&f->kept))
		return pump_kept(f);
	if (f->in_done)
		return false;
	in = conn_in(f->client);
	n = buf_len(in);
	if (n > room_of(f->up))
		n = room_of(f->up);
	if (n == 0)
		return false;
	r = http_dec_skip(&f->in_dec, buf_data(in), n, &used, &err);
	if (r < 0) {
		forward_fail(f, FORWARD_BODY_BAD);
		return false;
	}
	f->in_done = r == 1;
	f->end.in_bytes += used;
	conn_write(f->up, buf_data(in), used);       /* an error comes as CONN_ERROR */
	keep_bytes(f, buf_data(in), used);
	buf_consume(in, used);
	f->progress = true;
	return true;
}

/* ---- the answer's way ---- */

/* Of a dead upstream: what the kernel still has. */
static void up_refill(struct forward *f)
{
	struct buf *in = conn_in(f->up);

	while (f->up_dead && buf_room(in) > 0 && buf_read_fd(in, conn_fd(f->up), buf_room(in)) > 0)
		;
}

static bool up_ended(const struct forward *f)
{
	return f->up_dead || conn_eof(f->up);
}

/* How the body goes on to this client. */
static enum mode choose_mode(const struct forward *f, const struct http_head *h)
{
	bool sized = h->body == HTTP_BODY_LENGTH || h->body == HTTP_BODY_NONE;

	if (sized)
		return MODE_RAW;
	if (f->req.minor == 0)
		return MODE_PLAIN;
	return h->body == HTTP_BODY_CHUNKED && !f->c.rechunk ? MODE_RAW : MODE_CHUNK;
}

static int put_head_end(struct forward *f, const struct http_head *h, struct buf *out)
{
	int r = 0;

	if (h->status == 101) {
		const char *proto = http_get(h, "Upgrade");

		r = http_put_field(out, "Connection", "Upgrade");
		if (r == 0 && proto)
			r = http_put_field(out, "Upgrade", proto);
		return r < 0 ? r : http_put_end(out);
	}
	if (h->status >= 200) {
		if (f->mode == MODE_RAW)
			r = http_put_framing(out, h);
		else if (f->mode == MODE_CHUNK)
			r = http_put_field(out, "Transfer-Encoding", "chunked");
		f->keep = f->req.keep_alive && f->mode != MODE_PLAIN;
		if (r == 0 && !f->keep)
			r = http_put_field(out, "Connection", "close");
		else if (r == 0 && f->req.minor == 0)
			r = http_put_field(out, "Connection", "keep-alive");
	}
	return r < 0 ? r : http_put_end(out);
}

/*
 * Queues one head for the client; FORWARD_SWALLOW when the user took it. Negative errno: it does
 * not fit.
 */
static int pass_head(struct forward *f, const struct http_head *h)
{
	enum forward_head verdict = FORWARD_PASS;
	struct buf out;
	int r = 0;

	buf_init(&out, HEAD_OUT_MAX);
	f->mode = choose_mode(f, h);
	if (f->c.head) {
		verdict = f->c.head(f, h, &out, f->c.arg);
	} else {
		r = http_put_status(&out, h->status);
		if (r == 0)
			r = http_put_forward(&out, h, NULL, NULL);
	}
	if (r == 0 && verdict == FORWARD_PASS)
		r = put_head_end(f, h, &out);
	if (r == 0 && verdict == FORWARD_PASS && f->c.silent)
		r = h->status == 101 || h->status < 200 ? 0 : -EPROTO;
	else if (r == 0 && verdict == FORWARD_PASS)
		r = conn_write(f->client, buf_data(&out), buf_len(&out));
	buf_done(&out);
	return r < 0 ? r : (int)verdict;
}

static bool interim(struct forward *f, const struct http_head *h)
{
	int r = FORWARD_PASS;

	/*
	 * 100 was answered here; HTTP/1.0 has no interim answers; more of them than fit are
	 * dropped.
	 */
	if (h->status != 100 && f->req.minor == 1 && room_of(f->client) >= HEAD_OUT_MAX)
		r = pass_head(f, h);
	if (r < 0)
		forward_fail(f, FORWARD_UPSTREAM_BAD);
	else if (r == FORWARD_SWALLOW)
		forward_fail(f, FORWARD_SWALLOWED);
	return r == FORWARD_PASS;
}

static bool final_head(struct forward *f, const struct http_head *h)
{
	int r = pass_head(f, h);

	if (r != FORWARD_PASS) {
		forward_fail(f, r < 0 ? FORWARD_UPSTREAM_BAD : FORWARD_SWALLOWED);
		return false;
	}
	f->spoke = true;
	f->end.status = h->status;
	f->kept_ok = false;
	f->up_keep = h->keep_alive && h->body != HTTP_BODY_UNTIL_CLOSE;
	http_dec_init(&f->out_dec, h, UINT64_MAX);
	f->st = h->status == 101 ? ST_TUNNEL : ST_BODY;
	f->out_done = f->st == ST_BODY && (h->body == HTTP_BODY_NONE ||
					   (h->body == HTTP_BODY_LENGTH && h->length == 0));
	return true;
}

static bool step_head(struct forward *f)
{
	struct buf *in = conn_in(f->up);
	enum http_error err;
	struct http_head h;
	ssize_t n = 0;
	bool go;

	if (room_of(f->client) < HEAD_OUT_MAX)
		return false;                        /* interim answers that are not read */
	if (buf_len(in))
		n = http_parse_response(buf_data(in), buf_len(in), f->req.method, &h, &err);
	if (n == 0) {
		if (up_ended(f))
			forward_fail(f, FORWARD_UPSTREAM_GONE);
		return false;
	}
	if (n < 0) {
		forward_fail(f, FORWARD_UPSTREAM_BAD);
		return false;
	}
	buf_consume(in, (size_t)n);
	if (h.status == 101 && !(f->req.upgrade && f->in_done)) {
		forward_fail(f, FORWARD_UPSTREAM_BAD);
		go = false;
	} else if (h.status < 200 && h.status != 101) {
		go = interim(f, &h);
	} else {
		go = final_head(f, &h);
	}
	http_head_done(&h);
	return go;
}

static int write_piece(struct forward *f, const char *p, size_t n)
{
	char line[24];
	int r;

	if (n == 0)
		return 0;
	if (f->mode == MODE_PLAIN)
		return conn_write(f->client, p, n);
	str_format(line, sizeof(line), "%zx\r\n", n);
	r = buf_puts(conn_out(f->client), line);
	if (r == 0)
		r = buf_put(conn_out(f->client), p, n);
	return r < 0 ? r : buf_puts(conn_out(f->client), "\r\n");
}

/* Decoded, and framed anew for this client. Bytes used; *ret_r as http_dec_feed. */
static size_t relay_pieces(struct forward *f, const char *p, size_t n, int *ret_r)
{
	size_t at = 0, used, n_data;
	enum http_error err;
	const char *data;

	do {
		size_t room = room_of(f->client), take = n - at;

		if (room <= 2 * CHUNK_OVERHEAD) {
			*ret_r = 0;
			break;
		}
		if (take > room - 2 * CHUNK_OVERHEAD)
			take = room - 2 * CHUNK_OVERHEAD;
		*ret_r = http_dec_feed(&f->out_dec, p + at, take, &used, &data, &n_data, &err);
		if (*ret_r >= 0)
			write_piece(f, data, n_data);
		at += used;
	} while (*ret_r == 0 && used > 0 && at < n);
	if (f->mode == MODE_CHUNK)
		conn_flush(f->client);
	return at;
}

static void answer_complete(struct forward *f)
{
	if (f->mode == MODE_CHUNK)
		conn_write(f->client, "0\r\n\r\n", 5);
	f->out_done = true;
	forward_finish(f);
}

/*
 * Closed, not shut: POLLHUP says that both of its directions have ended, while ours (`shut`) is
 * still open.
 */
static bool broke(const struct forward *f, struct conn *c, bool shut)
{
	struct pollfd p = { .fd = conn_fd(c) };

	return f->c.closed_is_broken && !shut && poll(&p, 1, 0) == 1 && (p.revents & POLLHUP);
}

static bool up_broke(const struct forward *f)
{
	return conn_eof(f->up) && broke(f, f->up, f->shut_up);
}

static bool answer_at_eof(struct forward *f)
{
	if (!up_ended(f))
		return false;
	if (f->up_dead || up_broke(f) || http_dec_eof(&f->out_dec) < 0)
		forward_break(f, FORWARD_UPSTREAM_GONE);
	else if (room_of(f->client) >= CHUNK_OVERHEAD)
		answer_complete(f);
	return false;
}

static bool pump_out(struct forward *f)
{
	struct buf *in = conn_in(f->up);
	enum http_error err;
	size_t n, used;
	int r = 0;

	if (f->out_done) {
		forward_finish(f);
		return false;
	}
	if (buf_len(in) == 0)
		up_refill(f);
	if (buf_len(in) == 0)
		return answer_at_eof(f);
	n = buf_len(in);
	if (f->mode == MODE_RAW) {
		if (n > room_of(f->client))
			n = room_of(f->client);
		r = http_dec_skip(&f->out_dec, buf_data(in), n, &used, &err);
		if (r >= 0 && used > 0)
			conn_write(f->client, buf_data(in), used);
	} else {
		used = relay_pieces(f, buf_data(in), n, &r);
	}
	if (r < 0) {
		forward_break(f, FORWARD_UPSTREAM_BAD);
		return false;
	}
	buf_consume(in, used);
	f->end.out_bytes += used;
	if (r == 1)
		answer_complete(f);
	return r == 0 && used > 0;
}

/* ---- tunnel ---- */

static bool tunnel_way(struct conn *from, struct conn *to, bool *shut, uint64_t *bytes)
{
	struct buf *in = conn_in(from);
	size_t n = buf_len(in);

	if (n == 0 && conn_eof(from) && !*shut) {
		*shut = true;
		conn_shutdown_write(to);
	}
	if (n > room_of(to))
		n = room_of(to);
	if (n == 0 || *shut || conn_write(to, buf_data(in), n) < 0)
		return false;
	buf_consume(in, n);
	*bytes += n;
	return true;
}

static bool pump_tunnel(struct forward *f)
{
	bool go;

	if (buf_len(conn_in(f->up)) == 0 && !f->shut_client && up_broke(f)) {
		forward_break(f, FORWARD_UPSTREAM_GONE);
		return false;
	}
	/* What it sent before is lost with a reset on any connection. */
	if ((conn_eof(f->client) || conn_left(f->client)) &&
	    broke(f, f->client, f->shut_client)) {
		forward_break(f, FORWARD_CLIENT_GONE);
		return false;
	}
	go = tunnel_way(f->client, f->up, &f->shut_up, &f->end.in_bytes);
	go |= tunnel_way(f->up, f->client, &f->shut_client, &f->end.out_bytes);
	f->progress |= go;
	if (f->shut_up && f->shut_client && conn_out_len(f->up) == 0 &&
	    conn_out_len(f->client) == 0) {
		client_close(f, false);
		forward_over(f, FORWARD_OK);
	}
	return go;
}

/* ---- after the answer ---- */

static void step_drain(struct forward *f)
{
	struct buf *in = conn_in(f->client);
	enum http_error err;
	size_t used;
	int r = http_dec_skip(&f->in_dec, buf_data(in), buf_len(in), &used, &err);

	buf_consume(in, used);
	f->flush_left -= used < f->flush_left ? used : f->flush_left;
	if (r == 1) {
		f->in_done = true;
		forward_over(f, FORWARD_OK);
	} else if (r < 0 || f->flush_left == 0 || conn_eof(f->client)) {
		f->st = ST_FLUSH;
		conn_shutdown_write(f->client);
	}
}

static void step_flush(struct forward *f)
{
	buf_consume(conn_in(f->client), buf_len(conn_in(f->client)));
	if (!conn_eof(f->client) || conn_out_len(f->client) > 0)
		return;
	client_close(f, false);
	forward_over(f, FORWARD_OK);
}

/* ---- time ---- */

static enum phase phase_of(const struct forward *f)
{
	switch (f->st) {
	case ST_HEAD:
		return !f->up_connected ? PH_CONNECT : !f->in_done ? PH_STALL : PH_ANSWER;
	case ST_BODY:
		return f->in_done ? PH_NONE : PH_STALL;
	case ST_TUNNEL:
		return f->shut_up || f->shut_client || conn_left(f->client) ? PH_STALL : PH_NONE;
	case ST_FLUSH:
		return conn_out_len(f->client) > 0 ? PH_FLUSH : PH_LINGER;
	case ST_DRAIN:
		return PH_LINGER;
	case ST_IDLE:
	case ST_ENDED:
		break;
	}
	return PH_NONE;
}

static void forward_on_timer(struct loop_timer *t)
{
	struct forward *f = t->arg;
	enum phase phase = f->phase;

	f->phase = PH_NONE;
	if (phase == PH_CONNECT || phase == PH_ANSWER) {
		forward_fail(f, FORWARD_TIMEOUT);
	} else if (phase == PH_STALL && f->st == ST_TUNNEL) {
		forward_break(f, FORWARD_TIMEOUT);
	} else if (phase == PH_STALL && buf_len(conn_in(f->client)) == 0) {
		forward_fail(f, FORWARD_BODY_STALLED);
	} else if (phase == PH_FLUSH && conn_out_len(f->client) == f->flush_left) {
		forward_break(f, FORWARD_CLIENT_GONE);
	} else if (phase == PH_LINGER && f->st == ST_DRAIN) {
		f->st = ST_FLUSH;
		conn_shutdown_write(f->client);
	} else if (phase == PH_LINGER) {
		client_close(f, false);
		forward_over(f, FORWARD_OK);
	}
	forward_arm(f);
}

static void forward_arm(struct forward *f)
{
	const int ms[] = {
		[PH_CONNECT] = f->c.connect_timeout_ms, [PH_STALL] = f->c.stall_timeout_ms,
		[PH_ANSWER] = f->c.head_timeout_ms,	[PH_FLUSH] = f->c.stall_timeout_ms,
		[PH_LINGER] = FORWARD_LINGER_MS,
	};
	enum phase phase = phase_of(f);
	bool again = f->progress && phase == PH_STALL;

	f->progress = false;
	if (phase == f->phase && !again)
		return;
	f->phase = phase;
	if (phase == PH_FLUSH)
		f->flush_left = conn_out_len(f->client);
	if (phase == PH_NONE || ms[phase] <= 0)
		loop_timer_stop(&f->timer);
	else
		loop_timer_set(f->c.loop, &f->timer, ms[phase], forward_on_timer, f);
}

/* ---- events ---- */

static bool forward_step(struct forward *f)
{
	bool go = false;

	if (f->st == ST_TUNNEL)
		return pump_tunnel(f);
	if (f->st == ST_HEAD || f->st == ST_BODY)
		go = pump_in(f);
	if (f->st == ST_HEAD)
		go |= step_head(f);
	if (f->st == ST_BODY)
		go |= pump_out(f);
	return go;
}

static void forward_run(struct forward *f)
{
	while (forward_step(f))
		;
	if (f->st == ST_DRAIN)
		step_drain(f);
	if (f->st == ST_FLUSH)
		step_flush(f);
	forward_arm(f);
}

static void on_client(struct conn *c, enum conn_event ev, void *arg)
{
	struct forward *f = arg;
	bool waits = f->st == ST_IDLE || f->st == ST_HEAD || f->st == ST_BODY;

	if (f->st == ST_ENDED)
		return;
	if (ev == CONN_ERROR || ((ev == CONN_EOF || ev == CONN_LEFT) && waits)) {
		client_close(f, false);
		forward_over(f, f->st == ST_FLUSH || f->st == ST_DRAIN ? FORWARD_OK
								       : FORWARD_CLIENT_GONE);
		return;
	}
	forward_run(f);
}

static void on_up(struct conn *c, enum conn_event ev, void *arg)
{
	struct forward *f = arg;

	if (c != f->up)
		return;
	f->up_connected = true;
	if (ev == CONN_ERROR) {
		if (f->st == ST_TUNNEL) {
			forward_break(f, FORWARD_UPSTREAM_GONE);
			return;
		}
		f->up_dead = true;
		up_refill(f);
	}
	forward_run(f);
}

/* ---- interface ---- */

struct forward *forward_new(const struct forward_conf *c, struct conn *client,
			    struct http_head *req)
{
	struct forward *f = x_alloc(sizeof(*f));

	assert(c->failed && c->end);
	f->c = *c;
	f->req = *req;
	*req = (struct http_head){ 0 };
	f->client = client;
	http_dec_init(&f->in_dec, &f->req, UINT64_MAX);
	f->in_done = f->req.body == HTTP_BODY_NONE ||
		     (f->req.body == HTTP_BODY_LENGTH && f->req.length == 0);
	buf_init(&f->kept, FORWARD_REPLAY_MAX);
	f->kept_ok = c->replay;
	conn_set_timeout(client, 0);
	conn_set_fn(client, on_client, f);
	if (conn_eof(client) || conn_left(client) || conn_error(client)) {
		client_close(f, false);
		forward_over(f, FORWARD_CLIENT_GONE);
	}
	return f;
}

const struct http_head *forward_req(const struct forward *f)
{
	return &f->req;
}

void forward_start(struct forward *f, struct conn *up, const void *head, size_t n)
{
	if (f->st == ST_ENDED) {
		shutdown(conn_fd(up), SHUT_RDWR);
		conn_free(up);
		if (f->c.released)
			f->c.released(f, NULL, f->c.arg);
		return;
	}
	assert(f->st == ST_IDLE && !f->up && !f->spoke);
	f->up = up;
	f->st = ST_HEAD;
	f->ask_user = false;
	f->up_connected = f->up_dead = false;
	f->kept_at = 0;
	f->up_keep = false;
	conn_set_timeout(up, 0);
	conn_set_fn(up, on_up, f);
	if (conn_write(up, head, n) < 0)
		f->up_dead = true;
	if (f->req.expect_continue && f->req.minor == 1 && !f->in_done && !f->said_continue) {
		f->said_continue = true;
		if (buf_len(conn_in(f->client)) == 0)
			conn_write(f->client, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	}
	forward_later(f);
	forward_arm(f);
}

void forward_tunnel(struct forward *f, struct conn *up)
{
	const char *proto = http_get(&f->req, "Upgrade");
	struct buf out;

	if (f->st == ST_ENDED) {
		forward_start(f, up, NULL, 0);
		return;
	}
	assert(f->st == ST_IDLE && !f->up && !f->spoke && f->req.upgrade && f->in_done && proto);
	f->up = up;
	f->up_connected = true;
	f->st = ST_TUNNEL;
	f->spoke = true;
	f->end.status = 101;
	conn_set_timeout(up, 0);
	conn_set_fn(up, on_up, f);
	buf_init(&out, HEAD_OUT_MAX);
	http_put_status(&out, 101);
	http_put_field(&out, "Connection", "Upgrade");
	http_put_field(&out, "Upgrade", proto);
	http_put_end(&out);
	if (conn_write(f->client, buf_data(&out), buf_len(&out)) < 0)
		forward_break(f, FORWARD_CLIENT_GONE);
	buf_done(&out);
	forward_later(f);
	forward_arm(f);
}

bool forward_can_retry(const struct forward *f)
{
	return f->st == ST_IDLE && !f->spoke && (f->kept_ok || f->end.in_bytes == 0);
}

static void put_reply_head(struct forward *f, struct buf *out, int status,
			   const struct http_field *extra, const char *content_type, size_t n)
{
	http_put_status(out, status);
	if (content_type)
		http_put_field(out, "Content-Type", content_type);
	if (status != 204 && status != 304)
		http_put_fieldf(out, "Content-Length", "%zu", n);
	for (; extra && extra->name; extra++)
		http_put_field(out, extra->name, extra->value);
	if (!f->keep)
		http_put_field(out, "Connection", "close");
	else if (f->req.minor == 0)
		http_put_field(out, "Connection", "keep-alive");
	http_put_end(out);
}

void forward_reply(struct forward *f, int status, const struct http_field *extra,
		   const char *content_type, const void *body, size_t n)
{
	bool has_body = status != 204 && status != 304;
	struct buf out;

	if (f->st == ST_ENDED)
		return;
	assert(f->st == ST_IDLE && !f->spoke && !f->c.silent && status >= 200);
	f->ask_user = false;
	f->keep = f->req.keep_alive && f->why != FORWARD_BODY_BAD &&
		  f->why != FORWARD_BODY_STALLED &&
		  (f->in_done || !f->req.expect_continue || f->said_continue);
	buf_init(&out, HEAD_OUT_MAX + n);
	put_reply_head(f, &out, status, extra, content_type, n);
	if (has_body && !str_eq(f->req.method, "HEAD"))
		buf_put(&out, body, n);
	f->spoke = true;
	f->end.status = status;
	if (conn_write(f->client, buf_data(&out), buf_len(&out)) < 0)
		forward_break(f, FORWARD_CLIENT_GONE);
	else
		forward_finish(f);
	buf_done(&out);
	if (f->st != ST_ENDED)
		forward_later(f);
}

void forward_leave(struct forward *f, int status)
{
	if (f->st == ST_ENDED)
		return;
	assert(f->st == ST_IDLE && !f->spoke && f->c.silent && f->in_done);
	f->ask_user = false;
	f->end.status = status;
	forward_over(f, FORWARD_LEFT);
}

void forward_cut(struct forward *f)
{
	forward_break(f, FORWARD_CUT);
}
