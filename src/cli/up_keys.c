/*
 * Keys of an instance. Signing keys: one file per key and service (keys/api, keys/ctl), named so
 * that the newest sorts last; the root key signs the numbered bundle with their public halves. API
 * keys: only their hash is stored.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "identity/identity.h"

/*
 * A superseded key stays in the bundle as long as a capability of it may be accepted, and a little.
 */
#define KEY_KEEP_S (CAP_LIFETIME_S + 2 * CAP_SKEW_S)
#define KEY_ACK_MS 30000
#define API_KEY_BYTES 32

static const struct key_dir {
	const char *dir;
	enum conf_user user;
	unsigned purposes;
} key_dirs[] = {
	{ "api", CONF_USER_API,
	  1u << ID_PURPOSE_CONTROL | 1u << ID_PURPOSE_SERVICE_PORT | 1u << ID_PURPOSE_LIFECYCLE },
	{ "ctl", CONF_USER_CTL, 1u << ID_PURPOSE_LIFECYCLE },
};

/*
 * O_PATH: opening and closing the database in the usual way would drop the locks that this process
 * holds on it (fcntl(2)).
 */
int up_own(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *e)
{
	autoclose int fd = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
	char self[40];
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, -errno, "%s", path);
	if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
		return err_set(e, -EPERM,
			       "%s is not a file of its own; somebody has put a link there", path);
	(void)str_format(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0 || chmod(self, mode) < 0)
		return err_errno(e, -errno, "%s", path);
	return 0;
}

static int root_key(const struct conf *k, struct key_signer *ret, struct err *e)
{
	char path[PATH_MAX], pub_path[PATH_MAX], hex[2 * KEY_PUBLIC_BYTES + 2];
	uint8_t public[KEY_PUBLIC_BYTES];
	int r;

	if (conf_path(k, path, CONF_STATE, "keys/root.key") < 0 ||
	    conf_path(k, pub_path, CONF_STATE, "keys/root.pub") < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	if (access(path, F_OK) < 0) {
		r = key_generate("root", ret, public);
		if (r >= 0)
			r = key_save(path, ret, e);
	} else {
		r = key_load(path, ret, public, e);
	}
	if (r < 0)
		return err_wrap(e, "root key");
	str_hex(hex, public, sizeof(public));
	hex[2 * KEY_PUBLIC_BYTES] = '\n';
	hex[2 * KEY_PUBLIC_BYTES + 1] = '\0';
	r = access(pub_path, F_OK) == 0
		    ? 0
		    : fd_write_file(AT_FDCWD, pub_path, hex, 2 * KEY_PUBLIC_BYTES + 1, 0644);
	return r < 0 ? err_errno(e, r, "%s", pub_path) : 0;
}

struct key_file { char name[64]; char path[PATH_MAX]; time_t made; };

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct key_file *)a)->name, ((const struct key_file *)b)->name);
}

