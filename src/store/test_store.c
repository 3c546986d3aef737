/* The database for real: several handles, several processes, SIGKILL in the middle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"
#include "store/internal.h"

#define WORKER "6d0cb1c8-6f3b-4a55-9d43-0a6e3b1f2c11"
#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define OTHER_HASH "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static char dir[] = "/tmp/space-store-XXXXXX";
static char url[80], path[64];
static struct store *s;
static struct err e;

static struct store *open_store(void)
{
	struct store *st = NULL;
	struct err why = { 0 };

	if (store_open(url, &st, &why) < 0)
		fail_msg("%s", why.text);
	return st;
}

static void remove_files(void)
{
	char name[80];

	unlink(path);
	for (const char *const *x = (const char *const[]){ "-wal", "-shm", NULL }; *x; x++) {
		str_format(name, sizeof(name), "%s%s", path, *x);
		unlink(name);
	}
}

static int set_up(void **st)
{
	struct store_key k;

	remove_files();
	clock_set_shift_ms(0);
	e = (struct err){ 0 };
	s = open_store();
	return store_key_add(s, "acme", "first", HASH, "e2b_00112233", &k, NULL);
}

static int tear_down(void **st)
{
	store_close(s);
	s = NULL;
	remove_files();
	clock_set_shift_ms(0);
	return 0;
}

static int create_once(struct store *in, const struct store_once *once, const char *tenant,
		       const char *claimer, struct store_op *ret)
{
	struct store_sandbox b = { .template = "base-0011",
				   .template_name = "base",
				   .generation = 1,
				   .worker = WORKER,
				   .attempt = 1,
				   .memory_mib = 512,
				   .vcpus = 1,
				   .disk_mib = 8192,
				   .metadata = (char *)"{\"a\":\"b\"}",
				   .env = (char *)"{\"SECRET\":\"x\"}",
				   .options = (char *)"{}" };

	assert_int_equal(id_new_sandbox(b.id), 0);
	assert_int_equal(id_new_activation(b.activation), 0);
	str_copy(b.tenant, sizeof(b.tenant), tenant);
	return store_create(in, &b, once, claimer, "req-1", ret, &e);
}

static struct store_op create_in(struct store *in, const char *claimer, char id[ID_SANDBOX_LEN + 1])
{
	struct store_op op;

	if (create_once(in, NULL, "acme", claimer, &op) < 0)
		fail_msg("%s", e.text);
	memcpy(id, op.sandbox, sizeof(op.sandbox));
	return op;
}

static struct store_op create(char id[ID_SANDBOX_LEN + 1])
{
	return create_in(s, "api-1", id);
}

static void running(char id[ID_SANDBOX_LEN + 1])
{
	struct store_op op = create(id);

	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
}

static int submit(const char *id, enum life_event kind, struct store_op *ret)
{
	return store_submit(s, id, "acme", kind, "api-1", "req-2", ret, &e);
}

static struct store_op submitted(const char *id, enum life_event kind)
{
	struct store_op op;

	if (submit(id, kind, &op) < 0)
		fail_msg("%s", e.text);
	return op;
}

static void expect(const char *id, enum life_state desired, enum life_state observed,
		   uint64_t generation, const char *reason)
{
	autosandbox struct store_sandbox b = { 0 };

	assert_int_equal(store_sandbox_get(s, id, "acme", &b, &e), 0);
	assert_string_equal(life_state_names[b.desired], life_state_names[desired]);
	assert_string_equal(life_state_names[b.observed], life_state_names[observed]);
	assert_int_equal(b.generation, generation);
	assert_string_equal(b.reason, reason);
}

static int64_t count(const char *sql)
{
	autorows struct db_rows q = { 0 };

	assert_int_equal(db_query(s->db, &e, &q, sql), 0);
	assert_int_equal(db_next(&q, &e), 1);
	return db_int(&q, 0);
}

/* ---- The file and its schema ---- */

static void test_open(void **st)
{
	struct store *other = NULL;
	mode_t old = umask(007);
	struct stat sb;

	store_close(s);
	remove_files();
	s = open_store();
	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(sb.st_mode & 07777, 0660);
	char wal[80];
	str_format(wal, sizeof(wal), "%s-wal", path);
	assert_int_equal(stat(wal, &sb), 0);
	assert_int_equal(sb.st_mode & 07777, 0660);      /* the group's other users write it too */
	umask(old);
	other = open_store();
	assert_int_equal(count("SELECT COUNT(*) = MAX(version) FROM schema_version"), 1);
	store_close(other);
	assert_int_equal(store_open("postgres://x", &other, &e), -EINVAL);
	assert_int_equal(store_open("sqlite:relative", &other, &e), -EINVAL);
	assert_int_equal(store_open("sqlite:/nonexistent/x.db", &other, &e), -ENOENT);
	store_close(NULL);
}

static void test_durable(void **st)
{
	autorows struct db_rows q = { 0 };

	assert_int_equal(count("PRAGMA synchronous"), 2);        /* FULL */
	assert_int_equal(count("PRAGMA foreign_keys"), 1);
	assert_int_equal(db_query(s->db, &e, &q, "PRAGMA journal_mode"), 0);
	assert_int_equal(db_next(&q, &e), 1);
	assert_string_equal(db_str(&q, 0), "wal");
}

static void test_newer_schema(void **st)
{
	struct store *other = NULL;

	assert_int_equal(
		db_exec(s->db, &e,
			"INSERT INTO schema_version (version, applied_ms) VALUES (999, 0)"),
		1);
	assert_int_equal(store_open(url, &other, &e), -EPROTO);
	assert_non_null(strstr(e.text, "999"));
}

static void test_not_a_database(void **st)
{
	struct store *other = NULL;

	store_close(s);
	s = NULL;
	remove_files();
	char junk[4096];
	memset(junk, 'x', sizeof(junk));
	assert_int_equal(fd_write_file(AT_FDCWD, path, junk, sizeof(junk), 0600), 0);
	assert_int_equal(store_open(url, &other, &e), -EUCLEAN);
}

/* ---- Keys, nodes, bundle, templates ---- */

/* Root opens it in a folder of space-api's: a link there would make it write elsewhere. */
static void test_link(void **st)
{
	char target[80], link[80], link_url[96], folder[80], through[120];
	struct store *opened = NULL;

	str_format(target, sizeof(target), "%s/elsewhere", dir);
	str_format(link, sizeof(link), "%s/link.db", dir);
	str_format(link_url, sizeof(link_url), "sqlite:%s", link);
	assert_int_equal(symlink(target, link), 0);
	assert_true(store_open(link_url, &opened, &e) < 0);
	assert_int_equal(access(target, F_OK), -1);
	unlink(link);
	/* A link above the folder is the administrator's. */
	str_format(folder, sizeof(folder), "%s/folder", dir);
	str_format(through, sizeof(through), "sqlite:%s/%s", folder, "space.db");
	assert_int_equal(symlink(dir, folder), 0);
	assert_int_equal(store_open(through, &opened, &e), 0);
	store_close(opened);
	unlink(folder);
}

static void test_keys(void **st)
{
	struct store_key k, *list;
	size_t n;

	assert_int_equal(store_key_find(s, HASH, &k, &e), 0);
	assert_string_equal(k.tenant, "acme");
	assert_string_equal(k.prefix, "e2b_00112233");
	assert_int_equal(store_key_find(s, "ff", &k, &e), -ENOENT);
	assert_int_equal(store_key_add(s, "acme", "again", HASH, "", &k, &e), -EEXIST);
	assert_int_equal(store_key_add(s, "Acme", "x", HASH, "", &k, &e), -EINVAL);
	assert_int_equal(store_key_add(s, "acme", "x", "zz", "", &k, &e), -EINVAL);
	assert_int_equal(store_key_add(s, "acme", "\xff", HASH, "", &k, &e), -EINVAL);
	for (int i = 0; i < 40; i++) {
		char hash[65];

		str_format(hash, sizeof(hash), "%064x", i + 1);
		assert_int_equal(store_key_add(s, i % 2 ? "acme" : "other", "", hash, "", &k, &e),
				 0);
	}
	assert_int_equal(store_key_list(s, "", &list, &n, &e), 0);
	assert_int_equal(n, 41);
	free(list);
	assert_int_equal(store_key_list(s, "other", &list, &n, &e), 0);
	assert_int_equal(n, 20);
	free(list);
	assert_int_equal(store_key_list(s, "nobody", &list, &n, &e), 0);
	assert_int_equal(n, 0);
	assert_null(list);
	assert_int_equal(store_key_find(s, HASH, &k, &e), 0);
	assert_int_equal(store_key_revoke(s, k.id, &e), 0);
	assert_int_equal(store_key_revoke(s, k.id, &e), -ENOENT);
	assert_int_equal(store_key_find(s, HASH, &k, &e), -ENOENT);
}

