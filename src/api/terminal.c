/*
 * One open terminal. Theory of operation.
 *
 *	OPEN -> CLOSING -> OVER
 *
 * OPEN: three hops to the sandbox: `out` is the stream of the shell (Start, or Connect for one that
 * is there); `in` has at most one SendInput under way; `size` at most one Update. CLOSING: the hops
 * are ended, our close frame is queued behind what is still to be said; the client's is awaited for
 * TERMINAL_CLOSE_MS. OVER: freed at the end of the turn, or when the look-up has ended.
 *
 * terminal_run() is the only place that moves bytes; every event of the client's connection and of
 * the hops ends there, and it tries everything each time. So nothing has to be woken by hand.
 *
 * Backpressure. Output: the hop is read only while less than TERMINAL_QUEUE_MAX waits for the client
 * and, where the client asked for a window, fewer bytes than that are not acknowledged (a browser
 * has no other way to say that it is behind: its WebSocket takes what comes). What is not read
 * stalls the stream, and so the command. Input: the client's connection is read only while less than
 * TERMINAL_INPUT_HOLD waits for the sandbox. A client with a window is told what was taken, so that
 * it can hold back by itself and its acknowledgements never stand behind input.
 *
 * What ended a stream is not told by the stream. So when it was cut, the sandbox's row is read
 * (`looking`), and the client learns whether it is paused, stopped, gone, or just not reached.
 */
#include "api/terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "api/terminal_frames.h"
#include "api/terminal_hop.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define TAG_PREFIX "terminal."
#define HEAD_MAX 1024

enum terminal_state { OPEN, CLOSING, OVER };
enum size_due { SIZE_NONE, SIZE_SET, SIZE_JIGGLE };      /* JIGGLE: another size first; SET follows */

struct terminal {
	struct list node;
	struct api *api;
	struct frames client;
	enum terminal_state st;
	struct terminal_ask ask;
	char sandbox[ID_SANDBOX_LEN + 1], tenant[ID_TENANT_MAX + 1];
	char req_id[API_REQ_ID_MAX + 1];
	bool attach, started, lost, shut;
	uint32_t pid;
	struct hop out, in, size;
	size_t in_flight;                /* bytes at the front of the client's input that are on their way */
	enum size_due size_due;
	uint64_t unacked;
	uint64_t out_bytes;
	int64_t start_ms;
	size_t backlog;                  /* waiting for the client at the last ping */
	struct loop_timer timer, again;
	struct loop_defer gone;
	/* the look-up's */
	bool looking;
	enum life_state found;
	struct err found_err;
};

static void terminal_run(void *arg);
static void look(struct terminal *t);

/* ---- the end ---- */

static void terminal_free(struct terminal *t)
{
	list_del(&t->node);
	free(t);
}

static void on_gone(struct loop_defer *d)
{
	struct terminal *t = d->arg;

	/* Else its job ends it; when the program ends, that was dropped or is done. */
	if (!t->looking || t->api->stopping)
		terminal_free(t);
}

static void terminal_over(struct terminal *t)
{
	if (t->st == OVER)
		return;
	log_info("terminal", F_REQ(t->req_id), F_STR("tenant", t->tenant),
		 F_STR("sandbox", t->sandbox), F_UINT("pid", t->pid),
		 F_INT("code", wslay_event_get_status_code_sent(t->client.ctx)),
		 F_UINT("in", t->client.in_bytes),
		 F_UINT("out", t->out_bytes), F_INT("ms", clock_mono_ms() - t->start_ms));
	t->st = OVER;
	hop_done(&t->out);
	hop_done(&t->in);
	hop_done(&t->size);
	frames_done(&t->client);
	loop_timer_stop(&t->timer);
	loop_timer_stop(&t->again);
	t->api->n_terminals--;
	loop_defer(t->api->loop, &t->gone, on_gone, t);
}

static void on_close_timer(struct loop_timer *timer)
{
	terminal_over(timer->arg);
}

static void set_closing(struct terminal *t)
{
	if (t->st != OPEN)
		return;
	t->st = CLOSING;
	hop_done(&t->out);
	hop_done(&t->in);
	hop_done(&t->size);
	loop_timer_set(t->api->loop, &t->timer, TERMINAL_CLOSE_MS, on_close_timer, t);
}

static void terminal_close(struct terminal *t, uint16_t code, const char *reason)
{
	if (t->st != OPEN)
		return;
	frames_close(&t->client, code, reason);
	set_closing(t);
}

