/*
 * netgtw, main: the network gateway of one execution (spec S-3, S-4, L-7, K-5). All packets of the
 * guest end in the kernel of the sandbox's network namespace; this process gets its connections
 * and questions, and decides. docs/network.md says it for users.
 *
 * Theory of operation
 *
 * Three processes of one program (contract of descriptors: ipc/gtw_ops.h; messages: proto.h):
 * `inside` makes sockets in the sandbox's namespace, `outside` in the node's and is the last word
 * about where they go; main lives in an empty namespace and can make none (syscalls.h). The end of
 * any of them is the end of all: main ends when one of the pairs does, and they do when main ends.
 *
 * A flow is two sockets, `a` and `b`: of the guest and of the internet, or, for a ServicePort, of
 * node-api (a Unix socket) and of the guest. Both are registered edge-triggered once, and never
 * again; what is readable and writable is kept as flags, and flow_pump moves bytes while one end is
 * readable and the other one writable. Bytes go through one buffer that all flows share. What the
 * writer does not take is kept in a buffer of that end, and nothing more is read from the other end
 * before it is gone: so a slow reader stalls its writer, and an idle flow has no buffer at all.
 * When many wait (GTW_BUFFERED_TIGHT), reads are short: the sum stays below
 * GTW_BUFFERED_TIGHT + 2 * flows * GTW_READ_SHORT.
 *
 * The end of a direction is passed on with shutdown(2) after the last byte; a reset as a reset
 * (SO_LINGER with 0). Urgent data is data as any other, in its place (RFC 6093). A guest that has
 * sent its end is asked by keep-alive whether it still waits, once all is passed on: one that has
 * closed answers with a reset when its kernel has forgotten the connection, and its peer may never
 * end. A peer is asked until it has sent its end (outside.c). The end that was shut is not reset
 * for what the other one does: its bytes may still be on their way.
 *
 * A flow that used up its share of a turn waits in `ready`, one that waits for bandwidth in
 * `throttled`; it is in at most one of them. While somebody waits for bandwidth nobody else takes
 * of it: a timer serves them in turn, GTW_SHARE_MS' worth each, as long as there is so much. Who
 * read whatever has come into the bucket since would make packets of a few bytes, and a flow with
 * many small packets would have it all.
 *
 * States of a flow of the guest: ASKED (outside has the question) -> CONNECTING -> OPEN; of a
 * ServicePort: OPEN from the start, since port.c does all that comes before. A guest that resets
 * its connection ends what is CONNECTING. One that has closed it cannot be told from one that waits
 * for an answer: its peer has GTW_ENDED_CONNECT_MS in all, enough for two SYNs that were lost.
 */
#ifndef NETGTW_GTW_H
#define NETGTW_GTW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "identity/identity.h"
#include "ipc/gtw_ops.h"
#include "loop/loop.h"
#include "netgtw/addr.h"
#include "netgtw/flowlog.h"
#include "netgtw/limits.h"
#include "netgtw/proto.h"

#define GTW_READ 65536
#define GTW_READ_SHORT 2048
#define GTW_BUFFERED_TIGHT (8u << 20)
#define GTW_ROUNDS 4                         /* reads of one direction in one turn */
#define GTW_CONNECT_MS 30000                 /* an address that does not answer */
#define GTW_ENDED_CONNECT_MS 4000            /* the same, of a guest that has sent its end */
#define GTW_ASK_GUEST_S 60                   /* a guest that has sent its end: is it still there? */
#define GTW_ASK_GUEST_TIMES 120              /* without an answer; it may be paused */
#define GTW_ACCEPT_BATCH 64
#define GTW_ACCEPT_PAUSE_MS 200              /* without descriptors */
#define GTW_THROTTLE_MS 20
#define GTW_SHARE_MS 10                      /* of bandwidth: so much is read at once, */
#define GTW_SHARE_LEAST 1500                 /* but never less than a packet's worth (nor more than GTW_READ) */
#define GTW_SYNC_MS 5000                     /* for an answer of outside, or all ends */
#define GTW_CONTROL_PEERS_MAX 8
#define GTW_CAP_CACHE 256
#define GTW_DNS_ATTEMPTS 3                   /* of one question, that listen at once; 75 KiB each */
#define GTW_DNS_SOCKS 2                      /* of one attempt: UDP, TCP */
/* Descriptors of main, beside those of flows and leases. */
#define GTW_OTHER_FDS \
	(136 + LIMIT_DNS_TCP_MOST + LIMIT_DNS_PENDING_MOST * GTW_DNS_ATTEMPTS * GTW_DNS_SOCKS)

struct gtw_conf {
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	uid_t peer_uid;                      /* sbx-manager's; nobody else is served */
	uint8_t root_key[KEY_PUBLIC_BYTES];
	char worker[ID_UUID_LEN + 1];        /* "" = whatever is installed */
	struct limits limits;
};

struct flow_end {
	struct loop_io io;
	char *rest;                          /* what the socket did not take */
	uint32_t n_rest, at_rest;
	bool readable, writable;
	bool hup, urgent;                    /* an end or error, or a mark before which a read stops, is known */
	bool ended /* nothing more to read */, shut /* our writing half is closed */;
};

