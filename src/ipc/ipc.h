/*
 * The local protocol between daemons: AF_UNIX SOCK_SEQPACKET, one message a packet of at most
 * IPC_MSG_MAX bytes, JSON body and passed descriptors. Request:
 * {"v":1,"op":"spawn","id":12,"req":"<request id>","a":{...}}; answer: {"id":12,"r":{...}} or
 * {"id":12,"e":{"num":-2,"code":"...","text":"..."}}; event: {"ev":"exited","a":{...}}. Refused:
 * depth over IPC_DEPTH_MAX, duplicate keys, unknown fields, NUL, numbers beyond 2^53, a wrong type
 * or size, too many descriptors.
 *
 * Messages are tables (struct ipc_op): client stub and server answer use the same one, so they
 * cannot differ. Structs hold fixed arrays for strings; optional strings are "" when absent.
 */
#ifndef IPC_IPC_H
#define IPC_IPC_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "base/err.h"
#include "base/fd.h"
#include "loop/loop.h"

#define IPC_VERSION 1
#define IPC_MSG_MAX 65536
#define IPC_DEPTH_MAX 8
#define IPC_REQ_ID_MAX 64

enum ipc_type {
	IPC_STR,          /* char[size] in the struct */
	IPC_U64,          /* uint64_t <= 2^53; max in `max` when not 0 */
	IPC_I64,
	IPC_BOOL,         /* bool */
	IPC_JSON,         /* json_t *, owned by the struct (ipc_done); for nested data */
};

struct ipc_field {
	const char *name;
	enum ipc_type type;
	size_t off, size;
	uint64_t max;
	int optional;
};

#define IPC_F_STR(st, f) { #f, IPC_STR, offsetof(st, f), sizeof(((st *)0)->f), 0, 0 }
#define IPC_F_STR_OPT(st, f) { #f, IPC_STR, offsetof(st, f), sizeof(((st *)0)->f), 0, 1 }
#define IPC_F_U64(st, f, max) { #f, IPC_U64, offsetof(st, f), 8, max, 0 }
#define IPC_F_U64_OPT(st, f, max) { #f, IPC_U64, offsetof(st, f), 8, max, 1 }
#define IPC_F_I64(st, f) { #f, IPC_I64, offsetof(st, f), 8, 0, 0 }
#define IPC_F_BOOL(st, f) { #f, IPC_BOOL, offsetof(st, f), sizeof(bool), 0, 0 }
#define IPC_F_BOOL_OPT(st, f) { #f, IPC_BOOL, offsetof(st, f), sizeof(bool), 0, 1 }
#define IPC_F_JSON(st, f) { #f, IPC_JSON, offsetof(st, f), sizeof(json_t *), 0, 0 }
#define IPC_F_JSON_OPT(st, f) { #f, IPC_JSON, offsetof(st, f), sizeof(json_t *), 0, 1 }
#define IPC_F_END { NULL, IPC_STR, 0, 0, 0, 0 }

struct ipc_op {
	const char *name;
	const struct ipc_field *req;      /* ends with IPC_F_END; NULL = no fields */
	size_t req_size;
	const struct ipc_field *rep;
	size_t rep_size;
	unsigned req_fds, rep_fds;        /* most descriptors in the request and in the answer */
};

/* Encode and decode by table; also for JSON bodies elsewhere. decode: -EBADMSG with a sentence. */
json_t *ipc_encode(const struct ipc_field *fields, const void *st);
int ipc_decode(const struct ipc_field *fields, json_t *obj, void *st, size_t st_size,
	       struct err *e);
void ipc_done(const struct ipc_field *fields, void *st);            /* frees IPC_JSON members */
/*
 * Strict JSON text -> value: depth, duplicates, NUL, big numbers, size checked before allocation.
 */
json_t *ipc_parse_json(const char *p, size_t n, unsigned max_depth, struct err *e);

/* ---- Server: one per listening socket; each peer is a connection ---- */
struct ipc_server;
struct ipc_peer;
struct ipc_call;      /* one request being served */

struct ipc_handler {
	const struct ipc_op *op;
	/*
	 * Answer at once or later with ipc_answer/ipc_fail, exactly once. `req` stays until then.
	 * Descriptors in fds belong to the handler (TAKE_FD what is kept; the rest is closed after
	 * return).
	 */
	void (*fn)(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg);
};

struct ipc_server_conf {
	const struct ipc_handler *handlers;     /* ends with op NULL */
	const uid_t *uids; size_t n_uids;       /* SO_PEERCRED must be one of these; others are closed at once */
	size_t max_peers;
	void (*joined)(struct ipc_peer *p, void *arg);     /* may be NULL */
	void (*left)(struct ipc_peer *p, void *arg);       /* may be NULL */
	void *arg;
};