/* ---- to the client ---- */

static void say(struct terminal *t, json_t *v)
{
	autofree char *text = json_dumps(v, JSON_COMPACT | JSON_ENSURE_ASCII);

	json_decref(v);
	if (text)
		frames_put(&t->client, WSLAY_TEXT_FRAME, text, strlen(text));
}

static void say_error(struct terminal *t, const char *code, const char *message)
{
	json_t *v = json_pack("{s:s,s:s,s:s}", "type", "error", "code", code, "message",
			      str_utf8_ok(message, strlen(message)) ? message : "");

	if (v)
		say(t, v);
}

static void terminal_fail(struct terminal *t, uint16_t close, const char *code, const char *message)
{
	say_error(t, code, message);
	terminal_close(t, close, code);
}

static bool write_out(struct terminal *t)
{
	if (frames_write(&t->client))
		return true;
	terminal_over(t);
	return false;
}

/* ---- from the client ---- */

static void take_message(void *arg, const void *p, size_t n)
{
	struct terminal *t = arg;
	struct terminal_message m;
	struct err e = { 0 };

	if (terminal_message(p, n, &m, &e) < 0) {
		terminal_fail(t, TERMINAL_CLOSE_MESSAGE, "bad-message", e.text);
		return;
	}
	switch (m.kind) {
	case TERMINAL_RESIZE:
		t->ask.cols = m.cols;
		t->ask.rows = m.rows;
		if (t->size_due == SIZE_NONE)
			t->size_due = SIZE_SET;
		break;
	case TERMINAL_REDRAW:
		t->size_due = SIZE_JIGGLE;
		break;
	case TERMINAL_ACK:
		if (m.bytes > t->unacked)
			terminal_fail(t, TERMINAL_CLOSE_MESSAGE, "bad-message",
				      "More was acknowledged than was sent.");
		else
			t->unacked -= m.bytes;
		break;
	case TERMINAL_PING:
		say(t, json_pack("{s:s}", "type", "pong"));
		break;
	}
}

static bool read_in(struct terminal *t)
{
	enum frames_state client = frames_read(&t->client);

	if (client == FRAMES_GONE)
		terminal_over(t);
	else if (client == FRAMES_CLOSING)
		set_closing(t);
	return client != FRAMES_GONE;
}

/* ---- to the sandbox ---- */

static json_t *selector(const struct terminal *t)
{
	autofree char *tag = NULL;

	if (!t->ask.session[0])
		return json_pack("{s:I}", "pid", (json_int_t)t->ask.pid);
	tag = x_asprintf(TAG_PREFIX "%s", t->ask.session);
	return json_pack("{s:s}", "tag", tag);
}

static json_t *pty_size(uint16_t cols, uint16_t rows)
{
	return json_pack("{s:{s:i,s:i}}", "size", "cols", (int)cols, "rows", (int)rows);
}

static int send_call(struct terminal *t, struct hop *h, const char *method, json_t *body /* taken */,
		     struct err *e)
{
	const struct hop_ask q = {
		.sandbox = t->sandbox,
		.method = method,
		.user = h == &t->out ? t->ask.user : "",
		.req_id = t->req_id,
		.stream = h == &t->out,
		.body = body,
	};
	int r = hop_send(h, &q, e);

	json_decref(body);
	return r;
}

/* As the SDKs start a terminal: a login shell of the user, interactive. */
static json_t *start_body(const struct terminal *t)
{
	autofree char *tag = x_asprintf(TAG_PREFIX "%s", t->ask.session);

	return json_pack("{s:{s:s,s:[s,s],s:{s:s,s:s,s:s}},s:o,s:s}", "process", "cmd", "/bin/bash",
			 "args", "-i", "-l", "envs", "TERM", "xterm-256color", "COLORTERM",
			 "truecolor", "LANG", "C.UTF-8", "pty",
			 pty_size(t->ask.cols, t->ask.rows), "tag", tag);
}

static void begin(struct terminal *t)
{
	struct err e = { 0 };
	int r;

	t->attach = t->ask.pid || t->ask.session[0];
	if (t->attach) {
		r = send_call(t, &t->out, "Connect", json_pack("{s:o}", "process", selector(t)),
			      &e);
	} else {
		r = str_random_hex(t->ask.session, TERMINAL_SESSION_BYTES);
		if (r == 0)
			r = send_call(t, &t->out, "Start", start_body(t), &e);
	}
	if (r < 0)
		terminal_fail(t, TERMINAL_CLOSE_LOST, "connection-lost",
			      "The server cannot reach the sandbox now.");
}

