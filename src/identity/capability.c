#include "identity/identity.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "identity/internal.h"
#include "identity/paseto.h"
#include "json/strict.h"

#define CLAIMS 15
#define CLAIMS_BYTES_MAX 1024
#define CLAIMS_DEPTH 1

static_assert(CAP_FOOTER_MAX == PASETO_FOOTER_MAX, "one limit");

/*
 * What goes together: a port and a protocol with service-port, neither without; an operation with
 * lifecycle, reading or writing without.
 */
static const char *profile_fault(const struct capability *c)
{
	bool service = c->purpose == ID_PURPOSE_SERVICE_PORT;

	if ((unsigned)c->purpose >= ID_PURPOSE_COUNT)
		return "purpose";
	if ((unsigned)c->access >= ID_ACCESS_COUNT ||
	    (c->purpose == ID_PURPOSE_LIFECYCLE) != (c->access >= ID_ACCESS_DATA_COUNT))
		return "access";
	if ((unsigned)c->protocol >= ID_PROTOCOL_COUNT ||
	    service != (c->protocol != ID_PROTOCOL_NONE))
		return "protocol";
	if (service != (c->port != 0))
		return "port";
	return NULL;
}

int cap_sign(const struct capability *c, const struct key_signer *k, int64_t now_s,
	     char dst[CAP_TEXT_MAX], struct err *e)
{
	const char *fault = profile_fault(c);
	char act[ID_ACTIVATION_HEX + 1], json[CLAIMS_BYTES_MAX], footer[CAP_FOOTER_MAX + 1];
	autofree char *text = NULL;
	int r = id_check(&c->id, e);

	if (r < 0)
		return r;
	if (fault)
		return err_set(e, -EINVAL, "the capability's %s does not fit its purpose", fault);
	if (!kid_ok(k->kid) || now_s < 0)
		return err_set(e, -EINVAL, "the signing key's id or the time is malformed");
	str_hex(act, c->id.activation, ID_ACTIVATION_BYTES);
	/*
	 * Nothing in here needs an escape: id_check has seen every string that comes from outside.
	 */
	r = str_format(json, sizeof(json),
		       "{\"iss\":\"" CAP_ISSUER
		       "\",\"aud\":\"%s\",\"iat\":%lld,\"exp\":%lld,\"ten\":\"%s\",\"sbx\":\"%s\","
		       "\"sub\":\"%s\",\"pod\":\"%s\",\"gen\":%llu,\"act\":\"%s\",\"att\":%llu,"
		       "\"pur\":\"%s\",\"acc\":\"%s\",\"prt\":%u,\"pro\":\"%s\"}",
		       c->id.worker, (long long)now_s, (long long)now_s + CAP_LIFETIME_S,
		       c->id.tenant, c->id.sandbox, id_substrate_names[c->id.substrate],
		       c->id.pod_uid, (unsigned long long)c->id.generation, act,
		       (unsigned long long)c->id.attempt, id_purpose_names[c->purpose],
		       id_access_names[c->access], (unsigned)c->port,
		       id_protocol_names[c->protocol]);
	if (r >= 0)
		r = str_format(footer, sizeof(footer), "{\"kid\":\"%s\"}", k->kid);
	if (r < 0)
		return err_set(e, -EMSGSIZE, "the capability is too long");
	text = paseto_sign(json, strlen(json), footer, NULL, 0, k->secret);
	if (str_copy(dst, CAP_TEXT_MAX, text) < 0)
		return err_set(e, -EMSGSIZE, "the capability is over %d bytes", CAP_TEXT_MAX);
	return 0;
}

