/*
 * Forked children: one for each request that touches a disk, waits for a process or takes over 1
 * ms.
 *
 * A child sees the tables as they were when it was forked. It keeps the capabilities of its
 * operation and the descriptors that it was given, dies with the main process (PR_SET_PDEATHSIG),
 * and is killed at its deadline. It sends one answer over a socket pair and ends. Forked children
 * of a child (jails) are not its concern: see spawn.c.
 */
#ifndef NODE_MANAGER_CHILD_H
#define NODE_MANAGER_CHILD_H

#include "base/list.h"
#include "node-manager/nm.h"

#define CHILD_KEY_MAX 80
#define CHILD_FDS_MAX 4

struct child;

/* What a child works on. Lives in the child's copy of the memory. */
struct child_task {
	struct nm *nm;
	const void *req;
	struct exec *x;                  /* may be NULL */
	const int *fds;                  /* of the request */
	size_t n_fds;
	void *rep;                       /* zeroed, op->rep_size bytes */
	int ret_fds[CHILD_FDS_MAX];      /* closed by the end of the child */
	size_t n_ret_fds;
	int spare[4];                    /* spawn.h, gateway.h; -1 or 0 = none */
};

typedef int child_fn(struct child_task *t, struct err *e);

struct child_result {
	struct err err;                  /* num 0 = fine */
	const void *rep;                 /* NULL when failed */
	const int *fds;
	size_t n_fds;
	const char *code;                /* "" or what kind of failure the child itself met: killed, ended */
};

struct child_job {
	const char *key;                 /* one child at a time for a key; "" = none */
	const struct ipc_op *op;         /* shapes the answer */
	child_fn *fn;
	uint64_t caps;                   /* bit mask 1 << CAP_x that the child keeps */
	int deadline_ms;
	/* In the main process, exactly once, also when the child was killed. */
	void (*done)(struct nm *nm, const struct child_result *res, void *arg);
	void *arg;
};

/* -EBUSY: the key has a child; -EAGAIN: NM_CHILDREN_MAX. *ret (may be NULL) is valid until done. */
int child_start(struct nm *nm, const struct child_job *job, const struct child_task *task,
		struct child **ret, struct err *e);
bool child_busy(const struct nm *nm, const char *key);
void child_kill(struct child *c);                        /* done comes later, with an error */
/* From the SIGCHLD handler. */
void child_reaped(struct nm *nm, pid_t pid);
void child_stop_all(struct nm *nm);                      /* the program's end: kills them; done is not called */

/* Keeps only these capabilities, in all sets but the bounding set. */
int child_keep_caps(uint64_t caps);
/* The main process: all stay permitted, for its children to take from; only these are in force. */
int child_lower_caps(uint64_t caps);

#endif
