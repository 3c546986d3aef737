#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/str.h"
#include "identity/identity.h"
#include "identity/paseto.h"

#define NOW 1800000000

/* ---- The vectors of the specification for v4.public (4-S-1 to 4-S-3) ---- */

#define VECTOR_PUBLIC "1eb9dbbbbc047c03fd70604e0071f0987e16b28b757225c11f00415d0e20b1a2"
#define VECTOR_SECRET "b4cbfb43df4ce210727d953e4a713307fa19bb7d9f85041438d9e11b942a3774" VECTOR_PUBLIC
#define VECTOR_MESSAGE "{\"data\":\"this is a signed message\",\"exp\":\"2022-01-01T00:00:00+00:00\"}"
#define VECTOR_FOOTER "{\"kid\":\"zVhMiPBP9fRf2snEcT7gFTioeA9COcNy9DfgL1W60haN\"}"
#define VECTOR_BODY "v4.public.eyJkYXRhIjoidGhpcyBpcyBhIHNpZ25lZCBtZXNzYWdlIiwiZXhwIjoiMjAyMi0wMS0wMVQwMDowMDowMCswMDowMCJ9"
#define VECTOR_FOOTER_B64 ".eyJraWQiOiJ6VmhNaVBCUDlmUmYyc25FY1Q3Z0ZUaW9lQTlDT2NOeTlEZmdMMVc2MGhhTiJ9"

static const struct { const char *footer, *implicit, *token;
} vectors[] = {
	{ "", "",
	  VECTOR_BODY
	  "bg_XBBzds8lTZShVlwwKSgeKpLT3yukTw6JUz3W4h_ExsQV-P0V54zemZDcAxFaSeef1QlXEFtkqxT1ciiQEDA" },
	{ VECTOR_FOOTER, "",
	  VECTOR_BODY
	  "v3Jt8mx_TdM2ceTGoqwrh4yDFn0XsHvvV_D0DtwQxVrJEBMl0F2caAdgnpKlt4p7xBnx1HcO-SPo8FPp214HDw" VECTOR_FOOTER_B64 },
	{ VECTOR_FOOTER, "{\"test-vector\":\"4-S-3\"}",
	  VECTOR_BODY
	  "NPWciuD3d0o5eXJXG5pJy-DiVEoyPYWs1YSTwWHNJq6DZD3je5gf-0M4JR9ipdUSJbIovzmBECeaWmaqcaP0DQ" VECTOR_FOOTER_B64 },
};

static void test_paseto_vectors(void **st)
{
	uint8_t public[32], secret[64];

	assert_int_equal(str_unhex(public, sizeof(public), VECTOR_PUBLIC), 0);
	assert_int_equal(str_unhex(secret, sizeof(secret), VECTOR_SECRET), 0);
	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		const char *imp = vectors[i].implicit;
		autofree char *token = paseto_sign(VECTOR_MESSAGE, strlen(VECTOR_MESSAGE),
						   vectors[i].footer, imp, strlen(imp), secret);
		struct paseto p;

		assert_string_equal(token, vectors[i].token);
		assert_int_equal(paseto_split(token, strlen(token), &p, NULL), 0);
		assert_int_equal(p.message_bytes, strlen(VECTOR_MESSAGE));
		assert_memory_equal(p.body, VECTOR_MESSAGE, p.message_bytes);
		assert_string_equal(p.footer, vectors[i].footer);
		assert_int_equal(paseto_check(&p, imp, strlen(imp), public), 0);
		assert_int_equal(paseto_check(&p, "x", 1, public), -EACCES);
		public[0] ^= 1;
		assert_int_equal(paseto_check(&p, imp, strlen(imp), public), -EACCES);
		public[0] ^= 1;
		p.body[0] ^= 1;
		assert_int_equal(paseto_check(&p, imp, strlen(imp), public), -EACCES);
		paseto_done(&p);
	}
}

