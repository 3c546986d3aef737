/*
 * Unit tests of the parts that need no kernel objects. The whole program:
 * tests/test_node_manager.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "node-manager/disk.h"
#include "node-manager/exec_record.h"
#include "node-manager/ops.h"
#include "node-manager/slots.h"
#include "node-manager/template.h"

#define SANDBOX "i0123456789abcdefghij"

static void test_exec_names(void **state)
{
	static const char *const bad[] = {
		"",
		".",
		SANDBOX,
		SANDBOX ".",
		SANDBOX ".0",
		SANDBOX ".01",
		SANDBOX ".+1",
		SANDBOX ".1 ",
		SANDBOX ".1.1",
		SANDBOX ".9007199254740993",
		SANDBOX ".99999999999999999999",
		"x0123456789abcdefghij.1",
		"i0123456789ABCDEFGHIJ.1",
		SANDBOX "k.1",
		"../0123456789abcdefgh.1",
		SANDBOX "/1",
	};
	char sandbox[ID_SANDBOX_LEN + 1], name[EXEC_NAME_MAX];
	uint64_t generation;

	assert_int_equal(exec_name_parse(SANDBOX ".9007199254740992", sandbox, &generation), 0);
	assert_string_equal(sandbox, SANDBOX);
	assert_true(generation == NM_GENERATION_MAX);
	assert_int_equal(exec_name(name, sandbox, generation), 0);
	assert_string_equal(name, SANDBOX ".9007199254740992");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (exec_name_parse(bad[i], sandbox, &generation) != -EINVAL)
			fail_msg("\"%s\" is taken as a name", bad[i]);
	}
}

static void test_template_names(void **state)
{
	char longest[NM_TEMPLATE_MAX + 2];

	memset(longest, 'a', sizeof(longest));
	longest[NM_TEMPLATE_MAX + 1] = '\0';
	assert_false(template_name_ok(longest));
	longest[NM_TEMPLATE_MAX] = '\0';
	assert_true(template_name_ok(longest));
	assert_true(template_name_ok("base-0123456789abcdef"));
	assert_false(template_name_ok(""));
	assert_false(template_name_ok("-a"));
	assert_false(template_name_ok(".a"));
	assert_false(template_name_ok("a/b"));
	assert_false(template_name_ok("a.new"));
	assert_false(template_name_ok("A"));
}

/* A folder of this test, removed at its end. */
static char *temp_dir(void)
{
	char *path = x_strdup("/tmp/space-test-nm.XXXXXX");

	if (!mkdtemp(path))
		abort();
	return path;
}

static void remove_dir(char *path, int fd, const char *const *names)
{
	for (; *names; names++)
		unlinkat(fd, *names, 0);
	close(fd);
	assert_int_equal(rmdir(path), 0);
	free(path);
}

static bool cached(int dir, const char *name) { return faccessat(dir, name, F_OK, 0) == 0; }

static void test_cache_prune(void **state)
{
	static const char *const names[] = { NULL };
	char *path = temp_dir(), name[8];
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < TEMPLATE_CACHE_KEPT + 3; i++) {
		struct timespec old = { .tv_sec = now.tv_sec - 10000 + (i == 1 ? 9999 : i) };
		struct timespec both[2] = { old, old };
		autoclose int dir = -1;

		str_format(name, sizeof(name), "t%d", i);
		assert_int_equal(mkdirat(fd, name, 0700), 0);
		dir = openat(fd, name, O_RDONLY | O_DIRECTORY);
		close(openat(dir, TEMPLATE_MANIFEST, O_CREAT | O_WRONLY, 0444));
		futimens(dir, both);
	}
	template_cache_prune(path);
	for (int i = 0; i < TEMPLATE_CACHE_KEPT + 3; i++) {
		str_format(name, sizeof(name), "t%d", i);
		assert_int_equal(cached(fd, name), i == 1 || i > 3);
	}
	/* Whoever is in use now stays, were there more of them than are kept; strangers' files too. */
	for (int i = 10; i < 10 + TEMPLATE_CACHE_KEPT; i++) {
		str_format(name, sizeof(name), "t%d", i);
		assert_int_equal(mkdirat(fd, name, 0700), 0);
	}
	close(openat(fd, "t4/other", O_CREAT | O_WRONLY, 0600));
	template_cache_prune(path);
	assert_true(cached(fd, "t4/other") && cached(fd, "t10") && cached(fd, "t13"));
	unlinkat(fd, "t4/other", 0);
	template_cache_prune(path);
	for (int i = 0; i < 20; i++) {
		char file[32];

		str_format(name, sizeof(name), "t%d", i);
		if (!cached(fd, name))
			continue;
		assert_true(i == 1 || i == 4 || i >= 10);
		str_format(file, sizeof(file), "%s/" TEMPLATE_MANIFEST, name);
		unlinkat(fd, file, 0);
		unlinkat(fd, name, AT_REMOVEDIR);
	}
	remove_dir(path, fd, names);
}

