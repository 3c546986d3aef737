/*
 * sbx-manager: the life cycle of the sandboxes of this node, their runtime records, admission and
 * leases (spec L-5, K-4, R-1 to R-3, B-1 to B-3, T-1). Unprivileged.
 *
 * Theory of operation
 *
 * The loop's thread owns the boxes (one per sandbox: the copy of its record in memory, its leases,
 * the connections that watch its VMM and bridge), decides admissions and hands out descriptors.
 * What takes time are jobs: straight-line code in worker threads with connections of their own;
 * jobs about one sandbox run one after the other (loop/work.h). A job never touches a box: it asks
 * the loop to (sbx_in_loop), and waits for that.
 *
 * A record in memory is set only after its row was committed (K-4). Denying needs no commit:
 * `ending` in a box is set first of all when an execution is to end, and nothing is admitted from
 * then on.
 *
 * Files: record.c rows; box.c the table of boxes and what watches them; admit.c the admission;
 * lease.c leases; revoke.c the order of revocation; job.c how a story runs; exec.c how an execution
 * begins and ends; lifecycle.c create, start, stop, delete, console; pause.c pause and
 * resume; crash.c what ended by itself; gateway.c the network gateway of an execution; netlog.c what
 * it has seen; adopt.c after a restart; template.c; bundle.c; init.c; report.c.
 */
#ifndef SBX_MANAGER_SBX_H
#define SBX_MANAGER_SBX_H

#include <limits.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "daemon/conf.h"
#include "identity/identity.h"
#include "ipc/ipc.h"
#include "ipc/nm_ops.h"
#include "ipc/sbx_ops.h"
#include "loop/loop.h"
#include "loop/work.h"
#include "sbx-manager/record.h"
#include "vmm/manifest.h"
#include "vmm/vmm.h"

#define SBX_WORKERS 16                       /* jobs at once */
#define SBX_JOBS_PER_BOX_MAX 64              /* requests that wait for one sandbox: the queue is everybody's */
#define SBX_PEERS_MAX 64
#define SBX_BOXES_MAX 65536                  /* sandboxes of all states on this node */
#define SBX_PURGE_MS (3600 * 1000)           /* between two looks for old tombstones */
#define SBX_LEASES_PER_BOX_MAX 512           /* to its bridge; then 429 */
#define SBX_PORTS_PER_BOX_MAX 2000           /* to its gateway; then 429 */
#define SBX_LEASES_MAX 8192
#define SBX_ADMITS_PENDING_MAX 1024          /* admissions that wait for node-manager's answer */
#define SBX_LEASE_BUCKETS 1024
#define SBX_CAP_CACHE_ENTRIES 4096
#define SBX_REVOKE_MS 100                    /* a bridge that does not confirm by then is killed */
#define SBX_NM_MS 30000                      /* most time of one call to node-manager */
#define SBX_VERIFY_MS 2000

struct sbx;

/* What the network gateway of an execution has confirmed. */
struct gateway {
	uint64_t pid;                        /* of its main process, as recorded; 0 = none can be used */
	uint64_t attempt, bundle;            /* what it knows */
	bool open;                           /* it lets out */
};

struct box {
	struct list node;                    /* by seq */
	struct sbx *s;
	uint64_t seq;
	struct record rec;                   /* as committed */
	bool ending;                         /* nothing is admitted any more for this generation */
	unsigned jobs;                       /* queued or running */
	struct list leases;
	size_t n_leases, n_ports;            /* all, and those through the gateway */
	/* gateway.c */
	struct gateway gateway;
	bool gateway_doubt;                  /* to be checked before it is relied on */
	bool gateway_said;                   /* the sandbox's log says that it has no network */
	unsigned gateway_reports;            /* of its end */
	unsigned gateway_fails;              /* starts in a row that failed or did not last */
	int64_t gateway_since_ms;
	struct loop_timer gateway_timer;
	char gateway_why[RECORD_REASON_MAX]; /* it is not there; "" = it is */
	/* What watches the execution. NULL without one. */
	struct vmm *vm;                      /* lent to a job while that needs it */
	struct loop_io vm_io;
	struct ipc_client *control;
	/* It ended by itself while a job was there: looked at after it. */
	bool crashed;
	struct loop_timer retry, finish;
	uint64_t crash_generation;
	enum life_event crash_event;
	char crash_reason[RECORD_REASON_MAX];
};

/* One connection of node-api: its leases end with it. */
struct door {
	struct list node;
	struct ipc_peer *peer;
	struct list leases;
};