/* Every other version and purpose, and every way to spell the same bytes differently. */
static void test_paseto_forms(void **st)
{
	static const char *const bad[] = {
		"",
		"v4",
		"v4.public",
		"v4.public.",
		"v4.public..",
		"v4.public.AA",
		"v4.local.AAAA",
		"v3.public.AAAA",
		"v2.public.AAAA",
		"V4.public.AAAA",
		" v4.public.AAAA",
		"v4.public.=",
	};
	static const char *const suffixes[] = { ".",	 "=",	 "==",	"\n",	 " ", ".e30.",
						".e30=", ".e31", ".e3", "..e30", "+" };
	static char big[2 * PASETO_MESSAGE_MAX];
	struct paseto p;
	char text[512];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(paseto_split(bad[i], strlen(bad[i]), &p, NULL), -EACCES);
	for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
		str_format(text, sizeof(text), "%s%s", vectors[0].token, suffixes[i]);
		assert_int_equal(paseto_split(text, strlen(text), &p, NULL), -EACCES);
	}
	memset(big, 'A', sizeof(big));
	memcpy(big, PASETO_HEADER, strlen(PASETO_HEADER));
	assert_int_equal(paseto_split(big, sizeof(big) - 2, &p, NULL), -EACCES);
	/* A footer of over 64 bytes is refused before anything is verified. */
	memset(text, 'A', sizeof(text));
	memcpy(text, vectors[0].token, strlen(vectors[0].token));
	text[strlen(vectors[0].token)] = '.';
	assert_int_equal(paseto_split(text, strlen(vectors[0].token) + 1 + 88, &p, NULL), -EACCES);
}

static void test_footer(void **st)
{
	static const char *const bad[] = {
		"",
		"{}",
		"{\"kid\":\"\"}",
		"{\"kid\":\"A\"}",
		"{ \"kid\":\"a\"}",
		"{\"kid\":\"a\"} ",
		"{\"kid\":\"a\",\"kid\":\"b\"}",
		"{\"kid\":\"a\",\"x\":\"b\"}",
		"{\"kid\":\"\\u0061\"}",
		"{\"kid\":a}",
		"{\"Kid\":\"a\"}",
		"{\"kid\":\"a b\"}",
		"{\"kid\":\"abcdefghijklmnopqrstuvwxyz01234567\"}",
		"{\"kid\":\"abcd",
		"x\"kid\":\"a\"}",
	};
	char kid[ID_KID_MAX + 1];
	struct paseto p = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		str_copy(p.footer, sizeof(p.footer), bad[i]);
		p.footer_bytes = strlen(bad[i]);
		assert_int_equal(paseto_footer_kid(&p, kid, sizeof(kid)), -EACCES);
	}
	memcpy(p.footer, "{\"kid\":\"a\0b\"}", 13);
	p.footer_bytes = 13;
	assert_int_equal(paseto_footer_kid(&p, kid, sizeof(kid)), -EACCES);
	str_copy(p.footer, sizeof(p.footer), "{\"kid\":\"api-1\"}");
	p.footer_bytes = strlen(p.footer);
	assert_int_equal(paseto_footer_kid(&p, kid, sizeof(kid)), 0);
	assert_string_equal(kid, "api-1");
}

/* ---- Capabilities ---- */

static struct key_signer api, ctl, root;
static uint8_t api_public[KEY_PUBLIC_BYTES], ctl_public[KEY_PUBLIC_BYTES],
	root_public[KEY_PUBLIC_BYTES];
static struct key_bundle bundle;

static struct capability example(void)
{
	struct capability c = {
		.id = {
			.tenant = "acme",
			.sandbox = "iabcdefghij0123456789",
			.worker = "6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11",
			.generation = 7,
			.activation = { 1, 2, 3 },
			.attempt = 3,
		},
		.purpose = ID_PURPOSE_CONTROL,
		.access = ID_ACCESS_WRITE,
	};

	return c;
}

static int set_up(void **st)
{
	if (key_init() < 0 || key_generate("api-1", &api, api_public) < 0 ||
	    key_generate("ctl-1", &ctl, ctl_public) < 0 ||
	    key_generate("root", &root, root_public) < 0)
		return -1;
	bundle.number = 1;
	bundle.n_keys = 2;
	str_copy(bundle.keys[0].kid, sizeof(bundle.keys[0].kid), "api-1");
	memcpy(bundle.keys[0].public, api_public, KEY_PUBLIC_BYTES);
	bundle.keys[0].purposes = 1u << ID_PURPOSE_CONTROL | 1u << ID_PURPOSE_SERVICE_PORT |
				  1u << ID_PURPOSE_LIFECYCLE;
	str_copy(bundle.keys[1].kid, sizeof(bundle.keys[1].kid), "ctl-1");
	memcpy(bundle.keys[1].public, ctl_public, KEY_PUBLIC_BYTES);
	bundle.keys[1].purposes = 1u << ID_PURPOSE_LIFECYCLE;
	return 0;
}

