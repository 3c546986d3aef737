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

#define SIGNATURE_TEXT_MAX 64

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

int token_sandbox(const char *given, char id[ID_SANDBOX_LEN + 1])
{
	size_t n = strcspn(given, ".");

	if (n != ID_SANDBOX_LEN || given[n] != '.')
		return -EINVAL;
	memcpy(id, given, n);
	id[n] = '\0';
	return id_sandbox_ok(id) ? 0 : -EINVAL;
}

static void make_signature(const char *token, const char *path, const char *op, const char *user,
			   const char *expiration, char dst[SIGNATURE_TEXT_MAX])
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char b64[STR_B64_LEN(sizeof(hash)) + 1];
	autofree char *text =
		expiration ? x_asprintf("%s:%s:%s:%s:%s", path, op, user, token, expiration)
			   : x_asprintf("%s:%s:%s:%s", path, op, user, token);

	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	str_b64(b64, hash, sizeof(hash));
	b64[strcspn(b64, "=")] = '\0';
	str_format(dst, SIGNATURE_TEXT_MAX, "v1_%s", b64);
	explicit_bzero(text, strlen(text));
}

static int check_expiration(const char *text, int64_t now_s, struct err *e)
{
	uint64_t at;

	if (!text)
		return 0;
	if (str_to_u64(text, INT64_MAX, &at) < 0)
		return err_set(e, -EINVAL, "signature_expiration is not a number of seconds");
	return (int64_t)at < now_s ? err_set(e, -EKEYEXPIRED, "signature is already expired") : 0;
}

int token_signature_check(const struct token_key *k, const char *sandbox, const char *method,
			  const char *target, int64_t now_s, struct err *e)
{
	autofree char *given = NULL, *path = NULL, *user = NULL, *expiration = NULL;
	char token[TOKEN_TEXT_MAX], want[SIGNATURE_TEXT_MAX];
	const char *op = str_eq(method, "GET") || str_eq(method, "HEAD") ? "read" : "write";

	if (!str_starts(target, "/files?"))
		return -ENOENT;
	if (http_query_get(target, "signature", &given) < 0 ||
	    http_query_get(target, "path", &path) < 0 ||
	    http_query_get(target, "username", &user) < 0 ||
	    http_query_get(target, "signature_expiration", &expiration) < 0)
		return err_set(e, -EINVAL, "the query of the address is malformed");
	if (!given)
		return -ENOENT;
	token_make(k, sandbox, token);
	make_signature(token, path ? path : "", op, user ? user : "", expiration, want);
	explicit_bzero(token, sizeof(token));
	if (strlen(given) != strlen(want) || sodium_memcmp(given, want, strlen(want)) != 0)
		return err_set(e, -EKEYREJECTED, "invalid signature");
	return check_expiration(expiration, now_s, e);
}
