#include "identity/identity.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/str.h"
#include "identity/internal.h"
#include "identity/paseto.h"
#include "json/strict.h"

#define BUNDLE_DEPTH 4                           /* {"keys":[{"purposes":[ */
#define BUNDLE_ROOT_KID "root"
#define BUNDLE_FOOTER "{\"kid\":\"" BUNDLE_ROOT_KID "\"}"

const struct key_entry *bundle_find(const struct key_bundle *b, const char *kid)
{
	for (unsigned i = 0; i < b->n_keys; i++)
		if (str_eq(b->keys[i].kid, kid))
			return &b->keys[i];
	return NULL;
}

static const char *entry_fault(const struct key_entry *k)
{
	if (!kid_ok(k->kid))
		return "a key id is malformed";
	if (str_eq(k->kid, BUNDLE_ROOT_KID))
		return "the root key signs bundles, it is no entry of one";
	if (k->purposes == 0 || k->purposes >= 1u << ID_PURPOSE_COUNT)
		return "a key's purposes are malformed";
	return NULL;
}

static int bundle_check(const struct key_bundle *b, struct err *e)
{
	if (b->number < 1 || b->number > (uint64_t)STRICT_INT_MAX)
		return err_set(e, -EINVAL, "key bundle: the number must be 1 or more");
	if (b->n_keys < 1 || b->n_keys > BUNDLE_KEYS_MAX)
		return err_set(e, -EINVAL, "key bundle: 1 to %d keys", BUNDLE_KEYS_MAX);
	for (unsigned i = 0; i < b->n_keys; i++) {
		const char *fault = entry_fault(&b->keys[i]);

		if (fault)
			return err_set(e, -EINVAL, "key bundle: %s", fault);
		if (bundle_find(b, b->keys[i].kid) != &b->keys[i])
			return err_set(e, -EINVAL, "key bundle: key id \"%s\" stands there twice",
				       b->keys[i].kid);
	}
	return 0;
}

static void put_entry(struct buf *out, const struct key_entry *k)
{
	char hex[2 * KEY_PUBLIC_BYTES + 1];
	const char *comma = "";

	str_hex(hex, k->public, KEY_PUBLIC_BYTES);
	buf_putf(out, "{\"kid\":\"%s\",\"public\":\"%s\",\"purposes\":[", k->kid, hex);
	for (unsigned p = 0; p < ID_PURPOSE_COUNT; p++) {
		if (!(k->purposes & 1u << p))
			continue;
		buf_putf(out, "%s\"%s\"", comma, id_purpose_names[p]);
		comma = ",";
	}
	buf_puts(out, "]}");
}

int bundle_sign(const struct key_bundle *b, const struct key_signer *root, char **ret,
		struct err *e)
{
	autofree char *json = NULL, *text = NULL;
	struct buf out;
	int r = bundle_check(b, e);

	if (r < 0)
		return r;
	/*
	 * Nothing in here needs an escape: bundle_check has seen every string. 64 entries stay far
	 * below the limit.
	 */
	buf_init(&out, PASETO_MESSAGE_MAX);
	buf_putf(&out, "{\"number\":%llu,\"keys\":[", (unsigned long long)b->number);
	for (unsigned i = 0; i < b->n_keys; i++) {
		if (i > 0)
			buf_puts(&out, ",");
		put_entry(&out, &b->keys[i]);
	}
	buf_puts(&out, "]}");
	json = buf_take_str(&out);
	buf_done(&out);
	text = paseto_sign(json, strlen(json), BUNDLE_FOOTER, NULL, 0, root->secret);
	if (strlen(text) >= BUNDLE_BYTES_MAX)
		return err_set(e, -EMSGSIZE, "key bundle: over %d bytes", BUNDLE_BYTES_MAX);
	*ret = TAKE(text);
	return 0;
}

