#include "spaced-guest/paths.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/str.h"

/* Puts one part of a path behind what is there; ".." takes the last one away. */
static int add_part(char *dst, size_t *len, const char *p, size_t n)
{
	if (n == 0 || (n == 1 && p[0] == '.'))
		return 0;
	if (n == 2 && p[0] == '.' && p[1] == '.') {
		while (*len && dst[--*len] != '/')
			;
		return 0;
	}
	if (*len + n + 2 > PATHS_MAX)
		return -ENAMETOOLONG;
	dst[(*len)++] = '/';
	memcpy(dst + *len, p, n);
	*len += n;
	return 0;
}

static int add_parts(char *dst, size_t *len, const char *p)
{
	int r = 0;

	while (r == 0 && *p) {
		size_t n = strcspn(p, "/");

		r = add_part(dst, len, p, n);
		p += n;
		p += *p == '/';
	}
	return r;
}

/* From `base` for relative ones. */
static int path_clean(const char *base, const char *path, char **ret)
{
	char dst[PATHS_MAX];
	size_t len = 0;
	int r = 0;

	if (path[0] != '/')
		r = add_parts(dst, &len, base);
	if (r == 0)
		r = add_parts(dst, &len, path);
	if (r < 0)
		return r;
	if (len == 0)
		dst[len++] = '/';
	*ret = x_strndup(dst, len);
	return 0;
}

int path_resolve(const struct agent *a, const struct user *u, const char *path, char **ret,
		 struct err *e)
{
	const char *base = a->default_workdir ? a->default_workdir : u->home;
	int r;

	if (path[0] == '~' && (path[1] == '\0' || path[1] == '/')) {
		base = u->home;
		path += path[1] ? 2 : 1;
		while (*path == '/')
			path++;
	}
	r = path_clean(base, path, ret);
	return r < 0 ? err_set(e, r, "the path is longer than %d bytes", PATHS_MAX) : 0;
}

const char *path_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && slash[1] ? slash + 1 : path;
}

int path_make_parents(const char *path, mode_t mode)
{
	autofree char *p = x_strdup(path);
	char *last = strrchr(p, '/');
	struct stat st;

	if (!last || last == p)
		return 0;
	*last = '\0';
	if (stat(p, &st) == 0)
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	for (char *s = p + 1; s; ) {
		s = strchr(s, '/');
		if (s)
			*s = '\0';
		if (mkdir(p, mode) < 0 && errno != EEXIST && (errno != EACCES || stat(p, &st) < 0))
			return -errno;
		if (s)
			*s++ = '/';
	}
	return 0;
}
