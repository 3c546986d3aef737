/*
 * A set of buckets of CACHE_WAYS entries, keyed by a keyed BLAKE2b hash of the whole token. A full
 * bucket loses the entry that expires first. The number of the bundle that an entry was verified
 * with is kept: a newer bundle makes all misses, even if nobody called cap_cache_clear.
 */
#include "identity/identity.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define CACHE_WAYS 4
#define CACHE_HASH_BYTES 32

struct cache_entry {
	uint8_t hash[CACHE_HASH_BYTES];
	uint64_t bundle;                 /* 0 = empty */
	struct capability cap;
};

struct cap_cache {
	uint64_t misses;
	uint8_t key[crypto_generichash_KEYBYTES];
	size_t buckets;
	struct cache_entry *entries;
};

struct cap_cache *cap_cache_new(size_t entries)
{
	struct cap_cache *c = x_alloc(sizeof(*c));

	crypto_generichash_keygen(c->key);
	c->buckets = entries / CACHE_WAYS ? entries / CACHE_WAYS : 1;
	c->entries = x_array(c->buckets * CACHE_WAYS, sizeof(*c->entries));
	return c;
}

void cap_cache_free(struct cap_cache *c)
{
	if (!c)
		return;
	free(c->entries);
	free(c);
}

void cap_cache_clear(struct cap_cache *c)
{
	memset(c->entries, 0, c->buckets * CACHE_WAYS * sizeof(*c->entries));
}

static struct cache_entry *cache_bucket(struct cap_cache *c, const uint8_t hash[CACHE_HASH_BYTES])
{
	uint64_t n;

	memcpy(&n, hash, sizeof(n));
	return c->entries + n % c->buckets * CACHE_WAYS;
}

static struct cache_entry *cache_victim(struct cache_entry *bucket)
{
	struct cache_entry *v = bucket;

	for (int i = 0; i < CACHE_WAYS; i++) {
		if (bucket[i].bundle == 0)
			return &bucket[i];
		if (bucket[i].cap.exp_s < v->cap.exp_s)
			v = &bucket[i];
	}
	return v;
}

int cap_cache_verify(struct cap_cache *cc, const char *text, size_t n, const struct key_bundle *b,
		     int64_t now_s, struct capability *ret, struct err *e)
{
	uint8_t hash[CACHE_HASH_BYTES];
	struct cache_entry *bucket, *v;
	struct capability cap;
	int r;

	crypto_generichash(hash, sizeof(hash), (const uint8_t *)text, n, cc->key, sizeof(cc->key));
	bucket = cache_bucket(cc, hash);
	for (int i = 0; i < CACHE_WAYS; i++) {
		if (bucket[i].bundle == 0 || bucket[i].bundle != b->number ||
		    memcmp(bucket[i].hash, hash, sizeof(hash)) != 0)
			continue;
		r = cap_check_time(&bucket[i].cap, now_s, e);
		if (r < 0)
			bucket[i].bundle = 0;
		else
			*ret = bucket[i].cap;
		return r;
	}
	cc->misses++;
	r = cap_verify(text, n, b, &cap, e);
	if (r == 0)
		r = cap_check_time(&cap, now_s, e);
	if (r < 0)
		return r;
	v = cache_victim(bucket);
	v->bundle = b->number;
	v->cap = cap;
	memcpy(v->hash, hash, sizeof(hash));
	*ret = cap;
	return 0;
}

uint64_t cap_cache_misses(const struct cap_cache *cc) { return cc->misses; }
