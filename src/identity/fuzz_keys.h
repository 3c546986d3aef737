/* Fixed keys for the fuzzers of identity/, so that a corpus can hold signed tokens. */
#ifndef IDENTITY_FUZZ_KEYS_H
#define IDENTITY_FUZZ_KEYS_H

#include <assert.h>
#include <sodium.h>
#include <string.h>

#include "base/str.h"
#include "identity/identity.h"

static inline void fuzz_key(const char *kid, uint8_t seed_byte, struct key_signer *ret,
			    uint8_t public[KEY_PUBLIC_BYTES])
{
	uint8_t seed[crypto_sign_SEEDBYTES];

	assert(key_init() == 0);
	memset(seed, seed_byte, sizeof(seed));
	crypto_sign_seed_keypair(public, ret->secret, seed);
	str_copy(ret->kid, sizeof(ret->kid), kid);
}

#endif
