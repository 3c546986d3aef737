/*
 * Starting a program as a user in its own session, process group and cgroup. Between fork and exec
 * the child only makes system calls. It tells by a pipe that closes at exec: end of file = the
 * program runs.
 */
#ifndef GUEST_SPAWN_H
#define GUEST_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>
#include "base/err.h"
#include "spaced-guest/users.h"

struct spawn {
	char *const *argv, *const *envp;         /* argv[0] is looked up in the PATH of envp */
	const char *cwd;
	const struct user *user;
	int in, out, err;                        /* the child's ends; for a terminal all three are its slave */
	bool tty;                                /* in becomes the controlling terminal */
	int cgroup;                              /* folder of the cgroup, -1 = none */
};

/*
 * The pid, or a negative errno. *ret_status: non-blocking, readable when the child has exec'ed or
 * failed.
 */
pid_t spawn_start(const struct spawn *s, int *ret_status);
/* 0 = runs; -EAGAIN = not known yet; else the error, with a sentence. */
int spawn_status(int status, const char *name, struct err *e);

#endif
