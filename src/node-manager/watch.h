/*
 * The ends of processes: pidfds, jail-init's reports, what VMM, bridge and gateway write to
 * stderr.
 */
#ifndef NODE_MANAGER_WATCH_H
#define NODE_MANAGER_WATCH_H

#include "node-manager/nm.h"

#define WATCH_REPORT_MS 500              /* how long a status may come after its process's end */
#define WATCH_TEXT_PER_MIN 20            /* lines of an execution that are logged; the rest is counted */
/*
 * After so many bytes of a program it is not listened to for a while: its pipe fills, and it loses
 * what it writes. A guest can make its VMM complain as often as it likes.
 */
#define WATCH_TEXT_BYTES 16384
#define WATCH_TEXT_PAUSE_MS 1000

/*
 * Opens the pidfds by the record; a process that is not there any more makes the execution ENDED.
 */
void watch_start(struct exec *x);
void watch_stop(struct exec *x);
/* After its record and pipe are there. */
void watch_start_gateway(struct exec *x);
/* Its end, which is coming, is told to nobody. */
void watch_forget_gateway(struct exec *x);
/* SIGCHLD: the status of a jail-init that is our own child. */
void watch_reaped(struct nm *nm, pid_t pid, int status);
/* -ESRCH when that process has ended. */
int watch_kill(struct exec *x, enum exec_who who);

#endif
