/*
 * process.Process: the commands of a sandbox and who reads them.
 *
 * A command is STARTING until its exec has succeeded, RUNNING until its first process has exited
 * and what its pipes hold at that moment is delivered, then ENDED; its end is kept PROCESS_KEEP_MS
 * for late Connects. Children that keep a pipe do not delay the end; what they write later is read
 * and dropped, so that they are not hit by SIGPIPE.
 *
 * Flow: a pipe is read only while every reader's stream has room for one more event: the slowest
 * reader makes the command wait. With no reader, output is read and dropped.
 *
 * Ends: SIGTERM goes to the group of the first process; SIGKILL and the time-out of Start go to the
 * whole cgroup. A reader that leaves ends nothing.
 */
#ifndef GUEST_PROCESS_H
#define GUEST_PROCESS_H

#include "spaced-guest/agent.h"
#include "spaced-guest/connect.h"

#define PROCESS_MAX 1024                 /* commands that run, are kept, or whose children hold pipes; then resource_exhausted */
#define PROCESS_KEEP_MS 30000
#define PROCESS_READERS_MAX 64           /* of one command */
#define PROCESS_INPUT_MAX (16 << 20)     /* bytes waiting for the stdin of one command; then resource_exhausted */

struct procs *procs_new(struct agent *a);
void procs_free(struct procs *ps);               /* kills what runs */
void procs_reap(struct procs *ps);               /* on SIGCHLD: also the orphans that came to us */
void procs_kill_all(struct procs *ps);
/*
 * Commands whose first process has not exited; of terminals only those where something other than
 * their first process has the foreground (docs/activity.md).
 */
unsigned procs_running(struct procs *ps);

size_t procs_input_bytes(const struct procs *ps);        /* that wait for commands to read them */

/* What all commands have in common: E2B_* and what create and template say. */
void process_global_envs(const struct agent *a, struct envs *ret);
/* The environment of a command; `own` may be NULL. Later ones win: base, global, own. */
void process_envs(const struct agent *a, const struct user *u, const struct envs *own,
		  struct envs *ret);

void process_start(struct req *r, const char *body, size_t n);
void process_connect(struct req *r, const char *body, size_t n);
void process_list(struct req *r, const char *body, size_t n);
void process_send_input(struct req *r, const char *body, size_t n);
void process_stream_input(struct req *r);        /* from the head on */
void process_close_stdin(struct req *r, const char *body, size_t n);
void process_send_signal(struct req *r, const char *body, size_t n);
void process_update(struct req *r, const char *body, size_t n);

#endif