static void refuse(const char *text, const char *code)
{
	struct capability c = { .port = 4242 };
	struct err e = { 0 };

	assert_int_equal(cap_verify(text, strlen(text), &bundle, &c, &e), -EACCES);
	assert_string_equal(e.code, code);
	assert_int_equal(c.port, 4242);          /* written only on success */
}

static void test_round_trip(void **st)
{
	struct capability c = example(), got;
	char text[CAP_TEXT_MAX];
	struct err e = { 0 };

	assert_int_equal(cap_sign(&c, &api, NOW, text, &e), 0);
	assert_int_equal(cap_verify(text, strlen(text), &bundle, &got, &e), 0);
	assert_int_equal(id_compare(&got.id, &c.id, NULL), ID_MATCH);
	assert_int_equal(got.purpose, c.purpose);
	assert_int_equal(got.access, c.access);
	assert_int_equal(got.iat_s, NOW);
	assert_int_equal(got.exp_s, NOW + CAP_LIFETIME_S);

	c.id.substrate = ID_SUBSTRATE_K8S;
	str_copy(c.id.pod_uid, sizeof(c.id.pod_uid), c.id.worker);
	c.purpose = ID_PURPOSE_SERVICE_PORT;
	c.access = ID_ACCESS_READ;
	c.port = 8080;
	c.protocol = ID_PROTOCOL_H2;
	assert_int_equal(cap_sign(&c, &api, NOW, text, &e), 0);
	assert_int_equal(cap_verify(text, strlen(text), &bundle, &got, &e), 0);
	assert_int_equal(got.port, 8080);
	assert_int_equal(got.protocol, ID_PROTOCOL_H2);
	assert_string_equal(got.id.pod_uid, c.id.pod_uid);
}

static void test_sign_refuses(void **st)
{
	struct key_signer k = api;
	struct capability c = example();
	char text[CAP_TEXT_MAX];

	c.port = 80;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	c.purpose = ID_PURPOSE_SERVICE_PORT;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c.port = 80;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	c.id.generation = 0;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	str_copy(c.id.tenant, sizeof(c.id.tenant), "a\",\"x\":\"b");
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	/* Numbers that have no name. */
	c = example();
	c.purpose = ID_PURPOSE_COUNT;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	c.purpose = ID_PURPOSE_LIFECYCLE;
	c.access = ID_ACCESS_COUNT;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	c.purpose = ID_PURPOSE_SERVICE_PORT;
	c.port = 80;
	c.protocol = ID_PROTOCOL_COUNT;
	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
	c = example();
	assert_int_equal(cap_sign(&c, &api, -1, text, NULL), -EINVAL);
	str_copy(k.kid, sizeof(k.kid), "a\"");
	assert_int_equal(cap_sign(&c, &k, NOW, text, NULL), -EINVAL);
}

/* Every byte of the token is covered: signature, claims or footer. */
static void test_altered(void **st)
{
	struct capability c = example(), got;
	char text[CAP_TEXT_MAX];

	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), 0);
	for (size_t i = 0; text[i]; i++) {
		char was = text[i];

		text[i] = was == 'A' ? 'B' : 'A';
		assert_int_equal(cap_verify(text, strlen(text), &bundle, &got, NULL), -EACCES);
		text[i] = was;
	}
	for (size_t n = 0; n < strlen(text); n++)
		assert_int_equal(cap_verify(text, n, &bundle, &got, NULL), -EACCES);
	assert_int_equal(cap_verify(text, strlen(text), &bundle, &got, NULL), 0);
}

static void test_keys(void **st)
{
	struct capability c = example(), got;
	struct key_signer other;
	uint8_t public[KEY_PUBLIC_BYTES];
	char text[CAP_TEXT_MAX];

	/* Another key under a known id; an unknown id; a key that may not sign this purpose. */
	assert_int_equal(key_generate("api-1", &other, public), 0);
	assert_int_equal(cap_sign(&c, &other, NOW, text, NULL), 0);
	refuse(text, "capability-signature");
	str_copy(other.kid, sizeof(other.kid), "api-9");
	assert_int_equal(cap_sign(&c, &other, NOW, text, NULL), 0);
	refuse(text, "capability-key");
	assert_int_equal(cap_sign(&c, &ctl, NOW, text, NULL), 0);
	refuse(text, "capability-purpose");
	c.purpose = ID_PURPOSE_LIFECYCLE;
	assert_int_equal(cap_sign(&c, &ctl, NOW, text, NULL), -EINVAL);  /* it names no operation */
	c.access = ID_ACCESS_STOP;
	assert_int_equal(cap_sign(&c, &ctl, NOW, text, NULL), 0);
	assert_int_equal(cap_verify(text, strlen(text), &bundle, &got, NULL), 0);
}

