#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "daemon/conf.h"

static char dir[] = "/tmp/space-test-conf-XXXXXX";
static char path[64];

static const struct conf good = {
	.instance = "default",
	.state_dir = "/var/lib/space/default",
	.run_dir = "/run/space/default",
	.cache_dir = "/var/cache/space",
	.lib_dir = "/usr/local/lib/space",
	.vmm = "/var/cache/space/vmm/0123",
	.kernel = "/var/cache/space/kernel/6/vmlinuz",
	.initrd = "/var/cache/space/initrd/0123/initrd.gz",
	.base_image = "/var/cache/space/base/0123/rootfs.img",
	.template_id = "base-0123456789abcdef",
	.cgroup_root = "space-default",
	.uid_base = 2000000000,
	.users = { 991, 992, 993, 994 },
	.worker = "0b8f9ab2-1d5c-4c57-9f6e-0f6d2b1c3a4e",
	.accel = "auto",
	.api_listen = "tcp:127.0.0.1:4983",
	.domain = "localhost:4983",
	.origins = "https://a.example http://b.example:8080",
	.max_sandboxes = 64,
	.network = { .allow = { "10.1.0.0/16", "fd00:1::/32" },
		     .deny = { "192.0.2.7/32" },
		     .nameservers = { "127.0.0.53", "2001:db8::53" },
		     .limits = { "connections=9" } },
};

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	return str_format(path, sizeof(path), "%s/conf.json", dir);
}

static int teardown(void **state)
{
	unlink(path);
	return rmdir(dir);
}

static void skip_unless_root(void)
{
	if (geteuid() != 0)
		skip();
}

static void test_round(void **state)
{
	struct conf c;
	struct err e = { 0 };

	skip_unless_root();
	assert_int_equal(conf_write(path, &good, &e), 0);
	assert_int_equal(conf_load(path, &c, &e), 0);
	assert_memory_equal(&c, &good, sizeof(c));
}

static void test_trust(void **state)
{
	struct conf c;
	struct err e = { 0 };

	skip_unless_root();
	assert_int_equal(conf_write(path, &good, &e), 0);
	assert_int_equal(chmod(path, 0664), 0);
	assert_int_equal(conf_load(path, &c, &e), -EPERM);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(chown(path, 1, 0), 0);
	assert_int_equal(conf_load(path, &c, &e), -EPERM);
	assert_int_equal(conf_load(dir, &c, &e), -EPERM);
	assert_int_equal(conf_load("/no/such", &c, &e), -ENOENT);
	assert_int_equal(conf_load("/dev/null", &c, &e), -EPERM);
}

static int load_text(const char *text, struct err *e)
{
	struct conf c;

	unlink(path);
	assert_int_equal(fd_write_file(AT_FDCWD, path, text, strlen(text), 0644), 0);
	return conf_load(path, &c, e);
}

