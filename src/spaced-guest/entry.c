#include "spaced-guest/entry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/text.h"

#define XATTR_LIST_MAX 16384

/* What is neither is not told as a file: SDKs leave such entries out of their lists. */
static const char *type_name(mode_t mode)
{
	return S_ISREG(mode)   ? "FILE_TYPE_FILE"
	       : S_ISDIR(mode) ? "FILE_TYPE_DIRECTORY"
	       : S_ISLNK(mode) ? "FILE_TYPE_SYMLINK"
			       : "FILE_TYPE_UNSPECIFIED";
}

/* The order is that of Go's io/fs.FileMode.String. */
void entry_mode(char dst[ENTRY_MODE_LEN], mode_t mode)
{
	static const struct { mode_t mask, value; char c; } letters[] = {
		{ S_IFMT, S_IFDIR, 'd' },   { S_IFMT, S_IFLNK, 'L' },	{ S_IFMT, S_IFBLK, 'D' },
		{ S_IFMT, S_IFCHR, 'D' },   { S_IFMT, S_IFIFO, 'p' },	{ S_IFMT, S_IFSOCK, 'S' },
		{ S_ISUID, S_ISUID, 'u' },  { S_ISGID, S_ISGID, 'g' },	{ S_IFMT, S_IFCHR, 'c' },
		{ S_ISVTX, S_ISVTX, 't' },
	};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(letters); i++)
		if ((mode & letters[i].mask) == letters[i].value)
			dst[n++] = letters[i].c;
	if (n == 0)
		dst[n++] = '-';
	for (int i = 0; i < 9; i++)
		dst[n++] = mode & (0400 >> i) ? "rwx"[i % 3] : '-';
	dst[n] = '\0';
}

int entry_put_metadata(struct buf *b, const char *path, const char *before)
{
	char names[XATTR_LIST_MAX], value[ENTRY_METADATA_MAX];
	ssize_t n = llistxattr(path, names, sizeof(names));
	size_t total = 0;
	bool first = true;
	int r = 0;

	for (ssize_t i = 0; n > 0 && i < n; i += (ssize_t)strlen(names + i) + 1) {
		const char *key = names + i + strlen(ENTRY_XATTR);
		ssize_t len;

		if (!str_starts(names + i, ENTRY_XATTR))
			continue;
		len = lgetxattr(path, names + i, value, sizeof(value));
		if (len < 0 || total + strlen(key) + (size_t)len > ENTRY_METADATA_MAX)
			continue;
		total += strlen(key) + (size_t)len;
		r |= first ? buf_puts(b, before) | buf_puts(b, "{") : buf_puts(b, ",");
		first = false;
		r |= text_json_s(b, key) | buf_puts(b, ":") | text_json(b, value, (size_t)len);
	}
	if (!first)
		r |= buf_puts(b, "}");
	return r < 0 ? -ENOBUFS : 0;
}

/* For a link, type and mode are those of what it names; all the rest is its own. */
int entry_put(struct buf *b, struct users_names *names, const char *path, bool *ret_dir)
{
	char perm[ENTRY_MODE_LEN], time[CLOCK_ISO_LEN];
	autofree char *target = NULL;
	size_t before = buf_len(b);
	struct stat st, to;
	int r;

	if (lstat(path, &st) < 0)
		return -errno;
	if (ret_dir)
		*ret_dir = S_ISDIR(st.st_mode);
	to = st;
	if (S_ISLNK(st.st_mode) && stat(path, &to) == 0)
		target = realpath(path, NULL);
	entry_mode(perm, st.st_mode);
	clock_iso(time, (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000);
	r = buf_puts(b, "{") | text_member(b, "name", path_name(path)) | buf_puts(b, ",") |
	    text_member(b, "path", path);
	r |= buf_putf(b,
		      ",\"type\":\"%s\",\"size\":\"%" PRId64
		      "\",\"mode\":%u,\"permissions\":\"%s\",",
		      type_name(to.st_mode), (int64_t)st.st_size, (unsigned)(to.st_mode & 0777),
		      perm);
	r |= text_member(b, "owner", users_name(names, st.st_uid)) | buf_puts(b, ",");
	r |= text_member(b, "group", users_group(names, st.st_gid));
	r |= buf_putf(b, ",\"modifiedTime\":\"%s\"", time);
	if (S_ISLNK(st.st_mode))
		r |= buf_puts(b, ",\"isSymlink\":true");
	if (target)
		r |= buf_puts(b, ",") | text_member(b, "symlinkTarget", target);
	r |= entry_put_metadata(b, path, ",\"metadata\":");
	r |= buf_puts(b, "}");
	if (r < 0)
		b->len_ = before;        /* what was put of it goes again */
	return r < 0 ? -ENOBUFS : 0;
}
