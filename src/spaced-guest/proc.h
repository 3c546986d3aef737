/*
 * Inside of process.Process: the record of a command, shared by process.c (its life),
 * process_start.c, process_input.c and process_rpc.c.
 */
#ifndef GUEST_PROC_H
#define GUEST_PROC_H

#include "spaced-guest/process.h"

#define PROC_CONFIG_MAX (64 << 10)               /* JSON that List shows; larger ones are shown without args and envs */

enum proc_state { PROC_STARTING, PROC_RUNNING, PROC_ENDED };
enum { OUT, ERR };

struct proc;

struct source {                                  /* stdout, stderr or the terminal */
	struct ev_watch watch;
	struct proc *p;
	const char *kind;
	struct ev_timer later;                   /* armed = gathering */
	int64_t last_ms;                         /* when it was read last */
	bool drained;                            /* after the exit: nothing more is owed to the readers */
	size_t left;                             /* after the exit: bytes still owed */
};

struct instream;

/* Bytes that wait for a stdin or a terminal: of a SendInput, or one message of a StreamInput. */
struct input {
	struct list node;
	struct req *r;                           /* SendInput, answered when all is written; NULL = left */
	struct instream *stream;                 /* StreamInput; NULL = left */
	struct input_req q;
	size_t off;
};

struct reader {
	struct list node;
	struct proc *p;
	struct req *r;
	bool starter;
	int64_t keepalive_ms, last_ms;
	struct ev_timer keepalive, deadline;
};

struct proc {
	struct list node;
	struct agent *a;
	enum proc_state state;
	pid_t pid;
	uint64_t serial;                         /* unlike pid and tag never used again */
	char *tag, *config, *name;
	uint64_t cgroup;
	bool pty, exited, expired, killed;
	int wstatus;
	struct source src[2];
	int master;                              /* for Update; -1 = no terminal */
	struct ev_watch in;
	struct list inputs;
	size_t input_bytes;
	bool close_in;                           /* when what waits is written */
	struct ev_watch status;
	struct list readers;
	unsigned n_readers;
	struct ev_timer deadline, keep, quiet;
	unsigned quiet_rounds;
	char *end;                               /* the end event */
	int64_t start_ms;
	char req_id[REQ_ID_MAX + 1];
};

struct procs {
	struct agent *a;
	struct list list;
	unsigned n;
	uint64_t serials;
	struct ev_timer again;
	char chunk[CONNECT_CHUNK];
};

/* process.c */
struct proc *proc_new(struct agent *a, const char *name, const char *tag, const char *req_id);
void proc_free(struct proc *p);
void proc_kill(struct proc *p);                  /* SIGKILL to the whole cgroup */
void watch_close(struct agent *a, struct ev_watch *w);
struct reader *reader_new(struct proc *p, struct req *r, bool starter);
void reader_free(struct reader *rd);
void reader_event(struct reader *rd, const char *json);
void reader_start_event(struct reader *rd);

/* process_rpc.c */
/* NULL = answered. A running one is found before an ended one with the same tag or number. */
struct proc *proc_find_or_fail(struct req *r, const struct selector *sel, bool ended_too);

/* process_input.c */
void proc_on_input(struct ev_watch *w, uint32_t events);
void inputs_fail(struct proc *p, enum connect_code code, const char *text);      /* answers what waits, closes stdin */

#endif
