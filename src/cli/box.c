/*
 * One sandbox as the command line sees it: found by a part of its ID; its token; streams of its
 * process service.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"
#include "identity/identity.h"

#define STREAM_IN_MAX (1024 * 1024)
#define STREAM_MESSAGE_MAX (512 * 1024)
#define STREAM_READ_MAX (256 * 1024)
#define ENVELOPE_END 0x02
#define ANSWER_ERROR_MAX 8192
#define ANSWER_ERROR_MS 5000

/* What of the list fits: the whole name (metadata "name") before the beginning of an ID. */
static size_t pick(json_t *list, const char *name, bool by_name, char id[64])
{
	json_t *v;
	size_t i, found = 0;

	json_array_foreach(list, i, v) {
		const char *s = json_string_value(json_object_get(v, "id"));
		const char *called = json_string_value(
			json_object_get(json_object_get(v, "metadata"), "name"));

		if (!s || !(by_name ? str_eq(called, name) : str_starts(s, name)))
			continue;
		if (found++ == 0)
			(void)str_copy(id, 64, s);
	}
	return found;
}

int box_id(struct cli *c, const char *name, char id[64], struct err *e)
{
	json_t *list;
	size_t found;
	bool by_name;
	int r = creds_load(c, e);

	if (r < 0)
		return r;
	if (!*name || strlen(name) > CLI_NAME_MAX)
		return err_set(e, -EINVAL, "\"%.*s\" is not the ID of a sandbox", CLI_NAME_MAX,
			       name);
	if (id_sandbox_ok(name))
		return str_copy(id, 64, name);
	r = api_list(c, &list, e);
	if (r < 0)
		return r;
	found = pick(list, name, true, id);
	by_name = found > 0;
	if (!found)
		found = pick(list, name, false, id);
	json_decref(list);
	if (!found)
		return err_set_code(e, -ENOENT, "sandbox-not-found",
				    "there is no sandbox \"%s\"; `space ls --all` lists yours",
				    name);
	if (found > 1)
		return err_set_code(e, -EINVAL, "ambiguous",
				    by_name ? "\"%s\" is the name of %zu sandboxes; give an ID"
					    : "\"%s\" fits %zu sandboxes; give more of the ID",
				    name, found);
	return 0;
}

int box_find(struct cli *c, const char *name, struct box *ret, struct err *e)
{
	const char *token, *template;
	char target[96];
	json_t *v;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = box_id(c, name, ret->id, e);
	if (r < 0)
		return r;
	(void)str_format(target, sizeof(target), "/sandboxes/%s", ret->id);
	r = api_call(c, "GET", target, NULL, &v, e);
	if (r == -ENOENT)
		return err_set_code(e, r, "sandbox-not-found",
				    "there is no sandbox %s; `space ls --all` lists yours",
				    ret->id);
	if (r < 0)
		return r;
	token = json_string_value(json_object_get(v, "envdAccessToken"));
	template = json_string_value(json_object_get(v, "templateID"));
	(void)str_copy(ret->token, sizeof(ret->token), token ? token : "");
	(void)str_copy(ret->template, sizeof(ret->template), template ? template : "");
	json_decref(v);
	return 0;
}

void box_fields(const struct box *b, struct http_field fields[8], const char *content_type,
		const char *user_auth)
{
	int n = 0;

	fields[n++] = (struct http_field){ "E2b-Sandbox-Id", b->id };
	fields[n++] = (struct http_field){ "E2b-Sandbox-Port", "49983" };
	fields[n++] = (struct http_field){ "X-Access-Token", b->token };
	if (content_type)
		fields[n++] = (struct http_field){ "Content-Type", content_type };
	if (content_type && str_starts(content_type, "application/connect"))
		fields[n++] = (struct http_field){ "Connect-Protocol-Version", "1" };
	if (user_auth)
		fields[n++] = (struct http_field){ "Authorization", user_auth };
	fields[n] = (struct http_field){ NULL, NULL };
}

int box_user(const char *user, char *dst, size_t n, struct err *e)
{
	char plain[70], b64[STR_B64_LEN(sizeof(plain)) + 1];

	if (str_format(plain, sizeof(plain), "%s:", user) < 0)
		return err_set(e, -EINVAL, "the user name is too long");
	str_b64(b64, plain, strlen(plain));
	return str_format(dst, n, "Basic %s", b64);
}

int box_answer_error(struct cli *c, const struct http_head *head, struct buf *rest, int fd,
		     struct err *e)
{
	struct http_dec dec;
	struct buf body;
	int r = 0;

	buf_init(&body, ANSWER_ERROR_MAX);
	http_dec_init(&dec, head, ANSWER_ERROR_MAX);
	while (r == 0) {
		enum http_error he;
		const char *data;
		size_t used, len;

		r = http_dec_feed(&dec, buf_data(rest), buf_len(rest), &used, &data, &len, &he);
		if (r < 0)
			break;
		buf_put(&body, data, len);
		buf_consume(rest, used);
		if (r || buf_len(rest))
			continue;
		ssize_t n = buf_read_fd(rest, fd, ANSWER_ERROR_MAX);
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (n == -EAGAIN && poll(&p, 1, ANSWER_ERROR_MS) == 1)
			continue;
		if (n <= 0)
			break;
	}
	r = api_error(c, head->status, http_get(head, "X-Request-Id"), buf_data(&body),
		      buf_len(&body), e);
	buf_done(&body);
	if (head->status == 502)
		return err_set_code(e, -ENOTCONN, "sandbox-not-running", "%s", BOX_NOT_RUNNING);
	if (head->status == 401)
		return err_set_code(e, -EACCES, "unauthorized",
				    "the sandbox refused the access token or the user");
	return r;
}

