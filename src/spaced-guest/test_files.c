/* The real agent: /files and filesystem.Filesystem. argv[1] = the agent. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/test_host.h"

#define OCTETS "Content-Type: application/octet-stream\r\n"
#define NOBODY "Authorization: Basic bm9ib2R5Og==\r\n"

/* A target for a path below the test's folder. */
static const char *at(const char *path)
{
	static char target[512];

	snprintf(target, sizeof(target), "/files?path=%s/%s", dir, path);
	return target;
}

static int put(const char *path, const char *fields, const void *p, size_t n, const char **ret_body)
{
	struct call *c = call_new(&host, false, "POST", at(path), fields, p, n);
	int status;

	call_wait(&host, c);
	status = call_status(c);
	if (ret_body)
		*ret_body = call_text(c);
	call_free(&host, c);
	return status;
}

static struct call *get(const char *target)
{
	struct call *c = call_new(&host, false, "GET", target, NULL, NULL, 0);

	call_wait(&host, c);
	return c;
}

static size_t entries(const char *path)
{
	char full[256];
	size_t n = 0;
	DIR *d;

	snprintf(full, sizeof(full), "%s/%s", dir, path);
	d = opendir(full);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void test_up_and_down(void **state)
{
	static const size_t sizes[] = { 0,
					1,
					4096,
					32768,
					32769,
					1 << 20,
					(1 << 20) + 1,
					(1 << 20) + (480 << 10),
					(3 << 20) + 17,
					6000000 };

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		autofree char *data = x_alloc(sizes[i] + 1);
		const char *body;
		struct call *c;
		struct stat st;
		char path[128];

		for (size_t k = 0; k < sizes[i]; k++)
			data[k] = (char)(k * 7 + (k >> 8) * 13 + (k >> 16));
		assert_int_equal(put("a/b%20c/file.bin", OCTETS, data, sizes[i], &body), 200);
		snprintf(path, sizeof(path),
			 "[{\"name\":\"file.bin\",\"path\":\"%s/a/b "
			 "c/file.bin\",\"type\":\"file\"}]",
			 dir);
		assert_string_equal(body, path);
		snprintf(path, sizeof(path), "%s/a/b c/file.bin", dir);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0644);
		c = get(at("a/b%20c/file.bin"));
		assert_int_equal(call_status(c), 200);
		assert_true(c->complete);
		assert_int_equal(buf_len(&c->body), sizes[i]);
		if (sizes[i])
			assert_memory_equal(buf_data(&c->body), data, sizes[i]);
		assert_int_equal(c->head.length, sizes[i]);
		assert_string_equal(http_get(&c->head, "Content-Disposition"),
				    "inline; filename=\"file.bin\"");
		call_free(&host, c);
		assert_int_equal(entries("a/b c"), 1);
	}
}

static void test_overwrite(void **state)
{
	char path[128], link[128], target[128];
	struct stat st;
	ssize_t n;

	assert_int_equal(put("script", OCTETS, "one", 3, NULL), 200);
	snprintf(path, sizeof(path), "%s/script", dir);
	snprintf(link, sizeof(link), "%s/link", dir);
	assert_int_equal(chmod(path, 0755), 0);
	assert_int_equal(symlink("script", link), 0);
	/* The mode stays, and a link is followed, not replaced. */
	assert_int_equal(put("link", OCTETS, "longer", 6, NULL), 200);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(st.st_size, 6);
	n = readlink(link, target, sizeof(target) - 1);
	assert_int_equal(n, 6);
}

