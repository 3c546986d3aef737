/*
 * sbx-manager's table of operations (socket RUN/sbx-manager/sbx.sock; peers: node-api's uid; root
 * for those marked R, which `space up` and the tests use).
 */
#ifndef IPC_SBX_OPS_H
#define IPC_SBX_OPS_H

#include "identity/identity_limits.h"
#include "ipc/ipc.h"
#include "ipc/revoke.h"

#define SBX_SPEC_MAX 49152               /* JSON text of a life-cycle spec */

/*
 * purpose and access that the operation needs: the capability must grant them. With purpose
 * service-port the stream goes to the sandbox's gateway instead of its bridge: port and protocol
 * (http, tcp, h2) are asked for, and the first bytes on the stream are the gateway's struct
 * gtw_verdict (ipc/gtw_ops.h), read by node-api before it sends anything.
 */
struct sbx_admit {
	char capability[CAP_TEXT_MAX];
	char purpose[16];
	char access[8];
	uint64_t port;
	char protocol[8];
};
struct sbx_admit_rep {
	uint64_t lease;
	char guest_token[65];
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
}; /* [0] the stream to the bridge */
/*
 * A refusal is an error with num -EACCES and code "refusal-deny" or "refusal-refresh-route";
 * -EAGAIN "limit" = too many leases.
 */
struct sbx_lease { uint64_t lease; };                                   /* lease_end; also event "revoked": node-api cuts that stream */

/*
 * Life cycle. The capability (purpose lifecycle) names the execution that the operation is about:
 * the one to begin (create, start) or to end (stop, delete: the current generation; delete also
 * with a later one). kind: create, start, stop, delete, pause, resume, console, netlog, netstats.
 * spec for create: {"template","memory_mib","vcpus","disk_mib","env":{},"metadata":{},"internet"};
 * for start: {"env":{},"internet"} or {}; internet (default true): whether its gateway lets
 * anything out. netlog: {"after":N} (0 or missing = from the oldest record that is kept).
 * Result: create/start {"state":"running","ms":{...step times}}, stop {"state":"stopped"}, delete
 * {"state":"none"}, console {"text","marks":[{"t","bytes"}],"events":[{"t","text"}]} (marks: when the
 * node has read the last bytes of the text, and those before), netlog {"epoch","records":[...],
 * "next","lost","more"} (as of GTW_LOG; epoch: a text that changes when the gateway was started
 * anew: numbers begin again), netstats {"epoch","internet","gateway":"up"|"away","reason",
 * "counters":{...}} (counters as of GTW_STATS; {} when it is away). A create or start whose execution has
 * ended since gives what it is now: {"state":"stopped","reason"}. Idempotent: the same request for
 * the same generation gives the same result. An older generation than the installed one, and for
 * pause, resume, netlog and netstats a newer one too: "stale-generation" (-ESTALE). Nothing but
 * delete finds a sandbox whose deletion has begun.
 */
struct sbx_lifecycle { char capability[CAP_TEXT_MAX]; char kind[16]; json_t *spec; };
struct sbx_lifecycle_rep { json_t *result; };
struct sbx_bundle { char text[BUNDLE_BYTES_MAX]; };
struct sbx_bundle_rep { uint64_t number; };                             /* installed now; -ESTALE: an older number was offered */
struct sbx_report { uint64_t cursor; };
/*
 * node: {"worker","bundle","accel","data_free_bytes",...}; sandboxes:
 * [{"sandbox","tenant","state","generation","activation","attempt","reason","since_ms","gateway"}]
 * (gateway: "up", "away", or "" without an execution)
 */
struct sbx_report_rep { json_t *node; json_t *sandboxes; uint64_t next; };
struct sbx_template { char template[64]; };                             /* template_ensure R: import from cache or boot and snapshot; slow; events "progress" {"text"} */
struct sbx_template_rep { bool made; uint64_t ms; };
struct sbx_progress { char text[256]; };

enum sbx_op {
	SBX_ADMIT,
	SBX_LEASE_END,
	SBX_LIFECYCLE,
	SBX_BUNDLE,
	SBX_REPORT,
	SBX_TEMPLATE_ENSURE,
	SBX_OP_COUNT
};
extern const struct ipc_op sbx_ops[SBX_OP_COUNT];
extern const struct ipc_field sbx_revoked_fields[], sbx_progress_fields[];

/*
 * ---- The bridge's control socket (RUN/sbx/<sandbox>.<generation>/control.sock; peer:
 * sbx-manager's uid only) ----
 */
struct bridge_attach { uint64_t generation; char activation[ID_ACTIVATION_HEX + 1]; };     /* [0] the guest channel; once per channel; answers when RESET-ACK was seen */
/* BRIDGE_REVOKE: struct ipc_revoke; 0: no data connection (kind 0) is accepted any more */
struct bridge_leases { uint64_t after; };
struct bridge_leases_rep { json_t *leases; uint64_t next; bool attached, closed /* all was revoked for good */; uint64_t generation; };   /* [{"lease","in","out"}] by number, after `after`; next 0 = end */
struct bridge_lost { char reason[128]; };                               /* event "channel-lost": the guest channel broke or the guest broke a rule */

enum bridge_op { BRIDGE_ATTACH, BRIDGE_REVOKE, BRIDGE_LEASES, BRIDGE_OP_COUNT };
extern const struct ipc_op bridge_ops[BRIDGE_OP_COUNT];
extern const struct ipc_field bridge_lost_fields[];

/*
 * The bridge's stream socket (bridge.sock, SOCK_STREAM): each connection is one lease. sbx-manager
 * connects, checks SO_PEERCRED, writes this preamble (little-endian), and hands the socket over.
 * The bridge checks the peer's uid and the epoch against its own; a wrong one is closed without a
 * byte.
 */
#define BRIDGE_PREAMBLE_MAGIC 0x31637073u     /* "spc1" */
struct bridge_preamble {
	uint32_t magic;
	uint32_t kind;               /* 0 = data, 1 = control (host-only routes of the guest) */
	uint64_t lease;              /* unique per execution, never 0 */
	uint64_t generation;
	uint8_t activation[ID_ACTIVATION_BYTES];
};

#endif
