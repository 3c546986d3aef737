#include "spaced-guest/fsrpc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
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

#define DIR_MODE 0755
#define NAMES_IN_A_STEP 512
#define ENTRIES_IN_A_STEP 64
#define DEPTH_MAX 256
#define XATTRS_MAX 4096
#define METADATA_XATTR "user.e2b."

/* ---- one entry ---- */

static const char *type_name(mode_t mode)
{
	return S_ISDIR(mode)   ? "FILE_TYPE_DIRECTORY"
	       : S_ISLNK(mode) ? "FILE_TYPE_SYMLINK"
			       : "FILE_TYPE_FILE";
}

/* As Go prints modes: type letter, then rwx three times. */
static void permissions(char dst[11], mode_t mode)
{
	static const struct { mode_t type; char c; } types[] = {
		{ S_IFDIR, 'd' },  { S_IFLNK, 'L' }, { S_IFIFO, 'p' },
		{ S_IFSOCK, 'S' }, { S_IFCHR, 'c' }, { S_IFBLK, 'D' },
	};

	dst[0] = '-';
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if ((mode & S_IFMT) == types[i].type)
			dst[0] = types[i].c;
	for (int i = 0; i < 9; i++)
		dst[i + 1] = mode & (0400 >> i) ? "rwx"[i % 3] : '-';
	dst[10] = '\0';
}

static void put_metadata(struct buf *b, const char *path)
{
	char names[XATTRS_MAX], value[XATTRS_MAX];
	ssize_t n = llistxattr(path, names, sizeof(names));
	bool first = true;

	for (ssize_t i = 0; n > 0 && i < n; i += (ssize_t)strlen(names + i) + 1) {
		ssize_t len;

		if (!str_starts(names + i, METADATA_XATTR))
			continue;
		len = lgetxattr(path, names + i, value, sizeof(value));
		if (len < 0)
			continue;
		buf_puts(b, first ? ",\"metadata\":{" : ",");
		first = false;
		text_json_s(b, names + i + strlen(METADATA_XATTR));
		buf_puts(b, ":");
		text_json(b, value, (size_t)len);
	}
	if (!first)
		buf_puts(b, "}");
}

