/* The parts that need no agent: users, paths, text, decoding, multipart, hosts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/str.h"
#include "spaced-guest/decode.h"
#include "spaced-guest/init.h"
#include "spaced-guest/multipart.h"
#include "spaced-guest/paths.h"
#include "spaced-guest/text.h"
#include "spaced-guest/users.h"

static int user_of(const char *passwd, const char *group, const char *name, struct user *ret)
{
	autofree char *p = x_strdup(passwd), *g = x_strdup(group);

	return user_parse(p, g, name, ret);
}

static void test_users(void **state)
{
	static const char passwd[] =
		"root:x:0:0:root:/root:/bin/bash\n\nbad "
		"line\nshort:x:1\nneg:x:-1:5::/:\nbig:x:4294967295:5::/:\n"
		"user:x:1000:1001:A User,,,:/home/user:/bin/bash\nnohome:x:5:5:::/bin/sh";
	static const char group[] = "root:x:0:\nsudo:x:27:other,user\nnot:x:28:users\nown:x:1001:"
				    "user\ndocker:x:999:user";
	struct user u;

	assert_int_equal(user_of(passwd, group, "user", &u), 0);
	assert_int_equal(u.uid, 1000);
	assert_int_equal(u.gid, 1001);
	assert_string_equal(u.home, "/home/user");
	assert_int_equal(u.n_groups, 3);
	assert_int_equal(u.groups[0], 1001);
	assert_int_equal(u.groups[1], 27);
	assert_int_equal(u.groups[2], 999);
	assert_int_equal(user_of(passwd, NULL, "nohome", &u), 0);
	assert_string_equal(u.home, "/");
	assert_int_equal(user_of(passwd, group, "neg", &u), -ENOENT);
	assert_int_equal(user_of(passwd, group, "big", &u), -ENOENT);
	assert_int_equal(user_of(passwd, group, "short", &u), -ENOENT);
	assert_int_equal(user_of(passwd, group, "", &u), -ENOENT);
	assert_int_equal(user_of("", "", "root", &u), -ENOENT);
}

static void test_paths(void **state)
{
	static const struct { const char *in, *out; } cases[] = {
		{ "/a/b", "/a/b" },
		{ "a", "/home/user/a" },
		{ "", "/home/user" },
		{ "~", "/home/user" },
		{ "~/x", "/home/user/x" },
		{ "~//x", "/home/user/x" },
		{ "~other", "/home/user/~other" },
		{ "/", "/" },
		{ "/..", "/" },
		{ "/a/../../b/./c//", "/b/c" },
		{ "../x", "/home/x" },
	};
	struct user u = { .home = "/home/user" };
	struct agent a = { 0 };
	char longest[PATHS_MAX + 10];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		autofree char *p = NULL;

		assert_int_equal(path_resolve(&a, &u, cases[i].in, &p, NULL), 0);
		assert_string_equal(p, cases[i].out);
	}
	{
		autofree char *p = NULL;
		char work[] = "/srv";

		a.default_workdir = work;
		assert_int_equal(path_resolve(&a, &u, "x", &p, NULL), 0);
		assert_string_equal(p, "/srv/x");
		memset(longest, 'x', sizeof(longest) - 1);
		longest[0] = '/';
		longest[sizeof(longest) - 1] = '\0';
		assert_int_equal(path_resolve(&a, &u, longest, &p, NULL), -ENAMETOOLONG);
	}
	assert_string_equal(path_name("/a/b"), "b");
	assert_string_equal(path_name("/"), "/");
}

static void test_text(void **state)
{
	struct buf b;
	autofree char *s = NULL;

	buf_init(&b, 1000);
	assert_int_equal(text_json(&b, "a\"\\\n\x01\x7f\xc3\xa4\xff\xe2\x82z", 12), 0);
	s = buf_take_str(&b);
	assert_string_equal(
		s, "\"a\\\"\\\\\\n\\u0001\\u007f\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
	buf_init(&b, 3);
	assert_int_equal(text_json_s(&b, "abc"), -ENOBUFS);
	buf_done(&b);
}

static void test_hosts(void **state)
{
	static const struct { const char *old, *want; } cases[] = {
		{ "", "127.0.1.1\tbox\n" },
		{ "127.0.0.1 localhost\n127.0.1.1 old name\n::1 ip6\n",
		  "127.0.0.1 localhost\n127.0.1.1\tbox\n::1 ip6\n" },
		{ "127.0.1.10 keep\n127.0.1.1\ta\n127.0.1.1\tb",
		  "127.0.1.10 keep\n127.0.1.1\tbox\n" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		autofree char *s = init_hosts_text(cases[i].old, "box");

		assert_string_equal(s, cases[i].want);
	}
}

static void test_decode(void **state)
{
	struct start_req s = { 0 };
	struct selector sel = { 0 };
	struct signal_req sig = { 0 };
	struct input_req in = { 0 };
	struct path_req p = { 0 };
	struct err e = { 0 };
	static const char full[] =
		"{\"process\":{\"cmd\":\"a\",\"args\":[\"b\",\"\"],\"envs\":{\"K\":\"v\"},\"cwd\":"
		"null},"
		"\"pty\":{\"size\":{\"cols\":10,\"rows\":\"20\"}},\"stdin\":false}";
	static const char *const bad[] = {
		"",
		"[]",
		"{\"process\":1}",
		"{\"process\":{\"cmd\":\"\"}}",
		"{\"process\":{\"cmd\":\"a\",\"args\":{}}}",
		"{\"process\":{\"cmd\":\"a\",\"args\":[1]}}",
		"{\"process\":{\"cmd\":\"a\",\"envs\":{\"A=B\":\"\"}}}",
		"{\"process\":{\"cmd\":\"a\",\"envs\":{\"\":\"\"}}}",
		"{\"process\":{\"cmd\":\"a\"},\"stdin\":1}",
		"{\"process\":{\"cmd\":\"a\\u0000b\"}}",
		"{\"process\":{\"cmd\":\"a\"},\"pty\":{\"size\":{\"cols\":-1}}}",
		"{\"process\":{\"cmd\":\"a\"},\"pty\":{\"size\":{\"cols\":10001}}}",
		"{\"process\":{\"cmd\":\"a\"},\"process\":{\"cmd\":\"b\"}}",
	};

	assert_int_equal(decode_start(full, strlen(full), &s, &e), 0);
	assert_string_equal(s.argv[1], "b");
	assert_string_equal(s.argv[2], "");
	assert_null(s.argv[3]);
	assert_string_equal(s.envs.v[0], "K=v");
	assert_null(s.cwd);
	assert_true(s.pty && s.cols == 10 && s.rows == 20 && !s.stdin_pipe);
	start_req_done(&s);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (decode_start(bad[i], strlen(bad[i]), &s, &e) != -EINVAL)
			fail_msg("accepted: %s", bad[i]);
		start_req_done(&s);
	}
#define OK(fn, text, ret) assert_int_equal(fn(text, strlen(text), ret, &e), 0)
#define BAD(fn, text, ret) assert_int_equal(fn(text, strlen(text), ret, &e), -EINVAL)
	OK(decode_selector, "{\"process\":{\"pid\":12}}", &sel);
	assert_int_equal(sel.pid, 12);
	OK(decode_selector, "{\"process\":{\"pid\":\"13\"}}", &sel);
	assert_int_equal(sel.pid, 13);
	OK(decode_selector, "{\"process\":{\"tag\":\"t\"}}", &sel);
	assert_string_equal(sel.tag, "t");
	BAD(decode_selector, "{\"process\":{\"tag\":\"t\",\"pid\":1}}", &sel);
	BAD(decode_selector, "{\"process\":{}}", &sel);
	BAD(decode_selector, "{\"process\":{\"pid\":-1}}", &sel);
	BAD(decode_selector, "{\"process\":{\"pid\":99999999999}}", &sel);
	OK(decode_signal, "{\"process\":{\"pid\":1},\"signal\":15}", &sig);
	assert_int_equal(sig.sig, 15);
	BAD(decode_signal, "{\"process\":{\"pid\":1},\"signal\":\"SIGNAL_SIGSTOP\"}", &sig);
	OK(decode_input, "{\"process\":{\"pid\":1},\"input\":{\"stdin\":\"YQ==\"}}", &in);
	assert_true(in.n == 1 && in.data[0] == 'a' && !in.pty);
	input_req_done(&in);
	OK(decode_input, "{\"process\":{\"pid\":1},\"input\":{\"pty\":\"\"}}", &in);
	assert_true(in.n == 0 || in.pty);
	input_req_done(&in);
	BAD(decode_input, "{\"process\":{\"pid\":1},\"input\":{\"stdin\":\"YQ\"}}", &in);
	input_req_done(&in);
	BAD(decode_input, "{\"process\":{\"pid\":1},\"input\":{}}", &in);
	OK(decode_path, "{\"path\":\"/x\",\"depth\":3}", &p);
	assert_true(p.depth == 3 && str_eq(p.path, "/x"));
	path_req_done(&p);
	OK(decode_path, "{\"depth\":3}", &p);
	assert_string_equal(p.path, "");
	path_req_done(&p);
	BAD(decode_path, "{\"path\":1}", &p);
	BAD(decode_move, "{\"source\":\"a\"}", &p);
	path_req_done(&p);
}

/* Long input takes another way (decode.c): what differs must be nothing but the time. */
static void test_long_input(void **state)
{
#define PID "\"process\":{\"pid\":1}"
#define SHORT "\"input\":{\"stdin\":\"YQ==\"}"
	static const struct { const char *fmt; bool ok, pty; } rows[] = {
		{ "{" PID ",\"input\":{\"stdin\":\"%s\"}}", true, false },
		{ "{\"input\":{\"pty\":\"%s\",\"x\":1}," PID "}", true, true },
		{ "{" PID ",\"input\":{\"stdin\":\"%s=\"}}", false, false },
		{ "{" PID ",\"input\":{\"stdin\":\"%s!\"}}", false, false },
		{ "{" PID ",\"input\":{\"stdin\":\"%s\\n\"}}", false, false },
		{ "{" PID ",\"input\":{\"stdin\":\"\\\"%s\"}}", false, false },
		{ "{" PID ",\"input\":{\"stdin\":\"%s\"}", false, false },
		{ "{\"process\":{\"tag\":\"%s\"}," SHORT "}", false, false },
		/* Not the text of the input: it is passed over, the input is short. */
		{ "{" PID ",\"x\":\"%s\"," SHORT "}", true, false },
		{ "{" PID ",\"%s\":2," SHORT "}", true, false },
		/* A mark that the client wrote is no mark. */
		{ "{" PID ",\"input\":{\"stdin\":\"!\"},\"x\":\"%s\"}", false, false },
		{ "{\"x\":\"%s\"," PID ",\"input\":{\"stdin\":\"\\u0021\"}}", false, false },
	};
#undef PID
#undef SHORT
	autofree char *data = x_alloc(3000), *b64 = x_alloc(STR_B64_LEN(3000) + 1);

	for (int i = 0; i < 3000; i++)
		data[i] = (char)(i * 7);
	str_b64(b64, data, 3000);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		autofree char *body = x_asprintf(rows[i].fmt, b64);
#pragma GCC diagnostic pop
		struct input_req q = { 0 };
		struct err e = { 0 };
		int r = decode_input(body, strlen(body), &q, &e);

		if ((r == 0) != rows[i].ok || q.pty != rows[i].pty)
			fail_msg("row %zu: %d %s", i, r, e.text);
		if (r == 0 && q.n == 3000)
			assert_memory_equal(q.data, data, 3000);
		else if (r == 0)
			assert_true(q.n == 1 && q.data[0] == 'a');
		input_req_done(&q);
	}
}

