#include "spaced-guest/target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/entry.h"
#include "spaced-guest/files.h"
#include "spaced-guest/paths.h"

#define DIR_MODE 0755
#define FILE_MODE 0644
#define LINKS_MAX 40                             /* as the kernel follows */
#define HEX "0123456789abcdef"
#define TMP_PREFIX ".space-upload-"
#define TMP_DIGITS 16                            /* the last one is odd when a file is replaced */
#define METADATA_PREFIX "X-Metadata-"
#define ATTR_MAX (sizeof(ENTRY_XATTR) + ENTRY_KEY_MAX)

/* ---- where it goes ---- */

/* With its slash at the end. */
static char *folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return x_strndup(path, slash ? (size_t)(slash + 1 - path) : 0);
}

/*
 * The kernel's own protection (protected_symlinks) does not see what is followed here, so the same
 * rule is applied: in a sticky folder that all may write, links of others are not followed, lest a
 * user lead root's upload astray.
 */
static bool may_follow(const char *folder, const struct stat *link)
{
	struct stat dir;

	if (link->st_uid == geteuid())
		return true;
	return stat(folder, &dir) == 0 &&
	       ((dir.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) ||
		dir.st_uid == link->st_uid);
}

/* A link is followed to what it names, so that it stays; also when nothing is there yet. */
static int follow(const char *path, char **ret)
{
	autofree char *at = x_strdup(path);

	for (int i = 0; i < LINKS_MAX; i++) {
		autofree char *folder = folder_of(at);
		char to[PATHS_MAX];
		struct stat st;
		ssize_t n;
		int r = lstat(at, &st) < 0 ? -errno : 0;

		if (r < 0 && r != -ENOENT)
			return r;
		if (r == -ENOENT || !S_ISLNK(st.st_mode)) {
			*ret = TAKE(at);
			return 0;
		}
		if (!may_follow(folder, &st))
			return -EACCES;
		n = readlink(at, to, sizeof(to) - 1);
		if (n < 0)
			return -errno;
		to[n] = '\0';
		free(at);
		at = x_asprintf("%s%s", to[0] == '/' ? "" : folder, to);
	}
	return -ELOOP;
}

/* Whether rename(2) over the file would be refused although it may be written. */
static bool must_stay(const char *path, const struct stat *st)
{
	autofree char *folder = folder_of(path);
	struct statx sx;
	struct stat dir;

	if (statx(AT_FDCWD, path, 0, 0, &sx) == 0 && (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT))
		return true;
	return geteuid() != 0 && st->st_uid != geteuid() && stat(folder, &dir) == 0 &&
	       (dir.st_mode & S_ISVTX) && dir.st_uid != geteuid();
}

static int open_in_place(struct target *t)
{
	struct stat st;
	int fd = files_open(t->path, O_WRONLY, &st);

	if (fd >= 0 && S_ISREG(st.st_mode) && ftruncate(fd, 0) < 0) {
		int r = -errno;

		fd_close(fd);
		return r;
	}
	return fd;
}

static char *tmp_name(const char *path, bool replaces)
{
	autofree char *folder = folder_of(path);
	char random[TMP_DIGITS + 1], *last = &random[TMP_DIGITS - 1];
	size_t digit;

	str_random_hex(random, TMP_DIGITS / 2);
	digit = (size_t)(strchr(HEX, *last) - HEX);
	*last = HEX[(digit & ~1u) | replaces];
	return x_asprintf("%s" TMP_PREFIX "%s", folder, random);
}

bool files_is_tmp(const char *name, bool *ret_replaces)
{
	const char *digits = name + strlen(TMP_PREFIX);

	if (!str_starts(name, TMP_PREFIX) || !str_is(digits, TMP_DIGITS, TMP_DIGITS, HEX))
		return false;
	*ret_replaces = (strchr(HEX, digits[TMP_DIGITS - 1]) - HEX) % 2;
	return true;
}

