#include "daemon/conf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define CONF_FILE_MAX 16384
#define CONF_UID_MIN 65536               /* below stand the machine's own users (and nobody, 65534) */
#define CONF_UIDS_PER_SANDBOX 4

const char *const conf_user_names[CONF_USER_COUNT] = {
	[CONF_USER_API] = "space-api",
	[CONF_USER_CTL] = "space-ctl",
	[CONF_USER_NODE] = "space-node",
	[CONF_USER_SBX] = "space-sbx",
};

static bool conf_is_instance(const char *s)
{
	return s[0] >= 'a' && s[0] <= 'z' &&
	       str_is(s, 1, CONF_INSTANCE_MAX, "abcdefghijklmnopqrstuvwxyz0123456789");
}

/*
 * Absolute, in its shortest form, without bytes that a log or a mount table would have to escape.
 */
static bool conf_is_path(const char *s)
{
	if (s[0] != '/' || !s[1])
		return false;
	if (!str_is(s, 2, CONF_PATH_MAX - 1,
		    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+@/"))
		return false;
	while (*s) {
		size_t n = strcspn(s + 1, "/");

		if (n == 0 || (n == 1 && s[1] == '.') || (n == 2 && s[1] == '.' && s[2] == '.'))
			return false;
		s += n + 1;
	}
	return true;
}

static bool conf_is_component(const char *s)
{
	return s[0] != '.' &&
	       str_is(s, 1, 63,
		      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
}

static bool conf_is_uuid(const char *s)
{
	if (!str_is(s, 36, 36, "0123456789abcdef-"))
		return false;
	for (int i = 0; i < 36; i++)
		if ((s[i] == '-') != (i == 8 || i == 13 || i == 18 || i == 23))
			return false;
	return true;
}

static bool conf_is_accel(const char *s)
{
	return str_eq(s, "auto") || str_eq(s, "kvm") || str_eq(s, "tcg");
}

static bool conf_is_address(const char *s)
{
	return str_is(s, 1, 127,
		      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+@/:[]") &&
	       (str_starts(s, "tcp:") || str_starts(s, "unix:/"));
}

static bool conf_is_reach(const char *s)
{
	return str_eq(s, "") || str_eq(s, "loopback") || str_eq(s, "anywhere");
}

static bool conf_is_tcp_or_none(const char *s)
{
	return !*s || (conf_is_address(s) && str_starts(s, "tcp:"));
}

/* A socket in the file system is no farther away than a loopback address. */
static bool conf_is_near(const char *address)
{
	return str_starts(address, "unix:/") || str_starts(address, "tcp:127.") ||
	       str_starts(address, "tcp:[::1]:");
}

static bool conf_is_domain(const char *s)
{
	const char *colon = strchr(s, ':');
	size_t n = colon ? (size_t)(colon - s) : strlen(s);
	uint64_t port;

	if (n == 0 ||
	    strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != n)
		return false;
	return !colon || (str_to_u64(colon + 1, 65535, &port) == 0 && port > 0);
}

/* What browsers send as Origin: scheme, host, port where it is not the usual one; no path. */
static bool conf_is_origin(const char *s, size_t n)
{
	size_t scheme = str_starts(s, "https://") ? 8 : str_starts(s, "http://") ? 7 : 0;

	if (scheme == 0 || n <= scheme)
		return false;
	return strspn(s + scheme, "abcdefghijklmnopqrstuvwxyz0123456789.-:[]") == n - scheme;
}

static bool conf_is_origins(const char *s)
{
	while (*s) {
		size_t n = strcspn(s, " ");

		if (!conf_is_origin(s, n))
			return false;
		s += n;
		s += *s == ' ' && s[1];
		if (*s == ' ')
			return false;
	}
	return true;
}

/* Bits of an address behind its prefix: none may be set. */
static bool conf_is_network(const uint8_t *addr, size_t n, uint64_t prefix)
{
	for (size_t bit = prefix; bit < 8 * n; bit++) {
		if (addr[bit / 8] & (0x80 >> (bit % 8)))
			return false;
	}
	return true;
}

static int conf_ip(char dst[CONF_NET_TEXT_MAX], const char *text, bool with_prefix)
{
	const char *slash = strchr(text, '/');
	size_t len = slash ? (size_t)(slash - text) : strlen(text);
	char host[INET6_ADDRSTRLEN] = "";
	uint8_t addr[16];
	int family = memchr(text, ':', len) ? AF_INET6 : AF_INET;
	size_t n = family == AF_INET ? 4 : 16;
	uint64_t prefix = 0;

	if (!slash != !with_prefix || len >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, len);
	if (inet_pton(family, host, addr) != 1 || !inet_ntop(family, addr, host, sizeof(host)))
		return -EINVAL;
	if (!with_prefix)
		return str_copy(dst, CONF_NET_TEXT_MAX, host);
	if (str_to_u64(slash + 1, 8 * n, &prefix) < 0 || !conf_is_network(addr, n, prefix))
		return -EINVAL;
	return str_format(dst, CONF_NET_TEXT_MAX, "%s/%u", host, (unsigned)prefix);
}

int conf_cidr(char dst[CONF_NET_TEXT_MAX], const char *text) { return conf_ip(dst, text, true); }
int conf_ip_address(char dst[CONF_NET_TEXT_MAX], const char *text) { return conf_ip(dst, text, false); }

int conf_limit(char dst[CONF_NET_TEXT_MAX], const char *text)
{
	size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyz-");
	uint64_t v;

	if (name == 0 || text[0] == '-' || text[name] != '=' ||
	    str_to_u64(text + name + 1, UINT64_MAX, &v) < 0 || strlen(text) >= CONF_NET_TEXT_MAX)
		return -EINVAL;
	return str_copy(dst, CONF_NET_TEXT_MAX, text);
}

/* The lists of the object `network`. */
static const struct conf_list {
	const char *name;
	size_t offset, max;
	int (*form)(char dst[CONF_NET_TEXT_MAX], const char *text);
	const char *what;
} conf_lists[] = {
	{ "allow", offsetof(struct conf_network, allow), CONF_NET_ALLOW_MAX, conf_cidr,
	  "a range like 10.1.0.0/16 or fd00:1::/32, without bits behind its prefix" },
	{ "deny", offsetof(struct conf_network, deny), CONF_NET_DENY_MAX, conf_cidr,
	  "a range like 192.0.2.7/32 or 2001:db8::/32, without bits behind its prefix" },
	{ "nameservers", offsetof(struct conf_network, nameservers), CONF_NAMESERVERS_MAX,
	  conf_ip_address, "a numeric address" },
	{ "limits", offsetof(struct conf_network, limits), CONF_NET_LIMITS_MAX, conf_limit,
	  "a limit like connections=1000" },
};

static char *conf_list_at(const struct conf_network *n, const struct conf_list *l, size_t i)
{
	return (char *)n + l->offset + i * CONF_NET_TEXT_MAX;
}

enum conf_kind { CONF_TEXT, CONF_NUMBER, CONF_USERS, CONF_NETWORK };

/* All fields, all required but those that say so. */
static const struct conf_field {
	const char *name;
	enum conf_kind kind;
	size_t offset, size;
	bool (*ok)(const char *s);
	const char *form;
	bool optional;
} conf_fields[] = {
#define CONF_ROW(field, kind, ok, form) \
	{ #field, kind, offsetof(struct conf, field), sizeof(((struct conf *)0)->field), ok, form, false }
	CONF_ROW(instance, CONF_TEXT, conf_is_instance,
		 "1 to 12 lower-case letters and digits, a letter first"),
	CONF_ROW(state_dir, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(run_dir, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(cache_dir, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(lib_dir, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(vmm, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(kernel, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(initrd, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(base_image, CONF_TEXT, conf_is_path, "an absolute path without . and .."),
	CONF_ROW(template_id, CONF_TEXT, conf_is_component,
		 "one name of letters, digits and . _ -"),
	CONF_ROW(cgroup_root, CONF_TEXT, conf_is_component,
		 "one name of letters, digits and . _ -"),
	CONF_ROW(uid_base, CONF_NUMBER, NULL, NULL),
	CONF_ROW(users, CONF_USERS, NULL, NULL),
	CONF_ROW(worker, CONF_TEXT, conf_is_uuid, "a UUID in lower case"),
	CONF_ROW(accel, CONF_TEXT, conf_is_accel, "auto, kvm or tcg"),
	CONF_ROW(api_listen, CONF_TEXT, conf_is_address, "tcp:ADDRESS:PORT or unix:/PATH"),
	CONF_ROW(domain, CONF_TEXT, conf_is_domain,
		 "a host name, with :PORT where that is not the usual one"),
	{ "origins", CONF_TEXT, offsetof(struct conf, origins),
	  sizeof(((struct conf *)0)->origins), conf_is_origins,
	  "origins like https://host:port, separated by one blank", true },
	{ "tls_listen", CONF_TEXT, offsetof(struct conf, tls_listen),
	  sizeof(((struct conf *)0)->tls_listen), conf_is_tcp_or_none,
	  "an address like tcp:0.0.0.0:443", true },
	{ "plain_http", CONF_TEXT, offsetof(struct conf, plain_http),
	  sizeof(((struct conf *)0)->plain_http), conf_is_reach, "\"loopback\" or \"anywhere\"",
	  true },
	CONF_ROW(max_sandboxes, CONF_NUMBER, NULL, NULL),
	{ "network", CONF_NETWORK, offsetof(struct conf, network), sizeof(struct conf_network),
	  NULL, NULL, true },
#undef CONF_ROW
};

static int conf_check_ids(const struct conf *c, struct err *e)
{
	uint64_t end = (uint64_t)c->uid_base + (uint64_t)c->max_sandboxes * CONF_UIDS_PER_SANDBOX;

	if (c->max_sandboxes < 1 || c->max_sandboxes > CONF_SANDBOXES_MAX)
		return err_set(e, -ERANGE, "max_sandboxes must be 1 to %d", CONF_SANDBOXES_MAX);
	if (c->uid_base < CONF_UID_MIN || end > UINT32_MAX - 1)
		return err_set(
			e, -ERANGE,
			"uid_base must be %d or more, with 4 * max_sandboxes numbers above it",
			CONF_UID_MIN);
	for (int i = 0; i < CONF_USER_COUNT; i++) {
		if (c->users[i] == 0 || c->users[i] == (uid_t)-1)
			return err_set(e, -EINVAL, "users.%s must be a number of its own, not root",
				       conf_user_names[i]);
		if (c->users[i] >= c->uid_base && c->users[i] < end)
			return err_set(e, -EINVAL, "users.%s lies among the sandboxes' uids",
				       conf_user_names[i]);
		for (int k = 0; k < i; k++)
			if (c->users[k] == c->users[i])
				return err_set(e, -EINVAL, "users.%s and users.%s are the same",
					       conf_user_names[k], conf_user_names[i]);
	}
	return 0;
}

/* In the form that conf_load gives, without gaps. */
static int conf_check_network(const struct conf_network *n, struct err *e)
{
	for (size_t k = 0; k < ARRAY_LEN(conf_lists); k++) {
		const struct conf_list *l = &conf_lists[k];
		bool end = false;

		for (size_t i = 0; i < l->max; i++) {
			const char *s = conf_list_at(n, l, i);
			char again[CONF_NET_TEXT_MAX];

			if (!s[0]) {
				end = true;
				continue;
			}
			if (end || strnlen(s, CONF_NET_TEXT_MAX) == CONF_NET_TEXT_MAX ||
			    l->form(again, s) < 0 || !str_eq(again, s))
				return err_set(e, -EINVAL, "network.%s must have %s", l->name,
					       l->what);
		}
	}
	return 0;
}

static const char *conf_own_name(const char *field) { return field; }

int conf_check(const struct conf *c, struct err *e) { return conf_check_as(c, conf_own_name, e); }

int conf_check_as(const struct conf *c, const char *(*name)(const char *field), struct err *e)
{
	int r = conf_check_network(&c->network, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(conf_fields); i++) {
		const struct conf_field *f = &conf_fields[i];
		const char *s = (const char *)c + f->offset, *called = name(f->name);

		if (f->kind == CONF_TEXT && called && (strnlen(s, f->size) == f->size || !f->ok(s)))
			return err_set(e, -EINVAL, "%s must be %s", called, f->form);
	}
	if (strlen(c->run_dir) > CONF_RUN_MAX)
		return err_set(e, -EINVAL, "run_dir must have at most %d bytes", CONF_RUN_MAX);
	if (!conf_is_near(c->api_listen) && !str_eq(c->plain_http, "anywhere"))
		return err_set(e, -EINVAL,
			       "api_listen speaks HTTP without TLS and must be a loopback address, "
			       "or plain_http \"anywhere\"");
	return conf_check_ids(c, e);
}

static int conf_get_number(const json_t *v, const char *name, uint32_t *ret, struct err *e)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < 0 || n > UINT32_MAX)
		return err_set(e, -EINVAL, "%s must be a number from 0 to 4294967295", name);
	*ret = (uint32_t)n;
	return 0;
}

static int conf_get_list(json_t *v, const struct conf_list *l, struct conf_network *ret,
			 struct err *e)
{
	size_t i;
	json_t *item;

	if (v && !json_is_array(v))
		return err_set(e, -EINVAL, "network.%s must be a list", l->name);
	if (json_array_size(v) > l->max)
		return err_set(e, -E2BIG, "network.%s has more than %zu entries", l->name, l->max);
	json_array_foreach(v, i, item) {
		if (!json_is_string(item) ||
		    json_string_length(item) != strlen(json_string_value(item)) ||
		    l->form(conf_list_at(ret, l, i), json_string_value(item)) < 0)
			return err_set(e, -EINVAL, "network.%s must have %s", l->name, l->what);
	}
	return 0;
}

static int conf_get_network(json_t *v, struct conf_network *ret, struct err *e)
{
	const char *key;
	json_t *list;

	if (!json_is_object(v))
		return err_set(e, -EINVAL, "network must be an object");
	json_object_foreach(v, key, list) {
		const struct conf_list *l = NULL;
		int r;

		for (size_t i = 0; i < ARRAY_LEN(conf_lists); i++) {
			if (str_eq(key, conf_lists[i].name))
				l = &conf_lists[i];
		}
		if (!l)
			return err_set(e, -EINVAL, "\"network.%s\" is not a field", key);
		r = conf_get_list(list, l, ret, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int conf_get_users(json_t *v, struct conf *ret, struct err *e)
{
	if (!json_is_object(v))
		return err_set(e, -EINVAL, "users must be an object");
	for (int i = 0; i < CONF_USER_COUNT; i++) {
		int r = conf_get_number(json_object_get(v, conf_user_names[i]), conf_user_names[i],
					&ret->users[i], e);

		if (r < 0)
			return err_wrap(e, "users");
	}
	if (json_object_size(v) != CONF_USER_COUNT)
		return err_set(e, -EINVAL, "users has an unknown field");
	return 0;
}

static int conf_get(json_t *v, const struct conf_field *f, struct conf *ret, struct err *e)
{
	char *dst = (char *)ret + f->offset;

	if (!v && f->optional)
		return 0;
	if (!v)
		return err_set(e, -EINVAL, "%s is missing", f->name);
	if (f->kind == CONF_USERS)
		return conf_get_users(v, ret, e);
	if (f->kind == CONF_NETWORK)
		return conf_get_network(v, &ret->network, e);
	if (f->kind == CONF_NUMBER)
		return conf_get_number(v, f->name, (uint32_t *)dst, e);
	if (!json_is_string(v) || json_string_length(v) != strlen(json_string_value(v)))
		return err_set(e, -EINVAL, "%s must be a text", f->name);
	if (str_copy(dst, f->size, json_string_value(v)) < 0)
		return err_set(e, -EINVAL, "%s is longer than %zu bytes", f->name, f->size - 1);
	return 0;
}

static int conf_no_unknown(json_t *root, struct err *e)
{
	const char *key;
	json_t *v;

	json_object_foreach(root, key, v) {
		bool known = false;

		for (size_t i = 0; i < ARRAY_LEN(conf_fields); i++)
			known = known || str_eq(key, conf_fields[i].name);
		if (!known)
			return err_set(e, -EINVAL, "\"%s\" is not a field", key);
	}
	return 0;
}

static void conf_auto_decref(json_t **v)
{
	json_decref(*v);
}

int conf_parse(const char *text, size_t len, struct conf *ret, struct err *e)
{
	json_error_t why;
	__attribute__((cleanup(conf_auto_decref))) json_t *root =
		json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	struct conf c = { 0 };
	int r;

	if (!root)
		return err_set(e, -EINVAL, "not JSON: line %d: %s", why.line, why.text);
	if (!json_is_object(root))
		return err_set(e, -EINVAL, "not a JSON object");
	r = conf_no_unknown(root, e);
	for (size_t i = 0; i < ARRAY_LEN(conf_fields) && r == 0; i++)
		r = conf_get(json_object_get(root, conf_fields[i].name), &conf_fields[i], &c, e);
	if (r == 0)
		r = conf_check(&c, e);
	if (r == 0)
		*ret = c;
	return r;
}

int conf_load(const char *path, struct conf *ret, struct err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	autofree char *text = NULL;
	struct stat st;
	ssize_t n;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, -errno, "cannot read the configuration %s", path);
	if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 022))
		return err_set(
			e, -EPERM,
			"the configuration %s must be a file owned by root that nobody else may write",
			path);
	text = x_alloc(CONF_FILE_MAX + 1);
	n = fd_read_full(fd, text, CONF_FILE_MAX + 1, 1000);
	if (n < 0)
		return err_errno(e, (int)n, "cannot read the configuration %s", path);
	if (n > CONF_FILE_MAX)
		return err_set(e, -EFBIG, "the configuration %s is longer than %d bytes", path,
			       CONF_FILE_MAX);
	r = conf_parse(text, (size_t)n, ret, e);
	return r < 0 ? err_wrap(e, "configuration %s", path) : 0;
}

static json_t *conf_users_json(const struct conf *c)
{
	json_t *users = json_object();

	for (int i = 0; i < CONF_USER_COUNT; i++)
		json_object_set_new(users, conf_user_names[i], json_integer(c->users[i]));
	return users;
}

static json_t *conf_network_json(const struct conf *c)
{
	json_t *o = json_object();

	for (size_t k = 0; k < ARRAY_LEN(conf_lists); k++) {
		const struct conf_list *l = &conf_lists[k];
		json_t *list = json_array();

		for (size_t i = 0; i < l->max && conf_list_at(&c->network, l, i)[0]; i++)
			json_array_append_new(list,
					      json_string(conf_list_at(&c->network, l, i)));
		json_object_set_new(o, l->name, list);
	}
	return o;
}

char *conf_text(const struct conf *c)
{
	__attribute__((cleanup(conf_auto_decref))) json_t *root = json_object();
	autofree char *text = NULL;

	for (size_t i = 0; i < ARRAY_LEN(conf_fields); i++) {
		const struct conf_field *f = &conf_fields[i];
		const char *src = (const char *)c + f->offset;
		json_t *v = f->kind == CONF_USERS     ? conf_users_json(c) :
			    f->kind == CONF_NETWORK ? conf_network_json(c) :
			    f->kind == CONF_NUMBER  ? json_integer(*(const uint32_t *)src) :
						      json_string(src);

		json_object_set_new(root, f->name, v);
	}
	text = json_dumps(root, JSON_INDENT(2));
	return text ? x_asprintf("%s\n", text) : NULL;
}

int conf_write(const char *path, const struct conf *c, struct err *e)
{
	autofree char *text = NULL;
	int r = conf_check(c, e);

	if (r < 0)
		return r;
	text = conf_text(c);
	if (!text)
		return err_set(e, -ENOMEM, "cannot make the configuration's text");
	r = fd_write_file(AT_FDCWD, path, text, strlen(text), 0644);
	return r < 0 ? err_errno(e, r, "cannot write the configuration %s", path) : 0;
}

int conf_path(const struct conf *c, char dst[PATH_MAX], enum conf_dir dir, const char *fmt, ...)
{
	const char *const dirs[] = {
		[CONF_RUN] = c->run_dir,
		[CONF_STATE] = c->state_dir,
		[CONF_CACHE] = c->cache_dir,
		[CONF_LIB] = c->lib_dir,
	};
	size_t n = strlen(dirs[dir]);
	va_list ap;
	int k;

	memcpy(dst, dirs[dir], n);
	dst[n++] = '/';
	va_start(ap, fmt);
	k = vsnprintf(dst + n, PATH_MAX - n, fmt, ap);
	va_end(ap);
	return k < 0 || (size_t)k >= PATH_MAX - n ? -ENAMETOOLONG : 0;
}

int conf_control(const struct conf *c, const char *keys, struct conf_control *ret, struct err *e)
{
	char db[PATH_MAX];
	int r = conf_path(c, db, CONF_STATE, "control/space.db");

	if (r == 0)
		r = str_format(ret->store_url, sizeof(ret->store_url), "sqlite:%s", db);
	if (r == 0)
		r = conf_path(c, ret->keys, CONF_STATE, "keys/%s", keys);
	if (r == 0)
		r = conf_path(c, ret->root_pub, CONF_STATE, "keys/root.pub");
	return r < 0 ? err_errno(e, r, "cannot build the paths of the state folder") : 0;
}
