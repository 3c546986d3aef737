/*
 * The platform floor (spec S-4): where no sandbox may connect to, whatever its policy says. One
 * table; IPv4 addresses inside IPv6 ones are looked at as what they are.
 *
 * The operator may open ranges (`space up --net-allow CIDR`); not those that a table row calls
 * closed for good (loopback, unspecified, multicast, addresses in another's disguise). He may close
 * others (`--net-deny CIDR`). The node's own addresses are no part of this table: only who makes
 * sockets there knows them (outside.c).
 */
#ifndef NETGTW_FLOOR_H
#define NETGTW_FLOOR_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"
#include "netgtw/addr.h"

#define FLOOR_RANGES_MAX 16

struct floor_range { struct addr a; uint8_t bits; };
struct floor_ranges { struct floor_range r[FLOOR_RANGES_MAX]; size_t n; };
/* What the operator makes of it: ranges that are opened, others that are closed. Both: closed. */
struct floor { struct floor_ranges allow, deny; };

/* NULL = may be dialled; else what kind of address it is (static). `f` may be NULL. */
const char *floor_check(const struct addr *a, const struct floor *f);
/*
 * Whether it is an IPv6 address whose packets end at an IPv4 one that it holds (NAT64, 6to4,
 * ISATAP).
 */
bool floor_inside(const struct addr *a, struct addr *ret);
/* Whether no address of the range may be dialled, as long as the operator opens none. */
bool floor_has(const struct floor_range *r);
/* "10.1.0.0/16" or "fd00::/8". -EINVAL with a sentence, also for what cannot be opened; -ENOSPC. */
int floor_allow_add(struct floor *f, const char *cidr, struct err *e);
int floor_deny_add(struct floor *f, const char *cidr, struct err *e);   /* any range */

#endif
