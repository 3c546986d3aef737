/* Start: from a request to a running child. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/proc.h"
#include "spaced-guest/spawn.h"
#include "spaced-guest/terminal.h"
#include "spaced-guest/text.h"

#define PIPE_BYTES (256 << 10)

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

static void envs_copy(struct envs *e, const struct envs *from)
{
	for (size_t i = 0; from && i < from->n; i++)
		envs_set(e, x_strdup(from->v[i]));
}

void process_global_envs(const struct agent *a, struct envs *ret)
{
	ret->n = 0;
	ret->v = x_array(a->envs.n + 4, sizeof(char *));
	envs_set(ret, x_strdup("E2B_SANDBOX=true"));
	if (a->sandbox[0])
		envs_set(ret, x_asprintf("E2B_SANDBOX_ID=%s", a->sandbox));
	if (a->template[0])
		envs_set(ret, x_asprintf("E2B_TEMPLATE_ID=%s", a->template));
	envs_copy(ret, &a->envs);
}

void process_envs(const struct agent *a, const struct user *u, const struct envs *own,
		  struct envs *ret)
{
	struct envs global;

	process_global_envs(a, &global);
	ret->n = 0;
	ret->v = x_array(global.n + (own ? own->n : 0) + 5, sizeof(char *));
	envs_set(ret, x_strdup("PATH=" AGENT_PATH_ENV));
	envs_set(ret, x_asprintf("HOME=%s", u->home));
	envs_set(ret, x_asprintf("USER=%s", u->name));
	envs_set(ret, x_asprintf("LOGNAME=%s", u->name));
	envs_copy(ret, &global);
	envs_copy(ret, own);
	envs_done(&global);
}

/* The config as List shows it. */
static char *config_json(const struct start_req *q, const char *cwd)
{
	struct buf b;
	int r;

	buf_init(&b, PROC_CONFIG_MAX);
	r = buf_puts(&b, "{");
	r |= text_member(&b, "cmd", q->argv[0]);
	r |= buf_puts(&b, ",\"args\":[");
	for (size_t i = 1; q->argv[i]; i++)
		r |= buf_puts(&b, i > 1 ? "," : "") | text_json_s(&b, q->argv[i]);
	r |= buf_puts(&b, "],\"envs\":{");
	for (size_t i = 0; i < q->envs.n; i++) {
		const char *eq = strchr(q->envs.v[i], '=');

		r |= buf_puts(&b, i ? "," : "") |
		     text_json(&b, q->envs.v[i], (size_t)(eq - q->envs.v[i]));
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

static int check_cwd(const struct agent *a, const struct user *u, const char *want, char **ret,
		     struct err *e)
{
	const char *in = want && *want ? want : a->default_workdir ? a->default_workdir : u->home;
	struct stat st;
	int r = path_resolve(a, u, in, ret, e);

	if (r < 0)
		return r;
	r = users_enter(u);
	if (r == 0) {
		r = stat(*ret, &st) < 0 ? -errno : S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
		if (r == 0 && faccessat(AT_FDCWD, *ret, X_OK, AT_EACCESS) < 0)
			r = -errno;
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
	return err_set(e, -EINVAL,
		       r == -ENOENT    ? "cwd '%s' does not exist"
		       : r == -ENOTDIR ? "cwd '%s' is not a directory"
				       : "cwd '%s' cannot be entered",
		       *ret);
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

static int proc_spawn(struct proc *p, struct start_req *q, const struct user *u, const char *cwd,
		      struct err *e)
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
	if (cgroup < 0 && cgroups_there(p->a->cgroups)) {
		ends_close(&f);
		return err_set(e, -EAGAIN, "cannot make a cgroup for the process");
	}
	process_envs(p->a, u, &q->envs, &envs);
	p->pid = spawn_start(&(struct spawn){.argv = q->argv,
					     .envp = envs.v,
					     .cwd = cwd,
					     .user = u,
					     .in = f.in,
					     .out = f.out,
					     .err = f.err,
					     .tty = q->pty,
					     .cgroup = cgroup},
			     &p->status.fd);
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
	p = proc_new(r->a, q->argv[0], q->tag, r->id);
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
