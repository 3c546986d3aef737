#include "node-manager/child.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

struct child {
	struct list node;
	struct nm *nm;
	struct child_job job;
	char key[CHILD_KEY_MAX];
	pid_t pid;                       /* 0 = reaped */
	int sock;
	struct loop_io io;
	struct loop_timer deadline;
	bool late;
};

static int set_caps(uint64_t permitted, uint64_t effective)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct have[_LINUX_CAPABILITY_U32S_3] = { 0 },
				      want[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &head, have) < 0)
		return -errno;
	head.version = _LINUX_CAPABILITY_VERSION_3;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
		want[i].permitted = have[i].permitted & (uint32_t)(permitted >> (32 * i));
		want[i].effective = want[i].permitted & (uint32_t)(effective >> (32 * i));
	}
	return syscall(SYS_capset, &head, want) < 0 ? -errno : 0;
}

int child_keep_caps(uint64_t caps) { return set_caps(caps, caps); }

int child_lower_caps(uint64_t caps) { return set_caps(UINT64_MAX, caps); }

bool child_busy(const struct nm *nm, const char *key)
{
	LIST_FOR(&nm->children, c, struct child, node) {
		if (key[0] && str_eq(c->key, key))
			return true;
	}
	return false;
}

void child_kill(struct child *c)
{
	if (c->pid > 0)
		kill(c->pid, SIGKILL);
}

void child_reaped(struct nm *nm, pid_t pid)
{
	LIST_FOR(&nm->children, c, struct child, node) {
		if (c->pid == pid)
			c->pid = 0;
	}
}

static void child_free(struct child *c)
{
	loop_del(&c->io);
	loop_timer_stop(&c->deadline);
	fd_close(c->sock);
	list_del(&c->node);
	c->nm->n_children--;
	free(c);
}

void child_stop_all(struct nm *nm)
{
	LIST_FOR_SAFE(&nm->children, c, struct child, node) {
		/* Waited for: it may have the storage open, which is unmounted next. */
		child_kill(c);
		if (c->pid > 0)
			waitpid(c->pid, NULL, 0);
		child_free(c);
	}
}

/* ---- In the child ---- */

static int cmp_int(const void *a, const void *b)
{
	return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b;
}

/* Closes everything above stderr that is not in keep. */
static void close_others(int *keep, size_t n)
{
	int next = 3;

	qsort(keep, n, sizeof(*keep), cmp_int);
	for (size_t i = 0; i < n; i++) {
		if (keep[i] < next)
			continue;
		if (keep[i] > next)
			syscall(SYS_close_range, next, keep[i] - 1, 0);
		next = keep[i] + 1;
	}
	syscall(SYS_close_range, next, ~0U, 0);
}

static void child_close_fds(const struct child_task *t, int sock)
{
	int keep[32];
	size_t n = 0;
	const struct nm *nm = t->nm;

	keep[n++] = sock;
	keep[n++] = nm->data_fd;
	keep[n++] = nm->run_fd;
	keep[n++] = nm->sockets_fd;
	keep[n++] = nm->init_fd;
	keep[n++] = nm->bridge_filter_fd;
	keep[n++] = nm->init_filter_fd;
	for (int i = 0; i < VMM_ACCEL_COUNT; i++)
		keep[n++] = nm->vmm_filter_fd[i];
	for (int i = 0; i < NM_GATEWAY_PROCESSES; i++)
		keep[n++] = nm->gateway_filter_fd[i];
	for (size_t i = 0; i < t->n_fds && n < ARRAY_LEN(keep); i++)
		keep[n++] = t->fds[i];
	for (size_t i = 0; i < ARRAY_LEN(t->spare) && n < ARRAY_LEN(keep); i++)
		keep[n++] = t->spare[i];
	close_others(keep, n);
}

static void child_send(int sock, const struct child_job *job, const struct child_task *t,
		       const struct err *e)
{
	autofree char *text = NULL;
	json_t *msg;

	if (e->num < 0)
		msg = json_pack("{s:i,s:s,s:s}", "num", e->num, "code", e->code, "text", e->text);
	else
		msg = json_pack("{s:o}", "r",
				job->op->rep ? ipc_encode(job->op->rep, t->rep) : json_object());
	text = msg ? json_dumps(msg, JSON_COMPACT) : NULL;
	if (text)
		fd_send(sock, text, strlen(text), e->num < 0 ? NULL : t->ret_fds,
			e->num < 0 ? 0 : t->n_ret_fds, 0);
}