static void test_nodes(void **st)
{
	autofree char *big = x_alloc(5000);
	struct store_node *list;
	size_t n;

	assert_int_equal(store_node_put(s, "x", "unix:/a", &e), -EINVAL);
	assert_int_equal(store_node_seen(s, WORKER, 1, "{}", &e), -ENOENT);
	assert_int_equal(store_node_put(s, WORKER, "unix:/a", &e), 0);
	assert_int_equal(store_node_put(s, WORKER, "unix:/b", &e), 0);
	assert_int_equal(store_node_seen(s, WORKER, 3, "{\"free\":1}", &e), 0);
	memset(big, ' ', 4999);
	assert_int_equal(store_node_seen(s, WORKER, 3, big, &e), -EMSGSIZE);
	assert_int_equal(store_node_list(s, &list, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_string_equal(list[0].addr, "unix:/b");
	assert_int_equal(list[0].bundle, 3);
	assert_string_equal(list[0].report, "{\"free\":1}");
	assert_true(list[0].seen_ms > 0);
	free(list);
}

static void test_bundle(void **st)
{
	autofree char *text = NULL;
	uint64_t n;

	assert_int_equal(store_bundle_get(s, &n, &text, &e), -ENOENT);
	assert_int_equal(store_bundle_put(s, 2, "two", &e), 0);
	assert_int_equal(store_bundle_put(s, 2, "two", &e), 0);
	assert_int_equal(store_bundle_put(s, 2, "other", &e), -ESTALE);
	assert_int_equal(store_bundle_put(s, 1, "one", &e), -ESTALE);
	assert_int_equal(store_bundle_put(s, 0, "none", &e), -EINVAL);
	assert_int_equal(store_bundle_put(s, 3, "three", &e), 0);
	assert_int_equal(store_bundle_get(s, &n, &text, &e), 0);
	assert_int_equal(n, 3);
	assert_string_equal(text, "three");
}

static void test_templates(void **st)
{
	autofree char *m = NULL;
	char id[64], name[64];

	assert_int_equal(store_template_find(s, "acme", "base", id, name, NULL, &e), -ENOENT);
	assert_int_equal(store_template_put(s, "", "base", "base-1", "{}", &e), 0);
	assert_int_equal(store_template_put(s, "", "base", "base-2", "{\"v\":2}", &e), 0);
	assert_int_equal(store_template_put(s, "other", "base", "theirs", "{}", &e), 0);
	assert_int_equal(store_template_find(s, "acme", "base", id, name, &m, &e), 0);
	assert_string_equal(id, "base-2");
	assert_string_equal(m, "{\"v\":2}");
	assert_int_equal(store_template_find(s, "acme", "base-2", id, name, NULL, &e), 0);
	assert_string_equal(name, "base");
	assert_int_equal(store_template_find(s, "other", "base", id, name, NULL, &e), 0);
	assert_string_equal(id, "theirs");
	assert_int_equal(store_template_find(s, "acme", "theirs", id, name, NULL, &e), -ENOENT);
	assert_int_equal(store_template_put(s, "", "", "x", "{}", &e), -EINVAL);
}

/* ---- The life of a sandbox ---- */

static void test_create(void **st)
{
	autosandbox struct store_sandbox b = { 0 }, c = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), same;
	struct identity i;

	assert_true(op.id > 0 && op.kind == LIFE_EV_CREATE && op.state == STORE_OP_CLAIMED &&
		    op.tries == 1);
	assert_string_equal(op.claimer, "api-1");
	assert_int_equal(store_op_get(s, op.id, &same, &e), 0);
	assert_memory_equal(&op, &same, sizeof(op));
	assert_int_equal(store_op_get(s, 4711, &same, &e), -ENOENT);
	expect(id, LIFE_RUNNING, LIFE_CREATING, 1, "");
	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	assert_string_equal(b.env, "{\"SECRET\":\"x\"}");
	store_sandbox_identity(&b, &i);
	assert_int_equal(id_check(&i, &e), 0);
	assert_string_equal(i.worker, WORKER);
	assert_int_equal(store_sandbox_get(s, id, "other", &c, &e), -ENOENT);
	assert_string_equal(e.code, "sandbox-not-found");
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, NULL, &e), -EINVAL);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), -ESTALE);
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "");
	/* The same ID, an unknown tenant, a generation of one's own. */
	assert_int_equal(store_create(s, &b, NULL, "api-1", "r", &op, &e), -EEXIST);
	assert_string_equal(e.code, "sandbox-exists");
	b.id[3] = b.id[3] == 'z' ? 'y' : 'z';
	assert_int_equal(id_new_activation(b.activation), 0);
	str_copy(b.tenant, sizeof(b.tenant), "nobody");
	assert_int_equal(store_create(s, &b, NULL, "api-1", "r", &op, &e), -ENOENT);
	b.generation = 2;
	assert_int_equal(store_create(s, &b, NULL, "api-1", "r", &op, &e), -EINVAL);
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes"), 1);
	assert_int_equal(count("SELECT COUNT(*) FROM operations"), 1);
}

/* I-4: an activation is never used twice, not by another sandbox either. */
static void test_activation_unique(void **st)
{
	autosandbox struct store_sandbox b = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;

	running(id);
	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	assert_int_equal(id_new_sandbox(b.id), 0);
	assert_int_equal(store_create(s, &b, NULL, "api-1", "r", &op, &e), -EEXIST);
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes"), 1);
}

static void test_create_fails(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), got;
	struct err why = { 0 };

	err_set_code(&why, -ENOSPC, "no-space", "no space for \xc3\xa4 disk");
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, &why, &e), -EINVAL);
	assert_int_equal(store_finish(s, &op, LIFE_FAILED, &why, &e), 0);
	expect(id, LIFE_FAILED, LIFE_FAILED, 1, "no space for \xc3\xa4 disk");
	assert_int_equal(store_op_get(s, op.id, &got, &e), 0);
	assert_true(got.state == STORE_OP_FAILED && got.err_num == -ENOSPC);
	assert_string_equal(got.err_code, "no-space");
	assert_int_equal(submit(id, LIFE_EV_START, &op), -EINVAL);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_RUNNING, "", INT64_MAX, &e), -ESTALE);
	op = submitted(id, LIFE_EV_DELETE);
	assert_int_equal(store_finish(s, &op, LIFE_NONE, NULL, &e), 0);
}

static void test_reason_is_cut_between_characters(void **st)
{
	autosandbox struct store_sandbox b = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id);
	struct err why = { .num = -EIO };

	for (int i = 0; i < 126; i++)
		why.text[i] = 'x';
	memcpy(why.text + 126, "\xc3\xa4\xc3\xa4", 5);
	assert_int_equal(store_finish(s, &op, LIFE_FAILED, &why, &e), 0);
	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	assert_int_equal(strlen(b.reason), 126);
}

