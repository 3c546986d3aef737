/*
 * The steps by which a process of a jail gives up what it has: for jail.c and jail_gateway.c, in
 * the process itself, in this order: cgroup, root, rights, descriptors, filter, execve.
 */
#ifndef NODE_MANAGER_JAIL_STEPS_H
#define NODE_MANAGER_JAIL_STEPS_H

#include <limits.h>
#include <sys/resource.h>

#include "base/err.h"
#include "node-manager/nm.h"

#define JAIL_FDS_MAX 8
#define JAIL_FD_HIGH 100                 /* descriptors are gathered above this before they are put in place */
#define JAIL_HOSTNAME "sandbox"

/*
 * A file of the host that appears in the VMM's root, on an empty file of the tree. Absolute paths.
 */
struct jail_bind { char source[PATH_MAX]; const char *target; bool writable; };

struct jail_limit { int what; rlim_t value; };
#define JAIL_LIMITS_END { -1, 0 }

/* Sends the error to who started the jail, and ends. */
__attribute__((noreturn)) void jail_give_up(int ctl, const struct err *e);
/*
 * As fork(2), with new namespaces and a pidfd. Legacy clone: clone3 is refused by the filter that
 * all daemons share.
 */
pid_t jail_fork(unsigned long flags, int *ret_pidfd);

int jail_tree_path(const struct nm *nm, char dst[PATH_MAX], const char *kind, const char *digest,
		   struct err *e);
/* In a mount namespace of its own: the tree, read-only, with the bound files, becomes the root. */
int jail_enter_root(const char *tree, const struct jail_bind *b, size_t n, struct err *e);
int jail_set_limit(int what, rlim_t value, struct err *e);
/* Everything but descriptors and filter. */
int jail_drop_rights(uid_t uid, const struct jail_limit *limits, struct err *e);
/*
 * fds[i] becomes descriptor i and stays over exec; those of `own` follow with close-on-exec and are
 * changed to their new numbers; everything else is closed. n + n_own <= 2 * JAIL_FDS_MAX.
 */
int jail_place_fds(const int *fds, size_t n, int *const *own, size_t n_own, struct err *e);
int jail_load_filter(int fd, struct err *e);

/* ---- In node-manager's child ---- */

/* The PID that a pidfd stands for, in the PID namespace of /proc (proc(5), fdinfo). -1: ended. */
pid_t jail_pidfd_pid(int pidfd);
bool jail_has_ended(int pidfd);

#endif
