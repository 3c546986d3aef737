/*
 * Theory of operation
 *
 *	node-manager's child ── clone ──▶ main (process 1) ── clone ──▶ inside
 *	                                                   ── clone ──▶ outside
 *
 * main begins new PID, IPC, UTS and mount namespaces, which the others share but for the mount
 * namespace. Its death is the death of all three (pid_namespaces(7)); it ends when it reads end of
 * file from one of the others. The network namespace tells them apart: outside stays in the node's,
 * inside enters the sandbox's, and main, once both are forked, begins an empty one.
 *
 * Order. inside and outside give up everything but the right to execute, close the pipe `ready`
 * and wait at the pipe `gate`. main gives up everything too, waits until both have closed `ready`,
 * listens at the two sockets (so that SO_PEERCRED of who connects shows this process under its last
 * uid) and executes; with that, `gate` closes and the others execute. So none of the three has any
 * right left when the first byte of a guest can be read by one of them.
 *
 * Errors come back over a socket pair as in jail.c, and the death of node-manager's child before
 * main has changed its uid kills main. A gateway without a record is verified by nobody and serves
 * nothing; the next NM_GATEWAY, NM_DESTROY or start of node-manager ends it.
 */
#include "node-manager/jail_gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "ipc/gtw_ops.h"
#include "node-manager/jail_steps.h"
#include "node-manager/jail_tree.h"

#define GATEWAY_SOCKETS_BACKLOG 64       /* of gtw.sock and gtwctl.sock */
#define GATEWAY_NPROC 8                  /* RLIMIT_NPROC: three, and zombies of a former gateway's */

_Static_assert((int)NM_GATEWAY_PROCESSES == (int)JAIL_GATEWAY_COUNT, "one filter each");

const char *const jail_gateway_names[] = { "main", "inside", "outside" };
_Static_assert(ARRAY_LEN(jail_gateway_names) == JAIL_GATEWAY_COUNT, "every process has a name");

/* Each pair: [0] main's end. */
enum { LINK_INSIDE, LINK_DIALS, LINK_RESOLVER, LINK_COUNT };

struct gateway_parts {
	const struct jail_gateway_spec *s;
	int ctl, ready[2], gate[2], link[LINK_COUNT][2];
};

#define GATEWAY_LIMITS(files)                                                                      \
	{ { RLIMIT_CORE, 0 },         { RLIMIT_NOFILE, files }, { RLIMIT_NPROC, GATEWAY_NPROC },   \
	  { RLIMIT_FSIZE, 0 },        { RLIMIT_MEMLOCK, 0 },    { RLIMIT_MSGQUEUE, 0 },            \
	  { RLIMIT_NICE, 0 },         { RLIMIT_RTPRIO, 0 },     { RLIMIT_SIGPENDING, 64 },         \
	  JAIL_LIMITS_END }

static const struct jail_limit main_limits[] = GATEWAY_LIMITS(GTW_MAIN_NOFILE);
static const struct jail_limit part_limits[] = GATEWAY_LIMITS(GTW_PART_NOFILE);

/* Until the last writer has closed it. */
static int pass(int fd, const char *what, struct err *e)
{
	char byte;
	ssize_t n;

	do {
		n = read(fd, &byte, 1);
	} while (n < 0 && errno == EINTR);
	return n == 0 ? 0 : err_set(e, -EIO, "the pipe \"%s\" of the gateway's jail", what);
}

static int enter(const struct gateway_parts *p, struct err *e)
{
	char tree[PATH_MAX];
	int r = jail_tree_path(p->s->nm, tree, JAIL_TREE_GATEWAY, p->s->nm->gateway_tree.digest, e);

	return r < 0 ? r : jail_enter_root(tree, NULL, 0, e);
}

static int execute(const struct gateway_parts *p, enum jail_gateway_who who, int filter,
		   struct err *e)
{
	char *env[] = { NULL };
	int r = jail_load_filter(filter, e);

