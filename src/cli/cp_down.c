/*
 * A tar archive of a sandbox becomes a local tree. The archive may be hostile: every name is taken
 * apart (cp_down_name), every folder is opened beneath the destination without following links
 * (openat2), files are written under another name and renamed, so that neither ".." nor a link that
 * the archive itself brought leads out. Devices and pipes are left out; set-user-ID bits do not
 * pass; the umask counts, as with cp(1).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cp.h"
#include "cli/tar.h"

#define DIRS_LATER_MAX 100000            /* modes of more folders are set at once */

/* Folders get their modes at the end: a read-only one must be filled first. */
struct later { char *path; mode_t mode; int64_t mtime_s; };

struct cp_down {
	struct cp *p;
	struct tar tar;
	int root, parent;                /* parent, out: of the file that is being written */
	int out;
	char *name, *temp;               /* its last component, the name that it has meanwhile */
	struct later *later;
	size_t n_later, room_later;
	unsigned serial;
};

char *cp_down_name(const char *name)
{
	autofree char *out = x_alloc(strlen(name) + 1);
	char *o = out;

	if (name[0] == '/' || strlen(name) > TAR_NAME_MAX)
		return NULL;
	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 2 && p[0] == '.' && p[1] == '.')
			return NULL;
		if (n > 0 && !(n == 1 && p[0] == '.')) {
			if (o > out)
				*o++ = '/';
			memcpy(o, p, n);
			o += n;
		}
		p += n + (p[n] == '/');
	}
	*o = '\0';
	return TAKE(out);
}

struct cp_down *cp_down_new(struct cp *p, int root_fd)
{
	struct cp_down *d = x_alloc(sizeof(*d));

	d->p = p;
	d->root = root_fd;
	d->parent = d->out = -1;
	tar_init(&d->tar);
	return d;
}

static void file_drop(struct cp_down *d)
{
	if (d->temp)
		unlinkat(d->parent, d->temp, 0);
	fd_close(d->out);
	fd_close(d->parent);
	d->out = d->parent = -1;
	free(TAKE(d->temp));
	free(TAKE(d->name));
}

void cp_down_free(struct cp_down *d)
{
	if (!d)
		return;
	file_drop(d);
	for (size_t i = 0; i < d->n_later; i++)
		free(d->later[i].path);
	free(d->later);
	tar_done(&d->tar);
	free(d);
}

static mode_t local_mode(const struct cp_down *d, unsigned mode)
{
	return (mode_t)mode & 0777 & ~d->p->umask;
}

static void set_dir(struct cp_down *d, const char *path, mode_t mode, int64_t mtime_s)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = mtime_s } };
	int fd = fd_openat_beneath(d->root, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return;
	if (fchmod(fd, mode) < 0)
		cp_failed(d->p, path, "its mode cannot be set: %s", strerror(errno));
	(void)futimens(fd, times);
	close(fd);
}

static void set_dir_later(struct cp_down *d, const char *path, mode_t mode, int64_t mtime_s)
{
	if (d->n_later == DIRS_LATER_MAX) {
		set_dir(d, path, mode | 0700, mtime_s);
		return;
	}
	if (d->n_later == d->room_later) {
		d->room_later = d->room_later ? d->room_later * 2 : 64;
		d->later = x_realloc(d->later, d->room_later * sizeof(*d->later));
	}
	d->later[d->n_later++] = (struct later){ x_strdup(path), mode, mtime_s };
}

/* The folder that holds the path; missing ones are made. fd or negative errno. */
static int open_parent(struct cp_down *d, char *path, const char **ret_name)
{
	char *slash = strrchr(path, '/');
	int fd;

	*ret_name = slash ? slash + 1 : path;
	if (!slash)
		return fd_openat_beneath(d->root, ".", O_RDONLY | O_DIRECTORY, 0);
	*slash = '\0';
	fd = fd_openat_beneath(d->root, path, O_RDONLY | O_DIRECTORY, 0);
	if (fd == -ENOENT) {
		const char *name;
		autofree char *copy = x_strdup(path);
		autoclose int up = open_parent(d, copy, &name);

		if (up < 0)
			return up;
		if (mkdirat(up, name, 0755) < 0 && errno != EEXIST)
			return -errno;
		fd = fd_openat_beneath(d->root, path, O_RDONLY | O_DIRECTORY, 0);
	}
	return fd;
}

static void say_failed(struct cp_down *d, const char *path, int num)
{
	cp_failed(d->p, path, "%s",
		  num == -ELOOP || num == -EXDEV
			  ? "a symbolic link is in the way; it is not followed"
			  : strerror(-num));
}

/* ---- the kinds of entries ---- */

static int make_dir(int parent, const char *name)
{
	struct stat st;

	if (mkdirat(parent, name, 0700) == 0)
		return 1;
	if (errno != EEXIST)
		return -errno;
	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
}