/* One word per operation of the life cycle; each is for that one alone. */
static void test_operations(void **st)
{
	struct capability c = example();
	char text[CAP_TEXT_MAX];
	enum id_access a;

	for (int has = 0; has < ID_ACCESS_COUNT; has++) {
		bool operation = has >= ID_ACCESS_DATA_COUNT;

		c.purpose = operation ? ID_PURPOSE_CONTROL : ID_PURPOSE_LIFECYCLE;
		c.access = (enum id_access)has;
		assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), -EINVAL);
		assert_int_equal(id_access_of(id_access_names[has], &a), operation ? 0 : -EINVAL);
		assert_true(!operation || (int)a == has);
		for (int wanted = 0; wanted < ID_ACCESS_COUNT; wanted++) {
			bool data = !operation && wanted < ID_ACCESS_DATA_COUNT;

			assert_int_equal(id_access_allows(ID_PURPOSE_LIFECYCLE,
							  (enum id_access)has,
							  (enum id_access)wanted),
					 operation && has == wanted);
			assert_int_equal(id_access_allows(ID_PURPOSE_CONTROL, (enum id_access)has,
							  (enum id_access)wanted),
					 data && has >= wanted);
		}
	}
	assert_int_equal(id_access_of("", &a), -EINVAL);
	assert_int_equal(id_access_of("Start", &a), -EINVAL);
}

/* Claims that are signed by the right key, but wrong. */
#define HEAD "{\"iss\":\"space\",\"aud\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11\","
#define TIMES "\"iat\":1800000000,\"exp\":1800000120,"
#define WHO "\"ten\":\"acme\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"microvm\",\"pod\":\"\",\"gen\":7,"
#define ACT "\"act\":\"01020300000000000000000000000000\",\"att\":3,"
#define WHAT "\"pur\":\"control\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\"}"