/* ---- output ---- */

static void take_failed(struct terminal *t, const struct terminal_event *ev)
{
	if (str_eq(ev->error, "not_found") && t->attach)
		terminal_fail(t, TERMINAL_CLOSE_SHELL_GONE, "shell-gone",
			      "That shell is not there any more.");
	else if (str_eq(ev->error, "resource_exhausted"))
		terminal_fail(t, TERMINAL_CLOSE_LIMIT, "limit-reached", ev->text);
	else
		terminal_fail(t, WSLAY_CODE_INTERNAL_SERVER_ERROR, "shell-failed", ev->text);
}

static void take_start(struct terminal *t, const struct terminal_event *ev)
{
	json_t *v = json_pack("{s:s,s:I}", "type", "attached", "pid", (json_int_t)ev->pid);

	t->pid = ev->pid;
	t->started = true;
	if (t->ask.session[0])
		json_object_set_new(v, "session", json_string(t->ask.session));
	say(t, v);
	if (t->attach && t->size_due == SIZE_NONE)
		t->size_due = SIZE_SET;          /* its last client may have had another window */
}

static void take_end(struct terminal *t, const struct terminal_event *ev)
{
	say(t, ev->code < 0 ? json_pack("{s:s,s:s}", "type", "exit", "signal", ev->signal)
			    : json_pack("{s:s,s:i}", "type", "exit", "code", ev->code));
	terminal_close(t, WSLAY_CODE_NORMAL_CLOSURE, "exit");
}

static void take_event(struct terminal *t, const struct terminal_event *ev)
{
	switch (ev->kind) {
	case TERMINAL_EV_OTHER:
		break;
	case TERMINAL_EV_START:
		take_start(t, ev);
		break;
	case TERMINAL_EV_DATA:
		frames_put(&t->client, WSLAY_BINARY_FRAME, ev->data, ev->len);
		t->out_bytes += ev->len;
		t->unacked += t->ask.window ? ev->len : 0;
		break;
	case TERMINAL_EV_END:
		take_end(t, ev);
		break;
	case TERMINAL_EV_FAILED:
		take_failed(t, ev);
		break;
	case TERMINAL_EV_LAST:
		look(t);                         /* an end that nobody said */
		break;
	}
}

/* The word of an error of the sandbox. */
static const char *word_of(int r)
{
	return r == -EBADMSG ? "sandbox-protocol" : r == -EINVAL ? "not-a-terminal" : "shell-failed";
}

static void out_failed(struct terminal *t, int r, const struct err *e)
{
	int status = t->out.status;

	if (r == -ECONNRESET ||
	    (r == -EREMOTEIO && (status == 404 || (status >= 502 && status <= 504))))
		look(t);
	else if (r == -EREMOTEIO && status == 429)
		terminal_fail(t, TERMINAL_CLOSE_LIMIT, "limit-reached", e->text);
	else
		terminal_fail(t, WSLAY_CODE_INTERNAL_SERVER_ERROR, word_of(r), e->text);
}

static bool client_has_room(const struct terminal *t)
{
	return frames_room(&t->client) && (!t->ask.window || t->unacked < t->ask.window);
}

static void pump_out(struct terminal *t)
{
	struct terminal_event ev;
	struct hop_message m;
	struct err e = { 0 };
	int r = 1;

	while (r > 0 && t->st == OPEN && !t->lost && write_out(t) && client_has_room(t)) {
		r = hop_next(&t->out, &m, &e);
		if (r > 0) {
			r = terminal_event(m.p, m.n, m.last, &ev, &e);
			if (r == 0) {
				take_event(t, &ev);
				terminal_event_done(&ev);
				r = 1;
			}
		}
		if (r < 0)
			out_failed(t, r, &e);
	}
}

/* ---- input, size ---- */

