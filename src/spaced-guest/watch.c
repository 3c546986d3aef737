#include "spaced-guest/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/entry.h"
#include "spaced-guest/files.h"
#include "spaced-guest/fstypes.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/text.h"
#include "spaced-guest/watch_tree.h"

#define MASK                                                                                       \
	(IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |             \
	 IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)
#define GATHER_MS 5                              /* so that each change does not wake the agent */
#define EVENTS_IN_A_STEP 128
#define NAMES_IN_A_STEP 128
#define CATCH_UP_STEPS 256
#define INPUT_BYTES 8192
#define QUEUE_SLACK (1u << 20)                   /* what one step may put behind a full queue */
#define REL_MAX (PATHS_MAX + NAME_MAX + 1)
#define SELF "."

enum kind { KIND_NONE, KIND_CREATE, KIND_WRITE, KIND_REMOVE, KIND_RENAME, KIND_CHMOD };

static const char *const kinds[] = {
	[KIND_NONE] = "EVENT_TYPE_UNSPECIFIED", [KIND_CREATE] = "EVENT_TYPE_CREATE",
	[KIND_WRITE] = "EVENT_TYPE_WRITE",	[KIND_REMOVE] = "EVENT_TYPE_REMOVE",
	[KIND_RENAME] = "EVENT_TYPE_RENAME",	[KIND_CHMOD] = "EVENT_TYPE_CHMOD",
};

struct watch {
	struct list node;                        /* in watches.all */
	struct watches *ws;
	struct ev *ev;
	struct user u;
	char *path;
	struct watch_options o;
	enum watch_state state;
	struct ev_watch in;                      /* the inotify descriptor */
	struct ev_timer gather;                  /* armed while events gather in the kernel */
	struct ev_job job;                       /* linked while there is something to do */
	struct wtree tree;
	struct list scans;                       /* folders that wait to be read */
	DIR *scan_dir;                           /* of the first of them */
	struct wnames seen;
	long seen_bytes;                         /* of events that may tell such a name again */
	uint32_t tmp_cookie;                     /* of the last temporary file renamed; 0 = none */
	bool tmp_replaces;
	_Alignas(struct inotify_event) char input[INPUT_BYTES];
	size_t input_n, input_at;
	struct buf queue;                        /* uint32_t length, JSON */
	enum kind last_kind;                     /* of the last event in the queue */
	char *last_name;
	struct users_names *names;               /* within a step */
	void (*wake)(struct watch *w, void *arg);
	void *arg;
	enum connect_code end_code;
	char end_text[ERR_TEXT_MAX];
};

static void work_step(struct ev_job *j);

/* ---- the queue ---- */

static bool is_full(const struct watch *w)
{
	return buf_len(&w->queue) >= WATCH_QUEUE_MAX || w->ws->bytes >= WATCH_QUEUES_MAX;
}

bool watch_peek(struct watch *w, const char **ret, size_t *ret_n)
{
	uint32_t n;

	if (buf_len(&w->queue) == 0)
		return false;
	memcpy(&n, buf_data(&w->queue), sizeof(n));
	*ret = buf_data(&w->queue) + sizeof(n);
	*ret_n = n;
	return true;
}

/* Goes on where a full queue has stopped it. */
static void resume(struct watch *w)
{
	if (w->state != WATCH_ENDED && !is_full(w) && list_empty(&w->job.node))
		ev_job_add(w->ev, &w->job, work_step);
}

void watch_pop(struct watch *w)
{
	bool full = is_full(w), all_full = w->ws->bytes >= WATCH_QUEUES_MAX;
	uint32_t n;

	memcpy(&n, buf_data(&w->queue), sizeof(n));
	buf_consume(&w->queue, sizeof(n) + n);
	w->ws->bytes -= sizeof(n) + n;
	if (buf_len(&w->queue) == 0) {
		buf_shrink(&w->queue);
		w->last_kind = KIND_NONE;
	}
	if (all_full && w->ws->bytes < WATCH_QUEUES_MAX)
		LIST_FOR(&w->ws->all, other, struct watch, node)
			resume(other);
	else if (full)
		resume(w);
}