static const char good_claims[] = HEAD TIMES WHO ACT WHAT;
static const char *const bad_claims[] = {
	"",
	"[]",
	"{}",
	"null",
	"1",
	HEAD TIMES WHO ACT WHAT "x",
	HEAD TIMES WHO ACT "\"pur\":\"control\",\"acc\":\"write\",\"prt\":0}", /* missing */
	HEAD TIMES WHO ACT
	"\"pur\":\"control\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\",\"x\":1}", /* unknown */
	HEAD TIMES WHO ACT
	"\"pur\":\"control\",\"acc\":\"write\",\"prt\":0,\"pr0\":\"\"}", /* renamed */
	HEAD TIMES WHO ACT "\"gen\":8," WHAT,				 /* twice */
	HEAD TIMES WHO ACT
	"\"pur\":\"control\",\"acc\":\"write\",\"prt\":\"0\",\"pro\":\"\"}", /* type */
	HEAD TIMES WHO ACT
	"\"pur\":\"control\",\"acc\":\"write\",\"prt\":0.0,\"pro\":\"\"}",
	HEAD TIMES WHO ACT
	"\"pur\":\"control\",\"acc\":\"write\",\"prt\":80,\"pro\":\"\"}", /* profile */
	HEAD TIMES WHO ACT
	"\"pur\":\"service-port\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\"}",
	HEAD TIMES WHO ACT
	"\"pur\":\"service-port\",\"acc\":\"write\",\"prt\":65536,\"pro\":\"tcp\"}",
	HEAD TIMES WHO ACT                                              /* 80 in 16 bits */
	"\"pur\":\"service-port\",\"acc\":\"write\",\"prt\":65616,\"pro\":\"tcp\"}",
	HEAD TIMES WHO ACT
	"\"pur\":\"service-port\",\"acc\":\"write\",\"prt\":80,\"pro\":\"udp\"}",
	HEAD TIMES WHO ACT "\"pur\":\"Control\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\"}",
	HEAD TIMES WHO ACT "\"pur\":\"control\",\"acc\":\"admin\",\"prt\":0,\"pro\":\"\"}",
	HEAD TIMES WHO ACT "\"pur\":\"control\",\"acc\":\"start\",\"prt\":0,\"pro\":\"\"}",
	HEAD TIMES WHO ACT
	"\"pur\":\"lifecycle\",\"acc\":\"write\",\"prt\":0,\"pro\":\"\"}",
	HEAD TIMES WHO "\"act\":\"00000000000000000000000000000000\",\"att\":3," WHAT,
	HEAD TIMES WHO "\"act\":\"0102030000000000000000000000000\",\"att\":3," WHAT,
	HEAD TIMES WHO "\"act\":\"010203000000000000000000000000AA\",\"att\":3," WHAT,
	HEAD TIMES WHO "\"act\":\"01020300000000000000000000000000\",\"att\":0," WHAT,
	HEAD TIMES WHO "\"act\":\"01020300000000000000000000000000\",\"att\":-1," WHAT,
	HEAD TIMES WHO
	"\"act\":\"01020300000000000000000000000000\",\"att\":9007199254740993," WHAT,
	HEAD TIMES WHO "\"act\":[\"01020300000000000000000000000000\"],\"att\":3," WHAT,
	HEAD "\"iat\":1800000000,\"exp\":1800000121," WHO ACT WHAT, /* too long a life */
	HEAD "\"iat\":1800000000,\"exp\":1800000000," WHO ACT WHAT,
	HEAD "\"iat\":1800000000.5,\"exp\":1800000120," WHO ACT WHAT,
	HEAD "\"iat\":-5,\"exp\":100," WHO ACT WHAT,
	"{\"iss\":\"spac\",\"aud\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11\"," TIMES WHO ACT
		WHAT,
	"{\"iss\":\"space2\",\"aud\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11\"," TIMES WHO
		ACT WHAT,
	"{\"iss\":\"space\",\"aud\":\"\"," TIMES WHO ACT WHAT,
	"{\"iss\":\"space\",\"aud\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11\\u0000\"," TIMES
		WHO ACT WHAT,
	HEAD TIMES
	"\"ten\":\"acme\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"k8s\",\"pod\":\"\",\"gen\":7," ACT
		WHAT,
	HEAD TIMES
	"\"ten\":\"acme\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"vm\",\"pod\":\"\",\"gen\":7," ACT
		WHAT,
	HEAD TIMES
	"\"ten\":\"acme\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"microvm\",\"pod\":0,\"gen\":7," ACT
		WHAT,
	HEAD TIMES
	"\"ten\":\"acme\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"microvm\","
	"\"pod\":\"6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c110\",\"gen\":7," ACT WHAT,
	HEAD TIMES
	"\"ten\":\"ACME\",\"sbx\":\"iabcdefghij0123456789\",\"sub\":\"microvm\",\"pod\":\"\",\"gen\":7," ACT
		WHAT,
	HEAD TIMES
	"\"ten\":\"acme\",\"sbx\":\"iabcdefghij012345678\",\"sub\":\"microvm\",\"pod\":\"\",\"gen\":7," ACT
		WHAT,
};

static void test_claims(void **st)
{
	autofree char *ok =
		paseto_sign(good_claims, strlen(good_claims), "{\"kid\":\"api-1\"}", NULL, 0, api.secret);
	struct capability c;
	struct err e = { 0 };

	assert_int_equal(cap_verify(ok, strlen(ok), &bundle, &c, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad_claims); i++) {
		autofree char *text = paseto_sign(bad_claims[i], strlen(bad_claims[i]), "{\"kid\":\"api-1\"}",
						  NULL, 0, api.secret);

		refuse(text, "capability-malformed");
	}
	/* Blanks are JSON too: so many of them are not read. */
	autofree char *padded = x_alloc(2000);
	memset(padded, ' ', 1999);
	memcpy(padded, good_claims, strlen(good_claims));
	autofree char *long_text = paseto_sign(padded, 1025, "{\"kid\":\"api-1\"}", NULL, 0,
					       api.secret);
	refuse(long_text, "capability-malformed");
	autofree char *just = paseto_sign(padded, 1024, "{\"kid\":\"api-1\"}", NULL, 0, api.secret);
	assert_int_equal(cap_verify(just, strlen(just), &bundle, &c, &e), 0);
	/* A footer that another reader would understand otherwise. */
	autofree char *two = paseto_sign(good_claims, strlen(good_claims), "{\"kid\":\"x\",\"kid\":\"api-1\"}",
					 NULL, 0, api.secret);
	autofree char *none = paseto_sign(good_claims, strlen(good_claims), "", NULL, 0, api.secret);
	refuse(two, "capability-malformed");
	refuse(none, "capability-malformed");
}

