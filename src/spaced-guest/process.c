#include "spaced-guest/proc.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/spawn.h"

#define READS_IN_A_TURN 4 /* chunks of one pipe before others have their turn */
#define TTY_QUIET_MS 30	  /* a terminal's last bytes come by a kernel worker */
#define TTY_QUIET_ROUNDS 100
#define COALESCE_MS 2	   /* output that comes again so soon is gathered, see on_source */
#define SWEEP_AGAIN_MS 100 /* a cgroup is empty a moment after its last process was reaped */

static void source_close(struct source *s);
static void proc_try_end(struct proc *p);
static void proc_sweep(struct proc *p);

/* ---- the table ---- */

static bool sweep_all(struct procs *ps)
{
	bool left = false;

	LIST_FOR_SAFE(&ps->list, p, struct proc, node) {
		left |= p->state == PROC_ENDED && p->cgroup;
		proc_sweep(p);
	}
	return left;
}

static void on_again(struct ev_timer *t)
{
	sweep_all(CONTAINER_OF(t, struct procs, again));
}

struct procs *procs_new(struct agent *a)
{
	struct procs *ps = x_alloc(sizeof(*ps));

	ps->a = a;
	list_init(&ps->list);
	ev_timer_init(&ps->again, on_again);
	return ps;
}

void watch_close(struct agent *a, struct ev_watch *w)
{
	if (w->fd < 0)
		return;
	ev_watch_set(a->ev, w, 0);
	close(w->fd);
	w->fd = -1;
}

void reader_free(struct reader *rd)
{
	rd->r->ops = NULL;
	rd->r->ctx = NULL;
	list_del(&rd->node);
	rd->p->n_readers--;
	ev_timer_del(&rd->keepalive);
	ev_timer_del(&rd->deadline);
	free(rd);
}

void proc_free(struct proc *p)
{
	struct procs *ps = p->a->procs;

	LIST_FOR_SAFE(&p->readers, rd, struct reader, node) {
		connect_end_error(rd->r, CONNECT_CANCELED, "the agent ends");
		reader_free(rd);
	}
	inputs_fail(p, CONNECT_FAILED_PRECONDITION, "the process has ended");
	source_close(&p->src[OUT]);
	source_close(&p->src[ERR]);
	watch_close(p->a, &p->status);
	fd_close(p->master);
	ev_timer_del(&p->deadline);
	ev_timer_del(&p->keep);
	ev_timer_del(&p->quiet);
	list_del(&p->node);
	ps->n--;
	free(p->tag);
	free(p->config);
	free(p->name);
	free(p->end);
	free(p);
}

void procs_free(struct procs *ps)
{
	if (!ps)
		return;
	procs_kill_all(ps);
	LIST_FOR_SAFE(&ps->list, p, struct proc, node) {
		cgroup_remove(ps->a->cgroups, p->cgroup, p->killed);
		proc_free(p);
	}
	ev_timer_del(&ps->again);
	free(ps);
}

void proc_kill(struct proc *p)
{
	p->killed = true;
	cgroup_kill(p->a->cgroups, p->cgroup);
	if (!p->exited)
		kill(-p->pid, SIGKILL);
}

void procs_kill_all(struct procs *ps)
{
	cgroups_kill_all(ps->a->cgroups);
	LIST_FOR(&ps->list, p, struct proc, node)
		proc_kill(p);
}

/* An ended record goes when its time is over, no child holds a pipe and its cgroup is empty. */
static void proc_sweep(struct proc *p)
{
	if (p->state != PROC_ENDED)
		return;
	if (p->cgroup && cgroup_remove(p->a->cgroups, p->cgroup, p->killed) == 0)
		p->cgroup = 0;
	if (p->expired && !p->cgroup && p->src[OUT].watch.fd < 0 && p->src[ERR].watch.fd < 0)
		proc_free(p);
}

