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

#define STREAM_IN_MAX (1024 * 1024)
#define STREAM_MESSAGE_MAX (512 * 1024)
#define ENVELOPE_END 0x02

static int expand_id(struct cli *c, const char *name, char id[64], struct err *e)
{
	json_t *list, *v;
	size_t i, found = 0;
	int r = api_list(c, &list, e);

	if (r < 0)
		return r;
	json_array_foreach(list, i, v) {
		const char *s = json_string_value(json_object_get(v, "id"));

		if (!s || !str_starts(s, name))
			continue;
		found++;
		if (found == 1)
			(void)str_copy(id, 64, s);
	}
	json_decref(list);
	if (!found)
		return err_set_code(e, -ENOENT, "sandbox-not-found",
				    "there is no sandbox %s; `space ls --all` lists them", name);
	if (found > 1)
		return err_set_code(e, -EINVAL, "ambiguous",
				    "%s fits %zu sandboxes; give more of the ID", name, found);
	return 0;
}

int box_find(struct cli *c, const char *name, struct box *ret, struct err *e)
{
	const char *token, *template;
	char target[96];
	json_t *v;
	int r = creds_load(c, e);

	memset(ret, 0, sizeof(*ret));
	if (r < 0)
		return r;
	if (!str_is(name, 1, 40, "abcdefghijklmnopqrstuvwxyz0123456789"))
		return err_set(e, -EINVAL, "\"%s\" is not the ID of a sandbox", name);
	if (strlen(name) == 21)
		(void)str_copy(ret->id, sizeof(ret->id), name);
	else if ((r = expand_id(c, name, ret->id, e)) < 0)
		return r;
	(void)str_format(target, sizeof(target), "/sandboxes/%s", ret->id);
	r = api_call(c, "GET", target, NULL, &v, e);
	if (r == -ENOENT)
		return err_set(e, r, "there is no sandbox %s (`space ls --all` lists yours)",
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

static int user_authorization(const char *user, char *dst, size_t n, struct err *e)
{
	char plain[70], b64[STR_B64_LEN(sizeof(plain)) + 1];

	if (str_format(plain, sizeof(plain), "%s:", user) < 0)
		return err_set(e, -EINVAL, "the user name is too long");
	str_b64(b64, plain, strlen(plain));
	return str_format(dst, n, "Basic %s", b64);
}

static int check_head(struct stream *s, struct err *e)
{
	int status = s->head.status;

	if (status == 200)
		return 0;
	stream_close(s);
	if (status == 502)
		return err_set_code(e, -ENOENT, "sandbox-not-running",
				    "the sandbox does not run; `space start` starts a stopped one");
	if (status == 401)
		return err_set_code(e, -EACCES, "unauthorized",
				    "the sandbox refused the access token");
	return err_set(e, -EREMOTEIO, "the sandbox answered %d %s", status, http_reason(status));
}

int stream_open(struct cli *c, const struct box *b, const char *target, json_t *request,
		const char *user, struct stream *ret, struct err *e)
{
	autofree char *text = json_dumps(request, JSON_COMPACT);
	size_t n = strlen(text);
	autofree unsigned char *body = x_alloc(n + 5);
	char auth[128];
	struct http_field fields[8];
	struct http_call hc = { .addr = c->addr,
				.method = "POST",
				.target = target,
				.host = c->host,
				.fields = fields,
				.body = body,
				.body_len = n + 5,
				.timeout_ms = CLI_TIMEOUT_MS };
	int r;

	if (user && (r = user_authorization(user, auth, sizeof(auth), e)) < 0)
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
	if (r < 0) {
		buf_done(&ret->rest);
		return r;
	}
	http_dec_init(&ret->dec, &ret->head, UINT64_MAX);
	return check_head(ret, e);
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

bool stream_has_message(struct stream *s)
{
	return buf_len(&s->body) >= 5 && buf_len(&s->body) - 5 >= envelope_len(&s->body);
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

static int decode_some(struct stream *s, bool *ret_done, struct err *e)
{
	while (buf_len(&s->rest) && !*ret_done && buf_len(&s->body) < STREAM_MESSAGE_MAX) {
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
		*ret_done = r == 1;
		if (!used && !n)
			break;
	}
	return 0;
}

int stream_next(struct stream *s, json_t **ret, struct err *e)
{
	bool done = false;

	for (;;) {
		int r = decode_some(s, &done, e);
		ssize_t n;

		if (r < 0)
			return r;
		if (stream_has_message(s)) {
			size_t len = envelope_len(&s->body);
			bool end = buf_data(&s->body)[0] & ENVELOPE_END;
			json_error_t je;
			json_t *v = json_loadb(buf_data(&s->body) + 5, len, 0, &je);

			buf_consume(&s->body, len + 5);
			if (!v)
				return err_set(e, -EBADMSG,
					       "a message of the stream is not JSON: %s", je.text);
			if (end)
				return end_of_stream(v, e);
			*ret = v;
			return 1;
		}
		if (buf_len(&s->body) >= 5 && envelope_len(&s->body) > STREAM_MESSAGE_MAX)
			return err_set(e, -EMSGSIZE, "a message of the stream is too large");
		n = done ? 0 : buf_read_fd(&s->rest, s->fd, 256 * 1024);
		if (n == -EAGAIN || n == -EINTR) {
			struct pollfd p = { .fd = s->fd, .events = POLLIN };

			poll(&p, 1, -1);
			continue;
		}
		if (n < 0)
			return err_errno(e, (int)n, "the connection to the sandbox broke");
		if (n == 0)
			return err_set_code(
				e, -ECONNRESET, "stream-cut",
				"the stream was cut: the sandbox was stopped, replaced or deleted");
	}
}
