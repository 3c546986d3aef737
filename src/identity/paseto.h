/*
 * PASETO v4.public (paseto-spec, Version4): Ed25519 over PAE(header, message, footer, implicit
 * assertion). Inside identity/; no other version and no other purpose exists here, so that a token
 * cannot choose its algorithm.
 */
#ifndef IDENTITY_PASETO_H
#define IDENTITY_PASETO_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define PASETO_HEADER "v4.public."
#define PASETO_SIG_BYTES 64
#define PASETO_FOOTER_MAX 64
#define PASETO_MESSAGE_MAX 32768

/* A token taken apart; nothing in it is verified. */
struct paseto {
	uint8_t *body;                           /* message and signature; paseto_done frees */
	size_t message_bytes;                    /* body + message_bytes is the signature */
	char footer[PASETO_FOOTER_MAX + 1];
	size_t footer_bytes;
};

int paseto_split(const char *text, size_t n, struct paseto *ret, struct err *e);       /* -EACCES */
void paseto_done(struct paseto *p);
/* implicit: bytes that both sides know and that are not sent. 0 or -EACCES. */
int paseto_check(const struct paseto *p, const void *implicit, size_t implicit_bytes,
		 const uint8_t public_key[32]);
/* Caller frees the text. */
char *paseto_sign(const void *message, size_t message_bytes, const char *footer,
		  const void *implicit, size_t implicit_bytes, const uint8_t secret_key[64]);

/*
 * Footers are not parsed as JSON, which could say one thing to one reader and another to the next:
 * they are exactly {"kid":"<key id>"} or refused.
 */
int paseto_footer_kid(const struct paseto *p, char kid[], size_t kid_size);             /* -EACCES */

#endif
