/* Seccomp allow-lists (seccomp(2), libseccomp). Names that the kernel does not know are skipped. */
#ifndef DAEMON_SECCOMP_H
#define DAEMON_SECCOMP_H

#include <stdint.h>
#include "base/err.h"

/* What every daemon with the loop, log and threads needs; programs add their own. */
extern const char *const seccomp_common[];

/*
 * Names with a meaning of their own:
 *	clone:thread threads, no processes and no new namespaces; "clone:any" without conditions
 *	clone3       answers ENOSYS (its flags cannot be filtered; glibc then uses clone)
 *	ioctl:basic  FIONREAD, FIONBIO and TCGETS only; "ioctl" without conditions
 */

/*
 * Default action: kill the process. With SPACE_SECCOMP=log in the environment (tests that record
 * system calls) the default action is to log. `lists` ends with NULL; each list ends with NULL.
 * Needs no_new_privs.
 */
int seccomp_apply(const char *const *const *lists, struct err *e);
/*
 * The same as a BPF program in a memfd, for jails that are entered by another program
 * (node-manager). `enosys` (may be NULL) ends with NULL: these answer ENOSYS, for programs that
 * have a way without them.
 */
int seccomp_export(const char *const *const *lists, const char *const *enosys, int *ret_memfd,
		   struct err *e);

/*
 * A call that is allowed with certain arguments alone: (argument & mask) == value for each
 * condition, the end is a mask of 0. Several rules of one call: one of them must hold. The call
 * must stand in none of the lists. 32-bit arguments take a mask of 32 bits: what stands above them
 * in the register is not looked at by the kernel either.
 */
#define SECCOMP_CONDS_MAX 3
#define SECCOMP_INT UINT64_C(0xffffffff)
#define SECCOMP_ALL UINT64_MAX
struct seccomp_rule {
	const char *call;                /* NULL = end of the table */
	struct { uint8_t arg; uint64_t mask, value; } conds[SECCOMP_CONDS_MAX];
};
int seccomp_apply_rules(const char *const *const *lists, const struct seccomp_rule *rules,
			const char *const *enosys, struct err *e);
int seccomp_export_rules(const char *const *const *lists, const struct seccomp_rule *rules,
			 const char *const *enosys, int *ret_memfd, struct err *e);

#endif