/* The key files of one service, oldest first. */
static int list_keys(const struct conf *k, const struct key_dir *d, struct key_file *files,
		     size_t max, struct err *e)
{
	char dir[PATH_MAX];
	struct dirent *de;
	size_t n = 0;
	DIR *dp;

	if (conf_path(k, dir, CONF_STATE, "keys/%s", d->dir) < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	dp = opendir(dir);
	if (!dp)
		return err_errno(e, -errno, "%s", dir);
	while ((de = readdir(dp)) && n < max) {
		struct stat st;

		/* api-000001.key */
		if (!str_starts(de->d_name, d->dir) || de->d_name[strlen(d->dir)] != '-' ||
		    !str_ends(de->d_name, ".key"))
			continue;
		if (str_copy(files[n].name, sizeof(files[n].name), de->d_name) < 0 ||
		    str_format(files[n].path, PATH_MAX, "%s/%s", dir, de->d_name) < 0 ||
		    stat(files[n].path, &st) < 0)
			continue;
		files[n++].made = st.st_mtime;
	}
	closedir(dp);
	qsort(files, n, sizeof(*files), compare_names);
	return (int)n;
}

static int add_key(const struct conf *k, const struct key_dir *d, unsigned number, struct err *e)
{
	char path[PATH_MAX], kid[ID_KID_MAX + 1];
	uint8_t public[KEY_PUBLIC_BYTES];
	struct key_signer s;
	int r;

	(void)str_format(kid, sizeof(kid), "%s-%06u", d->dir, number);
	if (conf_path(k, path, CONF_STATE, "keys/%s/%s.key", d->dir, kid) < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	r = key_generate(kid, &s, public);
	if (r >= 0)
		r = key_save(path, &s, e);
	if (r >= 0)
		r = up_own(path, k->users[d->user], k->users[d->user], 0400, e);
	key_signer_done(&s);
	return r;
}

/*
 * Puts the keys of one service into the bundle; superseded ones that nothing can need any more are
 * deleted.
 */
static int collect_keys(const struct conf *k, const struct key_dir *d, struct key_bundle *b,
			struct err *e)
{
	struct key_file *files = x_array(BUNDLE_KEYS_MAX, sizeof(*files));
	int n = list_keys(k, d, files, BUNDLE_KEYS_MAX, e), r = n < 0 ? n : 0;

	for (int i = 0; i < n && r >= 0; i++) {
		struct key_entry *entry = &b->keys[b->n_keys];
		struct key_signer s;

		if (i + 1 < n && files[i + 1].made + KEY_KEEP_S < time(NULL)) {
			unlink(files[i].path);
			continue;
		}
		if (b->n_keys == BUNDLE_KEYS_MAX) {
			r = err_set(e, -ENOSPC,
				    "too many keys at once; wait three minutes and rotate again");
			break;
		}
		r = key_load(files[i].path, &s, entry->public, e);
		if (r < 0)
			break;
		(void)str_copy(entry->kid, sizeof(entry->kid), s.kid);
		entry->purposes = d->purposes;
		b->n_keys++;
		key_signer_done(&s);
	}
	free(files);
	return r;
}

static int publish_bundle(const struct conf *k, struct store *s, uint64_t *ret_number,
			  struct err *e)
{
	struct key_bundle *b = x_alloc(sizeof(*b));
	autofree char *text = NULL, *old = NULL;
	struct key_signer root;
	uint64_t number = 0;
	int r = store_bundle_get(s, &number, &old, e);

	if (r == -ENOENT)
		r = 0;
	b->number = number + 1;
	for (size_t i = 0; i < ARRAY_LEN(key_dirs) && r >= 0; i++)
		r = collect_keys(k, &key_dirs[i], b, e);
	if (r >= 0)
		r = root_key(k, &root, e);
	if (r >= 0) {
		r = bundle_sign(b, &root, &text, e);
		key_signer_done(&root);
	}
	if (r >= 0)
		r = store_bundle_put(s, b->number, text, e);
	*ret_number = b->number;
	free(b);
	return r;
}

static int client_token_key(const struct conf *k, struct err *e)
{
	char path[PATH_MAX], hex[65];
	int r;

	if (conf_path(k, path, CONF_STATE, "keys/api/client-token.key") < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	if (access(path, F_OK) == 0)
		return 0;
	r = str_random_hex(hex, 32);
	if (r >= 0)
		r = fd_write_file(AT_FDCWD, path, hex, 64, 0400);
	return r < 0 ? err_errno(e, r, "%s", path)
		     : up_own(path, k->users[CONF_USER_API], k->users[CONF_USER_API], 0400, e);
}

int up_keys_prepare(const struct conf *k, struct store *s, struct err *e)
{
	struct key_signer root;
	uint64_t number = 0;
	autofree char *old = NULL;
	bool added = false;
	int r;

	if ((r = root_key(k, &root, e)) < 0)
		return r;
	key_signer_done(&root);
	if ((r = client_token_key(k, e)) < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(key_dirs); i++) {
		struct key_file *files = x_array(BUNDLE_KEYS_MAX, sizeof(*files));
		int n = list_keys(k, &key_dirs[i], files, BUNDLE_KEYS_MAX, e);

		free(files);
		if (n == 0) {
			n = add_key(k, &key_dirs[i], 1, e);
			added = true;
		}
		if (n < 0)
			return n;
	}
	r = store_bundle_get(s, &number, &old, e);
	if (r == -ENOENT || added)
		r = publish_bundle(k, s, &number, e);
	return r;
}

static int new_api_key(struct store *s, const char *tenant, const char *name,
		       char key[5 + 2 * API_KEY_BYTES], struct store_key *ret, struct err *e)
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char hex[2 * API_KEY_BYTES + 1], hash_hex[2 * sizeof(hash) + 1], prefix[13];
	int r = str_random_hex(hex, API_KEY_BYTES);

	if (r < 0)
		return err_errno(e, r, "no random bytes");
	(void)str_format(key, 5 + 2 * API_KEY_BYTES, "e2b_%s", hex);
	crypto_hash_sha256(hash, (const unsigned char *)key, strlen(key));
	str_hex(hash_hex, hash, sizeof(hash));
	memcpy(prefix, key, 12);
	prefix[12] = '\0';
	return store_key_add(s, tenant, name, hash_hex, prefix, ret, e);
}

/* Whose `space` is to work: the user behind sudo, else ours. */
static int invoking_user(uid_t *uid, gid_t *gid, char home[256], struct err *e)
{
	const char *sudo = getenv("SUDO_UID"), *h = getenv("HOME");
	uint64_t id;

	*uid = getuid();
	*gid = getgid();
	if (sudo && str_to_u64(sudo, UINT32_MAX - 1, &id) == 0 && id) {
		struct passwd *pw = getpwuid((uid_t)id);

		if (pw) {
			*uid = pw->pw_uid;
			*gid = pw->pw_gid;
			h = pw->pw_dir;
			setenv("HOME", h, 1);
		}
	}
	return h && str_copy(home, 256, h) == 0 ? 0 : err_set(e, -ENOENT, "HOME is not set");
}

/* led_to: where they lead instead, "" when that is unknown or here. */
static bool credentials_work(struct cli *c, struct store *s, const char *path, const char *api_url,
			     char led_to[256])
{
	struct cli probe = { .command = c->command };
	unsigned char hash[crypto_hash_sha256_BYTES];
	char hex[2 * sizeof(hash) + 1];
	struct store_key k;
	struct err e = { 0 };

	led_to[0] = '\0';
	if (access(path, F_OK) < 0)
		return false;
	unsetenv("E2B_API_URL");
	unsetenv("E2B_API_KEY");
	if (creds_load(&probe, &e) < 0)
		return false;
	if (!str_eq(probe.api_url, api_url)) {
		(void)str_copy(led_to, 256, probe.api_url);
		return false;
	}
	crypto_hash_sha256(hash, (const unsigned char *)probe.api_key, strlen(probe.api_key));
	str_hex(hex, hash, sizeof(hash));
	return store_key_find(s, hex, &k, &e) == 0;
}

int up_key_first(struct cli *c, struct store *s, const char *api_url, struct err *e)
{
	char home[256], path[512], key[5 + 2 * API_KEY_BYTES], led_to[256];
	struct store_key made;
	uid_t uid;
	gid_t gid;
	int r = invoking_user(&uid, &gid, home, e);

	if (r < 0 || (r = creds_path(path, sizeof(path), e)) < 0)
		return r;
	if (!credentials_work(c, s, path, api_url, led_to)) {
		r = new_api_key(s, "default", "made by space up", key, &made, e);
		if (r >= 0)
			r = creds_save(path, api_url, key, uid, gid, e);
		explicit_bzero(key, sizeof(key));
		if (r < 0)
			return r;
		up_say("wrote an API key to %s%s%s", path,
		       led_to[0] ? "; `space` works here now, no longer at " : "", led_to);
	}
	return 0;
}

/* ---- space key ---- */

static int open_instance(struct cli *c, const char *run_dir, struct conf *k, struct store **s,
			 struct err *e)
{
	autofree char *path = run_dir ? x_asprintf("%s/conf.json", run_dir)
				      : x_asprintf("/run/space/%s/conf.json", c->instance);
	char url[PATH_MAX + 16];
	int r;

	if (geteuid())
		return err_set(e, -EACCES, "keys are made by root: sudo space key");
	r = conf_load(path, k, e);
	if (r == -ENOENT)
		return err_set(e, r,
			       "the instance %s does not run here; start it with `sudo space up`",
			       c->instance);
	if (r < 0)
		return r;
	if (key_init() < 0 || up_store_url(k, url) < 0)
		return err_set(e, -EIO, "cannot start the key library");
	return store_open(url, s, e);
}

static int wait_acknowledged(struct store *s, uint64_t number, struct err *e)
{
	int64_t start = clock_mono_ms();

	for (;;) {
		struct store_node *nodes;
		size_t n, behind = 0;
		int r = store_node_list(s, &nodes, &n, e);

		if (r < 0)
			return r;
		for (size_t i = 0; i < n; i++)
			behind += nodes[i].bundle < number;
		free(nodes);
		if (!behind)
			return 0;
		if (clock_mono_ms() - start > KEY_ACK_MS)
			return err_set(
				e, -ETIMEDOUT,
				"%zu of %zu nodes have not taken bundle %llu yet; it goes on in the background",
				behind, n, (unsigned long long)number);
		usleep(100000);
	}
}

static int key_new(struct cli *c, struct store *s, const char *tenant, const char *name,
		   struct err *e)
{
	char key[5 + 2 * API_KEY_BYTES];
	struct store_key made;
	int r;

	if (!id_tenant_ok(tenant))
		return err_set(e, -EINVAL,
			       "a tenant's name is made of a-z, 0-9 and -, at most %d characters",
			       ID_TENANT_MAX);
	r = new_api_key(s, tenant, name, key, &made, e);
	if (r < 0)
		return r;
	if (c->json) {
		json_t *v = json_pack("{s:s,s:s,s:s}", "id", made.id, "tenant", made.tenant, "key",
				      key);

		cli_print_json(v);
		json_decref(v);
	} else {
		printf("%s\n", key);
		cli_note(c, "The key is shown this once; only its hash is kept.");
	}
	explicit_bzero(key, sizeof(key));
	return 0;
}

static int key_ls(struct cli *c, struct store *s, const char *tenant, struct err *e)
{
	static const char *const heads[] = { "ID", "TENANT", "KEY", "STATE", "NAME" };
	struct store_key *keys;
	json_t *list = json_array();
	struct table t;
	size_t n;
	int r = store_key_list(s, tenant ? tenant : "", &keys, &n, e);

	if (r < 0)
		return r;
	table_init(&t, ARRAY_LEN(heads), heads);
	for (size_t i = 0; i < n; i++) {
		const struct store_key *k = &keys[i];
		const char *cells[] = { k->id, k->tenant, k->prefix,
					k->revoked_ms ? "revoked" : "valid", k->name };

		json_array_append_new(list,
				      json_pack("{s:s,s:s,s:s,s:s,s:s}", "id", k->id, "tenant",
						k->tenant, "prefix", k->prefix, "state", cells[3],
						"name", k->name));
		for (size_t col = 0; col < ARRAY_LEN(cells); col++)
			table_add(&t, cells[col]);
	}
	if (c->json)
		cli_print_json(list);
	else
		table_print(&t);
	table_done(&t);
	json_decref(list);
	free(keys);
	return 0;
}

static void print_bundle(struct cli *c, uint64_t number, const char *text)
{
	if (c->json)
		printf("{\"bundle\": %llu}\n", (unsigned long long)number);
	else
		printf("bundle %llu %s\n", (unsigned long long)number, text);
}

static int key_rotate(struct cli *c, const struct conf *k, struct store *s, struct err *e)
{
	uint64_t number;
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(key_dirs) && r >= 0; i++) {
		struct key_file *files = x_array(BUNDLE_KEYS_MAX, sizeof(*files));
		int n = list_keys(k, &key_dirs[i], files, BUNDLE_KEYS_MAX, e);
		uint64_t last = 0;

		if (n > 0) {
			const char *digits = files[n - 1].name + strlen(key_dirs[i].dir) + 1;

			(void)str_to_u64_n(digits, strspn(digits, "0123456789"), 999998, &last);
		}
		free(files);
		r = n < 0 ? n : add_key(k, &key_dirs[i], (unsigned)last + 1, e);
	}
	if (r >= 0)
		r = publish_bundle(k, s, &number, e);
	if (r >= 0)
		r = wait_acknowledged(s, number, e);
	if (r < 0)
		return r;
	print_bundle(c, number,
		     "is installed on every node; new capabilities are signed with the new keys");
	return 0;
}

/*
 * After a database was restored from a backup: its bundle number may be lower than what the node
 * has pinned.
 */
static int key_reset(struct cli *c, const struct conf *k, struct store *s, struct err *e)
{
	char path[PATH_MAX];
	uint64_t number;
	int r;

	if (conf_path(k, path, CONF_STATE, "sbx/bundle.txt") < 0)
		return err_set(e, -ENAMETOOLONG, "the state folder's name is too long");
	if (unlink(path) < 0 && errno != ENOENT)
		return err_errno(e, -errno, "%s", path);
	r = publish_bundle(k, s, &number, e);
	if (r < 0)
		return r;
	print_bundle(c, number, "is taken when sbx-manager starts next: `space down`, `space up`");
	return 0;
}

static int key_revoke(struct cli *c, struct store *s, const char *id, struct err *e)
{
	int r = store_key_revoke(s, id, e);
	json_t *v;

	if (r < 0)
		return r;
	if (!c->json) {
		printf("%s\n", id);
		return 0;
	}
	v = json_pack("{s:s}", "id", id);
	cli_print_json(v);
	json_decref(v);
	return 0;
}

static bool words_ok(char *const *argv, int n, const char *tenant)
{
	static const struct { const char *word; int n; } forms[] = {
		{ "new", 1 }, { "ls", 1 }, { "revoke", 2 }, { "rotate", 1 }, { "reset", 1 }
	};

	for (size_t i = 0; i < ARRAY_LEN(forms) && n; i++)
		if (str_eq(argv[1], forms[i].word) && n == forms[i].n)
			return tenant || !str_eq(argv[1], "new");
	return false;
}

int cmd_key(struct cli *c, int argc, char **argv)
{
	const char *tenant = NULL, *name = "", *instance = NULL, *run_dir = NULL;
	const struct cli_option opts[] = {
		{ "--tenant", "NAME", "whose key (new: required; ls: only these)", &tenant, false },
		{ "--name", "TEXT", "a note for lists", &name, false },
		{ "--instance", "NAME", "instance (default: default)", &instance, false },
		{ "--run-dir", "DIR", "default: /run/space/INSTANCE", &run_dir, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	struct store *s = NULL;
	struct err e = { 0 };
	struct conf k;

	if (n < 0)
		return n == -2 ? 0 : 2;
	if (!words_ok(argv, n, tenant))
		return cli_usage_error(
			c, "it takes: new --tenant NAME | ls | revoke ID | rotate | reset");
	if (instance)
		c->instance = instance;
	r = open_instance(c, run_dir, &k, &s, &e);
	if (r < 0)
		return cli_fail(c, &e);
	if (str_eq(argv[1], "new"))
		r = key_new(c, s, tenant, name, &e);
	else if (str_eq(argv[1], "ls"))
		r = key_ls(c, s, tenant, &e);
	else if (str_eq(argv[1], "revoke"))
		r = key_revoke(c, s, argv[2], &e);
	else if (str_eq(argv[1], "rotate"))
		r = key_rotate(c, &k, s, &e);
	else
		r = key_reset(c, &k, s, &e);
	store_close(s);
	return r < 0 ? cli_fail(c, &e) : 0;
}
