/* Archives: what is written is read again; foreign forms; malformed ones; unpacking beneath a folder. */
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
#include "cli/cp.h"
#include "cli/tar.h"

/* What cp.c has for the program, as far as the two directions use it. */
static unsigned failures;
static char last_failure[512];

void cp_failed(struct cp *p, const char *path, const char *fmt, ...)
{
	failures++;
	(void)str_copy(last_failure, sizeof(last_failure), path);
}

void cp_progress(struct cp *p, const char *name, uint64_t more_bytes)
{
	p->bytes += more_bytes;
}

char *cp_join(const char *dir, const char *name)
{
	return x_asprintf("%s/%s", dir, name);
}

static char dir[] = "/tmp/space-test-tar-XXXXXX";

static void put(struct buf *b, enum tar_type type, const char *name, const char *link,
		const char *data)
{
	static const char zeros[TAR_BLOCK];
	struct tar_entry t = { .type = type,
			       .name = (char *)name,
			       .link = (char *)link,
			       .mode = type == TAR_DIR ? 0755 : 0644,
			       .size = strlen(data),
			       .mtime_s = 1000000000 };

	assert_int_equal(tar_put(b, &t), 0);
	assert_int_equal(buf_put(b, data, strlen(data)), 0);
	assert_int_equal(buf_put(b, zeros, tar_padding(strlen(data))), 0);
}

static void put_end(struct buf *b)
{
	static const char zeros[TAR_END_BYTES];

	buf_put(b, zeros, sizeof(zeros));
}

struct seen {
	unsigned entries, done;
	char name[TAR_NAME_MAX + 1], link[TAR_NAME_MAX + 1], data[4096];
	size_t n;
	bool end;
	struct tar_entry last;
};

/* Fed in pieces of `step` bytes. 0 or the error. */
static int read_all(const char *p, size_t n, size_t step, struct seen *s)
{
	struct tar t;
	int r = 0;

	memset(s, 0, sizeof(*s));
	tar_init(&t);
	for (size_t off = 0; off < n && r >= 0;) {
		size_t len = n - off < step ? n - off : step, used, got;
		const char *data;

		r = tar_feed(&t, p + off, len, &used, &data, &got);
		off += used;
		if (r == TAR_ENTRY) {
			s->entries++;
			s->last = t.entry;
			(void)str_copy(s->name, sizeof(s->name), t.entry.name);
			(void)str_copy(s->link, sizeof(s->link), t.entry.link);
			s->n = 0;
		} else if (r == TAR_DATA && s->n + got < sizeof(s->data)) {
			memcpy(s->data + s->n, data, got);
			s->n += got;
		} else if (r == TAR_DONE) {
			s->done++;
		} else if (r == TAR_END) {
			s->end = true;
		}
		assert_true(used || r);
	}
	if (r >= 0 && !tar_whole(&t))
		r = -ENODATA;
	tar_done(&t);
	return r < 0 ? r : 0;
}

static void what_is_written_is_read(void **state)
{
	static const size_t steps[] = { 1, 7, 511, 512, 513, 100000 };
	autofree char *long_name = x_alloc(3001);
	struct seen s;
	struct buf b;

	memset(long_name, 'n', 3000);
	buf_init(&b, 1 << 20);
	put(&b, TAR_DIR, "./d/", "", "");
	put(&b, TAR_SYMLINK, "./l", long_name, "");
	put(&b, TAR_FILE, "\xff new\nline", "", "contents");
	put(&b, TAR_FILE, long_name, "", "last");
	put_end(&b);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		assert_int_equal(read_all(buf_data(&b), buf_len(&b), steps[i], &s), 0);
		assert_int_equal(s.entries, 4);
		assert_int_equal(s.done, 4);
		assert_true(s.end);
		assert_string_equal(s.name, long_name);
		assert_int_equal(s.n, 4);
		assert_memory_equal(s.data, "last", 4);
		assert_int_equal(s.last.mode, 0644);
		assert_int_equal(s.last.mtime_s, 1000000000);
	}
	/* A piece is no archive; one without its end marks is. */
	assert_int_equal(read_all(buf_data(&b), buf_len(&b) - TAR_END_BYTES - 1, 512, &s),
			 -ENODATA);
	assert_int_equal(read_all(buf_data(&b), buf_len(&b) - TAR_END_BYTES, 512, &s), 0);
	buf_done(&b);
}

static void sizes_beyond_octal(void **state)
{
	struct tar_entry t = { .type = TAR_FILE, .name = (char *)"big", .link = (char *)"",
			       .size = 1ull << 40 };
	const char *data;
	size_t used, n;
	struct tar in;
	struct buf b;

	buf_init(&b, 4096);
	assert_int_equal(tar_put(&b, &t), 0);
	tar_init(&in);
	assert_int_equal(tar_feed(&in, buf_data(&b), buf_len(&b), &used, &data, &n), TAR_ENTRY);
	assert_true(in.entry.size == 1ull << 40);
	tar_done(&in);
	buf_done(&b);
}