	if (r < 0)
		return r;
	execve("/" JAIL_GATEWAY_PROGRAM, p->s->argv[who], env);
	return err_errno(e, -errno, "the gateway cannot be executed");
}

/* What inside and outside have in common, once they are in their network namespace. */
static int run_part(const struct gateway_parts *p, enum jail_gateway_who who, const int *fds,
		    size_t n_fds, int *ctl, struct err *e)
{
	int filter = p->s->nm->gateway_filter_fd[who], ready = p->ready[1], gate = p->gate[0];
	int r = enter(p, e);

	if (r == 0)
		r = jail_drop_rights(p->s->uid, part_limits, e);
	if (r == 0)
		r = jail_place_fds(fds, n_fds, (int *const[]){ ctl, &filter, &ready, &gate }, 4, e);
	if (r < 0)
		return r;
	close(ready);
	r = pass(gate, "gate", e);
	return r < 0 ? r : execute(p, who, filter, e);
}

static int run_inside(const struct gateway_parts *p, int *ctl, struct err *e)
{
	const struct jail_gateway_spec *s = p->s;
	const int fds[GTW_INSIDE_FD_END] = {
		s->null, s->null, s->text,
		[GTW_INSIDE_MAIN] = p->link[LINK_INSIDE][1],
		[GTW_INSIDE_UDP4] = s->net[NET_UDP4],
		[GTW_INSIDE_UDP6] = s->net[NET_UDP6],
	};

	if (setns(s->netns, CLONE_NEWNET) < 0)
		return err_errno(e, -errno, "the sandbox's network namespace cannot be entered");
	return run_part(p, JAIL_GATEWAY_INSIDE, fds, ARRAY_LEN(fds), ctl, e);
}

static int run_outside(const struct gateway_parts *p, int *ctl, struct err *e)
{
	const int fds[GTW_OUTSIDE_FD_END] = {
		p->s->null, p->s->null, p->s->text,
		[GTW_OUTSIDE_MAIN] = p->link[LINK_DIALS][1],
		[GTW_OUTSIDE_RESOLVER] = p->link[LINK_RESOLVER][1],
	};

	return run_part(p, JAIL_GATEWAY_OUTSIDE, fds, ARRAY_LEN(fds), ctl, e);
}

static int run_main(const struct gateway_parts *p, int *ctl, struct err *e)
{
	const struct jail_gateway_spec *s = p->s;
	int filter = s->nm->gateway_filter_fd[JAIL_GATEWAY_MAIN];
	int ready = p->ready[0], gate = p->gate[1];
	const int fds[GTW_MAIN_FD_END] = {
		s->null, s->null, s->text,
		[GTW_MAIN_STREAM] = s->streams,
		[GTW_MAIN_CONTROL] = s->control,
		[GTW_MAIN_INSIDE] = p->link[LINK_INSIDE][0],
		[GTW_MAIN_OUTSIDE] = p->link[LINK_DIALS][0],
		[GTW_MAIN_RESOLVER] = p->link[LINK_RESOLVER][0],
		[GTW_MAIN_TCP4] = s->net[NET_TCP4],
		[GTW_MAIN_TCP6] = s->net[NET_TCP6],
	};
	int r = unshare(CLONE_NEWNET) < 0 ? err_errno(e, -errno, "no empty network namespace") : 0;

	if (r == 0)
		r = enter(p, e);
	if (r == 0)
		r = jail_drop_rights(s->uid, main_limits, e);
	if (r == 0)
		r = jail_place_fds(fds, ARRAY_LEN(fds),
				   (int *const[]){ ctl, &filter, &ready, &gate }, 4, e);
	if (r == 0)
		r = pass(ready, "ready", e);
	if (r == 0 && (listen(GTW_MAIN_STREAM, GATEWAY_SOCKETS_BACKLOG) < 0 ||
		       listen(GTW_MAIN_CONTROL, GATEWAY_SOCKETS_BACKLOG) < 0))
		r = err_errno(e, -errno, "the gateway's sockets do not listen");
	return r < 0 ? r : execute(p, JAIL_GATEWAY_MAIN, filter, e);
}

