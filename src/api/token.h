/*
 * Client tokens: what an E2B client shows to reach a sandbox's data surface (envdAccessToken).
 * Nothing is stored: a token is "<sandbox id>.<hex HMAC-SHA256(server key, sandbox id)>", so it
 * also says where it leads. It stays the same over all executions of the sandbox; the guest's own
 * token changes with each and never leaves the node.
 *
 * Signed file URLs (facts: E2B's signature.ts): v1_ and unpadded base64 of
 * SHA-256("path:operation:user:token[:expiration]").
 */
#ifndef API_TOKEN_H
#define API_TOKEN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "identity/identity_limits.h"

#define TOKEN_KEY_BYTES 32
#define TOKEN_TEXT_MAX (ID_SANDBOX_LEN + 1 + 64 + 1)

struct token_key { uint8_t bytes[TOKEN_KEY_BYTES]; };

int token_key_load(const char *path, struct token_key *ret, struct err *e);     /* 64 hex digits */
void token_make(const struct token_key *k, const char *sandbox, char dst[TOKEN_TEXT_MAX]);
bool token_ok(const struct token_key *k, const char *sandbox, const char *given);        /* constant time in the token's length */
/* The sandbox that a token names, unchecked. */
int token_sandbox(const char *given, char id[ID_SANDBOX_LEN + 1]);

/* ---- traffic tokens ---- */

/*
 * What a request to a port of a sandbox shows where allowPublicTraffic is false
 * (trafficAccessToken): hex HMAC-SHA256(server key, "traffic:" and the sandbox ID). No sandbox has an
 * ID with ":", so no client token is one.
 */
#define TOKEN_TRAFFIC_MAX 65
void token_traffic(const struct token_key *k, const char *sandbox, char dst[TOKEN_TRAFFIC_MAX]);
bool token_traffic_ok(const struct token_key *k, const char *sandbox, const char *given);

/* ---- signed file addresses ---- */

#define TOKEN_SIGNATURE_MAX 64

void token_signature(const char *token, const char *path, const char *op, const char *user,
		     const char *expiration /* NULL = none */, char dst[TOKEN_SIGNATURE_MAX]);

struct token_signed {
	const char *op;
	char *signature, *path, *user, *expiration;      /* decoded; NULL = absent; owned */
};
/* 0; -ENOENT the target carries no signature; -EINVAL malformed (nothing to free). */
int token_signed_parse(const char *method, const char *target, struct token_signed *ret,
		       struct err *e);
void token_signed_done(struct token_signed *q);
bool token_signed_by(const struct token_key *k, const char *sandbox, const struct token_signed *q);
/* 0 or -EKEYEXPIRED. */
int token_signed_time(const struct token_signed *q, int64_t now_s, struct err *e);
/*
 * All of it. 0; -EKEYREJECTED wrong, -EKEYEXPIRED; -ENOENT the target carries no signature; -EINVAL
 * malformed.
 */
int token_signature_check(const struct token_key *k, const char *sandbox, const char *method,
			  const char *target, int64_t now_s, struct err *e);

#endif