/* Another type in the head at `p`, with its checksum. */
static void set_type(char *p, char type)
{
	unsigned sum = 0;
	char text[8];

	p[156] = type;
	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += i >= 148 && i < 156 ? ' ' : (unsigned char)p[i];
	(void)str_format(text, sizeof(text), "%06o", sum);
	memcpy(p + 148, text, 7);
}

/* PAX headers as GNU tar and others write them. */
static void pax_names(void **state)
{
	autofree char *raw = NULL;
	struct seen s;
	struct buf b;
	size_t n;

	buf_init(&b, 1 << 16);
	put(&b, TAR_FILE, "PaxHeader", "", "18 path=long/name\n17 linkpath=to/x\n13 mtime=1.5\n");
	put(&b, TAR_FILE, "short", "", "x");
	put_end(&b);
	n = buf_len(&b);
	raw = x_alloc(n);
	memcpy(raw, buf_data(&b), n);
	buf_done(&b);
	set_type(raw, 'x');
	assert_int_equal(read_all(raw, n, 100, &s), 0);
	assert_int_equal(s.entries, 1);
	assert_string_equal(s.name, "long/name");
	assert_string_equal(s.link, "to/x");
	/* A record whose length lies. */
	memcpy(raw + TAR_BLOCK, "99", 2);
	assert_int_equal(read_all(raw, n, 100, &s), -EBADMSG);
}

static void malformed_ones(void **state)
{
	char block[2 * TAR_BLOCK];
	struct seen s;

	memset(block, 'x', sizeof(block));
	assert_int_equal(read_all(block, sizeof(block), 512, &s), -EBADMSG);
	assert_int_equal(read_all("", 0, 1, &s), 0);
	memset(block, 0, sizeof(block));
	assert_int_equal(read_all(block, sizeof(block), 512, &s), 0);
	assert_true(s.end);
}

static void names_stay_beneath(void **state)
{
	static const struct { const char *in, *out; } good[] = {
		{ "./", "" },		{ ".", "" },	     { "", "" },
		{ "./a", "a" },		{ "a//b/./c/", "a/b/c" }, { "..a/b..", "..a/b.." },
		{ "-rf", "-rf" },	{ "a\nb", "a\nb" },
	};
	static const char *const bad[] = { "/", "/etc/passwd", "..", "../x", "a/../b", "a/..",
					   "./../x" };

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		autofree char *s = cp_down_name(good[i].in);
		assert_non_null(s);
		assert_string_equal(s, good[i].out);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_null(cp_down_name(bad[i]));
}

static struct cp copy;

static unsigned unpack(struct buf *b, const char *name, bool whole)
{
	autofree char *path = x_asprintf("%s/%s", dir, name);
	autoclose int root = -1;
	struct cp_down *d;
	struct err e = { 0 };

	put_end(b);
	copy = (struct cp){ .umask = 022 };
	failures = 0;
	assert_int_equal(mkdir(path, 0755), 0);
	root = open(path, O_RDONLY | O_DIRECTORY);
	d = cp_down_new(&copy, root);
	for (size_t off = 0; off < buf_len(b); off += 100)
		assert_int_equal(cp_down_feed(d, buf_data(b) + off,
					      buf_len(b) - off < 100 ? buf_len(b) - off : 100, &e),
				 0);
	assert_true(cp_down_end(d) == whole);
	cp_down_free(d);
	return failures;
}

static char *contents(const char *path)
{
	autofree char *full = x_asprintf("%s/%s", dir, path);
	char *text = NULL;
	size_t n;

	return fd_read_file(AT_FDCWD, full, 4096, &text, &n) == 0 ? text : NULL;
}

static bool absent(const char *path)
{
	autofree char *full = x_asprintf("%s/%s", dir, path);
	struct stat st;

	return lstat(full, &st) < 0 && errno == ENOENT;
}

static void a_tree_is_unpacked(void **state)
{
	struct stat st;
	struct buf b;

	buf_init(&b, 1 << 20);
	put(&b, TAR_DIR, "./", "", "");
	put(&b, TAR_DIR, "./a/", "", "");
	put(&b, TAR_FILE, "./a/file", "", "text");
	put(&b, TAR_HARDLINK, "./same", "./a/file", "");
	put(&b, TAR_SYMLINK, "./link", "/etc/passwd", "");
	put(&b, TAR_FILE, "./deep/down/file", "", "made");
	put(&b, TAR_FILE, "./a/file", "", "newer");
	assert_int_equal(unpack(&b, "tree", true), 0);
	autofree char *newer = contents("tree/a/file"), *same = contents("tree/same"),
		      *deep = contents("tree/deep/down/file"),
		      *path = x_asprintf("%s/tree/a/file", dir);
	assert_string_equal(newer, "newer");
	assert_string_equal(same, "text");
	assert_string_equal(deep, "made");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	assert_int_equal(st.st_mtime, 1000000000);
	assert_int_equal(copy.files, 6);
	buf_done(&b);
}

/* A head of another type: a device, a pipe. */
static void put_other(struct buf *b, const char *name, char type)
{
	char raw[TAR_BLOCK];
	struct buf one;

	buf_init(&one, TAR_BLOCK);
	put(&one, TAR_FILE, name, "", "");
	memcpy(raw, buf_data(&one), sizeof(raw));
	set_type(raw, type);
	assert_int_equal(buf_put(b, raw, sizeof(raw)), 0);
	buf_done(&one);
}

