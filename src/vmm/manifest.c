/*
 * Manifests; see manifest.h. One table says of every field its place, its form and the part it
 * belongs to.
 */
#include "vmm/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "ipc/ipc.h"

static const struct ipc_field fields[] = {
	IPC_F_U64(struct manifest, version, 0),
	IPC_F_STR(struct manifest, driver),
	IPC_F_STR(struct manifest, vmm),
	IPC_F_STR(struct manifest, accel),
	IPC_F_STR(struct manifest, cpu_model),
	IPC_F_STR(struct manifest, cpu_host),
	IPC_F_U64(struct manifest, tsc_khz, 0),
	IPC_F_U64(struct manifest, device_set, 0),
	IPC_F_U64(struct manifest, memory_mib, 0),
	IPC_F_U64(struct manifest, vcpus, 0),
	IPC_F_U64(struct manifest, disk_bytes, 0),
	IPC_F_STR(struct manifest, template_id),
	IPC_F_STR(struct manifest, kernel),
	IPC_F_STR(struct manifest, kernel_digest),
	IPC_F_STR(struct manifest, initrd_digest),
	IPC_F_STR(struct manifest, cmdline),
	IPC_F_STR(struct manifest, agent),
	IPC_F_U64(struct manifest, created_ms, 0),
	IPC_F_U64(struct manifest, state_bytes, 0),
	IPC_F_STR(struct manifest, state_digest),
	IPC_F_END,
};

#define HEX "0123456789abcdef"
#define WORD "abcdefghijklmnopqrstuvwxyz0123456789-_."
#define RELEASE WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZ+~:"
#define PRINTABLE RELEASE " !\"#$%&'()*,/;<=>?@[\\]^`{|}"

enum rule_kind { RULE_TEXT, RULE_NUMBER, RULE_TSC };

/* min and max: of the length of a text, of the value of a number. */
static const struct rule {
	const char *name;
	enum rule_kind kind;
	unsigned part;
	size_t off;
	uint64_t min, max;
	const char *alphabet;
} rules[] = {
#define TEXT(f, part, min, max, alphabet) \
	{ #f, RULE_TEXT, part, offsetof(struct manifest, f), min, max, alphabet }
#define DIGEST(f, part) TEXT(f, part, MANIFEST_DIGEST_HEX, MANIFEST_DIGEST_HEX, HEX)
#define NUMBER(f, part, min, max) { #f, RULE_NUMBER, part, offsetof(struct manifest, f), min, max, NULL }
	TEXT(driver, MANIFEST_HOST, 1, 15, WORD),
	DIGEST(vmm, MANIFEST_HOST),
	TEXT(accel, MANIFEST_HOST, 3, 3, WORD),
	TEXT(cpu_model, MANIFEST_HOST, 1, 31, RELEASE ",="),
	DIGEST(cpu_host, MANIFEST_HOST),
	{ "tsc_khz", RULE_TSC, MANIFEST_HOST, offsetof(struct manifest, tsc_khz), 100000, 10000000,
	  NULL },
	NUMBER(device_set, MANIFEST_HOST, 1, 1000),
	NUMBER(memory_mib, MANIFEST_SHAPE, VMM_MEMORY_MIB_MIN, VMM_MEMORY_MIB_MAX),
	NUMBER(vcpus, MANIFEST_SHAPE, 1, VMM_VCPUS_MAX),
	NUMBER(disk_bytes, MANIFEST_SHAPE, 1 << 20, MANIFEST_DISK_BYTES_MAX),
	TEXT(template_id, MANIFEST_SOFTWARE, 1, 63, WORD),
	TEXT(kernel, MANIFEST_SOFTWARE, 1, 63, RELEASE),
	DIGEST(kernel_digest, MANIFEST_SOFTWARE),
	DIGEST(initrd_digest, MANIFEST_SOFTWARE),
	TEXT(cmdline, MANIFEST_SOFTWARE, 1, VMM_CMDLINE_MAX - 1, PRINTABLE),
	TEXT(agent, MANIFEST_SOFTWARE, 1, 31, RELEASE),
	NUMBER(created_ms, 0, 0, 1ull << 53),
	NUMBER(state_bytes, 0, 1, VMM_STATE_BYTES_MAX),
	DIGEST(state_digest, 0),
};

_Static_assert(ARRAY_LEN(rules) + 2 == ARRAY_LEN(fields), "every field but the version has a rule");

static const char *text_of(const struct manifest *m, const struct rule *r)
{
	return (const char *)m + r->off;
}

static uint64_t number_of(const struct manifest *m, const struct rule *r)
{
	uint64_t v;

	memcpy(&v, (const char *)m + r->off, sizeof(v));
	return v;
}

static bool rule_holds(const struct manifest *m, const struct rule *r)
{
	if (r->kind == RULE_TEXT)
		return str_is(text_of(m, r), r->min, r->max, r->alphabet);
	return number_of(m, r) >= r->min && number_of(m, r) <= r->max;
}

static int check(const struct manifest *m, struct err *e)
{
	if (m->version != MANIFEST_VERSION)
		return err_set(e, -EBADMSG,
			       "the manifest has version %" PRIu64 ", this program knows %d",
			       m->version, MANIFEST_VERSION);
	for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
		if (!rule_holds(m, &rules[i]))
			return err_set(e, -EBADMSG, "the manifest's field %s has no valid value",
				       rules[i].name);
	}
	return 0;
}