static int read_entry(json_t *v, struct key_entry *ret)
{
	json_t *purposes = json_object_get(v, "purposes"), *p;
	size_t i;

	if (!json_is_object(v) || json_object_size(v) != 3 ||
	    !claim_str(v, "kid", ret->kid, sizeof(ret->kid)) ||
	    !claim_hex(v, "public", ret->public, KEY_PUBLIC_BYTES) || !json_is_array(purposes))
		return -EACCES;
	json_array_foreach(purposes, i, p) {
		unsigned n;

		if (!json_is_string(p) ||
		    !enum_of(json_string_value(p), id_purpose_names, ID_PURPOSE_COUNT, &n) ||
		    (ret->purposes & 1u << n))
			return -EACCES;
		ret->purposes |= 1u << n;
	}
	return 0;
}

static int read_bundle(json_t *v, struct key_bundle *ret)
{
	json_t *keys = json_object_get(v, "keys"), *k;
	size_t i;

	*ret = (struct key_bundle){ 0 };
	if (!json_is_object(v) || json_object_size(v) != 2 || !json_is_array(keys) ||
	    json_array_size(keys) > BUNDLE_KEYS_MAX ||
	    !claim_u64(v, "number", 1, (uint64_t)STRICT_INT_MAX, &ret->number))
		return -EACCES;
	json_array_foreach(keys, i, k)
		if (read_entry(k, &ret->keys[ret->n_keys++]) < 0)
			return -EACCES;
	return bundle_check(ret, NULL) < 0 ? -EACCES : 0;
}

static int bundle_open_split(const struct paseto *p, const uint8_t root_public[KEY_PUBLIC_BYTES],
			     struct key_bundle *ret, struct err *e)
{
	char kid[ID_KID_MAX + 1];
	json_t *v;
	int r;

	if (paseto_footer_kid(p, kid, sizeof(kid)) < 0 || !str_eq(kid, BUNDLE_ROOT_KID))
		return err_set_code(e, -EACCES, "bundle-malformed",
				    "key bundle: it names another key than root");
	if (paseto_check(p, NULL, 0, root_public) < 0)
		return err_set_code(e, -EACCES, "bundle-signature",
				    "key bundle: not signed by this node's root key");
	v = strict_parse((const char *)p->body, p->message_bytes, BUNDLE_DEPTH, NULL);
	r = v ? read_bundle(v, ret) : -EACCES;
	json_decref(v);
	return r < 0 ? err_set_code(e, r, "bundle-malformed", "key bundle: malformed") : 0;
}

int bundle_open(const char *text, size_t n, const uint8_t root_public[KEY_PUBLIC_BYTES],
		struct key_bundle *ret, struct err *e)
{
	struct key_bundle *b;
	struct paseto p;
	int r;

	if (n >= BUNDLE_BYTES_MAX)
		return err_set_code(e, -EACCES, "bundle-malformed", "key bundle: over %d bytes",
				    BUNDLE_BYTES_MAX);
	r = paseto_split(text, n, &p, e);
	if (r < 0)
		return r;
	b = x_alloc(sizeof(*b));
	r = bundle_open_split(&p, root_public, b, e);
	if (r == 0)
		*ret = *b;
	free(b);
	paseto_done(&p);
	return r;
}

static bool bundle_equal(const struct key_bundle *a, const struct key_bundle *b)
{
	if (a->number != b->number || a->n_keys != b->n_keys)
		return false;
	for (unsigned i = 0; i < a->n_keys; i++) {
		const struct key_entry *other = bundle_find(b, a->keys[i].kid);

		if (!other || other->purposes != a->keys[i].purposes ||
		    memcmp(other->public, a->keys[i].public, KEY_PUBLIC_BYTES) != 0)
			return false;
	}
	return true;
}

int bundle_may_replace(const struct key_bundle *current, const struct key_bundle *next,
		       struct err *e)
{
	if (next->number < current->number)
		return err_set_code(e, -ESTALE, "bundle-older",
				    "key bundle %llu is older than the installed %llu",
				    (unsigned long long)next->number,
				    (unsigned long long)current->number);
	if (next->number == current->number && !bundle_equal(current, next))
		return err_set_code(e, -ESTALE, "bundle-older",
				    "key bundle %llu is installed with other contents",
				    (unsigned long long)next->number);
	return 0;
}