static struct exec_record some_record(void)
{
	struct exec_record r = { .boot_id = "boot",
				 .sandbox = SANDBOX,
				 .generation = 7,
				 .slot = 3,
				 .template = "t",
				 .mode = "restore",
				 .vmm_tree = "v",
				 .bridge_tree = "b",
				 .gateway_tree = "g" };

	for (int i = 0; i < EXEC_WHO_COUNT; i++) {
		uint64_t *p = (uint64_t *)&r.proc[i];

		for (size_t k = 0; k < sizeof(r.proc[i]) / sizeof(*p); k++)
			p[k] = 1000u * (unsigned)(i + 1) + k;
	}
	for (int i = 0; i < EXEC_SOCKET_COUNT; i++) {
		r.socket[i].dev = 5000 + (unsigned)i;
		r.socket[i].ino = 6000 + (unsigned)i;
	}
	return r;
}

static void count_name(const char *name, void *arg)
{
	assert_string_equal(name, SANDBOX ".7");
	++*(int *)arg;
}

static void test_record(void **state)
{
	static const char *const names[] = { SANDBOX ".7.json", SANDBOX ".8.json", "other", NULL };
	char *path = temp_dir(), *text = NULL;
	int fd = open(path, O_RDONLY | O_DIRECTORY), n = 0;
	struct exec_record r = some_record(), back;
	struct err e = { 0 };
	size_t len;

	assert_int_equal(exec_record_write(fd, &r, &e), 0);
	assert_int_equal(exec_record_read(fd, SANDBOX ".7", &back, &e), 0);
	assert_memory_equal(&r, &back, sizeof(r));
	assert_int_equal(exec_record_read(fd, SANDBOX ".8", &back, NULL), -ENOENT);
	assert_int_equal(fd_write_file(fd, "other", "x", 1, 0600), 0);
	assert_int_equal(exec_record_each(fd, count_name, &n), 0);
	assert_int_equal(n, 1);
	/* One that is about another execution than its name says, and one that is cut. */
	assert_int_equal(fd_read_file(fd, SANDBOX ".7.json", EXEC_RECORD_BYTES_MAX, &text, &len),
			 0);
	assert_int_equal(fd_write_file(fd, SANDBOX ".8.json", text, len, 0600), 0);
	assert_int_equal(exec_record_read(fd, SANDBOX ".8", &back, NULL), -EBADMSG);
	assert_int_equal(fd_write_file(fd, SANDBOX ".8.json", text, len - 1, 0600), 0);
	assert_int_equal(exec_record_read(fd, SANDBOX ".8", &back, NULL), -EBADMSG);
	assert_int_equal(exec_record_remove(fd, SANDBOX ".7"), 0);
	assert_int_equal(exec_record_remove(fd, SANDBOX ".7"), 0);
	assert_int_equal(exec_record_read(fd, SANDBOX ".7", &back, NULL), -ENOENT);
	free(text);
	remove_dir(path, fd, names);
}

/* As a version without gateways wrote it: read, and there is none. */
static void test_record_without_gateway(void **state)
{
	static const char *const names[] = { SANDBOX ".7.json", NULL };
	char *path = temp_dir(), *text = NULL, *again;
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	struct exec_record r = some_record(), back;
	struct err e = { 0 };
	const char *key;
	json_t *obj, *v;
	size_t len;
	void *next;

	assert_int_equal(exec_record_write(fd, &r, &e), 0);
	assert_int_equal(fd_read_file(fd, SANDBOX ".7.json", EXEC_RECORD_BYTES_MAX, &text, &len),
			 0);
	obj = json_loads(text, 0, NULL);
	json_object_foreach_safe(obj, next, key, v) {
		if (str_starts(key, "gateway") || str_starts(key, "gtw"))
			json_object_del(obj, key);
	}
	again = json_dumps(obj, JSON_COMPACT);
	assert_int_equal(fd_write_file(fd, SANDBOX ".7.json", again, strlen(again), 0600), 0);
	assert_int_equal(exec_record_read(fd, SANDBOX ".7", &back, &e), 0);
	assert_int_equal(back.proc[EXEC_GATEWAY].pid, 0);
	assert_int_equal(back.socket[EXEC_GTW_CONTROL].ino, 0);
	assert_string_equal(back.gateway_tree, "");
	assert_memory_equal(&back.proc, &r.proc, EXEC_CORE_COUNT * sizeof(r.proc[0]));
	json_decref(obj);
	free(again);
	free(text);
	remove_dir(path, fd, names);
}

