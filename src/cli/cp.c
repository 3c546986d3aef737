/* space cp: what is copied where; single files, which go over /files; progress; scripts. */
#include "cli/cp.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define CP_CHUNK (256 * 1024)
#define CP_PROGRESS_AFTER_MS 1000
#define CP_PROGRESS_EVERY_MS 200
#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"

/* ---- paths ---- */

char *cp_join(const char *dir, const char *name)
{
	return x_asprintf("%s%s%s", dir, *dir && !str_ends(dir, "/") ? "/" : "", name);
}

/* "dir/." */
static bool cp_contents_only(const char *path)
{
	return str_eq(path, ".") || str_ends(path, "/.");
}

/* The name that a copy of this gets inside of a folder; "" for "/", "." and "..". Caller frees. */
static char *cp_base_name(const char *path)
{
	size_t n = strlen(path), start;

	while (n && path[n - 1] == '/')
		n--;
	for (start = n; start && path[start - 1] != '/';)
		start--;
	n -= start;
	path += start;
	if ((n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.'))
		n = 0;
	return x_strndup(path, n);
}

char *cp_octal(const char *path)
{
	struct buf b;

	buf_init(&b, 4 * strlen(path) + 16);
	if (path[0] == '~' && (path[1] == '/' || !path[1]))
		path += path[1] ? 2 : 1;         /* commands begin at home */
	if (path[0] != '/')
		buf_puts(&b, "./");              /* never like an option */
	for (const unsigned char *p = (const unsigned char *)path; *p; p++)
		buf_putf(&b, strchr(PLAIN, *p) ? "%c" : "\\0%03o", *p);
	return buf_take_str(&b);
}

/* "SANDBOX:PATH" -> the two parts; false for a local path. */
static bool split_remote(const char *s, char name[CLI_NAME_MAX + 1], const char **ret_path)
{
	const char *colon = strchr(s, ':');

	if (!colon || colon == s || s[0] == '.' || memchr(s, '/', (size_t)(colon - s)) ||
	    colon - s > CLI_NAME_MAX)
		return false;
	memcpy(name, s, (size_t)(colon - s));
	name[colon - s] = '\0';
	*ret_path = colon[1] ? colon + 1 : ".";
	return true;
}

/* ---- what is said meanwhile ---- */

void cp_failed(struct cp *p, const char *path, const char *fmt, ...)
{
	autofree char *why = NULL, *safe = text_safe(path, strlen(path)), *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&why, fmt, ap) < 0)
		abort();
	va_end(ap);
	text = text_safe(why, strlen(why));
	if (p->failed++ >= CP_FAILURES_SHOWN)
		return;
	if (p->c->json)
		json_array_append_new(p->failures,
				      json_pack("{s:s,s:s}", "path", safe, "message", text));
	cp_progress_end(p);
	fprintf(stderr, "space cp: %s: %s\n", safe, text);
}

void cp_progress(struct cp *p, const char *name, uint64_t more_bytes)
{
	int64_t now = clock_mono_ms();
	char done[16], all[16], rate[16];

	p->bytes += more_bytes;
	if (p->c->quiet || now - p->start_ms < CP_PROGRESS_AFTER_MS ||
	    now - p->shown_ms < CP_PROGRESS_EVERY_MS || !isatty(STDERR_FILENO))
		return;
	p->shown_ms = now;
	autofree char *safe = text_safe(name, strlen(name));
	text_bytes(p->bytes, done);
	text_bytes(p->size, all);
	text_bytes(p->bytes * 1000 / (uint64_t)(now - p->start_ms), rate);
	(void)str_copy(p->what, sizeof(p->what), safe);
	if (p->size)
		fprintf(stderr, "\r\033[K%s of %s, %s/s (%.0f%%)  %.40s", done, all, rate,
			100.0 * (double)p->bytes / (double)p->size, p->what);
	else
		fprintf(stderr, "\r\033[K%llu files, %s, %s/s  %.40s",
			(unsigned long long)p->files, done, rate, p->what);
	p->shown = true;
}

