/* The option parser and the credentials. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/up.h"

const struct cli_command cli_commands[] = {
	{ .name = "ls" }, { .name = "exec" }, { .name = "create" }, { .name = "kill" },
	{ .name = "pause" }, { .name = "resume" }, { .name = "metrics" }, { .name = "cp" },
};
const unsigned cli_commands_len = ARRAY_LEN(cli_commands);

struct parsed {
	const char *flag, *tty, *name, *list[CLI_REPEAT_MAX + 1];
	struct cli c;
	char *argv[16];
	int n;
};

static struct parsed parse(int stop_after, ...)
{
	struct parsed p = { .c = { .command = "test" }, .argv = { (char *)"test" } };
	const struct cli_option opts[] = {
		{ "-f", NULL, "a flag", &p.flag, false },
		{ "--name", "TEXT", "a value", &p.name, false },
		{ "-t, --tty", NULL, "another", &p.tty, false },
		{ "-e, --env, --variable", "K=V", "a list", p.list, true },
		{ 0 },
	};
	va_list ap;
	int argc = 1;

	va_start(ap, stop_after);
	for (char *a; (a = va_arg(ap, char *));)
		p.argv[argc++] = a;
	va_end(ap);
	p.n = cli_parse(&p.c, argc, p.argv, opts, stop_after);
	return p;
}

static void options_may_stand_anywhere(void **state)
{
	struct parsed p =
		parse(-1, "a", "-f", "b", "--name", "x", "--json", "-e", "A=1", "-e", "B=2", NULL);

	assert_int_equal(p.n, 2);
	assert_string_equal(p.argv[1], "a");
	assert_string_equal(p.argv[2], "b");
	assert_null(p.argv[3]);
	assert_string_equal(p.flag, "1");
	assert_string_equal(p.name, "x");
	assert_true(p.c.json);
	assert_string_equal(p.list[1], "B=2");
	assert_null(p.list[2]);
	assert_string_equal(parse(-1, "--name=y", NULL).name, "y");
	assert_string_equal(parse(-1, "--name=", NULL).name, "");
}

static void after_the_marker_nothing_is_an_option(void **state)
{
	struct parsed p = parse(-1, "--", "-f", "--name", NULL);

	assert_int_equal(p.n, 2);
	assert_null(p.flag);
	assert_string_equal(p.argv[1], "-f");
}

/* space exec -f BOX [--] ls -f -- x */
static void the_command_of_exec_keeps_its_own_options(void **state)
{
	struct parsed p = parse(1, "-f", "box", "ls", "-e", "--", "x", NULL);

	assert_int_equal(p.n, 5);
	assert_string_equal(p.flag, "1");
	assert_string_equal(p.argv[3], "-e");
	assert_string_equal(p.argv[4], "--");
	p = parse(1, "box", "--", "ls", "--", "-f", NULL);
	assert_int_equal(p.n, 4);
	assert_string_equal(p.argv[2], "ls");
	assert_string_equal(p.argv[3], "--");
	assert_null(p.flag);
}

static void short_options_share_a_word(void **state)
{
	struct parsed p = parse(-1, "-ft", "-eA=1", "--env=B=2", "--variable", "C=3", NULL);

	assert_int_equal(p.n, 0);
	assert_string_equal(p.flag, "1");
	assert_string_equal(p.tty, "1");
	assert_string_equal(p.list[0], "A=1");
	assert_string_equal(p.list[1], "B=2");
	assert_string_equal(p.list[2], "C=3");
	p = parse(-1, "-tfe", "A=1", NULL);
	assert_string_equal(p.list[0], "A=1");
	assert_string_equal(p.tty, "1");
	/* Nothing is taken of a word that has an unknown letter; a value of its own is no letter. */
	p = parse(-1, "-fxt", NULL);
	assert_int_equal(p.n, -1);
	assert_null(p.flag);
	assert_int_equal(parse(-1, "--tty=1", NULL).n, -1);
	assert_int_equal(parse(-1, "--tt", NULL).n, -1);
	assert_int_equal(parse(-1, "-e", NULL).n, -1);
	/* The command of exec keeps its own. */
	p = parse(1, "-f", "box", "ls", "-ft", NULL);
	assert_null(p.tty);
	assert_string_equal(p.argv[3], "-ft");
}

