/*
 * Manifests: round trip, every field missing, wrong, unknown; every difference is found and named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/alloc.h"
#include "vmm/manifest.h"

#define D1 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define D2 "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct manifest good = {
	.version = 1,
	.driver = "qemu",
	.vmm = D1,
	.accel = "tcg",
	.cpu_model = "max",
	.cpu_host = D1,
	.tsc_khz = 2596142,
	.device_set = 1,
	.memory_mib = 512,
	.vcpus = 1,
	.disk_bytes = 8ull << 30,
	.template_id = "base-0123456789abcdef",
	.kernel = "6.1.0-57-cloud-amd64",
	.kernel_digest = D1,
	.initrd_digest = D1,
	.cmdline = "console=ttyS0 quiet",
	.agent = "0.1.0",
	.created_ms = 1796018598000,
	.state_bytes = 22000,
	.state_digest = D2,
};

static char *text_of(json_t *obj)
{
	char *text = json_dumps(obj, JSON_COMPACT);

	assert_non_null(text);
	return text;
}

static void test_round_trip(void **state)
{
	struct manifest back;
	json_t *obj = manifest_to_json(&good, NULL);
	char *text = text_of(obj);

	assert_int_equal(manifest_parse(text, strlen(text), &back, NULL), 0);
	assert_memory_equal(&back, &good, sizeof(good));
	free(text);
	json_decref(obj);
}

static void expect_bad(json_t *obj)
{
	struct manifest back = { .version = 77 };
	struct err e = { 0 };
	char *text = text_of(obj);

	assert_int_equal(manifest_parse(text, strlen(text), &back, &e), -EBADMSG);
	assert_true(e.text[0] != '\0');
	assert_int_equal(back.version, 77);
	free(text);
}

/*
 * Each field in turn is left out, is of a wrong type, is empty or far too large; a field more is
 * there.
 */
static void test_strict(void **state)
{
	json_t *obj = manifest_to_json(&good, NULL);
	const char *key;
	json_t *value;

	json_object_foreach(obj, key, value) {
		json_t *copy = json_copy(obj);

		json_object_del(copy, key);
		expect_bad(copy);
		json_object_set_new(copy, key, json_null());
		expect_bad(copy);
		json_object_set_new(copy, key,
				    json_is_string(value) ? json_string("") : json_integer(-1));
		expect_bad(copy);
		if (json_is_string(value)) {
			json_object_set_new(copy, key,
					    json_pack("s++", D1 D1 D1 D1, D1 D1 D1 D1,
						      D1 D1 D1 D1));
			expect_bad(copy);
			json_object_set_new(copy, key, json_string("tab\tinside"));
			expect_bad(copy);
		} else if (strcmp(key, "created_ms") != 0) {
			json_object_set_new(copy, key, json_integer(1ll << 53));
			expect_bad(copy);
		}
		json_decref(copy);
	}
	json_object_set_new(obj, "more", json_integer(1));
	expect_bad(obj);
	json_decref(obj);
}

static void test_not_json(void **state)
{
	static const char *const bad[] = { "",
					   "{",
					   "[]",
					   "null",
					   "{\"version\":2}",
					   "{\"version\":1}",
					   "{\"version\":1,\"version\":1}",
					   "{\"version\":\"1\"}" };
	struct manifest back;
	char *big = x_alloc(MANIFEST_BYTES_MAX + 2);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(manifest_parse(bad[i], strlen(bad[i]), &back, NULL), -EBADMSG);
	memset(big, ' ', MANIFEST_BYTES_MAX + 1);
	assert_int_equal(manifest_parse(big, MANIFEST_BYTES_MAX + 1, &back, NULL), -EBADMSG);
	free(big);
}

static void expect_differ(const struct manifest *want, unsigned parts, unsigned part,
			  const char *name)
{
	struct err e = { 0 };
	int r = manifest_match(&good, want, parts, &e);

	if ((parts & part) == 0) {
		assert_int_equal(r, 0);
		return;
	}
	assert_int_equal(r, -EXDEV);
	assert_non_null(strstr(e.text, name));
	assert_string_equal(e.code, "snapshot-mismatch");
}