void cp_progress_end(struct cp *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}

/* ---- what is there ---- */

/* Any bytes in a path: a script says what is there. */
static int kind_by_script(struct cp *p, const char *path, enum cp_kind *ret, struct err *e)
{
	autofree char *octal = cp_octal(path);
	char *const argv[] = { (char *)"/bin/sh", (char *)"-c",
			       (char *)CP_SCRIPT_HEAD "[ -d \"$p\" ] && exit 10; "
						      "[ -e \"$p\" ] && exit 11; exit 12",
			       (char *)"sh", octal, NULL };
	struct cp_remote remote = { .p = p };
	struct run_spec spec = { .argv = argv,
				 .argc = 5,
				 .user = p->user,
				 .out = cp_remote_output,
				 .out_arg = &remote };
	int r = run_in_box(p->c, &p->b, &spec, e);

	if (r < 0)
		return r;
	*ret = r == 10 ? CP_IS_DIR : r == 11 ? CP_IS_FILE : CP_ABSENT;
	return r >= 10 && r <= 12 ? 0 : err_set(e, -EIO, "the sandbox cannot look at the path");
}

int cp_remote_kind(struct cp *p, const char *path, enum cp_kind *ret, unsigned *ret_mode,
		   struct err *e)
{
	json_t *body, *answer = NULL, *entry;
	const char *type;
	int r;

	if (ret_mode)
		*ret_mode = 0644;
	if (!str_utf8_ok(path, strlen(path)))
		return kind_by_script(p, path, ret, e);
	body = json_pack("{s:s}", "path", path);
	r = box_call_as(p->c, &p->b, p->user, "POST", "/filesystem.Filesystem/Stat", body, &answer,
			e);
	json_decref(body);
	*ret = CP_ABSENT;
	if (r == -ENOENT) {
		p->c->request_id[0] = '\0';
		*e = (struct err){ 0 };
		return 0;
	}
	if (r < 0)
		return r;
	entry = json_object_get(answer, "entry");
	type = json_string_value(json_object_get(entry, "type"));
	*ret = str_eq(type, "FILE_TYPE_DIRECTORY") ? CP_IS_DIR : CP_IS_FILE;
	if (ret_mode && json_object_get(entry, "mode"))
		*ret_mode = (unsigned)json_integer_value(json_object_get(entry, "mode"));
	json_decref(answer);
	return 0;
}

/* ---- single files ---- */

static void put_escaped(struct buf *b, const char *s)
{
	for (const unsigned char *p = (const unsigned char *)s; *p; p++)
		buf_putf(b, strchr(PLAIN "~", *p) ? "%c" : "%%%02X", *p);
}

static int open_files(struct cp *p, const char *method, const char *path, bool chunked,
		      int *ret_fd, struct http_head *head, struct buf *rest, struct err *e)
{
	autofree char *target = NULL;
	struct http_field fields[8];
	struct http_call hc = { .dial = cli_dial,
				.dial_arg = p->c,
				.method = method,
				.host = p->c->host,
				.fields = fields,
				.timeout_ms = CP_TIMEOUT_MS };
	struct buf b;

	buf_init(&b, 3 * strlen(path) + 512);
	buf_puts(&b, "/files?path=");
	put_escaped(&b, path);
	if (p->user) {
		buf_puts(&b, "&username=");
		put_escaped(&b, p->user);
	}
	hc.target = target = buf_take_str(&b);
	box_fields(&p->b, fields, chunked ? "application/octet-stream" : NULL, NULL);
	return http_call_open(&hc, chunked, ret_fd, head, rest, e);
}