static void test_bad_requests(void **state)
{
	static const struct { const char *target; int status; } bad[] = {
		{ "/files", 400 },
		{ "/files?path=", 400 },
		{ "/files?path=/no/such/file", 404 },
		{ "/files?path=/tmp", 400 },
		{ "/files?path=/dev/zero", 400 },
		{ "/files?path=%zz", 400 },
		{ "/files?path=/etc/passwd&username=no-one", 401 },
		{ "/files?path=/etc/passwd/x", 404 },
	};
	const char *body;
	struct call *c;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		c = get(bad[i].target);
		if (call_status(c) != bad[i].status)
			fail_msg("%s: %d", bad[i].target, call_status(c));
		call_free(&host, c);
	}
	c = get("/files?path=/no/such/file");
	assert_string_equal(call_text(c),
			    "{\"code\":404,\"message\":\"path '/no/such/file' does not exist\"}");
	call_free(&host, c);
	assert_int_equal(put("x", "Content-Type: text/plain\r\n", "a", 1, NULL), 415);
	assert_int_equal(put("x", OCTETS "Content-Encoding: br\r\n", "a", 1, NULL), 415);
	assert_int_equal(put("x", OCTETS "Content-Encoding: gzip\r\n", "no gzip at all", 14, NULL),
			 400);
	assert_int_equal(put("x", "Content-Type: multipart/form-data\r\n", "a", 1, NULL), 400);
	assert_int_equal(put("x", "Content-Type: multipart/form-data; boundary=B\r\n",
			     "--B\r\nContent-Disp", 17, &body),
			 400);
	assert_non_null(strstr(body, "cut short"));
	assert_int_equal(put("", OCTETS, "a", 1, NULL), 400);
	assert_int_equal(
		host_call(&host, false, "POST", "/files?path=/dev/full", OCTETS, "a", NULL), 507);
	c = get(at("x"));
	assert_int_equal(call_status(c), 404);
	call_free(&host, c);
}

static void test_proc_files(void **state)
{
	struct call *c = get("/files?path=/proc/self/status");

	/* Not sized by stat: /proc says 0. */
	assert_int_equal(call_status(c), 200);
	assert_true(c->complete && buf_len(&c->body) > 100);
	assert_int_equal(c->head.body, HTTP_BODY_CHUNKED);
	call_free(&host, c);
}

static void test_paths(void **state)
{
	struct call *c;
	struct stat st;

	if (stat("/root/.space-test-upload", &st) == 0)
		unlink("/root/.space-test-upload");
	assert_int_equal(host_call(&host, false, "POST", "/files?path=~/.space-test-upload", OCTETS,
				   "home", NULL),
			 200);
	c = get("/files?path=.space-test-upload");
	assert_int_equal(call_status(c), 200);
	assert_string_equal(call_text(c), "home");
	call_free(&host, c);
	c = get("/files?path=/root/../root//./.space-test-upload&username=root");
	assert_int_equal(call_status(c), 200);
	call_free(&host, c);
	unlink("/root/.space-test-upload");
}

static void test_multipart(void **state)
{
	/* The data looks like boundaries; names are full paths; other parts are passed over. */
	autofree char *form =
		x_asprintf("preamble\r\n--Bound\r\nContent-Disposition: form-data; "
			   "name=\"note\"\r\n\r\nskip\r\n"
			   "--Bound\r\ncontent-disposition: form-data; name=\"file\"; "
			   "filename=\"%s/m/one.txt\"\r\nContent-Type: text/plain\r\n\r\n"
			   "a\r\n--Boun\r\n--\r\nb\r\n--Bound  \r\nContent-Disposition: form-data; "
			   "filename=\"%s/m/%%22q%%22.txt\"; name=file\r\n\r\n"
			   "\r\n--Bound--\r\nepilogue",
			   dir, dir);
	struct call *c = call_new(&host, false, "POST", "/files",
				  "Content-Type: multipart/form-data; boundary=\"Bound\"\r\n", form,
				  strlen(form));
	char want[512];

	call_wait(&host, c);
	assert_int_equal(call_status(c), 200);
	snprintf(want, sizeof(want),
		 "[{\"name\":\"one.txt\",\"path\":\"%s/m/one.txt\",\"type\":\"file\"},"
		 "{\"name\":\"\\\"q\\\".txt\",\"path\":\"%s/m/\\\"q\\\".txt\",\"type\":\"file\"}]",
		 dir, dir);
	assert_string_equal(call_text(c), want);
	call_free(&host, c);
	c = get(at("m/one.txt"));
	assert_string_equal(call_text(c), "a\r\n--Boun\r\n--\r\nb");
	call_free(&host, c);
	c = get(at("m/%22q%22.txt"));
	assert_int_equal(call_status(c), 200);
	assert_int_equal(buf_len(&c->body), 0);
	call_free(&host, c);
	/* With a path in the query the part's name does not count. */
	assert_int_equal(put("m/two", "Content-Type: multipart/form-data; boundary=Z\r\n",
			     "--Z\r\nContent-Disposition: form-data; name=\"file\"; "
			     "filename=\"x\"\r\n\r\n2\r\n--Z--\r\n",
			     77, NULL),
			 200);
	c = get(at("m/two"));
	assert_string_equal(call_text(c), "2");
	call_free(&host, c);
}