static void test_time(void **st)
{
	struct capability c = example();

	c.iat_s = NOW;
	c.exp_s = NOW + CAP_LIFETIME_S;
	assert_int_equal(cap_check_time(&c, NOW, NULL), 0);
	assert_int_equal(cap_check_time(&c, NOW + 135, NULL), 0);
	assert_int_equal(cap_check_time(&c, NOW + 136, NULL), -EACCES);
	assert_int_equal(cap_check_time(&c, NOW - 15, NULL), 0);
	assert_int_equal(cap_check_time(&c, NOW - 16, NULL), -EACCES);
}

static int cached(struct cap_cache *cc, const char *text, int64_t now, struct capability *ret,
		  struct err *e)
{
	return cap_cache_verify(cc, text, strlen(text), &bundle, now, ret, e);
}

static void test_cache(void **st)
{
	struct cap_cache *cc = cap_cache_new(8);
	struct capability c = example(), got;
	struct err e = { 0 };
	char text[CAP_TEXT_MAX];
	uint8_t was;

	assert_int_equal(cap_sign(&c, &api, NOW, text, NULL), 0);
	assert_int_equal(cached(cc, text, NOW, &got, &e), 0);
	/* It is a hit: the key is not asked again ... */
	was = bundle.keys[0].public[0];
	bundle.keys[0].public[0] ^= 1;
	assert_int_equal(cached(cc, text, NOW, &got, &e), 0);
	assert_int_equal(got.id.generation, 7);
	/* ... until its time is over, or the bundle is another one, or the cache was cleared. */
	assert_int_equal(cached(cc, text, NOW + 136, &got, &e), -EACCES);
	assert_string_equal(e.code, "capability-expired");
	assert_int_equal(cached(cc, text, NOW, &got, &e), -EACCES);
	bundle.keys[0].public[0] = was;
	assert_int_equal(cached(cc, text, NOW, &got, &e), 0);
	bundle.keys[0].public[0] ^= 1;
	bundle.number++;
	assert_int_equal(cached(cc, text, NOW, &got, &e), -EACCES);
	bundle.number--;
	assert_int_equal(cached(cc, text, NOW, &got, &e), 0);
	cap_cache_clear(cc);
	assert_int_equal(cached(cc, text, NOW, &got, &e), -EACCES);
	bundle.keys[0].public[0] = was;
	/* A refusal is not kept, and a token too early is refused though its signature is right. */
	assert_int_equal(cached(cc, text, NOW - 16, &got, &e), -EACCES);
	assert_int_equal(cached(cc, text, NOW, &got, &e), 0);
	cap_cache_free(cc);
	cap_cache_free(NULL);
}

/* More tokens than entries: each answer is right. */
static void test_cache_full(void **st)
{
	struct cap_cache *cc = cap_cache_new(8);
	struct capability c = example(), got;
	char text[64][CAP_TEXT_MAX];

	for (int i = 0; i < 64; i++) {
		c.id.generation = (uint64_t)i + 1;
		assert_int_equal(cap_sign(&c, &api, NOW + i % 7, text[i], NULL), 0);
	}
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 64; i++) {
			assert_int_equal(cached(cc, text[i], NOW, &got, NULL), 0);
			assert_int_equal(got.id.generation, i + 1);
		}
	}
	cap_cache_free(cc);
}

/* ---- Bundles ---- */

static int open_text(const char *text, struct key_bundle *ret, struct err *e)
{
	return bundle_open(text, strlen(text), root_public, ret, e);
}

static void test_bundle(void **st)
{
	autofree char *text = NULL;
	struct key_bundle got;
	struct err e = { 0 };

	assert_int_equal(bundle_sign(&bundle, &root, &text, &e), 0);
	assert_int_equal(open_text(text, &got, &e), 0);
	assert_int_equal(got.number, 1);
	assert_int_equal(got.n_keys, 2);
	assert_memory_equal(bundle_find(&got, "ctl-1")->public, ctl_public, KEY_PUBLIC_BYTES);
	assert_int_equal(bundle_find(&got, "ctl-1")->purposes, 1u << ID_PURPOSE_LIFECYCLE);
	assert_null(bundle_find(&got, "root"));
	assert_int_equal(bundle_open(text, strlen(text), api_public, &got, &e), -EACCES);
	assert_string_equal(e.code, "bundle-signature");
	for (size_t i = 0; text[i]; i += 7) {
		char was = text[i];

		text[i] = was == 'A' ? 'B' : 'A';
		assert_int_equal(open_text(text, &got, &e), -EACCES);
		text[i] = was;
	}
}

