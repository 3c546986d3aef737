/*
 * Who may open a terminal. A program shows an API key or the sandbox's access token in a header. A
 * browser's page can set no header on a WebSocket: it gets a ticket with the key first, and shows
 * that among the subprotocols, where no log and no history keeps it. A ticket opens one terminal of
 * one sandbox, once, within TERMINAL_TICKET_MS; it is stored as its hash.
 *
 * A request with an Origin comes from a page, and the page must be ours or one that the operator
 * allowed; one without must have a key or token.
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "api/fields.h"
#include "api/terminal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

const char *const terminal_params[] = { "cols", "rows", "session", "pid", "window", "user", NULL };

struct opening {
	struct call *call;
	struct terminal_hello hello;
	struct terminal_ask ask;
	struct err err;
};

static int not_found(struct err *e)
{
	return err_set_code(e, -ENOENT, "sandbox-not-found", "The sandbox was not found.");
}

static int load(struct store *s, const char *id, const char *tenant, struct err *e)
{
	struct store_sandbox b = { 0 };
	int r = id[0] ? store_sandbox_get(s, id, tenant, &b, e) : -ENOENT;

	store_sandbox_done(&b);
	return r == -ENOENT ? not_found(e) : r;
}

static void hash_ticket(const char *ticket, char dst[65])
{
	unsigned char hash[crypto_hash_sha256_BYTES];

	crypto_hash_sha256(hash, (const unsigned char *)ticket, strlen(ticket));
	str_hex(dst, hash, sizeof(hash));
}

/* ---- tickets ---- */

static int make_ticket(struct call *c, struct store *s, char *ticket, int64_t *ret_until_ms)
{
	struct store_ticket t = { 0 };
	int r = str_random_hex(ticket, TERMINAL_SECRET_BYTES);

	if (r < 0)
		return err_errno(&c->err, r, "No random numbers for a ticket");
	hash_ticket(ticket, t.hash);
	str_copy(t.tenant, sizeof(t.tenant), c->tenant);
	str_copy(t.sandbox, sizeof(t.sandbox), c->id);
	return store_ticket_add(s, &t, TERMINAL_TICKET_MS, ret_until_ms, &c->err);
}

void run_v1_terminal_ticket(struct call *c, struct store *s)
{
	char ticket[2 * TERMINAL_SECRET_BYTES + 1], until[CLOCK_ISO_LEN];
	autofree char *path = NULL;
	int64_t until_ms;

	if (fields_none(c->body, c->body_len, &c->err) < 0 ||
	    load(s, c->id, c->tenant, &c->err) < 0 || make_ticket(c, s, ticket, &until_ms) < 0)
		return;
	clock_iso(until, until_ms);
	path = x_asprintf("/ui/terminal?sandbox=%s#ticket=%s", c->id, ticket);
	call_json(c, 201,
		  json_pack("{s:s,s:s,s:s}", "ticket", ticket, "expiresAt", until, "path", path));
	explicit_bzero(ticket, sizeof(ticket));
}

static int take_ticket(struct opening *o, struct store *s)
{
	struct store_ticket t = { 0 };
	char hash[65];
	int r;

	hash_ticket(o->hello.ticket, hash);
	r = store_ticket_take(s, hash, &t, &o->err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r < 0 || !str_eq(t.sandbox, o->call->id)) {
		o->err = (struct err){ 0 };
		return err_set(&o->err, -ENOKEY,
			       "The ticket is unknown, was used, or is older than %d seconds.",
			       TERMINAL_TICKET_MS / 1000);
	}
	str_copy(o->call->tenant, sizeof(o->call->tenant), t.tenant);
	return 0;
}

/* ---- opening ---- */

static void opening_free(struct opening *o)
{
	explicit_bzero(&o->hello, sizeof(o->hello));
	free(o);
}

static void open_run(void *arg)
{
	struct opening *o = arg;
	struct call *c = o->call;
	struct store *s = api_store(c->api, &o->err);
	int r = s ? 0 : o->err.num;

	if (r == 0 && !c->tenant[0] && o->hello.ticket[0])
		r = take_ticket(o, s);
	if (r == 0)
		load(s, c->id, c->tenant, &o->err);
}

static void open_done(void *arg)
{
	struct opening *o = arg;
	struct call *c = o->call;

	if (o->err.num < 0)
		call_error(c, &o->err);
	else if (c->api->n_terminals >= TERMINAL_MAX)
		call_error(c, &(struct err){ .num = -EUSERS,
					     .text = "Too many terminals are open." });
	else
		terminal_open(c, &o->hello, &o->ask);
	opening_free(o);
}

/* Read once more where the key was looked up first: the head is still there. */
static void start_open(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	struct opening *o = x_alloc(sizeof(*o));
	struct err e = { 0 };                    /* o belongs to the worker once the job is there */
	int r;

	o->call = c;
	r = terminal_hello(h, &o->hello, &e);
	if (r == 0)
		r = terminal_ask(h->target, &o->ask, &e);
	if (r == 0 && work_add(c->api->quick, NULL, open_run, open_done, o) < 0)
		r = err_set(&e, -EAGAIN, "Too many requests wait.");
	if (r == 0)
		return;
	call_error(c, &e);
	opening_free(o);
}

static int check_sender(const struct call *c, const struct http_head *h,
			const struct terminal_hello *hello, struct err *e)
{
	const char *token = http_get(h, "X-Access-Token");
	bool key = http_get(h, "X-API-Key");
	int r = terminal_origin(h, c->api->origins, e);

	if (r < 0 && r != -ENOENT)
		return r;
	if (token && (http_count(h, "X-Access-Token") > 1 || !c->id[0] ||
		      !token_ok(keys_token(c->api), c->id, token)))
		return err_set(e, -ENOKEY, "The access token is wrong.");
	if (key || token)
		return 0;
	if (!hello->ticket[0])
		return err_set(
			e, -ENOKEY,
			"A terminal needs an API key, the sandbox's access token (X-Access-Token), or a ticket.");
	return r == -ENOENT ? err_set_code(e, -EACCES, "origin-missing",
					   "The ticket came without an Origin.")
			    : 0;
}

void terminal_handle(struct call *c)
{
	const struct http_head *h = http_req_head(c->req);
	struct terminal_hello hello;
	struct terminal_ask ask;
	struct err e = { 0 };
	int r = terminal_hello(h, &hello, &e);

	if (r == 0)
		r = terminal_ask(h->target, &ask, &e);
	if (r == 0)
		r = check_sender(c, h, &hello, &e);
	explicit_bzero(&hello, sizeof(hello));
	if (r < 0)
		call_error(c, &e);
	else if (http_get(h, "X-API-Key"))
		auth_check(c, start_open);
	else
		start_open(c);
}