static void on_keep(struct ev_timer *t)
{
	struct proc *p = CONTAINER_OF(t, struct proc, keep);

	p->expired = true;
	ev_timer_set(p->a->ev, &p->keep, PROCESS_KEEP_MS);
	proc_sweep(p);
}

/*
 * A shell that waits at its prompt is the foreground of its own terminal. What it runs there has a
 * group of its own.
 */
static bool is_at_work(const struct proc *p)
{
	pid_t foreground;

	if (p->state == PROC_ENDED || p->exited)
		return false;
	return !p->pty || p->master < 0 || ioctl(p->master, TIOCGPGRP, &foreground) < 0 ||
	       foreground != p->pid;
}

unsigned procs_running(struct procs *ps)
{
	unsigned n = 0;

	LIST_FOR(&ps->list, p, struct proc, node)
		n += is_at_work(p);
	return n;
}

size_t procs_input_bytes(const struct procs *ps)
{
	size_t n = 0;

	LIST_FOR(&ps->list, p, struct proc, node)
		n += p->input_bytes;
	return n;
}

/* ---- readers ---- */

void reader_event(struct reader *rd, const char *json)
{
	rd->last_ms = clock_mono_ms();
	connect_event(rd->r, json, strlen(json));
}

static void on_keepalive(struct ev_timer *t)
{
	struct reader *rd = CONTAINER_OF(t, struct reader, keepalive);
	int64_t idle = clock_mono_ms() - rd->last_ms;

	/* Who does not read what is there needs no sign of life. */
	if (idle >= rd->keepalive_ms && buf_len(&rd->r->out) == 0)
		reader_event(rd, "{\"event\":{\"keepalive\":{}}}");
	if (idle >= rd->keepalive_ms)
		idle = 0;
	ev_timer_set(rd->p->a->ev, &rd->keepalive, rd->keepalive_ms - idle);
}

static bool readers_have_room(const struct proc *p)
{
	LIST_FOR(&p->readers, rd, struct reader, node)
		if (req_room(rd->r) < connect_event_room(CONNECT_CHUNK))
			return false;
	return true;
}

static void proc_resume(struct proc *p)
{
	if (p->state == PROC_STARTING || !readers_have_room(p))
		return;
	for (int i = 0; i < 2; i++)
		if (p->src[i].watch.fd >= 0 && !p->src[i].drained &&
		    list_empty(&p->src[i].later.node))
			ev_watch_set(p->a->ev, &p->src[i].watch, EPOLLIN);
	if (p->pty && p->exited && list_empty(&p->quiet.node))
		ev_timer_set(p->a->ev, &p->quiet, TTY_QUIET_MS);
}

static void reader_room(struct req *r)
{
	proc_resume(((struct reader *)r->ctx)->p);
}

static void reader_gone(struct req *r)
{
	struct reader *rd = r->ctx;
	struct proc *p = rd->p;

	reader_free(rd);
	proc_resume(p);
}

static const struct req_ops reader_ops = { .room = reader_room, .gone = reader_gone };

/* The time-out of a Connect ends that stream alone. */
static void on_reader_deadline(struct ev_timer *t)
{
	struct reader *rd = CONTAINER_OF(t, struct reader, deadline);
	struct proc *p = rd->p;

	connect_end_error(rd->r, CONNECT_DEADLINE_EXCEEDED,
			  "the time of this call is over; the process goes on");
	reader_free(rd);
	proc_resume(p);
}

struct reader *reader_new(struct proc *p, struct req *r, bool starter)
{
	struct reader *rd = x_alloc(sizeof(*rd));

	rd->p = p;
	rd->r = r;
	rd->starter = starter;
	rd->last_ms = clock_mono_ms();
	rd->keepalive_ms = connect_keepalive_ms(r);
	ev_timer_init(&rd->keepalive, on_keepalive);
	ev_timer_init(&rd->deadline, on_reader_deadline);
	ev_timer_set(p->a->ev, &rd->keepalive, rd->keepalive_ms);
	if (!starter && connect_timeout_ms(r))
		ev_timer_set(p->a->ev, &rd->deadline, connect_timeout_ms(r));
	list_add_tail(&p->readers, &rd->node);
	p->n_readers++;
	r->ops = &reader_ops;
	r->ctx = rd;
	return rd;
}