struct ipc_server *ipc_server_new(struct loop *l, int listen_fd, const struct ipc_server_conf *c);   /* owns listen_fd */
void ipc_server_free(struct ipc_server *s);
void ipc_answer(struct ipc_call *call, const void *rep, const int *fds, size_t n_fds);     /* fds are duplicated by the kernel; caller keeps his */
void ipc_fail(struct ipc_call *call, const struct err *e);
const char *ipc_call_req_id(const struct ipc_call *call);
struct ipc_peer *ipc_call_peer(const struct ipc_call *call);
const struct fd_peer *ipc_peer_cred(const struct ipc_peer *p);
/*
 * Events to one peer or to all; a peer that lets over 1024 packets or 2 MiB pile up is closed (it
 * reconnects and asks for lists).
 */
void ipc_peer_event(struct ipc_peer *p, const char *name, const struct ipc_field *fields,
		    const void *st);
void ipc_server_event(struct ipc_server *s, const char *name, const struct ipc_field *fields,
		      const void *st);
void ipc_peer_close(struct ipc_peer *p);

/*
 * A malformed request, an unknown op, a wrong version: the peer is closed, `misuse` counted; said
 * by the caller's log in `left`.
 */
const char *ipc_peer_fault(const struct ipc_peer *p);       /* why it was closed, or NULL */

/* ---- Client in a loop: asynchronous, reconnects by itself with back-off (50 ms to 2 s) ---- */
struct ipc_client;
typedef void ipc_reply_fn(void *arg, const struct err *e /* NULL = fine */, const void *rep,
			  int *fds, size_t n_fds);

struct ipc_client *ipc_client_new(struct loop *l, const char *path, uid_t server_uid);
void ipc_client_free(struct ipc_client *c);
/*
 * fn is called exactly once and never inside this call: answer, error, -ETIMEDOUT, -ECONNRESET
 * (sent, and then the connection broke or the client was freed), -EAGAIN (more than 1024 in
 * flight). While there is no connection, or the server does not read, the call waits, as long as
 * its time-out. `rep` and its JSON live until fn returns; descriptors in fds belong to fn. The
 * caller keeps his own fds.
 */
void ipc_client_call(struct ipc_client *c, const struct ipc_op *op, const char *req_id,
		     const void *req, const int *fds, size_t n_fds, int timeout_ms,
		     ipc_reply_fn *fn, void *arg);
void ipc_client_on_event(struct ipc_client *c, void (*fn)(const char *name, json_t *a, void *arg),
			 void *arg);
/*
 * For a server that may be in a guest's hands and is only listened to: one packet is read each 100
 * ms, so that it cannot keep the loop busy.
 */
void ipc_client_pace(struct ipc_client *c);
void ipc_client_on_state(struct ipc_client *c, void (*fn)(bool connected, void *arg), void *arg);
bool ipc_client_connected(const struct ipc_client *c);

/*
 * ---- Client for worker threads: blocking, one socket of its own; not shared between threads ----
 */
struct ipc_sync;
int ipc_sync_open(const char *path, uid_t server_uid /* (uid_t)-1 = any */, struct ipc_sync **ret,
		  struct err *e);
int ipc_sync_open_fd(int fd, struct ipc_sync **ret);                      /* owns fd */
void ipc_sync_close(struct ipc_sync *c);
bool ipc_sync_broken(const struct ipc_sync *c);          /* the last call failed with the connection, not by the peer's word */
/*
 * While a call waits, fn is called whenever fd is readable; it reads. Negative: the call ends with
 * that, and with fn's err.
 */
typedef int ipc_watch_fn(void *arg, struct err *e);
void ipc_sync_watch(struct ipc_sync *c, int fd, ipc_watch_fn *fn, void *arg);
/*
 * rep is filled (free IPC_JSON members with ipc_done; NULL = not wanted). *ret_n_fds in: room, out:
 * received (NULL = none wanted). A broken connection is made anew by the next call, when it was
 * opened by path.
 */
int ipc_sync_call(struct ipc_sync *c, const struct ipc_op *op, const char *req_id, const void *req,
		  const int *fds, size_t n_fds, void *rep, int *ret_fds, size_t *ret_n_fds,
		  int timeout_ms, struct err *e);
/* A call in two parts, with other things to do between them; nothing else goes over c meanwhile. */
int ipc_sync_begin(struct ipc_sync *c, const struct ipc_op *op, const char *req_id,
		   const void *req, const int *fds, size_t n_fds, int timeout_ms, struct err *e);
int ipc_sync_end(struct ipc_sync *c, const struct ipc_op *op, void *rep, int *ret_fds,
		 size_t *ret_n_fds, int timeout_ms, struct err *e);

#endif
