/* Connect, List, SendSignal, Update: calls about a command that is there. */
#include <limits.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/proc.h"
#include "spaced-guest/terminal.h"
#include "spaced-guest/text.h"

#define LIST_WHOLE_MAX (4 << 20)         /* bytes of configs; beyond, commands are shown by name */

/* One that runs is found before one that has exited and still has output, else the newest. */
static struct proc *find(struct procs *ps, const struct selector *sel, bool ended_too)
{
	struct proc *found = NULL;

	LIST_FOR(&ps->list, p, struct proc, node) {
		if (p->expired || (p->state == PROC_ENDED && !ended_too))
			continue;
		if (!(sel->tag[0] ? str_eq(p->tag, sel->tag) : p->pid == sel->pid))
			continue;
		found = p;
		if (!p->exited)
			break;
	}
	return found;
}

/* A running one is found before an ended one with the same tag or number. */
struct proc *proc_find_or_fail(struct req *r, const struct selector *sel, bool ended_too)
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
	p = proc_find_or_fail(r, &sel, true);
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

/* With all its arguments and environment, as long as the answer has room for that. */
static void list_one(struct buf *b, const struct proc *p, bool first, size_t whole)
{
	buf_puts(b, first ? "{\"config\":" : ",{\"config\":");
	if (buf_len(b) + strlen(p->config) < whole) {
		buf_puts(b, p->config);
	} else {
		buf_puts(b, "{\"cmd\":");
		text_json(b, p->name, strnlen(p->name, PATH_MAX));
		buf_puts(b, "}");
	}
	buf_putf(b, ",\"pid\":%d", p->pid);
	if (p->tag) {
		buf_puts(b, ",");
		text_member(b, "tag", p->tag);
	}
	buf_puts(b, "}");
}

void process_list(struct req *r, const char *body, size_t n)
{
	struct err e = { 0 };
	bool first = true;
	size_t whole;
	struct buf b;

	if (!connect_unary(r))
		return;
	if (decode_nothing(body, n, &e) < 0) {
		connect_fail_err(r, &e);
		return;
	}
	whole = req_crowded(r) ? REQ_SMALL : LIST_WHOLE_MAX;
	buf_init(&b, REQ_ANSWER_MAX);
	buf_puts(&b, "{\"processes\":[");
	LIST_FOR(&r->a->procs->list, p, struct proc, node) {
		if (p->state == PROC_ENDED)
			continue;
		list_one(&b, p, first, whole);
		first = false;
	}
	buf_puts(&b, "]}");
	connect_answer_buf(r, &b);
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
	p = proc_find_or_fail(r, &q.sel, false);
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
	p = proc_find_or_fail(r, &q.sel, false);
	if (!p)
		return;
	if (!p->pty)
		connect_fail(r, CONNECT_FAILED_PRECONDITION, "the process has no terminal");
	else if (terminal_resize(p->master, q.cols, q.rows) < 0)
		connect_fail(r, CONNECT_INTERNAL, "the terminal cannot be resized");
	else
		connect_answer(r, "{}");
}