/* Chunked, in pieces that cut everything everywhere. */
static void test_chunked_pieces(void **state)
{
	autofree char *part = x_alloc(70000);
	struct buf b;
	struct call *c = x_alloc(sizeof(*c));
	size_t step = 1;

	memset(part, '-', 70000);
	buf_init(&c->raw, CALL_MAX);
	buf_init(&c->body, CALL_MAX);
	assert_int_equal(mux_open(host.mux, false, &c->id), 0);
	mux_set_user(host.mux, c->id, c);
	buf_init(&b, CALL_MAX);
	buf_putf(&b,
		 "POST %s HTTP/1.1\r\nHost: x\r\nX-Access-Token: " TOKEN
		 "\r\nTransfer-Encoding: chunked\r\n"
		 "Content-Type: multipart/form-data; boundary=----B\r\n\r\n",
		 at("pieces"));
	http_put_chunk(&b, "------B\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n", 56);
	http_put_chunk(&b, part, 70000);
	http_put_chunk(&b, "\r\n------B--\r\n", 13);
	http_put_chunk(&b, NULL, 0);
	while (buf_len(&b)) {
		size_t n = step < buf_len(&b) ? step : buf_len(&b);

		if (mux_can_send(host.mux, c->id) < n) {
			host_turn(&host, 100);
			continue;
		}
		mux_send(host.mux, c->id, buf_data(&b), n);
		buf_consume(&b, n);
		step = step * 3 % 1009 + 1;
		host_turn(&host, 0);
	}
	buf_done(&b);
	mux_end(host.mux, c->id);
	call_wait(&host, c);
	assert_int_equal(call_status(c), 200);
	call_free(&host, c);
	c = get(at("pieces"));
	assert_int_equal(buf_len(&c->body), 70000);
	assert_memory_equal(buf_data(&c->body), part, 70000);
	call_free(&host, c);
}

static void test_gzip(void **state)
{
	static char plain[500000], packed[600000];
	z_stream z = { .next_in = (Bytef *)plain,
		       .avail_in = sizeof(plain),
		       .next_out = (Bytef *)packed,
		       .avail_out = sizeof(packed) };
	size_t n;
	struct call *c;

	for (size_t i = 0; i < sizeof(plain); i++)
		plain[i] = (char)(i % 251);
	deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	n = z.total_out;
	deflateEnd(&z);
	assert_int_equal(put("zipped", OCTETS "Content-Encoding: gzip\r\n", packed, n, NULL), 200);
	c = get(at("zipped"));
	assert_int_equal(buf_len(&c->body), sizeof(plain));
	assert_memory_equal(buf_data(&c->body), plain, sizeof(plain));
	call_free(&host, c);
	assert_int_equal(put("zipped2", OCTETS "Content-Encoding: gzip\r\n", packed, n - 10, NULL),
			 400);
	assert_int_equal(put("zipped2", OCTETS "Content-Encoding: gzip\r\n", packed, n + 10, NULL),
			 400);
	c = get(at("zipped2"));
	assert_int_equal(call_status(c), 404);
	call_free(&host, c);
}

