/*
 * What decides "replay": a refusal comes before one byte was forwarded (R-1), so nothing was done
 * twice. The question is whether the request still means the same in the execution that took the
 * place of the refused one. Whatever names a process or a watcher of the old execution does not:
 * those rows say false, and the client learns that it is gone.
 */
#include "routes/routes.h"

#include <string.h>
#include "base/alloc.h"
#include "base/str.h"

#define READ ID_ACCESS_READ
#define WRITE ID_ACCESS_WRITE

const struct route routes_control[] = {
	/* method, path, access, replay, host_only */
	{ "POST", "/process.Process/Start", WRITE, true, false },
	{ "POST", "/process.Process/List", READ, true, false },
	{ "POST", "/process.Process/Connect", READ, false, false },
	{ "POST", "/process.Process/SendInput", WRITE, false, false },
	{ "POST", "/process.Process/StreamInput", WRITE, false, false },
	{ "POST", "/process.Process/CloseStdin", WRITE, false, false },
	{ "POST", "/process.Process/SendSignal", WRITE, false, false },
	{ "POST", "/process.Process/Update", WRITE, false, false },

	{ "POST", "/filesystem.Filesystem/Stat", READ, true, false },
	{ "POST", "/filesystem.Filesystem/ListDir", READ, true, false },
	{ "POST", "/filesystem.Filesystem/MakeDir", WRITE, true, false },
	{ "POST", "/filesystem.Filesystem/Move", WRITE, true, false },
	{ "POST", "/filesystem.Filesystem/Remove", WRITE, true, false },
	{ "POST", "/filesystem.Filesystem/WatchDir", READ, true, false },
	{ "POST", "/filesystem.Filesystem/CreateWatcher", READ, true, false },
	{ "POST", "/filesystem.Filesystem/GetWatcherEvents", READ, false, false },
	{ "POST", "/filesystem.Filesystem/RemoveWatcher", READ, false, false },

	{ "GET", "/files", READ, true, false },
	{ "HEAD", "/files", READ, true, false },
	{ "POST", "/files", WRITE, true, false },
	{ "PUT", "/files", WRITE, true, false },
	{ "POST", "/files/compose", WRITE, true, false },

	{ "GET", "/health", READ, true, false },
	{ "HEAD", "/health", READ, true, false },
	{ "GET", "/metrics", READ, true, false },
	{ "GET", "/envs", READ, true, false },
	{ "OPTIONS", "/*", READ, true, false },

	/* Between the node's services and the guest only. */
	{ NULL, "/init", WRITE, false, true },
	{ NULL, "/prepare", WRITE, false, true },
	{ NULL, "/activity", READ, false, true },
	{ NULL, "/shutdown", WRITE, false, true },
	{ NULL, "/freeze", WRITE, false, true },
	{ NULL, "/unfreeze", WRITE, false, true },
	{ NULL, "/collapse", WRITE, false, true },
	{ NULL, "/fsfreeze", WRITE, false, true },
	{ NULL, "/fsthaw", WRITE, false, true },
};
const unsigned routes_control_len = ARRAY_LEN(routes_control);

static const struct route route_default = { NULL, "/*", WRITE, false, false };
static const struct route route_hidden = { NULL, "/*", WRITE, false, true };

static bool path_matches(const char *pattern, const char *path, size_t n)
{
	size_t len = strlen(pattern);

	if (len && pattern[len - 1] == '*')
		return n >= len - 1 && memcmp(pattern, path, len - 1) == 0;
	return n == len && memcmp(pattern, path, n) == 0;
}

/*
 * The guest may read a path with other eyes than we do: "/%69nit", "//init", "/./init" and "/init/"
 * could all mean "/init" to it. So for host-only rows the path is compared in its plainest form:
 * decoded, with dot segments, empty segments and a final slash taken away. What does not decode,
 * or is longer than any path that is served, is hidden too.
 */
static int plain_path(const char *path, size_t n, char *dst, size_t size)
{
	size_t out = 0;
	int r = str_pct_decode(dst, size, path, n, false);

	if (r < 0)
		return r;
	for (const char *p = dst; *p;) {
		size_t seg = strcspn(p, "/");

		if (seg == 2 && p[0] == '.' && p[1] == '.') {
			while (out > 0 && dst[--out] != '/')
				;
		} else if (seg > 0 && !(seg == 1 && p[0] == '.')) {
			memmove(dst + out + 1, p, seg);
			dst[out] = '/';
			out += seg + 1;
		}
		p += seg + (p[seg] == '/');
	}
	dst[out] = '\0';
	return (int)out;
}

static bool is_hidden(const char *path, size_t n)
{
	char plain[1024];
	int len;

	if (n == 0 || path[0] != '/')            /* plain_path needs the slash in front */
		return !(n == 1 && path[0] == '*');
	len = plain_path(path, n, plain, sizeof(plain));
	if (len < 0)
		return true;
	for (unsigned i = 0; i < routes_control_len; i++)
		if (routes_control[i].host_only &&
		    path_matches(routes_control[i].path, plain, (size_t)len))
			return true;
	return false;
}

const struct route *routes_find(const char *method, const char *target)
{
	size_t n = strcspn(target, "?#");

	for (unsigned i = 0; i < routes_control_len; i++) {
		const struct route *r = &routes_control[i];

		if ((!r->method || str_eq(r->method, method)) && path_matches(r->path, target, n)) {
			if (!str_ends(r->path, "*"))
				return r;
			return is_hidden(target, n) ? &route_hidden : r;
		}
	}
	return is_hidden(target, n) ? &route_hidden : &route_default;
}

bool routes_known(const char *target)
{
	size_t n = strcspn(target, "?#");

	for (unsigned i = 0; i < routes_control_len; i++)
		if (!routes_control[i].host_only && !str_ends(routes_control[i].path, "*") &&
		    path_matches(routes_control[i].path, target, n))
			return true;
	return false;
}