static int stream_check(struct cli *c, struct stream *s, struct err *e)
{
	http_dec_init(&s->dec, &s->head, UINT64_MAX);
	fd_set_nonblock(s->fd, true);
	return s->head.status == 200 ? 0 : box_answer_error(c, &s->head, &s->rest, s->fd, e);
}

int stream_open(struct cli *c, const struct box *b, const char *target, json_t *request,
		const char *user, struct stream *ret, struct err *e)
{
	autofree char *text = json_dumps(request, JSON_COMPACT);
	size_t n = strlen(text);
	autofree unsigned char *body = x_alloc(n + 5);
	char auth[128];
	struct http_field fields[8];
	struct http_call hc = { .dial = cli_dial,
				.dial_arg = c,
				.method = "POST",
				.target = target,
				.host = c->host,
				.fields = fields,
				.body = body,
				.body_len = n + 5,
				.timeout_ms = CLI_TIMEOUT_MS };
	int r;

	if (user && (r = box_user(user, auth, sizeof(auth), e)) < 0)
		return r;
	box_fields(b, fields, "application/connect+json", user ? auth : NULL);
	for (int i = 0; i < 4; i++)
		body[1 + i] = (unsigned char)(n >> (24 - 8 * i));
	memcpy(body + 5, text, n);
	memset(ret, 0, sizeof(*ret));
	buf_init(&ret->rest, STREAM_IN_MAX);
	buf_init(&ret->body, STREAM_IN_MAX);
	ret->fd = -1;
	r = http_call_open(&hc, false, &ret->fd, &ret->head, &ret->rest, e);
	if (r >= 0)
		r = stream_check(c, ret, e);
	if (r < 0)
		stream_close(ret);
	return r;
}

int stream_answer(struct cli *c, struct stream *s, int timeout_ms, struct err *e)
{
	int r;

	buf_init(&s->rest, STREAM_IN_MAX);
	buf_init(&s->body, STREAM_IN_MAX);
	r = http_call_answer(s->fd, "POST", timeout_ms, &s->head, &s->rest, e);
	return r < 0 ? r : stream_check(c, s, e);
}

void stream_close(struct stream *s)
{
	fd_close(s->fd);
	s->fd = -1;
	http_head_done(&s->head);
	buf_done(&s->rest);
	buf_done(&s->body);
}

static size_t envelope_len(const struct buf *b)
{
	const unsigned char *p = (const unsigned char *)buf_data(b);

	return ((size_t)p[1] << 24) | ((size_t)p[2] << 16) | ((size_t)p[3] << 8) | p[4];
}

static bool has_message(const struct stream *s)
{
	return buf_len(&s->body) >= 5 && buf_len(&s->body) - 5 >= envelope_len(&s->body);
}

bool stream_has_more(const struct stream *s)
{
	return has_message(s) || (buf_len(&s->rest) && !s->whole);
}

static int end_of_stream(json_t *v, struct err *e)
{
	json_t *error = json_object_get(v, "error");
	const char *code = json_string_value(json_object_get(error, "code"));
	const char *message = json_string_value(json_object_get(error, "message"));
	int r = 0;

	if (error)
		r = err_set_code(e, -EREMOTEIO, code ? code : "", "%s",
				 message ? message : "the stream ended with an error");
	json_decref(v);
	return r;
}

static int decode_some(struct stream *s, struct err *e)
{
	while (buf_len(&s->rest) && !s->whole && buf_len(&s->body) < STREAM_MESSAGE_MAX) {
		enum http_error he;
		const char *data;
		size_t used, n;
		int r = http_dec_feed(&s->dec, buf_data(&s->rest), buf_len(&s->rest), &used, &data,
				      &n, &he);

		if (r < 0)
			return err_set(e, r, "the answer is malformed: %s", http_error_text(he));
		if (n && buf_put(&s->body, data, n) < 0)
			return err_set(e, -EMSGSIZE, "a message of the stream is too large");
		buf_consume(&s->rest, used);
		s->whole = r == 1;
		if (!used && !n)
			break;
	}
	return 0;
}

static int take_message(struct stream *s, json_t **ret, struct err *e)
{
	size_t len = envelope_len(&s->body);
	bool end = buf_data(&s->body)[0] & ENVELOPE_END;
	json_error_t je;
	json_t *v = json_loadb(buf_data(&s->body) + 5, len, 0, &je);

	buf_consume(&s->body, len + 5);
	if (!v)
		return err_set(e, -EBADMSG, "a message of the stream is not JSON: %s", je.text);
	if (end)
		return end_of_stream(v, e);
	*ret = v;
	return 1;
}

int stream_next(struct stream *s, json_t **ret, struct err *e)
{
	for (;;) {
		int r = decode_some(s, e);
		ssize_t n;

		if (r < 0)
			return r;
		if (has_message(s))
			return take_message(s, ret, e);
		if (buf_len(&s->body) >= 5 && envelope_len(&s->body) > STREAM_MESSAGE_MAX - 5)
			return err_set(e, -EMSGSIZE, "a message of the stream is too large");
		n = s->whole ? 0 : buf_read_fd(&s->rest, s->fd, STREAM_READ_MAX);
		if (n == -EAGAIN)
			return -EAGAIN;
		if (n == -EINTR)
			continue;
		if (n < 0 && n != -ECONNRESET)
			return err_errno(e, (int)n, "the connection to the sandbox broke");
		if (n <= 0)
			return err_set_code(
				e, -ECONNRESET, "stream-cut",
				"the stream was cut: the sandbox was paused, stopped, replaced or deleted");
	}
}
