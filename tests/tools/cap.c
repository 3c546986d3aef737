/*
 * space-test-cap: tokens for the tests, right and wrong ones. The text to be signed comes from
 * standard input as it is; nothing here checks what it says, so that a test can sign claims that
 * cap_sign would refuse.
 *
 *	space-test-cap sign KEYFILE [KID]        signs with the key in KEYFILE; KID: says another key's name in the footer
 *	space-test-cap stranger KID              signs with a key that nobody knows
 *	space-test-cap public KEYFILE            prints the public key, hex
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "identity/identity.h"
#include "identity/paseto.h"

static int fail(const char *what, const struct err *e)
{
	fprintf(stderr, "space-test-cap: %s%s%s\n", what, e && e->text[0] ? ": " : "",
		e ? e->text : "");
	return 1;
}

static int sign_stdin(const struct key_signer *k, const char *kid)
{
	char message[PASETO_MESSAGE_MAX], footer[PASETO_FOOTER_MAX + 1];
	size_t n = fread(message, 1, sizeof(message), stdin);

	if (!feof(stdin) || str_format(footer, sizeof(footer), "{\"kid\":\"%s\"}", kid) < 0)
		return fail("the message or the key's name is too long", NULL);
	autofree char *text = paseto_sign(message, n, footer, NULL, 0, k->secret);
	puts(text);
	return 0;
}

static int public_of(const char *path)
{
	uint8_t public[KEY_PUBLIC_BYTES];
	char hex[2 * KEY_PUBLIC_BYTES + 1];
	struct key_signer k;
	struct err e = { 0 };

	if (key_load(path, &k, public, &e) < 0)
		return fail(path, &e);
	key_signer_done(&k);
	str_hex(hex, public, sizeof(public));
	puts(hex);
	return 0;
}

int main(int argc, char **argv)
{
	uint8_t public[KEY_PUBLIC_BYTES];
	struct key_signer k;
	struct err e = { 0 };
	int r;

	if (key_init() < 0)
		return fail("no key library", NULL);
	if (argc == 3 && str_eq(argv[1], "public"))
		return public_of(argv[2]);
	if (argc == 3 && str_eq(argv[1], "stranger"))
		r = key_generate(argv[2], &k, public);
	else if ((argc == 3 || argc == 4) && str_eq(argv[1], "sign"))
		r = key_load(argv[2], &k, NULL, &e);
	else
		return fail("usage: sign KEYFILE [KID] | stranger KID | public KEYFILE", NULL);
	if (r < 0)
		return fail("the key", &e);
	r = sign_stdin(&k, argc == 4 ? argv[3] : k.kid);
	key_signer_done(&k);
	return r;
}
