/*
 * Sandbox and execution identity (spec I-1 to I-5), the capability that selects one execution (K-1
 * to K-3), the comparator, the key bundle (K-2). No I/O and no clock in here: times are
 * arguments.
 */
#ifndef IDENTITY_IDENTITY_H
#define IDENTITY_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "identity/identity_limits.h"

enum id_substrate { ID_SUBSTRATE_MICROVM, ID_SUBSTRATE_K8S, ID_SUBSTRATE_COUNT };
extern const char *const id_substrate_names[];

enum id_purpose {
	ID_PURPOSE_CONTROL,
	ID_PURPOSE_SERVICE_PORT,
	ID_PURPOSE_LIFECYCLE,
	ID_PURPOSE_COUNT
};
extern const char *const id_purpose_names[];                /* "control", "service-port", "lifecycle" */

/*
 * Of requests for the guest: write includes read. A life-cycle capability names the one operation
 * that it is for, so that one for a start does not delete.
 */
enum id_access {
	ID_ACCESS_READ,
	ID_ACCESS_WRITE,
	ID_ACCESS_DATA_COUNT,
	ID_ACCESS_CREATE = ID_ACCESS_DATA_COUNT,
	ID_ACCESS_START,
	ID_ACCESS_STOP,
	ID_ACCESS_DELETE,
	ID_ACCESS_PAUSE,
	ID_ACCESS_RESUME,
	ID_ACCESS_CONSOLE,
	ID_ACCESS_NETLOG,
	ID_ACCESS_NETSTATS,
	ID_ACCESS_COUNT
};
extern const char *const id_access_names[];                 /* "read", "write", "create", ... */
int id_access_of(const char *operation, enum id_access *ret);              /* of the life cycle; -EINVAL */
bool id_access_allows(enum id_purpose purpose, enum id_access has, enum id_access wanted);

enum id_protocol {
	ID_PROTOCOL_NONE,
	ID_PROTOCOL_HTTP,
	ID_PROTOCOL_TCP,
	ID_PROTOCOL_H2,
	ID_PROTOCOL_COUNT
};
extern const char *const id_protocol_names[];               /* "", "http", "tcp", "h2" */

/*
 * The whole identity of an execution: what a receiver has installed, and what a capability selects.
 */
struct identity {
	char tenant[ID_TENANT_MAX + 1];
	char sandbox[ID_SANDBOX_LEN + 1];
	char worker[ID_UUID_LEN + 1];
	enum id_substrate substrate;
	char pod_uid[ID_UUID_LEN + 1];                    /* "" outside Kubernetes */
	uint64_t generation;                              /* >= 1 */
	uint8_t activation[ID_ACTIVATION_BYTES];
	uint64_t attempt;                                 /* >= 1; not part of the epoch */
};

int id_check(const struct identity *id, struct err *e);                   /* forms and ranges of every field; a missing field denies */
int id_new_sandbox(char dst[ID_SANDBOX_LEN + 1]);
int id_new_uuid(char dst[ID_UUID_LEN + 1]);                               /* RFC 9562 version 4 */
int id_new_activation(uint8_t dst[ID_ACTIVATION_BYTES]);
bool id_sandbox_ok(const char *s);
bool id_tenant_ok(const char *s);
bool id_uuid_ok(const char *s);

enum id_verdict { ID_MATCH, ID_REFRESH_ROUTE, ID_DENY, ID_VERDICT_COUNT };
extern const char *const id_verdict_names[];                              /* "match", "refresh-route", "deny" */
/*
 * The comparator. `selected` from a verified capability, `installed` from the local record (NULL:
 * nothing installed here for that sandbox -> refresh-route). Another tenant or sandbox -> deny.
 * Same sandbox and another worker, substrate, pod, generation, activation or attempt ->
 * refresh-route. *ret_why names the first field that differs (static).
 */
enum id_verdict id_compare(const struct identity *selected, const struct identity *installed,
			   const char **ret_why);

/* ---- Keys and bundle ---- */
#define KEY_PUBLIC_BYTES 32
#define KEY_SECRET_BYTES 64
#define BUNDLE_KEYS_MAX 64