static void test_bundle_full(void **st)
{
	static struct key_bundle b;
	struct key_bundle got;
	autofree char *text = NULL;

	b.number = UINT64_C(1) << 53;
	for (b.n_keys = 0; b.n_keys < BUNDLE_KEYS_MAX; b.n_keys++) {
		struct key_entry *k = &b.keys[b.n_keys];

		str_format(k->kid, sizeof(k->kid), "a-key-with-a-name-of-32-bytes-%02u", b.n_keys);
		k->purposes = (1u << ID_PURPOSE_COUNT) - 1;
	}
	assert_int_equal(bundle_sign(&b, &root, &text, NULL), 0);
	assert_true(strlen(text) < BUNDLE_BYTES_MAX);
	assert_int_equal(open_text(text, &got, NULL), 0);
	assert_int_equal(got.n_keys, BUNDLE_KEYS_MAX);
}

#define PUB "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void refuse_to_sign(const struct key_bundle *b)
{
	autofree char *text = NULL;

	assert_int_equal(bundle_sign(b, &root, &text, NULL), -EINVAL);
	assert_null(text);
}

static void test_bundle_sign_refuses(void **st)
{
	struct key_bundle b = bundle;

	b.number = 0;
	refuse_to_sign(&b);
	b.number = (UINT64_C(1) << 53) + 1;
	refuse_to_sign(&b);
	b = bundle;
	b.n_keys = 0;
	refuse_to_sign(&b);
	b = bundle;
	b.keys[1].purposes |= 1u << ID_PURPOSE_COUNT;
	refuse_to_sign(&b);
	b = bundle;
	str_copy(b.keys[1].kid, sizeof(b.keys[1].kid), b.keys[0].kid);
	refuse_to_sign(&b);
}

static void test_bundle_too_many(void **st)
{
	struct key_bundle got = { .number = 4242 };
	struct buf json;
	autofree char *text = NULL;
	struct err e = { 0 };

	buf_init(&json, PASETO_MESSAGE_MAX);
	buf_puts(&json, "{\"number\":1,\"keys\":[");
	for (int i = 0; i < 2 * BUNDLE_KEYS_MAX; i++)
		buf_putf(&json, "%s{\"kid\":\"a%d\",\"public\":\"" PUB "\",\"purposes\":[\"control\"]}",
			 i ? "," : "", i);
	buf_puts(&json, "]}");
	text = paseto_sign(buf_data(&json), buf_len(&json), "{\"kid\":\"root\"}", NULL, 0,
			   root.secret);
	buf_done(&json);
	assert_int_equal(open_text(text, &got, &e), -EACCES);
	assert_string_equal(e.code, "bundle-malformed");
	assert_int_equal(got.number, 4242);
}