static void test_life(void **st)
{
	uint8_t first[ID_ACTIVATION_BYTES];
	autosandbox struct store_sandbox b = { 0 }, c = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;

	running(id);
	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	memcpy(first, b.activation, sizeof(first));
	assert_true(b.started_ms > 0);
	/* Start of a running sandbox replaces its execution. */
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(op.generation, 2);
	expect(id, LIFE_RUNNING, LIFE_STARTING, 2, "");
	assert_int_equal(store_sandbox_get(s, id, "", &c, &e), 0);
	assert_memory_not_equal(first, c.activation, sizeof(first));
	assert_int_equal(c.attempt, 1);
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 1);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	op = submitted(id, LIFE_EV_STOP);
	assert_int_equal(op.generation, 2);
	expect(id, LIFE_STOPPED, LIFE_STOPPING, 2, "");
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, NULL, &e), 0);
	expect(id, LIFE_STOPPED, LIFE_STOPPED, 2, "");
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 0);
	/* Again: nothing to do. */
	op = submitted(id, LIFE_EV_STOP);
	assert_int_equal(op.id, 0);
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(op.generation, 3);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	assert_int_equal(submit(id, LIFE_EV_SUSPEND, &op), -ENOSYS);
	assert_int_equal(submit(id, LIFE_EV_CREATE, &op), -EINVAL);
	assert_int_equal(submit(id, LIFE_EV_DONE, &op), -EINVAL);
	assert_int_equal(store_submit(s, id, "other", LIFE_EV_STOP, "a", "r", &op, &e), -ENOENT);
	op = submitted(id, LIFE_EV_DELETE);
	expect(id, LIFE_NONE, LIFE_DELETING, 3, "");
	assert_int_equal(store_finish(s, &op, LIFE_NONE, NULL, &e), 0);
	/* No request revives it, and its tombstone has nothing of the user. */
	assert_int_equal(store_sandbox_get(s, id, "", &c, &e), -ENOENT);
	assert_int_equal(submit(id, LIFE_EV_DELETE, &op), -ENOENT);
	assert_int_equal(submit(id, LIFE_EV_START, &op), -ENOENT);
	assert_int_equal(store_sandbox_observed(s, id, 3, LIFE_RUNNING, "", INT64_MAX, &e), -ENOENT);
	assert_int_equal(store_sandbox_set_end(s, id, 5, &e), -ENOENT);
	assert_int_equal(id_new_activation(b.activation), 0);
	assert_int_equal(store_create(s, &b, NULL, "api-1", "r", &op, &e), -EEXIST);
	assert_int_equal(
		count("SELECT COUNT(*) FROM sandboxes WHERE env LIKE '%SECRET%' OR metadata <> '{}'"),
		0);
	assert_int_equal(count("SELECT COUNT(*) FROM executions"), 3);
}

static void test_start_fails(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct err why = { .num = -ENOSPC, .text = "no space" };
	struct store_op op;

	running(id);
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, &why, &e), 0);
	expect(id, LIFE_STOPPED, LIFE_STOPPED, 2, "no space");
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(op.generation, 3);
	expect(id, LIFE_RUNNING, LIFE_STARTING, 3, "");
}

static void test_observed(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id);

	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_RUNNING, "", INT64_MAX, &e), -EBUSY);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	assert_int_equal(store_sandbox_observed(s, id, 2, LIFE_STOPPED, "crashed", INT64_MAX, &e), -ESTALE);
	assert_int_equal(store_sandbox_observed(s, id, 0, LIFE_STOPPED, "crashed", INT64_MAX, &e), -ESTALE);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_STOPPING, "", INT64_MAX, &e), -EINVAL);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_RUNNING, "", INT64_MAX, &e), 0);
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "");
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_STOPPED, "crashed", INT64_MAX, &e), 0);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_STOPPED, "other", INT64_MAX, &e), 0);
	expect(id, LIFE_STOPPED, LIFE_STOPPED, 1, "crashed");
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 0);
	/* A reboot inside: the control plane submits the start. */
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(op.generation, 2);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_STOPPED, "late", INT64_MAX, &e), -ESTALE);
	expect(id, LIFE_RUNNING, LIFE_STARTING, 2, "");
}

/* ---- Operations ---- */

static void test_queue(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), del, again, got;

	assert_int_equal(submit(id, LIFE_EV_STOP, &got), -EBUSY);
	assert_int_equal(submit(id, LIFE_EV_START, &got), -EBUSY);
	del = submitted(id, LIFE_EV_DELETE);
	assert_int_equal(del.state, STORE_OP_QUEUED);
	assert_string_equal(del.claimer, "");
	again = submitted(id, LIFE_EV_DELETE);
	assert_int_equal(again.id, del.id);
	assert_int_equal(submit(id, LIFE_EV_STOP, &got), -EBUSY);
	expect(id, LIFE_NONE, LIFE_CREATING, 1, "");
	/* The create is claimed, and the delete stands behind it. */
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
	assert_int_equal(store_finish(s, &del, LIFE_NONE, NULL, &e), -ESTALE);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	expect(id, LIFE_NONE, LIFE_RUNNING, 1, "");
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), 0);
	assert_int_equal(got.id, del.id);
	expect(id, LIFE_NONE, LIFE_DELETING, 1, "");
	assert_int_equal(store_finish(s, &got, LIFE_NONE, NULL, &e), 0);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
}

/* A create that fails while a delete waits: the delete stays wanted. */
static void test_queue_behind_failure(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), got;
	struct err why = { .num = -EIO, .text = "broken" };

	submitted(id, LIFE_EV_DELETE);
	assert_int_equal(store_finish(s, &op, LIFE_FAILED, &why, &e), 0);
	expect(id, LIFE_NONE, LIFE_FAILED, 1, "broken");
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), 0);
	/* A delete that fails leaves something to delete. */
	assert_int_equal(store_finish(s, &got, LIFE_FAILED, &why, &e), 0);
	got = submitted(id, LIFE_EV_DELETE);
	assert_int_equal(got.state, STORE_OP_CLAIMED);
	assert_int_equal(store_finish(s, &got, LIFE_NONE, NULL, &e), 0);
}

static void test_lease(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), second, third, got;

	clock_set_shift_ms(STORE_LEASE_MS - 1000);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
	assert_int_equal(store_renew(s, &op, &e), 0);
	clock_set_shift_ms(STORE_LEASE_MS + 5000);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
	clock_set_shift_ms(2 * STORE_LEASE_MS + 5000);
	assert_int_equal(store_claim(s, "ctl-1", &second, &e), 0);
	assert_int_equal(second.id, op.id);
	assert_int_equal(second.tries, 2);
	expect(id, LIFE_RUNNING, LIFE_CREATING, 1, "");
	/* The first claimer is out of it. */
	assert_int_equal(store_renew(s, &op, &e), -ESTALE);
	assert_int_equal(store_release(s, &op, 0, &e), -ESTALE);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), -ESTALE);
	/* A claim of the same name is another claim. */
	clock_set_shift_ms(4 * STORE_LEASE_MS);
	assert_int_equal(store_claim(s, "ctl-1", &third, &e), 0);
	assert_int_equal(store_finish(s, &second, LIFE_RUNNING, NULL, &e), -ESTALE);
	assert_int_equal(store_finish(s, &third, LIFE_RUNNING, NULL, &e), 0);
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "");
}

static void test_release(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), got;

	assert_int_equal(store_release(s, &op, 60000, &e), 0);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
	assert_int_equal(submit(id, LIFE_EV_STOP, &got), -EBUSY);
	clock_set_shift_ms(61000);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), 0);
	assert_int_equal(got.tries, 2);
	assert_int_equal(store_release(s, &op, 0, &e), -ESTALE);
	assert_int_equal(store_release(s, &got, 0, &e), 0);
	assert_int_equal(store_claim(s, "ctl-2", &got, &e), 0);
}

/* Work that was decided for an execution that has passed is dropped. */
static void test_superseded(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op = create(id), got;

	assert_int_equal(store_release(s, &op, 0, &e), 0);
	assert_int_equal(db_exec(s->db, &e, "UPDATE sandboxes SET generation = 2"), 1);
	assert_int_equal(store_claim(s, "ctl-1", &got, &e), -ENOENT);
	assert_int_equal(store_op_get(s, op.id, &got, &e), 0);
	assert_int_equal(got.state, STORE_OP_FAILED);
	assert_string_equal(got.err_code, "execution-replaced");
}

/* ---- Lists ---- */

