#include "spaced-guest/fsrpc.h"

#include <dirent.h>
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
#include "spaced-guest/entry.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/text.h"

#define DIR_MODE 0755
#define NAMES_IN_A_STEP 512
#define ENTRIES_IN_A_STEP 64
#define DEPTH_MAX 256
#define REMOVAL_ROUNDS_MAX 100           /* a folder that others fill while it is emptied */

/* ---- the short calls ---- */

enum paths { PATH_OR_HOME /* "" is the default folder */, PATH_NEEDED, PATHS_OF_MOVE };

static int resolve(struct req *r, const struct user *u, char **path, struct err *e)
{
	char *full;
	int ret = path_resolve(r->a, u, *path, &full, e);

	if (ret < 0)
		return ret;
	free(*path);
	*path = full;
	return 0;
}

/* Content type, user, body, path; false = answered. */
static bool begin(struct req *r, const char *body, size_t n, enum paths kind, struct user *u,
		  struct path_req *q)
{
	struct err e = { 0 };
	int ret;

	if (!connect_unary(r))
		return false;
	if (req_user(r, u, &e) < 0) {
		connect_fail(r, CONNECT_UNAUTHENTICATED, "%s", e.text);
		return false;
	}
	ret = (kind == PATHS_OF_MOVE ? decode_move : decode_path)(body, n, q, &e);
	if (ret == 0 && kind == PATH_NEEDED && !*q->path)
		ret = err_set(&e, -EINVAL, "'path' is missing");
	if (ret == 0)
		ret = resolve(r, u, &q->path, &e);
	if (ret == 0 && kind == PATHS_OF_MOVE)
		ret = resolve(r, u, &q->destination, &e);
	if (ret == 0)
		return true;
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
	int n;

	buf_init(&b, 1 << 20);
	buf_puts(&b, "{\"entry\":");
	n = entry_put(&b, names, path, NULL);
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

	if (!begin(r, body, n, PATH_OR_HOME, &u, &q))
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

