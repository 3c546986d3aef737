/*
 * The first byte says what the rest is: T a token as it comes, C claims and F a footer that are
 * signed here with the right key (else the signature would hide all that lies behind it from the
 * fuzzer).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "identity/fuzz_keys.h"
#include "identity/paseto.h"

#define CLAIMS                                                                                                                        \
	"{\"iss\":\"space\",\"aud\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11\",\"iat\":1800000000,\"exp\":1800000120,\"ten\":\"acme\"," \
	"\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"microvm\",\"pod\":\"\",\"gen\":7,\"act\":\"01020300000000000000000000000000\","  \
	"\"att\":3,\"pur\":\"control\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\"}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct key_signer signer;
static struct key_bundle bundle = { .number = 1, .n_keys = 1 };
static struct cap_cache *cache;

static void set_up(void)
{
	if (cache)
		return;
	fuzz_key("api-1", 1, &signer, bundle.keys[0].public);
	str_copy(bundle.keys[0].kid, sizeof(bundle.keys[0].kid), "api-1");
	bundle.keys[0].purposes = (1u << ID_PURPOSE_COUNT) - 1;
	cache = cap_cache_new(64);
}

/* What was accepted is whole, and the same when it is signed anew. */
static void check_accepted(const struct capability *c)
{
	struct capability again;
	char text[CAP_TEXT_MAX];

	assert(id_check(&c->id, NULL) == 0 && c->exp_s > c->iat_s &&
	       c->exp_s - c->iat_s <= CAP_LIFETIME_S);
	assert((c->purpose == ID_PURPOSE_SERVICE_PORT) == (c->port != 0));
	assert(id_compare(&c->id, &c->id, NULL) == ID_MATCH);
	assert(cap_sign(c, &signer, 1800000000, text, NULL) == 0);
	assert(cap_verify(text, strlen(text), &bundle, &again, NULL) == 0);
	assert(id_compare(&c->id, &again.id, NULL) == ID_MATCH && c->port == again.port &&
	       c->protocol == again.protocol);
}

static void try_token(const char *text, size_t n)
{
	struct capability c, cached;
	struct err e = { 0 };
	int r = cap_verify(text, n, &bundle, &c, &e), r2;

	assert(r == 0 || (r == -EACCES && e.code[0]));
	if (r == 0)
		check_accepted(&c);
	r2 = cap_cache_verify(cache, text, n, &bundle, 1800000000, &cached, NULL);
	assert(r2 == (r == 0 ? cap_check_time(&c, 1800000000, NULL) : r));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL, *footer = NULL;

	set_up();
	if (size < 1 || size > 4096)
		return 0;
	if (data[0] == 'T') {
		try_token((const char *)data + 1, size - 1);
		return 0;
	}
	footer = data[0] == 'F' ? x_strndup((const char *)data + 1, size - 1)
				: x_strdup("{\"kid\":\"api-1\"}");
	text = data[0] == 'F' ? paseto_sign(CLAIMS, strlen(CLAIMS), footer, NULL, 0, signer.secret)
			      : paseto_sign(data + 1, size - 1, footer, NULL, 0, signer.secret);
	try_token(text, strlen(text));
	return 0;
}
