#include "spaced-guest/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/spawn.h"
#include "spaced-guest/terminal.h"
#include "spaced-guest/text.h"

#define READS_IN_A_TURN 4                        /* chunks of one pipe before others have their turn */
#define CONFIG_MAX (64 << 10)                    /* JSON that List shows; larger ones are shown without args and envs */
#define TTY_QUIET_MS 30                          /* a terminal's last bytes come by a kernel worker */
#define TTY_QUIET_ROUNDS 100
#define COALESCE_MS 2                            /* output that comes again so soon is gathered, see on_source */
#define PIPE_BYTES (256 << 10)
#define SWEEP_AGAIN_MS 100                       /* a cgroup is empty a moment after its last process was reaped */

enum proc_state { PROC_STARTING, PROC_RUNNING, PROC_ENDED };
enum { OUT, ERR };

struct proc;

struct source {                                  /* stdout, stderr or the terminal */
	struct ev_watch watch;
	struct proc *p;
	const char *kind;
	struct ev_timer later;                   /* armed = gathering */
	int64_t last_ms;                         /* when it was read last */
	bool drained;                            /* after the exit: nothing more is owed to the readers */
	size_t left;                             /* after the exit: bytes still owed */
};

struct input {
	struct list node;
	struct req *r;                           /* answered when all is written; NULL = left */
	struct input_req q;
	size_t off;
};

struct reader {
	struct list node;
	struct proc *p;
	struct req *r;
	bool starter;
	int64_t keepalive_ms, last_ms;
	struct ev_timer keepalive, deadline;
};

struct proc {
	struct list node;
	struct agent *a;
	enum proc_state state;
	pid_t pid;
	char *tag, *config, *name;
	uint64_t cgroup;
	bool pty, exited, expired, killed;
	int wstatus;
	struct source src[2];
	int master;                              /* for Update; -1 = no terminal */
	struct ev_watch in;
	struct list inputs;
	size_t input_bytes;
	bool close_in;                           /* when what waits is written */
	struct ev_watch status;
	struct list readers;
	unsigned n_readers;
	struct ev_timer deadline, keep, quiet;
	unsigned quiet_rounds;
	char *end;                               /* the end event */
	int64_t start_ms;
	char req_id[REQ_ID_MAX + 1];
};

struct procs {
	struct agent *a;
	struct list list;
	unsigned n;
	struct ev_timer again;
	char chunk[CONNECT_CHUNK];
};

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

static void watch_close(struct agent *a, struct ev_watch *w)
{
	if (w->fd < 0)
		return;
	ev_watch_set(a->ev, w, 0);
	close(w->fd);
	w->fd = -1;
}

static void inputs_fail(struct proc *p, enum connect_code code, const char *text)
{
	while (!list_empty(&p->inputs)) {
		struct input *in = CONTAINER_OF(p->inputs.next, struct input, node);

		list_del(&in->node);
		if (in->r) {
			in->r->ops = NULL;
			connect_fail(in->r, code, "%s", text);
		}
		input_req_done(&in->q);
		free(in);
	}
	p->input_bytes = 0;
	watch_close(p->a, &p->in);
}

static void reader_free(struct reader *rd)
{
	rd->r->ops = NULL;
	rd->r->ctx = NULL;
	list_del(&rd->node);
	rd->p->n_readers--;
	ev_timer_del(&rd->keepalive);
	ev_timer_del(&rd->deadline);
	free(rd);
}

static void proc_free(struct proc *p)
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

static void proc_kill(struct proc *p)
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

/* ---- readers ---- */

static void reader_event(struct reader *rd, const char *json)
{
	rd->last_ms = clock_mono_ms();
	connect_event(rd->r, json, strlen(json));
}

static void on_keepalive(struct ev_timer *t)
{
	struct reader *rd = CONTAINER_OF(t, struct reader, keepalive);
	int64_t idle = clock_mono_ms() - rd->last_ms;

	if (idle >= rd->keepalive_ms) {
		reader_event(rd, "{\"event\":{\"keepalive\":{}}}");
		idle = 0;
	}
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
		if (p->src[i].watch.fd >= 0 && !p->src[i].drained && list_empty(&p->src[i].later.node))
			ev_watch_set(p->a->ev, &p->src[i].watch, EPOLLIN);
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

	connect_end_error(rd->r, CONNECT_DEADLINE_EXCEEDED, "the time of this call is over; the process goes on");
	reader_free(rd);
	proc_resume(p);
}

static struct reader *reader_new(struct proc *p, struct req *r, bool starter)
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

static void reader_start_event(struct reader *rd)
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
 * The agent preempts the writer at its first bytes after a wait, and would carry 4 KiB at a time (seen). So the first
 * output after a quiet time is taken at once, and what follows within COALESCE_MS is left to gather in the pipe.
 */
