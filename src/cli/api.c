/* Calls to the API: JSON in, JSON out, errors as sentences. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"

#define API_NEXT_MAX 256

static int answer_error(const struct http_answer *a, struct err *e)
{
	json_error_t je;
	json_t *v = json_loadb(a->body ? a->body : "", a->body_len, 0, &je);
	const char *message = NULL, *code = NULL;     /* E2B's form, or a problem (RFC 9457) */
	int num = a->head.status == 404 ? -ENOENT : a->head.status == 401 ? -EACCES : -EREMOTEIO;

	if (v) {
		message = json_string_value(json_object_get(v, "message"))
				  ?: json_string_value(json_object_get(v, "detail"));
		code = json_string_value(json_object_get(v, "error_code"))
			       ?: json_string_value(json_object_get(v, "code"));
	}
	if (a->head.status == 401)
		err_set_code(e, num, "unauthorized", "the API refused the key: %s",
			     message ? message : "401");
	else
		err_set_code(e, num, code ? code : "", "%s",
			     message ? message : http_reason(a->head.status));
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
		.addr = c->addr,
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
	if (r == -ECONNREFUSED)
		return err_set_code(e, r, "no-node",
				    "nothing answers at %s; start a node with `sudo space up`",
				    c->api_url);
	if (r < 0)
		return r;
	if (a.head.status >= 300) {
		r = answer_error(&a, e);
	} else if (a.body_len) {
		*ret = json_loadb(a.body, a.body_len, JSON_DECODE_ANY, &je);
		if (!*ret)
			r = err_set(e, -EBADMSG, "the answer of %s is not JSON: %s", target,
				    je.text);
		else if (ret_next && str_copy(ret_next, API_NEXT_MAX,
					      http_get(&a.head, "X-Next-Token") ?: "") < 0)
			ret_next[0] = '\0';
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
	} while (next[0]);
	*ret = all;
	return 0;
}

int box_call(struct cli *c, const struct box *b, const char *method, const char *target,
	     json_t *body, json_t **ret, struct err *e)
{
	struct http_field fields[8];

	box_fields(b, fields, "application/json", NULL);
	return call(c, method, target, body, fields, ret, NULL, e);
}

/* Says once a second on stderr that a wait goes on; a thread, since the call itself blocks. */
struct progress { const char *what; pthread_mutex_t lock; pthread_cond_t cond; bool done; };

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
		fprintf(stderr, isatty(2) ? "\r%s... %d s" : "%s... %d s\n", p->what,
			(int)((clock_mono_ms() - start) / 1000));
	}
	if (said && isatty(2))
		fputs("\r\033[K", stderr);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int api_call_progress(struct cli *c, const char *what, const char *method, const char *target,
		      json_t *body, json_t **ret, struct err *e)
{
	struct progress p = { what, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
	pthread_t t;
	bool thread = !c->quiet && !pthread_create(&t, NULL, progress_main, &p);
	int r = api_call(c, method, target, body, ret, e);

	if (thread) {
		pthread_mutex_lock(&p.lock);
		p.done = true;
		pthread_cond_signal(&p.cond);
		pthread_mutex_unlock(&p.lock);
		pthread_join(t, NULL);
	}
	return r;
}
