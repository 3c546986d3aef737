/* The real agent: watches, as streams and polled. argv[1] = the agent. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "spaced-guest/test_host.h"

#define FS "filesystem.Filesystem/"
#define OCTETS "Content-Type: application/octet-stream\r\n"
#define NOBODY "Authorization: Basic bm9ib2R5Og==\r\n"
#define MARK "the-end"
#define EVENTS_MAX 300000

/* What a watch told, as "CREATE name". */
static char *told[EVENTS_MAX];
static size_t n_told;

static void forget(void)
{
	while (n_told)
		free(told[--n_told]);
}

static unsigned count(const char *event)
{
	unsigned n = 0;

	for (size_t i = 0; i < n_told; i++)
		n += str_eq(told[i], event);
	return n;
}

/* The place of the first such event; -1 = there is none. */
static int place(const char *event)
{
	for (size_t i = 0; i < n_told; i++)
		if (str_eq(told[i], event))
			return (int)i;
	return -1;
}

static void show(void)
{
	for (size_t i = 0; i < n_told && i < 100; i++)
		print_message("  %s\n", told[i]);
}

#define ASSERT_TOLD(event, times)                                                                  \
	do {                                                                                       \
		if (count(event) != (times)) {                                                     \
			show();                                                                    \
			fail_msg("'%s' came %u times", event, count(event));                       \
		}                                                                                  \
	} while (0)

static void add_event(const json_t *e)
{
	const char *name = json_string_value(json_object_get(e, "name"));
	const char *type = json_string_value(json_object_get(e, "type"));

	assert_non_null(name);
	assert_true(type && str_starts(type, "EVENT_TYPE_") && n_told < EVENTS_MAX);
	told[n_told++] = x_asprintf("%s %s", type + strlen("EVENT_TYPE_"), name);
}

static char *at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *at(const char *fmt, ...)
{
	static char path[8][8192];
	static unsigned turn;
	char *p = path[turn++ % 8];
	int n = snprintf(p, sizeof(path[0]), "%s/", dir);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p + n, sizeof(path[0]) - (size_t)n, fmt, ap);
	va_end(ap);
	return p;
}

