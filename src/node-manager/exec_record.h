/*
 * Executions and their records.
 *
 * The record RUN/nm/<sandbox>.<generation>.json holds what tells this execution's processes,
 * executables and sockets from any others (B-1, B-2), and what is needed to unmake it. It is
 * written once; only what it says of the gateway changes, with each NM_GATEWAY. A record of another
 * boot of the machine is void: none of its processes lives.
 */
#ifndef NODE_MANAGER_EXEC_RECORD_H
#define NODE_MANAGER_EXEC_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/proc.h"
#include "identity/identity_limits.h"
#include "ipc/nm_ops.h"
#include "loop/loop.h"

#define EXEC_NAME_MAX (ID_SANDBOX_LEN + 1 + 16 + 1)     /* "<sandbox>.<generation>" */
#define EXEC_BOOT_ID_MAX 40
#define EXEC_RECORD_BYTES_MAX 8192
#define EXEC_TEXT_MAX 512                /* bytes of a line of stderr; longer ones are cut into several */

/*
 * The first EXEC_CORE_COUNT live as long as the execution does. The gateway's main process comes
 * later, with NM_GATEWAY, and may end and come again.
 */
enum exec_who { EXEC_INIT, EXEC_VMM, EXEC_BRIDGE, EXEC_GATEWAY, EXEC_WHO_COUNT };
#define EXEC_CORE_COUNT EXEC_GATEWAY
extern const char *const exec_who_names[EXEC_WHO_COUNT];        /* "init", "vmm", "bridge", "gateway" */

/* The last two are the gateway's, and new with each gateway. */
enum exec_socket {
	EXEC_QMP, EXEC_CHANNEL, EXEC_STREAMS, EXEC_CONTROL,
	EXEC_GTW_STREAMS, EXEC_GTW_CONTROL,
	EXEC_SOCKET_COUNT
};
#define EXEC_CORE_SOCKETS EXEC_GTW_STREAMS
extern const char *const exec_socket_names[EXEC_SOCKET_COUNT];  /* "qmp.sock", "chan.sock", "bridge.sock", "control.sock", "gtw.sock", "gtwctl.sock" */

enum exec_state {
	EXEC_NONE,         /* there is none of this name */
	EXEC_SPAWNING,     /* a child makes it; no record yet */
	EXEC_ALIVE,        /* recorded; VMM, bridge and jail-init live */
	EXEC_ENDED,        /* recorded; at least one of them has ended */
	EXEC_DESTROYING,   /* a child unmakes it */
	EXEC_STATE_COUNT,
};
extern const char *const exec_state_names[EXEC_STATE_COUNT];

/*
 * An executable file as it was when the process began: replaced (link count), altered (times, size)
 * or another one shows.
 */
struct exec_file { uint64_t dev, ino, size_bytes, mtime_s, mtime_ns, ctime_s, ctime_ns, links; };
struct exec_proc { uint64_t pid, start, uid; struct exec_file exe; };

struct exec_record {
	char boot_id[EXEC_BOOT_ID_MAX];
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation, slot;
	char template[NM_TEMPLATE_MAX + 1], mode[16];
	char vmm_tree[40], bridge_tree[40];
	char gateway_tree[40];           /* "" and pid 0: there is no gateway */
	struct exec_proc proc[EXEC_WHO_COUNT];
	struct { uint64_t dev, ino; } socket[EXEC_SOCKET_COUNT];
};

/* One process of an execution, watched by its pidfd (watch.c). */
struct exec_watch {
	struct exec *x;
	enum exec_who who;
	int pidfd;                       /* -1 = not watched */
	bool gone, told;
	struct loop_io io;
};

struct nm;
struct child;

struct exec {
	struct list node;
	struct nm *nm;
	char name[EXEC_NAME_MAX];
	struct exec_record rec;          /* sandbox, generation and slot from the start; the rest once ALIVE */
	enum exec_state state;
	struct child *child;             /* the one that makes or unmakes it, or its gateway */
	struct exec_watch watch[EXEC_WHO_COUNT];
	int link_fd;                     /* to jail-init; -1 after a restart of node-manager */
	struct loop_io link_io;
	struct loop_timer report_timer;  /* how long a status may follow its process */
	int text_fd[EXEC_WHO_COUNT];     /* what VMM, bridge and gateway write to stderr; -1 = not kept */
	struct loop_io text_io[EXEC_WHO_COUNT];
	char text[EXEC_WHO_COUNT][EXEC_TEXT_MAX];        /* of the line that is not ended yet */
	size_t text_len[EXEC_WHO_COUNT];
	size_t text_taken[EXEC_WHO_COUNT];       /* since the last pause */
	struct loop_timer text_timer;    /* the end of a pause */
	struct log_limit text_limit;     /* its own, so that none hides what the others' programs say */
	struct list waiters;             /* struct exec_waiter: DESTROY requests to be answered */
};

struct exec_waiter { struct list node; struct ipc_call *call; };

int exec_name(char dst[EXEC_NAME_MAX], const char *sandbox, uint64_t generation);
/* "<sandbox>.<generation>" exactly, nothing else. -EINVAL. */
int exec_name_parse(const char *name, char sandbox[ID_SANDBOX_LEN + 1], uint64_t *ret_generation);

struct exec *exec_add(struct nm *nm, const char *sandbox, uint64_t generation);
void exec_free(struct exec *x);                          /* out of the table; stops all watching */
struct exec *exec_find(struct nm *nm, const char *sandbox, uint64_t generation);
struct exec *exec_of_sandbox(struct nm *nm, const char *sandbox);       /* any generation */
struct exec *exec_of_template(struct nm *nm, const char *template);     /* one that boots this template in its staging folder */
void exec_set_state(struct exec *x, enum exec_state s);  /* logs */

int exec_boot_id(char dst[EXEC_BOOT_ID_MAX], struct err *e);
int exec_file_of(const char *path, struct exec_file *ret);              /* by stat(2) */
/*
 * Pid, start time, uid and executable of a process that has just begun. -ESRCH: its number is of
 * another uid by now.
 */
int exec_proc_note(enum exec_who who, pid_t pid, uid_t uid, struct exec_proc *ret, struct err *e);
bool exec_file_eq(const struct exec_file *a, const struct exec_file *b);

/* dir_fd: RUN/nm. */
int exec_record_write(int dir_fd, const struct exec_record *r, struct err *e);
int exec_record_read(int dir_fd, const char *name, struct exec_record *ret, struct err *e);     /* -ENOENT, -EBADMSG */
int exec_record_remove(int dir_fd, const char *name);
/*
 * At the start, when nobody writes one: calls fn with each name that has a record file, in no order.
 * What a writer left that was killed is removed.
 */
int exec_record_each(int dir_fd, void (*fn)(const char *name, void *arg), void *arg);

#endif