int target_open(struct target *t, const char *path)
{
	struct stat st;
	mode_t mode = FILE_MODE;
	int fd, r;

	*t = (struct target){ .shown = x_strdup(path) };
	r = follow(path, &t->path);
	if (r < 0)
		return r;
	if (stat(t->path, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return -EISDIR;
		if (!S_ISREG(st.st_mode) || must_stay(t->path, &st))
			return open_in_place(t);
		t->replaces = true;
		mode = st.st_mode & 0777;        /* set-user-ID is not for new contents */
	} else if ((r = path_make_parents(t->path, DIR_MODE)) < 0) {
		return r;
	}
	t->tmp = tmp_name(t->path, t->replaces);
	fd = open(t->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0) {
		fchmod(fd, mode);
		return fd;
	}
	r = -errno;
	free(TAKE(t->tmp));
	if (!t->replaces || (r != -EACCES && r != -EPERM))
		return r;
	fd = open_in_place(t);
	return fd < 0 ? r : fd;
}

/*
 * The name of the temporary file tells a watch whether a file was made or written (watch.h). That
 * may have changed since it was opened.
 */
int target_commit(struct target *t)
{
	struct stat st;
	bool there;

	if (!t->tmp)
		return 0;
	there = lstat(t->path, &st) == 0;
	if (there != t->replaces) {
		autofree char *other = tmp_name(t->path, there);

		if (rename(t->tmp, other) < 0)
			return -errno;
		free(t->tmp);
		t->tmp = TAKE(other);
		t->replaces = there;
	}
	if (rename(t->tmp, t->path) < 0)
		return -errno;
	free(TAKE(t->tmp));
	return 0;
}

void target_done(struct target *t)
{
	if (t->tmp)
		unlink(t->tmp);
	free(t->tmp);
	free(t->path);
	free(t->shown);
	*t = (struct target){ 0 };
}

/* ---- metadata ---- */

/* The key of an X-Metadata-KEY field; NULL = another field. */
static const char *metadata_key(const struct http_field *f)
{
	size_t n = strlen(METADATA_PREFIX);

	return strncasecmp(f->name, METADATA_PREFIX, n) == 0 ? f->name + n : NULL;
}

int metadata_check(const struct http_head *h)
{
	size_t total = 0;

	for (unsigned i = 0; i < h->n_fields; i++) {
		const char *key = metadata_key(&h->fields[i]);

		if (!key)
			continue;
		total += strlen(key) + strlen(h->fields[i].value);
		if (!*key || strlen(key) > ENTRY_KEY_MAX || total > ENTRY_METADATA_MAX)
			return -EINVAL;
		for (const char *v = h->fields[i].value; *v; v++)
			if (*v < 0x20 || *v > 0x7e)
				return -EINVAL;
	}
	return 0;
}

static void metadata_clear(int fd)
{
	char names[16384];
	ssize_t n = flistxattr(fd, names, sizeof(names));

	for (ssize_t i = 0; n > 0 && i < n; i += (ssize_t)strlen(names + i) + 1)
		if (str_starts(names + i, ENTRY_XATTR))
			fremovexattr(fd, names + i);
}

/* ext4 says "no space" also where the attributes of one file do not fit into their block. */
static int attr_error(int fd, int num)
{
	struct statvfs fs;

	if (num == ENOSPC && fstatvfs(fd, &fs) == 0 && fs.f_bavail > 0)
		num = E2BIG;
	return -num;
}

int metadata_put(const struct http_head *h, int fd)
{
	metadata_clear(fd);
	for (unsigned i = 0; i < h->n_fields; i++) {
		const char *key = metadata_key(&h->fields[i]), *value = h->fields[i].value;
		char attr[ATTR_MAX];

		if (!key || str_format(attr, sizeof(attr), ENTRY_XATTR "%s", key) < 0)
			continue;
		for (char *c = attr; *c; c++)
			if (*c >= 'A' && *c <= 'Z')
				*c += 'a' - 'A';
		if (fsetxattr(fd, attr, value, strlen(value), 0) < 0)
			return attr_error(fd, errno);
	}
	return 0;
}