static void push(struct watch *w, const struct buf *event)
{
	uint32_t n = (uint32_t)buf_len(event);

	if (buf_room(&w->queue) < sizeof(n) + n)
		abort();                         /* is_full comes first; QUEUE_SLACK is enough */
	buf_put(&w->queue, &n, sizeof(n));
	buf_put(&w->queue, buf_data(event), n);
	w->ws->bytes += sizeof(n) + n;
}

/* ---- the end ---- */

static void close_down(struct watch *w)
{
	ev_job_del(&w->job);
	ev_timer_del(&w->gather);
	if (w->in.fd >= 0) {
		ev_watch_set(w->ev, &w->in, 0);
		fd_close(w->in.fd);
		w->in.fd = -1;
	}
	if (w->scan_dir)
		closedir(w->scan_dir);
	w->scan_dir = NULL;
	w->ws->dirs -= (unsigned)w->tree.n;
	wtree_done(&w->tree);
	wnames_clear(&w->seen);
	w->input_n = w->input_at = 0;
}

__attribute__((format(printf, 3, 4)))
static void end(struct watch *w, enum connect_code code, const char *fmt, ...)
{
	va_list ap;

	if (w->state == WATCH_ENDED)
		return;
	va_start(ap, fmt);
	vsnprintf(w->end_text, sizeof(w->end_text), fmt, ap);
	va_end(ap);
	w->end_code = code;
	w->state = WATCH_ENDED;
}

/* What the client can do about it stands in docs/files.md, too. */
static void end_limit(struct watch *w, const char *what)
{
	end(w, CONNECT_RESOURCE_EXHAUSTED,
	    "the watch of '%s' has ended: %s; watch again, and list the folder to see what changed",
	    w->path, what);
}

/* ---- events ---- */

static bool has_entry(enum kind kind)
{
	return kind == KIND_CREATE || kind == KIND_WRITE || kind == KIND_CHMOD;
}

static void put_event(struct watch *w, struct buf *b, enum kind kind, const char *name)
{
	size_t before;

	buf_puts(b, "{");
	text_member(b, "name", name);
	buf_putf(b, ",\"type\":\"%s\"", kinds[kind]);
	before = buf_len(b);
	if (w->o.entries && has_entry(kind)) {
		const char *top = w->path[1] ? w->path : "";
		autofree char *path = str_eq(name, SELF) ? x_strdup(w->path)
							 : x_asprintf("%s/%s", top, name);

		if (!w->names)
			w->names = users_names_new();
		if (buf_puts(b, ",\"entry\":") < 0 || entry_put(b, w->names, path, NULL) < 0)
			b->len_ = before;        /* it is gone already */
	}
	buf_puts(b, "}");
}

/* A change of `name` in d; as the user. */
static void report(struct watch *w, enum kind kind, const struct wdir *d, const char *name)
{
	autofree char *rel = wtree_path(d, name, REL_MAX);
	struct buf b;

	if (!rel)
		abort();                         /* add_dir has kept the folder short enough */
	/* Once more the same before anybody looked says nothing new. */
	if (kind == w->last_kind && kind != KIND_CREATE && str_eq(rel, w->last_name))
		return;
	buf_init(&b, WATCH_EVENT_MAX);
	put_event(w, &b, kind, rel);
	push(w, &b);
	buf_done(&b);
	w->last_kind = kind;
	free(w->last_name);
	w->last_name = TAKE(rel);
}

static char *full_path(const struct watch *w, const struct wdir *d, const char *name)
{
	autofree char *rel = wtree_path(d, name, PATHS_MAX);

	return rel ? x_asprintf("%s/%s", w->path[1] ? w->path : "", rel) : NULL;
}

/* ---- folders ---- */

