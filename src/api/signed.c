/*
 * Signed file addresses that name no sandbox: with one address for all sandboxes (E2B_SANDBOX_URL)
 * E2B's clients make them so, and a plain fetch adds no header. The sandbox is the one whose token
 * makes the signature; it is looked for among the newest SIGNED_BOXES_MAX, two hashes each.
 *
 * Anybody may ask, so the work is bounded: an address that is malformed or has expired is refused
 * before, one look-up runs at a time in this process, SIGNED_WAITING_MAX may wait, and what was
 * found is remembered. The token's check of the request (data.c) comes after this as for any other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "routes/routes.h"

#define SIGNED_BATCH 1000

struct signed_job {
	struct call *call;
	struct token_signed q;
	char found[ID_SANDBOX_LEN + 1];
	struct err err;
};

static int free_entry(const char *key, void *value, void *arg)
{
	free(value);
	return 0;
}

void signed_clear(struct api *a)
{
	map_each(a->signed_known, free_entry, NULL);
	map_free(a->signed_known);
	a->signed_known = NULL;
}

static void remember(struct api *a, const char *signature, const char *sandbox)
{
	char *entry = x_strdup(sandbox);

	free(map_del(a->signed_known, signature));
	if (map_put(a->signed_known, signature, entry) == 0)
		return;
	signed_clear(a);
	a->signed_known = map_new(SIGNED_KNOWN_MAX);
	map_put(a->signed_known, signature, entry);
}

static void go_on(struct call *c, const char *sandbox)
{
	struct data_target t = { .port = ROUTES_CONTROL_PORT };

	str_copy(t.id, sizeof(t.id), sandbox);
	data_handle(c, &t);
}

static void look_run(void *arg)
{
	struct signed_job *j = arg;
	struct store *s = api_store(j->call->api, &j->err);
	const struct token_key *k = keys_token(j->call->api);
	char (*ids)[ID_SANDBOX_LEN + 1] = x_array(SIGNED_BATCH, sizeof(*ids));
	char cursor[STORE_CURSOR_MAX] = "";
	size_t n = 0, seen = 0;
	int r = s ? 0 : j->err.num;

	while (r == 0 && !j->found[0] && seen < SIGNED_BOXES_MAX) {
		r = store_sandbox_ids(s, cursor, SIGNED_BATCH, ids, &n, &j->err);
		for (size_t i = 0; r == 0 && i < n && !j->found[0]; i++)
			if (token_signed_by(k, ids[i], &j->q))
				str_copy(j->found, sizeof(j->found), ids[i]);
		seen += n;
		if (n < SIGNED_BATCH)
			break;
	}
	free(ids);
	if (r == 0 && !j->found[0])
		err_set(&j->err, -EKEYREJECTED, "invalid signature");
}

static void look_done(void *arg)
{
	struct signed_job *j = arg;
	struct call *c = j->call;

	c->api->n_signed--;
	if (j->err.num < 0) {
		call_error(c, &j->err);
	} else {
		remember(c->api, j->q.signature, j->found);
		go_on(c, j->found);
	}
	token_signed_done(&j->q);
	free(j);
}

static void look(struct call *c, struct token_signed *q)
{
	struct signed_job *j;
	struct err e = { 0 };

	if (c->api->n_signed >= SIGNED_WAITING_MAX) {
		token_signed_done(q);
		err_set(&e, -EUSERS, "Too many signed addresses are looked up.");
		call_error(c, &e);
		return;
	}
	j = x_alloc(sizeof(*j));
	j->call = c;
	j->q = *q;
	c->api->n_signed++;
	/* One key: they queue behind each other. */
	if (work_add(c->api->quick, "signed", look_run, look_done, j) < 0) {
		err_set(&j->err, -ENOBUFS, "Too many requests wait.");
		look_done(j);
	}
}

bool signed_handle(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	struct token_signed q = { 0 };
	struct err e = { 0 };
	const char *known;
	int r = http_get(h, "X-Access-Token")
			? -ENOENT
			: token_signed_parse(h->method, h->target, &q, &e);

	if (r == -ENOENT)
		return false;
	c->cors = http_get(h, "Origin") != NULL;
	if (r == 0)
		r = token_signed_time(&q, clock_wall_ms() / 1000, &e);
	if (r < 0) {
		token_signed_done(&q);
		call_error(c, &e);
		return true;
	}
	known = map_get(c->api->signed_known, q.signature);
	if (!known) {
		look(c, &q);
		return true;
	}
	token_signed_done(&q);
	go_on(c, known);
	return true;
}
