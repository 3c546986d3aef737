/*
 * node-api: the node's only listener for the control plane. HTTP/1.1 in, sbx-manager behind. It
 * holds no key and no record: it asks sbx-manager to admit each request, gets the stream to the
 * bridge as a descriptor, and relays.
 *
 * Requests carry Space-Op: forward | port | lifecycle | bundle | report (the table in node.c),
 * Space-Request-Id, and, for the first three, Space-Capability. What node-api itself answers with an
 * error has Space-Error: <code>, a refused capability 421 with Space-Refusal: refresh-route | deny
 * . A guest cannot say either: Space-* is taken out of its answers.
 *
 * Space-Op: port is for a port of the guest (ServicePort, K-5): purpose service-port, access write.
 * Space-Port: <1..65535> says which; port and protocol of the capability must be those.
 *
 *	without Space-Tunnel     protocol http: this message goes to the guest's server as it is, but for Space-*,
 *	                         X-API-Key, X-Access-Token, E2B-Traffic-Access-Token, E2b-Sandbox-*, and connection
 *	                         fields; an upgrade that the guest answers with 101 becomes a tunnel
 *	Space-Tunnel: tcp | h2   with Upgrade: space-tunnel and no body: after the gateway's yes node-api answers 101
 *	                         itself, then raw bytes both ways, half-closes included; never a byte before the 101
 *
 * The gateway's word (struct gtw_verdict) comes before one byte is sent to the guest:
 *
 *	DENY            421  Space-Refusal: deny             (Space-Error: refusal-deny)
 *	REFRESH         421  Space-Refusal: refresh-route    (Space-Error: refusal-refresh-route)
 *	PORT_CLOSED     502  Space-Error: port-closed        {"sandboxId","message","port","code":502}, as E2B's clients know it
 *	LIMIT           429  Space-Error: limit
 *	TIMEOUT         504  Space-Error: port-timeout       the guest's network does not answer
 *	none, or other  503  Space-Error: gateway-lost       it died meanwhile, and is being started again
 *	not running     503  Space-Error: gateway-away       said by sbx-manager
 *
 * Leases (T-1): a stream is shut before it is closed, since sbx-manager holds a duplicate; then its
 * end is reported. The event "revoked" throws away what is buffered and cuts the client side: never
 * a clean end.
 */
#ifndef NODE_API_NODE_H
#define NODE_API_NODE_H

#include "base/list.h"
#include "http/server.h"
#include "identity/identity.h"
#include "ipc/ipc.h"
#include "loop/loop.h"

#define NODE_PEERS_MAX 4
#define NODE_CONNS_MAX 4096          /* idle and asking connections; beyond: 503 */
#define NODE_STREAMS_MAX 8192        /* relayed requests at a time; beyond: 429 */
#define NODE_BODY_MAX 65536          /* life-cycle specs and bundles */
#define NODE_REPORT_PAGES_MAX 1024

struct node_conf {
	const char *sbx_path;                        /* sbx-manager's socket */
	uid_t sbx_uid;
	uid_t peers[NODE_PEERS_MAX]; size_t n_peers; /* who may connect (SO_PEERCRED) */
	int admit_timeout_ms, lifecycle_timeout_ms;  /* 0 = the defaults */
	int head_timeout_ms, stall_timeout_ms;
};

struct node {
	struct loop *loop;
	struct node_conf conf;
	struct http_server *http;
	struct ipc_client *sbx;
	struct list streams;
	size_t n_streams;
};

/* One request that waits for sbx-manager. Freed by its `end` in the server. */
struct node_call {
	struct node *node;
	struct http_req *req;
	char req_id[IPC_REQ_ID_MAX + 1];
	char capability[CAP_TEXT_MAX];
	char kind[16];
	uint16_t port;                               /* of a request for a port; 0 = for the control routes */
	enum id_protocol protocol;
	int64_t start_ms;
	json_t *report_node, *report_sandboxes;      /* of a report, page by page */
	unsigned pages;
};

/* One admitted request on its way through (stream.c). */
struct stream {
	struct list node;
	struct node *owner;
	struct forward *f;
	struct conn *waiting;                        /* to the gateway, whose verdict is awaited */
	uint64_t lease, generation;
	uint16_t port;
	enum id_protocol protocol;
	char sandbox[ID_SANDBOX_LEN + 1];
	char req_id[IPC_REQ_ID_MAX + 1];
	char guest_token[65];                        /* wiped when it was sent */
	int64_t start_ms, admitted_ms;
};

struct node *node_new(struct loop *l, const struct node_conf *c);
void node_free(struct node *n);
void node_accept(struct node *n, int fd);            /* owns fd */

/* ---- between the files of node-api ---- */
void node_refuse(struct node_call *c, const struct err *e);      /* answers with the error; c is gone */
void node_answer_json(struct node_call *c, int status, json_t *body);   /* takes body; c is gone */
void node_forward(struct node_call *c);
void node_port(struct node_call *c);
/* Asks sbx-manager; what it admits becomes a stream, what it refuses is answered. */
struct sbx_admit;
void node_admit(struct node_call *c, const struct sbx_admit *q);
bool node_full(const struct node *n, struct err *e);
/* The descriptor of a lease that is not forwarded (any more): shut, closed, its end is reported. */
void stream_let_go(struct stream *s, struct conn *up);
/*
 * Sends the client's head without what `skip` says and with `more` (ends with name NULL; may be
 * NULL), and forwards over up.
 */
void stream_send(struct stream *s, struct conn *up, bool (*skip)(const char *name, void *arg),
		 const struct http_field *more);
bool stream_skip_space(const char *name, void *arg);
/* What a request with Space-Op: port asks for. -EINVAL with a sentence. */
int port_ask(const struct http_head *h, uint16_t *ret_port, enum id_protocol *ret_protocol,
	     struct err *e);
/* Of a struct gtw_verdict's bytes: enum gtw_code, 0 = it is none. */
unsigned port_verdict(const void *p);
void port_begin(struct stream *s, struct conn *up);              /* owns up, a fresh connection to the gateway */
void node_lifecycle(struct node_call *c);
void node_bundle(struct node_call *c);
void node_report(struct node_call *c);
void node_revoked(struct node *n, uint64_t lease);
void node_cut_all(struct node *n);

#endif
