#include "spaced-guest/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/gunzip.h"
#include "spaced-guest/multipart.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/sink.h"
#include "spaced-guest/text.h"

#define READ_BYTES MUX_PAYLOAD_MAX
#define READS_IN_A_TURN 8
#define DIR_MODE 0755
#define FILE_MODE 0644
#define METADATA_PREFIX "X-Metadata-"
#define METADATA_XATTR "user.e2b."
#define RESULTS_MAX (16 << 20)

/* Errors of the file system as HTTP; anything else is 400. */
static const struct { int num, status; } statuses[] = {
	{ -ENOENT, 404 }, { -EACCES, 403 }, { -EPERM, 403 },  { -EROFS, 403 }, { -ENOSPC, 507 },
	{ -EDQUOT, 507 }, { -EMFILE, 503 }, { -ENFILE, 503 }, { -EIO, 500 },
};

static int status_of(int num)
{
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		if (statuses[i].num == num)
			return statuses[i].status;
	return 400;
}

/* User and path of a request; false = answered. *ret_path NULL when there is none. */
static bool who_and_where(struct req *r, struct user *u, char **ret_path)
{
	autofree char *path = NULL;
	struct err e = { 0 };
	int n = req_user(r, u, &e);

	*ret_path = NULL;
	if (n < 0) {
		req_error(r, n == -ENOENT ? 401 : 400, "%s", e.text);
		return false;
	}
	if (http_query_get(r->head.target, "path", &path) < 0) {
		req_error(r, 400, "the query is malformed");
		return false;
	}
	if (path && *path && path_resolve(r->a, u, path, ret_path, &e) < 0) {
		req_error(r, 400, "%s", e.text);
		return false;
	}
	return true;
}

/* ---- downloads ---- */

struct download {
	int fd;
	int64_t left;                            /* -1 = until the end of the file */
};

static void download_free(struct req *r)
{
	struct download *d = r->ctx;

	fd_close(d->fd);
	free(d);
	r->ctx = NULL;
	r->ops = NULL;
}

static void download_end(struct req *r)
{
	download_free(r);
	req_finish(r);
}

/* Straight from the file into the channel's buffer. True = go on. */
static bool download_direct(struct req *r, struct download *d)
{
	size_t want = mux_can_send(r->mux, r->stream);
	ssize_t n;
	void *p;

	if (want > READ_BYTES)
		want = READ_BYTES;
	if ((int64_t)want > d->left)
		want = (size_t)d->left;
	p = mux_send_start(r->mux, r->stream, want);
	if (!p)
		return false;
	do
		n = read(d->fd, p, want);
	while (n < 0 && errno == EINTR);
	mux_send_finish(r->mux, n > 0 ? (size_t)n : 0);
	if (n <= 0) {
		/* It became shorter, or cannot be read: the answer cannot be completed. */
		req_cut(r);
		return false;
	}
	d->left -= n;
	if (d->left > 0)
		return true;
	download_end(r);                         /* d is gone */
	return false;
}

static bool download_chunk(struct req *r, struct download *d)
{
	char p[READ_BYTES];
	ssize_t n;

	if (req_room(r) < sizeof(p))
		return false;
	do
		n = read(d->fd, p, sizeof(p));
	while (n < 0 && errno == EINTR);
	if (n > 0)
		req_put(r, p, (size_t)n);
	else if (n == 0)
		download_end(r);
	else
		req_cut(r);
	return n > 0;
}

static void download_room(struct req *r)
{
	struct download *d = r->ctx;

	if (d->left >= 0 && buf_len(&r->out))
		return;
	for (int i = 0; i < READS_IN_A_TURN; i++)
		if (!(d->left >= 0 ? download_direct(r, d) : download_chunk(r, d)))
			return;
}

static const struct req_ops download_ops = { .room = download_room, .gone = download_free };

/*
 * Content-Disposition with a quoted file name (RFC 6266); what could break the quotes or the line
 * becomes "_".
 */