static void dir_gone(void *arg, struct wdir *d)
{
	struct watch *w = arg;

	if (w->scan_dir && w->scans.next == &d->scan) {
		closedir(w->scan_dir);
		w->scan_dir = NULL;
	}
	inotify_rm_watch(w->in.fd, d->wd);
	w->ws->dirs--;
}

static void drop(struct watch *w, struct wdir *d)
{
	wtree_drop(&w->tree, d, dir_gone, w);
}

/* What may happen to a folder that somebody else works on, or that the user may not read. */
static bool is_passed_over(int num)
{
	return num == ENOENT || num == ENOTDIR || num == EACCES || num == ELOOP ||
	       num == ENAMETOOLONG;
}

/* /proc below a watch of "/", and the like: of no use, and endless. */
static bool is_left_out(const struct watch *w, const char *path)
{
	struct statx sx;
	struct statfs fs;

	return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, 0, &sx) == 0 &&
	       (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT) && statfs(path, &fs) == 0 &&
	       (fs_is_made_up(&fs) || (!w->o.network && fs_is_network(&fs)));
}

/* A folder below, which is to be read then; as the user. */
static void add_dir(struct watch *w, struct wdir *parent, const char *name)
{
	autofree char *path = full_path(w, parent, name);
	struct wdir *old;
	int wd;

	if (!path || strlen(path) >= PATHS_MAX) {
		end_limit(w, "a folder is too deep to be watched");
		return;
	}
	if (is_left_out(w, path))
		return;
	wd = inotify_add_watch(w->in.fd, path, MASK | IN_DONT_FOLLOW);
	if (wd < 0 && is_passed_over(errno))
		return;
	if (wd < 0) {
		if (errno == ENOSPC)
			end_limit(w, "the kernel watches no more folders");
		else
			end(w, connect_code_of(-errno), "'%s' cannot be watched: %s", path,
			    strerror(errno));
		return;
	}
	old = wtree_find(&w->tree, wd);
	/* The same one once more, or a folder that is mounted below itself. */
	if (old && ((old->parent == parent && str_eq(old->name, name)) ||
		    wtree_is_above(old, parent)))
		return;
	if (w->ws->dirs >= WATCH_DIRS_MAX) {
		end_limit(w, "there are too many folders");
		return;
	}
	if (old) {
		/* It has another name by now; its number stays in use. */
		drop(w, old);
		wd = inotify_add_watch(w->in.fd, path, MASK | IN_DONT_FOLLOW);
		if (wd < 0)
			return;
	}
	old = wtree_child(&w->tree, parent, name);
	if (old)
		drop(w, old);
	old = wtree_add(&w->tree, parent, name, wd);
	list_add_tail(&w->scans, &old->scan);
	w->ws->dirs++;
}

/* ---- reading folders ---- */

static void forget_seen(struct watch *w)
{
	if (w->seen_bytes <= 0 && list_empty(&w->scans))
		wnames_clear(&w->seen);
}

static void scan_done(struct watch *w, struct wdir *d)
{
	int queued = 0;

	if (w->scan_dir)
		closedir(w->scan_dir);
	w->scan_dir = NULL;
	list_del(&d->scan);
	if (w->state != WATCH_RUNNING)
		return;
	/* The kernel may tell once more what was read, but not behind what is queued now. */
	ioctl(w->in.fd, FIONREAD, &queued);
	w->seen_bytes = queued + (long)(w->input_n - w->input_at);
	forget_seen(w);
}

static bool scan_open(struct watch *w, struct wdir *d)
{
	autofree char *path = d->parent ? full_path(w, d->parent, d->name) : x_strdup(w->path);
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (d->parent ? O_NOFOLLOW : 0);
	int fd = path ? open(path, flags) : -1;

	w->scan_dir = fd < 0 ? NULL : fdopendir(fd);
	if (fd >= 0 && !w->scan_dir)
		fd_close(fd);
	return w->scan_dir;
}