static void make(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void fresh(const char *name)
{
	host_remove(at("%s", name));
	assert_int_equal(mkdir(at("%s", name), 0755), 0);
}

/* ---- streams ---- */

static struct call *watch(const char *name, const char *more, const char *fields)
{
	char json[512];

	snprintf(json, sizeof(json), "{\"path\":\"%s/%s\"%s}", dir, name, more);
	return stream_new(&host, FS "WatchDir", fields, json);
}

/* The next message of the stream; NULL = its end. */
static json_t *next(struct call *c, int *ret_flags)
{
	const char *p = stream_next(&host, c, ret_flags);
	json_t *j = p ? json_loads(p, 0, NULL) : NULL;

	assert_true(!p || j);
	return j;
}

static void await_start(struct call *c)
{
	int flags;
	json_t *j = next(c, &flags);

	assert_non_null(j);
	assert_int_equal(flags, 0);
	assert_non_null(json_object_get(j, "start"));
	json_decref(j);
}

/* Takes events until the last one that is wanted. */
static void await(struct call *c, const char *last)
{
	while (count(last) == 0) {
		int flags;
		json_t *j = next(c, &flags);

		assert_non_null(j);
		if (flags) {
			char *text = json_dumps(j, 0);

			fail_msg("the stream has ended: %s", text);
		}
		if (!json_object_get(j, "keepalive"))
			add_event(json_object_get(j, "filesystem"));
		json_decref(j);
	}
}

/* The mark is made in the watched folder: all events of before have come then. */
static void await_mark(struct call *c, const char *folder)
{
	make(at("%s/" MARK, folder), "");
	await(c, "CREATE " MARK);
	unlink(at("%s/" MARK, folder));
}

/* The error at the end; what comes before is kept. */
static void await_error(struct call *c, const char *code)
{
	for (;;) {
		int flags;
		json_t *j = next(c, &flags);

		assert_non_null(j);
		if (flags) {
			json_t *e = json_object_get(j, "error");

			assert_string_equal(json_string_value(json_object_get(e, "code")), code);
			json_decref(j);
			return;
		}
		if (json_object_get(j, "filesystem"))
			add_event(json_object_get(j, "filesystem"));
		json_decref(j);
	}
}

static void test_one_folder(void **state)
{
	struct call *c;

	fresh("one");
	make(at("one/old"), "x");
	c = watch("one", "", NULL);
	await_start(c);
	make(at("one/new file"), "text");
	make(at("one/old"), "changed");
	assert_int_equal(chmod(at("one/old"), 0600), 0);
	assert_int_equal(rename(at("one/old"), at("one/moved")), 0);
	assert_int_equal(unlink(at("one/moved")), 0);
	assert_int_equal(mkdir(at("one/sub"), 0755), 0);
	make(at("one/sub/below"), "not told");
	await_mark(c, "one");
	assert_int_equal(place("CREATE new file"), 0);
	assert_int_equal(place("WRITE new file"), 1);
	assert_true(count("WRITE old") >= 1);
	ASSERT_TOLD("CHMOD old", 1);
	assert_true(place("RENAME old") > place("CHMOD old"));
	assert_true(place("CREATE moved") > place("RENAME old"));
	assert_true(place("REMOVE moved") > place("CREATE moved"));
	ASSERT_TOLD("CREATE sub", 1);
	ASSERT_TOLD("CREATE sub/below", 0);
	ASSERT_TOLD("CREATE below", 0);
	forget();
	call_free(&host, c);
}

/* Names that JSON must quote come whole. */
static void test_names(void **state)
{
	static const char *const names[] = { "with space", "\xc3\xa4\xe2\x82\xac", "two\nlines",
					     "-rf", "\"quoted\\", "\x1b[31mred" };
	char longest[256], event[300];
	struct call *c;

	memset(longest, 'n', 255);
	longest[255] = '\0';
	fresh("names");
	c = watch("names", "", NULL);
	await_start(c);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		make(at("names/%s", names[i]), "");
	make(at("names/%s", longest), "");
	await_mark(c, "names");
	for (size_t i = 0; i <= ARRAY_LEN(names); i++) {
		snprintf(event, sizeof(event), "CREATE %s",
			 i < ARRAY_LEN(names) ? names[i] : longest);
		ASSERT_TOLD(event, 1);
	}
	forget();
	call_free(&host, c);
}

static void test_recursive(void **state)
{
	struct call *c;
	struct result r;
	char cmd[512];

	fresh("deep");
	assert_int_equal(mkdir(at("deep/was"), 0755), 0);
	assert_int_equal(mkdir(at("deep/was/there"), 0755), 0);
	c = watch("deep", ",\"recursive\":true", NULL);
	await_start(c);
	make(at("deep/was/there/f"), "");
	/* Folders and files so fast that nobody has a watch there yet. */
	snprintf(cmd, sizeof(cmd),
		 "cd %s/deep && mkdir -p a/b/c && echo x >a/b/c/f && : >a/g && mkdir -p p/q && "
		 "echo y >p/q/h",
		 dir);
	run_wait(&host, cmd, NULL, &r);
	assert_int_equal(r.code, 0);
	await_mark(c, "deep");
	await(c, "CREATE p/q/h");
	await(c, "WRITE p/q/h");
	await(c, "CREATE a/b/c/f");
	ASSERT_TOLD("CREATE was/there/f", 1);
	ASSERT_TOLD("CREATE a", 1);
	ASSERT_TOLD("CREATE a/b", 1);
	ASSERT_TOLD("CREATE a/b/c", 1);
	ASSERT_TOLD("CREATE a/b/c/f", 1);
	ASSERT_TOLD("CREATE a/g", 1);
	assert_true(place("CREATE a/b/c") < place("CREATE a/b/c/f"));
	forget();
	/* The new folders are watched now. */
	make(at("deep/a/b/c/later"), "");
	await(c, "CREATE a/b/c/later");
	forget();
	/* A folder under a new name, and out of sight. */
	assert_int_equal(rename(at("deep/a"), at("deep/z")), 0);
	/* A folder is read in any order. */
	await(c, "CREATE z/b/c/later");
	await(c, "CREATE z/b/c/f");
	ASSERT_TOLD("RENAME a", 1);
	ASSERT_TOLD("CREATE z", 1);
	ASSERT_TOLD("CREATE z/b/c/f", 1);
	forget();
	make(at("deep/z/b/c/last"), "");
	await(c, "CREATE z/b/c/last");
	fresh("elsewhere");
	assert_int_equal(rename(at("deep/z"), at("elsewhere/z")), 0);
	make(at("elsewhere/z/b/c/hidden"), "");
	await_mark(c, "deep");
	ASSERT_TOLD("RENAME z", 1);
	ASSERT_TOLD("CREATE z/b/c/hidden", 0);
	forget();
	/* In again, with all that is in it. */
	assert_int_equal(rename(at("elsewhere/z"), at("deep/back")), 0);
	await(c, "CREATE back/b/c/hidden");
	forget();
	call_free(&host, c);
}

/* 2,000 files in new folders, changed quickly: each is told, and none is made twice. */
static void test_2000_files(void **state)
{
	char cmd[1024], event[64];
	struct call *c;
	struct result r;
	int64_t t0;

	fresh("many");
	c = watch("many", ",\"recursive\":true,\"includeEntry\":true", NULL);
	await_start(c);
	t0 = clock_mono_ms();
	snprintf(cmd, sizeof(cmd),
		 "cd %s/many && for d in $(seq 40); do mkdir -p d$d/e; for f in $(seq 50); do "
		 "echo a >d$d/e/f$f; echo b >>d$d/e/f$f; done; done",
		 dir);
	run_wait(&host, cmd, NULL, &r);
	assert_int_equal(r.code, 0);
	await(c, "CREATE d40/e/f50");
	await_mark(c, "many");
	for (int d = 1; d <= 40; d++) {
		for (int f = 1; f <= 50; f++) {
			snprintf(event, sizeof(event), "CREATE d%d/e/f%d", d, f);
			ASSERT_TOLD(event, 1);
			snprintf(event, sizeof(event), "WRITE d%d/e/f%d", d, f);
			if (place(event) < 0)
				fail_msg("'%s' did not come", event);
		}
	}
	print_message("%zu events in %lld ms\n", n_told, (long long)(clock_mono_ms() - t0));
	forget();
	call_free(&host, c);
}

/* Makes, moves and removes at random; a tree with folders that come and go. */
static const char churn[] =
	"import os, random, shutil, sys\n"
	"rnd, dirs = random.Random(int(sys.argv[1])), ['.']\n"
	"for i in range(1500):\n"
	"    d = rnd.choice(dirs)\n"
	"    if not os.path.isdir(d):\n"
	"        dirs.remove(d)\n"
	"        continue\n"
	"    what, names = rnd.random(), os.listdir(d)\n"
	"    if what < .45:\n"
	"        open(f'{d}/f{i}', 'w').close()\n"
	"    elif what < .6:\n"
	"        os.makedirs(f'{d}/d{i}/e/f')\n"
	"        open(f'{d}/d{i}/e/f/g', 'w').close()\n"
	"        dirs += [f'{d}/d{i}', f'{d}/d{i}/e']\n"
	"    elif what < .85 and names:\n"
	"        to = f'{rnd.choice(dirs)}/m{i}'\n"
	"        try:\n"
	"            os.rename(f'{d}/{rnd.choice(names)}', to)\n"
	"            dirs += [to] if os.path.isdir(to) else []\n"
	"        except OSError:\n"
	"            pass\n"
	"    elif names:\n"
	"        path = f'{d}/{rnd.choice(names)}'\n"
	"        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)\n";

/* What is there when the events are believed: a folder that goes takes all below with it. */
static char *there[EVENTS_MAX];
static size_t n_there;

static void believe(const char *event)
{
	const char *name = strchr(event, ' ') + 1;
	size_t len = strlen(name), kept = 0;

	if (!str_starts(event, "WRITE") && !str_starts(event, "CHMOD")) {
		for (size_t i = 0; i < n_there; i++) {
			bool below = strncmp(there[i], name, len) == 0 &&
				     (there[i][len] == '/' || there[i][len] == '\0');

			if (below && (there[i][len] == '\0' || !str_starts(event, "CREATE")))
				free(there[i]);
			else
				there[kept++] = there[i];
		}
		n_there = kept;
		if (str_starts(event, "CREATE"))
			there[n_there++] = x_strdup(name);
	}
}

static size_t n_found;
static size_t root_len;

static int find_one(const char *path, const struct stat *st, int type, struct FTW *w)
{
	if (strlen(path) <= root_len)
		return 0;
	n_found++;
	for (size_t i = 0; i < n_there; i++)
		if (str_eq(there[i], path + root_len + 1))
			return 0;
	print_message("'%s' was not told\n", path);
	return 1;
}

/* Whoever believes the events of a tree that changes at random knows what is in it. */
static void test_churn(void **state)
{
	char cmd[512];
	struct call *c;
	struct result r;

	make(at("churn.py"), churn);
	for (int seed = 0; seed < 4; seed++) {
		fresh("churn");
		c = watch("churn", ",\"recursive\":true", NULL);
		await_start(c);
		snprintf(cmd, sizeof(cmd), "cd %s/churn && python3 ../churn.py %d", dir, seed);
		run_wait(&host, cmd, NULL, &r);
		assert_int_equal(r.code, 0);
		await_mark(c, "churn");
		/* What is read of a new folder comes behind a mark that was there before. */
		make(at("churn/last"), "");
		await(c, "CREATE last");
		for (size_t i = 0; i < n_told; i++)
			believe(told[i]);
		for (size_t i = 0; i < n_there; i++)
			if (str_eq(there[i], MARK))
				believe("REMOVE " MARK);
		root_len = strlen(at("churn"));
		n_found = 0;
		if (nftw(at("churn"), find_one, 16, FTW_PHYS) != 0 || n_found != n_there)
			fail_msg("seed %d: %zu files, %zu told", seed, n_found, n_there);
		while (n_there)
			free(there[--n_there]);
		forget();
		call_free(&host, c);
	}
}

/* An upload is told as the writing of its target; its temporary file is not. */
static void test_upload(void **state)
{
	char target[256];
	struct call *c;

	fresh("up");
	c = watch("up", "", NULL);
	await_start(c);
	for (int i = 0; i < 2; i++) {
		snprintf(target, sizeof(target), "/files?path=%s/up/f", dir);
		assert_int_equal(host_call(&host, false, "POST", target, OCTETS, "data", NULL),
				 200);
	}
	await_mark(c, "up");
	assert_int_equal(place("CREATE f"), 0);
	ASSERT_TOLD("CREATE f", 1);
	assert_true(count("WRITE f") >= 1);
	assert_int_equal(n_told, 1 + count("WRITE f") + 1);
	forget();
	call_free(&host, c);
}

static void test_entries(void **state)
{
	struct call *c;
	int flags;
	json_t *j, *e;

	fresh("info");
	c = watch("info", ",\"include_entry\":true", NULL);
	await_start(c);
	make(at("info/f"), "");
	j = next(c, &flags);
	e = json_object_get(json_object_get(j, "filesystem"), "entry");
	assert_string_equal(json_string_value(json_object_get(e, "name")), "f");
	assert_string_equal(json_string_value(json_object_get(e, "path")), at("info/f"));
	assert_string_equal(json_string_value(json_object_get(e, "type")), "FILE_TYPE_FILE");
	assert_string_equal(json_string_value(json_object_get(e, "permissions")), "-rw-r--r--");
	json_decref(j);
	assert_int_equal(unlink(at("info/f")), 0);
	j = next(c, &flags);
	e = json_object_get(j, "filesystem");
	assert_string_equal(json_string_value(json_object_get(e, "type")), "EVENT_TYPE_REMOVE");
	assert_null(json_object_get(e, "entry"));
	json_decref(j);
	call_free(&host, c);
}

static void test_refused(void **state)
{
	static const struct { const char *path, *code; } bad[] = {
		{ "refused/none", "not_found" },
		{ "refused/file", "invalid_argument" },
	};
	struct call *c;
	const char *text;

	fresh("refused");
	make(at("refused/file"), "");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		c = watch(bad[i].path, "", NULL);
		await_error(c, bad[i].code);
		call_free(&host, c);
	}
	assert_int_equal(rpc(&host, FS "CreateWatcher", "{\"path\":\"/none\"}", &text), 404);
	assert_int_equal(rpc(&host, FS "CreateWatcher", "{\"path\":\"/\",\"recursive\":1}", &text),
			 400);
	assert_int_equal(rpc(&host, FS "GetWatcherEvents", "{\"watcherId\":\"w1\"}", &text), 404);
	assert_non_null(strstr(text, "not_found"));
	assert_int_equal(rpc(&host, FS "RemoveWatcher", "{\"watcher_id\":\"w1\"}", &text), 404);
	assert_int_equal(rpc(&host, FS "RemoveWatcher", "{}", &text), 400);
	if (getuid() != 0)
		return;
	assert_int_equal(chmod(at("refused"), 0700), 0);
	c = watch("refused", "", NOBODY);
	await_error(c, "permission_denied");
	call_free(&host, c);
	/* Below a folder that is open, one that is not stays unseen, and the rest is seen. */
	assert_int_equal(chmod(at("refused"), 0755), 0);
	assert_int_equal(mkdir(at("refused/closed"), 0700), 0);
	assert_int_equal(mkdir(at("refused/open"), 0755), 0);
	c = watch("refused", ",\"recursive\":true", NOBODY);
	await_start(c);
	make(at("refused/closed/f"), "");
	make(at("refused/open/f"), "");
	await_mark(c, "refused");
	ASSERT_TOLD("CREATE open/f", 1);
	ASSERT_TOLD("CREATE closed/f", 0);
	forget();
	call_free(&host, c);
}

