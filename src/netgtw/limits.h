/* What one sandbox may use of its gateway: one table of names and defaults (docs/network.md). */
#ifndef NETGTW_LIMITS_H
#define NETGTW_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum limit_id {
	LIMIT_CONNECTIONS,           /* flows of the guest at once; more are reset */
	LIMIT_CONNECTIONS_RATE,      /* new ones a second (twice as many at once); more are reset */
	LIMIT_DIALS,                 /* flows that wait for their peer's answer; more are reset */
	LIMIT_UP, LIMIT_DOWN,        /* bytes a second out of and into the guest; 0 = none; flows wait */
	LIMIT_DNS_RATE,              /* questions a second (twice as many at once); more: REFUSED */
	LIMIT_DNS_PENDING,           /* questions that wait for a nameserver; more: REFUSED */
	LIMIT_DNS_TCP,               /* the guest's TCP connections to port 53; more are reset */
	LIMIT_LEASES,                /* streams of ServicePorts; more get the verdict "limit" */
	LIMIT_LEASE_DIALS,           /* those that wait for the guest; more get the verdict "limit" */
	LIMIT_COUNT
};

/* The most of those that cost main descriptors (GTW_MAIN_NOFILE). */
#define LIMIT_CONNECTIONS_MOST 7500
#define LIMIT_LEASES_MOST 2000
#define LIMIT_DNS_PENDING_MOST 128
#define LIMIT_DNS_TCP_MOST 64

struct limit_def { const char *name; uint64_t normal, least, most; };
extern const struct limit_def limit_defs[LIMIT_COUNT];

struct limits { uint64_t v[LIMIT_COUNT]; };
void limits_init(struct limits *l);
int limits_set(struct limits *l, const char *assignment, struct err *e);        /* "name=value"; -EINVAL */

/* A token bucket. rate 0 = without a limit. */
struct bucket { uint64_t rate, burst, left; int64_t at_us, rest; };
void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, int64_t now_us);
uint64_t bucket_look(struct bucket *b, int64_t now_us);         /* what is there now */
void bucket_take(struct bucket *b, uint64_t n);                 /* at most what bucket_look has said */
bool bucket_one(struct bucket *b, int64_t now_us);              /* takes one, if it is there */

#endif