static size_t pack(const char *plain, size_t n, char *dst, size_t size)
{
	z_stream z = { .next_in = (Bytef *)plain,
		       .avail_in = (uInt)n,
		       .next_out = (Bytef *)dst,
		       .avail_out = (uInt)size };

	deflateInit2(&z, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

static int stat_packed(const char *encoding, const char *packed, size_t n)
{
	char fields[128];
	struct call *c;
	int status;

	snprintf(fields, sizeof(fields),
		 "Content-Type: application/json\r\nContent-Encoding: %s\r\n", encoding);
	c = call_new(&host, false, "POST", "/filesystem.Filesystem/Stat", fields, packed, n);
	call_wait(&host, c);
	status = call_status(c);
	call_free(&host, c);
	return status;
}

/* Messages may be packed, but not to smuggle in what is too large. */
static void test_packed_message(void **state)
{
	static char packed[1 << 16], bomb[10 << 20];
	size_t n = pack("{\"path\":\"/tmp\"}", 15, packed, sizeof(packed));

	assert_int_equal(stat_packed("gzip", packed, n), 200);
	assert_int_equal(stat_packed("gzip", packed, n - 1), 400);
	assert_int_equal(stat_packed("gzip", "plain", 5), 400);
	assert_int_equal(stat_packed("br", packed, n), 415);
	memset(bomb, ' ', sizeof(bomb));
	n = pack(bomb, sizeof(bomb), packed, sizeof(packed));
	assert_int_equal(stat_packed("gzip", packed, n), 413);
}

/* A body that does not come to its end leaves nothing, whichever way it ends. */
static void test_cut_short(void **state)
{
	size_t before = entries("");
	struct call *c;
	char head[1024];

	for (int way = 0; way < 2; way++) {
		int64_t until = clock_mono_ms() + WAIT_MS;

		c = x_alloc(sizeof(*c));
		buf_init(&c->raw, CALL_MAX);
		buf_init(&c->body, CALL_MAX);
		assert_int_equal(mux_open(host.mux, false, &c->id), 0);
		mux_set_user(host.mux, c->id, c);
		snprintf(head, sizeof(head),
			 "POST %s HTTP/1.1\r\nHost: x\r\nX-Access-Token: " TOKEN "\r\n" OCTETS
			 "Content-Length: 10\r\n\r\nabc",
			 at("short"));
		mux_send(host.mux, c->id, head, strlen(head));
		while (entries("") == before && clock_mono_ms() < until)
			host_turn(&host, 10);
		assert_int_equal(entries(""), before + 1);
		if (way == 0) {
			mux_end(host.mux, c->id);
			call_wait(&host, c);
			assert_int_equal(call_status(c), 400);
		}
		call_free(&host, c);
		while (entries("") != before && clock_mono_ms() < until)
			host_turn(&host, 10);
		assert_int_equal(entries(""), before);
	}
}

static void test_as_user(void **state)
{
	char path[128], body[256];
	const char *text;

	if (getuid() != 0)
		skip();
	snprintf(path, sizeof(path), "%s/secret", dir);
	assert_int_equal(put("secret", OCTETS, "s", 1, NULL), 200);
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(host_call(&host, false, "GET", at("secret"), NOBODY, NULL, NULL), 403);
	assert_int_equal(put("new", OCTETS NOBODY, "s", 1, NULL), 403);
	assert_int_equal(
		host_call(&host, false, "GET", "/files?path=/proc/1/environ", NOBODY, NULL, NULL),
		403);
	snprintf(body, sizeof(body), "{\"path\":\"%s\"}", path);
	assert_int_equal(host_call(&host, false, "POST", "/filesystem.Filesystem/Remove",
				   "Content-Type: application/json\r\n" NOBODY, body, &text),
			 403);
	assert_non_null(strstr(text, "permission_denied"));
	assert_int_equal(access(path, F_OK), 0);
	/* What a user makes is the user's. */
	assert_int_equal(chmod(dir, 0777), 0);
	assert_int_equal(put("by/nobody", OCTETS NOBODY, "s", 1, NULL), 200);
	snprintf(path, sizeof(path), "%s/by", dir);
	{
		struct stat st;

		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_uid, 65534);
	}
	assert_int_equal(chmod(dir, 0755), 0);
	/* The agent is root again. */
	assert_int_equal(put("secret", OCTETS, "t", 1, NULL), 200);
}

static int fs(const char *method, const char *path, const char *more, const char **ret)
{
	char json[512], name[64];

	snprintf(name, sizeof(name), "filesystem.Filesystem/%s", method);
	snprintf(json, sizeof(json), "{\"path\":\"%s/%s\"%s}", dir, path, more);
	return rpc(&host, name, json, ret);
}

static void test_filesystem(void **state)
{
	char json[512], path[128], want[256];
	const char *body, *one, *two;

	assert_int_equal(fs("MakeDir", "tree/x/y", "", &body), 200);
	assert_non_null(strstr(body, "\"type\":\"FILE_TYPE_DIRECTORY\""));
	assert_non_null(strstr(body, "\"permissions\":\"drwxr-xr-x\""));
	assert_int_equal(fs("MakeDir", "tree/x/y", "", &body), 409);
	assert_non_null(strstr(body, "\"code\":\"already_exists\""));
	assert_int_equal(put("tree/file", "X-Metadata-Author: me\r\n" OCTETS, "12345", 5, NULL),
			 200);
	assert_int_equal(fs("MakeDir", "tree/file", "", NULL), 400);
	snprintf(path, sizeof(path), "%s/tree/ln", dir);
	assert_int_equal(symlink("file", path), 0);
	snprintf(path, sizeof(path), "%s/tree/x/deep", dir);
	assert_int_equal(mkdir(path, 0750), 0);
	assert_int_equal(fs("Stat", "tree/file", "", &body), 200);
	assert_non_null(strstr(body, "{\"entry\":{\"name\":\"file\","));
	assert_non_null(strstr(body, "\"size\":\"5\",\"mode\":420,\"permissions\":\"-rw-r--r--\","
				     "\"owner\":\"root\",\"group\":\"root\""));
	assert_non_null(strstr(body, "\"metadata\":{\"author\":\"me\"}"));
	assert_int_equal(fs("Stat", "tree/nothing", "", &body), 404);
	assert_non_null(strstr(body, "\"code\":\"not_found\""));
	/* One level; then all. */
	assert_int_equal(fs("ListDir", "tree", ",\"depth\":0", &body), 200);
	assert_null(strstr(body, "\"deep\""));
	snprintf(want, sizeof(want), "\"symlinkTarget\":\"%s/tree/file\"", dir);
	assert_non_null(strstr(body, want));
	one = strstr(body, "\"name\":\"file\"");
	two = strstr(body, "\"name\":\"x\"");
	assert_true(one && two && one < two);
	assert_int_equal(fs("ListDir", "tree", ",\"depth\":2", &body), 200);
	assert_non_null(strstr(body, "\"name\":\"deep\""));
	assert_non_null(strstr(body, "\"mode\":488"));
	assert_int_equal(fs("ListDir", "tree/file", "", &body), 400);
	assert_int_equal(fs("ListDir", "tree/none", "", &body), 404);
	snprintf(json, sizeof(json),
		 "{\"source\":\"%s/tree/file\",\"destination\":\"%s/other/place\"}", dir, dir);
	assert_int_equal(rpc(&host, "filesystem.Filesystem/Move", json, &body), 200);
	assert_non_null(strstr(body, "\"name\":\"place\""));
	assert_int_equal(rpc(&host, "filesystem.Filesystem/Move", json, &body), 404);
	assert_int_equal(rpc(&host, "filesystem.Filesystem/Stat", "{\"path\":7}", &body), 400);
	assert_int_equal(rpc(&host, "filesystem.Filesystem/Remove", "{\"path\":\"/\"}", &body),
			 403);
	assert_int_equal(fs("Remove", "tree/nothing", "", &body), 200);
}

/* A big folder does not stall others, and goes away whole. */
static void test_big_folder(void **state)
{
	char cmd[512], path[128], json[256];
	const char *body;
	struct call *list, *remove;
	struct stat st;

	snprintf(cmd, sizeof(cmd),
		 "mkdir -p %s/big/sub && cd %s/big && seq -f f%%05g 1 20000 | xargs touch && touch "
		 "sub/x 'sub/\n\"'$'\\377'",
		 dir, dir);
	{
		struct result r;

		run_wait(&host, cmd, NULL, &r);
		assert_int_equal(r.code, 0);
	}
	snprintf(json, sizeof(json), "{\"path\":\"%s/big\",\"depth\":5}", dir);
	list = call_new(&host, false, "POST", "/filesystem.Filesystem/ListDir",
			"Content-Type: application/json\r\n", json, strlen(json));
	assert_int_equal(host_call(&host, false, "GET", "/health", NULL, NULL, NULL), 204);
	assert_false(list->has_head);            /* a later request was answered first */
	call_wait(&host, list);
	assert_int_equal(call_status(list), 200);
	body = buf_data(&list->body);
	assert_non_null(memmem(body, buf_len(&list->body), "\"f00001\"", 8));
	assert_non_null(memmem(body, buf_len(&list->body), "\"f20000\"", 8));
	assert_non_null(memmem(body, buf_len(&list->body), "\"\\n\\\"\xef\xbf\xbd\"", 9));
	call_free(&host, list);
	remove = call_new(&host, false, "POST", "/filesystem.Filesystem/Remove",
			  "Content-Type: application/json\r\n", json, strlen(json));
	call_wait(&host, remove);
	assert_int_equal(call_status(remove), 200);
	call_free(&host, remove);
	snprintf(path, sizeof(path), "%s/big", dir);
	assert_int_equal(stat(path, &st), -1);
}

/* Many at once, both ways, in turns. */
static void test_parallel(void **state)
{
	struct call *c[12];
	autofree char *data = x_alloc(1 << 20);
	char path[16];

	memset(data, 'p', 1 << 20);
	assert_int_equal(put("par", OCTETS, data, 1 << 20, NULL), 200);
	for (int i = 0; i < 12; i++) {
		snprintf(path, sizeof(path), "par%d", i);
		c[i] = i % 2 ? call_new(&host, false, "POST", at(path), OCTETS, data, 1 << 20)
			     : call_new(&host, false, "GET", at("par"), NULL, NULL, 0);
	}
	for (int i = 0; i < 12; i++) {
		call_wait(&host, c[i]);
		assert_int_equal(call_status(c[i]), 200);
		if (i % 2 == 0)
			assert_int_equal(buf_len(&c[i]->body), 1 << 20);
		call_free(&host, c[i]);
	}
}

/* No goal of its own here: shows the agent's own cost without a VM. */
static void test_rate(void **state)
{
	size_t n = 64 << 20;
	autofree char *data = x_alloc(n);
	int64_t t0 = clock_mono_ms(), t1, t2;
	struct call *c;

	assert_int_equal(put("rate", OCTETS, data, n, NULL), 200);
	t1 = clock_mono_ms();
	c = get(at("rate"));
	assert_int_equal(buf_len(&c->body), n);
	call_free(&host, c);
	t2 = clock_mono_ms();
	print_message("up %lld MB/s, down %lld MB/s\n",
		      (long long)(n / 1000 / (size_t)(t1 - t0 + 1)),
		      (long long)(n / 1000 / (size_t)(t2 - t1 + 1)));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_up_and_down),    cmocka_unit_test(test_overwrite),
		cmocka_unit_test(test_bad_requests),   cmocka_unit_test(test_proc_files),
		cmocka_unit_test(test_paths),	       cmocka_unit_test(test_multipart),
		cmocka_unit_test(test_chunked_pieces), cmocka_unit_test(test_gzip),
		cmocka_unit_test(test_packed_message),
		cmocka_unit_test(test_cut_short),      cmocka_unit_test(test_as_user),
		cmocka_unit_test(test_filesystem),     cmocka_unit_test(test_big_folder),
		cmocka_unit_test(test_parallel),       cmocka_unit_test(test_rate),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