/* How many folders the agent watches now. */
static unsigned watched(void)
{
	char path[300];
	struct dirent *de;
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo", (int)host.pid);
	d = opendir(path);
	assert_non_null(d);
	while ((de = readdir(d))) {
		autofree char *text = NULL;

		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%s", (int)host.pid, de->d_name);
		if (fd_read_file(AT_FDCWD, path, 1 << 20, &text, NULL) < 0)
			continue;
		for (const char *p = text; (p = strstr(p, "inotify wd:")); p++)
			n++;
	}
	closedir(d);
	return n;
}

/* When a client has left, its watch goes, too. */
static void await_none_watched(void)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (watched() && clock_mono_ms() < until)
		host_turn(&host, 20);
	assert_int_equal(watched(), 0);
}

/* A watch of "/" does not go into /proc. */
static void test_left_out(void **state)
{
	struct call *c;

	if (getuid() != 0)
		skip();
	fresh("left");
	assert_int_equal(mkdir(at("left/proc"), 0755), 0);
	assert_int_equal(mkdir(at("left/other"), 0755), 0);
	if (mount("proc", at("left/proc"), "proc", 0, NULL) < 0)
		skip();
	await_none_watched();
	c = watch("left", ",\"recursive\":true", NULL);
	await_start(c);
	assert_int_equal(watched(), 2);
	make(at("left/other/f"), "");
	await(c, "CREATE other/f");
	forget();
	call_free(&host, c);
	umount2(at("left/proc"), MNT_DETACH);
	await_none_watched();
}