/* One name of the folder that is being read. */
static void scan_name(struct watch *w, struct wdir *d, const struct dirent *de)
{
	bool told = w->state == WATCH_RUNNING, replaces;
	unsigned char type = de->d_type;
	struct stat st = { 0 };

	if (str_eq(de->d_name, ".") || str_eq(de->d_name, "..") ||
	    files_is_tmp(de->d_name, &replaces))
		return;
	if (type == DT_UNKNOWN || (told && type == DT_REG)) {
		if (fstatat(dirfd(w->scan_dir), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return;
		type = S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_LNK;
	}
	if (told) {
		report(w, KIND_CREATE, d, de->d_name);
		if (type == DT_REG && st.st_size > 0)
			report(w, KIND_WRITE, d, de->d_name);
		wnames_add(&w->seen, d->wd, de->d_name);
	}
	if (type == DT_DIR && w->o.recursive)
		add_dir(w, d, de->d_name);
}

static void scan_step(struct watch *w)
{
	struct wdir *d = CONTAINER_OF(w->scans.next, struct wdir, scan);

	if (!w->scan_dir && !scan_open(w, d)) {
		scan_done(w, d);
		return;
	}
	for (int i = 0; i < NAMES_IN_A_STEP && w->state != WATCH_ENDED && !is_full(w); i++) {
		struct dirent *de = readdir(w->scan_dir);

		if (!de) {
			scan_done(w, d);
			return;
		}
		scan_name(w, d, de);
	}
}

/* ---- what the kernel says ---- */

/* About the watched folder itself. */
static void on_root(struct watch *w, const struct inotify_event *e)
{
	if (e->mask & IN_ATTRIB)
		report(w, KIND_CHMOD, w->tree.root, SELF);
	if (e->mask & IN_DELETE_SELF)
		report(w, KIND_REMOVE, w->tree.root, SELF);
	if (e->mask & IN_MOVE_SELF)
		report(w, KIND_RENAME, w->tree.root, SELF);
	if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED))
		end(w, CONNECT_NOT_FOUND, "the watched folder '%s' was %s", w->path,
		    e->mask & IN_MOVE_SELF ? "moved" : "removed");
}

