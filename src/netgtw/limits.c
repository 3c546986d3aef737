#include "netgtw/limits.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define RATE_MOST (UINT64_C(1) << 40)

const struct limit_def limit_defs[LIMIT_COUNT] = {
	[LIMIT_CONNECTIONS] = { "connections", 7500, 1, LIMIT_CONNECTIONS_MOST },
	[LIMIT_CONNECTIONS_RATE] = { "connections-per-s", 500, 0, RATE_MOST },
	[LIMIT_DIALS] = { "dials", 1024, 1, 8192 },
	[LIMIT_UP] = { "bytes-up-per-s", 0, 0, RATE_MOST },
	[LIMIT_DOWN] = { "bytes-down-per-s", 0, 0, RATE_MOST },
	[LIMIT_DNS_RATE] = { "dns-per-s", 200, 0, RATE_MOST },
	[LIMIT_DNS_PENDING] = { "dns-pending", 128, 1, LIMIT_DNS_PENDING_MOST },
	[LIMIT_DNS_TCP] = { "dns-tcp", 64, 1, LIMIT_DNS_TCP_MOST },
	[LIMIT_LEASES] = { "leases", 2000, 1, LIMIT_LEASES_MOST },
	[LIMIT_LEASE_DIALS] = { "lease-dials", 256, 1, 1024 },
};

void limits_init(struct limits *l)
{
	for (size_t i = 0; i < LIMIT_COUNT; i++)
		l->v[i] = limit_defs[i].normal;
}

int limits_set(struct limits *l, const char *assignment, struct err *e)
{
	const char *equals = strchr(assignment, '=');
	uint64_t v;

	for (size_t i = 0; equals && i < LIMIT_COUNT; i++) {
		const struct limit_def *d = &limit_defs[i];

		if (strlen(d->name) != (size_t)(equals - assignment) ||
		    memcmp(d->name, assignment, strlen(d->name)) != 0)
			continue;
		if (str_to_u64(equals + 1, d->most, &v) < 0 || v < d->least)
			return err_set(e, -EINVAL, "The limit %s is no number of %llu to %llu.",
				       d->name, (unsigned long long)d->least,
				       (unsigned long long)d->most);
		l->v[i] = v;
		return 0;
	}
	return err_set(e, -EINVAL, "There is no limit %.60s.", assignment);
}

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, int64_t now_us)
{
	*b = (struct bucket){ .rate = rate, .burst = burst, .left = burst, .at_us = now_us };
}

uint64_t bucket_look(struct bucket *b, int64_t now_us)
{
	int64_t passed = now_us - b->at_us;
	uint64_t units;

	if (b->rate == 0)
		return UINT64_MAX;
	if (passed <= 0)
		return b->left;
	/* More than this fills any bucket, and the product below stays within 64 bits. */
	if (passed > 4000000)
		passed = 4000000;
	units = (uint64_t)passed * b->rate + (uint64_t)b->rest;
	b->rest = (int64_t)(units % 1000000);
	b->at_us = now_us;
	b->left += units / 1000000;
	if (b->left > b->burst) {
		b->left = b->burst;
		b->rest = 0;
	}
	return b->left;
}

void bucket_take(struct bucket *b, uint64_t n)
{
	if (b->rate != 0)
		b->left -= n < b->left ? n : b->left;
}

bool bucket_one(struct bucket *b, int64_t now_us)
{
	if (bucket_look(b, now_us) == 0)
		return false;
	bucket_take(b, 1);
	return true;
}
