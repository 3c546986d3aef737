/*
 * SendInput, StreamInput, CloseStdin: bytes for the stdin or the terminal of a command.
 *
 * What was accepted waits in the inputs of the command, in the order in which it came, whoever
 * sent it, and is written as the command reads. A SendInput is answered when its bytes are
 * written. A StreamInput has one message there at most: while that waits, its sender gets no
 * credit (req_hold), so that a command that does not read makes its client wait. Bytes that were
 * accepted are written even when their sender has gone; a message that did not come whole is not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/envelope.h"
#include "spaced-guest/proc.h"

struct instream {
	struct req *r;
	struct envelopes in;
	uint64_t proc;                           /* its serial, 0 = no start message yet */
	struct input *waiting;
	bool running;                            /* instream_run is in progress */
	bool ended;                              /* the client will send no more */
	struct ev_timer later, deadline;
};

static void instream_written(struct instream *s);

/* ---- the inputs of a command ---- */

static void input_free(struct input *in)
{
	list_del(&in->node);
	input_req_done(&in->q);
	free(in);
}

static void input_done(struct proc *p, struct input *in)
{
	struct instream *s = in->stream;

	p->input_bytes -= in->q.n;
	if (in->r) {
		in->r->ops = NULL;
		connect_answer(in->r, "{}");
	}
	input_free(in);
	if (s)
		instream_written(s);
}

void inputs_fail(struct proc *p, enum connect_code code, const char *text)
{
	while (!list_empty(&p->inputs)) {
		struct input *in = CONTAINER_OF(p->inputs.next, struct input, node);

		if (in->r) {
			in->r->ops = NULL;
			connect_fail(in->r, code, "%s", text);
		}
		if (in->stream) {
			in->stream->waiting = NULL;
			connect_fail(in->stream->r, code, "%s", text);
		}
		input_free(in);
	}
	p->input_bytes = 0;
	watch_close(p->a, &p->in);
}

static void proc_write(struct proc *p)
{
	while (p->in.fd >= 0 && !list_empty(&p->inputs)) {
		struct input *in = CONTAINER_OF(p->inputs.next, struct input, node);
		ssize_t n = in->q.n > in->off
				    ? write(p->in.fd, in->q.data + in->off, in->q.n - in->off)
				    : 0;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			ev_watch_set(p->a->ev, &p->in, EPOLLOUT);
			return;
		}
		if (n < 0) {
			inputs_fail(p, CONNECT_FAILED_PRECONDITION,
				    "the process has closed its stdin");
			return;
		}
		in->off += (size_t)n;
		if (in->off >= in->q.n)
			input_done(p, in);
	}
	if (p->in.fd < 0)
		return;
	ev_watch_set(p->a->ev, &p->in, 0);
	if (p->close_in)
		watch_close(p->a, &p->in);
}

void proc_on_input(struct ev_watch *w, uint32_t events)
{
	proc_write(CONTAINER_OF(w, struct proc, in));
}

/* Takes the bytes of q; NULL = answered. Whoever calls it sets who waits, then calls proc_write. */
static struct input *input_accept(struct req *r, struct proc *p, struct input_req *q)
{
	struct input *in;

	if (q->pty != p->pty)
		connect_fail(r, CONNECT_FAILED_PRECONDITION,
			     p->pty ? "the process has a terminal; send pty input"
				    : "the process has no terminal; send stdin input");
	else if (p->in.fd < 0 || p->close_in)
		connect_fail(r, CONNECT_FAILED_PRECONDITION,
			     "the stdin of the process is not open");
	else if (p->input_bytes + q->n > PROCESS_INPUT_MAX)
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, "the process does not read its stdin");
	else if (q->n > REQ_SMALL && req_crowded(r))
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, REQ_CROWDED_TEXT);
	if (r->finished)
		return NULL;
	activity_note(r->a, ACTIVITY_INPUT);
	in = x_alloc(sizeof(*in));
	in->q = *q;
	*q = (struct input_req){ 0 };
	p->input_bytes += in->q.n;
	list_init(&in->node);
	list_add_tail(&p->inputs, &in->node);
	return in;
}

/* ---- SendInput, CloseStdin ---- */

static void input_gone(struct req *r)
{
	((struct input *)r->ctx)->r = NULL;
}

static const struct req_ops input_ops = { .gone = input_gone };

void process_send_input(struct req *r, const char *body, size_t n)
{
	struct input_req q = { 0 };
	struct err e = { 0 };
	struct input *in;
	struct proc *p;

	if (!connect_unary(r))
		return;
	if (decode_input(body, n, &q, &e) < 0) {
		connect_fail_err(r, &e);
	} else if ((p = proc_find_or_fail(r, &q.sel, false)) && (in = input_accept(r, p, &q))) {
		in->r = r;
		r->ops = &input_ops;
		r->ctx = in;
		proc_write(p);
	}
	input_req_done(&q);
}

