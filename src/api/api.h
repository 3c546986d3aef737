/*
 * space-api: the way in for clients. Control routes (E2B's in both generations, and ours under /v1)
 * with an API key; the data surface of each sandbox with its client token, relayed to the node that
 * has it.
 *
 * Order of dispatch (api.c): Host <port>-<sandbox>.<domain> (host.h); E2b-Sandbox-Id/-Port headers;
 * control routes (control.c); X-Access-Token alone; GET /health of this program.
 *
 * Threads: the loop owns connections, routes, streams and caches. What blocks (database, life-cycle
 * calls) is a job in one of two sets of workers, so that long operations do not keep short ones
 * waiting. A job gets copies and hands back one result; each worker thread has its own database
 * handle (api_store).
 */
#ifndef API_API_H
#define API_API_H

#include <jansson.h>
#include "api/token.h"
#include "base/list.h"
#include "base/map.h"
#include "http/server.h"
#include "identity/identity.h"
#include "loop/work.h"
#include "ops/ops.h"
#include "store/store.h"

#define API_CONNS_MAX 4096               /* open connections between requests; beyond: 503 */
#define API_STREAMS_MAX 8192             /* relayed requests; beyond: 429 */
#define API_BODY_MAX 131072              /* of a control request; beyond: 413 */
#define API_REQ_ID_MAX 64
#define API_ONCE_KEY_MAX 255             /* of an Idempotency-Key (E2B) */
#define API_KEY_MAX 256                  /* characters of an API key */
#define API_AUTH_TTL_MS 2000             /* a revoked key ends within this; never prolonged by use */
#define API_AUTH_ENTRIES_MAX 1024
#define API_ROUTE_TTL_MS 10000
#define API_ROUTES_MAX 8192
#define API_CAP_TTL_MS 60000             /* half a capability's life */
#define API_POOL_MAX 128                 /* idle connections to nodes */
#define API_POOL_IDLE_MS 30000           /* shorter than node-api keeps them */
#define API_QUICK_THREADS 4
#define API_SLOW_THREADS 24
#define API_OP_WAIT_MS 45000             /* a client waits as long for an operation that another driver has */
#define API_NODE_CALL_MS 180000

struct api_conf {
	const char *store_url;
	const char *keys_dir;            /* STATE/keys/api */
	const char *root_pub;            /* STATE/keys/root.pub */
	const char *domain;
	const char *origins;             /* whose pages may open terminals beside our own, separated by blanks; NULL = none */
	const char *claimer;             /* NULL: made from pid and random bits */
	const char *tls_pem;             /* file with key and chain (front.h); NULL: no TLS */
};

struct api_keys;
struct api_route;

struct api {
	struct loop *loop;
	char store_url[300], keys_dir[300], root_pub[300];
	char domain[128], domain_host[128];      /* with and without port */
	char claimer[64];
	struct http_server *http;
	struct work *quick, *slow;
	struct map *auth;                /* key hash -> struct auth_entry */
	struct map *routes;              /* sandbox -> struct api_route */
	char origins[600];
	struct list streams;
	size_t n_streams;
	struct list terminals;
	size_t n_terminals;
	struct list pool;
	size_t n_pool;
	struct api_keys *keys;
	struct front *front;             /* NULL: no TLS */
	struct metrics_kept *metrics;
	struct map *signed_known;        /* signature -> sandbox */
	size_t n_signed;                 /* look-ups that wait or run */
	bool stopping;
};

struct api *api_new(struct loop *l, const struct api_conf *c, struct err *e);
void api_free(struct api *a);
void api_accept(struct api *a, int fd);
void api_accept_tls(struct api *a, int fd);      /* needs tls_pem */

/* The calling worker's database handle. */
struct store *api_store(struct api *a, struct err *e);

/* ---- a control request ---- */
struct call;
struct control_route;

struct call {
	struct api *api;
	struct http_req *req;
	const struct control_route *route;
	char req_id[API_REQ_ID_MAX + 1];
	char key_hash[65];
	char tenant[ID_TENANT_MAX + 1];
	char id[ID_SANDBOX_LEN + 1];     /* of the path */
	char *target;
	char *body; size_t body_len;
	char once_key[API_ONCE_KEY_MAX + 1];     /* Idempotency-Key, "" = none; of routes with CONTROL_ONCE */
	struct key_signer signer; bool signer_ok;
	int64_t start_ms;
	bool cors;                       /* the answer may be read by a page of another origin */
	bool problem;                    /* under /v1: errors are problems (RFC 9457) */
	/* result, made by the worker */
	int status;                      /* 0: the error */
	char *text;                      /* NULL = none */
	const char *type;                /* of the text; NULL = JSON */
	char next[64];                   /* X-Next-Token */
	struct err err;
	uint64_t retired;                /* streams of generations up to this one are cut */
	/* In the loop's thread, before the answer: makes the result from `found` (freed with the call). */
	void (*finish)(struct call *c);
	void *found;
};

void call_free(struct call *c);
void call_error(struct call *c, const struct err *e);     /* answers; c is gone */
void call_json(struct call *c, int status, json_t *v);    /* sets the result; takes v */

