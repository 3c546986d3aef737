#include "spaced-guest/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/entry.h"
#include "spaced-guest/gunzip.h"
#include "spaced-guest/multipart.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/sink.h"
#include "spaced-guest/target.h"
#include "spaced-guest/text.h"

#define RESULTS_MAX (16 << 20)

/* Errors of the file system as HTTP; anything else is 400. */
static const struct { int num, status; } statuses[] = {
	{ -ENOENT, 404 }, { -EACCES, 403 }, { -EPERM, 403 },  { -EROFS, 403 }, { -ENOSPC, 507 },
	{ -EDQUOT, 507 }, { -EMFILE, 503 }, { -ENFILE, 503 }, { -EIO, 500 },
};

int files_status(int num)
{
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		if (statuses[i].num == num)
			return statuses[i].status;
	return 400;
}

bool files_who_and_where(struct req *r, struct user *u, char **ret_path)
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

int files_open(const char *path, int flags, struct stat *ret_st)
{
	autoclose int fd = open(path, O_PATH | O_CLOEXEC);
	char link[32];
	int r;

	if (fd < 0 || fstat(fd, ret_st) < 0)
		return -errno;
	if (!S_ISREG(ret_st->st_mode) && !(S_ISCHR(ret_st->st_mode) && flags == O_WRONLY))
		return FILES_NOT_A_FILE;
	str_format(link, sizeof(link), "/proc/self/fd/%d", fd);
	r = open(link, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	return r < 0 ? -errno : r;
}

/* ---- uploads ---- */

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
	for (size_t i = 0; i < up->n; i++)
		target_done(&up->targets[i]);
	free(up->targets);
	free(up->path);
	multipart_free(up->mp);
	gunzip_free(up->gz);
	free(up);
	r->ctx = NULL;
	r->ops = NULL;
}

static int upload_fail(struct upload *up, int num, const char *path)
{
	struct req *r = up->r;

	if (num == -ENOSPC || num == -EDQUOT)
		req_error(r, 507, "not enough disk space for '%s'", path);
	else if (num == FILES_NOT_A_FILE)
		req_error(r, 400, "'%s' is not a regular file", path);
	else
		req_error(r, num == -ENOENT ? 400 : files_status(num),
			  "'%s' cannot be written: %s", path, strerror(-num));
	return num;
}

static int target_begin(struct upload *up, const char *path)
{
	struct target *t;
	int r, meta = 0;

	if (up->n == FILES_PARTS_MAX) {
		req_error(up->r, 400, "there are more than %d files", FILES_PARTS_MAX);
		return -E2BIG;
	}
	if (up->n == up->room) {
		up->room = up->room ? up->room * 2 : 4;
		up->targets = x_realloc(up->targets, up->room * sizeof(*up->targets));
	}
	t = &up->targets[up->n++];
	*t = (struct target){ 0 };
	r = users_enter(&up->u);
	if (r == 0) {
		r = target_open(t, path);
		if (r >= 0) {
			sink_open(&up->sink, r, t->tmp);
			meta = metadata_put(&up->r->head, r);
		}
	}
	users_leave();
	if (r < 0)
		return upload_fail(up, r, path);
	if (meta == -ENOSPC)
		return upload_fail(up, meta, path);
	if (meta < 0)
		req_error(up->r, 400, "the metadata cannot be kept with '%s': %s", path,
			  meta == -E2BIG ? "it is too long for this file system"
					 : strerror(-meta));
	return meta;
}

static int target_data(void *arg, const char *p, size_t n)
{
	struct upload *up = arg;
	int r = up->skip ? 0 : sink_write(&up->sink, p, n);

	return r < 0 ? upload_fail(up, r, up->targets[up->n - 1].shown) : 0;
}

static int target_end(void *arg)
{
	struct upload *up = arg;
	int r = up->skip ? 0 : sink_end(&up->sink);

	up->skip = false;
	return r < 0 ? upload_fail(up, r, up->targets[up->n - 1].shown) : 0;
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
	users_enter(&up->u);
	for (size_t i = 0; i < up->n; i++) {
		buf_puts(&b, i ? ",{" : "{");
		text_member(&b, "name", path_name(up->targets[i].shown));
		buf_puts(&b, ",");
		text_member(&b, "path", up->targets[i].shown);
		buf_puts(&b, ",\"type\":\"file\"");
		entry_put_metadata(&b, up->targets[i].path, ",\"metadata\":");
		buf_puts(&b, "}");
	}
	users_leave();
	buf_puts(&b, "]");
	req_answer_buf(up->r, 200, "application/json", &b);
}

/* The whole body was there. */
static void upload_commit(struct upload *up)
{
	const char *path = up->targets[0].shown;
	int ret = sink_end(&up->sink);

	if (ret == 0)
		ret = users_enter(&up->u);
	for (size_t i = 0; ret == 0 && i < up->n; i++) {
		path = up->targets[i].shown;
		ret = target_commit(&up->targets[i]);
	}
	users_leave();
	if (ret == 0)
		put_results(up);
	else
		upload_fail(up, ret, path);
}

static void upload_end(struct req *r)
{
	struct upload *up = r->ctx;

	if ((up->gz && !gunzip_complete(up->gz)) || (up->mp && !multipart_complete(up->mp)))
		req_error(r, 400, "the body was cut short");
	else if (up->n == 0)
		req_error(r, 400, "there is no part named 'file'");
	else
		upload_commit(up);
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
	if (!files_who_and_where(r, &up->u, &up->path)) {
		upload_free(r);
		return;
	}
	if (encoding && str_ieq(encoding, "gzip"))
		up->gz = gunzip_new();
	if (encoding && !up->gz && !str_ieq(encoding, "identity"))
		req_error(r, 415, "the content encoding must be gzip or identity");
	else if (metadata_check(&r->head) < 0)
		req_error(r, 400,
			  "metadata must be printable ASCII, a key of at most %d bytes, and %d "
			  "bytes in all",
			  ENTRY_KEY_MAX, ENTRY_METADATA_MAX);
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

void files_compose(struct req *r, const char *body, size_t n)
{
	req_error(r, 501,
		  "composing files is not available in this version; upload the whole file");
}
