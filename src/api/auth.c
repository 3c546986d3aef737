/*
 * API keys. The key itself is hashed at once and forgotten; the hash is looked up in the database
 * and remembered for API_AUTH_TTL_MS from that look-up on. A hit does not prolong the entry, so a
 * revoked key ends within that time here and in every other process.
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

struct auth_entry { char tenant[ID_TENANT_MAX + 1]; int64_t until_ms; };

struct auth_job {
	struct call *call;
	void (*next)(struct call *c);
	struct store_key key;
	int64_t asked_ms;
	struct err err;
};

static int free_entry(const char *key, void *value, void *arg)
{
	free(value);
	return 0;
}

void auth_clear(struct api *a)
{
	map_each(a->auth, free_entry, NULL);
	map_free(a->auth);
	a->auth = NULL;
}

static void remember(struct api *a, const char *hash, const char *tenant, int64_t asked_ms)
{
	struct auth_entry *entry = map_get(a->auth, hash);

	if (!entry) {
		entry = x_alloc(sizeof(*entry));
		if (map_put(a->auth, hash, entry) < 0) {
			auth_clear(a);
			a->auth = map_new(API_AUTH_ENTRIES_MAX);
			map_put(a->auth, hash, entry);
		}
	}
	str_copy(entry->tenant, sizeof(entry->tenant), tenant);
	entry->until_ms = asked_ms + API_AUTH_TTL_MS;
}

static void refuse(struct call *c, const struct err *e)
{
	struct err denied = { 0 };

	if (e->num != -ENOENT) {
		call_error(c, e);
		return;
	}
	err_set(&denied, -ENOKEY, "The API key is unknown or was revoked.");
	call_error(c, &denied);
}

static void lookup_run(void *arg)
{
	struct auth_job *j = arg;
	struct store *s = api_store(j->call->api, &j->err);

	if (s)
		store_key_find(s, j->call->key_hash, &j->key, &j->err);
}

static void lookup_done(void *arg)
{
	struct auth_job *j = arg;
	struct call *c = j->call;

	if (j->err.num < 0) {
		refuse(c, &j->err);
	} else {
		remember(c->api, c->key_hash, j->key.tenant, j->asked_ms);
		str_copy(c->tenant, sizeof(c->tenant), j->key.tenant);
		j->next(c);
	}
	free(j);
}

static int hash_key(const struct http_head *h, char dst[65], struct err *e)
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	const char *key = http_get(h, "X-API-Key");

	if (!key || http_count(h, "X-API-Key") != 1 || !*key || strlen(key) > API_KEY_MAX)
		return err_set(e, -ENOKEY, "The request needs one API key in the field X-API-Key.");
	crypto_hash_sha256(hash, (const unsigned char *)key, strlen(key));
	str_hex(dst, hash, sizeof(hash));
	return 0;
}

void auth_check(struct call *c, void (*next)(struct call *c))
{
	struct auth_entry *entry;
	struct auth_job *j;
	struct err e = { 0 };
	int r;

	if (hash_key(http_req_head(c->req), c->key_hash, &e) < 0) {
		call_error(c, &e);
		return;
	}
	entry = map_get(c->api->auth, c->key_hash);
	if (entry && clock_mono_ms() < entry->until_ms) {
		str_copy(c->tenant, sizeof(c->tenant), entry->tenant);
		next(c);
		return;
	}
	j = x_alloc(sizeof(*j));
	j->call = c;
	j->next = next;
	j->asked_ms = clock_mono_ms();
	r = work_add(c->api->quick, NULL, lookup_run, lookup_done, j);
	if (r < 0) {
		free(j);
		err_set(&e, r, "Too many requests wait.");
		call_error(c, &e);
	}
}
