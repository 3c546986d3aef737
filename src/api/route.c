/*
 * Where a sandbox is: (worker, generation, activation, attempt) and the node's address, as its row
 * said when it was read. An entry lives API_ROUTE_TTL_MS from then, however often it is used. It
 * may be wrong at any time; the node decides, and its refusal leads here again (route_refresh).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/str.h"

struct route_job {
	struct api *api;
	char sandbox[ID_SANDBOX_LEN + 1];
	struct identity refused; bool refresh;
	route_fn *fn;
	void *arg;
	struct api_route found;
	struct err err;
};

static int free_entry(const char *key, void *value, void *arg)
{
	free(value);
	return 0;
}

void route_clear(struct api *a)
{
	map_each(a->routes, free_entry, NULL);
	map_free(a->routes);
	a->routes = NULL;
}

void route_drop(struct api *a, const char *sandbox)
{
	free(map_del(a->routes, sandbox));
}

static bool same_execution(const struct identity *a, const struct identity *b)
{
	return id_compare(a, b, NULL) == ID_MATCH;
}

static void put(struct api *a, const struct api_route *r)
{
	struct api_route *entry = x_alloc(sizeof(*entry));

	*entry = *r;
	route_drop(a, r->id.sandbox);
	if (map_put(a->routes, r->id.sandbox, entry) < 0) {
		route_clear(a);
		a->routes = map_new(API_ROUTES_MAX);
		map_put(a->routes, r->id.sandbox, entry);
	}
}

/*
 * Compare and swap on what was refused: a newer entry stays; the expiry stays that of the old one.
 */
static void swap(struct api *a, const struct identity *refused, struct api_route *found, bool ok)
{
	struct api_route *entry = map_get(a->routes, refused->sandbox);

	if (!entry || !same_execution(&entry->id, refused))
		return;
	if (!ok) {
		route_drop(a, refused->sandbox);
		return;
	}
	found->until_ms = entry->until_ms;
	put(a, found);
}

/* A request may wake it, or finds it on the way. What has no memory is started on demand only. */
static bool life_wakes(enum life_state s)
{
	return s == LIFE_PAUSED || s == LIFE_PAUSING || s == LIFE_RESUMING;
}

static int not_found(const char *sandbox, struct err *e)
{
	return err_set_code(e, -ENOENT, "sandbox-not-found", "The sandbox was not found");
}

static void lookup_run(void *arg)
{
	struct route_job *j = arg;
	struct store *s = api_store(j->api, &j->err);
	struct store_sandbox b = { 0 };
	int r = s ? FAULT("api.route.lookup") : j->err.num;

	if (r < 0)
		return;
	r = store_sandbox_get(s, j->sandbox, "", &b, &j->err);
	if (r < 0)
		return;
	if (!life_serves(b.observed))
		r = b.auto_resume && life_wakes(b.observed)
			    ? err_set(&j->err, ROUTE_ASLEEP, "The sandbox is paused.")
			    : not_found(j->sandbox, &j->err);
	else
		r = ops_node_addr(s, b.worker, j->found.addr, sizeof(j->found.addr), &j->err);
	if (r == 0 || r == ROUTE_ASLEEP)
		store_sandbox_identity(&b, &j->found.id);
	j->found.public_traffic = b.public_traffic;
	store_sandbox_done(&b);
}

static void lookup_done(void *arg)
{
	struct route_job *j = arg;
	bool ok = j->err.num == 0;

	j->found.until_ms = clock_mono_ms() + API_ROUTE_TTL_MS;
	if (j->refresh)
		swap(j->api, &j->refused, &j->found, ok);
	else if (ok)
		put(j->api, &j->found);
	j->fn(j->arg, ok || j->err.num == ROUTE_ASLEEP ? &j->found : NULL, ok ? NULL : &j->err);
	explicit_bzero(j->found.caps, sizeof(j->found.caps));
	free(j);
}

