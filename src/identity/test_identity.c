#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "identity/identity.h"

static const struct identity example = {
	.tenant = "acme",
	.sandbox = "iabcdefghij0123456789",
	.worker = "6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11",
	.substrate = ID_SUBSTRATE_MICROVM,
	.generation = 7,
	.activation = { 1, 2, 3 },
	.attempt = 1,
};

static void test_forms(void **st)
{
	assert_true(id_sandbox_ok("iabcdefghij0123456789"));
	assert_false(id_sandbox_ok(""));
	assert_false(id_sandbox_ok("i"));
	assert_false(id_sandbox_ok("xabcdefghij0123456789"));
	assert_false(id_sandbox_ok("iabcdefghij012345678"));
	assert_false(id_sandbox_ok("iabcdefghij01234567890"));
	assert_false(id_sandbox_ok("iABCDEFGHIJ0123456789"));
	assert_false(id_sandbox_ok("i../../../etc/passwd0"));
	assert_true(id_tenant_ok("a"));
	assert_true(id_tenant_ok("0-a"));
	assert_true(id_tenant_ok("abcdefghijklmnopqrstuvwxyz0123456789"));
	assert_false(id_tenant_ok("abcdefghijklmnopqrstuvwxyz01234567890"));
	assert_false(id_tenant_ok(""));
	assert_false(id_tenant_ok("-a"));
	assert_false(id_tenant_ok("a/b"));
	assert_true(id_uuid_ok(example.worker));
	assert_false(id_uuid_ok("6D0CB1C8-6F3B-4A55-9D43-0A6E3B1F2C11"));
	assert_false(id_uuid_ok("6d0cb1c86f3b-4a55-9d43-0a6e3b1f2c11-"));
	assert_false(id_uuid_ok("6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c1"));
}