static void a_command_that_was_meant(void **state)
{
	static const struct { const char *word, *meant; } words[] = {
		{ "lss", "ls" },      { "sl", "ls" },	   { "exce", "exec" },
		{ "ceate", "create" }, { "puase", "pause" }, { "metric", "metrics" },
		{ "rm", "kill" },     { "list", "ls" },	   { "unpause", "resume" },
		{ "stats", "metrics" },
	};
	static const char *const none[] = { "", "xyzzy", "frobnicate", "abcdefghijklmnopqrstuvwxyz" };

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		assert_string_equal(cli_did_you_mean(words[i].word), words[i].meant);
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		assert_null(cli_did_you_mean(none[i]));
}

static void a_wrong_command_line_is_refused(void **state)
{
	assert_int_equal(parse(-1, "--nam", NULL).n, -1);
	assert_int_equal(parse(-1, "--name", NULL).n, -1);
	assert_int_equal(parse(-1, "-x", NULL).n, -1);
	assert_int_equal(parse(-1, "-", NULL).n, 1);
}

static void addresses_of_the_api(void **state)
{
	static const struct { const char *url, *addr, *host, *name; bool tls; } good[] = {
		{ "http://127.0.0.1:49", "tcp:127.0.0.1:49", "127.0.0.1:49", "127.0.0.1", false },
		{ "http://127.0.0.1:49/", "tcp:127.0.0.1:49", "127.0.0.1:49", "127.0.0.1", false },
		{ "http://localhost:80", "tcp:127.0.0.1:80", "localhost:80", "localhost", false },
		{ "http://10.0.0.1", "tcp:10.0.0.1:80", "10.0.0.1", "10.0.0.1", false },
		{ "http://[::1]:4983", "tcp:[::1]:4983", "[::1]:4983", "::1", false },
		{ "https://[2001:db8::1]", "tcp:[2001:db8::1]:443", "[2001:db8::1]", "2001:db8::1",
		  true },
		{ "https://api.example", "", "api.example", "api.example", true },
		{ "https://a:8443/", "", "a:8443", "a", true },
		{ "http://node.lan:81", "", "node.lan:81", "node.lan", false },
	};
	static const char *const bad[] = { "ftp://a",	   "http://",	  "http:///x",
					   "http://a:1/path", "",	  "a:1",
					   "http://a:0",   "http://a:65536", "http://a:",
					   "http://[::1",  "http://:80",  "http://[::1]80",
					   "https://a'b",  "https://a?b", "http://a:1:2" };

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct cli c = { 0 };
		struct err e = { 0 };

		assert_int_equal(creds_set_url(&c, good[i].url, &e), 0);
		assert_string_equal(c.addr, good[i].addr);
		assert_string_equal(c.host, good[i].host);
		assert_string_equal(c.name, good[i].name);
		assert_int_equal(c.tls, good[i].tls);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct cli c = { 0 };
		struct err e = { 0 };

		assert_true(creds_set_url(&c, bad[i], &e) < 0);
		assert_true(e.text[0]);
	}
}

static void credentials_are_written_and_read(void **state)
{
	char dir[] = "/tmp/space-test-cli-XXXXXX", path[64];
	struct cli c = { .command = "test" };
	struct err e = { 0 };
	struct stat st;

	assert_non_null(mkdtemp(dir));
	unsetenv("E2B_API_URL");
	unsetenv("E2B_API_KEY");
	setenv("XDG_CONFIG_HOME", dir, 1);
	assert_int_equal(creds_load(&c, &e), -ENOENT);
	assert_non_null(strstr(e.text, "space up"));
	assert_int_equal(creds_path(path, sizeof(path), &e), 0);
	assert_int_equal(creds_save(path, "http://127.0.0.1:9", "e2b_00", getuid(), getgid(), &e),
			 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(creds_load(&c, &e), 0);
	assert_string_equal(c.api_key, "e2b_00");
	assert_string_equal(c.addr, "tcp:127.0.0.1:9");
	setenv("E2B_API_KEY", "e2b_11", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_load(&c, &e), 0);
	assert_string_equal(c.api_key, "e2b_11");
	unsetenv("E2B_API_KEY");

	/* The file's key is for the file's address. */
	setenv("E2B_API_URL", "http://127.0.0.1:9/", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_load(&c, &e), 0);
	assert_string_equal(c.api_key, "e2b_00");
	setenv("E2B_API_URL", "https://127.0.0.1:9", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_load(&c, &e), -ENOENT);
	assert_string_equal(c.api_key, "");
	assert_non_null(strstr(e.text, "E2B_API_KEY"));
	unsetenv("E2B_API_URL");
	setenv("E2B_DOMAIN", "box.example:8443", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_load(&c, &e), -ENOENT);
	assert_string_equal(c.api_url, "https://api.box.example:8443");
	setenv("E2B_API_KEY", "e2b_22", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_load(&c, &e), 0);
	assert_string_equal(c.host, "api.box.example:8443");
	unsetenv("E2B_DOMAIN");
	/* What `up` has set stays. */
	setenv("E2B_API_URL", "http://127.0.0.1:7", 1);
	c = (struct cli){ .command = "test" };
	assert_int_equal(creds_set_url(&c, "http://127.0.0.1:8", &e), 0);
	assert_int_equal(creds_load(&c, &e), 0);
	assert_string_equal(c.api_url, "http://127.0.0.1:8");
	unsetenv("E2B_API_URL");
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path);
	rmdir(dir);
}