/* Each change of a good text makes it a bad one. */
static const struct { const char *from, *to, *says; } strict_rows[] = {
	{ "\"accel\"", "\"accelerator\"", "not a field" },
	{ "\"accel\": \"auto\",", "", "accel is missing" },
	{ "\"auto\"", "\"fast\"", "accel must be" },
	{ "\"auto\"", "1", "accel must be" },
	{ "\"auto\"", "\"au\\u0000to\"", "not JSON" },
	{ "\"max_sandboxes\": 64", "\"max_sandboxes\": 64, \"max_sandboxes\": 65", "not JSON" },
	{ "\"max_sandboxes\": 64", "\"max_sandboxes\": 0", "max_sandboxes must be" },
	{ "\"max_sandboxes\": 64", "\"max_sandboxes\": 64.5", "max_sandboxes must be" },
	{ "\"max_sandboxes\": 64", "\"max_sandboxes\": -1", "max_sandboxes must be" },
	{ "\"max_sandboxes\": 64", "\"max_sandboxes\": 4294967360", "max_sandboxes must be" },
	{ "2000000000", "1000", "uid_base must be" },
	{ "2000000000", "4294967290", "uid_base must be" },
	{ "991", "0", "not root" },
	{ "991", "992", "are the same" },
	{ "991", "2000000001", "among the sandboxes" },
	{ "\"space-api\"", "\"space-apj\"", "space-api" },
	{ "\"space-api\": 991", "\"space-api\": 991, \"x\": 1", "unknown field" },
	{ "\"instance\": \"default\"", "\"instance\": \"Default\"", "instance must be" },
	{ "\"instance\": \"default\"", "\"instance\": \"1default\"", "instance must be" },
	{ "\"instance\": \"default\"", "\"instance\": \"thirteenchars\"", "instance is longer" },
	{ "/run/space", "run/space", "run_dir must be" },
	{ "/run/space", "/run/../space", "run_dir must be" },
	{ "/run/space", "/run//space", "run_dir must be" },
	{ "/run/space/default", "/run/space/", "run_dir must be" },
	{ "/run/space/default", "/", "run_dir must be" },
	{ "/run/space/default", "/run/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "run_dir must have at most 51" },
	{ "\"space-default\"", "\"a/b\"", "cgroup_root must be" },
	{ "\"space-default\"", "\"..\"", "cgroup_root must be" },
	{ "0b8f9ab2-", "0b8f9ab2", "worker must be" },
	{ "tcp:127.0.0.1:4983", "127.0.0.1:4983", "api_listen must be" },
	{ "tcp:127.0.0.1:4983", "tcp:0.0.0.0:4983", "must be a loopback" },
	{ "tcp:127.0.0.1:4983", "tcp:[::]:4983", "must be a loopback" },
	{ "\"plain_http\": \"\"", "\"plain_http\": \"everywhere\"", "plain_http must be" },
	{ "\"tls_listen\": \"\"", "\"tls_listen\": \"unix:/x\"", "tls_listen must be" },
	{ "localhost:4983", "localhost:99999", "domain must be" },
	{ "localhost:4983", "local host", "domain must be" },
	{ "https://a.example", "a.example", "origins must be" },
	{ "https://a.example", "https://", "origins must be" },
	{ "https://a.example", "https://a.example/", "origins must be" },
	{ "https://a.example", "https://a.example ", "origins must be" },
	{ "http://b.example:8080", "*", "origins must be" },
	{ "10.1.0.0/16", "10.1.0.1/16", "network.allow must have" },
	{ "10.1.0.0/16", "10.1.0.0", "network.allow must have" },
	{ "10.1.0.0/16", "10.1.0.0/33", "network.allow must have" },
	{ "10.1.0.0/16", "10.1/16", "network.allow must have" },
	{ "fd00:1::/32", "fd00:1::1/32", "network.allow must have" },
	{ "fd00:1::/32", "fd00:1::/129", "network.allow must have" },
	{ "\"10.1.0.0/16\"", "1", "network.allow must have" },
	{ "192.0.2.7/32", "192.0.2.7", "network.deny must have" },
	{ "127.0.0.53", "fe80::1%lo", "network.nameservers must have" },
	{ "connections=9", "connections", "network.limits must have" },
	{ "connections=9", "connections=x", "network.limits must have" },
	{ "connections=9", "=9", "network.limits must have" },
	{ "127.0.0.53", "dns.example", "network.nameservers must have" },
	{ "127.0.0.53", "1.1.1.1\", \"1.1.1.1\", \"1.1.1.1", "more than 3" },
	{ "\"allow\"", "\"allowed\"", "network.allowed" },
	{ "\"network\": {", "\"network\": [], \"x\": {", "\"x\" is not" },
	{ "{", "[{", "not JSON" },
	{ "}\n}", "}\n} x", "not JSON" },
};

static void test_strict(void **state)
{
	autofree char *text = conf_text(&good);
	struct conf c;
	struct err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(strict_rows); i++) {
		const char *at = strstr(text, strict_rows[i].from);
		autofree char *bad = NULL;

		assert_non_null(at);
		bad = x_asprintf("%.*s%s%s", (int)(at - text), text, strict_rows[i].to,
				 at + strlen(strict_rows[i].from));
		if (conf_parse(bad, strlen(bad), &c, &e) >= 0 || !strstr(e.text, strict_rows[i].says))
			fail_msg("row %zu (%s): %s", i, strict_rows[i].to, e.text);
	}
	assert_true(conf_parse("", 0, &c, &e) < 0);
	assert_true(conf_parse("[]", 2, &c, &e) < 0);
}