static void on_source(struct ev_watch *w, uint32_t events)
{
	struct source *s = CONTAINER_OF(w, struct source, watch);
	int there = 0;

	if (!s->p->exited && !(events & (EPOLLHUP | EPOLLERR)) && clock_mono_ms() - s->last_ms < COALESCE_MS &&
	    ioctl(w->fd, FIONREAD, &there) == 0 && there < CONNECT_CHUNK) {
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
		str_format(text, sizeof(text), "signal: %s%s", lower, WCOREDUMP(p->wstatus) ? " (core dumped)" : "");
	}
	if (code == 0)
		return x_asprintf("{\"event\":{\"end\":{\"exitCode\":0,\"exited\":true,\"status\":\"%s\"}}}", text);
	return x_asprintf("{\"event\":{\"end\":{\"exitCode\":%d,\"exited\":%s,\"status\":\"%s\",\"error\":\"%s\"}}}", code,
			  WIFEXITED(p->wstatus) ? "true" : "false", text, text);
}

static void proc_end(struct proc *p)
{
	p->state = PROC_ENDED;
	p->end = end_event(p);
	ev_timer_del(&p->deadline);
	ev_timer_del(&p->quiet);
	while (!list_empty(&p->readers)) {
		struct reader *rd = CONTAINER_OF(p->readers.next, struct reader, node);

		reader_event(rd, p->end);
		connect_end(rd->r);
		reader_free(rd);
	}
	inputs_fail(p, CONNECT_FAILED_PRECONDITION, "the process has ended");
	log_info("command", F_REQ(p->req_id), F_INT("pid", p->pid), F_INT("ms", clock_mono_ms() - p->start_ms),
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

/* A terminal is hung up when its session's leader exits, so its end of file comes; but should a child keep it open, quiet counts. */
static void on_quiet(struct ev_timer *t)
{
	struct proc *p = CONTAINER_OF(t, struct proc, quiet);
	struct source *s = &p->src[OUT];

	if (s->watch.fd >= 0 && p->quiet_rounds++ < TTY_QUIET_ROUNDS && (!readers_have_room(p) || source_read(s))) {
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
	if (p->pty)
		ev_timer_set(p->a->ev, &p->quiet, TTY_QUIET_MS);
	proc_resume(p);
	proc_try_end(p);
}

static struct proc *by_pid(struct procs *ps, pid_t pid)
{
	LIST_FOR(&ps->list, p, struct proc, node)
		if (p->pid == pid && !p->expired && (p->state != PROC_ENDED))
			return p;
	return NULL;
}

void procs_reap(struct procs *ps)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct proc *p = by_pid(ps, pid);

		if (!p || p->exited)
			continue;
		p->exited = true;
		p->wstatus = status;
		if (p->state == PROC_RUNNING)
			proc_drain(p);
	}
	if (sweep_all(ps))
		ev_timer_set(ps->a->ev, &ps->again, SWEEP_AGAIN_MS);
}

/* ---- Start ---- */

static void on_deadline(struct ev_timer *t)
{
	struct proc *p = CONTAINER_OF(t, struct proc, deadline);

	log_info("command timed out", F_REQ(p->req_id), F_INT("pid", p->pid));
	LIST_FOR_SAFE(&p->readers, rd, struct reader, node) {
		if (!rd->starter)
			continue;
		connect_end_error(rd->r, CONNECT_DEADLINE_EXCEEDED, "the time of this command is over; it was killed");
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

static void envs_set(struct envs *e, char *item)
{
	size_t n = (size_t)(strchr(item, '=') - item) + 1;

	for (size_t i = 0; i < e->n; i++) {
		if (strncmp(e->v[i], item, n) == 0) {
			free(e->v[i]);
			e->v[i] = item;
			return;
		}
	}
	e->v[e->n++] = item;
}

void process_envs(const struct agent *a, const struct user *u, const struct envs *own, struct envs *ret)
{
	const struct envs *more[] = { &a->envs, own };

	ret->n = 0;
	ret->v = x_array(a->envs.n + (own ? own->n : 0) + 9, sizeof(char *));
	envs_set(ret, x_strdup("PATH=" AGENT_PATH_ENV));
	envs_set(ret, x_asprintf("HOME=%s", u->home));
	envs_set(ret, x_asprintf("USER=%s", u->name));
	envs_set(ret, x_asprintf("LOGNAME=%s", u->name));
	envs_set(ret, x_strdup("E2B_SANDBOX=true"));
	if (a->sandbox[0])
		envs_set(ret, x_asprintf("E2B_SANDBOX_ID=%s", a->sandbox));
	if (a->template[0])
		envs_set(ret, x_asprintf("E2B_TEMPLATE_ID=%s", a->template));
	for (size_t k = 0; k < ARRAY_LEN(more); k++)
		for (size_t i = 0; more[k] && i < more[k]->n; i++)
			envs_set(ret, x_strdup(more[k]->v[i]));
}

/* The config as List shows it. */
static char *config_json(const struct start_req *q, const char *cwd)
{
	struct buf b;
	int r;

	buf_init(&b, CONFIG_MAX);
	r = buf_puts(&b, "{");
	r |= text_member(&b, "cmd", q->argv[0]);
	r |= buf_puts(&b, ",\"args\":[");
	for (size_t i = 1; q->argv[i]; i++)
		r |= buf_puts(&b, i > 1 ? "," : "") | text_json_s(&b, q->argv[i]);
	r |= buf_puts(&b, "],\"envs\":{");
	for (size_t i = 0; i < q->envs.n; i++) {
		const char *eq = strchr(q->envs.v[i], '=');

		r |= buf_puts(&b, i ? "," : "") | text_json(&b, q->envs.v[i], (size_t)(eq - q->envs.v[i]));
		r |= buf_puts(&b, ":") | text_json_s(&b, eq + 1);
	}
	r |= buf_puts(&b, "},") | text_member(&b, "cwd", cwd) | buf_puts(&b, "}");
	if (r < 0) {
		buf_clear(&b);
		if (buf_puts(&b, "{") | text_member(&b, "cmd", q->argv[0]) | buf_puts(&b, "}")) {
			buf_clear(&b);
			buf_puts(&b, "{}");
		}
	}
	return buf_take_str(&b);
}

static int check_cwd(const struct agent *a, const struct user *u, const char *want, char **ret, struct err *e)
{
	const char *in = want && *want ? want : a->default_workdir ? a->default_workdir : u->home;
	struct stat st;
	int r = path_resolve(a, u, in, ret, e);

	if (r < 0)
		return r;
	r = users_enter(u);
	if (r == 0) {
		r = stat(*ret, &st) < 0 ? -errno : S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
		users_leave();
	}
	if (r == 0)
		return 0;
	if (!(want && *want) && r == -ENOENT) {
		/* A home that is not there is no reason to refuse every command. */
		free(*ret);
		*ret = x_strdup("/");
		return 0;
	}
	return err_set(e, -EINVAL, r == -ENOENT ? "cwd '%s' does not exist" : r == -ENOTDIR ? "cwd '%s' is not a directory" :
		       "cwd '%s' cannot be entered", *ret);
}

/* The child's ends; the parent's go into p. */
struct ends { int in, out, err; };

static void ends_close(struct ends *f)
{
	fd_close(f->in);
	if (f->out != f->in)
		fd_close(f->out);
	if (f->err != f->in && f->err != f->out)
		fd_close(f->err);
}

static int open_pipe(int *ret_ours, int *ret_theirs, bool ours_reads)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	*ret_ours = p[ours_reads ? 0 : 1];
	*ret_theirs = p[ours_reads ? 1 : 0];
	return fd_set_nonblock(*ret_ours, true);
}

static int open_pipes(struct proc *p, const struct start_req *q, struct ends *f)
{
	int r = open_pipe(&p->src[OUT].watch.fd, &f->out, true);

	if (r == 0)
		r = open_pipe(&p->src[ERR].watch.fd, &f->err, true);
	if (r == 0)
		fcntl(p->src[OUT].watch.fd, F_SETPIPE_SZ, PIPE_BYTES);
	if (r == 0 && q->stdin_pipe)
		r = open_pipe(&p->in.fd, &f->in, false);
	else if (r == 0) {
		f->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
		r = f->in < 0 ? -errno : 0;
	}
	return r;
}

static int open_tty(struct proc *p, const struct start_req *q, const struct user *u, struct ends *f)
{
	int slave, r = terminal_open(q->cols, q->rows, u, &p->master, &slave);

	if (r < 0)
		return r;
	f->in = f->out = f->err = slave;
	p->pty = true;
	p->src[OUT].kind = "pty";
	p->src[OUT].watch.fd = fcntl(p->master, F_DUPFD_CLOEXEC, 3);
	p->in.fd = fcntl(p->master, F_DUPFD_CLOEXEC, 3);
	return p->src[OUT].watch.fd < 0 || p->in.fd < 0 ? -EMFILE : 0;
}

static void on_in(struct ev_watch *w, uint32_t events);

static struct proc *proc_new(struct agent *a, const struct start_req *q, const char *req_id)
{
	struct proc *p = x_alloc(sizeof(*p));

	p->a = a;
	p->tag = x_strdup(q->tag);
	p->name = x_strdup(q->argv[0]);
	p->master = p->in.fd = p->status.fd = -1;
	p->in.fn = on_in;
	p->status.fn = on_status;
	for (int i = 0; i < 2; i++) {
		p->src[i].p = p;
		p->src[i].watch.fd = -1;
		p->src[i].watch.fn = on_source;
		ev_timer_init(&p->src[i].later, on_later);
	}
	p->src[OUT].kind = "stdout";
	p->src[ERR].kind = "stderr";
	list_init(&p->readers);
	list_init(&p->inputs);
	ev_timer_init(&p->deadline, on_deadline);
	ev_timer_init(&p->keep, on_keep);
	ev_timer_init(&p->quiet, on_quiet);
	p->start_ms = clock_mono_ms();
	str_copy(p->req_id, sizeof(p->req_id), req_id);
	list_add_tail(&a->procs->list, &p->node);
	a->procs->n++;
	return p;
}

static int proc_spawn(struct proc *p, struct start_req *q, const struct user *u, const char *cwd, struct err *e)
{
	struct ends f = { -1, -1, -1 };
	struct envs envs;
	autoclose int cgroup = -1;
	int r = q->pty ? open_tty(p, q, u, &f) : open_pipes(p, q, &f);

	if (r < 0) {
		ends_close(&f);
		return err_errno(e, -EAGAIN, "cannot open pipes for the process");
	}
	p->cgroup = cgroup_make(p->a->cgroups, &cgroup);
	process_envs(p->a, u, &q->envs, &envs);
	p->pid = spawn_start(&(struct spawn){ .argv = q->argv, .envp = envs.v, .cwd = cwd, .user = u, .in = f.in, .out = f.out,
			     .err = f.err, .tty = q->pty, .cgroup = cgroup }, &p->status.fd);
	ends_close(&f);
	envs_done(&envs);
	if (p->pid < 0) {
		cgroup_remove(p->a->cgroups, p->cgroup, p->killed);
		return err_errno(e, -EAGAIN, "cannot make a process (%s)", strerror(-p->pid));
	}
	ev_watch_set(p->a->ev, &p->status, EPOLLIN);
	return 0;
}

static int start(struct req *r, struct start_req *q, const struct user *u, struct err *e)
{
	autofree char *cwd = NULL;
	struct procs *ps = r->a->procs;
	struct proc *p;
	int n = check_cwd(r->a, u, q->cwd, &cwd, e);

	if (n < 0)
		return n;
	if (ps->n >= PROCESS_MAX)
		return err_set(e, -EAGAIN, "there are %d commands already", PROCESS_MAX);
	p = proc_new(r->a, q, r->id);
	p->config = config_json(q, cwd);
	n = proc_spawn(p, q, u, cwd, e);
	if (n < 0) {
		p->exited = true;
		proc_free(p);
		return n;
	}
	reader_new(p, r, true);
	if (connect_timeout_ms(r))
		ev_timer_set(r->a->ev, &p->deadline, connect_timeout_ms(r));
	return 0;
}

/* The user of a request; false = answered. Streams and unary calls alike. */
static bool rpc_user(struct req *r, struct user *u)
{
	struct err e = { 0 };

	if (req_user(r, u, &e) == 0)
		return true;
	connect_fail(r, CONNECT_UNAUTHENTICATED, "%s", e.text);
	return false;
}

void process_start(struct req *r, const char *body, size_t n)
{
	struct start_req q = { 0 };
	struct err e = { 0 };
	struct user u;

	if (!connect_stream(r, body, n, &body, &n) || !rpc_user(r, &u))
		return;
	if (decode_start(body, n, &q, &e) < 0 || start(r, &q, &u, &e) < 0)
		connect_fail_err(r, &e);
	start_req_done(&q);
}

/* ---- the other calls ---- */

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
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, "the process has %d readers already", PROCESS_READERS_MAX);
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
	buf_init(&b, PROCESS_MAX * (CONFIG_MAX + DECODE_TAG_MAX * 6 + 64));
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
		ssize_t n = in->q.n > in->off ? write(p->in.fd, in->q.data + in->off, in->q.n - in->off) : 0;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			ev_watch_set(p->a->ev, &p->in, EPOLLOUT);
			return;
		}
		if (n < 0) {
			inputs_fail(p, CONNECT_FAILED_PRECONDITION, "the process has closed its stdin");
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

static void on_in(struct ev_watch *w, uint32_t events)
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
			connect_fail(r, CONNECT_FAILED_PRECONDITION, p->pty ? "the process has a terminal; send pty input" :
				     "the process has no terminal; send stdin input");
		else if (p->in.fd < 0 || p->close_in)
			connect_fail(r, CONNECT_FAILED_PRECONDITION, "the stdin of the process is not open");
		else if (p->input_bytes + in->q.n > PROCESS_INPUT_MAX)
			connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, "the process does not read its stdin");
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
		connect_fail(r, CONNECT_FAILED_PRECONDITION, "the stdin of a terminal cannot be closed; send Ctrl-D (0x04)");
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
