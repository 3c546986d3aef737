/* "SANDBOX:PATH" -> the two parts; false for a local path. */
static bool split_remote(const char *s, char name[64], const char **ret_path)
{
	const char *colon = strchr(s, ':');

	if (!colon || colon == s || memchr(s, '/', (size_t)(colon - s)) || colon - s > 40)
		return false;
	memcpy(name, s, (size_t)(colon - s));
	name[colon - s] = '\0';
	*ret_path = colon + 1;
	return true;
}

static char *files_target(const char *path)
{
	struct buf b;

	buf_init(&b, 16384);
	buf_puts(&b, "/files?path=");
	for (const unsigned char *p = (const unsigned char *)path; *p; p++)
		buf_putf(
			&b,
			strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-~",
			       *p)
				? "%c"
				: "%%%02X",
			*p);
	return buf_take_str(&b);
}

/*
 * The message of an error answer, whose body is read to its end (the connection stays open behind
 * it).
 */
static int answer_failed(const struct http_head *head, struct buf *rest, int fd, struct err *e)
{
	struct http_dec dec;
	struct buf body;
	json_error_t je;
	int r = 0;

	buf_init(&body, CP_ERROR_MAX);
	http_dec_init(&dec, head, CP_ERROR_MAX);
	while (r == 0) {
		enum http_error he;
		const char *data;
		size_t used, len;

		r = http_dec_feed(&dec, buf_data(rest), buf_len(rest), &used, &data, &len, &he);
		if (r < 0)
			break;
		buf_put(&body, data, len);
		buf_consume(rest, used);
		if (r == 0 && !buf_len(rest) && buf_read_fd(rest, fd, CP_ERROR_MAX) <= 0)
			break;
	}
	json_t *v = json_loadb(buf_data(&body), buf_len(&body), 0, &je);
	const char *m = json_string_value(json_object_get(v, "message"));
	r = err_set(e, head->status == 404 ? -ENOENT : -EREMOTEIO, "%s",
		    m ? m : http_reason(head->status));
	json_decref(v);
	buf_done(&body);
	return r;
}

static int download_body(int fd, struct http_head *head, struct buf *rest, int out, struct err *e)
{
	struct http_dec dec;

	http_dec_init(&dec, head, UINT64_MAX);
	for (;;) {
		enum http_error he;
		const char *data;
		size_t used, len;
		int r = buf_len(rest) || head->body == HTTP_BODY_NONE ||
					(head->body == HTTP_BODY_LENGTH && !head->length)
				? http_dec_feed(&dec, buf_data(rest), buf_len(rest), &used, &data,
						&len, &he)
				: 2;

		if (r == 2) {
			ssize_t n = buf_read_fd(rest, fd, CP_CHUNK);

			if (n < 0 && n != -EAGAIN && n != -EINTR)
				return err_errno(e, (int)n, "the connection broke");
			if (n == 0)
				return http_dec_eof(&dec) == 0
					       ? 0
					       : err_set(e, -ECONNRESET, "the file was cut short");
			continue;
		}
		if (r < 0)
			return err_set(e, r, "the answer is malformed: %s", http_error_text(he));
		int w = fd_write_all(out, data, len, CP_TIMEOUT_MS);
		if (w < 0)
			return err_errno(e, w, "cannot write");
		buf_consume(rest, used);
		if (r == 1)
			return 0;
	}
}

static int open_files(struct cli *c, const struct box *b, const char *method, const char *path,
		      bool chunked, int *ret_fd, struct http_head *head, struct buf *rest,
		      struct err *e)
{
	autofree char *target = files_target(path);
	struct http_field fields[8];
	struct http_call hc = { .addr = c->addr,
				.method = method,
				.target = target,
				.host = c->host,
				.fields = fields,
				.timeout_ms = CP_TIMEOUT_MS };

	box_fields(b, fields, chunked ? "application/octet-stream" : NULL, NULL);
	return http_call_open(&hc, chunked, ret_fd, head, rest, e);
}

static int download(struct cli *c, const struct box *b, const char *path, const char *to,
		    struct err *e)
{
	struct http_head head = { 0 };
	struct buf rest;
	autoclose int fd = -1;
	autofree char *temp = str_eq(to, "-") ? NULL : x_asprintf("%s.space-%d", to, (int)getpid());
	autoclose int out = -1;
	int r;

	buf_init(&rest, CP_CHUNK);
	r = open_files(c, b, "GET", path, false, &fd, &head, &rest, e);
	if (r >= 0 && head.status != 200)
		r = answer_failed(&head, &rest, fd, e);
	if (r >= 0) {
		out = temp ? open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)
			   : dup(STDOUT_FILENO);
		r = out < 0 ? err_errno(e, -errno, "%s", temp ? temp : "standard output")
			    : download_body(fd, &head, &rest, out, e);
	}
	if (r >= 0 && temp && rename(temp, to) < 0)
		r = err_errno(e, -errno, "%s", to);
	if (r < 0 && temp && out >= 0)
		unlink(temp);
	http_head_done(&head);
	buf_done(&rest);
	return r;
}

static int upload_body(int in, int fd, struct err *e)
{
	autofree char *chunk = x_alloc(CP_CHUNK);
	struct buf frame;
	ssize_t n;
	int r = 0;

	buf_init(&frame, CP_CHUNK + 64);
	while (r >= 0 && (n = read(in, chunk, CP_CHUNK)) != 0) {
		if (n < 0) {
			r = errno == EINTR ? 0 : err_errno(e, -errno, "cannot read the file");
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

static int upload(struct cli *c, const struct box *b, const char *from, const char *path,
		  struct err *e)
{
	autoclose int in = str_eq(from, "-") ? dup(STDIN_FILENO) : open(from, O_RDONLY | O_CLOEXEC);
	struct http_head head = { 0 };
	struct stat st;
	struct buf rest;
	autoclose int fd = -1;
	int r;

	if (in < 0)
		return err_errno(e, -errno, "%s", from);
	if (!fstat(in, &st) && S_ISDIR(st.st_mode))
		return err_set(e, -EISDIR,
			       "%s is a folder; copy its files one by one or as a tar stream",
			       from);
	buf_init(&rest, CP_CHUNK);
	r = open_files(c, b, "POST", path, true, &fd, &head, &rest, e);
	if (r >= 0)
		r = upload_body(in, fd, e);
	if (r >= 0)
		r = http_call_answer(fd, "POST", CP_TIMEOUT_MS, &head, &rest, e);
	if (r >= 0 && head.status != 200)
		r = answer_failed(&head, &rest, fd, e);
	http_head_done(&head);
	buf_done(&rest);
	return r;
}

int cmd_cp(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1), r;
	const char *path_a, *path_b;
	char name_a[64], name_b[64];
	struct err e = { 0 };
	struct box b;

	PARSED(n);
	if (n != 2)
		return cli_usage_error(c, "it needs a source and a destination");
	bool from = split_remote(argv[1], name_a, &path_a),
	     to = split_remote(argv[2], name_b, &path_b);
	if (from == to)
		return cli_usage_error(
			c, "exactly one of source and destination must be SANDBOX:PATH");
	r = box_find(c, from ? name_a : name_b, &b, &e);
	if (r >= 0)
		r = from ? download(c, &b, path_a, argv[2], &e)
			 : upload(c, &b, argv[1], path_b, &e);
	return r < 0 ? cli_fail(c, &e) : 0;
}