struct parts { char text[256]; };

static int on_begin(void *arg, const char *name, const char *filename)
{
	struct parts *p = arg;
	size_t n = strlen(p->text);

	str_format(p->text + n, sizeof(p->text) - n, "[%s|%s:", name ? name : "-",
		   filename ? filename : "-");
	return 0;
}

static int on_data(void *arg, const char *s, size_t len)
{
	struct parts *p = arg;
	size_t n = strlen(p->text);

	str_format(p->text + n, sizeof(p->text) - n, "%.*s", (int)len, s);
	return 0;
}

static int on_end(void *arg)
{
	struct parts *p = arg;
	size_t n = strlen(p->text);

	str_format(p->text + n, sizeof(p->text) - n, "]");
	return 0;
}

static void test_multipart(void **state)
{
	static const struct multipart_ops ops = { on_begin, on_data, on_end };
	static const struct { const char *type, *body, *want; bool complete; int r; } cases[] = {
		{ "multipart/form-data; boundary=x",
		  "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--", "[a|-:1]",
		  true, 0 },
		{ "multipart/form-data; boundary=x",
		  "--x\r\nContent-Disposition: form-data; name=a; filename=\"p;q\\\"r\"\r\nX: "
		  "y\r\n\r\n\r\n--x--\r\n",
		  "[a|p;q\"r:]", true, 0 },
		{ "multipart/form-data; charset=u; boundary=\"x y\"", "--x y\r\n\r\nd\r\n--x y--",
		  "[-|-:d]", true, 0 },
		{ "multipart/form-data; boundary=x",
		  "--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--xy\r\n", "[a|-:1]",
		  false, -EBADMSG },
		{ "multipart/form-data; boundary=x", "--x\r\nno colon\r\n\r\n1\r\n--x--", "", false,
		  -EBADMSG },
		{ "multipart/form-data; boundary=x", "nothing of the kind", "", false, 0 },
		{ "multipart/form-data; boundary=x", "--x--", "", true, 0 },
	};

	assert_null(multipart_new("multipart/form-data", &ops, NULL));
	assert_null(multipart_new("multipart/form-data; boundary=", &ops, NULL));
	assert_null(multipart_new("multipart/form-data; "
				  "boundary="
				  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
				  "aaaaaaaaaaaaaaaaaaa",
				  &ops, NULL));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		for (size_t step = 1; step <= strlen(cases[i].body); step++) {
			struct parts p = { "" };
			struct multipart *m = multipart_new(cases[i].type, &ops, &p);
			int r = 0;

			for (const char *s = cases[i].body; *s && r == 0; s += strnlen(s, step))
				r = multipart_feed(m, s, strnlen(s, step));
			if (r != cases[i].r || multipart_complete(m) != cases[i].complete ||
			    !str_eq(p.text, cases[i].want))
				fail_msg("case %zu step %zu: %d %s", i, step, r, p.text);
			multipart_free(m);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_users),  cmocka_unit_test(test_paths),
		cmocka_unit_test(test_text),   cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_decode),
		cmocka_unit_test(test_long_input), cmocka_unit_test(test_multipart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