/* For what is no folder: what has the name already goes, unless it is a folder. */
static int make_place(int parent, const char *name)
{
	if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
		return 0;
	return -errno;
}

static int make_link(int parent, const char *name, const struct tar_entry *t)
{
	int r = make_place(parent, name);

	if (r == 0 && symlinkat(t->link, parent, name) < 0)
		r = -errno;
	return r;
}

/* The other name must be a regular file of this tree. */
static int make_hard_link(struct cp_down *d, int parent, const char *name,
			  const struct tar_entry *t)
{
	autofree char *path = cp_down_name(t->link);
	const char *from_name;
	struct stat st;
	autoclose int from = path && *path ? open_parent(d, path, &from_name) : -EINVAL;
	int r;

	if (from < 0)
		return from;
	if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	r = make_place(parent, name);
	if (r == 0 && linkat(from, from_name, parent, name, 0) < 0)
		r = -errno;
	return r;
}

static int begin_file(struct cp_down *d, int parent, const char *name)
{
	struct stat st;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return -EISDIR;
	d->temp = x_asprintf(".space-cp-%d-%u", (int)getpid(), d->serial++);
	d->out = openat(parent, d->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0600);
	if (d->out < 0) {
		int num = -errno;

		free(TAKE(d->temp));
		return num;
	}
	d->name = x_strdup(name);
	return 0;
}

static int take_entry(struct cp_down *d, const struct tar_entry *t, const char *path)
{
	autofree char *copy = x_strdup(path);
	const char *name;
	autoclose int parent = open_parent(d, copy, &name);
	int r = 0;

	if (parent < 0)
		return parent;
	switch (t->type) {
	case TAR_DIR:
		r = make_dir(parent, name);
		if (r == 1)
			set_dir_later(d, path, local_mode(d, t->mode), t->mtime_s);
		break;
	case TAR_SYMLINK:
		r = make_link(parent, name, t);
		break;
	case TAR_HARDLINK:
		r = make_hard_link(d, parent, name, t);
		break;
	case TAR_FILE:
		r = begin_file(d, parent, name);
		if (r == 0)
			d->parent = TAKE_FD(parent);
		break;
	default:
		cp_failed(d->p, path, "it is no file, folder or link; left out");
		return 0;
	}
	if (r >= 0)
		d->p->files++;
	return r < 0 ? r : 0;
}

static void on_entry(struct cp_down *d)
{
	const struct tar_entry *t = &d->tar.entry;
	autofree char *path = cp_down_name(t->name);
	int r;

	file_drop(d);
	if (!path) {
		cp_failed(d->p, t->name, "the name leads out of the folder; left out");
		return;
	}
	cp_progress(d->p, path, 0);
	if (!*path)
		return;                          /* the folder itself */
	r = take_entry(d, t, path);
	if (r < 0)
		say_failed(d, path, r);
}

static void on_data(struct cp_down *d, const char *p, size_t n)
{
	int r;

	if (d->out < 0)
		return;
	r = fd_write_all(d->out, p, n, CP_TIMEOUT_MS);
	if (r < 0) {
		say_failed(d, d->tar.entry.name, r);
		d->p->files--;
		file_drop(d);
		return;
	}
	cp_progress(d->p, d->tar.entry.name, n);
}

static void on_done(struct cp_down *d)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					   { .tv_sec = d->tar.entry.mtime_s } };

	if (d->out < 0)
		return;
	(void)futimens(d->out, times);
	if (fchmod(d->out, local_mode(d, d->tar.entry.mode)) < 0 ||
	    renameat(d->parent, d->temp, d->parent, d->name) < 0) {
		say_failed(d, d->tar.entry.name, -errno);
		d->p->files--;
	} else {
		free(TAKE(d->temp));
	}
	file_drop(d);
}

int cp_down_feed(struct cp_down *d, const char *data, size_t n, struct err *e)
{
	while (n > 0) {
		const char *piece;
		size_t used, len;
		int r = tar_feed(&d->tar, data, n, &used, &piece, &len);

		if (r < 0)
			return err_set(e, -EBADMSG, "the sandbox sent a malformed archive");
		data += used;
		n -= used;
		if (r == TAR_ENTRY)
			on_entry(d);
		else if (r == TAR_DATA)
			on_data(d, piece, len);
		else if (r == TAR_DONE)
			on_done(d);
	}
	return 0;
}

bool cp_down_end(struct cp_down *d)
{
	const char *piece;
	size_t used, len;

	/* A file may be whole with the last byte. */
	if (tar_feed(&d->tar, "", 0, &used, &piece, &len) == TAR_DONE)
		on_done(d);
	/* From the inside to the outside, as they came. */
	for (size_t i = d->n_later; i-- > 0;)
		set_dir(d, d->later[i].path, d->later[i].mode, d->later[i].mtime_s);
	return tar_whole(&d->tar);
}