static void disposition(char *dst, size_t size, const char *path)
{
	size_t n;

	str_format(dst, size - 1, "inline; filename=\"%s", path_name(path));
	n = strlen(dst);
	for (size_t i = strlen("inline; filename=\""); i < n; i++)
		if ((unsigned char)dst[i] < 0x20 || dst[i] == 0x7f || dst[i] == '"' ||
		    dst[i] == '\\')
			dst[i] = '_';
	dst[n] = '"';
	dst[n + 1] = '\0';
}

static void download_begin(struct req *r, int fd, const struct stat *st, const char *path)
{
	char name[300];
	const struct http_field fields[] = { { "Content-Disposition", name },
					     { "Vary", "Accept-Encoding" },
					     { NULL, NULL } };
	struct download *d;
	int64_t size = st->st_size;
	char first;

	/* Files of /proc say 0 and have contents. */
	if (size == 0 && pread(fd, &first, 1, 0) == 1)
		size = -1;
	disposition(name, sizeof(name), path);
	req_start(r, 200, "application/octet-stream", fields, size);
	if (size == 0) {
		fd_close(fd);
		req_finish(r);
		return;
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	d = x_alloc(sizeof(*d));
	d->fd = fd;
	d->left = size;
	r->ctx = d;
	r->ops = &download_ops;
}

void files_get(struct req *r, const char *body, size_t n)
{
	autofree char *path = NULL;
	autoclose int fd = -1;
	struct stat st = { 0 };
	struct user u;
	int err;

	if (!who_and_where(r, &u, &path))
		return;
	if (!path) {
		req_error(r, 400, "the query must have a path");
		return;
	}
	err = users_enter(&u);
	if (err == 0) {
		fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		err = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
		users_leave();
	}
	if (err == -ENOENT || err == -ENOTDIR)
		req_error(r, 404, "path '%s' does not exist", path);
	else if (err < 0)
		req_error(r, status_of(err), "path '%s' cannot be read: %s", path, strerror(-err));
	else if (S_ISDIR(st.st_mode))
		req_error(r, 400, "path '%s' is a directory", path);
	else if (!S_ISREG(st.st_mode))
		req_error(r, 400, "path '%s' is not a regular file", path);
	else
		download_begin(r, TAKE_FD(fd), &st, path);
}

/* ---- uploads ---- */

struct target {                                  /* one file */
	char *shown, *path, *tmp;                /* tmp NULL = written in place */
};

struct upload {
	struct req *r;
	struct user u;
	char *path;                              /* of the query; NULL = each part says its own */
	struct multipart *mp;                    /* NULL = the body is the file */
	struct gunzip *gz;
	struct sink sink;                        /* of the last target */
	bool skip;                               /* a part that is no file */
	struct target *targets;
	size_t n, room;
};

static void upload_free(struct req *r)
{
	struct upload *up = r->ctx;

	sink_done(&up->sink);
	for (size_t i = 0; i < up->n; i++) {
		if (up->targets[i].tmp)
			unlink(up->targets[i].tmp);
		free(up->targets[i].tmp);
		free(up->targets[i].path);
		free(up->targets[i].shown);
	}
	free(up->targets);
	free(up->path);
	multipart_free(up->mp);
	gunzip_free(up->gz);
	free(up);
	r->ctx = NULL;
	r->ops = NULL;
}

static int upload_fail(struct upload *up, int num, const char *path, const char *what)
{
	struct req *r = up->r;

	if (num == -ENOSPC || num == -EDQUOT)
		req_error(r, 507, "not enough disk space for '%s'", path);
	else
		req_error(r, num == -ENOENT ? 400 : status_of(num), "'%s' cannot be %s: %s", path,
			  what, strerror(-num));
	return num;
}

/* A link is followed to what it names, so that it is not replaced. */
static char *final_path(const char *path)
{
	struct stat st;
	char *real = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;

	return real ? real : x_strdup(path);
}

/* As the user. An fd, or a negative errno. */
static int target_open(struct target *t)
{
	struct stat st;
	char random[17];
	const char *name;
	mode_t mode = FILE_MODE;
	int fd, r;

	t->path = final_path(t->shown);
	if (stat(t->path, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return -EISDIR;
		if (!S_ISREG(st.st_mode)) {
			fd = open(t->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
			return fd < 0 ? -errno : fd;
		}
		mode = st.st_mode & 07777;
	} else if ((r = path_make_parents(t->path, DIR_MODE)) < 0) {
		return r;
	}
	name = path_name(t->path);
	str_random_hex(random, 8);
	t->tmp = x_asprintf("%.*s.space-upload-%s", (int)(name - t->path), t->path, random);
	fd = open(t->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0) {
		fchmod(fd, mode);
		return fd;
	}
	r = -errno;
	free(TAKE(t->tmp));
	if (r != -EACCES && r != -EPERM)
		return r;
	fd = open(t->path, O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
	return fd < 0 ? r : fd;
}

/* X-Metadata-KEY fields become the attributes user.e2b.KEY. */
static int put_metadata(struct req *r, int fd)
{
	size_t total = 0;

	for (unsigned i = 0; i < r->head.n_fields; i++) {
		const struct http_field *f = &r->head.fields[i];
		const char *key = f->name + strlen(METADATA_PREFIX);
		char attr[sizeof(METADATA_XATTR) + FILES_METADATA_KEY_MAX];

		if (strncasecmp(f->name, METADATA_PREFIX, strlen(METADATA_PREFIX)) != 0)
			continue;
		total += strlen(key) + strlen(f->value);
		if (!*key || total > FILES_METADATA_MAX ||
		    str_format(attr, sizeof(attr), METADATA_XATTR "%s", key) < 0)
			return -EINVAL;
		for (char *c = attr; *c; c++)
			if (*c >= 'A' && *c <= 'Z')
				*c += 'a' - 'A';
		if (fsetxattr(fd, attr, f->value, strlen(f->value), 0) < 0)
			return -errno;
	}
	return 0;
}

static int target_begin(struct upload *up, const char *path)
{
	struct target *t;
	int r;

	if (up->n == FILES_PARTS_MAX) {
		req_error(up->r, 400, "there are more than %d files", FILES_PARTS_MAX);
		return -E2BIG;
	}
	if (up->n == up->room) {
		up->room = up->room ? up->room * 2 : 4;
		up->targets = x_realloc(up->targets, up->room * sizeof(*up->targets));
	}
	t = &up->targets[up->n++];
	*t = (struct target){ .shown = x_strdup(path) };
	r = users_enter(&up->u);
	if (r == 0) {
		r = target_open(t);
		if (r >= 0) {
			sink_open(&up->sink, r, t->tmp);
			r = put_metadata(up->r, r);
		}
		users_leave();
	}
	return r < 0 ? upload_fail(up, r, path, "written") : 0;
}

static int target_data(void *arg, const char *p, size_t n)
{
	struct upload *up = arg;
	int r = up->skip ? 0 : sink_write(&up->sink, p, n);

	return r < 0 ? upload_fail(up, r, up->targets[up->n - 1].shown, "written") : 0;
}

static int target_end(void *arg)
{
	struct upload *up = arg;
	int r = up->skip ? 0 : sink_end(&up->sink);

	up->skip = false;
	return r < 0 ? upload_fail(up, r, up->targets[up->n - 1].shown, "written") : 0;
}

static int part_begin(void *arg, const char *name, const char *filename)
{
	struct upload *up = arg;
	autofree char *path = NULL;
	struct err e = { 0 };

	up->skip = !str_eq(name, "file");
	if (up->skip)
		return 0;
	if (up->path) {
		if (up->n) {
			req_error(up->r, 400,
				  "with a path in the query there can be one file only");
			return -EINVAL;
		}
		return target_begin(up, up->path);
	}
	if (!filename || !*filename) {
		req_error(up->r, 400, "a part has no file name, and the query no path");
		return -EINVAL;
	}
	if (path_resolve(up->r->a, &up->u, filename, &path, &e) < 0) {
		req_error(up->r, 400, "%s", e.text);
		return -EINVAL;
	}
	return target_begin(up, path);
}

static const struct multipart_ops part_ops = { part_begin, target_data, target_end };

static int feed_plain(void *arg, const char *p, size_t n)
{
	struct upload *up = arg;

	return up->mp ? multipart_feed(up->mp, p, n) : target_data(up, p, n);
}

static int upload_body(struct req *r, const char *p, size_t n)
{
	struct upload *up = r->ctx;
	int ret = up->gz ? gunzip_feed(up->gz, p, n, feed_plain, up) : feed_plain(up, p, n);

	if (ret < 0 && !r->answered)
		req_error(r, 400,
			  up->gz && !up->mp ? "the body is no gzip data" : "the body is malformed");
	if (ret < 0)
		upload_free(r);
	return ret;
}

static void put_results(struct upload *up)
{
	struct buf b;

	buf_init(&b, RESULTS_MAX);
	buf_puts(&b, "[");
	for (size_t i = 0; i < up->n; i++) {
		buf_puts(&b, i ? ",{" : "{");
		text_member(&b, "name", path_name(up->targets[i].shown));
		buf_puts(&b, ",");
		text_member(&b, "path", up->targets[i].shown);
		buf_puts(&b, ",\"type\":\"file\"}");
	}
	buf_puts(&b, "]");
	req_answer_buf(up->r, 200, "application/json", &b);
}

static void upload_end(struct req *r)
{
	struct upload *up = r->ctx;
	int ret;

	if ((up->gz && !gunzip_complete(up->gz)) || (up->mp && !multipart_complete(up->mp))) {
		req_error(r, 400, "the body was cut short");
	} else if (up->n == 0) {
		req_error(r, 400, "there is no part named 'file'");
	} else {
		ret = sink_end(&up->sink);
		if (ret == 0)
			ret = users_enter(&up->u);
		for (size_t i = 0; ret == 0 && i < up->n; i++) {
			struct target *t = &up->targets[i];

			if (t->tmp && rename(t->tmp, t->path) < 0)
				ret = upload_fail(up, -errno, t->shown, "written");
			else
				free(TAKE(t->tmp));
		}
		users_leave();
		if (ret == 0)
			put_results(up);
		else if (!r->answered)
			upload_fail(up, ret, up->targets[0].shown, "written");
	}
	upload_free(r);
}

static const struct req_ops upload_ops = { .body = upload_body,
					   .body_end = upload_end,
					   .gone = upload_free };

void files_post(struct req *r)
{
	const char *type = http_get(&r->head, "Content-Type"),
		   *encoding = http_get(&r->head, "Content-Encoding");
	struct upload *up = x_alloc(sizeof(*up));

	up->r = r;
	sink_init(&up->sink, &r->a->stages);
	r->ctx = up;
	r->ops = &upload_ops;
	if (!who_and_where(r, &up->u, &up->path)) {
		upload_free(r);
		return;
	}
	if (encoding && str_ieq(encoding, "gzip"))
		up->gz = gunzip_new();
	if (encoding && !up->gz && !str_ieq(encoding, "identity"))
		req_error(r, 415, "the content encoding must be gzip or identity");
	else if (type && strncasecmp(type, "multipart/form-data", 19) == 0) {
		up->mp = multipart_new(type, &part_ops, up);
		if (!up->mp)
			req_error(r, 400, "the content type has no usable boundary");
	} else if (!type || strncasecmp(type, "application/octet-stream", 24) != 0) {
		req_error(
			r, 415,
			"the content type must be multipart/form-data or application/octet-stream");
	} else if (!up->path) {
		req_error(r, 400, "the query must have a path");
	} else {
		target_begin(up, up->path);
	}
	if (r->answered)
		upload_free(r);
}
