/* Runtime records: every field comes back, also after the writer was killed. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/str.h"
#include "sbx-manager/record.h"

#define SANDBOX "i0123456789abcdefghij"

static char dir[64], path[80];

static int setup(void **state)
{
	str_copy(dir, sizeof(dir), "/tmp/test-record-XXXXXX");
	assert_non_null(mkdtemp(dir));
	str_format(path, sizeof(path), "%s/records.db", dir);
	return 0;
}

static int teardown(void **state)
{
	static const char *const ends[] = { "", "-wal", "-shm" };

	for (unsigned i = 0; i < ARRAY_LEN(ends); i++) {
		char name[100];

		str_format(name, sizeof(name), "%s%s", path, ends[i]);
		unlink(name);
	}
	return rmdir(dir);
}

static struct record sample(uint64_t generation)
{
	struct record r = { .state = LIFE_RUNNING,
			    .memory_mib = 512,
			    .vcpus = 1,
			    .disk_mib = 8192,
			    .installed_ms = 1234567890123,
			    .since_ms = -5,
			    .id.substrate = ID_SUBSTRATE_K8S,
			    .id.generation = generation,
			    .id.attempt = 3,
			    .proc = { 1, 2, 3, 4, 5, 6, 7, 8, UINT64_C(1) << 40 },
			    .gateway = { 10, UINT64_C(1) << 41, 12 },
			    .internet = generation % 2 };

	str_copy(r.id.sandbox, sizeof(r.id.sandbox), SANDBOX);
	str_copy(r.id.tenant, sizeof(r.id.tenant), "acme");
	str_copy(r.id.worker, sizeof(r.id.worker), "11111111-2222-4333-8444-555555555555");
	str_copy(r.id.pod_uid, sizeof(r.id.pod_uid), "21111111-2222-4333-8444-555555555555");
	for (unsigned i = 0; i < ID_ACTIVATION_BYTES; i++)
		r.id.activation[i] = (uint8_t)(i * 17);
	str_copy(r.template, sizeof(r.template), "base-0123456789abcdef");
	str_copy(r.accel, sizeof(r.accel), "tcg");
	memset(r.guest_token, 'a', 64);
	memset(r.machine_id, 'b', 32);
	str_copy(r.reason, sizeof(r.reason), "it's a \"reason\"; DROP TABLE execution");
	return r;
}

static struct record_db *open_db(void)
{
	struct record_db *db;
	struct err e = { 0 };

	if (record_open(path, &db, &e) < 0)
		fail_msg("%s", e.text);
	return db;
}

static void test_round_trip(void **state)
{
	struct record in = sample(7), out;
	struct record_db *db = open_db();
	struct err e = { 0 };

	assert_int_equal(record_get(db, SANDBOX, &out, &e), -ENOENT);
	assert_int_equal(record_put(db, &in, &e), 0);
	record_close(db);
	db = open_db();
	memset(&out, 0xee, sizeof(out));
	assert_int_equal(record_get(db, SANDBOX, &out, &e), 0);
	/* Both were zeroed before they were filled, so padding is equal too. */
	assert_memory_equal(&in, &out, sizeof(in));
	in = sample(8);
	assert_int_equal(record_put(db, &in, &e), 0);
	assert_int_equal(record_get(db, SANDBOX, &out, &e), 0);
	assert_int_equal(out.id.generation, 8);
	record_close(db);
}

