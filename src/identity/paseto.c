#include "identity/paseto.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define PASETO_B64 sodium_base64_VARIANT_URLSAFE_NO_PADDING
#define PASETO_HEADER_LEN (sizeof(PASETO_HEADER) - 1)
#define FOOTER_HEAD "{\"kid\":\""
#define FOOTER_TAIL "\"}"

struct piece { const void *p; size_t n; };

static uint8_t *put_le64(uint8_t *dst, uint64_t n)
{
	for (int i = 0; i < 8; i++)
		*dst++ = (uint8_t)(n >> (8 * i));
	return dst;
}

/*
 * Pre-authentication encoding: the number of pieces, then each with its length before it. Caller
 * frees.
 */
static uint8_t *pae(const struct piece *pieces, size_t n, size_t *ret_bytes)
{
	size_t bytes = 8;
	uint8_t *buf, *p;

	for (size_t i = 0; i < n; i++)
		bytes += 8 + pieces[i].n;
	buf = x_alloc(bytes);
	p = put_le64(buf, n);
	for (size_t i = 0; i < n; i++) {
		p = put_le64(p, pieces[i].n);
		if (pieces[i].n)
			memcpy(p, pieces[i].p, pieces[i].n);
		p += pieces[i].n;
	}
	*ret_bytes = bytes;
	return buf;
}

/* Decodes one part strictly: no padding, no other alphabet, no bits left over. */
static int part_decode(uint8_t *dst, size_t max, const char *src, size_t n, size_t *ret_bytes)
{
	const char *end = NULL;

	if (sodium_base642bin(dst, max, src, n, NULL, ret_bytes, &end, PASETO_B64) != 0 ||
	    end != src + n)
		return -EACCES;
	return 0;
}

int paseto_split(const char *text, size_t n, struct paseto *ret, struct err *e)
{
	const char *body = text + PASETO_HEADER_LEN, *dot;
	size_t body_len, max, bytes, footer_bytes = 0;
	autofree uint8_t *buf = NULL;

	*ret = (struct paseto){ 0 };
	if (n <= PASETO_HEADER_LEN || memcmp(text, PASETO_HEADER, PASETO_HEADER_LEN) != 0)
		return err_set_code(e, -EACCES, "token-malformed", "the token is not v4.public");
	n -= PASETO_HEADER_LEN;
	dot = memchr(body, '.', n);
	body_len = dot ? (size_t)(dot - body) : n;
	max = body_len / 4 * 3 + 3;
	if (max > PASETO_MESSAGE_MAX + PASETO_SIG_BYTES)
		return err_set_code(e, -EACCES, "token-malformed", "the token is too long");
	buf = x_alloc(max);
	if (part_decode(buf, max, body, body_len, &bytes) < 0 || bytes < PASETO_SIG_BYTES)
		return err_set_code(e, -EACCES, "token-malformed", "the token's body is malformed");
	if (dot && (part_decode((uint8_t *)ret->footer, PASETO_FOOTER_MAX, dot + 1,
				n - body_len - 1, &footer_bytes) < 0 ||
		    footer_bytes == 0))
		return err_set_code(e, -EACCES, "token-malformed",
				    "the token's footer is malformed");
	ret->footer_bytes = footer_bytes;
	ret->message_bytes = bytes - PASETO_SIG_BYTES;
	ret->body = TAKE(buf);
	return 0;
}

void paseto_done(struct paseto *p)
{
	free(p->body);
	*p = (struct paseto){ 0 };
}

int paseto_check(const struct paseto *p, const void *implicit, size_t implicit_bytes,
		 const uint8_t public_key[32])
{
	const struct piece pieces[] = {
		{ PASETO_HEADER, PASETO_HEADER_LEN },
		{ p->body, p->message_bytes },
		{ p->footer, p->footer_bytes },
		{ implicit, implicit_bytes },
	};
	autofree uint8_t *m = NULL;
	size_t bytes;

	m = pae(pieces, ARRAY_LEN(pieces), &bytes);
	return crypto_sign_verify_detached(p->body + p->message_bytes, m, bytes, public_key) == 0
		       ? 0
		       : -EACCES;
}

char *paseto_sign(const void *message, size_t message_bytes, const char *footer,
		  const void *implicit, size_t implicit_bytes, const uint8_t secret_key[64])
{
	size_t footer_bytes = strlen(footer), pae_bytes, text_max, at = PASETO_HEADER_LEN;
	const struct piece pieces[] = {
		{ PASETO_HEADER, PASETO_HEADER_LEN },
		{ message, message_bytes },
		{ footer, footer_bytes },
		{ implicit, implicit_bytes },
	};
	autofree uint8_t *m = pae(pieces, ARRAY_LEN(pieces), &pae_bytes);
	autofree uint8_t *body = x_alloc(message_bytes + PASETO_SIG_BYTES);
	char *text;

	memcpy(body, message, message_bytes);
	crypto_sign_detached(body + message_bytes, NULL, m, pae_bytes, secret_key);
	text_max = PASETO_HEADER_LEN +
		   sodium_base64_encoded_len(message_bytes + PASETO_SIG_BYTES, PASETO_B64) +
		   sodium_base64_encoded_len(footer_bytes, PASETO_B64) + 1;
	text = x_alloc(text_max);
	memcpy(text, PASETO_HEADER, PASETO_HEADER_LEN);
	sodium_bin2base64(text + at, text_max - at, body, message_bytes + PASETO_SIG_BYTES,
			  PASETO_B64);
	if (footer_bytes) {
		at += strlen(text + at);
		text[at++] = '.';
		sodium_bin2base64(text + at, text_max - at, (const uint8_t *)footer, footer_bytes,
				  PASETO_B64);
	}
	return text;
}

int paseto_footer_kid(const struct paseto *p, char kid[], size_t kid_size)
{
	size_t head = sizeof(FOOTER_HEAD) - 1, tail = sizeof(FOOTER_TAIL) - 1, n;

	if (p->footer_bytes <= head + tail || memcmp(p->footer, FOOTER_HEAD, head) != 0 ||
	    memcmp(p->footer + p->footer_bytes - tail, FOOTER_TAIL, tail) != 0)
		return -EACCES;
	n = p->footer_bytes - head - tail;
	if (n >= kid_size)
		return -EACCES;
	memcpy(kid, p->footer + head, n);
	kid[n] = '\0';
	/* A NUL inside would end the string early. */
	if (strlen(kid) != n ||
	    !str_is(kid, 1, kid_size - 1, "abcdefghijklmnopqrstuvwxyz0123456789-"))
		return -EACCES;
	return 0;
}