/* auth.c: checks the key, then calls next(c) in the loop. Answers 401 itself. */
void auth_check(struct call *c, void (*next)(struct call *c));
void auth_clear(struct api *a);

/* control.c */
struct control_route {
	const char *method, *path;       /* "{id}" stands for one segment */
	unsigned flags;
	void (*run)(struct call *c, struct store *s);     /* in a worker; NULL: not built, 501 */
	const char *const *query;        /* under /v1: the parameters that it knows, NULL = none; elsewhere run() looks */
};
/*
 * ONCE: takes an Idempotency-Key. OPEN: a text that is the same for all, without a key, in the
 * loop's thread (s is NULL).
 */
enum {
	CONTROL_BODY = 1,
	CONTROL_SLOW = 2,
	CONTROL_ONCE = 4,
	CONTROL_OPEN = 8,
	CONTROL_TERMINAL = 16,   /* a WebSocket: authenticates by itself, in terminal_open.c */
	CONTROL_TUNNEL = 32      /* raw TCP: the same, in net.c */
};
extern const struct control_route control_routes[];
extern const size_t control_routes_len;
/*
 * NULL: no control route has this path; *ret_method_wrong says that one has it with another method.
 */
const struct control_route *control_find(const char *method, const char *target,
					 char id[ID_SANDBOX_LEN + 1], bool *ret_method_wrong);
/* The methods of a path, as the field Allow has them. */
void control_allow(const char *target, char *dst, size_t size);
void control_handle(struct call *c);

/* change.c: what every change of a sandbox goes through (in a worker) */
int call_load(struct call *c, struct store *s, struct store_sandbox *b);      /* by c->id and tenant; -ENOENT as below */
int call_not_found(struct call *c);              /* sets the error, returns -ENOENT */
int change_need_signer(struct call *c);
void change_nap(int64_t ms);
/*
 * Writes the operation, claimed by this process. op->id 0: nothing to do (the result holds
 * already). timeout_ms of a resume or start: its time from then on, 0 = its own.
 */
int change_ask(struct call *c, struct store *s, enum life_event kind, int64_t timeout_ms,
	       struct store_op *op);
/* Drives what is ours and waits for what is not. 0: it was done; its own error when it failed. */
int change_complete(struct call *c, struct store *s, struct store_op *op);
int change_wait(struct call *c, struct store *s, struct store_op *op);         /* waits alone */
/* Both. A sandbox in a transition: -EBUSY "in-transition" (a delete waits). */
int change_run(struct call *c, struct store *s, enum life_event kind);

/* lifecycle.c: pause, resume, time (in a worker). All of them wait for a running transition first. */
/* Its time ends timeout_ms from now; with only_extend not earlier than it does. -EBUSY "not-running" of one whose time stands still. */
int life_set_timeout(struct call *c, struct store *s, int64_t timeout_ms, bool only_extend);
/*
 * Running: its time is extended (timeout_ms from now, if that is later). Else it is resumed, or
 * started from its disk if it has no memory, with timeout_ms of time. timeout_ms 0: its own. One
 * that is being deleted: -EBUSY.
 */
int life_wake(struct call *c, struct store *s, int64_t timeout_ms, bool *ret_resumed);
/* In the loop: the same for a request to the sandbox itself, which has proved that it may; then fn. */
void life_wake_for(struct api *a, const char *sandbox, const char *req_id,
		   void (*fn)(void *arg, const struct err *e), void *arg);
int life_pause(struct call *c, struct store *s, bool *ret_paused);      /* false: it was paused already */
void run_pause(struct call *c, struct store *s);
void run_resume(struct call *c, struct store *s);
void run_connect(struct call *c, struct store *s);
void run_timeout(struct call *c, struct store *s);
void run_refreshes(struct call *c, struct store *s);

/*
 * create.c: fills *b (the caller's: store_sandbox_done) and makes the sandbox, or finds what the
 * request's Idempotency-Key has made before.
 */
struct fields_create;
int create_run(struct call *c, struct store *s, const struct fields_create *f,
	       struct store_sandbox *b);

/* v1.c: ours, as docs/openapi.json says it */
extern const char v1_document[];
void run_v1_document(struct call *c, struct store *s);
void run_v1_problem(struct call *c, struct store *s);
void run_v1_version(struct call *c, struct store *s);
void run_v1_list(struct call *c, struct store *s);       /* list.c */
void run_v1_create(struct call *c, struct store *s);
void run_v1_get(struct call *c, struct store *s);
void run_v1_stop(struct call *c, struct store *s);
void run_v1_start(struct call *c, struct store *s);
void run_v1_pause(struct call *c, struct store *s);
void run_v1_resume(struct call *c, struct store *s);
void run_v1_connect(struct call *c, struct store *s);
void run_v1_timeout(struct call *c, struct store *s);
void run_v1_metrics(struct call *c, struct store *s);
void run_v1_logs(struct call *c, struct store *s);