/* The folder goes away; the time is over; nothing happens for a while. */
static void test_ends(void **state)
{
	struct call *c;
	int flags;
	json_t *j;

	fresh("goes");
	c = watch("goes", "", NULL);
	await_start(c);
	assert_int_equal(rmdir(at("goes")), 0);
	await_error(c, "not_found");
	ASSERT_TOLD("REMOVE .", 1);
	forget();
	call_free(&host, c);
	fresh("goes");
	c = watch("goes", ",\"recursive\":true", "Connect-Timeout-Ms: 300\r\n");
	await_start(c);
	await_error(c, "deadline_exceeded");
	call_free(&host, c);
	c = watch("goes", "", "Keepalive-Ping-Interval: 1\r\n");
	await_start(c);
	j = next(c, &flags);
	assert_non_null(json_object_get(j, "keepalive"));
	json_decref(j);
	call_free(&host, c);
}

/* ---- polled ---- */

static void create(const char *name, const char *more, char id[64])
{
	char json[512];
	const char *text;

	snprintf(json, sizeof(json), "{\"path\":\"%s/%s\"%s}", dir, name, more);
	assert_int_equal(rpc(&host, FS "CreateWatcher", json, &text), 200);
	assert_int_equal(sscanf(text, "{\"watcherId\":\"%63[a-z0-9]\"}", id), 1);
}