/* 0, -ENOBUFS, or why it cannot be looked at. *ret_dir: a real folder, no link to one. */
static int put_entry(struct buf *b, struct users_names *names, const char *path, bool *ret_dir)
{
	char perm[11], time[CLOCK_ISO_LEN];
	autofree char *target = NULL;
	struct stat st, to;
	int r;

	if (lstat(path, &st) < 0)
		return -errno;
	*ret_dir = S_ISDIR(st.st_mode);
	to = st;
	if (S_ISLNK(st.st_mode) && stat(path, &to) == 0)
		target = realpath(path, NULL);
	permissions(perm, st.st_mode);
	clock_iso(time, (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000);
	r = buf_puts(b, "{") | text_member(b, "name", path_name(path)) | buf_puts(b, ",") |
	    text_member(b, "path", path);
	r |= buf_putf(
		b, ",\"type\":\"%s\",\"size\":\"%" PRId64 "\",\"mode\":%u,\"permissions\":\"%s\",",
		type_name(to.st_mode), (int64_t)st.st_size, (unsigned)(to.st_mode & 07777), perm);
	r |= text_member(b, "owner", users_name(names, st.st_uid)) | buf_puts(b, ",");
	r |= text_member(b, "group", users_group(names, st.st_gid));
	r |= buf_putf(b, ",\"modifiedTime\":\"%s\"", time);
	if (target)
		r |= buf_puts(b, ",") | text_member(b, "symlinkTarget", target);
	put_metadata(b, path);
	r |= buf_puts(b, "}");
	return r < 0 ? -ENOBUFS : 0;
}

/* ---- the short calls ---- */

/* Content type, user, body, path; false = answered. */
static bool begin(struct req *r, const char *body, size_t n, bool move, struct user *u,
		  struct path_req *q)
{
	struct err e = { 0 };
	char *full = NULL;

	if (!connect_unary(r))
		return false;
	if (req_user(r, u, &e) < 0) {
		connect_fail(r, CONNECT_UNAUTHENTICATED, "%s", e.text);
		return false;
	}
	if ((move ? decode_move(body, n, q, &e) : decode_path(body, n, q, &e)) < 0 ||
	    path_resolve(r->a, u, q->path, &full, &e) < 0)
		goto bad;
	free(q->path);
	q->path = full;
	if (!move)
		return true;
	if (path_resolve(r->a, u, q->destination, &full, &e) < 0)
		goto bad;
	free(q->destination);
	q->destination = full;
	return true;
bad:
	connect_fail_err(r, &e);
	path_req_done(q);
	return false;
}

static void fail(struct req *r, int num, const char *what, const char *path)
{
	connect_fail(r, connect_code_of(num), "%s '%s': %s", what, path, strerror(-num));
}

/* Runs as the user already. */
static int entry_answer(struct req *r, const char *path)
{
	struct users_names *names = users_names_new();
	struct buf b;
	bool dir;
	int n;

	buf_init(&b, 1 << 20);
	buf_puts(&b, "{\"entry\":");
	n = put_entry(&b, names, path, &dir);
	buf_puts(&b, "}");
	if (n == 0)
		connect_answer_buf(r, &b);
	buf_done(&b);
	users_names_free(names);
	return n;
}

void fsrpc_stat(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct user u;
	int ret;

	if (!begin(r, body, n, false, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0)
		ret = entry_answer(r, q.path);
	users_leave();
	if (ret < 0)
		fail(r, ret, "path", q.path);
	path_req_done(&q);
}

void fsrpc_make_dir(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct stat st;
	struct user u;
	int ret;

	if (!begin(r, body, n, false, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0 && stat(q.path, &st) == 0) {
		ret = S_ISDIR(st.st_mode) ? -EEXIST : -ENOTDIR;
	} else if (ret == 0) {
		ret = path_make_parents(q.path, DIR_MODE);
		if (ret == 0 && mkdir(q.path, DIR_MODE) < 0)
			ret = -errno;
		if (ret == 0)
			ret = entry_answer(r, q.path);
	}
	users_leave();
	if (ret == -EEXIST)
		connect_fail(r, CONNECT_ALREADY_EXISTS, "directory already exists: %s", q.path);
	else if (ret == -ENOTDIR)
		connect_fail(r, CONNECT_INVALID_ARGUMENT,
			     "path already exists but it is not a directory: %s", q.path);
	else if (ret < 0)
		fail(r, ret, "cannot make directory", q.path);
	path_req_done(&q);
}

void fsrpc_move(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct stat st;
	struct user u;
	int ret;

	if (!begin(r, body, n, true, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0 && lstat(q.path, &st) < 0)
		ret = -errno;
	if (ret == 0)
		ret = path_make_parents(q.destination, DIR_MODE);
	if (ret == 0 && rename(q.path, q.destination) < 0)
		ret = -errno;
	if (ret == 0)
		ret = entry_answer(r, q.destination);
	users_leave();
	if (ret < 0)
		fail(r, ret, "cannot move", q.path);
	path_req_done(&q);
}

/* ---- ListDir: a walk in lexical order, each folder's entries before the next one's ---- */

struct level {
	char *path;
	DIR *dir;                                /* while its names are being read */
	char **names;
	size_t n, room, at;
};

struct walk {
	struct ev_job job;
	struct req *r;
	struct user u;
	struct users_names *ids;
	struct buf b;
	struct level levels[DEPTH_MAX];
	unsigned n, depth;
	bool first;
};

static void level_done(struct level *l)
{
	if (l->dir)
		closedir(l->dir);
	for (size_t i = 0; i < l->n; i++)
		free(l->names[i]);
	free(l->names);
	free(l->path);
	*l = (struct level){ 0 };
}

static void walk_free(struct req *r)
{
	struct walk *w = r->ctx;

	ev_job_del(&w->job);
	while (w->n)
		level_done(&w->levels[--w->n]);
	users_names_free(w->ids);
	buf_done(&w->b);
	free(w);
	r->ctx = NULL;
	r->ops = NULL;
}

static const struct req_ops walk_ops = { .gone = walk_free };

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int level_open(struct walk *w, const char *path)
{
	struct level *l = &w->levels[w->n];
	DIR *d = opendir(path);

	if (!d)
		return -errno;
	*l = (struct level){ .path = x_strdup(path), .dir = d };
	w->n++;
	return 0;
}

static int level_read(struct level *l)
{
	for (int i = 0; i < NAMES_IN_A_STEP; i++) {
		struct dirent *de = readdir(l->dir);

		if (!de) {
			closedir(l->dir);
			l->dir = NULL;
			if (l->n)
				qsort(l->names, l->n, sizeof(*l->names), by_name);
			return 0;
		}
		if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
			continue;
		if (l->n == FSRPC_DIR_MAX)
			return -ENOBUFS;
		if (l->n == l->room) {
			l->room = l->room ? 2 * l->room : 64;
			l->names = x_realloc(l->names, l->room * sizeof(*l->names));
		}
		l->names[l->n++] = x_strdup(de->d_name);
	}
	return 0;
}

/* Some entries of the deepest level; goes down into folders. */
static int level_entries(struct walk *w)
{
	for (int i = 0; i < ENTRIES_IN_A_STEP; i++) {
		struct level *l = &w->levels[w->n - 1];
		autofree char *path = NULL;
		size_t before = buf_len(&w->b);
		bool dir = false;
		int r;

		if (l->at == l->n) {
			level_done(l);
			w->n--;
			return 0;
		}
		path = x_asprintf("%s/%s", l->path[1] ? l->path : "", l->names[l->at++]);
		r = w->first ? 0 : buf_puts(&w->b, ",");
		if (r == 0)
			r = put_entry(&w->b, w->ids, path, &dir);
		if (r == -ENOBUFS)
			return r;
		if (r < 0) {
			/* It went away meanwhile: the comma goes too. */
			w->b.len_ = before;
			continue;
		}
		w->first = false;
		/* A folder below that cannot be opened is an entry without entries. */
		if (dir && w->n < w->depth && w->n < DEPTH_MAX && level_open(w, path) == 0)
			return 0;
	}
	return 0;
}

static void walk_step(struct ev_job *j)
{
	struct walk *w = CONTAINER_OF(j, struct walk, job);
	struct req *r = w->r;
	int ret = users_enter(&w->u);

	if (ret == 0)
		ret = w->levels[w->n - 1].dir ? level_read(&w->levels[w->n - 1]) : level_entries(w);
	users_leave();
	if (ret < 0) {
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED,
			     "there is too much to list; ask with a smaller depth");
		walk_free(r);
	} else if (w->n == 0) {
		buf_puts(&w->b, "]}");
		connect_answer_buf(r, &w->b);
		walk_free(r);
	}
}

void fsrpc_list_dir(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct walk *w;
	struct user u;
	int ret;

	if (!begin(r, body, n, false, &u, &q))
		return;
	w = x_alloc(sizeof(*w));
	list_init(&w->job.node);
	w->r = r;
	w->u = u;
	w->first = true;
	w->depth = q.depth ? q.depth : 1;
	w->ids = users_names_new();
	buf_init(&w->b, FSRPC_LIST_MAX);
	buf_puts(&w->b, "{\"entries\":[");
	r->ctx = w;
	r->ops = &walk_ops;
	ret = users_enter(&u);
	if (ret == 0)
		ret = level_open(w, q.path);
	users_leave();
	if (ret == 0) {
		ev_job_add(r->a->ev, &w->job, walk_step);
	} else {
		walk_free(r);
		if (ret == -ENOTDIR)
			connect_fail(r, CONNECT_INVALID_ARGUMENT, "path is not a directory: %s",
				     q.path);
		else
			fail(r, ret, "cannot list", q.path);
	}
	path_req_done(&q);
}

/*
 * ---- Remove: like rm -rf; one folder is open at a time, and is read again after each one below it
 * ----
 */

struct removal {
	struct ev_job job;
	struct req *r;
	struct user u;
	char *root, *at;                         /* `at` is root or below */
	DIR *dir;                                /* of `at` */
};

static void removal_free(struct req *r)
{
	struct removal *m = r->ctx;

	ev_job_del(&m->job);
	if (m->dir)
		closedir(m->dir);
	free(m->root);
	free(m->at);
	free(m);
	r->ctx = NULL;
	r->ops = NULL;
}

static const struct req_ops removal_ops = { .gone = removal_free };

/* The folder `at` is empty: goes up. 1 = all is done. */
static int removal_up(struct removal *m)
{
	closedir(m->dir);
	m->dir = NULL;
	if (rmdir(m->at) < 0 && errno != ENOENT)
		return -errno;
	if (str_eq(m->at, m->root))
		return 1;
	*strrchr(m->at, '/') = '\0';
	return 0;
}

/* One entry of `at`, or its end. 1 = all is done. */
static int removal_one(struct removal *m)
{
	struct dirent *de;
	char *down;

	if (!m->dir) {
		m->dir = opendir(m->at);
		if (!m->dir)
			return -errno;
	}
	errno = 0;
	de = readdir(m->dir);
	if (!de)
		return errno ? -errno : removal_up(m);
	if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
		return 0;
	if (unlinkat(dirfd(m->dir), de->d_name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR)
		return -errno;
	down = x_asprintf("%s/%s", m->at, de->d_name);
	free(m->at);
	m->at = down;
	closedir(m->dir);
	m->dir = NULL;
	return 0;
}

static void removal_step(struct ev_job *j)
{
	struct removal *m = CONTAINER_OF(j, struct removal, job);
	struct req *r = m->r;
	int ret = users_enter(&m->u);

	for (int i = 0; ret == 0 && i < ENTRIES_IN_A_STEP; i++)
		ret = removal_one(m);
	users_leave();
	if (ret == 0)
		return;
	if (ret < 0)
		fail(r, ret, "cannot remove", m->at);
	else
		connect_answer(r, "{}");
	removal_free(r);
}

void fsrpc_remove(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct removal *m;
	struct user u;
	int ret;

	if (!begin(r, body, n, false, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0 && str_eq(q.path, "/"))
		ret = -EPERM;
	if (ret == 0 && unlink(q.path) < 0)
		ret = -errno;
	users_leave();
	if (ret == 0 || ret == -ENOENT || ret == -ENOTDIR) {
		connect_answer(r, "{}");
	} else if (ret == -EISDIR) {
		m = x_alloc(sizeof(*m));
		list_init(&m->job.node);
		m->r = r;
		m->u = u;
		m->root = x_strdup(q.path);
		m->at = TAKE(q.path);
		r->ctx = m;
		r->ops = &removal_ops;
		ev_job_add(r->a->ev, &m->job, removal_step);
	} else {
		fail(r, ret, "cannot remove", q.path);
	}
	path_req_done(&q);
}
