#include "api/token.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/http.h"
#include "identity/identity.h"

#define SIGNATURE_PREFIX "v1_"
#define SIGNATURE_CHARS 43               /* base64 of 32 bytes without its "=" */
#define B64_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

static_assert(TOKEN_KEY_BYTES == crypto_auth_hmacsha256_KEYBYTES, "key size");

int token_key_load(const char *path, struct token_key *ret, struct err *e)
{
	char *text = NULL;
	size_t n = 0;
	int r = fd_read_file(AT_FDCWD, path, 256, &text, &n);

	if (r < 0)
		return err_errno(e, r, "%s", path);
	if (n > 0 && text[n - 1] == '\n')
		text[--n] = '\0';
	r = str_unhex(ret->bytes, sizeof(ret->bytes), text);
	explicit_bzero(text, n);
	free(text);
	return r < 0 ? err_set(e, r, "%s: not %d hex digits", path, 2 * TOKEN_KEY_BYTES) : 0;
}

void token_make(const struct token_key *k, const char *sandbox, char dst[TOKEN_TEXT_MAX])
{
	unsigned char mac[crypto_auth_hmacsha256_BYTES];
	char hex[2 * sizeof(mac) + 1];

	crypto_auth_hmacsha256(mac, (const unsigned char *)sandbox, strlen(sandbox), k->bytes);
	str_hex(hex, mac, sizeof(mac));
	str_format(dst, TOKEN_TEXT_MAX, "%s.%s", sandbox, hex);
}

bool token_ok(const struct token_key *k, const char *sandbox, const char *given)
{
	char want[TOKEN_TEXT_MAX];
	bool ok;

	token_make(k, sandbox, want);
	ok = strlen(given) == strlen(want) && sodium_memcmp(given, want, strlen(want)) == 0;
	explicit_bzero(want, sizeof(want));
	return ok;
}

void token_traffic(const struct token_key *k, const char *sandbox, char dst[TOKEN_TRAFFIC_MAX])
{
	unsigned char mac[crypto_auth_hmacsha256_BYTES];
	autofree char *text = x_asprintf("traffic:%s", sandbox);

	static_assert(TOKEN_TRAFFIC_MAX == 2 * sizeof(mac) + 1, "size");
	crypto_auth_hmacsha256(mac, (const unsigned char *)text, strlen(text), k->bytes);
	str_hex(dst, mac, sizeof(mac));
}

bool token_traffic_ok(const struct token_key *k, const char *sandbox, const char *given)
{
	char want[TOKEN_TRAFFIC_MAX];
	bool ok;

	token_traffic(k, sandbox, want);
	ok = strlen(given) == strlen(want) && sodium_memcmp(given, want, strlen(want)) == 0;
	explicit_bzero(want, sizeof(want));
	return ok;
}

int token_sandbox(const char *given, char id[ID_SANDBOX_LEN + 1])
{
	size_t n = strcspn(given, ".");

	if (n != ID_SANDBOX_LEN || given[n] != '.')
		return -EINVAL;
	memcpy(id, given, n);
	id[n] = '\0';
	return id_sandbox_ok(id) ? 0 : -EINVAL;
}

void token_signature(const char *token, const char *path, const char *op, const char *user,
		     const char *expiration, char dst[TOKEN_SIGNATURE_MAX])
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char b64[STR_B64_LEN(sizeof(hash)) + 1];
	autofree char *text =
		expiration ? x_asprintf("%s:%s:%s:%s:%s", path, op, user, token, expiration)
			   : x_asprintf("%s:%s:%s:%s", path, op, user, token);

	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	str_b64(b64, hash, sizeof(hash));
	b64[strcspn(b64, "=")] = '\0';
	str_format(dst, TOKEN_SIGNATURE_MAX, "%s%s", SIGNATURE_PREFIX, b64);
	explicit_bzero(text, strlen(text));
}

void token_signed_done(struct token_signed *q)
{
	free(q->signature);
	free(q->path);
	free(q->user);
	free(q->expiration);
	*q = (struct token_signed){ 0 };
}

static int check_form(const struct token_signed *q, struct err *e)
{
	uint64_t at;

	if (!str_starts(q->signature, SIGNATURE_PREFIX) ||
	    !str_is(q->signature + strlen(SIGNATURE_PREFIX), SIGNATURE_CHARS, SIGNATURE_CHARS,
		    B64_CHARS))
		return err_set(e, -EKEYREJECTED, "invalid signature");
	if (q->expiration && str_to_u64(q->expiration, INT64_MAX, &at) < 0)
		return err_set(e, -EINVAL, "signature_expiration is not a number of seconds");
	return 0;
}

int token_signed_parse(const char *method, const char *target, struct token_signed *ret,
		       struct err *e)
{
	bool read = str_eq(method, "GET") || str_eq(method, "HEAD");
	struct token_signed q = { .op = read ? "read" : "write" };
	int r = 0;

	if (!str_starts(target, "/files?"))
		return -ENOENT;
	if (http_query_get(target, "signature", &q.signature) < 0 ||
	    http_query_get(target, "path", &q.path) < 0 ||
	    http_query_get(target, "username", &q.user) < 0 ||
	    http_query_get(target, "signature_expiration", &q.expiration) < 0)
		r = err_set(e, -EINVAL, "the query of the address is malformed");
	else
		r = q.signature ? check_form(&q, e) : -ENOENT;
	if (r < 0)
		token_signed_done(&q);
	else
		*ret = q;
	return r;
}

bool token_signed_by(const struct token_key *k, const char *sandbox, const struct token_signed *q)
{
	char token[TOKEN_TEXT_MAX], want[TOKEN_SIGNATURE_MAX];

	token_make(k, sandbox, token);
	token_signature(token, q->path ? q->path : "", q->op, q->user ? q->user : "",
			q->expiration, want);
	explicit_bzero(token, sizeof(token));
	return strlen(q->signature) == strlen(want) &&
	       sodium_memcmp(q->signature, want, strlen(want)) == 0;
}

int token_signed_time(const struct token_signed *q, int64_t now_s, struct err *e)
{
	uint64_t at = 0;

	if (!q->expiration)
		return 0;
	if (str_to_u64(q->expiration, INT64_MAX, &at) < 0 || (int64_t)at < now_s)
		return err_set(e, -EKEYEXPIRED, "signature is already expired");
	return 0;
}

int token_signature_check(const struct token_key *k, const char *sandbox, const char *method,
			  const char *target, int64_t now_s, struct err *e)
{
	struct token_signed q = { 0 };
	int r = token_signed_parse(method, target, &q, e);

	if (r == 0)
		r = token_signed_by(k, sandbox, &q)
			    ? token_signed_time(&q, now_s, e)
			    : err_set(e, -EKEYREJECTED, "invalid signature");
	token_signed_done(&q);
	return r;
}