static int download_body(struct cp *p, int fd, struct http_head *head, struct buf *rest, int out,
			 const char *name, struct err *e)
{
	struct http_dec dec;

	http_dec_init(&dec, head, UINT64_MAX);
	for (;;) {
		enum http_error he;
		const char *data;
		size_t used, len;
		int r = http_dec_feed(&dec, buf_data(rest), buf_len(rest), &used, &data, &len, &he);

		if (r < 0)
			return err_set(e, r, "the answer is malformed: %s", http_error_text(he));
		int w = fd_write_all(out, data, len, CP_TIMEOUT_MS);
		if (w < 0)
			return w == -EPIPE ? w : err_errno(e, w, "cannot write");
		cp_progress(p, name, len);
		buf_consume(rest, used);
		if (r == 1)
			return 0;
		if (buf_len(rest) && used)
			continue;
		ssize_t n = buf_read_fd(rest, fd, CP_CHUNK);
		if (n < 0 && n != -EAGAIN && n != -EINTR)
			return err_errno(e, (int)n, "the connection broke");
		if (n == 0)
			return http_dec_eof(&dec) == 0 ? 0
						       : err_set(e, -ECONNRESET,
								 "the file was cut short");
	}
}

/* The file under its temporary name goes when a signal ends us. */
static const char *pending_temp;

static void on_signal(int sig)
{
	if (pending_temp)
		unlink(pending_temp);
	signal(sig, SIG_DFL);
	raise(sig);
}

static int take_file(struct cp *p, const char *from, const char *name, int out, struct err *e)
{
	struct http_head head = { 0 };
	autoclose int fd = -1;
	struct buf rest;
	int r;

	buf_init(&rest, CP_CHUNK);
	r = open_files(p, "GET", from, false, &fd, &head, &rest, e);
	if (r >= 0 && head.status != 200)
		r = box_answer_error(p->c, &head, &rest, fd, e);
	if (r >= 0) {
		p->size = head.body == HTTP_BODY_LENGTH ? head.length : 0;
		r = download_body(p, fd, &head, &rest, out, name, e);
	}
	http_head_done(&head);
	buf_done(&rest);
	return r;
}

static int download(struct cp *p, const char *from, const char *to, unsigned mode, struct err *e)
{
	autofree char *temp = x_asprintf("%s.space-%d", to, (int)getpid());
	autoclose int out = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0777);
	int r;

	if (out < 0)
		return err_errno(e, -errno, "%s", to);
	pending_temp = temp;
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGHUP, on_signal);
	r = take_file(p, from, to, out, e);
	if (r >= 0 && rename(temp, to) < 0)
		r = err_errno(e, -errno, "%s", to);
	if (r < 0)
		unlink(temp);
	else
		p->files++;
	pending_temp = NULL;
	return r;
}

static int upload_body(struct cp *p, int fd, cp_reader *more, void *arg, struct err *e)
{
	autofree char *chunk = x_alloc(CP_CHUNK);
	struct buf frame;
	ssize_t n;
	int r = 0;

	buf_init(&frame, CP_CHUNK + 64);
	while (r >= 0 && (n = more(arg, chunk, CP_CHUNK)) != 0) {
		if (n < 0) {
			r = n == -EINTR ? 0 : err_errno(e, (int)n, "cannot read the file");
			continue;
		}
		buf_clear(&frame);
		http_put_chunk(&frame, chunk, (size_t)n);
		r = fd_write_all(fd, buf_data(&frame), buf_len(&frame), CP_TIMEOUT_MS);
		/*
		 * The other side may answer early (no space, no permission): its answer says why.
		 */
		if (r == -EPIPE || r == -ECONNRESET) {
			buf_done(&frame);
			return 0;
		}
		if (r < 0)
			err_errno(e, r, "the connection broke");
	}
	buf_clear(&frame);
	http_put_chunk(&frame, NULL, 0);
	if (r >= 0)
		(void)fd_write_all(fd, buf_data(&frame), buf_len(&frame), CP_TIMEOUT_MS);
	buf_done(&frame);
	return r;
}