enum flow_way { WAY_UP, WAY_DOWN, WAY_COUNT };          /* out of and into the guest */
enum flow_state { FLOW_ASKED, FLOW_CONNECTING, FLOW_OPEN };
enum flow_how { FLOW_END_CLEAN, FLOW_END_RESET };

struct flow {
	struct list node, wait;
	struct gtw *g;
	struct flow_end a, b;
	uint64_t number, a_to_b, b_to_a;
	uint64_t lease;                      /* 0 = of the guest */
	int64_t t_ms;                        /* wall clock */
	int64_t until_ms;                    /* CONNECTING: monotonic */
	char *name;
	struct addr addr;
	uint8_t state, proto, asked_at;
};

struct gtw {
	struct loop *loop;
	struct gtw_conf conf;
	struct ipc_server *control;
	bool installed, open, closed;        /* closed: all was revoked for good */
	struct identity id;
	struct key_bundle bundle;
	struct cap_cache *caps;
	struct flowlog log;
	struct addr guest4, guest6;

	struct loop_io inside_io, outside_io;
	int inside_fd, outside_fd, resolver_fd;
	struct loop_io stream_io, tcp4_io, tcp6_io;
	struct loop_timer accept_timer, connect_timer, throttle_timer;
	bool accept_off;

	struct list flows;                   /* all */
	struct list connecting;              /* by `wait`, in the order of until_ms */
	size_t n_flows, n_leases, n_dials;
	/* A ring in the order of the answers; NULL = gone since. */
	struct flow *asked[PROTO_DIALS_UNANSWERED];
	uint32_t asked_next, asked_first;
	struct list ready, throttled[WAY_COUNT];
	struct loop_defer ready_defer;
	bool serving;                        /* the throttled */
	struct bucket bandwidth[WAY_COUNT], new_flows, dns_rate;
	uint64_t buffered;
	char *scratch;                       /* GTW_READ */

	struct list ports;                   /* struct port: streams before their verdict */
	size_t n_ports, n_port_dials;
	uint32_t next_dial_in;

	struct dns *dns;
};

/* gtw.c: puts the parts together */
int gtw_new(struct loop *l, const struct gtw_conf *c, struct gtw **ret, struct err *e);
void gtw_free(struct gtw *g);
void gtw_fatal(struct gtw *g, const char *what, int num);       /* says why; the loop ends */
void gtw_count(struct gtw *g, enum counter c, uint64_t n);
bool gtw_accept_failed(void);                /* by errno: true = pause, false = nothing more there */
void gtw_accept_pause(struct gtw *g);
void gtw_reset(int fd);                      /* closes with a reset */
bool gtw_is_guest(const struct gtw *g, const struct addr *a);

/* flow.c */
/* Owns a. */
struct flow *flow_new(struct gtw *g, int a, const struct addr *addr, uint8_t proto, uint64_t lease);
/* The next state, with the other end; owns b. Negative errno: the flow is gone. */
int flow_open(struct flow *f, int b);
void flow_end(struct flow *f, enum flow_how how, enum flow_why why);     /* logs, closes, frees */
void flow_end_all(struct gtw *g, bool egress, bool leases, enum flow_why why);
uint64_t flow_revoke(struct gtw *g, uint64_t lease);
struct flow *flow_of_lease(struct gtw *g, uint64_t lease);
void flow_refused(struct gtw *g, enum flow_dir dir, uint8_t proto, const struct addr *addr,
		  enum flow_why why);

/* egress.c */
int egress_start(struct gtw *g);
void egress_forget(struct flow *f);          /* of a flow that is still asked for, or connecting */
void egress_guest_ended(struct flow *f);     /* while it is connecting */
void egress_accept(struct gtw *g, bool on);
bool flow_connected(struct flow *f, bool failed);        /* CONNECTING -> OPEN; false: gone */

/* port.c */
int port_start(struct gtw *g);
void port_accept_all(struct gtw *g);
void port_dialled(struct gtw *g, const struct in_msg *m, int fd);        /* owns fd */
uint64_t port_revoke(struct gtw *g, uint64_t lease);     /* those before their verdict; 0 = all */
uint64_t port_next_lease(struct gtw *g, uint64_t after, uint16_t *ret_port); /* of those: the lowest number above; 0 = none */

/* control.c */
int control_start(struct gtw *g, struct err *e);

/* dns.c */
int dns_start(struct gtw *g);
void dns_stop(struct gtw *g);
void dns_datagram(struct gtw *g, const struct in_msg *m, const uint8_t *p, size_t n);
void dns_accept(struct gtw *g, int fd, const struct addr *asked);        /* owns fd */
void dns_end_all(struct gtw *g);             /* egress was closed */

/* inside, asked from anywhere */
int gtw_tell_inside(struct gtw *g, const struct in_msg *m, const void *p);       /* -EAGAIN */
/* outside, asked and answered at once; *ret_fd may be NULL */
enum out_answer gtw_ask_outside(struct gtw *g, const struct out_req *q, int *ret_fd);

#endif
