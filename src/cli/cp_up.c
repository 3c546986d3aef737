/*
 * A local tree as a tar archive for the sandbox's tar(1): regular files, folders, symbolic links as
 * they are, modes, times. A link that has several names becomes several files. What cannot be read
 * is said and left out; a file that becomes shorter meanwhile is filled with zeros and said.
 *
 * A stack of open folders, so that names of any length and depth work; at most CP_DEPTH_MAX.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cp.h"
#include "cli/tar.h"

#define CP_DEPTH_MAX 200
#define CP_UP_BUF_MAX (4 * TAR_NAME_MAX + 16 * TAR_BLOCK)

struct level { DIR *dir; char *path; };          /* path: as in the archive, "." at the top */

struct cp_up {
	struct cp *p;
	struct level levels[CP_DEPTH_MAX];
	size_t depth;
	struct buf out;
	int fd;                                  /* the file that is being read */
	char *path;
	uint64_t left;
	size_t zeros;                            /* padding */
	bool ended;
};

static void level_push(struct cp_up *u, int fd, char *path /* taken */)
{
	DIR *dir = u->depth < CP_DEPTH_MAX ? fdopendir(fd) : NULL;

	if (dir) {
		u->levels[u->depth++] = (struct level){ dir, path };
		return;
	}
	cp_failed(u->p, path, "%s", u->depth == CP_DEPTH_MAX ? "too deep" : strerror(errno));
	fd_close(fd);
	free(path);
}

static void level_pop(struct cp_up *u)
{
	struct level *l = &u->levels[--u->depth];

	closedir(l->dir);
	free(l->path);
}

static bool put_entry(struct cp_up *u, const char *path, const struct stat *st, enum tar_type type,
		      const char *link)
{
	struct tar_entry t = { .type = type,
			       .name = (char *)path,
			       .link = (char *)link,
			       .mode = st->st_mode & 07777,
			       .size = (uint64_t)st->st_size,
			       .mtime_s = st->st_mtime };
	int r = tar_put(&u->out, &t);

	if (r < 0)
		cp_failed(u->p, path, "%s", strerror(-r));
	else
		u->p->files += type != TAR_FILE;
	return r == 0;
}

struct cp_up *cp_up_new(struct cp *p, int root_fd, bool with_root)
{
	struct cp_up *u = x_alloc(sizeof(*u));
	struct stat st;

	u->p = p;
	u->fd = -1;
	buf_init(&u->out, CP_UP_BUF_MAX);
	if (with_root && fstat(root_fd, &st) == 0)
		put_entry(u, "./", &st, TAR_DIR, "");
	level_push(u, root_fd, x_strdup("."));
	return u;
}

void cp_up_free(struct cp_up *u)
{
	if (!u)
		return;
	while (u->depth)
		level_pop(u);
	fd_close(u->fd);
	free(u->path);
	buf_done(&u->out);
	free(u);
}

static void begin_file(struct cp_up *u, int dirfd, const char *name, char *path /* taken */)
{
	struct stat st;
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0) {
		cp_failed(u->p, path, "%s", strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		cp_failed(u->p, path, "it has just become something else");
	} else if (put_entry(u, path, &st, TAR_FILE, "")) {
		u->fd = TAKE_FD(fd);
		u->path = TAKE(path);
		u->left = (uint64_t)st.st_size;
		u->zeros = tar_padding(u->left);
	}
	fd_close(fd);
	free(path);
}

static void put_link(struct cp_up *u, int dirfd, const char *name, const struct stat *st,
		     const char *path)
{
	char link[PATH_MAX];
	ssize_t n = readlinkat(dirfd, name, link, sizeof(link) - 1);

	if (n < 0) {
		cp_failed(u->p, path, "%s", strerror(errno));
		return;
	}
	link[n] = '\0';
	put_entry(u, path, st, TAR_SYMLINK, link);
}

static void put_dir(struct cp_up *u, int dirfd, const char *name, const struct stat *st,
		    char *path /* taken */)
{
	autofree char *shown = x_asprintf("%s/", path);
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0) {
		cp_failed(u->p, path, "%s", strerror(errno));
		free(path);
	} else if (put_entry(u, shown, st, TAR_DIR, "")) {
		level_push(u, fd, path);
	} else {
		close(fd);
		free(path);
	}
}

/* The next name of the innermost folder. */
static void next_name(struct cp_up *u)
{
	struct level *l = &u->levels[u->depth - 1];
	struct dirent *d;
	struct stat st;
	char *path;

	errno = 0;
	d = readdir(l->dir);
	if (!d) {
		if (errno)
			cp_failed(u->p, l->path, "%s", strerror(errno));
		level_pop(u);
		return;
	}
	if (str_eq(d->d_name, ".") || str_eq(d->d_name, ".."))
		return;
	path = cp_join(l->path, d->d_name);
	cp_progress(u->p, path, 0);
	if (fstatat(dirfd(l->dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		cp_failed(u->p, path, "%s", strerror(errno));
	else if (S_ISREG(st.st_mode))
		begin_file(u, dirfd(l->dir), d->d_name, TAKE(path));
	else if (S_ISDIR(st.st_mode))
		put_dir(u, dirfd(l->dir), d->d_name, &st, TAKE(path));
	else if (S_ISLNK(st.st_mode))
		put_link(u, dirfd(l->dir), d->d_name, &st, path);
	else
		cp_failed(u->p, path, "it is no file, folder or link; left out");
	free(path);
}

static ssize_t read_file(struct cp_up *u, char *dst, size_t n)
{
	ssize_t got;

	if (n > u->left)
		n = (size_t)u->left;
	got = read(u->fd, dst, n);
	if (got < 0 && errno == EINTR)
		return read_file(u, dst, n);
	if (got <= 0) {
		/* Its size is said already. */
		cp_failed(u->p, u->path, "%s", got < 0 ? strerror(errno)
						      : "it became shorter; the rest is zeros");
		close(TAKE_FD(u->fd));
		return 0;
	}
	u->left -= (uint64_t)got;
	cp_progress(u->p, u->path, (uint64_t)got);
	return got;
}

/* Something, for as long as there is some: a head, contents, padding. */
static size_t some(struct cp_up *u, char *dst, size_t n)
{
	if (buf_len(&u->out)) {
		if (n > buf_len(&u->out))
			n = buf_len(&u->out);
		memcpy(dst, buf_data(&u->out), n);
		buf_consume(&u->out, n);
		return n;
	}
	if (u->path && u->left && u->fd >= 0)
		return (size_t)read_file(u, dst, n);
	if (u->path && u->left) {
		n = n < u->left ? n : (size_t)u->left;
		memset(dst, 0, n);
		u->left -= n;
		return n;
	}
	if (u->path) {
		u->p->files += u->fd >= 0;
		fd_close(u->fd);
		u->fd = -1;
		free(TAKE(u->path));
	}
	if (u->zeros) {
		n = n < u->zeros ? n : u->zeros;
		memset(dst, 0, n);
		u->zeros -= n;
		return n;
	}
	if (u->depth) {
		next_name(u);
	} else if (!u->ended) {
		u->ended = true;
		u->zeros = TAR_END_BYTES;
	}
	return 0;
}

ssize_t cp_up_read(struct cp_up *u, char *dst, size_t n)
{
	size_t used = 0;

	while (used < n && (buf_len(&u->out) || u->path || u->zeros || u->depth || !u->ended))
		used += some(u, dst + used, n - used);
	return (ssize_t)used;
}