/* The name of the first claim that is wrong, or NULL. */
static const char *read_claims(json_t *v, struct capability *ret)
{
	struct identity *id = &ret->id;
	unsigned sub = 0, pur = 0, acc = 0, pro = 0;
	uint64_t iat = 0, exp = 0, port = 0;
	const uint64_t max = (uint64_t)STRICT_INT_MAX;
	char iss[sizeof(CAP_ISSUER)];
	const char *fault =
		!claim_str(v, "iss", iss, sizeof(iss)) || !str_eq(iss, CAP_ISSUER) ? "iss"
		: !claim_str(v, "aud", id->worker, sizeof(id->worker))		   ? "aud"
		: !claim_u64(v, "iat", 0, max, &iat)				   ? "iat"
		: !claim_u64(v, "exp", 0, max, &exp) || exp <= iat || exp - iat > CAP_LIFETIME_S
			? "exp"
		: !claim_str(v, "ten", id->tenant, sizeof(id->tenant))		      ? "ten"
		: !claim_str(v, "sbx", id->sandbox, sizeof(id->sandbox))	      ? "sbx"
		: !claim_enum(v, "sub", id_substrate_names, ID_SUBSTRATE_COUNT, &sub) ? "sub"
		: !claim_str(v, "pod", id->pod_uid, sizeof(id->pod_uid))	      ? "pod"
		: !claim_u64(v, "gen", 1, max, &id->generation)			      ? "gen"
		: !claim_hex(v, "act", id->activation, ID_ACTIVATION_BYTES)	      ? "act"
		: !claim_u64(v, "att", 1, max, &id->attempt)			      ? "att"
		: !claim_enum(v, "pur", id_purpose_names, ID_PURPOSE_COUNT, &pur)     ? "pur"
		: !claim_enum(v, "acc", id_access_names, ID_ACCESS_COUNT, &acc)	      ? "acc"
		: !claim_u64(v, "prt", 0, UINT16_MAX, &port)			      ? "prt"
		: !claim_enum(v, "pro", id_protocol_names, ID_PROTOCOL_COUNT, &pro)   ? "pro"
										      : NULL;

	id->substrate = sub;
	ret->purpose = pur;
	ret->access = acc;
	ret->port = (uint16_t)port;
	ret->protocol = pro;
	ret->iat_s = (int64_t)iat;
	ret->exp_s = (int64_t)exp;
	return fault;
}

static int check_claims(const struct paseto *p, const struct key_entry *key, struct capability *ret,
			struct err *e)
{
	json_t *v;
	const char *fault;

	if (p->message_bytes > CLAIMS_BYTES_MAX)
		return err_set_code(e, -EACCES, "capability-malformed",
				    "capability: over %d bytes of claims", CLAIMS_BYTES_MAX);
	v = strict_parse((const char *)p->body, p->message_bytes, CLAIMS_DEPTH, NULL);
	if (!v || !json_is_object(v) || json_object_size(v) != CLAIMS)
		fault = "set of claims";
	else
		fault = read_claims(v, ret);
	json_decref(v);
	if (!fault && id_check(&ret->id, NULL) < 0)
		fault = "identity";
	if (!fault)
		fault = profile_fault(ret);
	if (fault)
		return err_set_code(e, -EACCES, "capability-malformed",
				    "capability: its %s is missing or malformed", fault);
	if (!(key->purposes & 1u << ret->purpose))
		return err_set_code(e, -EACCES, "capability-purpose",
				    "capability: key \"%s\" may not sign purpose %s", key->kid,
				    id_purpose_names[ret->purpose]);
	return 0;
}

static int verify_split(const struct paseto *p, const struct key_bundle *b, struct capability *ret,
			struct err *e)
{
	struct capability c = { 0 };
	const struct key_entry *key;
	char kid[ID_KID_MAX + 1];
	int r;

	if (paseto_footer_kid(p, kid, sizeof(kid)) < 0)
		return err_set_code(e, -EACCES, "capability-malformed",
				    "capability: its footer is malformed");
	key = bundle_find(b, kid);
	if (!key)
		return err_set_code(e, -EACCES, "capability-key",
				    "capability: key \"%s\" is not in bundle %llu", kid,
				    (unsigned long long)b->number);
	if (paseto_check(p, NULL, 0, key->public) < 0)
		return err_set_code(e, -EACCES, "capability-signature",
				    "capability: the signature is wrong");
	r = check_claims(p, key, &c, e);
	if (r == 0)
		*ret = c;
	return r;
}

int cap_verify(const char *text, size_t n, const struct key_bundle *b, struct capability *ret,
	       struct err *e)
{
	struct paseto p;
	int r;

	if (n >= CAP_TEXT_MAX)
		return err_set_code(e, -EACCES, "capability-malformed", "capability: over %d bytes",
				    CAP_TEXT_MAX);
	r = paseto_split(text, n, &p, e);
	if (r < 0)
		return r;
	r = verify_split(&p, b, ret, e);
	paseto_done(&p);
	return r;
}

int cap_check_time(const struct capability *c, int64_t now_s, struct err *e)
{
	if (now_s > c->exp_s + CAP_SKEW_S)
		return err_set_code(e, -EACCES, "capability-expired",
				    "capability: it expired %lld s ago",
				    (long long)(now_s - c->exp_s));
	if (c->iat_s > now_s + CAP_SKEW_S)
		return err_set_code(e, -EACCES, "capability-early",
				    "capability: it was issued %lld s in the future",
				    (long long)(c->iat_s - now_s));
	return 0;
}