static void test_network(void **state)
{
	char text[CONF_NET_TEXT_MAX];
	struct conf c = good;
	struct err e = { 0 };

	assert_int_equal(conf_cidr(text, "FD00:0001::/32"), 0);
	assert_string_equal(text, "fd00:1::/32");
	assert_int_equal(conf_cidr(text, "0.0.0.0/0"), 0);
	assert_int_equal(conf_cidr(text, "10.0.0.0/"), -EINVAL);
	assert_int_equal(conf_cidr(text, "/8"), -EINVAL);
	assert_int_equal(conf_ip_address(text, "2001:DB8:0::1"), 0);
	assert_string_equal(text, "2001:db8::1");
	assert_int_equal(conf_ip_address(text, "1.2.3.4/32"), -EINVAL);
	assert_int_equal(conf_limit(text, "connections-per-s=20"), 0);
	assert_string_equal(text, "connections-per-s=20");
	assert_int_equal(conf_limit(text, "--limit=1"), -EINVAL);
	assert_int_equal(conf_limit(text, "dns-per-s=-1"), -EINVAL);
	assert_int_equal(conf_limit(text, "dns-per-s=99999999999999999999"), -EINVAL);
	/* Not in the form that is written, and a gap in a list. */
	str_copy(c.network.allow[1], CONF_NET_TEXT_MAX, "FD00:1::/32");
	assert_int_equal(conf_check(&c, &e), -EINVAL);
	c = good;
	c.network.nameservers[0][0] = '\0';
	assert_int_equal(conf_check(&c, &e), -EINVAL);
}

static const char *one_name(const char *field)
{
	return str_eq(field, "state_dir") ? "--state-dir" : NULL;
}

/* Before all of it is known: the fields that have a name, said by it, and the numbers. */
static void test_in_part(void **state)
{
	struct conf c = good;
	struct err e = { 0 };

	c.kernel[0] = '\0';
	assert_int_equal(conf_check(&c, &e), -EINVAL);
	assert_int_equal(conf_check_as(&c, one_name, &e), 0);
	str_copy(c.state_dir, sizeof(c.state_dir), "state");
	assert_int_equal(conf_check_as(&c, one_name, &e), -EINVAL);
	assert_string_equal(e.text, "--state-dir must be an absolute path without . and ..");
	c = good;
	c.uid_base = 1;
	assert_int_equal(conf_check_as(&c, one_name, &e), -ERANGE);
}

static void test_too_long(void **state)
{
	static char big[20000];
	struct err e = { 0 };

	skip_unless_root();
	memset(big, ' ', sizeof(big) - 1);
	assert_int_equal(load_text(big, &e), -EFBIG);
}

static void test_path(void **state)
{
	char p[PATH_MAX], big[PATH_MAX];

	assert_int_equal(conf_path(&good, p, CONF_RUN, "%s.sock", "nm"), 0);
	assert_string_equal(p, "/run/space/default/nm.sock");
	assert_int_equal(conf_path(&good, p, CONF_STATE, "x"), 0);
	assert_string_equal(p, "/var/lib/space/default/x");
	struct conf_control cc;
	assert_int_equal(conf_control(&good, "api", &cc, NULL), 0);
	assert_string_equal(cc.store_url, "sqlite:/var/lib/space/default/control/space.db");
	assert_string_equal(cc.keys, "/var/lib/space/default/keys/api");
	assert_string_equal(cc.root_pub, "/var/lib/space/default/keys/root.pub");
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	assert_int_equal(conf_path(&good, p, CONF_LIB, "%s", big), -ENAMETOOLONG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round),  cmocka_unit_test(test_trust),
		cmocka_unit_test(test_strict), cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_path),   cmocka_unit_test(test_in_part),
		cmocka_unit_test(test_network),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