void reader_start_event(struct reader *rd)
{
	char json[64];

	str_format(json, sizeof(json), "{\"event\":{\"start\":{\"pid\":%d}}}", rd->p->pid);
	if (!rd->r->answered)
		connect_begin(rd->r);
	reader_event(rd, json);
}

/* ---- output ---- */

static void emit(struct proc *p, const char *kind, const char *data, size_t n)
{
	int64_t now = list_empty(&p->readers) ? 0 : clock_mono_ms();

	LIST_FOR(&p->readers, rd, struct reader, node) {
		connect_event_data(rd->r, kind, data, n);
		rd->last_ms = now;
	}
}

static void source_close(struct source *s)
{
	ev_timer_del(&s->later);
	watch_close(s->p->a, &s->watch);
	s->drained = true;
}

/* One read. True = go on with this source. */
static bool source_read(struct source *s)
{
	struct proc *p = s->p;
	char *chunk = p->a->procs->chunk;
	size_t want = CONNECT_CHUNK;
	ssize_t n;

	if (p->state == PROC_RUNNING) {
		if (s->drained || !readers_have_room(p)) {
			ev_watch_set(p->a->ev, &s->watch, 0);
			return false;
		}
		if (p->exited && !p->pty && s->left < want)
			want = s->left;
	}
	n = read(s->watch.fd, chunk, want);
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (p->exited && !p->pty)
			s->drained = true;
		return false;
	}
	if (n <= 0) {
		source_close(s);
		return false;
	}
	if (p->state != PROC_RUNNING)
		return true;
	emit(p, s->kind, chunk, (size_t)n);
	if (!p->exited || p->pty)
		return true;
	s->left -= (size_t)n;
	s->drained = s->left == 0;
	return !s->drained;
}

static void source_work(struct source *s)
{
	struct proc *p = s->p;

	s->last_ms = clock_mono_ms();
	for (int i = 0; i < READS_IN_A_TURN && source_read(s); i++)
		;
	if (p->state == PROC_RUNNING)
		proc_try_end(p);
	else
		proc_sweep(p);
}

/*
 * The agent preempts the writer at its first bytes after a wait, and would carry 4 KiB at a time
 * (seen). So the first output after a quiet time is taken at once, and what follows within
 * COALESCE_MS is left to gather in the pipe.
 */
static void on_source(struct ev_watch *w, uint32_t events)
{
	struct source *s = CONTAINER_OF(w, struct source, watch);
	int there = 0;

	if (!s->p->exited && !(events & (EPOLLHUP | EPOLLERR)) &&
	    clock_mono_ms() - s->last_ms < COALESCE_MS && ioctl(w->fd, FIONREAD, &there) == 0 &&
	    there < CONNECT_CHUNK) {
		ev_watch_set(s->p->a->ev, w, 0);
		ev_timer_set(s->p->a->ev, &s->later, COALESCE_MS);
		return;
	}
	source_work(s);
}

static void on_later(struct ev_timer *t)
{
	struct source *s = CONTAINER_OF(t, struct source, later);

	ev_watch_set(s->p->a->ev, &s->watch, EPOLLIN);
	source_work(s);
}

/* ---- the end ---- */

