/* Processes: identity that survives PID reuse (B-1). */
#ifndef BASE_PROC_H
#define BASE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_id {
	pid_t pid;                   /* in the PID namespace of the reader */
	uint64_t start_ticks;        /* field 22 of /proc/PID/stat, clock ticks since boot (proc(5)) */
};

int proc_id_of(pid_t pid, struct proc_id *ret);             /* -ESRCH */
bool proc_id_same(const struct proc_id *id);                /* is it still that process and not a zombie? */
int proc_pidfd_open(pid_t pid);                             /* fd or negative errno */
int proc_pidfd_signal(int pidfd, int sig);
int proc_close_fds_from(int lowest);                        /* close_range(2) */

#endif
