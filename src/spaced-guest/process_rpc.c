/* Connect, List, SendInput, CloseStdin, SendSignal, Update: calls about a command that is there. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/proc.h"
#include "spaced-guest/terminal.h"
#include "spaced-guest/text.h"

static struct proc *find(struct procs *ps, const struct selector *sel, bool ended_too)
{
	LIST_FOR(&ps->list, p, struct proc, node) {
		if (p->expired || (p->state == PROC_ENDED && !ended_too))
			continue;
		if (sel->tag[0] ? str_eq(p->tag, sel->tag) : p->pid == sel->pid)
			return p;
	}
	return NULL;
}

/* A running one is found before an ended one with the same tag or number. */
static struct proc *find_or_fail(struct req *r, const struct selector *sel, bool ended_too)
{
	struct proc *p = find(r->a->procs, sel, false);

	if (!p && ended_too)
		p = find(r->a->procs, sel, true);
	if (!p && sel->tag[0])
		connect_fail(r, CONNECT_NOT_FOUND, "process with tag '%s' not found", sel->tag);
	else if (!p)
		connect_fail(r, CONNECT_NOT_FOUND, "process with pid %d not found", sel->pid);
	return p;
}

void process_connect(struct req *r, const char *body, size_t n)
{
	struct selector sel = { 0 };
	struct err e = { 0 };
	struct reader *rd;
	struct proc *p;

	if (!connect_stream(r, body, n, &body, &n))
		return;
	if (decode_selector(body, n, &sel, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	p = find_or_fail(r, &sel, true);
	if (!p)
		return;
	if (p->n_readers >= PROCESS_READERS_MAX) {
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, "the process has %d readers already",
			     PROCESS_READERS_MAX);
		return;
	}
	rd = reader_new(p, r, false);
	if (p->state == PROC_STARTING)
		return;
	reader_start_event(rd);
	if (p->state != PROC_ENDED)
		return;
	reader_event(rd, p->end);
	connect_end(r);
	reader_free(rd);
}

void process_list(struct req *r, const char *body, size_t n)
{
	struct buf b;
	bool first = true;

	if (!connect_unary(r))
		return;
	buf_init(&b, PROCESS_MAX * (PROC_CONFIG_MAX + DECODE_TAG_MAX * 6 + 64));
	buf_puts(&b, "{\"processes\":[");
	LIST_FOR(&r->a->procs->list, p, struct proc, node) {
		if (p->state == PROC_ENDED)
			continue;
		buf_putf(&b, "%s{\"config\":%s,\"pid\":%d", first ? "" : ",", p->config, p->pid);
		first = false;
		if (p->tag) {
			buf_puts(&b, ",");
			text_member(&b, "tag", p->tag);
		}
		buf_puts(&b, "}");
	}
	buf_puts(&b, "]}");
	connect_answer_buf(r, &b);
}

static void input_gone(struct req *r)
{
	((struct input *)r->ctx)->r = NULL;      /* what was accepted is still written */
}

static const struct req_ops input_ops = { .gone = input_gone };

static void input_done(struct proc *p, struct input *in)
{
	p->input_bytes -= in->q.n;
	list_del(&in->node);
	if (in->r) {
		in->r->ops = NULL;
		connect_answer(in->r, "{}");
	}
	input_req_done(&in->q);
	free(in);
}

static void proc_write(struct proc *p)
{
	while (!list_empty(&p->inputs)) {
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
	ev_watch_set(p->a->ev, &p->in, 0);
	if (p->close_in)
		watch_close(p->a, &p->in);
}

void proc_on_input(struct ev_watch *w, uint32_t events)
{
	proc_write(CONTAINER_OF(w, struct proc, in));
}

void process_send_input(struct req *r, const char *body, size_t n)
{
	struct input *in;
	struct err e = { 0 };
	struct proc *p;

	if (!connect_unary(r))
		return;
	in = x_alloc(sizeof(*in));
	list_init(&in->node);
	if (decode_input(body, n, &in->q, &e) < 0) {
		connect_fail_err(r, &e);
	} else if ((p = find_or_fail(r, &in->q.sel, false))) {
		if (in->q.pty != p->pty)
			connect_fail(r, CONNECT_FAILED_PRECONDITION,
				     p->pty ? "the process has a terminal; send pty input"
					    : "the process has no terminal; send stdin input");
		else if (p->in.fd < 0 || p->close_in)
			connect_fail(r, CONNECT_FAILED_PRECONDITION,
				     "the stdin of the process is not open");
		else if (p->input_bytes + in->q.n > PROCESS_INPUT_MAX)
			connect_fail(r, CONNECT_RESOURCE_EXHAUSTED,
				     "the process does not read its stdin");
		else {
			in->r = r;
			r->ops = &input_ops;
			r->ctx = in;
			p->input_bytes += in->q.n;
			list_add_tail(&p->inputs, &in->node);
			proc_write(p);
			return;
		}
	}
	input_req_done(&in->q);
	free(in);
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
	p = find_or_fail(r, &sel, false);
	if (!p)
		return;
	if (p->pty) {
		connect_fail(r, CONNECT_FAILED_PRECONDITION,
			     "the stdin of a terminal cannot be closed; send Ctrl-D (0x04)");
		return;
	}
	p->close_in = true;
	if (p->in.fd >= 0)
		proc_write(p);
	connect_answer(r, "{}");
}

void process_send_signal(struct req *r, const char *body, size_t n)
{
	struct signal_req q = { 0 };
	struct err e = { 0 };
	struct proc *p;

	if (!connect_unary(r))
		return;
	if (decode_signal(body, n, &q, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	p = find_or_fail(r, &q.sel, false);
	if (!p)
		return;
	if (q.sig == SIGKILL)
		proc_kill(p);
	else if (!p->exited)
		kill(-p->pid, q.sig);
	connect_answer(r, "{}");
}

void process_update(struct req *r, const char *body, size_t n)
{
	struct update_req q = { 0 };
	struct err e = { 0 };
	struct proc *p;

	if (!connect_unary(r))
		return;
	if (decode_update(body, n, &q, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	p = find_or_fail(r, &q.sel, false);
	if (!p)
		return;
	if (!p->pty)
		connect_fail(r, CONNECT_FAILED_PRECONDITION, "the process has no terminal");
	else if (terminal_resize(p->master, q.cols, q.rows) < 0)
		connect_fail(r, CONNECT_INTERNAL, "the terminal cannot be resized");
	else
		connect_answer(r, "{}");
}