int manifest_from_json(json_t *obj, struct manifest *ret, struct err *e)
{
	struct manifest m = { 0 };
	json_t *version = json_is_object(obj) ? json_object_get(obj, "version") : NULL;
	int r;

	/* Said first: the fields of another version would only give a misleading reason. */
	if (!json_is_integer(version) || json_integer_value(version) != MANIFEST_VERSION)
		return err_set(e, -EBADMSG, "this is no manifest of version %d", MANIFEST_VERSION);
	r = ipc_decode(fields, obj, &m, sizeof(m), e);
	if (r < 0) {
		err_wrap(e, "manifest");
		return -EBADMSG;
	}
	r = check(&m, e);
	if (r < 0)
		return r;
	*ret = m;
	return 0;
}

int manifest_parse(const char *text, size_t n, struct manifest *ret, struct err *e)
{
	json_t *obj;
	int r;

	if (n > MANIFEST_BYTES_MAX)
		return err_set(e, -EBADMSG, "the manifest is larger than %d bytes",
			       MANIFEST_BYTES_MAX);
	obj = ipc_parse_json(text, n, 2, e);
	if (!obj) {
		err_wrap(e, "manifest");
		return -EBADMSG;
	}
	r = manifest_from_json(obj, ret, e);
	json_decref(obj);
	return r;
}

json_t *manifest_to_json(const struct manifest *m, struct err *e)
{
	return check(m, e) < 0 ? NULL : ipc_encode(fields, m);
}

static int differ(const struct rule *r, const struct manifest *have, const struct manifest *want,
		  struct err *e)
{
	if (r->kind == RULE_TEXT)
		return err_set_code(e, -EXDEV, "snapshot-mismatch",
				    "the snapshot was made with %s '%.64s', here is '%.64s'",
				    r->name, text_of(have, r), text_of(want, r));
	return err_set_code(e, -EXDEV, "snapshot-mismatch",
			    "the snapshot was made with %s %" PRIu64 ", here is %" PRIu64, r->name,
			    number_of(have, r), number_of(want, r));
}

static bool same(const struct rule *r, const struct manifest *have, const struct manifest *want)
{
	switch (r->kind) {
	case RULE_TEXT:
		return str_eq(text_of(have, r), text_of(want, r));
	case RULE_TSC:
		return number_of(have, r) <= UINT32_MAX && number_of(want, r) <= UINT32_MAX &&
		       vmm_tsc_same((uint32_t)number_of(have, r), (uint32_t)number_of(want, r));
	case RULE_NUMBER:
		break;
	}
	return number_of(have, r) == number_of(want, r);
}

int manifest_match(const struct manifest *have, const struct manifest *want, unsigned parts,
		   struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
		const struct rule *r = &rules[i];

		if ((r->part & parts) == 0)
			continue;
		/* A value that is missing on either side denies, even where both miss it. */
		if (!rule_holds(have, r) || !rule_holds(want, r) || !same(r, have, want))
			return differ(r, have, want, e);
	}
	return 0;
}

/* ---- The CPU ---- */

#define CPUINFO_BYTES_MAX (4u << 20)

/*
 * Of the first processor in /proc/cpuinfo: lines that say what a guest can see. Speed and microcode
 * may change.
 */
static const char *const cpuinfo_keys[] = { "vendor_id", "cpu family", "model\t",
					    "stepping",	 "flags",      NULL };

static bool cpuinfo_wanted(const char *line)
{
	for (const char *const *k = cpuinfo_keys; *k; k++) {
		if (str_starts(line, *k))
			return true;
	}
	return false;
}

static void digest_cpuinfo(char *text, char ret[MANIFEST_DIGEST_HEX + 1])
{
	unsigned char digest[crypto_hash_sha256_BYTES];
	crypto_hash_sha256_state h;
	char *save = NULL;

	crypto_hash_sha256_init(&h);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (str_starts(line, "processor") && !str_ends(line, ": 0"))
			break;
		if (!cpuinfo_wanted(line))
			continue;
		crypto_hash_sha256_update(&h, (const unsigned char *)line, strlen(line) + 1);
	}
	crypto_hash_sha256_final(&h, digest);
	str_hex(ret, digest, sizeof(digest));
}

int manifest_cpu_host(enum vmm_accel accel, char ret[MANIFEST_DIGEST_HEX + 1], struct err *e)
{
	autofree char *text = NULL;
	size_t n;
	int r;

	if (accel == VMM_ACCEL_TCG) {
		memset(ret, '0', MANIFEST_DIGEST_HEX);
		ret[MANIFEST_DIGEST_HEX] = '\0';
		return 0;
	}
	r = fd_read_file(AT_FDCWD, "/proc/cpuinfo", CPUINFO_BYTES_MAX, &text, &n);
	if (r < 0)
		return err_errno(e, r, "cannot read /proc/cpuinfo");
	digest_cpuinfo(text, ret);
	return 0;
}