struct lease {
	struct list in_box, in_door, in_bucket;
	uint64_t id;
	struct box *box;
	struct door *door;
	bool port;                           /* through the gateway */
	int fd;                              /* duplicate of the stream that node-api has */
	struct loop_io io;                   /* polled for HUP only */
	bool hup;
};

struct sbx {
	struct conf conf;
	struct loop *loop;
	struct work *work;
	struct record_db *db;
	struct ipc_server *server;
	struct ipc_client *nm;
	char nm_path[PATH_MAX];
	uid_t nm_uid;                        /* root */
	uid_t server_uids[2];

	struct map *boxes;                   /* sandbox -> struct box */
	struct list box_list;
	uint64_t next_seq;

	struct list doors;
	struct list lease_buckets[SBX_LEASE_BUCKETS];
	size_t n_leases, n_admits;
	uint64_t next_lease;

	uint8_t root_public[KEY_PUBLIC_BYTES];
	struct key_bundle bundle;
	uint64_t bundle_told;                /* its number, once every gateway was told */
	char *bundle_text;                   /* as it came, for gateways; NULL = none yet */
	struct loop_timer purge;
	struct cap_cache *caps;
	struct manifest manifest;            /* of the template that was read last; template_id "" = none yet */
	atomic_bool leaving;                 /* the loop will not turn much longer */
};

/* ---- main.c ---- */
int sbx_open(struct sbx *s, struct err *e);          /* after conf and loop are set: records, keys, workers, node-manager */
int sbx_serve(struct sbx *s, struct err *e);         /* its socket */
void sbx_close(struct sbx *s);
/*
 * For operations that carry no capability: false = refused and answered (node-api has the same
 * socket).
 */
bool sbx_only_root(struct ipc_call *call);
/*
 * From a worker: fn(arg) runs in the loop's thread, and this waits for it. -ECANCELED when the
 * program is leaving.
 */
int sbx_in_loop(struct sbx *s, void (*fn)(void *arg), void *arg);

/* ---- box.c (loop's thread) ---- */
struct box *box_find(struct sbx *s, const char *sandbox);
/*
 * Sets the copy in memory; makes the box; a record in state none removes it with all that watches.
 * Call after the commit only.
 */
struct box *box_set(struct sbx *s, const struct record *r);
void box_watch(struct box *b, struct vmm *vm);       /* owns vm; also connects to the bridge's control socket */
void box_unwatch(struct box *b);
struct vmm *box_lend_vm(struct box *b);              /* NULL = none; the caller gives it back with box_watch or closes it */
void box_free_all(struct sbx *s);
int box_path(struct sbx *s, char dst[PATH_MAX], const char *sandbox, uint64_t generation,
	     const char *name);

/* ---- crash.c (loop's thread) ---- */
void crash_seen(struct sbx *s, const char *sandbox, uint64_t generation, enum life_event ev,
		const char *reason);
void crash_after_job(struct box *b);
void crash_job_failed(struct box *b, const struct err *e);
void crash_on_nm_event(const char *name, json_t *a, void *arg);

/* ---- admit.c, lease.c, bundle.c, report.c, lifecycle.c, template.c: handlers of the table ---- */
void admit_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
void lease_end_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
void lifecycle_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
void bundle_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
void report_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
void template_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);

/* Verifies signature and time. 0 or -EACCES with code "refusal-deny". */
int admit_capability(struct sbx *s, const char *text, enum id_purpose purpose,
		     enum id_access access, uint64_t port, enum id_protocol protocol,
		     struct capability *ret, struct err *e);

/* ---- lease.c (loop's thread) ---- */
void lease_door_joined(struct ipc_peer *p, void *arg);
void lease_door_left(struct ipc_peer *p, void *arg);
int lease_init(struct sbx *s);
uint64_t lease_next_id(struct sbx *s);
int lease_add(struct box *b, struct ipc_peer *p, uint64_t id, bool port, int fd,
	      struct err *e);                        /* owns fd (the duplicate) */
void lease_drop(struct box *b, uint64_t id);
void lease_cut_all(struct box *b);                   /* shutdown, throw away what is queued, tell node-api, forget */
void lease_cut_ports(struct box *b);                 /* the same for those through the gateway */

/* ---- gateway.c (loop's thread) ---- */
struct job;
void gateway_look(struct box *b);                    /* is it as it shall be? else a job is started */
void gateway_look_all(struct sbx *s, bool doubt);
void gateway_forget(struct box *b);                  /* the execution is another one, or gone */
void gateway_set(struct box *b, const struct job *j);        /* what a job has made of it; after its commit */
void gateway_exited(struct sbx *s, const char *sandbox, uint64_t generation, const char *reason);

/* ---- bundle.c ---- */
int bundle_load(struct sbx *s, struct err *e);

#endif