int cp_upload(struct cp *p, const char *to, cp_reader *more, void *arg, struct err *e)
{
	struct http_head head = { 0 };
	struct buf rest;
	autoclose int fd = -1;
	int r;

	buf_init(&rest, CP_CHUNK);
	r = open_files(p, "POST", to, true, &fd, &head, &rest, e);
	if (r >= 0)
		r = upload_body(p, fd, more, arg, e);
	if (r >= 0)
		r = http_call_answer(fd, "POST", CP_TIMEOUT_MS, &head, &rest, e);
	if (r >= 0 && head.status != 200)
		r = box_answer_error(p->c, &head, &rest, fd, e);
	http_head_done(&head);
	buf_done(&rest);
	return r;
}

/* A new file is 0644 there; what a program may execute or nobody else may read shall stay so. */
static void upload_mode(struct cp *p, const char *path, mode_t mode)
{
	autofree char *octal = cp_octal(path);
	char text[8];
	char *const argv[] = { (char *)"/bin/sh", (char *)"-c",
			       (char *)CP_SCRIPT_HEAD "chmod \"$2\" \"$p\"", (char *)"sh", octal,
			       text, NULL };
	struct cp_remote remote = { .p = p };
	struct run_spec spec = { .argv = argv,
				 .argc = 6,
				 .user = p->user,
				 .out = cp_remote_output,
				 .out_arg = &remote };
	struct err e = { 0 };
	int r;

	(void)str_format(text, sizeof(text), "%04o", (unsigned)mode & 0777);
	r = run_in_box(p->c, &p->b, &spec, &e);
	if (r)
		cp_failed(p, path, "it was copied, but its mode was not set%s%s",
			  r < 0 ? ": " : "", r < 0 ? e.text : "");
}

struct source { struct cp *p; const char *name; int fd; };

static ssize_t source_read(void *arg, char *dst, size_t n)
{
	struct source *s = arg;
	ssize_t got = read(s->fd, dst, n);

	if (got > 0)
		cp_progress(s->p, s->name, (uint64_t)got);
	return got < 0 ? -errno : got;
}

static int upload(struct cp *p, const char *from, const char *to, bool is_new, struct err *e)
{
	autoclose int in = str_eq(from, "-") ? dup(STDIN_FILENO)
					     : open(from, O_RDONLY | O_CLOEXEC);
	struct source s = { p, from, in };
	struct stat st = { 0 };
	int r;

	if (in < 0)
		return err_errno(e, -errno, "%s", from);
	if (fstat(in, &st) == 0 && S_ISREG(st.st_mode))
		p->size = (uint64_t)st.st_size;
	r = cp_upload(p, to, source_read, &s, e);
	if (r >= 0)
		p->files++;
	if (r >= 0 && is_new && S_ISREG(st.st_mode) && (st.st_mode & 0777) != 0644)
		upload_mode(p, to, st.st_mode);
	return r;
}

/* ---- what goes where, as docker cp has it ---- */

static int refuse(struct err *e, int num, const char *path, const char *why)
{
	return err_set(e, num, "%s %s", path, why);
}

static int copy_up(struct cp *p, const char *from, const char *to, struct err *e)
{
	autofree char *base = cp_base_name(from), *inside = cp_join(to, base);
	struct stat st;
	enum cp_kind kind;
	int r;

	if (!str_eq(from, "-") && stat(from, &st) < 0)
		return err_errno(e, -errno, "%s", from);
	r = cp_remote_kind(p, to, &kind, NULL, e);
	if (r < 0)
		return r;
	if (str_eq(from, "-"))
		return kind == CP_IS_DIR ? refuse(e, -EISDIR, to, "is a folder; name a file in it")
					 : upload(p, from, to, false, e);
	if (S_ISDIR(st.st_mode)) {
		if (kind == CP_IS_FILE)
			return refuse(e, -ENOTDIR, to, "is a file; a folder cannot replace it");
		return cp_up_tree(p, from,
				  kind == CP_IS_DIR && !cp_contents_only(from) ? inside : to, e);
	}
	if (kind == CP_ABSENT && str_ends(to, "/"))
		return refuse(e, -ENOENT, to, "does not exist; make it first, or leave the / out");
	if (kind == CP_IS_DIR) {
		r = cp_remote_kind(p, inside, &kind, NULL, e);
		if (r < 0)
			return r;
		to = inside;
	}
	return upload(p, from, to, kind == CP_ABSENT, e);
}