/* One GetWatcherEvents: its status; on an error *ret_code is its code. */
static int poll_once(const char *id, char ret_code[64])
{
	char json[128];
	struct call *c;
	int status;
	json_t *j, *events, *e;
	size_t i;

	snprintf(json, sizeof(json), "{\"watcherId\":\"%.63s\"}", id);
	c = call_new(&host, false, "POST", "/" FS "GetWatcherEvents",
		     "Content-Type: application/json\r\n", json, strlen(json));
	call_wait(&host, c);
	status = call_status(c);
	j = json_loadb(buf_data(&c->body), buf_len(&c->body), 0, NULL);
	assert_non_null(j);
	events = json_object_get(j, "events");
	assert_true(status != 200 || json_is_array(events));
	json_array_foreach(events, i, e)
		add_event(e);
	if (status != 200)
		snprintf(ret_code, 64, "%s", json_string_value(json_object_get(j, "code")));
	json_decref(j);
	call_free(&host, c);
	return status;
}

static int remove_watcher(const char id[64])
{
	char json[128];

	snprintf(json, sizeof(json), "{\"watcherId\":\"%.63s\"}", id);
	return rpc(&host, FS "RemoveWatcher", json, NULL);
}

static void test_polled(void **state)
{
	char id[64], code[64];

	fresh("polled");
	create("polled", ",\"recursive\":true", id);
	assert_int_equal(poll_once(id, code), 200);
	assert_int_equal(n_told, 0);
	/* What happened before the question is in the answer. */
	for (int i = 0; i < 200; i++)
		make(at("polled/f%d", i), "x");
	assert_int_equal(mkdir(at("polled/sub"), 0755), 0);
	make(at("polled/sub/in"), "x");
	assert_int_equal(poll_once(id, code), 200);
	ASSERT_TOLD("CREATE f0", 1);
	ASSERT_TOLD("CREATE f199", 1);
	ASSERT_TOLD("CREATE sub/in", 1);
	assert_int_equal(unlink(at("polled/f0")), 0);
	forget();
	assert_int_equal(poll_once(id, code), 200);
	ASSERT_TOLD("REMOVE f0", 1);
	assert_int_equal(n_told, 1);
	forget();
	assert_int_equal(remove_watcher(id), 200);
	assert_int_equal(remove_watcher(id), 404);
	assert_int_equal(poll_once(id, code), 404);
}