static size_t pages(struct store_list q, char seen[64][ID_SANDBOX_LEN + 1])
{
	char cursor[64] = "", next[64];
	size_t total = 0;

	do {
		struct store_sandbox *list;
		size_t n;

		q.cursor = cursor;
		assert_int_equal(store_sandbox_list(s, &q, &list, &n, next, &e), 0);
		assert_true(n <= q.limit);
		for (size_t i = 0; i < n; i++) {
			memcpy(seen[total++], list[i].id, ID_SANDBOX_LEN + 1);
			store_sandbox_done(&list[i]);
		}
		free(list);
		memcpy(cursor, next, sizeof(cursor));
	} while (cursor[0]);
	return total;
}

static void test_list(void **st)
{
	char ids[20][ID_SANDBOX_LEN + 1], up[64][ID_SANDBOX_LEN + 1], down[64][ID_SANDBOX_LEN + 1],
		next[64];
	struct store_sandbox *list;
	struct store_op op;
	size_t n;

	for (int i = 0; i < 20; i++) {
		clock_set_shift_ms(i / 3 * 1000);        /* some are of one millisecond or nearly so */
		running(ids[i]);
	}
	for (unsigned limit = 1; limit <= 21; limit += 4) {
		assert_int_equal(pages((struct store_list){ .limit = limit }, up), 20);
		assert_int_equal(pages((struct store_list) { .limit = limit,
							     .newest_first = true,
							     .tenant = "acme" },
				       down),
				 20);
		for (int i = 0; i < 20; i++) {
			int found = 0;

			assert_string_equal(up[i], down[19 - i]);
			for (int j = 0; j < 20; j++)
				found += str_eq(up[j], ids[i]);
			assert_int_equal(found, 1);
		}
	}
	assert_int_equal(pages((struct store_list){ .limit = 5, .tenant = "other" }, up), 0);
	op = submitted(ids[3], LIFE_EV_STOP);
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, NULL, &e), 0);
	op = submitted(ids[4], LIFE_EV_DELETE);
	assert_int_equal(store_finish(s, &op, LIFE_NONE, NULL, &e), 0);
	assert_int_equal(pages((struct store_list){ .limit = 5 }, up), 19);
	assert_int_equal(pages((struct store_list){ .limit = 5, .state_csv = "stopped" }, up), 1);
	assert_string_equal(up[0], ids[3]);
	assert_int_equal(pages((struct store_list) { .limit = 5, .state_csv = "running,stopped" },
			       up),
			 19);
	assert_int_equal(pages((struct store_list){ .limit = 5, .state_csv = "run" }, up), 0);
	assert_int_equal(pages((struct store_list){ .limit = 5, .state_csv = "paused" }, up), 0);
	assert_int_equal(store_sandbox_set_end(s, ids[7], 1000, &e), 0);
	assert_int_equal(pages((struct store_list) { .limit = 5, .expired_before_ms = 2000 }, up),
			 1);
	assert_string_equal(up[0], ids[7]);
	assert_int_equal(pages((struct store_list) { .limit = 5, .expired_before_ms = 1000 }, up),
			 0);
	for (const char *const *c =
		     (const char *const[]) { "x", "1", "1.", ".", "-1.iabcdefghij0123456789", "1.x",
					     "1.' OR 1",
					     "0000000000000000000000000000000000000000001."
					     "iaaaaaaaaaaaaaaaaaaaa", NULL };
	     *c; c++) {
		struct store_list q = { .cursor = *c };

		assert_int_equal(store_sandbox_list(s, &q, &list, &n, next, &e), -EINVAL);
	}
}

/* ---- Several at once ---- */

#define RACE_OPS 120
#define RACE_CHILDREN 4

/* Claims and finishes until nothing is left; writes what it finished into the pipe. */
static void race_child(int out, int number)
{
	struct store *mine = NULL;
	struct store_op op;
	char name[16];

	str_format(name, sizeof(name), "ctl-%d", number);
	if (store_open(url, &mine, NULL) < 0)
		_exit(2);
	for (;;) {
		int r = store_claim(mine, name, &op, &e);

		if (r == -ENOENT)
			break;
		if (r < 0 ||
		    store_finish(mine, &op, op.kind == LIFE_EV_DELETE ? LIFE_NONE : LIFE_RUNNING,
				 NULL, &e) < 0)
			_exit(3);
		if (write(out, &op.id, sizeof(op.id)) != sizeof(op.id))
			_exit(4);
	}
	store_close(mine);
	_exit(0);
}

