#include "identity/identity.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/str.h"

#define LOWER_DIGITS "abcdefghijklmnopqrstuvwxyz0123456789"
#define ID_NUMBER_MAX (UINT64_C(1) << 53)        /* what survives JSON */

const char *const id_substrate_names[] = { "microvm", "k8s" };
const char *const id_purpose_names[] = { "control", "service-port", "lifecycle" };
const char *const id_access_names[] = { "read",	  "write",  "create",  "start",
					"stop",	  "delete", "pause",   "resume",
					"console", "netlog", "netstats" };
const char *const id_protocol_names[] = { "", "http", "tcp", "h2" };
const char *const id_verdict_names[] = { "match", "refresh-route", "deny" };

static_assert(ARRAY_LEN(id_substrate_names) == ID_SUBSTRATE_COUNT, "names");
static_assert(ARRAY_LEN(id_purpose_names) == ID_PURPOSE_COUNT, "names");
static_assert(ARRAY_LEN(id_access_names) == ID_ACCESS_COUNT, "names");
static_assert(ARRAY_LEN(id_protocol_names) == ID_PROTOCOL_COUNT, "names");
static_assert(ARRAY_LEN(id_verdict_names) == ID_VERDICT_COUNT, "names");

int id_access_of(const char *operation, enum id_access *ret)
{
	for (int i = ID_ACCESS_DATA_COUNT; i < ID_ACCESS_COUNT; i++) {
		if (!str_eq(operation, id_access_names[i]))
			continue;
		*ret = (enum id_access)i;
		return 0;
	}
	return -EINVAL;
}

bool id_access_allows(enum id_purpose purpose, enum id_access has, enum id_access wanted)
{
	bool lifecycle = purpose == ID_PURPOSE_LIFECYCLE;

	if (lifecycle != (has >= ID_ACCESS_DATA_COUNT) ||
	    lifecycle != (wanted >= ID_ACCESS_DATA_COUNT))
		return false;
	return lifecycle ? has == wanted : has >= wanted;
}

static int random_bytes(void *dst, size_t n)
{
	uint8_t *p = dst;

	while (n > 0) {
		ssize_t r = getrandom(p, n, 0);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		n -= (size_t)r;
	}
	return 0;
}

bool id_sandbox_ok(const char *s)
{
	return s[0] == 'i' && str_is(s + 1, ID_SANDBOX_LEN - 1, ID_SANDBOX_LEN - 1, LOWER_DIGITS);
}

bool id_tenant_ok(const char *s)
{
	return s[0] != '-' && str_is(s, 1, ID_TENANT_MAX, LOWER_DIGITS "-");
}

/* Lower case only, so that one UUID has one spelling. */
bool id_uuid_ok(const char *s)
{
	if (!str_is(s, ID_UUID_LEN, ID_UUID_LEN, "0123456789abcdef-"))
		return false;
	for (int i = 0; i < ID_UUID_LEN; i++)
		if ((s[i] == '-') != (i == 8 || i == 13 || i == 18 || i == 23))
			return false;
	return true;
}

int id_new_sandbox(char dst[ID_SANDBOX_LEN + 1])
{
	const unsigned n = sizeof(LOWER_DIGITS) - 1;

	dst[0] = 'i';
	for (int i = 1; i < ID_SANDBOX_LEN;) {
		uint8_t b;
		int r = random_bytes(&b, 1);

		if (r < 0)
			return r;
		if (b < 256 / n * n)             /* else some letters would come more often */
			dst[i++] = LOWER_DIGITS[b % n];
	}
	dst[ID_SANDBOX_LEN] = '\0';
	return 0;
}

int id_new_uuid(char dst[ID_UUID_LEN + 1])
{
	uint8_t b[16];
	char hex[33];
	int r = random_bytes(b, sizeof(b));

	if (r < 0)
		return r;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	str_hex(hex, b, sizeof(b));
	return str_format(dst, ID_UUID_LEN + 1, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12,
			  hex + 16, hex + 20);
}

int id_new_activation(uint8_t dst[ID_ACTIVATION_BYTES])
{
	return random_bytes(dst, ID_ACTIVATION_BYTES);
}

static bool activation_ok(const uint8_t a[ID_ACTIVATION_BYTES])
{
	static const uint8_t none[ID_ACTIVATION_BYTES];

	return memcmp(a, none, sizeof(none)) != 0;
}

static bool pod_ok(const struct identity *id)
{
	return id->substrate == ID_SUBSTRATE_K8S ? id_uuid_ok(id->pod_uid) : id->pod_uid[0] == '\0';
}

static bool number_ok(uint64_t n)
{
	return n >= 1 && n <= ID_NUMBER_MAX;
}

int id_check(const struct identity *id, struct err *e)
{
	const char *bad = NULL;

	if (!id_tenant_ok(id->tenant))
		bad = "tenant";
	else if (!id_sandbox_ok(id->sandbox))
		bad = "sandbox";
	else if (!id_uuid_ok(id->worker))
		bad = "worker";
	else if ((unsigned)id->substrate >= ID_SUBSTRATE_COUNT)
		bad = "substrate";
	else if (!pod_ok(id))
		bad = "pod";
	else if (!number_ok(id->generation))
		bad = "generation";
	else if (!activation_ok(id->activation))
		bad = "activation";
	else if (!number_ok(id->attempt))
		bad = "attempt";
	return bad ? err_set(e, -EINVAL, "the identity's field \"%s\" is missing or malformed", bad)
		   : 0;
}

enum id_verdict id_compare(const struct identity *selected, const struct identity *installed,
			   const char **ret_why)
{
	const char *why_unused, **why = ret_why ? ret_why : &why_unused;

	if (id_check(selected, NULL) < 0) {
		*why = "selected";
		return ID_DENY;
	}
	if (!installed) {
		*why = "nothing installed";
		return ID_REFRESH_ROUTE;
	}
	if (id_check(installed, NULL) < 0) {
		*why = "installed";
		return ID_DENY;
	}
	if (!str_eq(selected->tenant, installed->tenant)) {
		*why = "tenant";
		return ID_DENY;
	}
	if (!str_eq(selected->sandbox, installed->sandbox)) {
		*why = "sandbox";
		return ID_DENY;
	}
	*why = !str_eq(selected->worker, installed->worker)	? "worker"
	       : selected->substrate != installed->substrate	? "substrate"
	       : !str_eq(selected->pod_uid, installed->pod_uid) ? "pod"
	       : selected->generation != installed->generation	? "generation"
	       : memcmp(selected->activation, installed->activation, ID_ACTIVATION_BYTES) != 0
		       ? "activation"
	       : selected->attempt != installed->attempt ? "attempt"
							 : NULL;
	return *why ? ID_REFRESH_ROUTE : ID_MATCH;
}