static void lookup(struct route_job *j)
{
	int r = work_add(j->api->quick, NULL, lookup_run, lookup_done, j);

	if (r == 0)
		return;
	err_set(&j->err, r, "Too many requests wait.");
	lookup_done(j);
}

void route_get(struct api *a, const char *sandbox, route_fn *fn, void *arg)
{
	struct api_route *entry = map_get(a->routes, sandbox);
	struct route_job *j;

	if (entry && clock_mono_ms() < entry->until_ms) {
		fn(arg, entry, NULL);
		return;
	}
	j = x_alloc(sizeof(*j));
	j->api = a;
	str_copy(j->sandbox, sizeof(j->sandbox), sandbox);
	j->fn = fn;
	j->arg = arg;
	lookup(j);
}

void route_refresh(struct api *a, const struct identity *refused, route_fn *fn, void *arg)
{
	struct route_job *j = x_alloc(sizeof(*j));

	j->api = a;
	str_copy(j->sandbox, sizeof(j->sandbox), refused->sandbox);
	j->refused = *refused;
	j->refresh = true;
	j->fn = fn;
	j->arg = arg;
	lookup(j);
}

static int sign(struct api *a, const struct capability *c, char dst[CAP_TEXT_MAX], struct err *e)
{
	const struct key_signer *k = keys_signer(a);

	if (!k)
		return err_set(e, -EAGAIN,
			       "The server has no signing key that the nodes know yet.");
	return cap_sign(c, k, clock_wall_ms() / 1000, dst, e);
}

/* By both clocks: its validity goes by the wall clock, which can be set. */
static bool is_fresh(const struct api_cap *kept, const struct capability *c, const char *kid)
{
	int64_t wall = clock_wall_ms() - kept->made_wall_ms;

	return kept->made_ms && clock_mono_ms() - kept->made_ms < API_CAP_TTL_MS && wall >= 0 &&
	       wall < API_CAP_TTL_MS && str_eq(kept->kid, kid) && kept->port == c->port &&
	       kept->protocol == c->protocol;
}

/* slot: of caps. */
static int capability(struct api *a, const struct api_route *r, size_t slot,
		      const struct capability *c, char dst[CAP_TEXT_MAX], struct err *e)
{
	struct api_route *entry = map_get(a->routes, r->id.sandbox);
	const struct key_signer *k = keys_signer(a);
	struct api_cap *kept;
	int ret;

	if (!entry || !k || !same_execution(&entry->id, &r->id))
		return sign(a, c, dst, e);
	kept = &entry->caps[slot];
	if (is_fresh(kept, c, k->kid))
		return str_copy(dst, CAP_TEXT_MAX, kept->text);
	kept->made_ms = 0;
	ret = sign(a, c, kept->text, e);
	if (ret < 0)
		return ret;
	kept->made_ms = clock_mono_ms();
	kept->made_wall_ms = clock_wall_ms();
	kept->port = c->port;
	kept->protocol = c->protocol;
	str_copy(kept->kid, sizeof(kept->kid), k->kid);
	return str_copy(dst, CAP_TEXT_MAX, kept->text);
}

int route_capability(struct api *a, const struct api_route *r, enum id_access access,
		     char dst[CAP_TEXT_MAX], struct err *e)
{
	const struct capability c = {
		.id = r->id, .purpose = ID_PURPOSE_CONTROL, .access = access
	};

	return capability(a, r, access, &c, dst, e);
}

int route_port_capability(struct api *a, const struct api_route *r, uint16_t port,
			  enum id_protocol protocol, char dst[CAP_TEXT_MAX], struct err *e)
{
	const struct capability c = {
		.id = r->id,
		.purpose = ID_PURPOSE_SERVICE_PORT,
		.access = ID_ACCESS_WRITE,
		.port = port,
		.protocol = protocol,
	};

	return capability(a, r, ID_ACCESS_DATA_COUNT, &c, dst, e);
}