static void test_race(void **st)
{
	int64_t ids[RACE_OPS], id;
	int p[2], seen[RACE_OPS] = { 0 }, n = 0, status;
	char box[ID_SANDBOX_LEN + 1];
	pid_t pids[RACE_CHILDREN];

	/* Half of them a create, with its delete behind it. */
	for (int i = 0; i < RACE_OPS; i += 2) {
		struct store_op op = create(box);

		ids[i] = op.id;
		ids[i + 1] = submitted(box, LIFE_EV_DELETE).id;
		assert_int_equal(store_release(s, &op, 0, &e), 0);
	}
	store_close(s);                          /* a handle must not cross fork(2) */
	assert_int_equal(pipe(p), 0);
	for (int i = 0; i < RACE_CHILDREN; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			race_child(p[1], i);
	}
	close(p[1]);
	while (read(p[0], &id, sizeof(id)) == sizeof(id)) {
		for (int i = 0; i < RACE_OPS; i++)
			if (ids[i] == id)
				seen[i]++;
		n++;
	}
	close(p[0]);
	for (int i = 0; i < RACE_CHILDREN; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	assert_int_equal(n, RACE_OPS);
	for (int i = 0; i < RACE_OPS; i++)
		assert_int_equal(seen[i], 1);
	s = open_store();
	assert_int_equal(count("SELECT COUNT(*) FROM operations WHERE state <> 'done'"), 0);
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes WHERE deleted_ms = 0"), 0);
}

/*
 * Two handles of one process: one waits for the other's write, and neither loses its locks by
 * opening a third.
 */
static void test_two_handles(void **st)
{
	struct store *a = open_store(), *b = open_store(), *c;
	autotx struct db_tx tx = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op got;

	assert_int_equal(store_release(s, &(struct store_op){ .id = 1 }, 0, &e), -ESTALE);
	struct store_op op = create_in(a, "a", id);
	assert_int_equal(store_claim(b, "b", &got, &e), -ENOENT);
	assert_int_equal(db_begin(a->db, &tx, &e), 0);
	c = open_store();
	{
		autorows struct db_rows q = { 0 };

		assert_int_equal(db_query(b->db, &e, &q, "PRAGMA busy_timeout = 50"), 0);
		assert_int_equal(db_next(&q, &e), 1);
	}
	assert_int_equal(store_finish(b, &op, LIFE_RUNNING, NULL, &e), -EAGAIN);
	db_tx_end(&tx);
	assert_int_equal(store_finish(b, &op, LIFE_RUNNING, NULL, &e), 0);
	store_close(c);
	store_close(b);
	store_close(a);
}

/* All first opens at once: one migrates, the others wait. */
static void test_open_race(void **st)
{
	pid_t pids[RACE_CHILDREN];
	int status;

	store_close(s);
	remove_files();
	for (int i = 0; i < RACE_CHILDREN; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			_exit(store_open(url, &s, NULL) < 0);
	}
	for (int i = 0; i < RACE_CHILDREN; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	s = open_store();
	assert_int_equal(count("SELECT COUNT(*) = MAX(version) FROM schema_version"), 1);
}

/* ---- SIGKILL ---- */

static void wait_killed(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_killed_in_transaction(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	pid_t pid;

	running(id);
	store_close(s);
	pid = fork();
	if (pid == 0) {
		struct db_tx tx;

		s = open_store();
		if (db_begin(s->db, &tx, &e) == 0 &&
		    db_exec(s->db, &e, "UPDATE sandboxes SET observed = 'stopping'") == 1 &&
		    db_exec(s->db, &e, "DELETE FROM operations") == 1)
			raise(SIGKILL);
		_exit(1);
	}
	wait_killed(pid);
	s = open_store();
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "");
	assert_int_equal(count("SELECT COUNT(*) FROM operations"), 1);
	submitted(id, LIFE_EV_STOP);             /* and nothing is locked */
}

/*
 * With failpoints: before the commit nothing has happened, after it all. Repeating the request
 * converges.
 */
static void test_killed_at_commit(void **st)
{
	static const struct { const char *line; int before; } points[] = {
		{ "store.before-commit crash\n", 1 }, { "store.after-commit crash\n", 0 },
	};
	char file[80];

	if (geteuid() != 0) {
		print_message("failpoints are root's: skipped\n");
		skip();
	}
	str_format(file, sizeof(file), "%s/failpoints", dir);
	for (size_t i = 0; i < ARRAY_LEN(points); i++) {
		char id[ID_SANDBOX_LEN + 1];
		struct store_op op;
		pid_t pid;

		running(id);
		store_close(s);
		assert_int_equal(fd_write_file(AT_FDCWD, file, points[i].line,
					       strlen(points[i].line), 0600),
				 0);
		pid = fork();
		if (pid == 0) {
			s = NULL;
			if (store_open(url, &s, NULL) < 0)       /* migrates: commits, but the points are not set yet */
				_exit(1);
			fault_open(dir, "test_store");
			submit(id, LIFE_EV_START, &op);
			_exit(1);
		}
		wait_killed(pid);
		unlink(file);
		s = open_store();
		expect(id, LIFE_RUNNING, points[i].before ? LIFE_RUNNING : LIFE_STARTING,
		       points[i].before ? 1 : 2, "");
		if (points[i].before) {
			op = submitted(id, LIFE_EV_START);
		} else {
			clock_set_shift_ms(STORE_LEASE_MS + 1000);
			assert_int_equal(store_claim(s, "ctl-1", &op, &e), 0);
		}
		assert_int_equal(op.generation, 2);
		assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
		clock_set_shift_ms(0);
	}
}

/*
 * Makes, changes and ends sandboxes until it is killed; every second operation is left without an
 * end.
 */
static void churn_pause(const char *id, unsigned i)
{
	struct store_op op;

	if (submit(id, LIFE_EV_PAUSE, &op) < 0 || i % 5 == 0 ||
	    store_finish(s, &op, LIFE_PAUSED, NULL, &e) < 0)
		return;
	if (i % 5 != 1 && submit(id, LIFE_EV_RESUME, &op) == 0 && i % 5 != 2)
		store_finish(s, &op, LIFE_RUNNING, NULL, &e);
}

static void churn(int begun)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;

	for (unsigned i = 0;; i++) {
		op = create(id);
		if (i == 1 && write(begun, "", 1) != 1)
			_exit(1);
		if (i % 2 && store_finish(s, &op, LIFE_RUNNING, NULL, &e) < 0)
			_exit(1);
		if (i % 2)
			churn_pause(id, i);
		if (store_submit(s, id, "", i % 3 ? LIFE_EV_START : LIFE_EV_DELETE, "churn", "r",
				 &op, &e) == 0 &&
		    i % 4 == 3)
			store_finish(s, &op, op.kind == LIFE_EV_DELETE ? LIFE_NONE : LIFE_RUNNING,
				     NULL, NULL);
	}
}

static void check_invariants(void)
{
	autorows struct db_rows q = { 0 };

	/* In transition if and only if an operation is unfinished. */
	assert_int_equal(
		count("SELECT COUNT(*) FROM sandboxes b WHERE b.deleted_ms = 0 AND"
		      " (b.observed IN ('creating', 'starting', 'stopping', 'deleting', 'pausing', 'resuming')) <>"
		      " EXISTS (SELECT 1 FROM operations o WHERE o.sandbox = b.id AND o.state IN ('queued', 'claimed'))"),
		0);
	/* One row for each execution; at most the newest goes on. */
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes b WHERE b.generation <>"
			       " (SELECT COUNT(*) FROM executions x WHERE x.sandbox = b.id)"), 0);
	assert_int_equal(
		count("SELECT COUNT(*) FROM executions x JOIN sandboxes b ON b.id = x.sandbox"
		      " WHERE x.ended_ms = 0 AND (x.generation <> b.generation OR x.activation <> b.activation)"),
		0);
	/* The time of a paused one, and of no other, stands still. */
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes WHERE"
			       " (observed IN ('paused', 'resuming') AND paused_ms = 0) OR"
			       " (observed IN ('running', 'pausing', 'stopped') AND paused_ms > 0) OR"
			       " (paused_ms > 0 AND end_ms > 0)"),
			 0);
	/* A tombstone has no unfinished work. */
	assert_int_equal(
		count("SELECT COUNT(*) FROM operations o JOIN sandboxes b ON b.id = o.sandbox"
		      " WHERE b.deleted_ms > 0 AND o.state IN ('queued', 'claimed')"),
		0);
	assert_int_equal(db_query(s->db, &e, &q, "PRAGMA integrity_check"), 0);
	assert_int_equal(db_next(&q, &e), 1);
	assert_string_equal(db_str(&q, 0), "ok");
}

static void test_killed_anywhere(void **st)
{
	for (int round = 0; round < 25; round++) {
		autoclose int in = -1;
		int begun[2];
		char byte;
		pid_t pid;

		store_close(s);
		assert_int_equal(pipe2(begun, O_CLOEXEC), 0);
		in = begun[0];
		pid = fork();
		if (pid == 0) {
			s = open_store();
			churn(begun[1]);
		}
		close(begun[1]);
		assert_int_equal(read(in, &byte, 1), 1);
		poll(NULL, 0, 20 + round * 7 % 40);      /* no event to wait for: the instant is the point */
		kill(pid, SIGKILL);
		wait_killed(pid);
		s = open_store();
		check_invariants();
	}
	assert_true(count("SELECT COUNT(*) FROM sandboxes") > 25);
	/* All that was left is driven to its end by another. */
	struct store_op op;
	clock_set_shift_ms(STORE_LEASE_MS + 60000);
	while (store_claim(s, "ctl-1", &op, &e) == 0)
		assert_int_equal(store_finish(s, &op,
					      op.kind == LIFE_EV_DELETE  ? LIFE_NONE
					      : op.kind == LIFE_EV_PAUSE ? LIFE_PAUSED
									 : LIFE_RUNNING,
					      NULL, &e),
				 0);
	assert_int_equal(
		count("SELECT COUNT(*) FROM operations WHERE state IN ('queued', 'claimed')"), 0);
	check_invariants();
}

/* ---- Pause, resume, time ---- */

/* A sandbox that runs, with its time. */
static void timed(char id[ID_SANDBOX_LEN + 1], int64_t end_ms, int64_t timeout_ms, bool end_pauses)
{
	running(id);
	assert_int_equal(store_sandbox_set_end(s, id, end_ms, &e), 0);
	assert_int_equal(db_exec(s->db, &e,
				 "UPDATE sandboxes SET timeout_ms = $2, end_pauses = $3 WHERE id = $1",
				 DB_STR(id), DB_INT(timeout_ms), DB_INT(end_pauses)),
			 1);
}

static int64_t end_of(const char *id)
{
	autosandbox struct store_sandbox b = { 0 };

	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	assert_int_equal(b.paused_ms != 0, b.observed == LIFE_PAUSED);
	return b.end_ms;
}

static int64_t now_ms(void)
{
	int64_t now;

	assert_int_equal(store_now(s, &now, &e), 0);
	return now;
}

#define ENDS_IN(id, ms) assert_in_range(end_of(id), now_ms() + (ms) - 5000, now_ms() + (ms))