/* A file's identity: each change that B-1 names shows. */
static void test_exec_file(void **state)
{
	static const char *const names[] = { "a", "b", "c", NULL };
	char *path = temp_dir(), *a = x_asprintf("%s/a", path);
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	struct exec_file before, now;
	struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };

	assert_int_equal(fd_write_file(fd, "a", "program", 7, 0755), 0);
	assert_int_equal(exec_file_of(a, &before), 0);
	assert_int_equal(exec_file_of(a, &now), 0);
	assert_true(exec_file_eq(&before, &now));
	assert_int_equal(utimensat(fd, "a", old, 0), 0);
	assert_int_equal(exec_file_of(a, &now), 0);
	assert_false(exec_file_eq(&before, &now));
	before = now;
	assert_int_equal(linkat(fd, "a", fd, "b", 0), 0);
	assert_int_equal(exec_file_of(a, &now), 0);
	assert_false(exec_file_eq(&before, &now));
	assert_int_equal(fd_write_file(fd, "c", "program", 7, 0755), 0);
	assert_int_equal(renameat(fd, "c", fd, "a"), 0);
	assert_int_equal(exec_file_of(a, &now), 0);
	assert_false(exec_file_eq(&before, &now));
	free(a);
	remove_dir(path, fd, names);
}

/* A number that was given to another process meanwhile: nothing of it gets into a record. */
static void test_reused_pid(void **state)
{
	struct exec_proc p = { 0 };
	struct err e = { 0 };

	assert_int_equal(exec_proc_note(EXEC_VMM, getpid(), geteuid() + 1, &p, &e), -ESRCH);
	assert_true(p.pid == 0);
	assert_int_equal(exec_proc_note(EXEC_VMM, getpid(), geteuid(), &p, &e), 0);
	assert_true(p.pid == (uint64_t)getpid() && p.uid == geteuid());
}

static void test_slots_order(void **state)
{
	struct slots s;
	struct slots_seen seen = { 0 };
	uint32_t slot = 99;

	/* As many as a configuration may ask for. */
	slots_init(&s, 100000, CONF_SANDBOXES_MAX);
	for (uint32_t i = 0; i < CONF_SANDBOXES_MAX; i++)
		assert_int_equal(slots_take(&s, &slot), 0);
	assert_int_equal(slots_take(&s, &slot), -EAGAIN);
	slots_init(&s, 100000, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(slots_take(&s, &slot), 0);
		assert_int_equal(slot, i);
	}
	assert_int_equal(slots_take(&s, &slot), -EAGAIN);
	slots_give_back(&s, 1, true);
	slots_give_back(&s, 0, true);
	/* The one that has rested longer, not the lowest: the search goes on from the last. */
	assert_int_equal(slots_take(&s, &slot), 0);
	assert_int_equal(slot, 0);
	slots_give_back(&s, 0, true);
	assert_int_equal(slots_take(&s, &slot), 0);
	assert_int_equal(slot, 1);
	assert_int_equal(slots_claim(&s, 1), -EBUSY);
	assert_int_equal(slots_claim(&s, SLOTS_MAX), -EBUSY);
	/* Of a time with a larger number: claimed, and not given out again. */
	assert_int_equal(slots_claim(&s, 3), 0);
	assert_int_equal(slots_claim(&s, 3), -EBUSY);
	slots_give_back(&s, 3, true);
	assert_int_equal(slots_claim(&s, 0), 0);
	/* Dirty: not given out until nothing of it is seen. */
	slots_give_back(&s, 2, false);
	assert_int_equal(slots_take(&s, &slot), -EAGAIN);
	seen.bits[0] = 1u << 2;
	slots_refresh(&s, &seen);
	assert_int_equal(slots_take(&s, &slot), -EAGAIN);
	seen.bits[0] = 0;
	slots_refresh(&s, &seen);
	assert_int_equal(slots_take(&s, &slot), 0);
	assert_int_equal(slot, 2);
	assert_int_equal(slots_uid(&s, 2, SLOT_VMM), 100008);
	assert_int_equal(slots_uid(&s, 2, SLOT_SPARE), 100011);
}