static pid_t fork_part(const struct gateway_parts *p,
		       int (*run)(const struct gateway_parts *, int *, struct err *))
{
	struct err e = { 0 };
	int pidfd = -1, ctl = p->ctl;
	pid_t pid = jail_fork(CLONE_NEWNS, &pidfd);

	if (pid != 0)
		return pid;
	setsid();
	/* What the others wait to be closed. */
	close(p->gate[1]);
	close(p->ready[0]);
	run(p, &ctl, &e);
	jail_give_up(ctl, &e);
}

static __attribute__((noreturn)) void run_first(const struct gateway_parts *p)
{
	struct err e = { 0 };
	int ctl = p->ctl, r;

	/* As in jail.c: who has died meanwhile has closed its end of the socket pair. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setsid();
	r = cgroup_enter(&p->s->nm->cgroups, p->s->name, CGROUP_GATEWAY, &e);
	if (r == 0 && sethostname(JAIL_HOSTNAME, strlen(JAIL_HOSTNAME)) < 0)
		r = err_errno(&e, -errno, "the host name cannot be set");
	if (r == 0 && (fork_part(p, run_inside) < 0 || fork_part(p, run_outside) < 0))
		r = err_errno(&e, -errno, "the processes of the gateway cannot be forked");
	if (r == 0)
		run_main(p, &ctl, &e);
	jail_give_up(ctl, &e);
}

/* An error, or end of file. The child's deadline bounds the wait. */
static int gather(int ctl, int pidfd, struct err *e)
{
	struct err got;
	ssize_t n = recv(ctl, &got, sizeof(got), 0);

	if (n < 0)
		return err_errno(e, -errno, "the gateway's jail cannot be heard");
	if (n > 0 && n != sizeof(got))
		return err_set(e, -EIO, "the gateway's jail cannot be understood");
	if (n > 0) {
		if (e)
			*e = got;
		return got.num;
	}
	return jail_has_ended(pidfd)
		       ? err_set_code(e, -ECHILD, "jail-ended", "the gateway ended as it was started")
		       : 0;
}

static int open_parts(struct gateway_parts *p, int ctl[2], struct err *e)
{
	for (int i = 0; i < LINK_COUNT; i++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p->link[i]) < 0)
			return err_errno(e, -errno, "no socket pairs for the gateway");
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ctl) < 0 ||
	    pipe2(p->ready, O_CLOEXEC) < 0 || pipe2(p->gate, O_CLOEXEC) < 0)
		return err_errno(e, -errno, "no pipes for the gateway's jail");
	p->ctl = ctl[1];
	return 0;
}

/* What stays open on an error ends with the calling process, which is one operation's child. */
int jail_gateway_start(const struct jail_gateway_spec *s, pid_t *ret_main, struct err *e)
{
	struct gateway_parts p = { .s = s };
	int ctl[2], pidfd = -1;
	pid_t pid;
	int r = open_parts(&p, ctl, e);

	if (r < 0)
		return r;
	pid = jail_fork(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS, &pidfd);
	if (pid == 0) {
		close(ctl[0]);
		run_first(&p);
	}
	r = pid < 0 ? err_errno(e, -errno, "the namespaces of the gateway cannot be made") : 0;
	close(ctl[1]);
	for (int i = 0; i < 2; i++) {
		close(p.ready[i]);
		close(p.gate[i]);
		for (int k = 0; k < LINK_COUNT; k++)
			close(p.link[k][i]);
	}
	if (r == 0)
		r = gather(ctl[0], pidfd, e);
	close(ctl[0]);
	if (r < 0 && pid > 0)
		kill(pid, SIGKILL);
	else if (r == 0)
		*ret_main = pid;
	fd_close(pidfd);
	return r;
}