/* The same execution goes on; the time of a paused one stands still. */
static void test_pause(void **st)
{
	autosandbox struct store_sandbox b = { 0 }, c = { 0 };
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op, again;

	timed(id, now_ms() + 60000, 300000, false);
	assert_int_equal(store_sandbox_get(s, id, "", &b, &e), 0);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(op.generation, 1);
	expect(id, LIFE_PAUSED, LIFE_PAUSING, 1, "");
	assert_int_equal(submit(id, LIFE_EV_RESUME, &again), -EBUSY);
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, NULL, &e), -EINVAL);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	expect(id, LIFE_PAUSED, LIFE_PAUSED, 1, "");
	assert_int_equal(end_of(id), 0);
	assert_int_equal(submitted(id, LIFE_EV_PAUSE).id, 0);
	/* With the time that is asked for, else with its own; a start of a paused one too. */
	assert_int_equal(store_submit_timed(s, id, "acme", LIFE_EV_RESUME, 7000000, "api-1", "r",
					    &op, &e),
			 0);
	expect(id, LIFE_RUNNING, LIFE_RESUMING, 1, "");
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	ENDS_IN(id, 7000000);
	assert_int_equal(store_sandbox_get(s, id, "", &c, &e), 0);
	assert_memory_equal(b.activation, c.activation, sizeof(b.activation));
	assert_int_equal(b.started_ms, c.started_ms);
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 1);
	assert_int_equal(submitted(id, LIFE_EV_RESUME).id, 0);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	op = submitted(id, LIFE_EV_RESUME);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	ENDS_IN(id, 300000);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	op = submitted(id, LIFE_EV_START);
	assert_int_equal(op.generation, 2);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	ENDS_IN(id, 300000);
}

/* One that fails leaves it as it was; the row of an operation keeps its time over a hand-over. */
static void test_pause_fails(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;
	struct err why = { .num = -EIO, .text = "it did not stop" };
	int64_t end = now_ms() + 60000;

	timed(id, end, 300000, false);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, &why, &e), 0);
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "it did not stop");
	assert_int_equal(end_of(id), end);
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 1);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	op = submitted(id, LIFE_EV_RESUME);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, &why, &e), 0);
	expect(id, LIFE_PAUSED, LIFE_PAUSED, 1, "it did not stop");
	assert_int_equal(end_of(id), 0);
	assert_int_equal(store_submit_timed(s, id, "acme", LIFE_EV_RESUME, 9000000, "api-1", "r",
					    &op, &e),
			 0);
	assert_int_equal(store_release(s, &op, 0, &e), 0);
	assert_int_equal(store_claim(s, "control-1", &op, &e), 0);
	assert_int_equal(op.timeout_ms, 9000000);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	ENDS_IN(id, 9000000);
}

static void test_pause_observed(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;

	timed(id, now_ms() + 60000, 300000, false);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_PAUSED, "", INT64_MAX, &e), 0);
	expect(id, LIFE_PAUSED, LIFE_PAUSED, 1, "");
	assert_int_equal(end_of(id), 0);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_RUNNING, "", INT64_MAX, &e), 0);
	expect(id, LIFE_RUNNING, LIFE_RUNNING, 1, "");
	ENDS_IN(id, 300000);
	op = submitted(id, LIFE_EV_PAUSE);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_RUNNING, "", INT64_MAX, &e), -EBUSY);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_STOPPED, "crashed: x", INT64_MAX, &e), 0);
	expect(id, LIFE_STOPPED, LIFE_STOPPED, 1, "crashed: x");
	assert_int_equal(store_sandbox_observed(s, id, 1, LIFE_PAUSED, "", now_ms() - 60000, &e),
			 -ESTALE);
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE ended_ms = 0"), 0);
	assert_int_equal(end_of(id), 0);
}

static struct store_op ended(const char *id)
{
	struct store_op op;

	if (store_submit_end(s, id, "control-1", "end", &op, &e) < 0)
		fail_msg("%s", e.text);
	return op;
}

static void test_time_over(void **st)
{
	char id[ID_SANDBOX_LEN + 1], keep[ID_SANDBOX_LEN + 1];
	struct err why = { .num = -EIO, .text = "it did not stop" };
	struct store_op op;

	timed(id, now_ms() + 60000, 300000, false);
	assert_int_equal(ended(id).id, 0);               /* it was extended meanwhile */
	assert_int_equal(store_sandbox_set_end(s, id, now_ms() - 1, &e), 0);
	op = ended(id);
	assert_int_equal(op.kind, LIFE_EV_DELETE);
	assert_int_equal(op.state, STORE_OP_CLAIMED);
	assert_int_equal(ended(id).id, 0);               /* its delete is there */

	timed(keep, now_ms() - 1, 300000, true);
	op = ended(keep);
	assert_int_equal(op.kind, LIFE_EV_PAUSE);
	assert_int_equal(store_submit_end(s, keep, "control-1", "end", &op, &e), -EBUSY);
	op.state = STORE_OP_CLAIMED;
	assert_int_equal(store_claim(s, "x", &op, &e), -ENOENT);
	clock_set_shift_ms(STORE_LEASE_MS + 1);
	do
		assert_int_equal(store_claim(s, "x", &op, &e), 0);
	while (!str_eq(op.sandbox, keep));
	/* A pause that failed is asked for again, but not at once. */
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, &why, &e), 0);
	assert_int_equal(ended(keep).id, 0);
	assert_true(end_of(keep) > now_ms());
	clock_set_shift_ms(10 * STORE_LEASE_MS);
	op = ended(keep);
	assert_int_equal(op.kind, LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
	assert_int_equal(ended(keep).id, 0);
	/* What has stopped and was to be kept is kept. */
	op = submitted(keep, LIFE_EV_STOP);
	assert_int_equal(store_finish(s, &op, LIFE_STOPPED, NULL, &e), 0);
	assert_int_equal(store_sandbox_set_end(s, keep, 1, &e), 0);
	assert_int_equal(ended(keep).id, 0);
	assert_int_equal(end_of(keep), 0);
	op = submitted(keep, LIFE_EV_START);
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	ENDS_IN(keep, 300000);
	/* Nor is a delete that failed asked for again and again. */
	timed(id, now_ms() - 1, 300000, false);
	op = ended(id);
	assert_int_equal(store_finish(s, &op, LIFE_FAILED, &why, &e), 0);
	assert_int_equal(ended(id).id, 0);
	clock_set_shift_ms(20 * STORE_LEASE_MS);
	assert_int_equal(ended(id).kind, LIFE_EV_DELETE);
}

static void test_set_timeout(void **st)
{
	char id[ID_SANDBOX_LEN + 1];
	struct store_op op;
	int64_t end;

	timed(id, now_ms() + 60000, 300000, false);
	assert_int_equal(store_set_timeout(s, id, "acme", 600000, true, &e), 0);
	ENDS_IN(id, 600000);
	end = end_of(id);
	/* Not moved by a millisecond. */
	assert_int_equal(store_set_timeout(s, id, "acme", 10000, true, &e), 0);
	assert_int_equal(end_of(id), end);
	assert_int_equal(store_set_timeout(s, id, "acme", 10000, false, &e), 0);
	ENDS_IN(id, 10000);
	assert_int_equal(store_set_timeout(s, id, "acme", -5, false, &e), 0);
	assert_true(end_of(id) <= now_ms());
	assert_int_equal(store_set_timeout(s, id, "other", 10000, false, &e), -ENOENT);
	assert_int_equal(store_set_end_pauses(s, id, "other", true, &e), -ENOENT);
	assert_int_equal(store_set_end_pauses(s, id, "acme", true, &e), 0);
	assert_int_equal(ended(id).kind, LIFE_EV_PAUSE);
	assert_int_equal(store_set_timeout(s, id, "acme", 10000, false, &e), -EBUSY);
	assert_string_equal(e.code, "not-running");
	assert_int_equal(store_submit(s, id, "", LIFE_EV_DELETE, "a", "r", &op, &e), 0);
}