static void test_match(void **state)
{
	static const unsigned parts[] = { MANIFEST_HOST, MANIFEST_SHAPE, MANIFEST_SOFTWARE,
					  MANIFEST_ALL };

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		struct manifest want;

		assert_int_equal(manifest_match(&good, &good, parts[i], NULL), 0);
#define DIFFER(part, field, ...) \
	do { \
		want = good; \
		__VA_ARGS__; \
		expect_differ(&want, parts[i], part, #field); \
	} while (0)
		DIFFER(MANIFEST_HOST, driver, want.driver[0] = 'f');
		DIFFER(MANIFEST_HOST, vmm, want.vmm[0] = 'f');
		DIFFER(MANIFEST_HOST, accel, want.accel[0] = 'k');
		DIFFER(MANIFEST_HOST, cpu_model, want.cpu_model[0] = 'M');
		DIFFER(MANIFEST_HOST, cpu_host, want.cpu_host[3] = 'f');
		DIFFER(MANIFEST_HOST, tsc_khz, want.tsc_khz += 2000);
		DIFFER(MANIFEST_HOST, device_set, want.device_set++);
		DIFFER(MANIFEST_SHAPE, memory_mib, want.memory_mib++);
		DIFFER(MANIFEST_SHAPE, vcpus, want.vcpus++);
		DIFFER(MANIFEST_SHAPE, disk_bytes, want.disk_bytes++);
		DIFFER(MANIFEST_SOFTWARE, template_id, want.template_id[0] = 'c');
		DIFFER(MANIFEST_SOFTWARE, kernel, want.kernel[0] = '5');
		DIFFER(MANIFEST_SOFTWARE, kernel_digest, want.kernel_digest[0] = 'a');
		DIFFER(MANIFEST_SOFTWARE, initrd_digest, want.initrd_digest[0] = 'a');
		DIFFER(MANIFEST_SOFTWARE, cmdline, want.cmdline[0] = 'C');
		DIFFER(MANIFEST_SOFTWARE, agent, want.agent[0] = '9');
		DIFFER(0, created_ms, want.created_ms++);
		DIFFER(0, state_bytes, want.state_bytes++);
	}
}

/*
 * A small difference of the clock rate is measurement; a field that both sides lack is still a
 * refusal.
 */
static void test_match_edges(void **state)
{
	struct manifest a = good, b = good;

	b.tsc_khz += 300;
	assert_int_equal(manifest_match(&a, &b, MANIFEST_ALL, NULL), 0);
	b = good;
	a.vmm[0] = b.vmm[0] = '\0';
	assert_int_equal(manifest_match(&a, &b, MANIFEST_ALL, NULL), -EXDEV);
	assert_null(manifest_to_json(&a, NULL));
}

static void test_cpu_host(void **state)
{
	char tcg[MANIFEST_DIGEST_HEX + 1], kvm[MANIFEST_DIGEST_HEX + 1],
		again[MANIFEST_DIGEST_HEX + 1];

	assert_int_equal(manifest_cpu_host(VMM_ACCEL_TCG, tcg, NULL), 0);
	assert_int_equal(manifest_cpu_host(VMM_ACCEL_KVM, kvm, NULL), 0);
	assert_int_equal(manifest_cpu_host(VMM_ACCEL_KVM, again, NULL), 0);
	assert_int_equal(strlen(tcg), MANIFEST_DIGEST_HEX);
	assert_int_equal(strlen(kvm), MANIFEST_DIGEST_HEX);
	assert_string_equal(kvm, again);
	assert_string_not_equal(tcg, kvm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_strict),
		cmocka_unit_test(test_not_json),   cmocka_unit_test(test_match),
		cmocka_unit_test(test_match_edges), cmocka_unit_test(test_cpu_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
