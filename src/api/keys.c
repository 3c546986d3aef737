/*
 * Which key signs (K-2). A new key may be used only when every node that serves knows it, else its capabilities would be
 * refused: the newest key file whose public half stands in the newest bundle, once all nodes have acknowledged that bundle.
 * Until then the key that signed before goes on; after a start in that moment, the oldest one of the bundle, since it
 * is the one that was in the bundle before. A node that has not been seen for KEYS_NODE_AWAY_MS does not hold the rotation
 * up: it gets the bundle before anything else when it comes back.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define KEYS_POLL_MS 1000
#define KEYS_NODE_AWAY_MS 60000
#define KEYS_FILES_MAX BUNDLE_KEYS_MAX

struct api_keys {
	struct api *api;
	uint8_t root_public[KEY_PUBLIC_BYTES];
	struct token_key token;
	struct key_signer signer;
	bool have;
	struct loop_timer timer;
	bool asking;
	/* the job's */
	struct key_signer found; bool found_ok;
	struct err err;
};

struct key_file { char name[ID_KID_MAX + 8]; };

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct key_file *)a)->name, ((const struct key_file *)b)->name);
}

/* Key files, oldest first: their names are made so that they sort by age. */
static size_t list_files(const char *dir, struct key_file files[KEYS_FILES_MAX])
{
	DIR *d = opendir(dir);
	struct dirent *de;
	size_t n = 0;

	if (!d)
		return 0;
	while (n < KEYS_FILES_MAX && (de = readdir(d)))
		if (str_ends(de->d_name, ".key") && !str_eq(de->d_name, "client-token.key") &&
		    str_copy(files[n].name, sizeof(files[n].name), de->d_name) == 0)
			n++;
	closedir(d);
	qsort(files, n, sizeof(*files), by_name);
	return n;
}

static bool usable(const struct key_bundle *b, const char *dir, const char *name, struct key_signer *ret)
{
	uint8_t public[KEY_PUBLIC_BYTES];
	autofree char *path = x_asprintf("%s/%s", dir, name);
	const struct key_entry *entry;

	if (key_load(path, ret, public, NULL) < 0)
		return false;
	entry = bundle_find(b, ret->kid);
	if (entry && memcmp(entry->public, public, sizeof(public)) == 0 && (entry->purposes & 1u << ID_PURPOSE_CONTROL))
		return true;
	key_signer_done(ret);
	return false;
}

/* The newest usable key, or the oldest. */
static bool choose(const struct key_bundle *b, const char *dir, bool newest, struct key_signer *ret)
{
	struct key_file files[KEYS_FILES_MAX];
	size_t n = list_files(dir, files);

	for (size_t i = 0; i < n; i++)
		if (usable(b, dir, files[newest ? n - 1 - i : i].name, ret))
			return true;
	return false;
}

static int all_nodes_have(struct store *s, uint64_t number, bool *ret, struct err *e)
{
	autofree struct store_node *nodes = NULL;
	int64_t now;
	size_t n;
	int r = store_node_list(s, &nodes, &n, e);

	if (r == 0)
		r = store_now(s, &now, e);
	if (r < 0)
		return r;
	*ret = n > 0;
	for (size_t i = 0; i < n; i++)
		if (nodes[i].bundle < number && nodes[i].seen_ms + KEYS_NODE_AWAY_MS > now)
			*ret = false;
	return 0;
}

static void look(struct api_keys *k, struct store *s)
{
	struct key_bundle *b = x_alloc(sizeof(*b));
	autofree char *text = NULL;
	uint64_t number = 0;
	bool acked = false;
	int r = s ? store_bundle_get(s, &number, &text, &k->err) : k->err.num;

	k->found_ok = false;
	if (r == 0)
		r = bundle_open(text, strlen(text), k->root_public, b, &k->err);
	if (r == 0)
		r = all_nodes_have(s, number, &acked, &k->err);
	if (r == 0 && (acked || !k->have))
		k->found_ok = choose(b, k->api->keys_dir, acked, &k->found);
	free(b);
}

static void poll_run(void *arg)
{
	struct api_keys *k = arg;

	look(k, api_store(k->api, &k->err));
}

static void poll_done(void *arg)
{
	struct api_keys *k = arg;

	k->asking = false;
	if (k->found_ok) {
		if (!k->have || !str_eq(k->signer.kid, k->found.kid))
			log_info("signing key", F_STR("kid", k->found.kid));
		key_signer_done(&k->signer);
		k->signer = k->found;
		k->have = true;
		memset(&k->found, 0, sizeof(k->found));
	} else if (!k->have || k->err.num) {
		static struct log_limit limit;

		if (log_limit_ok(&limit, 6))
			log_warn("no signing key that the nodes know", F_ERR(&k->err));
	}
	k->err = (struct err){ 0 };
}

static void poll_tick(struct loop_timer *t)
{
	struct api_keys *k = t->arg;

	if (!k->asking && work_add(k->api->quick, NULL, poll_run, poll_done, k) == 0)
		k->asking = true;
	loop_timer_set(k->api->loop, &k->timer, KEYS_POLL_MS, poll_tick, k);
}

static int load_root(struct api_keys *k, const char *path, struct err *e)
{
	autofree char *text = NULL;
	size_t n;
	int r = fd_read_file(AT_FDCWD, path, 256, &text, &n);

	if (r < 0)
		return err_errno(e, r, "%s", path);
	text[strcspn(text, "\n")] = '\0';
	r = str_unhex(k->root_public, sizeof(k->root_public), text);
	return r < 0 ? err_set(e, r, "%s: not a public key", path) : 0;
}

struct api_keys *keys_new(struct api *a, struct err *e)
{
	struct api_keys *k = x_alloc(sizeof(*k));
	autofree char *token_path = x_asprintf("%s/client-token.key", a->keys_dir);
	struct store *s;

	k->api = a;
	if (load_root(k, a->root_pub, e) < 0 || token_key_load(token_path, &k->token, e) < 0) {
		free(k);
		return NULL;
	}
	if (store_open(a->store_url, &s, e) < 0) {
		keys_free(k);
		return NULL;
	}
	look(k, s);
	store_close(s);
	poll_done(k);
	loop_timer_set(a->loop, &k->timer, KEYS_POLL_MS, poll_tick, k);
	return k;
}

void keys_free(struct api_keys *k)
{
	if (!k)
		return;
	loop_timer_stop(&k->timer);
	key_signer_done(&k->signer);
	explicit_bzero(k, sizeof(*k));
	free(k);
}

const struct key_signer *keys_signer(const struct api *a)
{
	return a->keys->have ? &a->keys->signer : NULL;
}

const struct token_key *keys_token(const struct api *a)
{
	return &a->keys->token;
}
