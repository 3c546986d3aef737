/* Where the API is and with which key: the environment first, then ~/.config/space/credentials. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"

#define CREDS_FILE_MAX 4096
#define AUTHORITY "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]"
#define NO_ADDRESS "%s is not an address like http://127.0.0.1:4983 or https://api.example"

/* "[::1]:4983", "api.example": name and port; false: neither is missing or in excess. */
static bool split_authority(struct cli *c, const char *authority, const char *port)
{
	bool six = authority[0] == '[';
	const char *end = six ? strchr(authority, ']') : authority + strcspn(authority, ":");
	const char *host = authority + six, *after;
	uint64_t number;

	if (!end || end == host || (size_t)(end - host) >= sizeof(c->name))
		return false;
	memcpy(c->name, host, (size_t)(end - host));
	c->name[end - host] = '\0';
	after = end + six;
	if (*after == ':')
		port = after + 1;
	else if (*after)
		return false;
	return str_to_u64(port, 65535, &number) == 0 && number &&
	       str_copy(c->port, sizeof(c->port), port) == 0;
}

/* Names are looked up by the first call: not every command makes one. */
static int numeric_addr(struct cli *c)
{
	struct in6_addr any;

	c->addr[0] = '\0';
	if (inet_pton(AF_INET6, c->name, &any) == 1)
		return str_format(c->addr, sizeof(c->addr), "tcp:[%s]:%s", c->name, c->port);
	if (inet_pton(AF_INET, c->name, &any) == 1)
		return str_format(c->addr, sizeof(c->addr), "tcp:%s:%s", c->name, c->port);
	if (str_eq(c->name, "localhost"))
		return str_format(c->addr, sizeof(c->addr), "tcp:127.0.0.1:%s", c->port);
	return 0;
}

int creds_set_url(struct cli *c, const char *url, struct err *e)
{
	const char *p = url, *end;

	c->tls = str_starts(p, "https://");
	p += c->tls ? strlen("https://") : str_starts(p, "http://") ? strlen("http://") : 0;
	end = p + strcspn(p, "/");
	/* It is printed for eval by `space env`. */
	if (p == url || (size_t)(end - p) >= sizeof(c->host) || (*end && end[1]) ||
	    strspn(p, AUTHORITY) != (size_t)(end - p))
		return err_set(e, -EINVAL, NO_ADDRESS, url);
	memcpy(c->host, p, (size_t)(end - p));
	c->host[end - p] = '\0';
	if (!split_authority(c, c->host, c->tls ? "443" : "80"))
		return err_set(e, -EINVAL, NO_ADDRESS, url);
	if (str_copy(c->api_url, sizeof(c->api_url), url) < 0)
		return err_set(e, -EINVAL, "%s is too long", url);
	return numeric_addr(c);
}

int creds_path(char *dst, size_t n, struct err *e)
{
	const char *home = getenv("HOME"), *conf = getenv("XDG_CONFIG_HOME");
	int r;

	if (conf && conf[0] == '/')
		r = str_format(dst, n, "%s/space/credentials", conf);
	else if (home && home[0] == '/')
		r = str_format(dst, n, "%s/.config/space/credentials", home);
	else
		return err_set(e, -ENOENT,
			       "HOME is not set; set E2B_API_URL and E2B_API_KEY instead");
	return r < 0 ? err_set(e, r, "the path of the credentials file is too long") : 0;
}

/* A key goes to the address that it was written with and to no other. */
static int take_key(struct cli *c, const char *path, const char *url, const char *key,
		    struct err *e)
{
	struct cli of_file = { 0 };
	int r = creds_set_url(&of_file, url, e);

	if (r < 0)
		return err_wrap(e, "%s", path);
	if (!str_eq(of_file.name, c->name) || !str_eq(of_file.port, c->port) ||
	    of_file.tls != c->tls)
		return err_set_code(e, -ENOENT, "no-credentials",
				    "%s has a key for %s, none for %s; set E2B_API_KEY", path, url,
				    c->api_url);
	return str_copy(c->api_key, sizeof(c->api_key), key) < 0
		       ? err_set(e, -EBADMSG, "%s: the key is too long", path)
		       : 0;
}