/* A database of the first version: its columns come, its sandboxes keep what was asked for. */
static void test_migration(void **st)
{
	static const char *const old[] = {
		"INSERT INTO tenants (id, created_ms) VALUES ('acme', 1)",
		"INSERT INTO sandboxes (id, tenant, template, template_name, desired, observed, generation, worker,"
		" activation, attempt, memory_mib, vcpus, disk_mib, created_ms, end_ms) VALUES"
		" ('iaaaaaaaaaaaaaaaaaaaa', 'acme', 't', 't', 'running', 'running', 1, '" WORKER "',"
		" '00112233445566778899aabbccddeeff', 1, 512, 1, 8192, 1000, 91000),"
		" ('ibbbbbbbbbbbbbbbbbbbb', 'acme', 't', 't', 'stopped', 'stopped', 1, '" WORKER "',"
		" 'ffeeddccbbaa99887766554433221100', 1, 512, 1, 8192, 1000, 0)",
		"INSERT INTO operations (sandbox, tenant, kind, generation, state, request_id, created_ms)"
		" VALUES ('ibbbbbbbbbbbbbbbbbbbb', 'acme', 'delete', 1, 'queued', 'r', 1)",
	};
	autosandbox struct store_sandbox b = { 0 }, c = { 0 };
	struct store before = { 0 };
	struct store_op op;

	store_close(s);
	remove_files();
	assert_int_equal(db_open(path, &before.db, &e), 0);
	assert_int_equal(store_migrate_to(&before, 1, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(old); i++)
		if (db_exec_args(before.db, &e, old[i], NULL, 0) < 0)
			fail_msg("%s: %s", old[i], e.text);
	db_close(before.db);
	s = open_store();
	assert_int_equal(store_sandbox_get(s, "iaaaaaaaaaaaaaaaaaaaa", "", &b, &e), 0);
	assert_int_equal(b.timeout_ms, 90000);
	assert_int_equal(b.end_ms, 91000);
	assert_false(b.end_pauses || b.auto_resume || b.paused_ms);
	assert_true(b.internet && b.public_traffic);
	assert_int_equal(store_sandbox_get(s, "ibbbbbbbbbbbbbbbbbbbb", "", &c, &e), 0);
	assert_int_equal(c.timeout_ms, 0);
	assert_int_equal(store_claim(s, "x", &op, &e), 0);
	assert_int_equal(op.timeout_ms, 0);
	op = submitted("iaaaaaaaaaaaaaaaaaaaa", LIFE_EV_PAUSE);
	assert_int_equal(store_finish(s, &op, LIFE_PAUSED, NULL, &e), 0);
}

/* What a create said about the network is what every later read says, in the list too. */
static void test_network(void **st)
{
	for (unsigned i = 0; i < 4; i++) {
		struct store_sandbox b = { .template = "base-0011",
					   .template_name = "base",
					   .tenant = "acme",
					   .generation = 1,
					   .worker = WORKER,
					   .attempt = 1,
					   .memory_mib = 512,
					   .vcpus = 1,
					   .disk_mib = 8192,
					   .internet = i & 1,
					   .public_traffic = i & 2 };
		const struct store_list q = { .limit = 1, .newest_first = true };
		autosandbox struct store_sandbox got = { 0 };
		struct store_sandbox *list;
		char next[STORE_CURSOR_MAX];
		struct store_op op;
		size_t n;

		clock_set_shift_ms(1000 * (int64_t)i);
		assert_int_equal(id_new_sandbox(b.id), 0);
		assert_int_equal(id_new_activation(b.activation), 0);
		assert_int_equal(store_create(s, &b, NULL, "api-1", "req-1", &op, &e), 0);
		assert_int_equal(store_sandbox_get(s, b.id, "acme", &got, &e), 0);
		assert_int_equal(got.internet, b.internet);
		assert_int_equal(got.public_traffic, b.public_traffic);
		assert_int_equal(store_sandbox_list(s, &q, &list, &n, next, &e), 0);
		assert_int_equal(n, 1);
		assert_string_equal(list[0].id, b.id);
		assert_int_equal(list[0].internet, b.internet);
		assert_int_equal(list[0].public_traffic, b.public_traffic);
		store_sandbox_done(&list[0]);
		free(list);
	}
}

static int make_dir(void **st)
{
	if (!mkdtemp(dir) || key_init() < 0)
		return -1;
	str_format(path, sizeof(path), "%s/space.db", dir);
	return str_format(url, sizeof(url), "sqlite:%s", path);
}

static int drop_dir(void **st)
{
	return rmdir(dir);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

static void test_tickets(void **st)
{
	struct store_ticket t = { .hash = HASH, .tenant = "acme",
				  .sandbox = "iaaaaaaaaaaaaaaaaaaaa" },
			    got = { 0 };
	struct store *other = open_store();
	int64_t until_ms, now;

	assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), 0);
	assert_int_equal(store_now(s, &now, &e), 0);
	assert_true(until_ms > now && until_ms <= now + 60000);
	assert_true(store_ticket_add(s, &t, 60000, &until_ms, &e) < 0);
	assert_int_equal(store_ticket_take(other, HASH, &got, &e), 0);
	assert_string_equal(got.tenant, "acme");
	assert_string_equal(got.sandbox, t.sandbox);
	assert_int_equal(store_ticket_take(s, HASH, &got, &e), -ENOENT);
	assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), 0);
	clock_set_shift_ms(60001);
	assert_int_equal(store_ticket_take(s, HASH, &got, &e), -ENOENT);
	clock_set_shift_ms(0);
	store_close(other);
}

/* A tenant cannot fill the table; what is too old makes room. */
static void test_tickets_limit(void **st)
{
	struct store_ticket t = { .tenant = "acme", .sandbox = "iaaaaaaaaaaaaaaaaaaaa" };
	int64_t until_ms;

	for (int i = 0; i < STORE_TICKETS_MAX; i++) {
		str_format(t.hash, sizeof(t.hash), "%064x", i);
		assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), 0);
	}
	str_copy(t.hash, sizeof(t.hash), HASH);
	assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), -EUSERS);
	str_copy(t.tenant, sizeof(t.tenant), "other");
	assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), 0);
	str_copy(t.tenant, sizeof(t.tenant), "acme");
	str_copy(t.hash, sizeof(t.hash), "00");
	clock_set_shift_ms(60001);
	assert_int_equal(store_ticket_add(s, &t, 60000, &until_ms, &e), 0);
}

/* All IDs, page by page, newest first, of every tenant; not those of what is deleted. */
static void test_ids(void **st)
{
	char ids[2][ID_SANDBOX_LEN + 1], made[5][ID_SANDBOX_LEN + 1], cursor[STORE_CURSOR_MAX] = "";
	struct store_op op;
	size_t n = 9;

	for (int i = 0; i < 5; i++) {
		clock_set_shift_ms(i * 1000);
		create(made[i]);
	}
	clock_set_shift_ms(10000);
	op = submitted(made[3], LIFE_EV_DELETE);
	assert_int_equal(op.state, STORE_OP_QUEUED);
	assert_int_equal(db_exec(s->db, &e, "UPDATE sandboxes SET deleted_ms = 1 WHERE id = $1",
				 DB_STR(made[3])),
			 1);
	for (int i = 4; i >= 0; i -= i == 4 ? 3 : 2) {
		assert_int_equal(store_sandbox_ids(s, cursor, 2, ids, &n, &e), 0);
		assert_int_equal(n, 2);
		assert_string_equal(ids[0], made[i]);
		assert_string_equal(ids[1], made[i == 4 ? 2 : i - 1]);
	}
	assert_int_equal(store_sandbox_ids(s, cursor, 2, ids, &n, &e), 0);
	assert_int_equal(n, 0);
	str_copy(cursor, sizeof(cursor), "x");
	assert_int_equal(store_sandbox_ids(s, cursor, 2, ids, &n, &e), -EINVAL);
}

/* ---- Creates under a client's key ---- */

static void test_once(void **st)
{
	struct store_once once = { .key = "k-1", .request = "aa" }, other = once, wrong = once;
	struct err why = { .num = -EIO, .text = "no" };
	struct store_op op, again;
	struct store_key k;

	other.key = "k-2";
	str_copy(wrong.request, sizeof(wrong.request), "ab");
	assert_int_equal(create_once(s, &once, "acme", "a", &op), 0);
	assert_int_equal(create_once(s, &once, "acme", "b", &again), 1);
	assert_int_equal(again.id, op.id);
	assert_string_equal(again.sandbox, op.sandbox);
	assert_string_equal(again.claimer, "a");
	assert_int_equal(create_once(s, &wrong, "acme", "b", &again), -EEXIST);
	assert_string_equal(err_code(&e), "idempotency-request-mismatch");
	assert_int_equal(create_once(s, &other, "acme", "b", &again), 0);
	assert_int_equal(store_key_add(s, "else", "x", OTHER_HASH, "e2b_11", &k, &e), 0);
	assert_int_equal(create_once(s, &wrong, "else", "b", &again), 0);
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes"), 3);

	/* Done: the same answer. Failed: the key is free. */
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);
	assert_int_equal(create_once(s, &once, "acme", "b", &again), 1);
	assert_int_equal(again.state, STORE_OP_DONE);
	assert_int_equal(create_once(s, &other, "acme", "b", &again), 1);
	assert_int_equal(store_finish(s, &again, LIFE_FAILED, &why, &e), 0);
	assert_int_equal(create_once(s, &other, "acme", "b", &again), 0);

	/* Forgotten with its sandbox, or after a day. */
	assert_int_equal(store_once_forget(s, op.sandbox, &e), 0);
	assert_int_equal(create_once(s, &wrong, "acme", "b", &again), 0);
	clock_set_shift_ms(STORE_ONCE_MS + 60000);
	assert_int_equal(create_once(s, &once, "acme", "b", &again), 0);
	assert_int_equal(count("SELECT COUNT(*) FROM once"), 1);
}