/* Records of a version without gateways: what they had is there, what came later as it was then. */
static void test_migration(void **state)
{
	static const char old[] =
		"CREATE TABLE execution("
		" sandbox TEXT PRIMARY KEY, tenant TEXT NOT NULL, worker TEXT NOT NULL, substrate INTEGER NOT NULL,"
		" pod_uid TEXT NOT NULL, generation INTEGER NOT NULL, activation TEXT NOT NULL, attempt INTEGER NOT NULL,"
		" state TEXT NOT NULL, template TEXT NOT NULL, accel TEXT NOT NULL, memory_mib INTEGER NOT NULL,"
		" vcpus INTEGER NOT NULL, disk_mib INTEGER NOT NULL, slot INTEGER NOT NULL, vmm_uid INTEGER NOT NULL,"
		" bridge_uid INTEGER NOT NULL, vmm_pid INTEGER NOT NULL, vmm_start INTEGER NOT NULL, bridge_pid INTEGER NOT NULL,"
		" bridge_start INTEGER NOT NULL, init_pid INTEGER NOT NULL, init_start INTEGER NOT NULL,"
		" guest_token TEXT NOT NULL, machine_id TEXT NOT NULL, installed_ms INTEGER NOT NULL, since_ms INTEGER NOT NULL,"
		" reason TEXT NOT NULL) STRICT;"
		"INSERT INTO execution VALUES('" SANDBOX "', 'acme', '11111111-2222-4333-8444-555555555555', 0, '', 7,"
		" '00112233445566778899aabbccddeeff', 1, 'running', 'base', 'tcg', 512, 1, 8192, 1, 2, 3, 4, 5, 6, 7, 8, 9,"
		" 't', 'm', 10, 11, 'why');"
		"PRAGMA user_version=1;";
	struct record_db *db;
	struct record out;
	struct err e = { 0 };
	sqlite3 *raw;

	assert_int_equal(sqlite3_open(path, &raw), SQLITE_OK);
	assert_int_equal(sqlite3_exec(raw, old, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(raw);
	for (int again = 0; again < 2; again++) {
		db = open_db();
		assert_int_equal(record_get(db, SANDBOX, &out, &e), 0);
		assert_int_equal(out.proc.init_start, 9);
		assert_string_equal(out.reason, "why");
		assert_int_equal(out.gateway.pid, 0);
		assert_true(out.internet);
		record_close(db);
	}
	/* One of a later version is left alone. */
	assert_int_equal(sqlite3_open(path, &raw), SQLITE_OK);
	assert_int_equal(sqlite3_exec(raw, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(raw);
	assert_int_equal(record_open(path, &db, &e), -EPROTO);
}

/* What record_put has said is there, whatever happens then. */
static void test_survives_a_kill(void **state)
{
	for (uint64_t g = 1; g <= 20; g++) {
		struct record_db *db;
		struct record out;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			struct record r = sample(g);

			db = open_db();
			if (record_put(db, &r, NULL) < 0)
				_exit(1);
			kill(getpid(), SIGKILL);
		}
		waitpid(pid, NULL, 0);
		db = open_db();
		assert_int_equal(record_get(db, SANDBOX, &out, NULL), 0);
		assert_int_equal(out.id.generation, g);
		record_close(db);
	}
}

/* Two at once would each end what the other has begun: the second one waits for the end of the first. */
static void test_one_owner(void **state)
{
	struct record r = sample(7), out;
	struct record_db *db;
	int ready[2], end[2];
	sqlite3 *raw;
	pid_t pid;
	char c;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(end), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(end[1]);
		db = open_db();
		if (record_put(db, &r, NULL) < 0 || write(ready[1], "r", 1) != 1 ||
		    read(end[0], &c, 1) != 0)
			_exit(1);
		_exit(0);
	}
	close(ready[1]);
	close(end[0]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_int_equal(sqlite3_open(path, &raw), SQLITE_OK);
	assert_int_equal(sqlite3_exec(raw, "SELECT * FROM execution", NULL, NULL, NULL),
			 SQLITE_BUSY);
	sqlite3_close(raw);
	close(end[1]);
	db = open_db();
	assert_int_equal(record_get(db, SANDBOX, &out, NULL), 0);
	record_close(db);
	close(ready[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_tombstones(void **state)
{
	struct record_db *db = open_db();
	struct record r = sample(1), *v = NULL;
	size_t n = 0;

	for (unsigned i = 0; i < 5; i++) {
		r.id.sandbox[20] = (char)('a' + i);
		r.state = i == 2 ? LIFE_NONE : LIFE_STOPPED;
		r.since_ms = 1000;
		assert_int_equal(record_put(db, &r, NULL), 0);
	}
	assert_int_equal(record_list(db, &v, &n, NULL), 0);
	assert_int_equal(n, 4);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(v[i].state, LIFE_STOPPED);
	free(v);
	r.id.sandbox[20] = 'c';
	assert_int_equal(record_purge(db, 1000, NULL), 0);
	assert_int_equal(record_get(db, r.id.sandbox, &r, NULL), 0);
	assert_int_equal(record_purge(db, 1001, NULL), 0);
	assert_int_equal(record_get(db, r.id.sandbox, &r, NULL), -ENOENT);
	record_close(db);
}

static void test_events_are_bounded(void **state)
{
	struct record_db *db = open_db();
	json_t *a = NULL;

	for (int i = 0; i < RECORD_EVENTS_MAX + 10; i++) {
		char text[32];

		str_format(text, sizeof(text), "event %d", i);
		assert_int_equal(record_event_add(db, SANDBOX, i, text, NULL), 0);
	}
	assert_int_equal(record_event_add(db, "i0000000000000000000z", 1, "another's", NULL), 0);
	assert_int_equal(record_events(db, SANDBOX, &a, NULL), 0);
	assert_int_equal(json_array_size(a), RECORD_EVENTS_MAX);
	assert_string_equal(json_string_value(json_object_get(json_array_get(a, 0), "text")),
			    "event 10");
	json_decref(a);
	assert_int_equal(record_drop(db, SANDBOX, NULL), 0);
	assert_int_equal(record_events(db, SANDBOX, &a, NULL), 0);
	assert_int_equal(json_array_size(a), 0);
	json_decref(a);
	record_close(db);
}

static void test_console_keeps_the_end(void **state)
{
	struct record_db *db = open_db();
	autofree char *big = x_alloc(40000);
	char *text = NULL;
	json_t *marks = NULL;
	size_t n = 0;

	assert_int_equal(record_console(db, SANDBOX, &text, &n, NULL), 0);
	assert_int_equal(n, 0);
	free(text);
	memset(big, 'x', 40000);
	assert_int_equal(record_console_add(db, SANDBOX, big, 40000, 5000, NULL), 0);
	memset(big, 'y', 40000);
	assert_int_equal(record_console_add(db, SANDBOX, big, 39999, 5000, NULL), 0);
	assert_int_equal(record_console_add(db, SANDBOX, "\0", 1, 5000, NULL), 0);
	assert_int_equal(record_console(db, SANDBOX, &text, &n, NULL), 0);
	assert_int_equal(n, RECORD_CONSOLE_MAX);
	assert_int_equal(text[0], 'x');
	assert_int_equal(text[n - 40000], 'y');
	assert_int_equal(text[n - 1], '\0');
	free(text);
	for (int i = 0; i < 2 * RECORD_MARKS_MAX; i++)
		assert_int_equal(record_console_add(db, SANDBOX, "z", 1, 6000 + i, NULL), 0);
	assert_int_equal(record_console_marks(db, SANDBOX, &marks, NULL), 0);
	assert_int_equal(json_array_size(marks), RECORD_MARKS_MAX);
	json_t *last = json_array_get(marks, RECORD_MARKS_MAX - 1);
	assert_int_equal(json_integer_value(json_object_get(last, "t")),
			 6000 + 2 * RECORD_MARKS_MAX - 1);
	assert_int_equal(json_integer_value(json_object_get(last, "bytes")), 1);
	json_decref(marks);
	/* And goes with its sandbox. */
	struct record gone = sample(1);

	gone.state = LIFE_NONE;
	assert_int_equal(record_put(db, &gone, NULL), 0);
	assert_int_equal(record_console(db, SANDBOX, &text, &n, NULL), 0);
	assert_int_equal(n, 0);
	free(text);
	assert_int_equal(record_console_marks(db, SANDBOX, &marks, NULL), 0);
	assert_int_equal(json_array_size(marks), 0);
	json_decref(marks);
	record_close(db);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(test_migration, setup, teardown),
		cmocka_unit_test_setup_teardown(test_survives_a_kill, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_owner, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tombstones, setup, teardown),
		cmocka_unit_test_setup_teardown(test_events_are_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_console_keeps_the_end, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
