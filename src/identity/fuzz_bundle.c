/*
 * The first byte says what the rest is: T a bundle's text as it comes, C contents that are signed
 * here with the root key.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "identity/fuzz_keys.h"
#include "identity/paseto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct key_signer root;
static uint8_t root_public[KEY_PUBLIC_BYTES];

static void try_bundle(const char *text, size_t n)
{
	static struct key_bundle b, again;
	autofree char *anew = NULL;
	struct err e = { 0 };
	int r = bundle_open(text, n, root_public, &b, &e);

	assert(r == 0 || (r == -EACCES && e.text[0]));
	if (r < 0)
		return;
	assert(b.number >= 1 && b.n_keys >= 1 && b.n_keys <= BUNDLE_KEYS_MAX);
	assert(bundle_sign(&b, &root, &anew, NULL) == 0);
	assert(bundle_open(anew, strlen(anew), root_public, &again, NULL) == 0);
	/* Equal contents: each may replace the other. */
	assert(bundle_may_replace(&b, &again, NULL) == 0 &&
	       bundle_may_replace(&again, &b, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (!root.kid[0])
		fuzz_key("root", 2, &root, root_public);
	if (size < 1 || size > PASETO_MESSAGE_MAX)
		return 0;
	if (data[0] == 'T') {
		try_bundle((const char *)data + 1, size - 1);
		return 0;
	}
	text = paseto_sign(data + 1, size - 1, "{\"kid\":\"root\"}", NULL, 0, root.secret);
	try_bundle(text, strlen(text));
	return 0;
}
