/*
 * The flow log, the counters, and which name an address was asked by: what the gateway of a sandbox
 * tells about it. All of fixed size; the oldest goes first.
 */
#ifndef NETGTW_FLOWLOG_H
#define NETGTW_FLOWLOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "ipc/gtw_ops.h"
#include "netgtw/addr.h"
#include "netgtw/limits.h"

#define FLOWLOG_NAME_MAX 256
#define FLOWLOG_LIMIT_RATE 20        /* records of refusals by a limit, a second */
#define FLOWLOG_NAMES 2048           /* addresses whose name is remembered; a newer one takes the place */

enum flow_dir { FLOW_OUT, FLOW_IN, FLOW_DNS, FLOW_DIR_COUNT };
enum flow_proto { FLOW_TCP, FLOW_UDP, FLOW_HTTP, FLOW_H2, FLOW_PROTO_COUNT };
enum flow_why {
	WHY_NONE,
	WHY_INTERNET,                /* allow_internet_access is false */
	WHY_FLOOR,                   /* the platform floor */
	WHY_NOT_OPEN,                /* before the execution was told what it is, or after its end */
	WHY_LIMIT,                   /* a limit of this sandbox */
	WHY_UNREACHABLE,             /* no route, refused, no answer */
	WHY_RESET,                   /* ended by a reset */
	WHY_REVOKED,
	WHY_DENIED,                  /* the capability does not fit (K-5) */
	WHY_PORT_CLOSED,
	WHY_MALFORMED,               /* a question that is none */
	WHY_TYPE,                    /* a type of DNS record that is not asked for others */
	WHY_UPSTREAM,                /* no nameserver gave an answer */
	WHY_SOURCE,                  /* not from the guest's address */
	WHY_COUNT
};

struct flow_record {
	uint64_t n, flow, up, down;
	int64_t t_ms, end_ms;
	struct addr addr;
	uint8_t dir, proto, refused, why;
	char *name;                  /* owned by the ring; NULL = not known */
};

enum counter {
	COUNT_FLOWS, COUNT_FLOWS_REFUSED, COUNT_FLOWS_FAILED,
	COUNT_BYTES_UP, COUNT_BYTES_DOWN,
	COUNT_LEASES, COUNT_LEASES_REFUSED, COUNT_LEASE_BYTES_IN, COUNT_LEASE_BYTES_OUT,
	COUNT_DNS, COUNT_DNS_REFUSED, COUNT_DNS_FAILED, COUNT_DNS_FLOOR,
	COUNT_LIMIT,
	COUNT_COUNT
};
extern const char *const counter_names[COUNT_COUNT];

struct flowlog_name { struct addr addr; char *name; };
struct flowlog {
	struct flow_record ring[GTW_LOG_RECORDS];
	uint64_t next;               /* number of the next record, from 1 */
	uint64_t next_flow;
	uint64_t counters[COUNT_COUNT];
	struct bucket limit_rate;
	struct flowlog_name names[FLOWLOG_NAMES];
	uint64_t seed;
};

void flowlog_init(struct flowlog *l, uint64_t seed);
void flowlog_done(struct flowlog *l);
void flowlog_add(struct flowlog *l, const struct flow_record *r);       /* n is set, name is copied */
/* rep->records is the caller's. */
void flowlog_page(const struct flowlog *l, uint64_t after, struct gtw_log_rep *rep);

void flowlog_name_put(struct flowlog *l, const struct addr *a, const char *name);
const char *flowlog_name(const struct flowlog *l, const struct addr *a);        /* NULL = not known */

#endif
