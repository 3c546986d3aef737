/*
 * The daemons of a node under `space up`: started in order, started again with back-off when they
 * die, ended in reverse order. Each inherits the reading end of a pipe (the life-line): when `up`
 * itself is killed, they end, the sandboxes live on, and the next `up` adopts them.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/str.h"
#include "cli/up.h"

#define BACKOFF_MIN_MS 50
#define BACKOFF_MAX_MS 5000
#define BACKOFF_FORGET_MS 10000       /* lived this long: the next death is a first one again */
#define END_GRACE_MS 5000
#define LOG_FILE_MAX (16 << 20)       /* a larger log becomes NAME.log.1 */
#define LOG_CHECK_MS 2000
#define LIFELINE_FD 3

enum proc_state { PROC_DOWN, PROC_UP, PROC_WAITS, PROC_ENDED };

struct proc {
	const char *name;
	enum proc_state state;
	pid_t pid;
	int64_t started_ms, backoff_ms;
	struct loop_timer timer;
	struct up_proc *set;
};

struct up_proc {
	struct loop *loop;
	const struct conf *conf;
	int lifeline[2];
	struct proc procs[5];
	struct loop_timer log_timer;
	bool ending;
	int end_at;                   /* index of the one that is ending; counts down */
	struct loop_timer end_timer;
	void (*alone)(void *arg), (*done)(void *arg);
	void *done_arg;
};

static const char *const proc_names[] = { "node-manager", "sbx-manager", "node-api", "space-api",
					  "space-control" };

/*
 * Anybody who can reach the API makes lines, so a log must not grow for as long as its daemon
 * lives. The daemon keeps its descriptor (O_APPEND): the text is moved over and the file cut. What
 * is written in between is lost, a few lines at most.
 */
static int move_log(const char *path, const char *old)
{
	autoclose int in = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	autoclose int out = -1;
	struct stat st;
	ssize_t n;

	if (in < 0 || fstat(in, &st) < 0 || st.st_size <= LOG_FILE_MAX)
		return 0;
	unlink(old);
	out = open(old, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
	while (out >= 0 && (n = sendfile(out, in, NULL, LOG_FILE_MAX)) > 0)
		;
	/* Cut even if the old text could not be kept: the disk may be full of it. */
	return ftruncate(in, 0) < 0 ? -errno : 0;
}

static int log_paths(const struct conf *k, const char *name, char path[PATH_MAX],
		     char old[PATH_MAX])
{
	return conf_path(k, path, CONF_STATE, "log/%s.log", name) < 0 ||
			       conf_path(k, old, CONF_STATE, "log/%s.log.1", name) < 0
		       ? -ENAMETOOLONG
		       : 0;
}

static int open_log(const struct conf *k, const char *name)
{
	char path[PATH_MAX], old[PATH_MAX];
	int r = log_paths(k, name, path, old);

	if (r == 0)
		r = move_log(path, old);
	if (r < 0)
		return r;
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
	return fd < 0 ? -errno : fd;
}

static void check_logs(struct loop_timer *t)
{
	struct up_proc *s = t->arg;
	char path[PATH_MAX], old[PATH_MAX];

	for (size_t i = 0; i < ARRAY_LEN(proc_names); i++)
		if (log_paths(s->conf, proc_names[i], path, old) == 0)
			move_log(path, old);
	loop_timer_set(s->loop, &s->log_timer, LOG_CHECK_MS, check_logs, s);
}

static void child(struct up_proc *s, const char *name, int log)
{
	char path[PATH_MAX], config[PATH_MAX];
	int null = open("/dev/null", O_RDWR | O_CLOEXEC),
	    life = fcntl(s->lifeline[0], F_DUPFD_CLOEXEC, 10);
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setsid();
	dup2(null, 0);
	dup2(log, 1);
	dup2(log, 2);
	dup2(life, LIFELINE_FD);
	proc_close_fds_from(LIFELINE_FD + 1);
	setenv("SPACE_LIFELINE_FD", "3", 1);
	unsetenv("NOTIFY_SOCKET");
	umask(022);
	if (conf_path(s->conf, path, CONF_LIB, "%s", name) < 0 ||
	    conf_path(s->conf, config, CONF_RUN, "conf.json") < 0)
		_exit(127);
	execl(path, name, "--config", config, (char *)NULL);
	_exit(127);
}

static int start_one(struct proc *p, struct err *e)
{
	struct up_proc *s = p->set;
	int log = open_log(s->conf, p->name);

	if (log < 0)
		return err_errno(e, log, "the log file of %s", p->name);
	p->pid = fork();
	if (p->pid == 0)
		child(s, p->name, log);
	fd_close(log);
	if (p->pid < 0)
		return err_errno(e, -errno, "fork");
	p->state = PROC_UP;
	p->started_ms = clock_mono_ms();
	return 0;
}

static void again(struct loop_timer *t)
{
	struct proc *p = t->arg;
	struct err e = { 0 };

	if (!p->set->ending && start_one(p, &e) < 0) {
		up_say("%s", e.text);
		loop_timer_set(p->set->loop, &p->timer, BACKOFF_MAX_MS, again, p);
	}
}

static void end_next(struct up_proc *s);

static void died(struct proc *p, int status)
{
	struct up_proc *s = p->set;
	int64_t lived = clock_mono_ms() - p->started_ms;

	p->pid = 0;
	if (s->ending) {
		p->state = PROC_ENDED;
		end_next(s);
		return;
	}
	p->backoff_ms =
		lived > BACKOFF_FORGET_MS || !p->backoff_ms ? BACKOFF_MIN_MS : 2 * p->backoff_ms;
	if (p->backoff_ms > BACKOFF_MAX_MS)
		p->backoff_ms = BACKOFF_MAX_MS;
	up_say("%s ended (%s %d) and is started again; its log: %s/log/%s.log", p->name,
	       WIFSIGNALED(status) ? "signal" : "exit code",
	       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), s->conf->state_dir,
	       p->name);
	p->state = PROC_WAITS;
	loop_timer_set(s->loop, &p->timer, p->backoff_ms, again, p);
}