static void pump_in(struct terminal *t)
{
	struct buf *input = &t->client.input;
	char b64[STR_B64_LEN(TERMINAL_SEND_MAX) + 1];
	struct err e = { 0 };
	int r = t->in.st == HOP_IDLE ? 0 : hop_answer(&t->in, &e);

	if (t->in_flight && t->in.st == HOP_IDLE) {
		if (r < 0)               /* no reason to end: the stream tells what is */
			say_error(t, "input-lost", e.text);
		if (t->ask.window)
			say(t, json_pack("{s:s,s:I}", "type", "taken", "bytes",
					 (json_int_t)t->in_flight));
		buf_consume(input, t->in_flight);
		t->in_flight = 0;
	}
	if (!t->started || t->lost || t->in.st != HOP_IDLE || buf_len(input) == 0)
		return;
	t->in_flight = buf_len(input) < TERMINAL_SEND_MAX ? buf_len(input) : TERMINAL_SEND_MAX;
	str_b64(b64, buf_data(input), t->in_flight);
	r = send_call(t, &t->in, "SendInput",
		      json_pack("{s:o,s:{s:s}}", "process", selector(t), "input", "pty", b64), &e);
	if (r < 0)
		terminal_fail(t, TERMINAL_CLOSE_LOST, "connection-lost", e.text);
}

static void on_again(struct loop_timer *timer)
{
	struct terminal *t = timer->arg;

	t->size_due = SIZE_SET;
	terminal_run(t);
}

static void send_size(struct terminal *t, uint16_t cols, uint16_t rows)
{
	struct err e = { 0 };

	/* A size that did not arrive is no reason to end: the stream tells what is. */
	send_call(t, &t->size, "Update",
		  json_pack("{s:o,s:o}", "process", selector(t), "pty", pty_size(cols, rows)), &e);
}

static void pump_size(struct terminal *t)
{
	uint16_t rows = t->ask.rows;
	struct err e = { 0 };

	if (t->size.st != HOP_IDLE)
		hop_answer(&t->size, &e);
	if (!t->started || t->lost || t->size.st != HOP_IDLE || t->size_due == SIZE_NONE)
		return;
	if (t->size_due == SIZE_JIGGLE) {
		/* The program must see it before the true size is back, or it has no reason to draw. */
		send_size(t, t->ask.cols, rows > 1 ? rows - 1 : rows + 1);
		loop_timer_set(t->api->loop, &t->again, TERMINAL_JIGGLE_MS, on_again, t);
	} else {
		send_size(t, t->ask.cols, rows);
	}
	t->size_due = SIZE_NONE;
}

/* ---- what became of the sandbox ---- */

static void look_run(void *arg)
{
	struct terminal *t = arg;
	struct store *s = api_store(t->api, &t->found_err);
	struct store_sandbox b = { 0 };

	if (!s || store_sandbox_get(s, t->sandbox, t->tenant, &b, &t->found_err) < 0)
		return;
	t->found = b.observed;
	store_sandbox_done(&b);
}

static void say_found(struct terminal *t)
{
	bool gone = t->found_err.num == -ENOENT;

	if (t->found_err.num == 0 && (t->found == LIFE_PAUSED || t->found == LIFE_PAUSING))
		terminal_fail(
			t, TERMINAL_CLOSE_PAUSED, "sandbox-paused",
			"The sandbox is paused; its shell waits. Resume it and connect again.");
	else if (gone || (t->found_err.num == 0 &&
			  (t->found == LIFE_DELETING || t->found == LIFE_FAILED)))
		terminal_fail(t, TERMINAL_CLOSE_ENDED, "sandbox-gone",
			      "The sandbox is not there any more.");
	else if (t->found_err.num == 0 && (t->found == LIFE_STOPPED || t->found == LIFE_STOPPING))
		terminal_fail(t, TERMINAL_CLOSE_ENDED, "sandbox-stopped",
			      "The sandbox has stopped; its files are kept. Start it to go on.");
	else
		terminal_fail(t, TERMINAL_CLOSE_LOST, "connection-lost",
			      "The connection to the sandbox was lost. Connect again.");
}

static void look_done(void *arg)
{
	struct terminal *t = arg;

	t->looking = false;
	if (t->st == OVER) {
		terminal_free(t);
		return;
	}
	say_found(t);
	terminal_run(t);
}

static void look(struct terminal *t)
{
	if (t->lost)
		return;
	t->lost = true;
	hop_done(&t->out);
	t->looking = true;
	if (work_add(t->api->quick, NULL, look_run, look_done, t) == 0)
		return;
	t->looking = false;
	t->found_err.num = -EAGAIN;
	say_found(t);
}

/* ---- the driver ---- */

