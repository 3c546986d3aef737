/*
 * The network gateway's interfaces (program src/netgtw), for those that speak with it: its control
 * socket, the stream of a ServicePort, and the numbers that the network of a sandbox has.
 *
 * ---- Sockets ----
 *
 * gtwctl.sock (SOCK_SEQPACKET, the protocol of ipc.h; peer: sbx-manager's uid only): control.
 * gtw.sock (SOCK_STREAM; peer: sbx-manager's uid only): each connection is one lease of a
 * ServicePort. Both are bound by node-manager; its child calls listen(2) on them as its last act
 * before the filter and exec, so that SO_PEERCRED of who connects names the pid and the uid of the
 * gateway's main process. That one has no right to listen.
 */
#ifndef IPC_GTW_OPS_H
#define IPC_GTW_OPS_H

#include "identity/identity_limits.h"
#include "ipc/ipc.h"
#include "ipc/revoke.h"

/* ---- The network of a sandbox, seen from inside it (docs/network.md) ---- */
#define GTW_GUEST_V4 "10.0.2.15"
#define GTW_GUEST_V6 "fd53:5041:4345::15"
#define GTW_HOST_V4 "10.0.2.2"               /* the gateway: default route and resolver of the guest */
#define GTW_HOST_V6 "fd53:5041:4345::2"
/*
 * The port of the TCP listeners: tproxy sends all TCP there. The UDP sockets are bound to port 53
 * itself, for every address is local there (AnyIP): an answer must come from the port that was
 * asked, and IP_PKTINFO sets no port. They need IP_PKTINFO and IPV6_RECVPKTINFO, which tell the
 * address that was asked.
 */
#define GTW_TCP_PORT 15001
#define GTW_DNS_PORT 53
#define GTW_DOOR_PORT 49982                  /* of the guest's agent: the way to its loopback; no ServicePort */

/* ---- Descriptors at exec; every other one is closed ---- */
enum gtw_main_fd {
	GTW_MAIN_STREAM = 3,                 /* gtw.sock, listening */
	GTW_MAIN_CONTROL,                    /* gtwctl.sock, listening */
	GTW_MAIN_INSIDE,                     /* SOCK_SEQPACKET pairs */
	GTW_MAIN_OUTSIDE,                    /* dials */
	GTW_MAIN_RESOLVER,                   /* used synchronously, for the sockets of the resolver */
	GTW_MAIN_TCP4,                       /* tproxy listeners, made in the sandbox's netns, listening */
	GTW_MAIN_TCP6,
	GTW_MAIN_FD_END
};
enum gtw_inside_fd { GTW_INSIDE_MAIN = 3, GTW_INSIDE_UDP4, GTW_INSIDE_UDP6, GTW_INSIDE_FD_END };
enum gtw_outside_fd { GTW_OUTSIDE_MAIN = 3, GTW_OUTSIDE_RESOLVER, GTW_OUTSIDE_FD_END };
/*
 * RLIMIT_NOFILE of main (or the hard limit, when that is lower): two a flow or lease, of which there
 * are 9,500 at most, and six a DNS question that waits.
 */
#define GTW_MAIN_NOFILE 19968
#define GTW_PART_NOFILE 1088                 /* of inside and outside: a dial each, until it is handed over */
#define GTW_LISTEN_BACKLOG 1024              /* of the tproxy listeners */

#define GTW_NAMESERVERS_MAX 3

/* ---- Control ---- */

/*
 * The identity is pinned by the first one for good: another tenant, sandbox, worker, substrate,
 * pod, generation or activation is refused with "wrong-identity"; the attempt may only rise
 * ("stale-attempt"). Sandbox and generation must be those of the command line. The bundle is
 * verified against the root key of the command line; an older number: "stale-bundle". The same
 * once more is fine. Nothing is served before.
 */
struct gtw_install {
	char tenant[ID_TENANT_MAX + 1];
	char sandbox[ID_SANDBOX_LEN + 1];
	char worker[ID_UUID_LEN + 1];
	char substrate[16];
	char pod_uid[ID_UUID_LEN + 1];           /* optional */
	uint64_t generation;
	char activation[ID_ACTIVATION_HEX + 1];
	uint64_t attempt;
	char bundle[BUNDLE_BYTES_MAX];
};
struct gtw_bundle { char text[BUNDLE_BYTES_MAX]; };
struct gtw_bundle_rep { uint64_t number; };      /* installed now */
/*
 * GTW_OPEN (no fields): egress begins; needs an installed identity. ServicePorts are not touched.
 *
 * GTW_REVOKE (struct ipc_revoke): both ends of the stream are reset, and what was read and not yet
 * written is thrown away. 0: egress too.
 */
