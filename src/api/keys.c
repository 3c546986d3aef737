/*
 * The key that signs (ops/signer.h says which), looked for once a second in a worker, and the key
 * of client tokens.
 */
#include <stdlib.h>
#include <string.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "ops/signer.h"

#define KEYS_POLL_MS 1000

struct api_keys {
	struct api *api;
	uint8_t root_public[KEY_PUBLIC_BYTES];
	struct token_key token;
	struct key_signer signer;
	bool have;
	struct loop_timer timer;
	bool asking;
	/* the job's */
	struct key_signer found;
	int result;
	struct err err;
};

static void look(struct api_keys *k, struct store *s)
{
	k->result = s ? ops_signer_choose(s, k->api->keys_dir, k->root_public, ID_PURPOSE_CONTROL,
					  k->have, &k->found, &k->err)
		      : k->err.num;
}

static void poll_run(void *arg)
{
	struct api_keys *k = arg;

	look(k, api_store(k->api, &k->err));
}

static void take_found(struct api_keys *k)
{
	if (!k->have || !str_eq(k->signer.kid, k->found.kid))
		log_info("signing key", F_STR("kid", k->found.kid));
	key_signer_done(&k->signer);
	k->signer = k->found;
	k->have = true;
	key_signer_done(&k->found);
}

static void poll_done(void *arg)
{
	static struct log_limit limit;
	struct api_keys *k = arg;

	k->asking = false;
	if (k->result == 1)
		take_found(k);
	else if ((!k->have || k->result < 0) && log_limit_ok(&limit, 6))
		log_warn("no signing key that the nodes know", F_ERR(&k->err));
	k->err = (struct err){ 0 };
}

static void poll_tick(struct loop_timer *t)
{
	struct api_keys *k = t->arg;

	if (!k->asking && work_add(k->api->quick, NULL, poll_run, poll_done, k) == 0)
		k->asking = true;
	loop_timer_set(k->api->loop, &k->timer, KEYS_POLL_MS, poll_tick, k);
}

struct api_keys *keys_new(struct api *a, struct err *e)
{
	struct api_keys *k = x_alloc(sizeof(*k));
	autofree char *token_path = x_asprintf("%s/client-token.key", a->keys_dir);
	struct store *s;

	k->api = a;
	if (ops_root_public(a->root_pub, k->root_public, e) < 0 ||
	    token_key_load(token_path, &k->token, e) < 0 || store_open(a->store_url, &s, e) < 0) {
		keys_free(k);
		return NULL;
	}
	look(k, s);
	store_close(s);
	poll_done(k);
	loop_timer_set(a->loop, &k->timer, KEYS_POLL_MS, poll_tick, k);
	return k;
}

void keys_free(struct api_keys *k)
{
	if (!k)
		return;
	loop_timer_stop(&k->timer);
	key_signer_done(&k->signer);
	explicit_bzero(k, sizeof(*k));
	free(k);
}

const struct key_signer *keys_signer(const struct api *a)
{
	return a->keys->have ? &a->keys->signer : NULL;
}

const struct token_key *keys_token(const struct api *a)
{
	return &a->keys->token;
}