/*
 * Nobody asks while far more happens than can be kept: what is told has no gap, then the loss is
 * said, each time.
 */
static void test_overflow(void **state)
{
	char id[64], code[64] = "", event[300], name[250];
	int status, n = 0;

	fresh("flood");
	create("flood", "", id);
	memset(name, 'n', 240);
	name[240] = '\0';
	for (int i = 0; i < 60000; i++) {
		int fd = open(at("flood/%s%06d", name, i), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

		assert_true(fd >= 0);
		close(fd);
		unlink(at("flood/%s%06d", name, i));
	}
	while ((status = poll_once(id, code)) == 200)
		;
	assert_int_equal(status, 429);
	assert_string_equal(code, "resource_exhausted");
	assert_true(n_told > 10000 && n_told < 120000);
	for (size_t i = 0; i < n_told; i++, n++) {
		snprintf(event, sizeof(event), "%s %s%06d", i % 2 ? "REMOVE" : "CREATE", name,
			 n / 2);
		assert_string_equal(told[i], event);
	}
	print_message("%zu events before the overflow was said\n", n_told);
	forget();
	assert_int_equal(poll_once(id, code), 429);
	assert_int_equal(remove_watcher(id), 200);
}

static void test_limits(void **state)
{
	char ids[64][64], json[128];
	const char *text;

	fresh("limit");
	snprintf(json, sizeof(json), "{\"path\":\"%s/limit\"}", dir);
	for (int i = 0; i < 64; i++)
		create("limit", "", ids[i]);
	assert_int_equal(rpc(&host, FS "CreateWatcher", json, &text), 429);
	assert_non_null(strstr(text, "64 watches already"));
	for (int i = 0; i < 64; i++)
		assert_int_equal(remove_watcher(ids[i]), 200);
	create("limit", "", ids[0]);
	assert_int_equal(remove_watcher(ids[0]), 200);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_folder), cmocka_unit_test(test_names),
		cmocka_unit_test(test_recursive),  cmocka_unit_test(test_2000_files),
		cmocka_unit_test(test_churn),	   cmocka_unit_test(test_upload),
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_refused),	   cmocka_unit_test(test_left_out),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_polled),	   cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_limits),
	};

	/* What a test mounts goes with this process, however it ends. */
	if (getuid() == 0 &&
	    (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
		return 2;
	if (!host_args(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, host_setup, host_teardown);
}
