#include "store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define STORE_GROW_MIN 16
#define STORE_SQLITE "sqlite:"

int store_grow(void **array, size_t n, size_t size, struct err *e)
{
	if (n >= STORE_ROWS_MAX)
		return err_set(e, -ENOBUFS, "the list has over %d rows", STORE_ROWS_MAX);
	/* Grows when n is 0, 16, 32, 64 ... */
	if (n == 0)
		*array = x_array(STORE_GROW_MIN, size);
	else if (n >= STORE_GROW_MIN && (n & (n - 1)) == 0)
		*array = x_realloc(*array, 2 * n * size);
	return 0;
}

int store_open(const char *url, struct store **ret, struct err *e)
{
	struct store *s;
	int r;

	if (!str_starts(url, STORE_SQLITE "/"))
		return err_set(e, -EINVAL,
			       "the database's address must be " STORE_SQLITE "/absolute/path");
	s = x_alloc(sizeof(*s));
	r = db_open(url + strlen(STORE_SQLITE), &s->db, e);
	if (r == 0)
		r = store_migrate(s, e);
	if (r < 0) {
		store_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	db_close(s->db);
	free(s);
}

int store_now(struct store *s, int64_t *ret_ms, struct err *e)
{
	return db_now(s->db, ret_ms, e);
}

/* ---- Tenants and keys ---- */

#define KEY_COLS "id, tenant, prefix, name, created_ms, revoked_ms"

static void key_read(const struct db_rows *q, struct store_key *k)
{
	*k = (struct store_key){ .created_ms = db_int(q, 4), .revoked_ms = db_int(q, 5) };
	str_copy(k->id, sizeof(k->id), db_str(q, 0));
	str_copy(k->tenant, sizeof(k->tenant), db_str(q, 1));
	str_copy(k->prefix, sizeof(k->prefix), db_str(q, 2));
	str_copy(k->name, sizeof(k->name), db_str(q, 3));
}

static int key_check(const char *tenant, const char *name, const char *hash, const char *prefix,
		     struct err *e)
{
	struct store_key k;

	if (!id_tenant_ok(tenant))
		return err_set(
			e, -EINVAL,
			"a tenant's name has 1 to %d of a-z, 0-9 and -, and does not begin with -",
			ID_TENANT_MAX);
	if (strlen(name) >= sizeof(k.name) || !str_utf8_ok(name, strlen(name)))
		return err_set(e, -EINVAL, "a key's name has at most %zu bytes of UTF-8",
			       sizeof(k.name) - 1);
	if (!str_is(hash, 64, 64, "0123456789abcdef") || strlen(prefix) >= sizeof(k.prefix))
		return err_set(e, -EINVAL, "the key's hash or prefix is malformed");
	return 0;
}

int store_key_add(struct store *s, const char *tenant, const char *name, const char *key_hash_hex,
		  const char *prefix, struct store_key *ret, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	struct store_key k = { 0 };
	int r = key_check(tenant, name, key_hash_hex, prefix, e);

	if (r < 0)
		return r;
	r = id_new_uuid(k.id);
	if (r < 0)
		return err_errno(e, r, "a new key's id");
	str_copy(k.tenant, sizeof(k.tenant), tenant);
	str_copy(k.name, sizeof(k.name), name);
	str_copy(k.prefix, sizeof(k.prefix), prefix);
	r = db_begin(s->db, &tx, e);
	if (r == 0)
		r = store_now(s, &k.created_ms, e);
	if (r >= 0)
		r = db_exec(
			s->db, e,
			"INSERT INTO tenants (id, created_ms) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING",
			DB_STR(tenant), DB_INT(k.created_ms));
	if (r >= 0)
		r = db_exec(
			s->db, e,
			"INSERT INTO api_keys (id, tenant, name, hash, prefix, created_ms) VALUES ($1, $2, $3, $4, $5, $6)",
			DB_STR(k.id), DB_STR(tenant), DB_STR(name), DB_STR(key_hash_hex),
			DB_STR(prefix), DB_INT(k.created_ms));
	if (r >= 0)
		r = db_commit(&tx, e);
	if (r == 0)
		*ret = k;
	return r;
}

int store_key_find(struct store *s, const char *key_hash_hex, struct store_key *ret, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT " KEY_COLS " FROM api_keys WHERE hash = $1 AND revoked_ms = 0",
			 DB_STR(key_hash_hex));

	if (r == 0)
		r = db_next(&q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return err_set_code(e, -ENOENT, "key-unknown",
				    "the API key is not known or was revoked");
	key_read(&q, ret);
	return 0;
}

int store_key_list(struct store *s, const char *tenant, struct store_key **ret, size_t *ret_n,
		   struct err *e)
{
	autorows struct db_rows q = { 0 };
	autofree struct store_key *list = NULL;
	size_t n = 0;
	int r = db_query(s->db, e, &q,
			 "SELECT " KEY_COLS
			 " FROM api_keys WHERE $1 = '' OR tenant = $1 ORDER BY created_ms, id",
			 DB_STR(tenant));

	while (r >= 0 && (r = db_next(&q, e)) > 0) {
		r = store_grow((void **)&list, n, sizeof(*list), e);
		if (r == 0)
			key_read(&q, &list[n++]);
	}
	if (r < 0)
		return r;
	*ret = TAKE(list);
	*ret_n = n;
	return 0;
}

int store_key_revoke(struct store *s, const char *id, struct err *e)
{
	int64_t now;
	int r = store_now(s, &now, e);

	if (r == 0)
		r = db_exec(s->db, e,
			    "UPDATE api_keys SET revoked_ms = $2 WHERE id = $1 AND revoked_ms = 0",
			    DB_STR(id), DB_INT(now));
	if (r < 0)
		return r;
	return r == 0 ? err_set_code(e, -ENOENT, "key-unknown",
				     "there is no such key, or it was revoked before")
		      : 0;
}

/* ---- Nodes ---- */

int store_node_put(struct store *s, const char *worker, const char *addr, struct err *e)
{
	struct store_node n;
	int r;

	if (!id_uuid_ok(worker) || strlen(addr) >= sizeof(n.addr))
		return err_set(e, -EINVAL, "the worker's id or address is malformed");
	r = db_exec(
		s->db, e,
		"INSERT INTO nodes (worker, addr) VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET addr = excluded.addr",
		DB_STR(worker), DB_STR(addr));
	return r < 0 ? r : 0;
}

int store_node_seen(struct store *s, const char *worker, uint64_t bundle, const char *report_json,
		    struct err *e)
{
	struct store_node n;
	int64_t now;
	int r = store_now(s, &now, e);

	if (r < 0)
		return r;
	if (strlen(report_json) >= sizeof(n.report))
		return err_set(e, -EMSGSIZE, "a node's report has at most %zu bytes",
			       sizeof(n.report) - 1);
	r = db_exec(s->db, e,
		    "UPDATE nodes SET bundle = $2, seen_ms = $3, report = $4 WHERE worker = $1",
		    DB_STR(worker), DB_INT(bundle), DB_INT(now), DB_STR(report_json));
	if (r < 0)
		return r;
	return r == 0 ? err_set_code(e, -ENOENT, "node-unknown", "no node %s has joined", worker)
		      : 0;
}

int store_node_list(struct store *s, struct store_node **ret, size_t *ret_n, struct err *e)
{
	autorows struct db_rows q = { 0 };
	autofree struct store_node *list = NULL;
	size_t n = 0;
	int r = db_query(s->db, e, &q,
			 "SELECT worker, addr, bundle, seen_ms, report FROM nodes ORDER BY worker");

	while (r >= 0 && (r = db_next(&q, e)) > 0) {
		struct store_node *d;

		r = store_grow((void **)&list, n, sizeof(*list), e);
		if (r < 0)
			break;
		d = &list[n++];
		*d = (struct store_node) { .bundle = (uint64_t)db_int(&q, 2),
					   .seen_ms = db_int(&q, 3) };
		str_copy(d->worker, sizeof(d->worker), db_str(&q, 0));
		str_copy(d->addr, sizeof(d->addr), db_str(&q, 1));
		str_copy(d->report, sizeof(d->report), db_str(&q, 4));
	}
	if (r < 0)
		return r;
	*ret = TAKE(list);
	*ret_n = n;
	return 0;
}

/* ---- Key bundle ---- */

int store_bundle_get(struct store *s, uint64_t *ret_number, char **ret_text, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(s->db, e, &q,
			 "SELECT number, body FROM bundles ORDER BY number DESC LIMIT 1");

	if (r == 0)
		r = db_next(&q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return err_set_code(e, -ENOENT, "bundle-none", "there is no key bundle yet");
	*ret_number = (uint64_t)db_int(&q, 0);
	*ret_text = x_strdup(db_str(&q, 1));
	return 0;
}

int store_bundle_put(struct store *s, uint64_t number, const char *text, struct err *e)
{
	autotx struct db_tx tx = { 0 };
	autofree char *old_text = NULL;
	uint64_t old = 0;
	int64_t now;
	int r;

	if (number < 1 || number > INT64_MAX || strlen(text) >= BUNDLE_BYTES_MAX)
		return err_set(e, -EINVAL, "the key bundle's number or length is out of range");
	r = db_begin(s->db, &tx, e);
	if (r == 0)
		r = store_now(s, &now, e);
	if (r < 0)
		return r;
	r = store_bundle_get(s, &old, &old_text, NULL);
	if (r < 0 && r != -ENOENT)
		return err_set(e, r, "the newest key bundle cannot be read");
	if (r == 0 && number == old && str_eq(text, old_text))
		return 0;
	if (r == 0 && number <= old)
		return err_set_code(e, -ESTALE, "bundle-older", "key bundle %llu is there already",
				    (unsigned long long)old);
	r = db_exec(s->db, e, "INSERT INTO bundles (number, body, created_ms) VALUES ($1, $2, $3)",
		    DB_INT(number), DB_STR(text), DB_INT(now));
	return r < 0 ? r : db_commit(&tx, e);
}

/* ---- Templates ---- */

int store_template_put(struct store *s, const char *tenant, const char *name, const char *id,
		       const char *manifest_json, struct err *e)
{
	int64_t now;
	int r = store_now(s, &now, e);

	if (r < 0)
		return r;
	if (strlen(name) >= 64 || !name[0] || strlen(id) >= 64 || !id[0] ||
	    strlen(manifest_json) > STORE_JSON_MAX)
		return err_set(e, -EINVAL, "the template's name, id or manifest is out of range");
	r = db_exec(
		s->db, e,
		"INSERT INTO templates (tenant, name, id, manifest, created_ms) VALUES ($1, $2, $3, $4, $5)"
		" ON CONFLICT (tenant, name) DO UPDATE SET id = excluded.id, manifest = excluded.manifest,"
		" created_ms = excluded.created_ms",
		DB_STR(tenant), DB_STR(name), DB_STR(id), DB_STR(manifest_json), DB_INT(now));
	return r < 0 ? r : 0;
}

int store_template_find(struct store *s, const char *tenant, const char *name_or_id, char id[64],
			char name[64], char **ret_manifest, struct err *e)
{
	autorows struct db_rows q = { 0 };
	int r = db_query(
		s->db, e, &q,
		"SELECT id, name, manifest FROM templates WHERE (tenant = $1 OR tenant = '') AND (name = $2 OR id = $2)"
		" ORDER BY CASE WHEN tenant = $1 THEN 0 ELSE 1 END, CASE WHEN name = $2 THEN 0 ELSE 1 END, name LIMIT 1",
		DB_STR(tenant), DB_STR(name_or_id));

	if (r == 0)
		r = db_next(&q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return err_set_code(e, -ENOENT, "template-not-found",
				    "there is no template \"%.63s\"", name_or_id);
	str_copy(id, 64, db_str(&q, 0));
	str_copy(name, 64, db_str(&q, 1));
	if (ret_manifest)
		*ret_manifest = x_strdup(db_str(&q, 2));
	return 0;
}