/* net.c */
extern const char *const net_log_params[];
/* One question to the node about this sandbox, by c->id and tenant. Caller json_decref's *ret. */
int net_ask(struct call *c, struct store *s, const char *kind, json_t *spec, json_t **ret);
/* What the node answers, and in it what a gateway said, in our form; it may be anything. */
json_t *net_log_object(json_t *answer);
json_t *net_stats_object(json_t *answer);
/* Of a tunnel's target: between "/ports/" and "/tunnel", as the route has them. -EINVAL */
int net_tunnel_port(const char *target, uint16_t *ret, struct err *e);
void run_v1_net_log(struct call *c, struct store *s);
void run_v1_net_stats(struct call *c, struct store *s);
void tunnel_handle(struct call *c);

/* create.c, sandboxes.c, list.c: bodies of the routes */
void run_create_v1(struct call *c, struct store *s);
void run_create_v2(struct call *c, struct store *s);
void run_list_v1(struct call *c, struct store *s);
void run_list_v2(struct call *c, struct store *s);
void run_get(struct call *c, struct store *s);
void run_delete(struct call *c, struct store *s);

/* logs.c */
int logs_fetch(struct call *c, struct store *s, json_t **ret);     /* {"text","marks","events"} as the node says */
void run_logs_v1(struct call *c, struct store *s);
void run_logs_v2(struct call *c, struct store *s);

/* metrics.c */
void run_metrics(struct call *c, struct store *s);
void run_metrics_many(struct call *c, struct store *s);

/* object.c: JSON of a sandbox in E2B's forms and ours */
json_t *object_created(struct api *a, const struct store_sandbox *b);
json_t *object_listed(struct api *a, const struct store_sandbox *b);
json_t *object_detail(struct api *a, const struct store_sandbox *b);
json_t *object_v1(struct api *a, const struct store_sandbox *b);
void object_v1_access(struct api *a, json_t *o, const struct store_sandbox *b);  /* adds what a client needs to reach it */
bool object_visible(const struct store_sandbox *b);       /* to the E2B routes */

/* data.c */
struct data_target { char id[64]; uint64_t port; bool by_token; };
/*
 * 1: a request for a sandbox; 0: not; -EINVAL with the reason. By header and by host, or by token.
 */
int data_target_of(struct api *a, const struct http_head *h, struct data_target *ret,
		   struct err *e);
int data_target_by_token(const struct http_head *h, struct data_target *ret);
void data_handle(struct call *c, const struct data_target *t);
void data_cut(struct api *a, const char *sandbox, uint64_t generation);      /* streams of generations up to this */

/* signed.c: /files with a signature and no sandbox. false: the request is none of these */
#define SIGNED_BOXES_MAX 20000
#define SIGNED_WAITING_MAX 64            /* beyond: 429 */
#define SIGNED_KNOWN_MAX 1024
bool signed_handle(struct call *c);
void signed_clear(struct api *a);

/* route.c */
struct api_route {
	struct identity id;
	char addr[200];
	int64_t until_ms;                /* fixed when it was first made (V-4) */
	bool public_traffic;             /* its ports need no token */
	/* One for each access; the last is for the port that was asked for last. */
	struct api_cap {
		char text[CAP_TEXT_MAX];
		int64_t made_ms, made_wall_ms;
		char kid[ID_KID_MAX + 1];
		uint16_t port;
		enum id_protocol protocol;
	} caps[ID_ACCESS_DATA_COUNT + 1];
};
typedef void route_fn(void *arg, const struct api_route *r, const struct err *e);
#define ROUTE_ASLEEP (-EHOSTDOWN)        /* the error: it is paused, and a request may wake it (life_wake_for) */
/*
 * fn may be called at once. *r is valid during the call only; with ROUTE_ASLEEP it says whose the
 * sandbox is and whether its ports are public, nothing more.
 */
void route_get(struct api *a, const char *sandbox, route_fn *fn, void *arg);
/*
 * After a refusal of `refused` (V-2, V-3): reads the row again; replaces the cached entry only if
 * it is still that one.
 */
void route_refresh(struct api *a, const struct identity *refused, route_fn *fn, void *arg);
void route_drop(struct api *a, const char *sandbox);
void route_clear(struct api *a);
/*
 * A capability for control traffic; from the entry's cache when the route is still the cached one.
 */
int route_capability(struct api *a, const struct api_route *r, enum id_access access,
		     char dst[CAP_TEXT_MAX], struct err *e);
/* The same for a port of the guest (service-port). */
int route_port_capability(struct api *a, const struct api_route *r, uint16_t port,
			  enum id_protocol protocol, char dst[CAP_TEXT_MAX], struct err *e);

/* pool.c: connections to nodes */
struct conn *pool_get(struct api *a, const char *addr, bool fresh, struct err *e);
void pool_put(struct api *a, const char *addr, struct conn *idle);
void pool_clear(struct api *a);

/* keys.c: the signing key, the key of client tokens */
struct api_keys *keys_new(struct api *a, struct err *e);          /* reads once, blocking; then once a second in a worker */
void keys_free(struct api_keys *k);
const struct key_signer *keys_signer(const struct api *a);        /* NULL: none yet */
const struct token_key *keys_token(const struct api *a);

#endif
