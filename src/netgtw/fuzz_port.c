/*
 * Preamble and token of a ServicePort's stream, as sbx-manager could be tricked into passing them:
 * GTW_OK only for what fits.
 */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "identity/fuzz_keys.h"
#include "netgtw/port.h"

#define NOW 1800000000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct identity installed(void)
{
	struct identity id = { .tenant = "acme",
			       .sandbox = "i0123456789abcdefghij",
			       .worker = "0b0e8a5e-5d0c-4d55-9c1a-000000000001",
			       .generation = 7,
			       .attempt = 2 };

	memset(id.activation, 0x11, sizeof(id.activation));
	return id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct key_bundle bundle = { .number = 1, .n_keys = 1 };
	struct identity id = installed();
	struct cap_cache *caps;
	struct key_signer signer;
	struct gtw_preamble p;
	struct capability c;
	struct err e = { 0 };
	char token[CAP_TEXT_MAX];

	fuzz_key("api-1", 1, &signer, bundle.keys[0].public);
	str_copy(bundle.keys[0].kid, sizeof(bundle.keys[0].kid), "api-1");
	bundle.keys[0].purposes = 1u << ID_PURPOSE_SERVICE_PORT;
	if (size < sizeof(p))
		return 0;
	memcpy(&p, data, sizeof(p));
	if (!port_preamble_ok(&p) || p.token_len > size - sizeof(p))
		return 0;
	memcpy(token, data + sizeof(p), p.token_len);
	caps = cap_cache_new(4);
	if (port_check(&p, token, caps, &bundle, &id, NOW, &e) == GTW_OK) {
		assert(cap_verify(token, p.token_len, &bundle, &c, NULL) == 0);
		assert(c.port == p.port && c.port != GTW_DOOR_PORT && c.protocol == p.protocol);
		assert(id_compare(&c.id, &id, NULL) == ID_MATCH && p.generation == 7);
	} else {
		assert(e.text[0]);
	}
	cap_cache_free(caps);
	return 0;
}