/* A process, a file in /dev/shm: each makes its slot seen, and only its slot. Needs root. */
static void test_slots_scan(void **state)
{
	struct slots s;
	struct slots_seen seen;
	char byte, file[] = "/dev/shm/space-test-nm-XXXXXX";
	int ready[2], go[2], fd;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	slots_init(&s, 1800000000, 16);
	assert_int_equal(slots_scan(&s, &seen, NULL), 0);
	for (uint32_t i = 0; i < 16; i++)
		assert_false(slots_seen_has(&seen, i));
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		if (setresuid(slots_uid(&s, 5, SLOT_GATEWAY), slots_uid(&s, 5, SLOT_GATEWAY),
			      slots_uid(&s, 5, SLOT_GATEWAY)) < 0 ||
		    write(ready[1], "x", 1) != 1)
			_exit(1);
		_exit(read(go[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(go[0]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	fd = mkostemp(file, O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fchown(fd, slots_uid(&s, 9, SLOT_BRIDGE), 0), 0);
	assert_int_equal(slots_scan(&s, &seen, NULL), 0);
	unlink(file);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(slots_seen_has(&seen, i), i == 5 || i == 9);
	close(go[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(slots_scan(&s, &seen, NULL), 0);
	assert_false(slots_seen_has(&seen, 5));
	assert_false(slots_seen_has(&seen, 9));
	close(fd);
	close(ready[0]);
	close(ready[1]);
}

/*
 * Holes stay holes, data are data, the size is the same; with data at both ends, at none, and an
 * empty file.
 */
static void test_copy(void **state)
{
	static const struct { off_t size, at[3];
	} files[] = {
		{ 0, { -1, -1, -1 } },
		{ 8 << 20, { -1, -1, -1 } },
		{ 8 << 20, { 0, 4 << 20, (8 << 20) - 5 } },
		{ 4097, { 4090, -1, -1 } },
	};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		char *path = temp_dir();
		int dir = open(path, O_RDONLY | O_DIRECTORY),
		    src = openat(dir, "a", O_RDWR | O_CREAT, 0600);
		static const char *const names[] = { "a", "b", NULL };
		autofree char *x = x_alloc((size_t)files[i].size + 1),
			      *y = x_alloc((size_t)files[i].size + 1);
		struct stat a, b;

		assert_int_equal(ftruncate(src, files[i].size), 0);
		for (int k = 0; k < 3 && files[i].at[k] >= 0; k++)
			assert_int_equal(pwrite(src, "12345", 5, files[i].at[k]), 5);
		assert_int_equal(fsync(src), 0);
		assert_int_equal(disk_copy_file(dir, "a", dir, "b", 0444, NULL), 0);
		assert_int_equal(disk_copy_file(dir, "a", dir, "b", 0444, NULL), -EEXIST);
		assert_int_equal(fstat(src, &a), 0);
		assert_int_equal(fstatat(dir, "b", &b, 0), 0);
		assert_true(a.st_size == b.st_size);
		assert_int_equal(b.st_mode & 0777, 0444);
		assert_true(b.st_blocks <= a.st_blocks);
		assert_true(pread(src, x, (size_t)a.st_size, 0) == a.st_size);
		close(src);
		src = openat(dir, "b", O_RDONLY);
		assert_true(pread(src, y, (size_t)a.st_size, 0) == a.st_size);
		assert_memory_equal(x, y, (size_t)a.st_size);
		close(src);
		remove_dir(path, dir, names);
	}
}

static void test_handlers(void **state)
{
	const struct ipc_handler *h = ops_handlers();

	for (int i = 0; i < NM_OP_COUNT; i++)
		assert_ptr_equal(h[i].op, &nm_ops[i]);
	assert_null(h[NM_OP_COUNT].op);
	/* The main process has less in force than its children may take. */
	assert_int_equal(ops_main_caps() & ~ops_caps(), 0);
	assert_true(ops_main_caps() != ops_caps());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exec_names),  cmocka_unit_test(test_template_names),
		cmocka_unit_test(test_cache_prune), cmocka_unit_test(test_record_without_gateway),
		cmocka_unit_test(test_record),	    cmocka_unit_test(test_exec_file),
		cmocka_unit_test(test_reused_pid),
		cmocka_unit_test(test_slots_order), cmocka_unit_test(test_slots_scan),
		cmocka_unit_test(test_copy),	    cmocka_unit_test(test_handlers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