static enum kind kind_of(uint32_t mask)
{
	static const struct { uint32_t bit; enum kind kind; } table[] = {
		{ IN_CREATE, KIND_CREATE },	{ IN_MOVED_TO, KIND_CREATE },
		{ IN_MODIFY, KIND_WRITE },	{ IN_DELETE, KIND_REMOVE },
		{ IN_MOVED_FROM, KIND_RENAME }, { IN_ATTRIB, KIND_CHMOD },
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (mask & table[i].bit)
			return table[i].kind;
	return KIND_NONE;
}

/* True = it was about an upload's temporary file, or ended one: all is said. */
static bool on_upload(struct watch *w, struct wdir *d, const struct inotify_event *e)
{
	bool replaces;

	if (files_is_tmp(e->name, &replaces)) {
		if (e->mask & IN_MOVED_FROM) {
			w->tmp_cookie = e->cookie;
			w->tmp_replaces = replaces;
		}
		return true;
	}
	if (!(e->mask & IN_MOVED_TO) || !e->cookie || e->cookie != w->tmp_cookie)
		return false;
	w->tmp_cookie = 0;
	if (!w->tmp_replaces && !wnames_take(&w->seen, d->wd, e->name))
		report(w, KIND_CREATE, d, e->name);
	report(w, KIND_WRITE, d, e->name);
	return true;
}

static void on_name(struct watch *w, struct wdir *d, const struct inotify_event *e)
{
	bool dir = (e->mask & IN_ISDIR) && w->o.recursive, told = false;
	bool comes = e->mask & (IN_CREATE | IN_MOVED_TO);
	enum kind kind = kind_of(e->mask);
	struct wdir *child;

	if (on_upload(w, d, e))
		return;
	if (comes || (e->mask & (IN_DELETE | IN_MOVED_FROM)))
		told = wnames_take(&w->seen, d->wd, e->name) && comes;
	/* What was moved over a file that was told is a new content of it. */
	if (told && (e->mask & IN_MOVED_TO))
		kind = KIND_WRITE;
	if (kind != KIND_NONE && (!told || kind == KIND_WRITE))
		report(w, kind, d, e->name);
	if (!dir)
		return;
	child = wtree_child(&w->tree, d, e->name);
	if (child && (e->mask & (IN_DELETE | IN_MOVED_FROM)))
		drop(w, child);
	if (comes && !(told && child))
		add_dir(w, d, e->name);
}

static void on_event(struct watch *w, const struct inotify_event *e)
{
	struct wdir *d = wtree_find(&w->tree, e->wd);

	if (e->mask & IN_Q_OVERFLOW)
		end_limit(w, "there were more events than could be kept, and some were lost");
	else if (!d)
		return;                          /* of a folder that was dropped meanwhile */
	else if (d == w->tree.root && !e->len)
		on_root(w, e);
	else if (e->mask & IN_IGNORED)
		drop(w, d);
	else if (e->len)
		on_name(w, d, e);
}

static void input_step(struct watch *w)
{
	for (int i = 0; i < EVENTS_IN_A_STEP && w->input_at < w->input_n; i++) {
		const struct inotify_event *e = (const void *)(w->input + w->input_at);
		size_t n = sizeof(*e) + e->len;

		if (is_full(w) || w->state == WATCH_ENDED)
			return;
		w->input_at += n;
		on_event(w, e);
		w->seen_bytes -= (long)n;
		forget_seen(w);
		/* A new folder is read before what the kernel says next. */
		if (!list_empty(&w->scans))
			return;
	}
}

/* False = there is nothing. */
static bool input_read(struct watch *w)
{
	ssize_t n = read(w->in.fd, w->input, sizeof(w->input));

	w->input_at = 0;
	w->input_n = n > 0 ? (size_t)n : 0;
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		end(w, CONNECT_INTERNAL, "the watch cannot be read: %s", strerror(errno));
	return n > 0;
}

/* ---- the job ---- */

/* One piece of work; false = there is none (now). */
static bool work(struct watch *w)
{
	int r;

	if (w->state == WATCH_ENDED || is_full(w))
		return false;
	if (list_empty(&w->scans) && w->state == WATCH_SCANNING) {
		w->state = WATCH_RUNNING;
		return true;
	}
	if (list_empty(&w->scans) && w->input_at == w->input_n && !input_read(w))
		return false;
	r = users_enter(&w->u);
	if (r < 0)
		end(w, CONNECT_INTERNAL, "cannot act as '%s': %s", w->u.name, strerror(-r));
	else if (!list_empty(&w->scans))
		scan_step(w);
	else
		input_step(w);
	users_leave();
	users_names_free(TAKE(w->names));
	return true;
}

/* After work: waits for what is next. wake may free the watch, so it is called last. */
static void settle(struct watch *w, bool more, enum watch_state before)
{
	if (w->state == WATCH_ENDED)
		close_down(w);
	else if (more && list_empty(&w->job.node))
		ev_job_add(w->ev, &w->job, work_step);
	else if (!more)
		ev_job_del(&w->job);
	if (w->in.fd >= 0)
		ev_watch_set(w->ev, &w->in, more || is_full(w) ? 0 : EPOLLIN);
	if (before == WATCH_SCANNING && w->state != before && w->wake)
		w->wake(w, w->arg);
}

static void work_step(struct ev_job *j)
{
	struct watch *w = CONTAINER_OF(j, struct watch, job);
	enum watch_state before = w->state;

	settle(w, work(w), before);
}

static void on_readable(struct ev_watch *in, uint32_t events)
{
	struct watch *w = CONTAINER_OF(in, struct watch, in);

	ev_watch_set(w->ev, &w->in, 0);
	ev_timer_set(w->ev, &w->gather, GATHER_MS);
}

static void on_gathered(struct ev_timer *t)
{
	struct watch *w = CONTAINER_OF(t, struct watch, gather);

	settle(w, true, w->state);
}

void watch_catch_up(struct watch *w)
{
	enum watch_state before = w->state;
	bool more = true;

	if (before == WATCH_SCANNING)
		return;
	for (int i = 0; more && i < CATCH_UP_STEPS; i++)
		more = work(w);
	settle(w, more, before);
}

/* ---- life ---- */

struct watches *watches_new(void)
{
	struct watches *ws = x_alloc(sizeof(*ws));

