/*
 * GET and HEAD of /files.
 *
 * An answer is the file itself with its size (ranges and validators belong to that), or chunks
 * until the end: packed, or of a file whose size nobody knows before it was read (/proc).
 */
#include "spaced-guest/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/fstypes.h"
#include "spaced-guest/gunzip.h"
#include "spaced-guest/negotiate.h"
#include "spaced-guest/paths.h"

#define READ_BYTES MUX_PAYLOAD_MAX
#define READS_IN_A_TURN 8
#define SETTLED_S 2                              /* one tick of file times is long over then */
#define NAME_BYTES 255
#define DISPOSITION_MAX (64 + 4 * NAME_BYTES)

struct download {
	int fd;
	int64_t left;                            /* -1 = until the end of the file */
	struct gzip *gz;                         /* NULL = as it is */
};

/* What the file is and what was asked for. */
struct answer {
	int status;
	bool sized;                              /* stat tells the size of the contents */
	uint64_t size, first, last;
	enum coding coding;
	struct validator v;
	char disposition[DISPOSITION_MAX], modified[NEGOTIATE_DATE_LEN], range[64];
};

static void download_free(struct req *r)
{
	struct download *d = r->ctx;

	fd_close(d->fd);
	gzip_free(d->gz);
	free(d);
	r->ctx = NULL;
	r->ops = NULL;
}

static void download_end(struct req *r)
{
	download_free(r);
	req_finish(r);
}

static ssize_t read_some(int fd, void *p, size_t n)
{
	ssize_t k;

	do
		k = read(fd, p, n);
	while (k < 0 && errno == EINTR);
	return k;
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
	n = read_some(d->fd, p, want);
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

static int put_packed(void *arg, const char *p, size_t n)
{
	req_put(arg, p, n);
	return 0;
}

/* Until the file's end. A file of /proc that has nothing more to say now has ended, too. */
static bool download_chunk(struct req *r, struct download *d)
{
	char p[READ_BYTES];
	ssize_t n;

	if (req_room(r) < 2 * sizeof(p))
		return false;
	n = read_some(d->fd, p, sizeof(p));
	if (n < 0 && errno != EAGAIN) {
		req_cut(r);
		return false;
	}
	if (n > 0 && !d->gz)
		req_put(r, p, (size_t)n);
	else if (d->gz)
		gzip_feed(d->gz, p, n > 0 ? (size_t)n : 0, put_packed, r);
	if (n <= 0)
		download_end(r);
	return n > 0;
}

static void download_room(struct req *r)
{
	struct download *d = r->ctx;

	if (d->left >= 0 && buf_len(&r->out))
		return;
	r->again = false;
	for (int i = 0; i < READS_IN_A_TURN; i++)
		if (!(d->left >= 0 ? download_direct(r, d) : download_chunk(r, d)))
			return;
	r->again = d->gz;                        /* the packer may have kept all of it */
}

static const struct req_ops download_ops = { .room = download_room, .gone = download_free };

/*
 * Content-Disposition (RFC 6266): the plain name with "_" for what could break the quotes or the
 * line and for what is not ASCII, and, where that changed it, the exact name (RFC 8187).
 */
static void disposition(char dst[DISPOSITION_MAX], const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "!#$&+-.^_`|~";
	const char *name = path_name(path);
	char ascii[NAME_BYTES + 1], pct[3 * NAME_BYTES + 1];
	size_t len = strnlen(name, NAME_BYTES), n = 0;
	bool exact = true;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];
		bool ok = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';

		ascii[i] = ok ? (char)c : '_';
		exact &= ok;
		if (strchr(plain, c) && c)
			pct[n++] = (char)c;
		else
			n += (size_t)snprintf(pct + n, sizeof(pct) - n, "%%%02X", c);
	}
	ascii[len] = pct[n] = '\0';
	if (exact || !str_utf8_ok(name, len))
		str_format(dst, DISPOSITION_MAX, "inline; filename=\"%s\"", ascii);
	else
		str_format(dst, DISPOSITION_MAX, "inline; filename*=UTF-8''%s", pct);
}

static void look(struct answer *w, int fd, const struct stat *st, const char *path)
{
	struct statfs fs;
	bool made_up = fstatfs(fd, &fs) == 0 && fs_is_made_up(&fs);
	char first;
	bool settled = clock_wall_ms() / 1000 - st->st_mtim.tv_sec >= SETTLED_S;

	w->size = (uint64_t)st->st_size;
	w->sized = !made_up && (w->size > 0 || pread(fd, &first, 1, 0) != 1);
	w->v.mtime_s = st->st_mtim.tv_sec;
	if (w->sized)
		str_format(w->v.etag, sizeof(w->v.etag), "%s\"%llx-%llx-%llx\"",
			   settled ? "" : "W/", (unsigned long long)st->st_ino,
			   (unsigned long long)st->st_size,
			   (unsigned long long)st->st_mtim.tv_sec * 1000000000 +
				   (unsigned long long)st->st_mtim.tv_nsec);
	negotiate_date(w->modified, st->st_mtim.tv_sec);
	disposition(w->disposition, path);
}