static int load_file(struct cli *c, const char *path, struct err *e)
{
	autofree char *text = NULL;
	size_t len;
	json_error_t je;
	json_t *v;
	const char *url = NULL, *key = NULL;
	int r = fd_read_file(AT_FDCWD, path, CREDS_FILE_MAX, &text, &len);

	if (r == -ENOENT)
		return err_set_code(
			e, -ENOENT, "no-credentials",
			"there are no credentials: run `sudo space up` on this machine, or set E2B_API_URL and E2B_API_KEY");
	if (r < 0)
		return err_errno(e, r, "%s", path);
	v = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (!v || json_unpack(v, "{s:s,s:s}", "api_url", &url, "api_key", &key)) {
		json_decref(v);
		return err_set(
			e, -EBADMSG,
			"%s is damaged: it needs \"api_url\" and \"api_key\"; `sudo space up` writes it anew",
			path);
	}
	r = 0;
	if (!c->api_url[0])
		r = creds_set_url(c, url, e);
	if (!r && !c->api_key[0])
		r = take_key(c, path, url, key, e);
	json_decref(v);
	return r;
}

/* As the SDKs have it: E2B_API_URL, else the host that they make of E2B_DOMAIN. */
static int url_of_env(struct cli *c, struct err *e)
{
	const char *url = getenv("E2B_API_URL"), *domain = getenv("E2B_DOMAIN");
	autofree char *made = NULL;

	if (url && *url)
		return creds_set_url(c, url, e) < 0 ? err_wrap(e, "E2B_API_URL") : 0;
	if (!domain || !*domain)
		return 0;
	made = x_asprintf("https://api.%s", domain);
	return creds_set_url(c, made, e) < 0 ? err_wrap(e, "E2B_DOMAIN") : 0;
}

int creds_load(struct cli *c, struct err *e)
{
	const char *key = getenv("E2B_API_KEY");
	char path[512];
	int r;

	if (c->api_url[0] && c->api_key[0])
		return 0;
	if (!c->api_url[0] && (r = url_of_env(c, e)) < 0)
		return r;
	if (key && *key && str_copy(c->api_key, sizeof(c->api_key), key) < 0)
		return err_set(e, -EINVAL, "E2B_API_KEY is too long");
	if (c->api_url[0] && c->api_key[0])
		return 0;
	r = creds_path(path, sizeof(path), e);
	return r < 0 ? r : load_file(c, path, e);
}

int creds_save(const char *path, const char *api_url, const char *api_key, uid_t uid, gid_t gid,
	       struct err *e)
{
	autofree char *dir = x_strdup(path), *text = NULL;
	json_t *v = json_pack("{s:s,s:s}", "api_url", api_url, "api_key", api_key);
	int r;

	text = json_dumps(v, JSON_INDENT(2));
	json_decref(v);
	*strrchr(dir, '/') = '\0';
	r = fd_mkdir_p(dir, 0700);
	if (r < 0)
		return err_errno(e, r, "cannot make %s", dir);
	r = fd_write_file(AT_FDCWD, path, text, strlen(text), 0600);
	if (r < 0)
		return err_errno(e, r, "cannot write %s", path);
	/* As root in a user's folder: not through a link of theirs. */
	if (lchown(path, uid, gid) < 0 || lchown(dir, uid, gid) < 0)
		return err_errno(e, -errno, "cannot give %s to its user", path);
	/* ~/.config itself may have been made just now. */
	*strrchr(dir, '/') = '\0';
	struct stat st;
	if (uid && !lstat(dir, &st) && st.st_uid == 0 && str_ends(dir, "/.config") &&
	    lchown(dir, uid, gid) < 0)
		return err_errno(e, -errno, "cannot give %s to its user", dir);
	return 0;
}