struct key_entry {
	char kid[ID_KID_MAX + 1];
	uint8_t public[KEY_PUBLIC_BYTES];
	unsigned purposes;                       /* bit mask 1 << enum id_purpose */
};

struct key_bundle { uint64_t number; struct key_entry keys[BUNDLE_KEYS_MAX]; unsigned n_keys; };

struct key_signer { char kid[ID_KID_MAX + 1]; uint8_t secret[KEY_SECRET_BYTES]; };     /* wipe with key_signer_done */

int key_init(void);                                                        /* sodium_init; call once */
int key_generate(const char *kid, struct key_signer *ret, uint8_t ret_public[KEY_PUBLIC_BYTES]);
int key_load(
	const char *path, struct key_signer *ret, uint8_t ret_public[KEY_PUBLIC_BYTES],
	struct
	err *e); /* file must be 0400 or 0600 and ours or root's (root loads anyone's); exactly {"kid":"...","secret":"<seed as hex>"} and a newline; ret_public may be NULL */
int key_save(const char *path, const struct key_signer *k, struct err *e);  /* 0400, new file only */
void key_signer_done(struct key_signer *k);
const struct key_entry *bundle_find(const struct key_bundle *b, const char *kid);

/*
 * Text form: PASETO v4.public with footer {"kid":"root"} over
 * {"number":N,"keys":[{"kid","public"(hex),"purposes":[...]}]}. Caller frees *ret.
 */
int bundle_sign(const struct key_bundle *b, const struct key_signer *root, char **ret,
		struct err *e);
int bundle_open(const char *text, size_t n, const uint8_t root_public[KEY_PUBLIC_BYTES],
		struct key_bundle *ret, struct err *e);
/*
 * A receiver's rule: never back. -ESTALE when next->number < current (equal with other contents
 * too).
 */
int bundle_may_replace(const struct key_bundle *current, const struct key_bundle *next,
		       struct err *e);

/* ---- Capability ---- */
#define CAP_LIFETIME_S 120               /* K-3 */
#define CAP_SKEW_S 15                    /* K-3 */
#define CAP_FOOTER_MAX 64
#define CAP_ISSUER "space"

struct capability {
	struct identity id;                  /* audience = id.worker */
	enum id_purpose purpose;
	enum id_access access;
	uint16_t port;                       /* with service-port, else 0 */
	enum id_protocol protocol;           /* with service-port, else none */
	int64_t iat_s, exp_s;                /* Unix seconds */
};

/*
 * iat/exp are set from now_s. dst: CAP_TEXT_MAX. PASETO v4.public (paseto spec), claims iss aud iat
 * exp ten sbx sub pod gen act att pur acc prt pro; iat and exp are Unix seconds as integers.
 */
int cap_sign(const struct capability *c, const struct key_signer *k, int64_t now_s,
	     char dst[CAP_TEXT_MAX], struct err *e);
/*
 * Signature, footer, claims (exact names, types, sizes; unknown or missing claims deny), issuer,
 * the key's purposes. No comparison of identity and no times: cap_check_time does those, each time.
 * Returns 0 or -EACCES with the reason in e.
 */
int cap_verify(const char *text, size_t n, const struct key_bundle *b, struct capability *ret,
	       struct err *e);
int cap_check_time(const struct capability *c, int64_t now_s, struct err *e);       /* -EACCES */

/*
 * Cache of *signature* results by hash of the token until its expiry or the bundle's change. Fixed
 * number of entries. cap_cache_verify does cap_check_time too; the comparison stays with the
 * caller.
 */
struct cap_cache;
struct cap_cache *cap_cache_new(size_t entries);
void cap_cache_free(struct cap_cache *c);
void cap_cache_clear(struct cap_cache *c);                                           /* on a new bundle */
int cap_cache_verify(struct cap_cache *cc, const char *text, size_t n, const struct key_bundle *b,
		     int64_t now_s, struct capability *ret, struct err *e);
uint64_t cap_cache_misses(const struct cap_cache *cc);                                   /* signatures computed so far */

#endif