static void decide(struct answer *w, const struct http_head *h)
{
	bool conditional = false, ranged;

	w->last = w->size ? w->size - 1 : 0;
	w->status = 200;
	if (w->sized) {
		w->status = negotiate_condition(h, &w->v, &conditional);
		if (w->status == 0)
			w->status = negotiate_range(h, &w->v, w->size, &w->first, &w->last);
	}
	ranged = http_get(h, "Range") != NULL;
	w->coding = negotiate_coding(http_get(h, "Accept-Encoding"));
	/*
	 * Ranges and validators are those of the file itself. An empty file stays one that says so.
	 */
	if (w->coding == CODING_GZIP && (conditional || ranged || (w->sized && w->size == 0)))
		w->coding = CODING_IDENTITY;
	if (w->coding == CODING_NONE && w->status == 200)
		w->status = 406;
}

/* The head of the answer. */
static void start(struct req *r, struct answer *w)
{
	struct http_field f[10];
	bool whole = w->status == 200;
	size_t n = 0;
	int64_t length = whole && !w->sized ? -1 : (int64_t)(w->last - w->first + 1);

	if (w->sized && w->size == 0)
		length = 0;
	if (whole && w->coding == CODING_GZIP)
		length = -1;
	f[n++] = (struct http_field){ "Content-Disposition", w->disposition };
	f[n++] = (struct http_field){ "Vary", "Accept-Encoding" };
	if (w->sized) {
		f[n++] = (struct http_field){ "Accept-Ranges", "bytes" };
		f[n++] = (struct http_field){ "Last-Modified", w->modified };
	}
	if (w->v.etag[0] && w->coding != CODING_GZIP)
		f[n++] = (struct http_field){ "ETag", w->v.etag };
	if (whole && w->coding == CODING_GZIP)
		f[n++] = (struct http_field){ "Content-Encoding", "gzip" };
	if (w->status == 206) {
		str_format(w->range, sizeof(w->range), "bytes %llu-%llu/%llu",
			   (unsigned long long)w->first, (unsigned long long)w->last,
			   (unsigned long long)w->size);
		f[n++] = (struct http_field){ "Content-Range", w->range };
	}
	f[n] = (struct http_field){ NULL, NULL };
	req_start(r, w->status, w->status == 304 ? NULL : "application/octet-stream", f, length);
}

static void answer_416(struct req *r, const struct answer *w)
{
	char range[48];
	const struct http_field f[] = { { "Content-Range", range }, { NULL, NULL } };
	static const char body[] =
		"{\"code\":416,\"message\":\"the range is outside of the file\"}";

	str_format(range, sizeof(range), "bytes */%llu", (unsigned long long)w->size);
	req_start(r, 416, "application/json", f, sizeof(body) - 1);
	req_put(r, body, sizeof(body) - 1);
	req_finish(r);
}

/* Takes fd. */
static void download_begin(struct req *r, int fd, struct answer *w)
{
	struct download *d;

	start(r, w);
	if (r->no_body || w->status == 304 || (w->sized && w->size == 0) ||
	    (w->first && lseek(fd, (off_t)w->first, SEEK_SET) < 0)) {
		fd_close(fd);
		req_finish(r);
		return;
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	d = x_alloc(sizeof(*d));
	d->fd = fd;
	d->left = r->chunked ? -1 : (int64_t)(w->last - w->first + 1);
	if (w->coding == CODING_GZIP && w->status == 200)
		d->gz = gzip_new();
	r->ctx = d;
	r->ops = &download_ops;
}

void files_get(struct req *r, const char *body, size_t n)
{
	autofree char *path = NULL;
	struct stat st = { 0 };
	struct answer w = { 0 };
	struct user u;
	int fd;

	if (!files_who_and_where(r, &u, &path))
		return;
	if (!path) {
		req_error(r, 400, "the query must have a path");
		return;
	}
	fd = users_enter(&u);
	if (fd == 0)
		fd = files_open(path, O_RDONLY, &st);
	users_leave();
	if (fd == -ENOENT || fd == -ENOTDIR) {
		req_error(r, 404, "path '%s' does not exist", path);
	} else if (fd < 0 && S_ISDIR(st.st_mode)) {
		req_error(r, 400, "path '%s' is a directory", path);
	} else if (fd < 0 && st.st_mode && !S_ISREG(st.st_mode)) {
		req_error(r, 400, "path '%s' is not a regular file", path);
	} else if (fd < 0) {
		req_error(r, files_status(fd), "path '%s' cannot be read: %s", path,
			  strerror(-fd));
	} else {
		look(&w, fd, &st, path);
		decide(&w, &r->head);
		if (w.status == 200 || w.status == 206 || w.status == 304) {
			download_begin(r, fd, &w);
			return;
		}
		fd_close(fd);
		if (w.status == 416)
			answer_416(r, &w);
		else if (w.status == 412)
			req_error(r, 412, "path '%s' has another state than the condition names",
				  path);
		else
			req_error(r, 406, "a file comes as it is or as gzip; Accept-Encoding "
					  "refuses both");
	}
}