static void test_bundle_malformed(void **st)
{
#define KEY(k) "{\"kid\":\"" k "\",\"public\":\"" PUB "\",\"purposes\":[\"control\"]}"
	static const char *const bad[] = {
		"",
		"{}",
		"[]",
		"{\"number\":1,\"keys\":[]}",
		"{\"number\":0,\"keys\":[" KEY("a") "]}",
		"{\"number\":\"1\",\"keys\":[" KEY("a") "]}",
		"{\"number\":1,\"keys\":[" KEY("a") "],\"x\":1}",
		"{\"number\":1,\"keys\":[" KEY("a") "," KEY("a") "]}",
		"{\"number\":1,\"keys\":[" KEY("root") "]}",
		"{\"number\":1,\"keys\":[" KEY("A") "]}",
		"{\"number\":1,\"keys\":[7]}",
		"{\"number\":1,\"keys\":{}}",
		"{\"number\":1,\"number\":2,\"keys\":[" KEY("a") "]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"" PUB "\",\"purposes\":[]}]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"" PUB
		"\",\"purposes\":[\"root\"]}]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"" PUB
		"\",\"purposes\":[\"control\",\"control\"]}]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"" PUB
		"00\",\"purposes\":[\"control\"]}]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"0011\",\"purposes\":[\"control\"]}]}",
		"{\"number\":1,\"keys\":[{\"kid\":\"a\",\"public\":\"" PUB
		"\",\"purposes\":[\"control\"],\"x\":1}]}",
		"{\"number\":9007199254740993,\"keys\":[" KEY("a") "]}",
	};
	struct key_bundle got;
	struct err e = { 0 };
	static const char good[] = "{\"number\":1,\"keys\":[" KEY("a") "]}";
	autofree char *ok =
		paseto_sign(good, strlen(good), "{\"kid\":\"root\"}", NULL, 0, root.secret);
	autofree char *other_kid =
		paseto_sign(good, strlen(good), "{\"kid\":\"api-1\"}", NULL, 0, root.secret);

	assert_int_equal(open_text(ok, &got, &e), 0);
	assert_int_equal(open_text(other_kid, &got, &e), -EACCES);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		autofree char *text = paseto_sign(bad[i], strlen(bad[i]), "{\"kid\":\"root\"}",
						  NULL, 0, root.secret);

		assert_int_equal(open_text(text, &got, &e), -EACCES);
		assert_string_equal(e.code, "bundle-malformed");
	}
	autofree char *big = x_alloc(100000);
	memset(big, 'A', 99999);
	memcpy(big, PASETO_HEADER, strlen(PASETO_HEADER));
	assert_int_equal(open_text(big, &got, &e), -EACCES);
}

static void test_rotation(void **st)
{
	struct key_bundle next = bundle, two;
	struct capability c = example(), got;
	struct key_signer api2;
	char old_text[CAP_TEXT_MAX], new_text[CAP_TEXT_MAX];

	/*
	 * The next bundle has both keys, so what either has signed passes; the one after it only
	 * the new one.
	 */
	assert_int_equal(cap_sign(&c, &api, NOW, old_text, NULL), 0);
	next.number = 2;
	str_copy(next.keys[2].kid, sizeof(next.keys[2].kid), "api-2");
	next.keys[2].purposes = next.keys[0].purposes;
	next.n_keys = 3;
	assert_int_equal(key_generate("api-2", &api2, next.keys[2].public), 0);
	assert_int_equal(cap_sign(&c, &api2, NOW, new_text, NULL), 0);
	assert_int_equal(bundle_may_replace(&bundle, &next, NULL), 0);
	assert_int_equal(cap_verify(old_text, strlen(old_text), &next, &got, NULL), 0);
	assert_int_equal(cap_verify(new_text, strlen(new_text), &next, &got, NULL), 0);
	two = next;
	two.number = 3;
	two.keys[0] = two.keys[--two.n_keys];
	assert_int_equal(bundle_may_replace(&next, &two, NULL), 0);
	assert_int_equal(cap_verify(old_text, strlen(old_text), &two, &got, NULL), -EACCES);
	assert_int_equal(cap_verify(new_text, strlen(new_text), &two, &got, NULL), 0);
	/* Never back; the same number only with the same contents. */
	assert_int_equal(bundle_may_replace(&two, &next, NULL), -ESTALE);
	assert_int_equal(bundle_may_replace(&two, &two, NULL), 0);
	next.number = 3;
	assert_int_equal(bundle_may_replace(&two, &next, NULL), -ESTALE);
	next = two;
	next.keys[0].purposes = 1;
	assert_int_equal(bundle_may_replace(&two, &next, NULL), -ESTALE);
	next = two;
	next.keys[0].public[31] ^= 1;
	assert_int_equal(bundle_may_replace(&two, &next, NULL), -ESTALE);
	next = two;
	next.keys[0].kid[0] = 'x';
	assert_int_equal(bundle_may_replace(&two, &next, NULL), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paseto_vectors),
		cmocka_unit_test(test_paseto_forms),
		cmocka_unit_test(test_footer),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_sign_refuses),
		cmocka_unit_test(test_altered),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_operations),
		cmocka_unit_test(test_claims),
		cmocka_unit_test(test_time),
		cmocka_unit_test(test_cache),
		cmocka_unit_test(test_cache_full),
		cmocka_unit_test(test_bundle),
		cmocka_unit_test(test_bundle_full),
		cmocka_unit_test(test_bundle_malformed),
		cmocka_unit_test(test_bundle_sign_refuses),
		cmocka_unit_test(test_bundle_too_many),
		cmocka_unit_test(test_rotation),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