static char *end_event(const struct proc *p)
{
	char text[64], lower[48];
	int code = -1;

	if (WIFEXITED(p->wstatus)) {
		code = WEXITSTATUS(p->wstatus);
		str_format(text, sizeof(text), "exit status %d", code);
	} else {
		const char *name = sigdescr_np(WTERMSIG(p->wstatus));

		str_copy(lower, sizeof(lower), name ? name : "unknown");
		lower[0] |= 0x20;
		str_format(text, sizeof(text), "signal: %s%s", lower,
			   WCOREDUMP(p->wstatus) ? " (core dumped)" : "");
	}
	if (code == 0)
		return x_asprintf(
			"{\"event\":{\"end\":{\"exitCode\":0,\"exited\":true,\"status\":\"%s\"}}}",
			text);
	return x_asprintf("{\"event\":{\"end\":{\"exitCode\":%d,\"exited\":%s,\"status\":\"%s\","
			  "\"error\":\"%s\"}}}",
			  code, WIFEXITED(p->wstatus) ? "true" : "false", text, text);
}

static void proc_end(struct proc *p)
{
	p->state = PROC_ENDED;
	p->end = end_event(p);
	activity_note(p->a, ACTIVITY_COMMAND);
	ev_timer_del(&p->deadline);
	ev_timer_del(&p->quiet);
	while (!list_empty(&p->readers)) {
		struct reader *rd = CONTAINER_OF(p->readers.next, struct reader, node);

		reader_event(rd, p->end);
		connect_end(rd->r);
		reader_free(rd);
	}
	inputs_fail(p, CONNECT_FAILED_PRECONDITION, "the process has ended");
	log_info("command", F_REQ(p->req_id), F_INT("pid", p->pid),
		 F_INT("ms", clock_mono_ms() - p->start_ms),
		 F_INT("code", WIFEXITED(p->wstatus) ? WEXITSTATUS(p->wstatus) : -1),
		 F_INT("signal", WIFSIGNALED(p->wstatus) ? WTERMSIG(p->wstatus) : 0));
	if (p->pty) {
		source_close(&p->src[OUT]);
		fd_close(TAKE_FD(p->master));
	}
	/* From here on what children write is dropped. */
	for (int i = 0; i < 2; i++) {
		ev_timer_del(&p->src[i].later);
		if (p->src[i].watch.fd >= 0)
			ev_watch_set(p->a->ev, &p->src[i].watch, EPOLLIN);
	}
	ev_timer_set(p->a->ev, &p->keep, PROCESS_KEEP_MS);
	ev_timer_set(p->a->ev, &p->a->procs->again, SWEEP_AGAIN_MS);
	proc_sweep(p);
}

static void proc_try_end(struct proc *p)
{
	if (p->state == PROC_RUNNING && p->exited && p->src[OUT].drained && p->src[ERR].drained)
		proc_end(p);
}

/*
 * A terminal is hung up when its session's leader exits, so its end of file comes; but should a
 * child keep it open, quiet counts. What waits for a slow reader is not quiet: proc_resume goes on.
 */
static void on_quiet(struct ev_timer *t)
{
	struct proc *p = CONTAINER_OF(t, struct proc, quiet);
	struct source *s = &p->src[OUT];

	if (s->watch.fd >= 0 && !readers_have_room(p))
		return;
	if (s->watch.fd >= 0 && p->quiet_rounds++ < TTY_QUIET_ROUNDS && source_read(s)) {
		ev_timer_set(p->a->ev, &p->quiet, TTY_QUIET_MS);
		return;
	}
	s->drained = true;
	proc_try_end(p);
}

/* The first process has exited: what is in the pipes now is still owed to the readers. */
static void proc_drain(struct proc *p)
{
	for (int i = 0; i < 2; i++) {
		struct source *s = &p->src[i];
		int left = 0;

		ev_timer_del(&s->later);
		if (s->watch.fd < 0) {
			s->drained = true;
			continue;
		}
		if (p->pty)
			continue;
		ioctl(s->watch.fd, FIONREAD, &left);
		s->left = left > 0 ? (size_t)left : 0;
		s->drained = s->left == 0;
	}
	proc_resume(p);
	proc_try_end(p);
}