/* Several processes at once with one key: one sandbox. */
static void test_once_race(void **st)
{
	enum { N = 6 };
	const struct store_once once = { .key = "k", .request = "aa" };
	pid_t pids[N];
	int made = 0;

	store_close(TAKE(s));
	for (int i = 0; i < N; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct store_op op;

			s = open_store();
			_exit(create_once(s, &once, "acme", "x", &op) + 10);
		}
	}
	for (int i = 0; i < N; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status));
		assert_in_range(WEXITSTATUS(status), 10, 11);
		made += WEXITSTATUS(status) == 10;
	}
	assert_int_equal(made, 1);
	s = open_store();
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes"), 1);
}

/* What a clock that was ahead has written holds nothing up when it is right again. */
static void test_clock_back(void **st)
{
	char id[ID_SANDBOX_LEN + 1], other[ID_SANDBOX_LEN + 1];
	struct store_op op, released;

	clock_set_shift_ms(3600000);
	create(id);
	released = create(other);
	assert_int_equal(store_release(s, &released, STORE_LEASE_MS, &e), 0);
	assert_int_equal(store_claim(s, "control-1", &op, &e), -ENOENT);
	clock_set_shift_ms(0);
	assert_int_equal(store_claim(s, "control-1", &op, &e), 0);
	assert_string_equal(op.sandbox, id);
	assert_int_equal(store_claim(s, "control-1", &op, &e), 0);
	assert_string_equal(op.sandbox, other);
	assert_int_equal(store_claim(s, "control-1", &op, &e), -ENOENT);
}

/* ---- The log ---- */

static atomic_bool enough;

static void *read_on(void *arg)
{
	const struct store_list q = { .tenant = "", .limit = 50 };
	struct store *in = open_store();

	while (!atomic_load(&enough)) {
		struct store_sandbox *rows = NULL;
		char next[64];
		size_t n = 0;

		if (store_sandbox_list(in, &q, &rows, &n, next, NULL) < 0)
			break;
		for (size_t i = 0; i < n; i++)
			store_sandbox_done(&rows[i]);
		free(rows);
	}
	store_close(in);
	return NULL;
}

/* Readers without a gap between them do not make the log grow for ever. */
static void test_log(void **st)
{
	autofree char *big = x_alloc(STORE_JSON_MAX), *wal = x_asprintf("%s-wal", path);
	pthread_t readers[4];
	off_t most = 0;

	memset(big, 'x', STORE_JSON_MAX - 1);
	atomic_store(&enough, false);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++)
		assert_int_equal(pthread_create(&readers[i], NULL, read_on, NULL), 0);
	for (int i = 0; i < 3 * (DB_WAL_BYTES_MAX / STORE_JSON_MAX); i++) {
		char id[ID_SANDBOX_LEN + 1];
		struct stat sb;

		create(id);
		assert_int_equal(db_exec(s->db, &e, "UPDATE sandboxes SET metadata = $2 WHERE id = $1",
					 DB_STR(id), DB_STR(big)),
				 1);
		assert_int_equal(stat(wal, &sb), 0);
		most = sb.st_size > most ? sb.st_size : most;
	}
	atomic_store(&enough, true);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++)
		pthread_join(readers[i], NULL);
	/* One that is large begins anew with one of the next commits. */
	assert_true(most <= DB_WAL_BYTES_MAX * 5 / 4);
}

/* ---- What is over ---- */

static void change(const char *id, enum life_event kind, enum life_state to)
{
	struct store_op op = submitted(id, kind);

	assert_int_equal(store_finish(s, &op, to, NULL, &e), 0);
}

static void test_purge(void **st)
{
	const struct store_once once = { .key = "k", .request = "aa" };
	char stopped[ID_SANDBOX_LEN + 1], gone[ID_SANDBOX_LEN + 1], lives[ID_SANDBOX_LEN + 1];
	struct store_op op, last;

	running(stopped);
	change(stopped, LIFE_EV_STOP, LIFE_STOPPED);
	change(stopped, LIFE_EV_START, LIFE_RUNNING);
	change(stopped, LIFE_EV_STOP, LIFE_STOPPED);
	running(gone);
	change(gone, LIFE_EV_DELETE, LIFE_NONE);
	assert_int_equal(create_once(s, &once, "acme", "a", &op), 0);
	memcpy(lives, op.sandbox, sizeof(lives));
	assert_int_equal(store_finish(s, &op, LIFE_RUNNING, NULL, &e), 0);

	/* Whoever may still ask finds what he asks for. */
	clock_set_shift_ms(STORE_ONCE_MS - 60000);
	assert_int_equal(store_purge(s, 100, &e), 0);
	assert_int_equal(create_once(s, &once, "acme", "b", &last), 1);
	assert_int_equal(last.id, op.id);
	clock_set_shift_ms(STORE_KEEP_MS - 60000);
	assert_int_equal(store_purge(s, 100, &e), 0);
	assert_int_equal(store_op_get(s, op.id, &last, &e), 0);

	/* Some at a time, in the order of the references. */
	clock_set_shift_ms(STORE_KEEP_MS + 60000);
	change(lives, LIFE_EV_PAUSE, LIFE_PAUSED);
	assert_int_equal(store_purge(s, 1, &e), 2);
	for (int left = 20, r = 1; r > 0; left--) {
		assert_true(left > 0);
		r = store_purge(s, 1, &e);
	}
	assert_int_equal(store_op_get(s, op.id, &last, &e), -ENOENT);
	assert_int_equal(count("SELECT COUNT(*) FROM operations"), 1);
	assert_int_equal(count("SELECT COUNT(*) FROM once"), 0);
	assert_int_equal(count("SELECT COUNT(*) FROM sandboxes"), 2);
	/* The newest execution of each; one of them has ended. */
	assert_int_equal(count("SELECT COUNT(*) FROM executions"), 2);
	assert_int_equal(count("SELECT COUNT(*) FROM executions WHERE generation = 2"), 1);
	expect(stopped, LIFE_STOPPED, LIFE_STOPPED, 2, "");
	change(stopped, LIFE_EV_START, LIFE_RUNNING);
	expect(lives, LIFE_PAUSED, LIFE_PAUSED, 1, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_open),
		T(test_durable),
		T(test_newer_schema),
		T(test_not_a_database),
		T(test_link),
		T(test_keys),
		T(test_nodes),
		T(test_tickets),
		T(test_tickets_limit),
		T(test_bundle),
		T(test_templates),
		T(test_create),
		T(test_activation_unique),
		T(test_create_fails),
		T(test_reason_is_cut_between_characters),
		T(test_life),
		T(test_start_fails),
		T(test_pause),
		T(test_pause_fails),
		T(test_pause_observed),
		T(test_time_over),
		T(test_set_timeout),
		T(test_migration),
		T(test_network),
		T(test_observed),
		T(test_queue),
		T(test_queue_behind_failure),
		T(test_lease),
		T(test_release),
		T(test_superseded),
		T(test_list),
		T(test_ids),
		T(test_once),
		T(test_once_race),
		T(test_purge),
		T(test_log),
		T(test_clock_back),
		T(test_race),
		T(test_two_handles),
		T(test_open_race),
		T(test_killed_in_transaction),
		T(test_killed_at_commit),
		T(test_killed_anywhere),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
