/* Calls to the API: JSON in, JSON out, errors as sentences. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"

#define API_NEXT_MAX 256
#define API_PAGES_MAX 10000

/* What an error of the API means for what the caller does next; the rest is -EREMOTEIO. */
static const struct { int status, num; const char *hint; } statuses[] = {
	{ 401, -EACCES, "is the key right? `space env` shows which one is used" },
	{ 404, -ENOENT, NULL },
	{ 409, -EBUSY, NULL },
	{ 413, -E2BIG, NULL },
	{ 422, -EINVAL, NULL },
	{ 429, -EAGAIN, "try again in a moment" },
	{ 501, -ENOSYS, NULL },
	{ 502, -ENOTCONN, NULL },
	{ 503, -EAGAIN, "try again in a moment" },
	{ 504, -ETIMEDOUT, NULL },
	{ 507, -ENOSPC, NULL },
};

static const char *string_of(json_t *v, const char *name)
{
	return json_string_value(json_object_get(v, name));
}

/* The routes that advice of the API names, as a person at a terminal knows them. */
static char *with_commands(const char *text)
{
	static const struct { const char *route, *command; } rows[] = {
		{ "POST /v1/sandboxes/{id}/resume", "`space resume`" },
		{ "POST /v1/sandboxes/{id}/start", "`space start`" },
		{ "GET /v1/sandboxes/{id}/logs", "`space logs`" },
		{ "GET /v1/sandboxes/{id}", "`space inspect`" },
		{ "GET /v1/sandboxes", "`space ls`" },
	};
	char *s = x_strndup(text, ERR_TEXT_MAX), *at;       /* an err holds no more */

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		while ((at = strstr(s, rows[i].route))) {
			char *longer = x_asprintf("%.*s%s%s", (int)(at - s), s, rows[i].command,
						  at + strlen(rows[i].route));

			free(s);
			s = longer;
		}
	}
	return s;
}

/*
 * Three forms of errors: E2B's {"code": 404, "message", "error_code"}, problems (RFC 9457) with
 * "title", "detail", "code" and "request_id", and the guest's {"code": "not_found", "message"}.
 */
int api_error(struct cli *c, int status, const char *req_id, const char *body, size_t n,
	      struct err *e)
{
	json_error_t je;
	json_t *v = json_loadb(n ? body : "null", n ? n : 4, JSON_DECODE_ANY, &je);
	const char *text = string_of(v, "detail") ?: string_of(v, "message");
	const char *code = string_of(v, "error_code") ?: string_of(v, "code") ?: "";
	const char *hint = NULL;
	int num = -EREMOTEIO;

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		if (statuses[i].status != status)
			continue;
		num = statuses[i].num;
		/* A problem's detail says itself what to do. */
		hint = string_of(v, "detail") ? NULL : statuses[i].hint;
	}
	autofree char *said = with_commands(text ?: string_of(v, "title") ?: http_reason(status));

	(void)str_copy(c->request_id, sizeof(c->request_id),
		       string_of(v, "request_id") ?: req_id ?: "");
	err_set_code(e, num, status == 401 && !*code ? "unauthorized" : code, "%s%s%s%s",
		     status == 401 ? "the API refused the key: " : "", said, hint ? "; " : "",
		     hint ? hint : "");
	json_decref(v);
	return num;
}

/* ret_next (may be NULL): the token of the next page, "" = none. */
static int call(struct cli *c, const char *method, const char *target, json_t *body,
		const struct http_field *fields, json_t **ret, char ret_next[API_NEXT_MAX],
		struct err *e)
{
	autofree char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	struct http_call hc = {
		.dial = cli_dial,
		.dial_arg = c,
		.method = method,
		.target = target,
		.host = c->host,
		.fields = fields,
		.body = text,
		.body_len = text ? strlen(text) : 0,
		.timeout_ms = CLI_TIMEOUT_MS,
		.max_answer = CLI_ANSWER_MAX,
	};
	struct http_answer a;
	json_error_t je;
	int r = http_call(&hc, &a, e);