	if (!begin(r, body, n, PATH_NEEDED, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0 && stat(q.path, &st) == 0) {
		ret = S_ISDIR(st.st_mode) ? -EEXIST : -ENOTDIR;
	} else if (ret == 0) {
		ret = path_make_parents(q.path, DIR_MODE);
		if (ret == 0 && mkdir(q.path, DIR_MODE) < 0)
			ret = -errno;
		/* A link to nothing, or somebody was faster. */
		if (ret == -EEXIST && (stat(q.path, &st) < 0 || !S_ISDIR(st.st_mode)))
			ret = -ENOTDIR;
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

	if (!begin(r, body, n, PATHS_OF_MOVE, &u, &q))
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
	struct buf names;                        /* each with its NUL */
	uint32_t *starts;                        /* of the names, sorted */
	size_t n, room, at;
};

struct walk {
	struct list node;                        /* in agent.walks, the oldest first */
	struct ev_job job;
	struct req *r;
	struct user u;
	struct users_names *ids;
	struct buf b;
	struct level levels[DEPTH_MAX];
	size_t bytes;                            /* of the names of all levels */
	unsigned n, depth;
	bool first;
};

static void level_done(struct walk *w, struct level *l)
{
	w->bytes -= buf_len(&l->names) + l->n * sizeof(*l->starts);
	if (l->dir)
		closedir(l->dir);
	buf_done(&l->names);
	free(l->starts);
	free(l->path);
	*l = (struct level){ 0 };
}

static void walk_free(struct req *r)
{
	struct walk *w = r->ctx;

	ev_job_del(&w->job);
	list_del(&w->node);
	while (w->n)
		level_done(w, &w->levels[--w->n]);
	users_names_free(w->ids);
	buf_done(&w->b);
	free(w);
	r->ctx = NULL;
	r->ops = NULL;
}

static const struct req_ops walk_ops = { .gone = walk_free };

static int by_name(const void *a, const void *b, void *names)
{
	return strcmp((const char *)names + *(const uint32_t *)a,
		      (const char *)names + *(const uint32_t *)b);
}

static int level_open(struct walk *w, const char *path)
{
	struct level *l = &w->levels[w->n];
	DIR *d = opendir(path);

	if (!d)
		return -errno;
	*l = (struct level){ .path = x_strdup(path), .dir = d };
	buf_init(&l->names, FSRPC_LIST_MAX);
	w->n++;
	return 0;
}

/*
 * An entry of the answer is longer than its name with what is kept beside it: what has no room here
 * has none there.
 */
static int level_add(struct walk *w, struct level *l, const char *name)
{
	size_t len = strlen(name) + 1, bytes = len + sizeof(*l->starts);

	if (l->n == FSRPC_DIR_MAX || buf_len(&w->b) + w->bytes + bytes > FSRPC_LIST_MAX)
		return -ENOBUFS;
	if (l->n == l->room) {
		l->room = l->room ? 2 * l->room : 64;
		l->starts = x_realloc(l->starts, l->room * sizeof(*l->starts));
	}
	l->starts[l->n++] = (uint32_t)buf_len(&l->names);
	w->bytes += bytes;
	return buf_put(&l->names, name, len);
}

static int level_read(struct walk *w, struct level *l)
{
	int r = 0;

	for (int i = 0; r == 0 && i < NAMES_IN_A_STEP; i++) {
		struct dirent *de = readdir(l->dir);

		if (!de) {
			closedir(l->dir);
			l->dir = NULL;
			if (l->n)
				qsort_r(l->starts, l->n, sizeof(*l->starts), by_name,
					(char *)buf_data(&l->names));
			return 0;
		}
		if (!str_eq(de->d_name, ".") && !str_eq(de->d_name, ".."))
			r = level_add(w, l, de->d_name);
	}
	return r;
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
			level_done(w, l);
			w->n--;
			return 0;
		}
		path = x_asprintf("%s/%s", l->path[1] ? l->path : "",
				  buf_data(&l->names) + l->starts[l->at++]);
		r = w->first ? 0 : buf_puts(&w->b, ",");
		if (r == 0)
			r = entry_put(&w->b, w->ids, path, &dir);
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

/* Many listings at once take their turn rather than all of the memory. */
static bool walk_may_go_on(const struct walk *w)
{
	const struct list *walks = &w->r->a->walks;
	size_t n = 0;

	LIST_FOR(walks, other, struct walk, node)
		n += other->bytes + buf_held(&other->b);
	return walks->next == &w->node || n <= FSRPC_WALKS_MAX;
}

static void walk_step(struct ev_job *j)
{
	struct walk *w = CONTAINER_OF(j, struct walk, job);
	struct req *r = w->r;
	int ret;

	if (!walk_may_go_on(w))
		return;
	if (w->bytes + buf_len(&w->b) > REQ_SMALL && req_crowded(r)) {
		connect_fail(r, CONNECT_RESOURCE_EXHAUSTED, REQ_CROWDED_TEXT);
		walk_free(r);
		return;
	}
	ret = users_enter(&w->u);
	if (ret == 0)
		ret = w->levels[w->n - 1].dir ? level_read(w, &w->levels[w->n - 1])
					      : level_entries(w);
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

	if (!begin(r, body, n, PATH_OR_HOME, &u, &q))
		return;
	w = x_alloc(sizeof(*w));
	list_init(&w->job.node);
	list_init(&w->node);
	list_add_tail(&r->a->walks, &w->node);
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
 * ---- Remove, like rm -rf. Where it is stands in `at`, relative to the open root: a folder is
 * opened from there without following a link anywhere (openat2), so that nobody can lead the
 * removal out of the tree while it runs. One folder is open besides; it is read again after each
 * one below it. ----
 */

struct removal {
	struct ev_job job;
	struct req *r;
	struct user u;
	char *path;                              /* of the root */
	int root;
	char *at;                                /* "." or "a/b" */
	DIR *dir;                                /* of `at` */
	unsigned rounds;
};

static void removal_free(struct req *r)
{
	struct removal *m = r->ctx;

	ev_job_del(&m->job);
	if (m->dir)
		closedir(m->dir);
	fd_close(m->root);
	free(m->path);
	free(m->at);
	free(m);
	r->ctx = NULL;
	r->ops = NULL;
}

static const struct req_ops removal_ops = { .gone = removal_free };

static void removal_close(struct removal *m)
{
	if (m->dir)
		closedir(m->dir);
	m->dir = NULL;
}

static int removal_open(struct removal *m)
{
	int fd = fd_openat_beneath(m->root, m->at, O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return fd;
	m->dir = fdopendir(fd);
	if (!m->dir) {
		int r = -errno;

		fd_close(fd);
		return r;
	}
	return 0;
}

/* Removes the folder `at`, which is not the root, and goes up. */
static int removal_rmdir(struct removal *m)
{
	char *slash = strrchr(m->at, '/');
	autofree char *name = x_strdup(slash ? slash + 1 : m->at);
	autoclose int parent = -1;

	if (slash)
		*slash = '\0';
	else
		str_copy(m->at, 2, ".");
	parent = fd_openat_beneath(m->root, m->at, O_PATH | O_DIRECTORY, 0);
	if (parent < 0)
		return parent;
	return unlinkat(parent, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/*
 * The folder `at` is empty, or is no longer what it was: goes up, where what is left is seen again.
 * 1 = all is done.
 */
static int removal_up(struct removal *m)
{
	bool top = str_eq(m->at, ".");
	int r;

	removal_close(m);
	r = !top ? removal_rmdir(m) : rmdir(m->path) < 0 ? -errno : 0;
	if (r == 0 || r == -ENOENT)
		return top;
	if ((r == -ENOTEMPTY || r == -ENOTDIR || r == -ELOOP) && m->rounds++ < REMOVAL_ROUNDS_MAX)
		return 0;
	return r;
}

/*
 * Into a folder. A way that becomes too long is cut off: what is below moves up to the root, where
 * a short name leads to it.
 */
static int removal_down(struct removal *m, const char *name)
{
	char *down = str_eq(m->at, ".") ? x_strdup(name) : x_asprintf("%s/%s", m->at, name);

	if (strlen(down) > PATHS_MAX / 2) {
		char random[17];

		str_random_hex(random, 8);
		if (renameat(dirfd(m->dir), name, m->root, random) < 0) {
			free(down);
			return -errno;
		}
		removal_close(m);
		free(down);
		return 0;
	}
	removal_close(m);
	free(m->at);
	m->at = down;
	return 0;
}

/* One entry of `at`, or its end. 1 = all is done. */
static int removal_one(struct removal *m)
{
	struct dirent *de;
	int r = m->dir ? 0 : removal_open(m);

	if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP)
		return removal_up(m);
	if (r < 0)
		return r;
	errno = 0;
	de = readdir(m->dir);
	if (!de)
		return errno ? -errno : removal_up(m);
	if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
		return 0;
	if (unlinkat(dirfd(m->dir), de->d_name, 0) == 0 || errno == ENOENT)
		return 0;
	return errno == EISDIR ? removal_down(m, de->d_name) : -errno;
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
		connect_fail(r, connect_code_of(ret), "cannot remove '%s' of '%s': %s", m->at,
			     m->path, strerror(-ret));
	else
		connect_answer(r, "{}");
	removal_free(r);
}

/* As the user. 1 = it is a folder, which *ret_root opens. */
static int remove_one(const char *path, int *ret_root)
{
	if (str_eq(path, "/"))
		return -EPERM;
	if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
		return 0;
	if (errno != EISDIR)
		return -errno;
	*ret_root = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*ret_root >= 0)
		return 1;
	/* A folder that cannot be read may be an empty one. */
	return rmdir(path) == 0 ? 0 : -errno;
}

void fsrpc_remove(struct req *r, const char *body, size_t n)
{
	struct path_req q = { 0 };
	struct removal *m;
	struct user u;
	int ret, root = -1;

	if (!begin(r, body, n, PATH_NEEDED, &u, &q))
		return;
	ret = users_enter(&u);
	if (ret == 0)
		ret = remove_one(q.path, &root);
	users_leave();
	if (ret == 0) {
		connect_answer(r, "{}");
	} else if (ret < 0) {
		fail(r, ret, "cannot remove", q.path);
	} else {
		m = x_alloc(sizeof(*m));
		list_init(&m->job.node);
		m->r = r;
		m->u = u;
		m->root = root;
		m->at = x_strdup(".");
		m->path = TAKE(q.path);
		r->ctx = m;
		r->ops = &removal_ops;
		ev_job_add(r->a->ev, &m->job, removal_step);
	}
	path_req_done(&q);
}
