#include "base/map.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

#define MAP_MIN_BUCKETS 16

struct map_entry {
	struct map_entry *next;
	void *value;
	uint64_t hash;
	char key[];
};

struct map {
	struct map_entry **buckets;
	size_t n_buckets;            /* a power of two */
	size_t len, max;
	uint64_t seed;
};

/* FNV-1a with a seed, finished by a mix (the low bits alone choose the bucket). */
static uint64_t map_hash(const struct map *m, const char *key)
{
	uint64_t h = 0xcbf29ce484222325u ^ m->seed;

	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 0x100000001b3u;
	h ^= h >> 32;
	h *= m->seed | 1;
	return h ^ (h >> 29);
}

struct map *map_new(size_t max_entries)
{
	struct map *m = x_alloc(sizeof(*m));

	m->max = max_entries;
	m->n_buckets = MAP_MIN_BUCKETS;
	m->buckets = x_array(m->n_buckets, sizeof(*m->buckets));
	if (getrandom(&m->seed, sizeof(m->seed), GRND_NONBLOCK) != sizeof(m->seed))
		m->seed = (uint64_t)(uintptr_t)m * 0x9e3779b97f4a7c15u;
	return m;
}

void map_free(struct map *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n_buckets; i++)
		for (struct map_entry *e = m->buckets[i], *next; e; e = next) {
			next = e->next;
			free(e);
		}
	free(m->buckets);
	free(m);
}

/* The link that points to the entry, or the one at the chain's end. */
static struct map_entry **map_find(const struct map *m, const char *key, uint64_t hash)
{
	struct map_entry **pp = &m->buckets[hash & (m->n_buckets - 1)];

	while (*pp && ((*pp)->hash != hash || strcmp((*pp)->key, key)))
		pp = &(*pp)->next;
	return pp;
}

static void map_grow(struct map *m)
{
	size_t n = m->n_buckets * 2;
	struct map_entry **to = x_array(n, sizeof(*to));

	for (size_t i = 0; i < m->n_buckets; i++)
		for (struct map_entry *e = m->buckets[i], *next; e; e = next) {
			next = e->next;
			e->next = to[e->hash & (n - 1)];
			to[e->hash & (n - 1)] = e;
		}
	free(m->buckets);
	m->buckets = to;
	m->n_buckets = n;
}

int map_put(struct map *m, const char *key, void *value)
{
	uint64_t hash = map_hash(m, key);
	struct map_entry **pp = map_find(m, key, hash), *e;
	size_t n = strlen(key) + 1;

	if (*pp) {
		(*pp)->value = value;
		return 0;
	}
	if (m->len >= m->max)
		return -ENOSPC;
	if (m->len >= m->n_buckets) {
		map_grow(m);
		pp = map_find(m, key, hash);
	}
	e = x_alloc(sizeof(*e) + n);
	e->hash = hash;
	e->value = value;
	memcpy(e->key, key, n);
	*pp = e;
	m->len++;
	return 0;
}

void *map_get(const struct map *m, const char *key)
{
	struct map_entry *e = *map_find(m, key, map_hash(m, key));

	return e ? e->value : NULL;
}

void *map_del(struct map *m, const char *key)
{
	struct map_entry **pp = map_find(m, key, map_hash(m, key)), *e = *pp;
	void *value;

	if (!e)
		return NULL;
	value = e->value;
	*pp = e->next;
	m->len--;
	free(e);
	return value;
}

size_t map_len(const struct map *m)
{
	return m->len;
}

int map_each(struct map *m, int (*fn)(const char *key, void *value, void *arg), void *arg)
{
	for (size_t i = 0; i < m->n_buckets; i++)
		for (struct map_entry *e = m->buckets[i], *next; e; e = next) {
			int r;

			next = e->next;
			r = fn(e->key, e->value, arg);
			if (r)
				return r;
		}
	return 0;
}