struct gtw_leases { uint64_t after; };
struct gtw_leases_rep {
	json_t *leases;                          /* [{"lease","port","in","out"}] by number, after `after` */
	uint64_t next;                           /* 0 = end */
	bool installed, open /* egress */, closed /* all was revoked for good */;
	uint64_t generation;
};
/*
 * The flow log: the last GTW_LOG_RECORDS records, pages of at most GTW_LOG_PAGE. A flow has a
 * record when it is let through ("end_ms" 0, no bytes yet) and one when it has ended, with the same
 * "flow"; a refusal and a DNS question have one. Records:
 * {"n" (1 is the first), "flow", "t_ms", "end_ms" (Unix time; 0 = goes on), "dir": "out|in|dns",
 *  "proto": "tcp|udp|http|h2", "addr", "port", "name" ("" = not known), "up", "down" (bytes; from
 *  and to the guest), "verdict": "allow|refuse", "reason" ("" or one word, docs/network.md)}
 */
#define GTW_LOG_RECORDS 1024
#define GTW_LOG_PAGE 100
/* after: "n" of the last record that is known; 0 = from the first that is kept */
struct gtw_log { uint64_t after; };
struct gtw_log_rep {
	json_t *records;
	uint64_t next;                           /* `after` of the next question */
	uint64_t lost;                           /* records after `after` that are not kept any more */
	bool more;                               /* ask again at once */
};
struct gtw_stats_rep { json_t *counters; };      /* {"name": number}; docs/network.md */

enum gtw_op {
	GTW_INSTALL,
	GTW_BUNDLE,
	GTW_OPEN,
	GTW_REVOKE,
	GTW_LEASES,
	GTW_LOG,
	GTW_STATS,
	GTW_OP_COUNT
};
extern const struct ipc_op gtw_ops[GTW_OP_COUNT];

/* ---- The stream of a ServicePort ---- */

/*
 * sbx-manager writes this (little-endian) and then the token (the capability itself, token_len
 * bytes, no NUL), hands the socket over, and who gets it reads one verdict before it sends
 * anything. The verdict comes within GTW_VERDICT_MS in any case; without GTW_OK the stream ends
 * after it. With GTW_OK raw bytes follow both ways, with half-close. protocol: enum id_protocol.
 */
#define GTW_PREAMBLE_MAGIC 0x31777467u       /* "gtw1" */
#define GTW_VERDICT_MAGIC 0x31767467u        /* "gtv1" */
#define GTW_PREAMBLE_MS 2000                 /* time for preamble and token */
#define GTW_DIAL_IN_MS 5000                  /* time for the guest to answer */
#define GTW_VERDICT_MS (GTW_PREAMBLE_MS + GTW_DIAL_IN_MS + 500)

struct gtw_preamble {
	uint32_t magic;
	uint32_t token_len;                      /* 1 to CAP_TEXT_MAX - 1 */
	uint64_t lease;                          /* unique per execution, never 0 */
	uint64_t generation;
	uint8_t activation[ID_ACTIVATION_BYTES];
	uint16_t port;
	uint8_t protocol;
	uint8_t zero[5];
};
_Static_assert(sizeof(struct gtw_preamble) == 48, "as on the wire");

enum gtw_code {
	GTW_OK = 1,
	GTW_DENY,                                /* signature, time, purpose, port, protocol, sandbox, epoch */
	GTW_REFRESH,                             /* another incarnation of this sandbox */
	GTW_PORT_CLOSED,                         /* nothing listens there in the guest */
	GTW_LIMIT,                               /* too many leases, or dials on their way */
	GTW_TIMEOUT,                             /* the guest does not answer */
	GTW_CODE_END
};
extern const char *const gtw_code_names[GTW_CODE_END];       /* "ok", "deny", ...; [0] is "none" */

struct gtw_verdict { uint32_t magic; uint32_t code; };

#endif
