/* The real agent: what /files does beyond plain files up and down. argv[1] = the agent. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "spaced-guest/test_host.h"

#define OCTETS "Content-Type: application/octet-stream\r\n"
#define NOBODY "Authorization: Basic bm9ib2R5Og==\r\n"
#define NOBODY_ID 65534

static char *at(const char *path)
{
	static char full[4][512];
	static unsigned turn;
	char *p = full[turn++ % 4];

	snprintf(p, sizeof(full[0]), "%s/%s", dir, path);
	return p;
}

static struct call *call(const char *method, const char *path, const char *fields, const void *p,
			 size_t n)
{
	char target[2048];
	struct call *c;

	snprintf(target, sizeof(target), "/files?path=%s", path);
	c = call_new(&host, false, method, target, fields, p, n);
	call_wait(&host, c);
	return c;
}

static int put(const char *path, const char *fields, const char *text)
{
	struct call *c = call("POST", path, fields, text, strlen(text));
	int status = call_status(c);

	call_free(&host, c);
	return status;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void assert_holds(const char *path, const char *text)
{
	char got[256];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, got, sizeof(got) - 1);
	close(fd);
	assert_true(n >= 0);
	got[n] = '\0';
	assert_string_equal(got, text);
}

static void set_time(const char *path, time_t s)
{
	struct timespec t[2] = { { .tv_sec = s }, { .tv_sec = s } };

	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void settle(const char *path)
{
	set_time(path, 784111777);
}

static void test_head_and_ranges(void **state)
{
	struct call *c;

	write_file(at("r"), "0123456789");
	settle(at("r"));
	c = call("HEAD", at("r"), NULL, NULL, 0);
	assert_int_equal(call_status(c), 200);
	assert_int_equal(c->head.length, 10);
	assert_int_equal(buf_len(&c->raw), 0);
	assert_string_equal(http_get(&c->head, "Accept-Ranges"), "bytes");
	assert_string_equal(http_get(&c->head, "Last-Modified"), "Sun, 06 Nov 1994 08:49:37 GMT");
	call_free(&host, c);
	c = call("GET", at("r"), "Range: bytes=2-5\r\nAccept-Encoding: gzip\r\n", NULL, 0);
	assert_int_equal(call_status(c), 206);
	assert_string_equal(call_text(c), "2345");
	assert_string_equal(http_get(&c->head, "Content-Range"), "bytes 2-5/10");
	assert_null(http_get(&c->head, "Content-Encoding"));
	call_free(&host, c);
	c = call("GET", at("r"), "Range: bytes=-3\r\n", NULL, 0);
	assert_string_equal(call_text(c), "789");
	call_free(&host, c);
	c = call("GET", at("r"), "Range: bytes=10-\r\n", NULL, 0);
	assert_int_equal(call_status(c), 416);
	assert_string_equal(http_get(&c->head, "Content-Range"), "bytes */10");
	call_free(&host, c);
	c = call("HEAD", at("none"), NULL, NULL, 0);
	assert_int_equal(call_status(c), 404);
	assert_int_equal(buf_len(&c->raw), 0);
	call_free(&host, c);
	c = call("HEAD", "/proc/self/status", NULL, NULL, 0);
	assert_int_equal(call_status(c), 200);
	assert_int_equal(buf_len(&c->raw), 0);
	call_free(&host, c);
	write_file(at("empty"), "");
	c = call("GET", at("empty"), "Accept-Encoding: gzip\r\n", NULL, 0);
	assert_int_equal(call_status(c), 200);
	assert_string_equal(http_get(&c->head, "Content-Length"), "0");
	call_free(&host, c);
}

static void test_conditions(void **state)
{
	char fields[256], etag[128];
	struct call *c;

	write_file(at("cond"), "contents");
	/* New, and still that when it is looked at. */
	set_time(at("cond"), clock_wall_ms() / 1000 + 60);
	c = call("GET", at("cond"), NULL, NULL, 0);
	/* It may still change without a trace. */
	assert_true(str_starts(http_get(&c->head, "ETag"), "W/\""));
	call_free(&host, c);
	settle(at("cond"));
	c = call("GET", at("cond"), NULL, NULL, 0);
	snprintf(etag, sizeof(etag), "%s", http_get(&c->head, "ETag"));
	assert_true(etag[0] == '"');
	call_free(&host, c);
	snprintf(fields, sizeof(fields), "If-None-Match: %s\r\n", etag);
	c = call("GET", at("cond"), fields, NULL, 0);
	assert_int_equal(call_status(c), 304);
	assert_null(http_get(&c->head, "Content-Length"));
	call_free(&host, c);
	snprintf(fields, sizeof(fields), "If-Match: %s\r\nRange: bytes=0-0\r\n", etag);
	c = call("GET", at("cond"), fields, NULL, 0);
	assert_int_equal(call_status(c), 206);
	call_free(&host, c);
	write_file(at("cond"), "changed!");
	c = call("GET", at("cond"), fields, NULL, 0);
	assert_int_equal(call_status(c), 412);
	call_free(&host, c);
	c = call("GET", at("cond"), "Accept-Encoding: identity;q=0\r\n", NULL, 0);
	assert_int_equal(call_status(c), 406);
	call_free(&host, c);
}