/* What the parser says on stderr is not looked at. */
static int quiet(void **state)
{
	return freopen("/dev/null", "w", stderr) ? 0 : -1;
}

static void test_nameservers(void **state)
{
	struct conf_network n = { 0 };

	up_nameservers("# nameserver 9.9.9.1\nsearch example\nnameserver\t192.0.2.1 \r\n"
		       "nameserver fe80::1%eth0\n nameserver 2001:DB8::1\nnameserver\n"
		       "nameserver name\noptions edns0\nnameserver 192.0.2.2 x\n"
		       "nameserver 192.0.2.3",
		       &n);
	assert_string_equal(n.nameservers[0], "192.0.2.1");
	assert_string_equal(n.nameservers[1], "2001:db8::1");
	assert_string_equal(n.nameservers[2], "192.0.2.2");
	n = (struct conf_network){ 0 };
	up_nameservers("", &n);
	assert_string_equal(n.nameservers[0], "");
}

static void test_net_options(void **state)
{
	static const struct up_net_strings good = {
		.allow = { "10.1.0.0/16", "FD00::/8" }, .deny = { "192.0.2.7/32" },
		.nameserver = { "127.0.0.53" }, .limit = { "connections=9", "bytes-up-per-s=0" },
	};
	static const struct up_net_strings bad[] = {
		{ .allow = { "10.1.0.0" } },
		{ .deny = { "192.0.2.7" } },
		{ .nameserver = { "10.1.0.0/16" } },
		{ .limit = { "connections" } },
		{ .limit = { "connections=1 " } },
	};
	struct up_net_strings many[4] = { 0 };
	struct cli c = { .command = "up" };
	struct conf_network n = { 0 };

	assert_int_equal(up_net_options(&c, &good, &n), 0);
	assert_string_equal(n.allow[1], "fd00::/8");
	assert_string_equal(n.deny[0], "192.0.2.7/32");
	assert_string_equal(n.nameservers[0], "127.0.0.53");
	assert_string_equal(n.limits[1], "bytes-up-per-s=0");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(up_net_options(&c, &bad[i], &n), 2);
	for (int i = 0; i < 17; i++) {
		many[0].allow[i] = "10.1.0.0/16";
		many[1].nameserver[i] = "127.0.0.53";
		many[2].limit[i] = "connections=9";
		many[3].deny[i] = "192.0.2.7/32";
	}
	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		assert_int_equal(up_net_options(&c, &many[i], &n), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nameservers), cmocka_unit_test(test_net_options),
		cmocka_unit_test(options_may_stand_anywhere),
		cmocka_unit_test(after_the_marker_nothing_is_an_option),
		cmocka_unit_test(the_command_of_exec_keeps_its_own_options),
		cmocka_unit_test(short_options_share_a_word),
		cmocka_unit_test(a_command_that_was_meant),
		cmocka_unit_test(a_wrong_command_line_is_refused),
		cmocka_unit_test(addresses_of_the_api),
		cmocka_unit_test(credentials_are_written_and_read),
	};

	return cmocka_run_group_tests(tests, quiet, NULL);
}