static void terminal_run(void *arg)
{
	struct terminal *t = arg;

	if (t->st == OVER || !read_in(t))
		return;
	if (t->st == OPEN)
		pump_out(t);
	if (t->st == OPEN)
		pump_in(t);
	if (t->st == OPEN)
		pump_size(t);
	if (t->st == OVER || !write_out(t))
		return;
	if (t->st == CLOSING && !t->shut && wslay_event_get_close_sent(t->client.ctx)) {
		t->shut = true;
		conn_shutdown_write(t->client.conn);     /* then the client closes, or the timer does */
	}
}

static void on_ws(struct conn *c, enum conn_event ev, void *arg)
{
	terminal_run(arg);
}

/*
 * A client is alive when it answers, or when it takes some of what waits for it. One that we do not
 * read is not blamed; when it is gone, writing to it fails.
 */
static void on_ping_timer(struct loop_timer *timer)
{
	struct terminal *t = timer->arg;
	size_t waits = conn_out_len(t->client.conn);

	if ((t->backlog > 0 && waits != t->backlog) || frames_held(&t->client))
		t->client.alive_ms = clock_mono_ms();
	t->backlog = waits;
	if (clock_mono_ms() - t->client.alive_ms > TERMINAL_DEAD_MS) {
		terminal_over(t);
		return;
	}
	if (wslay_event_get_queued_msg_count(t->client.ctx) <= TERMINAL_PONGS_MAX)
		frames_put(&t->client, WSLAY_PING, "", 0);
	loop_timer_set(t->api->loop, &t->timer, TERMINAL_PING_MS, on_ping_timer, t);
	terminal_run(t);
}

/* ---- the beginning ---- */

static void put_hello(struct terminal *t, const struct terminal_hello *hello)
{
	struct buf b;

	buf_init(&b, HEAD_MAX);
	http_put_status(&b, 101);
	http_put_field(&b, "Upgrade", "websocket");
	http_put_field(&b, "Connection", "Upgrade");
	http_put_field(&b, "Sec-WebSocket-Accept", hello->accept);
	if (hello->protocol)
		http_put_field(&b, "Sec-WebSocket-Protocol", TERMINAL_PROTOCOL);
	http_put_field(&b, "X-Request-Id", t->req_id);
	http_put_end(&b);
	conn_write(t->client.conn, buf_data(&b), buf_len(&b));
	buf_done(&b);
}

static struct terminal *terminal_new(const struct call *c, const struct terminal_ask *ask)
{
	struct terminal *t = x_alloc(sizeof(*t));

	if (frames_init(&t->client, take_message, t) < 0) {
		free(t);
		return NULL;
	}
	t->api = c->api;
	t->ask = *ask;
	str_copy(t->sandbox, sizeof(t->sandbox), c->id);
	str_copy(t->tenant, sizeof(t->tenant), c->tenant);
	str_copy(t->req_id, sizeof(t->req_id), c->req_id);
	t->start_ms = clock_mono_ms();
	hop_init(&t->out, t->api, terminal_run, t);
	hop_init(&t->in, t->api, terminal_run, t);
	hop_init(&t->size, t->api, terminal_run, t);
	list_add_tail(&t->api->terminals, &t->node);
	t->api->n_terminals++;
	return t;
}

void terminal_open(struct call *c, const struct terminal_hello *hello,
		   const struct terminal_ask *ask)
{
	struct terminal *t = terminal_new(c, ask);
	struct err e = { 0 };
	struct http_head h;

	if (!t) {
		err_set(&e, -ENOMEM, "There is no memory for a terminal.");
		call_error(c, &e);
		return;
	}
	t->client.conn = http_req_take(c->req, &h);      /* c is gone */
	http_head_done(&h);
	if (!t->client.conn) {
		terminal_over(t);
		return;
	}
	conn_set_fn(t->client.conn, on_ws, t);
	put_hello(t, hello);
	loop_timer_set(t->api->loop, &t->timer, TERMINAL_PING_MS, on_ping_timer, t);
	begin(t);
	conn_kick(t->client.conn);       /* frames may have come with the handshake */
	terminal_run(t);
}

void terminal_clear(struct api *a)
{
	LIST_FOR_SAFE(&a->terminals, t, struct terminal, node) {
		if (t->st == OVER) {
			terminal_free(t);        /* its look-up was dropped */
			continue;
		}
		terminal_close(t, WSLAY_CODE_GOING_AWAY, "the server ends");
		if (write_out(t))
			terminal_over(t);
	}
	while (!list_empty(&a->terminals))
		loop_turn(a->loop, 0);
}