	*ret = NULL;
	if (r < 0)
		return e->code[0] ? r : err_wrap(e, "%s", c->api_url);
	if (a.head.status >= 300) {
		r = api_error(c, a.head.status, http_get(&a.head, "X-Request-Id"), a.body,
			      a.body_len, e);
	} else if (a.body_len) {
		*ret = json_loadb(a.body, a.body_len, JSON_DECODE_ANY, &je);
		if (!*ret)
			r = err_set(e, -EBADMSG, "the answer of %s is not JSON: %s", target,
				    je.text);
		else if (ret_next && str_copy(ret_next, API_NEXT_MAX,
					      http_get(&a.head, "X-Next-Token") ?: "") < 0)
			r = err_set(e, -EBADMSG, "the token of the next page is too long");
	}
	http_answer_done(&a);
	return r;
}

int api_call(struct cli *c, const char *method, const char *target, json_t *body, json_t **ret,
	     struct err *e)
{
	struct http_field fields[] = { { "X-API-Key", c->api_key },
				       { "Content-Type", "application/json" },
				       { NULL, NULL } };

	return call(c, method, target, body, fields, ret, NULL, e);
}

int api_list(struct cli *c, json_t **ret, struct err *e)
{
	struct http_field fields[] = { { "X-API-Key", c->api_key }, { NULL, NULL } };
	char target[64 + API_NEXT_MAX] = "/v1/sandboxes", next[API_NEXT_MAX] = "";
	json_t *all = json_array(), *page;
	unsigned pages = 0;
	int r;

	do {
		r = call(c, "GET", target, NULL, fields, &page, next, e);
		if (r < 0) {
			json_decref(all);
			return r;
		}
		json_array_extend(all, page);
		json_decref(page);
		(void)str_format(target, sizeof(target), "/v1/sandboxes?nextToken=%s", next);
	} while (next[0] && ++pages < API_PAGES_MAX);
	*ret = all;
	return 0;
}

int box_call(struct cli *c, const struct box *b, const char *method, const char *target,
	     json_t *body, json_t **ret, struct err *e)
{
	return box_call_as(c, b, NULL, method, target, body, ret, e);
}

int box_call_as(struct cli *c, const struct box *b, const char *user, const char *method,
		const char *target, json_t *body, json_t **ret, struct err *e)
{
	char auth[128];
	struct http_field fields[8];

	if (user && box_user(user, auth, sizeof(auth), e) < 0)
		return -EINVAL;
	box_fields(b, fields, "application/json", user ? auth : NULL);
	int r = call(c, method, target, body, fields, ret, NULL, e);

	if (r == -EACCES)
		err_set_code(e, r, "unauthorized", "the sandbox refused the access token");
	if (r == -ENOTCONN)
		err_set_code(e, r, "sandbox-not-running", "%s", BOX_NOT_RUNNING);
	return r;
}

/* Once a second, on a terminal only, that a wait goes on; a thread: the call itself blocks. */
static void *progress_main(void *arg)
{
	struct progress *p = arg;
	int64_t start = clock_mono_ms();
	bool said = false;

	pthread_mutex_lock(&p->lock);
	while (!p->done) {
		struct timespec ts;

		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_sec++;
		pthread_cond_timedwait(&p->cond, &p->lock, &ts);
		if (p->done)
			break;
		said = true;
		fprintf(stderr, "\r%s... %d s", p->what, (int)((clock_mono_ms() - start) / 1000));
	}
	if (said)
		fputs("\r\033[K", stderr);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void progress_begin(struct cli *c, struct progress *p, const char *what)
{
	p->what = what;
	p->done = false;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->cond, NULL);
	p->thread = !c->quiet && isatty(STDERR_FILENO) &&
		    !pthread_create(&p->id, NULL, progress_main, p);
}

static void progress_end(struct progress *p)
{
	if (p->thread) {
		pthread_mutex_lock(&p->lock);
		p->done = true;
		pthread_cond_signal(&p->cond);
		pthread_mutex_unlock(&p->lock);
		pthread_join(p->id, NULL);
	}
	pthread_cond_destroy(&p->cond);
	pthread_mutex_destroy(&p->lock);
}

int api_call_progress(struct cli *c, const char *what, const char *method, const char *target,
		      json_t *body, json_t **ret, struct err *e)
{
	struct progress p;
	int r;

	progress_begin(c, &p, what);
	r = api_call(c, method, target, body, ret, e);
	progress_end(&p);
	return r;
}