/* Every way out of the folder that an archive can try (S-12). */
static void a_hostile_archive_stays_in_its_folder(void **state)
{
	autofree char *outside = x_asprintf("%s/outside", dir), *text = NULL;
	struct buf b;

	assert_int_equal(mkdir(outside, 0755), 0);
	buf_init(&b, 1 << 20);
	put(&b, TAR_SYMLINK, "out", outside, "");
	put(&b, TAR_FILE, "out/file", "", "through a link");
	put(&b, TAR_DIR, "out/folder/", "", "");
	put(&b, TAR_SYMLINK, "up", "..", "");
	put(&b, TAR_FILE, "up/outside/file", "", "through a link and up");
	put(&b, TAR_FILE, "../outside/file", "", "dots");
	put(&b, TAR_FILE, outside, "", "absolute");
	put(&b, TAR_HARDLINK, "hard", "../../../../etc/passwd", "");
	put(&b, TAR_HARDLINK, "hard", "out", "");
	put(&b, TAR_HARDLINK, "hard", "out/file", "");
	put_other(&b, "device", '3');
	put_other(&b, "pipe", '6');
	put(&b, TAR_SYMLINK, "final", "../outside/final", "");
	put(&b, TAR_FILE, "final", "", "replaces the link itself");
	put(&b, TAR_DIR, "final/", "", "");
	assert_int_equal(unpack(&b, "hostile", true), 11);
	assert_true(absent("outside/file") && absent("outside/folder") && absent("outside/final"));
	assert_true(absent("hostile/hard") && absent("file"));
	assert_true(absent("hostile/device") && absent("hostile/pipe"));
	text = contents("hostile/final");
	assert_string_equal(text, "replaces the link itself");
	buf_done(&b);
}

static void what_is_cut_leaves_the_old(void **state)
{
	autofree char *path = x_asprintf("%s/cut", dir), *text = NULL, *file = NULL;
	autoclose int root = -1;
	struct err e = { 0 };
	struct cp_down *d;
	struct buf b;

	buf_init(&b, 1 << 20);
	put(&b, TAR_FILE, "file", "", "a new one, and longer than a block is no need");
	assert_int_equal(mkdir(path, 0755), 0);
	file = x_asprintf("%s/file", path);
	assert_int_equal(fd_write_file(AT_FDCWD, file, "old", 3, 0644), 0);
	root = open(path, O_RDONLY | O_DIRECTORY);
	copy = (struct cp){ 0 };
	d = cp_down_new(&copy, root);
	assert_int_equal(cp_down_feed(d, buf_data(&b), TAR_BLOCK + 10, &e), 0);
	assert_false(cp_down_end(d));
	cp_down_free(d);
	text = contents("cut/file");
	assert_string_equal(text, "old");
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rmdir(path), 0);        /* nothing beside it */
	buf_done(&b);
}

/* A local tree, packed and unpacked. */
static void there_and_back(void **state)
{
	autofree char *from = x_asprintf("%s/from", dir), *text = NULL;
	struct cp up = { 0 };
	struct cp_up *u;
	struct buf b;
	ssize_t n;
	int root;

	assert_int_equal(mkdir(from, 0755), 0);
	root = open(from, O_RDONLY | O_DIRECTORY);
	assert_int_equal(mkdirat(root, "sub", 0755), 0);
	int fd = openat(root, "sub/\xff\n", O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "hello", 5), 5);
	close(fd);
	assert_int_equal(symlinkat("sub", root, "link"), 0);
	assert_int_equal(mkfifoat(root, "pipe", 0600), 0);
	failures = 0;
	buf_init(&b, 1 << 20);
	u = cp_up_new(&up, root, true);
	do {
		n = cp_up_read(u, buf_reserve(&b, 700), 700);
		buf_commit(&b, (size_t)n);
	} while (n > 0);
	cp_up_free(u);
	assert_int_equal(failures, 1);
	assert_string_equal(last_failure, "./pipe");
	assert_int_equal(buf_len(&b) % TAR_BLOCK, 0);
	assert_int_equal(unpack(&b, "to", true), 0);
	text = contents("to/sub/\xff\n");
	assert_string_equal(text, "hello");
	assert_false(absent("to/link"));
	buf_done(&b);
}

static int make_dir(void **state)
{
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char *const argv[] = { (char *)"rm", (char *)"-rf", dir, NULL };
	pid_t pid = fork();

	if (pid == 0) {
		execv("/bin/rm", argv);
		_exit(127);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_is_read),
		cmocka_unit_test(sizes_beyond_octal),
		cmocka_unit_test(pax_names),
		cmocka_unit_test(malformed_ones),
		cmocka_unit_test(names_stay_beneath),
		cmocka_unit_test(a_tree_is_unpacked),
		cmocka_unit_test(a_hostile_archive_stays_in_its_folder),
		cmocka_unit_test(what_is_cut_leaves_the_old),
		cmocka_unit_test(there_and_back),
	};

	umask(022);
	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