static struct proc *by_pid(struct procs *ps, pid_t pid)
{
	/* One that has exited may wait for its readers, while its number is another one's. */
	LIST_FOR(&ps->list, p, struct proc, node)
		if (p->pid == pid && !p->exited && p->state != PROC_ENDED)
			return p;
	return NULL;
}

void procs_reap(struct procs *ps)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct proc *p = by_pid(ps, pid);

		if (!p)
			continue;
		p->exited = true;
		p->wstatus = status;
		if (p->state == PROC_RUNNING)
			proc_drain(p);
	}
	if (sweep_all(ps))
		ev_timer_set(ps->a->ev, &ps->again, SWEEP_AGAIN_MS);
}

/* ---- the beginning ---- */

static void on_deadline(struct ev_timer *t)
{
	struct proc *p = CONTAINER_OF(t, struct proc, deadline);

	log_info("command timed out", F_REQ(p->req_id), F_INT("pid", p->pid));
	LIST_FOR_SAFE(&p->readers, rd, struct reader, node) {
		if (!rd->starter)
			continue;
		connect_end_error(rd->r, CONNECT_DEADLINE_EXCEEDED,
				  "the time of this command is over; it was killed");
		reader_free(rd);
	}
	proc_kill(p);
	proc_resume(p);
}

static void on_status(struct ev_watch *w, uint32_t events)
{
	struct proc *p = CONTAINER_OF(w, struct proc, status);
	struct err e = { 0 };
	int r = spawn_status(w->fd, p->name, &e);

	if (r == -EAGAIN || r == -EINTR)
		return;
	watch_close(p->a, w);
	if (r < 0) {
		LIST_FOR_SAFE(&p->readers, rd, struct reader, node) {
			connect_fail(rd->r, CONNECT_INVALID_ARGUMENT, "%s", e.text);
			reader_free(rd);
		}
		/* The record stays until its cgroup is empty; nobody finds it. */
		p->state = PROC_ENDED;
		p->expired = true;
		ev_timer_del(&p->deadline);
		inputs_fail(p, CONNECT_FAILED_PRECONDITION, "the process did not start");
		source_close(&p->src[OUT]);
		source_close(&p->src[ERR]);
		ev_timer_set(p->a->ev, &p->a->procs->again, SWEEP_AGAIN_MS);
		ev_timer_set(p->a->ev, &p->keep, PROCESS_KEEP_MS);
		proc_sweep(p);
		return;
	}
	p->state = PROC_RUNNING;
	LIST_FOR(&p->readers, rd, struct reader, node)
		reader_start_event(rd);
	proc_resume(p);
	if (p->exited)
		proc_drain(p);
}

static void source_init(struct source *s, struct proc *p, const char *kind)
{
	s->p = p;
	s->kind = kind;
	s->watch.fd = -1;
	s->watch.fn = on_source;
	ev_timer_init(&s->later, on_later);
}

struct proc *proc_new(struct agent *a, const char *name, const char *tag, const char *req_id)
{
	struct proc *p = x_alloc(sizeof(*p));

	p->a = a;
	p->tag = x_strdup(tag);
	p->name = x_strdup(name);
	p->master = p->in.fd = p->status.fd = -1;
	p->in.fn = proc_on_input;
	p->status.fn = on_status;
	source_init(&p->src[OUT], p, "stdout");
	source_init(&p->src[ERR], p, "stderr");
	list_init(&p->readers);
	list_init(&p->inputs);
	ev_timer_init(&p->deadline, on_deadline);
	ev_timer_init(&p->keep, on_keep);
	ev_timer_init(&p->quiet, on_quiet);
	p->start_ms = clock_mono_ms();
	p->serial = ++a->procs->serials;
	activity_note(a, ACTIVITY_COMMAND);
	str_copy(p->req_id, sizeof(p->req_id), req_id);
	list_add_tail(&a->procs->list, &p->node);
	a->procs->n++;
	return p;
}