static void test_packed(void **state)
{
	size_t n = 3 << 20;
	autofree char *data = x_alloc(n), *plain = x_alloc(n + 1);
	z_stream z = { .next_out = (Bytef *)plain, .avail_out = (uInt)n + 1 };
	struct call *c;

	for (size_t i = 0; i < n; i++)
		data[i] = (char)((i * 2654435761u) >> 24);
	c = call("POST", at("packed"), OCTETS, data, n);
	assert_int_equal(call_status(c), 200);
	call_free(&host, c);
	c = call("GET", at("packed"), "Accept-Encoding: gzip\r\n", NULL, 0);
	assert_int_equal(call_status(c), 200);
	assert_string_equal(http_get(&c->head, "Content-Encoding"), "gzip");
	assert_null(http_get(&c->head, "ETag"));
	z.next_in = (Bytef *)buf_data(&c->body);
	z.avail_in = (uInt)buf_len(&c->body);
	inflateInit2(&z, MAX_WBITS + 16);
	assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
	assert_int_equal(z.total_out, n);
	assert_int_equal(z.avail_in, 0);
	inflateEnd(&z);
	assert_memory_equal(plain, data, n);
	call_free(&host, c);
	c = call("GET", at("packed"), "Accept-Encoding: gzip, deflate\r\n", NULL, 0);
	assert_null(http_get(&c->head, "Content-Encoding"));
	assert_int_equal(c->head.length, n);
	call_free(&host, c);
	/* So packed that the packer says nothing for a long time. */
	assert_int_equal(truncate(at("packed"), 64 << 20), 0);
	c = call("GET", at("packed"), "Accept-Encoding: gzip\r\n", NULL, 0);
	assert_true(c->complete && buf_len(&c->body) < n);
	call_free(&host, c);
}

/* Files that are made as they are read, with a size that says nothing. */
static void test_made_up(void **state)
{
	struct call *c = call("GET", "/sys/kernel/mm/transparent_hugepage/enabled", NULL, NULL, 0);

	if (call_status(c) == 200) {
		assert_true(c->complete && buf_len(&c->body) < 4096);
		assert_int_equal(c->head.body, HTTP_BODY_CHUNKED);
	}
	call_free(&host, c);
	c = call("GET", "/proc/cpuinfo", "Accept-Encoding: gzip\r\n", NULL, 0);
	assert_int_equal(call_status(c), 200);
	assert_true(c->complete && buf_len(&c->body) > 100);
	call_free(&host, c);
	/* What would wait for news ends with what is there. */
	c = call("GET", "/proc/kmsg", NULL, NULL, 0);
	assert_true(c->complete || c->rst);
	call_free(&host, c);
}

static void test_disposition(void **state)
{
	struct call *c;
	char path[512], name[256];

	write_file(at("a b"), "");
	c = call("GET", at("a%20b"), NULL, NULL, 0);
	assert_string_equal(http_get(&c->head, "Content-Disposition"), "inline; filename=\"a b\"");
	call_free(&host, c);
	write_file(at("\xc3\xa4\n\""), "");
	c = call("GET", at("%c3%a4%0a%22"), NULL, NULL, 0);
	assert_string_equal(http_get(&c->head, "Content-Disposition"),
			    "inline; filename*=UTF-8''%C3%A4%0A%22");
	call_free(&host, c);
	write_file(at("\xff"), "");
	c = call("GET", at("%ff"), NULL, NULL, 0);
	assert_string_equal(http_get(&c->head, "Content-Disposition"), "inline; filename=\"_\"");
	call_free(&host, c);
	memset(name, 'l', 255);
	name[255] = '\0';
	snprintf(path, sizeof(path), "%s", at(name));
	assert_int_equal(put(path, OCTETS, "long"), 200);
	assert_holds(path, "long");
	c = call("GET", path, NULL, NULL, 0);
	assert_string_equal(call_text(c), "long");
	call_free(&host, c);
	snprintf(path, sizeof(path), "%s/%sx", dir, name);
	assert_int_equal(put(path, OCTETS, "too long"), 400);
	assert_int_equal(put(at("-rf"), OCTETS, "dashes"), 200);
	assert_int_equal(put(at("two%0alines%20%e2%82%ac"), OCTETS, "l"), 200);
	assert_holds(at("two\nlines \xe2\x82\xac"), "l");
}