/* Only our own children, by pid: other parts of the program wait for theirs. */
void up_proc_reap(struct up_proc *s)
{
	for (size_t i = 0; i < ARRAY_LEN(s->procs); i++) {
		struct proc *p = &s->procs[i];
		siginfo_t info = { 0 };
		int status;

		if (p->state != PROC_UP ||
		    waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
		    info.si_pid != p->pid)
			continue;
		/*
		 * Its group is its own, and its filter has no setsid(2): what it forked ends too.
		 * Before the number is free again.
		 */
		kill(-p->pid, SIGKILL);
		if (waitpid(p->pid, &status, WNOHANG) == p->pid)
			died(p, status);
	}
}

int up_proc_new(struct loop *l, const struct conf *k, struct up_proc **ret, struct err *e)
{
	struct up_proc *s = x_alloc(sizeof(*s));

	s->loop = l;
	s->conf = k;
	if (pipe2(s->lifeline, O_CLOEXEC) < 0) {
		free(s);
		return err_errno(e, -errno, "pipe");
	}
	for (size_t i = 0; i < ARRAY_LEN(s->procs); i++) {
		s->procs[i].name = proc_names[i];
		s->procs[i].set = s;
	}
	*ret = s;
	return 0;
}

static void watch_logs(void *arg)
{
	struct up_proc *s = arg;

	if (!s->ending)
		loop_timer_set(s->loop, &s->log_timer, LOG_CHECK_MS, check_logs, s);
}

int up_proc_start(struct up_proc *s, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(s->procs); i++) {
		int r = start_one(&s->procs[i], e);

		if (r < 0)
			return r;
	}
	loop_post(s->loop, watch_logs, s);           /* this is the story's thread */
	return 0;
}

static void end_hard(struct loop_timer *t)
{
	struct up_proc *s = t->arg;
	struct proc *p = &s->procs[s->end_at];

	up_say("%s did not end within %d s and is killed", p->name, END_GRACE_MS / 1000);
	if (p->pid > 0)
		kill(p->pid, SIGKILL);
}

static void end_next(struct up_proc *s)
{
	loop_timer_stop(&s->end_timer);
	while (s->end_at >= 0 && s->procs[s->end_at].state != PROC_UP)
		s->end_at--;
	if (s->end_at < 0) {
		s->done(s->done_arg);
		return;
	}
	if (s->end_at == 0)
		s->alone(s->done_arg);
	kill(s->procs[s->end_at].pid, SIGTERM);
	loop_timer_set(s->loop, &s->end_timer, END_GRACE_MS, end_hard, s);
}

void up_proc_end(struct up_proc *s, void (*alone)(void *arg), void (*done)(void *arg), void *arg)
{
	s->ending = true;
	s->alone = alone;
	loop_timer_stop(&s->log_timer);
	s->done = done;
	s->done_arg = arg;
	s->end_at = (int)ARRAY_LEN(s->procs) - 1;
	for (size_t i = 0; i < ARRAY_LEN(s->procs); i++)
		loop_timer_stop(&s->procs[i].timer);
	end_next(s);
}

void up_proc_free(struct up_proc *s)
{
	if (!s)
		return;
	fd_close(s->lifeline[0]);
	fd_close(s->lifeline[1]);
	free(s);
}