	list_init(&ws->all);
	list_init(&ws->polled);
	return ws;
}

void watches_free(struct watches *ws)
{
	free(ws);
}

static int add_root(struct watch *w, struct err *e)
{
	struct statfs fs;
	struct stat st;
	int wd;

	if (stat(w->path, &st) < 0)
		return err_set(e, -errno, "path '%s': %s", w->path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(e, -ENOTDIR, "path is not a directory: %s", w->path);
	if (!w->o.network && statfs(w->path, &fs) == 0 && fs_is_network(&fs))
		return err_set(e, -EINVAL,
			       "'%s' is on a network file system, whose changes may not be seen; "
			       "allow network mounts to watch it nevertheless",
			       w->path);
	wd = inotify_add_watch(w->in.fd, w->path, MASK);
	if (wd < 0)
		return err_set(e, errno == ENOSPC ? -EAGAIN : -errno, "'%s' cannot be watched: %s",
			       w->path,
			       errno == ENOSPC ? "the kernel watches no more folders"
					       : strerror(errno));
	wtree_add(&w->tree, NULL, "", wd);
	w->ws->dirs++;
	if (w->o.recursive)
		list_add_tail(&w->scans, &w->tree.root->scan);
	return 0;
}

static int open_root(struct watch *w, struct err *e)
{
	int r;

	if (w->ws->n > WATCH_MAX)
		return err_set(e, -EAGAIN, "there are %d watches already; stop some", WATCH_MAX);
	if (w->ws->dirs >= WATCH_DIRS_MAX)
		return err_set(e, -EAGAIN, "%d folders are watched already; stop some watches",
			       WATCH_DIRS_MAX);
	w->in.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (w->in.fd < 0)
		return err_set(e, -EAGAIN, "the kernel has no room for a watch: %s",
			       strerror(errno));
	r = users_enter(&w->u);
	if (r < 0)
		return err_errno(e, r, "cannot act as '%s'", w->u.name);
	r = add_root(w, e);
	users_leave();
	return r;
}

int watch_new(struct agent *a, const struct user *u, const char *path,
	      const struct watch_options *o, void (*wake)(struct watch *w, void *arg), void *arg,
	      struct watch **ret, struct err *e)
{
	struct watch *w = x_alloc(sizeof(*w));
	int r;

	w->ws = a->watches;
	w->ev = a->ev;
	w->u = *u;
	w->path = x_strdup(path);
	w->o = *o;
	w->in = (struct ev_watch){ .fd = -1, .fn = on_readable };
	w->wake = wake;
	w->arg = arg;
	list_init(&w->job.node);
	ev_timer_init(&w->gather, on_gathered);
	list_init(&w->scans);
	wtree_init(&w->tree);
	wnames_init(&w->seen);
	buf_init(&w->queue, WATCH_QUEUE_MAX + QUEUE_SLACK);
	list_add_tail(&w->ws->all, &w->node);
	w->ws->n++;
	r = open_root(w, e);
	if (r < 0) {
		watch_free(w);
		return r;
	}
	ev_job_add(a->ev, &w->job, work_step);
	*ret = w;
	return 0;
}

void watch_free(struct watch *w)
{
	if (!w)
		return;
	close_down(w);
	list_del(&w->node);
	w->ws->n--;
	w->ws->bytes -= buf_len(&w->queue);
	buf_done(&w->queue);
	free(w->last_name);
	free(w->path);
	free(w);
}

enum watch_state watch_state(const struct watch *w)
{
	return w->state;
}

enum connect_code watch_end_code(const struct watch *w)
{
	return w->end_code;
}

const char *watch_end_text(const struct watch *w)
{
	return w->end_text;
}