/* None of these may make the agent wait, or be opened at all. */
static void test_special_files(void **state)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	static const char *const paths[] = { "fifo", "socket", "full-fifo" };
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), reader;
	struct call *c;

	assert_int_equal(mkfifo(at("fifo"), 0666), 0);
	assert_int_equal(mkfifo(at("full-fifo"), 0666), 0);
	reader = open(at("full-fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", at("socket"));
	assert_int_equal(bind(s, (struct sockaddr *)&sa, sizeof(sa)), 0);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		c = call("GET", at(paths[i]), NULL, NULL, 0);
		assert_int_equal(call_status(c), 400);
		assert_non_null(strstr(call_text(c), "not a regular file"));
		call_free(&host, c);
		assert_int_equal(put(at(paths[i]), OCTETS, "data"), 400);
	}
	close(s);
	close(reader);
	assert_int_equal(put("/dev/null", OCTETS, "data"), 200);
	assert_int_equal(put("/dev/full", OCTETS, "data"), 507);
	c = call("GET", "/dev/zero", NULL, NULL, 0);
	assert_int_equal(call_status(c), 400);
	call_free(&host, c);
	/* Lists and Stat look at them like at anything else. */
	{
		char json[128];
		const char *text;

		snprintf(json, sizeof(json), "{\"path\":\"%s\"}", at("fifo"));
		assert_int_equal(rpc(&host, "filesystem.Filesystem/Stat", json, &text), 200);
		assert_non_null(strstr(text, "FILE_TYPE_UNSPECIFIED"));
		assert_non_null(strstr(text, "\"prw-"));
	}
}

static void test_metadata(void **state)
{
	char value[128], *big;
	struct call *c;
	ssize_t n;

	c = call("POST", at("meta"), OCTETS "X-Metadata-Author: me\r\nX-METADATA-Two: b c\r\n", "1",
		 1);
	assert_int_equal(call_status(c), 200);
	assert_non_null(strstr(call_text(c), "\"metadata\":{"));
	assert_non_null(strstr(call_text(c), "\"author\":\"me\""));
	assert_non_null(strstr(call_text(c), "\"two\":\"b c\""));
	call_free(&host, c);
	n = getxattr(at("meta"), "user.e2b.author", value, sizeof(value));
	assert_int_equal(n, 2);
	/* A new upload replaces all of it. */
	assert_int_equal(put(at("meta"), OCTETS "X-Metadata-Third: 3\r\n", "2"), 200);
	assert_int_equal(getxattr(at("meta"), "user.e2b.author", value, sizeof(value)), -1);
	assert_int_equal(getxattr(at("meta"), "user.e2b.third", value, sizeof(value)), 1);
	assert_int_equal(put(at("meta"), OCTETS "X-Metadata-a: \xc3\xa4\r\n", "3"), 400);
	big = x_alloc(6000);
	snprintf(big, 6000, OCTETS "X-Metadata-a: %05000d\r\n", 1);
	assert_int_equal(put(at("meta"), big, "3"), 400);
	snprintf(big, 6000, OCTETS "X-Metadata-a%0247d: x\r\n", 1);
	assert_int_equal(put(at("meta"), big, "3"), 400);
	free(big);
	assert_holds(at("meta"), "2");
}

static void test_links(void **state)
{
	char target[512];

	/* Through a link to nothing the file is made that it names. */
	assert_int_equal(symlink("not-yet", at("dangling")), 0);
	assert_int_equal(put(at("dangling"), OCTETS, "now"), 200);
	assert_holds(at("not-yet"), "now");
	assert_true(readlink(at("dangling"), target, sizeof(target)) > 0);
	assert_int_equal(symlink(at("dangling"), at("chain")), 0);
	assert_int_equal(put(at("chain"), OCTETS, "again"), 200);
	assert_holds(at("not-yet"), "again");
	assert_int_equal(symlink("loop", at("loop")), 0);
	assert_int_equal(put(at("loop"), OCTETS, "x"), 400);
	if (getuid() != 0)
		skip();
	/* A user does not get at what is root's through a link, nor lead root's upload astray. */
	write_file(at("roots"), "root");
	assert_int_equal(mkdir(at("sticky"), 0700), 0);
	assert_int_equal(chmod(at("sticky"), 01777), 0);
	assert_int_equal(symlink(at("roots"), at("sticky/link")), 0);
	assert_int_equal(lchown(at("sticky/link"), NOBODY_ID, NOBODY_ID), 0);
	assert_int_equal(put(at("sticky/link"), OCTETS NOBODY, "mine"), 403);
	assert_int_equal(put(at("sticky/link"), OCTETS, "led astray"), 403);
	assert_holds(at("roots"), "root");
}