void process_close_stdin(struct req *r, const char *body, size_t n)
{
	struct selector sel = { 0 };
	struct err e = { 0 };
	struct proc *p;

	if (!connect_unary(r))
		return;
	if (decode_selector(body, n, &sel, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	p = proc_find_or_fail(r, &sel, false);
	if (!p)
		return;
	if (p->pty) {
		connect_fail(r, CONNECT_FAILED_PRECONDITION,
			     "the stdin of a terminal cannot be closed; send Ctrl-D (0x04)");
		return;
	}
	p->close_in = true;
	proc_write(p);
	connect_answer(r, "{}");
}

/* ---- StreamInput ---- */

static struct proc *by_serial(struct procs *ps, uint64_t serial)
{
	LIST_FOR(&ps->list, p, struct proc, node)
		if (p->serial == serial && p->state != PROC_ENDED)
			return p;
	return NULL;
}

static void on_message(struct instream *s, const char *body, size_t n)
{
	enum stream_input what;
	struct input_req q = { 0 };
	struct err e = { 0 };
	struct proc *p;

	if (decode_stream_input(body, n, &what, &q, &e) < 0) {
		connect_fail_err(s->r, &e);
	} else if (what == STREAM_INPUT_START && s->proc) {
		connect_fail(s->r, CONNECT_INVALID_ARGUMENT, "there is one start message only");
	} else if (what == STREAM_INPUT_START) {
		p = proc_find_or_fail(s->r, &q.sel, false);
		s->proc = p ? p->serial : 0;
	} else if (!s->proc) {
		connect_fail(s->r, CONNECT_INVALID_ARGUMENT,
			     "the first message must be a start message");
	} else if (what == STREAM_INPUT_DATA) {
		p = by_serial(s->r->a->procs, s->proc);
		if (!p)
			connect_fail(s->r, CONNECT_FAILED_PRECONDITION, "the process has ended");
		else
			s->waiting = input_accept(s->r, p, &q);
		if (s->waiting) {
			s->waiting->stream = s;
			proc_write(p);
		}
	}
	input_req_done(&q);
}

static void at_end(struct instream *s)
{
	if (!envelopes_empty(&s->in)) {
		connect_fail(s->r, CONNECT_INVALID_ARGUMENT, "the last message is cut short");
	} else if (!s->proc) {
		connect_fail(s->r, CONNECT_INVALID_ARGUMENT, "there is no start message");
	} else {
		connect_begin(s->r);
		connect_event(s->r, "{}", 2);
		connect_end(s->r);
	}
}

/* Goes on until a message has to wait, or more must come. */
static void instream_run(struct instream *s)
{
	struct err e = { 0 };
	const char *msg;
	size_t n;
	int r = 1;

	s->running = true;
	while (!s->r->finished && !s->waiting && r > 0) {
		r = envelopes_next(&s->in, &msg, &n, &e);
		if (r < 0)
			connect_fail_err(s->r, &e);
		if (r <= 0)
			break;
		on_message(s, msg, n);
		envelopes_take(&s->in, n);
	}
	s->running = false;
	s->r->extra = buf_held(&s->in.in);
	if (!s->r->finished && !s->waiting && s->ended)
		at_end(s);
	req_hold(s->r, s->waiting && !s->r->finished);
}

static void instream_later(struct ev_timer *t)
{
	instream_run(CONTAINER_OF(t, struct instream, later));
}

/* Not from here: the caller is in the middle of the inputs of the command. */
static void instream_written(struct instream *s)
{
	s->waiting = NULL;
	if (!s->running)
		ev_timer_set(s->r->a->ev, &s->later, 0);
}

static int instream_body(struct req *r, const char *p, size_t n)
{
	struct instream *s = r->ctx;

	int ret = envelopes_put(&s->in, p, n);

	r->extra = buf_held(&s->in.in);
	if (ret < 0)
		connect_fail(r, CONNECT_INTERNAL, "more came than there is credit for");
	else if (r->extra > MUX_CREDIT_INITIAL && req_crowded(r))
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, REQ_CROWDED_TEXT);
	else if (!s->waiting)
		instream_run(s);
	return r->finished ? -EPIPE : 0;
}

static void instream_body_end(struct req *r)
{
	struct instream *s = r->ctx;

	s->ended = true;
	if (!s->waiting)
		instream_run(s);
}

static void instream_gone(struct req *r)
{
	struct instream *s = r->ctx;

	if (s->waiting)
		s->waiting->stream = NULL;
	envelopes_done(&s->in);
	ev_timer_del(&s->later);
	ev_timer_del(&s->deadline);
	free(s);
}

static const struct req_ops instream_ops = {
	.body = instream_body,
	.body_end = instream_body_end,
	.gone = instream_gone,
};

static void on_deadline(struct ev_timer *t)
{
	struct instream *s = CONTAINER_OF(t, struct instream, deadline);

	connect_fail(s->r, CONNECT_DEADLINE_EXCEEDED, "the time of this call is over");
}

void process_stream_input(struct req *r)
{
	const char *encoding = http_get(&r->head, "Content-Encoding");
	struct instream *s;

	if (!connect_stream_head(r))
		return;
	if (encoding && !str_ieq(encoding, "identity")) {
		connect_fail(r, CONNECT_UNIMPLEMENTED, "the content encoding must be identity");
		return;
	}
	s = x_alloc(sizeof(*s));
	s->r = r;
	envelopes_init(&s->in, DECODE_BODY_MAX, MUX_CREDIT_INITIAL + MUX_PAYLOAD_MAX);
	ev_timer_init(&s->later, instream_later);
	ev_timer_init(&s->deadline, on_deadline);
	if (connect_timeout_ms(r))
		ev_timer_set(r->a->ev, &s->deadline, connect_timeout_ms(r));
	r->ops = &instream_ops;
	r->ctx = s;
}
