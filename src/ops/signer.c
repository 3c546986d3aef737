#include "ops/signer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define FILES_MAX BUNDLE_KEYS_MAX

struct key_file { char name[ID_KID_MAX + 8]; };

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct key_file *)a)->name, ((const struct key_file *)b)->name);
}

/* Oldest first. Other files of the folder (client-token.key) do not load as signing keys. */
static size_t list_files(const char *dir, struct key_file files[FILES_MAX])
{
	DIR *d = opendir(dir);
	struct dirent *de;
	size_t n = 0;

	if (!d)
		return 0;
	while (n < FILES_MAX && (de = readdir(d)))
		if (str_ends(de->d_name, ".key") &&
		    str_copy(files[n].name, sizeof(files[n].name), de->d_name) == 0)
			n++;
	closedir(d);
	qsort(files, n, sizeof(*files), by_name);
	return n;
}

static bool usable(const struct key_bundle *b, const char *dir, const char *name,
		   enum id_purpose purpose, struct key_signer *ret)
{
	uint8_t public[KEY_PUBLIC_BYTES];
	autofree char *path = x_asprintf("%s/%s", dir, name);
	const struct key_entry *entry;

	if (key_load(path, ret, public, NULL) < 0)
		return false;
	entry = bundle_find(b, ret->kid);
	if (entry && memcmp(entry->public, public, sizeof(public)) == 0 &&
	    (entry->purposes & 1u << purpose))
		return true;
	key_signer_done(ret);
	return false;
}

static bool choose(const struct key_bundle *b, const char *dir, enum id_purpose purpose,
		   bool newest, struct key_signer *ret)
{
	struct key_file files[FILES_MAX];
	size_t n = list_files(dir, files);

	for (size_t i = 0; i < n; i++)
		if (usable(b, dir, files[newest ? n - 1 - i : i].name, purpose, ret))
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
		if (nodes[i].bundle < number && nodes[i].seen_ms + OPS_NODE_AWAY_MS > now)
			*ret = false;
	return 0;
}

int ops_root_public(const char *path, uint8_t ret[KEY_PUBLIC_BYTES], struct err *e)
{
	autofree char *text = NULL;
	size_t n;
	int r = fd_read_file(AT_FDCWD, path, 256, &text, &n);

	if (r < 0)
		return err_errno(e, r, "%s", path);
	text[strcspn(text, "\n")] = '\0';
	r = str_unhex(ret, KEY_PUBLIC_BYTES, text);
	return r < 0 ? err_set(e, r, "%s: not a public key", path) : 0;
}

int ops_signer_choose(struct store *s, const char *dir, const uint8_t root_public[KEY_PUBLIC_BYTES],
		      enum id_purpose purpose, bool have_one, struct key_signer *ret, struct err *e)
{
	autofree struct key_bundle *b = x_alloc(sizeof(*b));
	autofree char *text = NULL;
	uint64_t number = 0;
	bool acked = false;
	int r = store_bundle_get(s, &number, &text, e);

	if (r == 0)
		r = bundle_open(text, strlen(text), root_public, b, e);
	if (r == 0)
		r = all_nodes_have(s, number, &acked, e);
	if (r < 0 || (!acked && have_one))
		return r;
	return choose(b, dir, purpose, acked, ret);
}

/* ---- database handles ---- */

static pthread_key_t store_key;
static pthread_once_t store_once = PTHREAD_ONCE_INIT;

static void store_free(void *s)
{
	store_close(s);
}

static void store_key_make(void)
{
	pthread_key_create(&store_key, store_free);
}

struct store *ops_thread_store(const char *url, struct err *e)
{
	struct store *s;

	pthread_once(&store_once, store_key_make);
	s = pthread_getspecific(store_key);
	if (!s && store_open(url, &s, e) == 0)
		pthread_setspecific(store_key, s);
	return s;
}