static __attribute__((noreturn)) void child_run(const struct child_job *job,
						const struct child_task *task, int sock,
						pid_t parent)
{
	struct child_task t = *task;
	struct err e = { 0 };
	sigset_t none;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	child_close_fds(&t, sock);
	t.rep = x_alloc(job->op->rep_size ? job->op->rep_size : 1);
	r = child_keep_caps(job->caps);
	if (r < 0)
		err_errno(&e, r, "capabilities cannot be given up");
	else if (job->fn(&t, &e) < 0 && e.num == 0)
		err_set(&e, -EIO, "the operation failed");
	child_send(sock, job, &t, &e);
	_exit(0);
}

/* ---- In the main process ---- */

static void child_done(struct child *c, struct child_result *res)
{
	struct child_job job = c->job;
	struct nm *nm = c->nm;

	child_free(c);
	job.done(nm, res, job.arg);
}

static void child_take_answer(struct child *c, char *text, size_t len, int *fds, size_t n_fds)
{
	struct child_result res = { .code = "", .fds = fds, .n_fds = n_fds };
	autofree void *rep = x_alloc(c->job.op->rep_size ? c->job.op->rep_size : 1);
	const struct ipc_op *op = c->job.op;
	json_t *msg = ipc_parse_json(text, len, IPC_DEPTH_MAX, &res.err), *r = NULL;

	if (msg && (r = json_object_get(msg, "r"))) {
		if (op->rep && ipc_decode(op->rep, r, rep, op->rep_size, &res.err) < 0)
			r = NULL;
		else
			res.rep = rep;
	} else if (msg) {
		err_set_code(&res.err, (int)json_integer_value(json_object_get(msg, "num")),
			     json_string_value(json_object_get(msg, "code")), "%s",
			     json_string_value(json_object_get(msg, "text")));
	}
	if (!res.rep && res.err.num == 0)
		err_set(&res.err, -EIO, "a child's answer cannot be read");
	json_decref(msg);
	child_done(c, &res);
	if (res.rep && op->rep)
		ipc_done(op->rep, rep);
}

static void child_readable(struct loop_io *io, uint32_t events)
{
	struct child *c = io->arg;
	struct child_result res = { .code = "" };
	autofree char *text = x_alloc(IPC_MSG_MAX + 1);
	int fds[FD_PASS_MAX];
	size_t n_fds = ARRAY_LEN(fds);
	ssize_t n = fd_recv(c->sock, text, IPC_MSG_MAX, fds, &n_fds, MSG_DONTWAIT);

	if (n == -EAGAIN)
		return;
	if (n > 0) {
		child_take_answer(c, text, (size_t)n, fds, n_fds);
		for (size_t i = 0; i < n_fds; i++)
			fd_close(fds[i]);
		return;
	}
	res.code = c->late ? "deadline" : "ended";
	err_set_code(&res.err, c->late ? -ETIMEDOUT : -EIO,
		     c->late ? "node-timeout" : "node-failed",
		     c->late ? "the operation took longer than its deadline"
			     : "the operation ended without an answer");
	child_done(c, &res);
}

static void child_overdue(struct loop_timer *t)
{
	struct child *c = t->arg;

	log_warn("a child passed its deadline", F_STR("op", c->job.op->name), F_STR("key", c->key));
	c->late = true;
	child_kill(c);
}

int child_start(struct nm *nm, const struct child_job *job, const struct child_task *task,
		struct child **ret, struct err *e)
{
	struct child *c;
	pid_t parent = getpid();
	int sv[2];

	if (child_busy(nm, job->key))
		return err_set_code(e, -EBUSY, "busy", "another operation on %s is running",
				    job->key);
	if (nm->n_children >= NM_CHILDREN_MAX)
		return err_set_code(e, -EAGAIN, "limit", "the node runs %d operations already",
				    NM_CHILDREN_MAX);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
		return err_errno(e, -errno, "no socket pair");
	c = x_alloc(sizeof(*c));
	c->nm = nm;
	c->job = *job;
	c->job.key = c->key;
	str_copy(c->key, sizeof(c->key), job->key);
	c->pid = fork();
	if (c->pid == 0)
		child_run(job, task, sv[1], parent);
	fd_close(sv[1]);
	c->sock = sv[0];
	if (c->pid < 0) {
		int r = -errno;

		fd_close(sv[0]);
		free(c);
		return err_errno(e, r, "no child can be forked");
	}
	list_add_tail(&nm->children, &c->node);
	nm->n_children++;
	loop_add(nm->loop, &c->io, c->sock, EPOLLIN, child_readable, c);
	loop_timer_set(nm->loop, &c->deadline, job->deadline_ms, child_overdue, c);
	if (ret)
		*ret = c;
	return 0;
}