/* In a sticky folder, or one that the user cannot write, a file that may be written is. */
static void test_in_place(void **state)
{
	struct stat before, after;

	if (getuid() != 0)
		skip();
	assert_int_equal(mkdir(at("shut"), 0755), 0);
	write_file(at("shut/open"), "old and longer");
	assert_int_equal(chmod(at("shut/open"), 0666), 0);
	assert_int_equal(stat(at("shut/open"), &before), 0);
	assert_int_equal(put(at("shut/open"), OCTETS NOBODY, "new"), 200);
	assert_holds(at("shut/open"), "new");
	assert_int_equal(stat(at("shut/open"), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(put(at("shut/none"), OCTETS NOBODY, "new"), 403);
	assert_int_equal(chmod(at("shut/open"), 0644), 0);
	assert_int_equal(put(at("shut/open"), OCTETS NOBODY, "no"), 403);
	assert_holds(at("shut/open"), "new");
	assert_int_equal(chmod(at("shut"), 01777), 0);
	assert_int_equal(put(at("shut/open"), OCTETS NOBODY, "no"), 403);
	assert_int_equal(chmod(at("shut/open"), 0666), 0);
	assert_int_equal(put(at("shut/open"), OCTETS NOBODY, "yes"), 200);
	assert_holds(at("shut/open"), "yes");
	/* Set-user-ID does not pass to new contents. */
	assert_int_equal(chmod(at("shut/open"), 04755), 0);
	assert_int_equal(put(at("shut/open"), OCTETS, "root's"), 200);
	assert_int_equal(stat(at("shut/open"), &after), 0);
	assert_int_equal(after.st_mode & 07777, 0755);
}

static unsigned entries_of(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

/* A full disk: 507, the old file as it was, and nothing left behind; root's uploads, too. */
static void test_full_disk(void **state)
{
	size_t n = 4 << 20;
	autofree char *data = x_alloc(n);
	static const char *const fields[] = { OCTETS, OCTETS NOBODY };
	struct call *c;

	if (getuid() != 0)
		skip();
	memset(data, 'd', n);
	assert_int_equal(mkdir(at("full"), 0777), 0);
	if (mount("tmpfs", at("full"), "tmpfs", 0, "size=2m,mode=777") < 0)
		skip();
	write_file(at("full/old"), "old");
	assert_int_equal(chown(at("full/old"), NOBODY_ID, NOBODY_ID), 0);
	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		c = call("POST", at("full/old"), fields[i], data, n);
		assert_int_equal(call_status(c), 507);
		assert_non_null(strstr(call_text(c), "not enough disk space"));
		call_free(&host, c);
		assert_holds(at("full/old"), "old");
		assert_int_equal(entries_of(at("full")), 1);
	}
	umount2(at("full"), MNT_DETACH);
}

/* A file that is a mount point is written where it is. */
static void test_mount_point(void **state)
{
	if (getuid() != 0)
		skip();
	write_file(at("below"), "below");
	write_file(at("mounted"), "mounted");
	if (mount(at("mounted"), at("below"), NULL, MS_BIND, NULL) < 0)
		skip();
	assert_int_equal(put(at("below"), OCTETS, "both"), 200);
	assert_holds(at("mounted"), "both");
	umount2(at("below"), MNT_DETACH);
	assert_holds(at("below"), "below");
}

/* Deeper than a path may be long, and with a link that leads out. */
static void test_deep_removal(void **state)
{
	char cmd[1024], json[256];
	struct result r;

	write_file(at("stays"), "stays");
	snprintf(cmd, sizeof(cmd),
		 "mkdir -p %s/abyss && cd %s/abyss && ln -s .. up && "
		 "n=$(printf 'x%%.0s' $(seq 200)) && for i in $(seq 60); do mkdir $n && cd -P $n && ln -s / root && echo >f; done",
		 dir, dir);
	run_wait(&host, cmd, NULL, &r);
	assert_int_equal(r.code, 0);
	snprintf(json, sizeof(json), "{\"path\":\"%s\"}", at("abyss"));
	assert_int_equal(rpc(&host, "filesystem.Filesystem/Remove", json, NULL), 200);
	assert_int_equal(access(at("abyss"), F_OK), -1);
	assert_holds(at("stays"), "stays");
}

static void test_compose(void **state)
{
	const char *text;

	assert_int_equal(host_call(&host, false, "POST", "/files/compose",
				   "Content-Type: application/json\r\n", "{}", &text),
			 501);
	assert_non_null(strstr(text, "\"code\":501"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_head_and_ranges), cmocka_unit_test(test_conditions),
		cmocka_unit_test(test_packed),		cmocka_unit_test(test_made_up),
		cmocka_unit_test(test_disposition),	cmocka_unit_test(test_special_files),
		cmocka_unit_test(test_metadata),	cmocka_unit_test(test_links),
		cmocka_unit_test(test_in_place),	cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_mount_point),	cmocka_unit_test(test_deep_removal),
		cmocka_unit_test(test_compose),
	};

	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