static int copy_down(struct cp *p, const char *from, const char *to, struct err *e)
{
	autofree char *base = cp_base_name(from), *inside = cp_join(to, base);
	struct stat st;
	unsigned mode;
	enum cp_kind kind;
	bool exists = stat(to, &st) == 0, is_dir = exists && S_ISDIR(st.st_mode);
	int r = cp_remote_kind(p, from, &kind, &mode, e);

	if (r < 0)
		return r;
	if (kind == CP_ABSENT)
		return err_set_code(e, -ENOENT, "not-found", "%s does not exist in the sandbox",
				    from);
	if (str_eq(to, "-"))
		return kind == CP_IS_DIR ? cp_tree_to_stdout(p, from, e)
					 : take_file(p, from, from, STDOUT_FILENO, e);
	if (kind == CP_IS_DIR) {
		if (exists && !is_dir)
			return refuse(e, -ENOTDIR, to, "is a file; a folder cannot replace it");
		return cp_down_tree(p, from,
				    is_dir && !cp_contents_only(from) && *base ? inside : to, e);
	}
	if (!exists && str_ends(to, "/"))
		return refuse(e, -ENOENT, to, "does not exist; make it first, or leave the / out");
	return download(p, from, is_dir ? inside : to, mode, e);
}

/* ---- the command ---- */

static int finish(struct cp *p, int r, const struct err *e)
{
	cp_progress_end(p);
	if (r == -EPIPE)
		return 128 + SIGPIPE;
	if (r < 0) {
		if (p->failures)
			json_decref(p->failures);
		cli_fail(p->c, e);
		return r == -EINTR ? 128 + SIGINT : 1;
	}
	if (p->failed)
		cli_note(p->c, "space cp: %llu parts were not copied, %llu were",
			 (unsigned long long)p->failed, (unsigned long long)p->files);
	if (p->c->json) {
		json_t *v = json_pack("{s:I,s:I,s:I,s:o}", "files", (json_int_t)p->files, "bytes",
				      (json_int_t)p->bytes, "failed", (json_int_t)p->failed,
				      "failures", p->failures);

		cli_print_json(v);
		json_decref(v);
	}
	return p->failed ? 1 : 0;
}

int cmd_cp(struct cli *c, int argc, char **argv)
{
	struct cp p = { .c = c };
	const char *recursive = NULL, *path_a, *path_b;
	const struct cli_option opts[] = {
		{ "-r, -R, --recursive", NULL, "for the fingers: folders are always copied whole",
		  &recursive, false },
		{ "-u, --user", "USER", "as this user of the sandbox (default: user)", &p.user,
		  false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	char name_a[CLI_NAME_MAX + 1], name_b[CLI_NAME_MAX + 1];
	struct err e = { 0 };

	PARSED(n);
	if (n != 2)
		return cli_usage_error(c, "it needs a source and a destination");
	bool from = split_remote(argv[1], name_a, &path_a),
	     to = split_remote(argv[2], name_b, &path_b);
	if (from == to)
		return cli_usage_error(
			c, "exactly one of source and destination must be SANDBOX:PATH%s",
			from ? "" : " (a local name with a colon: ./a:b)");
	if (c->json && from && str_eq(argv[2], "-"))
		return cli_usage_error(c, "--json does not go with - as the destination");
	p.umask = umask(0);
	umask(p.umask);
	p.start_ms = clock_mono_ms();
	p.failures = c->json ? json_array() : NULL;
	r = box_find(c, from ? name_a : name_b, &p.b, &e);
	if (r >= 0)
		r = from ? copy_down(&p, path_a, argv[2], &e) : copy_up(&p, argv[1], path_b, &e);
	return finish(&p, r, &e);
}
