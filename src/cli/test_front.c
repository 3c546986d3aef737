/* Addresses and the certificate of `space up`. */
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
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "loop/listen.h"
#include "loop/test_cert.h"
#include "loop/test_turn.h"

const struct cli_command cli_commands[] = { { "up", "", "", NULL, "", NULL } };
const unsigned cli_commands_len = 1;

/* In the place of up_keys.c and up.c: nothing is given away here. */
int up_own(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *e)
{
	return chmod(path, mode) < 0 ? -errno : 0;
}

static char said[600];

void up_say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(said, sizeof(said), fmt, ap);
	va_end(ap);
}

static void test_options(void **state)
{
	static const struct {
		struct up_front_strings s;
		int code;
		const char *api, *tls, *url;
	} rows[] = {
		{ { 0 }, 0, "tcp:127.0.0.1:4983", "", "http://127.0.0.1:4983" },
		{ { .cert = "c", .key = "k" }, 0, "tcp:127.0.0.1:4983", "tcp:127.0.0.1:443",
		  "http://127.0.0.1:4983" },
		{ { .cert = "c", .key = "k", .tls_port = "8443", .listen = "0.0.0.0" }, 0,
		  "tcp:127.0.0.1:4983", "tcp:0.0.0.0:8443", "http://127.0.0.1:4983" },
		{ { .cert = "c", .key = "k", .listen = "::" }, 0, "tcp:127.0.0.1:4983", "tcp:[::]:443",
		  "http://127.0.0.1:4983" },
		{ { .listen = "192.0.2.1", .plain_http = "1" }, 0, "tcp:192.0.2.1:4983", "",
		  "http://192.0.2.1:4983" },
		{ { .listen = "::", .plain_http = "1" }, 0, "tcp:[::]:4983", "",
		  "http://127.0.0.1:4983" },
		{ { .listen = "0.0.0.0" }, 2, NULL, NULL, NULL },        /* would be without TLS */
		{ { .cert = "c" }, 2, NULL, NULL, NULL },
		{ { .key = "k" }, 2, NULL, NULL, NULL },
		{ { .tls_port = "443" }, 2, NULL, NULL, NULL },
		{ { .cert = "c", .key = "k", .tls_port = "0" }, 2, NULL, NULL, NULL },
		{ { .cert = "c", .key = "k", .listen = "example.com" }, 2, NULL, NULL, NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct up_options o = { .port = 4983 };
		struct cli c = { .command = "up" };
		struct conf k = { 0 };
		char url[160];

		assert_int_equal(up_front_options(&c, &rows[i].s, &o), rows[i].code);
		if (rows[i].code)
			continue;
		assert_int_equal(up_front_conf(&o, &k), 0);
		up_front_url(&o, url);
		assert_string_equal(k.api_listen, rows[i].api);
		assert_string_equal(k.tls_listen, rows[i].tls);
		assert_string_equal(url, rows[i].url);
		assert_string_equal(k.domain, "localhost:4983");
	}
}

static void put(const char *path, const char *text)
{
	assert_int_equal(fd_write_file(AT_FDCWD, path, text, strlen(text), 0600), 0);
}

/* One file with both, its reader's alone; copied again when either of the two changes. */
static void test_copy(void **state)
{
	char dir[] = "/tmp/space-test-front-XXXXXX";
	assert_non_null(mkdtemp(dir));
	autofree char *cert = x_asprintf("%s/cert", dir), *key = x_asprintf("%s/key", dir),
		      *keys = x_asprintf("%s/keys/api", dir), *pem = x_asprintf("%s/tls.pem", keys),
		      *top = x_asprintf("%s/keys", dir);
	struct up_options o = { .tls_cert = cert, .tls_key = key };
	struct conf k = { 0 };
	struct err e = { 0 };
	struct loop *l = loop_new();
	struct up_front *f;
	char *text = NULL;
	struct stat st;

	str_copy(k.state_dir, sizeof(k.state_dir), dir);
	assert_int_equal(fd_mkdir_p(keys, 0700), 0);
	assert_true(up_front_copy(&o, &k, &e) < 0);
	assert_non_null(strstr(e.text, "--tls-cert"));
	put(cert, "-----BEGIN CERTIFICATE-----");
	put(key, "no key");
	assert_true(up_front_copy(&o, &k, &e) < 0);
	assert_non_null(strstr(e.text, "is not PEM"));
	assert_true(access(pem, F_OK) < 0);
	put(key, "-----BEGIN PRIVATE KEY-----");
	assert_int_equal(up_front_copy(&o, &k, &e), 0);
	assert_int_equal(stat(pem, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0400);

	f = up_front_watch(l, &o, &k);
	put(key, "-----BEGIN OTHER KEY-----");
	TURN_UNTIL(l, said[0]);
	assert_string_equal(said, "the certificate was read again");
	assert_int_equal(fd_read_file(AT_FDCWD, pem, 4096, &text, NULL), 0);
	assert_string_equal(text, "-----BEGIN CERTIFICATE-----\n-----BEGIN OTHER KEY-----\n");
	free(text);
	said[0] = '\0';
	unlink(cert);
	TURN_UNTIL(l, said[0]);
	assert_non_null(strstr(said, "stays as it is"));
	assert_int_equal(stat(pem, &st), 0);
	up_front_free(f);
	loop_free(l);
	unlink(key);
	unlink(pem);
	rmdir(keys);
	rmdir(top);
	assert_int_equal(rmdir(dir), 0);
}

/* What the daemons would die of is said before they start: files that do not fit, a taken port. */
static void test_check(void **state)
{
	char dir[] = "/tmp/space-test-front-XXXXXX";
	assert_non_null(mkdtemp(dir));
	autofree char *cert = x_asprintf("%s/cert", dir), *key = x_asprintf("%s/key", dir),
		      *pair = make_pem("DNS:a.test", 1, true),
		      *other = make_pem("DNS:a.test", 2, true),
		      *leaf = x_strndup(pair, (size_t)(strstr(pair, "-----BEGIN PRIVATE") - pair));
	struct up_options o = { .tls_cert = cert, .tls_key = key };
	struct conf k = { .api_listen = "tcp:127.0.0.1:0", .tls_listen = "tcp:127.0.0.1:0" };
	struct sockaddr_in at = { 0 };
	socklen_t n = sizeof(at);
	struct err e = { 0 };
	int fd;

	assert_true(up_front_check(&o, &k, &e) < 0);
	assert_non_null(strstr(e.text, "--tls-cert"));
	put(cert, leaf);
	put(key, strstr(other, "-----BEGIN PRIVATE"));
	assert_true(up_front_check(&o, &k, &e) < 0);
	assert_non_null(strstr(e.text, key));
	put(key, strstr(pair, "-----BEGIN PRIVATE"));
	assert_int_equal(up_front_check(&o, &k, &e), 0);

	fd = listen_addr("tcp:127.0.0.1:0", SOCK_STREAM, 0, &e);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
	(void)str_format(k.tls_listen, sizeof(k.tls_listen), "tcp:127.0.0.1:%u",
			 ntohs(at.sin_port));
	assert_int_equal(up_front_check(&o, &k, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, "--tls-port"));
	fd_close(fd);
	assert_int_equal(up_front_check(&o, &k, &e), 0);
	unlink(cert);
	unlink(key);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_options), cmocka_unit_test(test_copy),
		cmocka_unit_test(test_check),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