static void test_new(void **st)
{
	char a[ID_SANDBOX_LEN + 1], b[ID_SANDBOX_LEN + 1], u[ID_UUID_LEN + 1];
	uint8_t x[ID_ACTIVATION_BYTES], y[ID_ACTIVATION_BYTES];

	for (int i = 0; i < 1000; i++) {
		assert_int_equal(id_new_sandbox(a), 0);
		assert_true(id_sandbox_ok(a));
		assert_int_equal(id_new_uuid(u), 0);
		assert_true(id_uuid_ok(u));
		assert_int_equal(u[14], '4');
		assert_non_null(strchr("89ab", u[19]));
	}
	assert_int_equal(id_new_sandbox(b), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(id_new_activation(x), 0);
	assert_int_equal(id_new_activation(y), 0);
	assert_memory_not_equal(x, y, sizeof(x));
}

static void test_check(void **st)
{
	struct identity id = example;

	assert_int_equal(id_check(&id, NULL), 0);
	id.substrate = ID_SUBSTRATE_K8S;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	str_copy(id.pod_uid, sizeof(id.pod_uid), example.worker);
	assert_int_equal(id_check(&id, NULL), 0);
	id.substrate = ID_SUBSTRATE_MICROVM;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id = example;
	id.generation = 0;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id.generation = (UINT64_C(1) << 53) + 1;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id = example;
	memset(id.activation, 0, sizeof(id.activation));
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id = example;
	id.attempt = 0;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id = example;
	id.worker[0] = '\0';
	assert_int_equal(id_check(&id, NULL), -EINVAL);
	id = example;
	id.substrate = ID_SUBSTRATE_COUNT;
	assert_int_equal(id_check(&id, NULL), -EINVAL);
}

static void compare(const struct identity *selected, const struct identity *installed,
		    enum id_verdict want, const char *why)
{
	const char *got = "unset";

	assert_int_equal(id_compare(selected, installed, &got), want);
	assert_int_equal(id_compare(selected, installed, NULL), want);
	if (why)
		assert_string_equal(got, why);
	else
		assert_null(got);
}

/* R-3, and I-2: 8 is refused where 7 runs, and the reverse. */
static void test_compare(void **st)
{
	struct identity other = example;

	compare(&example, &example, ID_MATCH, NULL);
	compare(&example, NULL, ID_REFRESH_ROUTE, "nothing installed");
	str_copy(other.tenant, sizeof(other.tenant), "other");
	compare(&other, &example, ID_DENY, "tenant");
	other = example;
	other.sandbox[1] = 'z';
	compare(&other, &example, ID_DENY, "sandbox");
	other.generation = 8;
	compare(&other, &example, ID_DENY, "sandbox");
	other = example;
	other.generation = 8;
	compare(&other, &example, ID_REFRESH_ROUTE, "generation");
	compare(&example, &other, ID_REFRESH_ROUTE, "generation");
	other = example;
	other.worker[0] = '7';
	compare(&other, &example, ID_REFRESH_ROUTE, "worker");
	other = example;
	other.substrate = ID_SUBSTRATE_K8S;
	str_copy(other.pod_uid, sizeof(other.pod_uid), example.worker);
	compare(&other, &example, ID_REFRESH_ROUTE, "substrate");
	struct identity pod = other;
	pod.pod_uid[0] = '1';
	compare(&pod, &other, ID_REFRESH_ROUTE, "pod");
	other = example;
	other.activation[15] = 1;
	compare(&other, &example, ID_REFRESH_ROUTE, "activation");
	other = example;
	other.attempt = 2;
	compare(&other, &example, ID_REFRESH_ROUTE, "attempt");
	compare(&example, &other, ID_REFRESH_ROUTE, "attempt");
}

static void test_missing_denies(void **st)
{
	struct identity other = example;

	other.generation = 0;
	compare(&other, &example, ID_DENY, "selected");
	compare(&other, NULL, ID_DENY, "selected");
	compare(&example, &other, ID_DENY, "installed");
	compare(&other, &other, ID_DENY, "selected");
	other = example;
	memset(other.activation, 0, sizeof(other.activation));
	compare(&other, &other, ID_DENY, "selected");
}

/* ---- Key files ---- */

static char dir[] = "/tmp/space-identity-XXXXXX";

static int make_dir(void **st)
{
	return mkdtemp(dir) && key_init() == 0 ? 0 : -1;
}

static int drop_dir(void **st)
{
	return rmdir(dir);
}

static void put_file(const char *path, const char *text, mode_t mode)
{
	assert_int_equal(fd_write_file(AT_FDCWD, path, text, strlen(text), mode), 0);
}

static void test_key_file(void **st)
{
	uint8_t public[KEY_PUBLIC_BYTES], again[KEY_PUBLIC_BYTES];
	struct key_signer a, b = { 0 };
	struct err e = { 0 };
	struct stat s;
	char path[64];

	str_format(path, sizeof(path), "%s/k.key", dir);
	assert_int_equal(key_generate("api-1", &a, public), 0);
	assert_int_equal(key_save(path, &a, &e), 0);
	assert_int_equal(stat(path, &s), 0);
	assert_int_equal(s.st_mode & 07777, 0400);
	assert_int_equal(key_load(path, &b, again, &e), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_memory_equal(public, again, sizeof(public));
	assert_int_equal(key_load(path, &b, NULL, &e), 0);
	/* A key is never overwritten. */
	assert_int_equal(key_save(path, &a, &e), -EEXIST);

	assert_int_equal(chmod(path, 0440), 0);
	assert_int_equal(key_load(path, &b, again, &e), -EPERM);
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(key_load(path, &b, again, &e), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(path, 12345, 12345), 0);
		/* Root has those of its services in hand; nobody else has another's. */
		assert_int_equal(key_load(path, &b, again, &e), 0);
		assert_int_equal(chmod(dir, 0755), 0);
		assert_int_equal(seteuid(12346), 0);
		assert_int_equal(key_load(path, &b, again, &e), -EACCES);
		assert_int_equal(seteuid(0), 0);
		assert_int_equal(chown(path, 0, 0), 0);
	}
	unlink(path);
	assert_int_equal(symlink("/dev/zero", path), 0);
	assert_int_equal(key_load(path, &b, again, &e), -ELOOP);
	unlink(path);
	assert_int_equal(mkfifo(path, 0400), 0);
	assert_int_equal(key_load(path, &b, again, &e), -EPERM);
	unlink(path);
	assert_int_equal(key_load(path, &b, again, &e), -ENOENT);
	key_signer_done(&a);
	static const uint8_t zero[sizeof(a.secret)];
	assert_memory_equal(a.secret, zero, sizeof(zero));
}

static void test_key_file_malformed(void **st)
{
#define SEED "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	static const char *const bad[] = {
		"",
		"\n",
		"{}",
		"{\"kid\":\"a\",\"secret\":\"" SEED "\"}",
		"{\"kid\":\"a\",\"secret\":\"" SEED "\"}\n\n",
		"{\"kid\":\"A\",\"secret\":\"" SEED "\"}\n",
		"{\"kid\":\"\",\"secret\":\"" SEED "\"}\n",
		"{\"secret\":\"" SEED "\",\"kid\":\"a\"}\n",
		"{\"kid\":\"a\",\"secret\":\"zz" SEED "\"}\n",
		"{\"kid\":\"a\",\"secret\":\"112233\"}\n",
		"{\"kid\": \"a\",\"secret\":\"" SEED "\"}\n",
		"{\"kid\":\"abcdefghijklmnopqrstuvwxyz0123456789\",\"secret\":\"" SEED "\"}\n",
	};
	static const char nul[] = "{\"kid\":\"a\",\"secret\":\"" SEED "\"}\n\0x";
	struct key_signer k = { 0 };
	struct err e = { 0 };
	char path[64];

	str_format(path, sizeof(path), "%s/bad.key", dir);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		put_file(path, bad[i], 0400);
		assert_int_equal(key_load(path, &k, NULL, &e), -EBADMSG);
		assert_int_equal(k.kid[0], 0);
	}
	put_file(path, "{\"kid\":\"a\",\"secret\":\"" SEED "\"}\n", 0400);
	assert_int_equal(key_load(path, &k, NULL, &e), 0);
	assert_string_equal(k.kid, "a");
	/* Something behind a NUL. */
	assert_int_equal(fd_write_file(AT_FDCWD, path, nul, sizeof(nul) - 1, 0400), 0);
	k.kid[0] = '\0';
	assert_int_equal(key_load(path, &k, NULL, &e), -EBADMSG);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_new),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_compare),
		cmocka_unit_test(test_missing_denies),
		cmocka_unit_test(test_key_file),
		cmocka_unit_test(test_key_file_malformed),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
