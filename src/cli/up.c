/*
 * space up: a whole single node in the foreground.
 *
 * Theory of operation. The loop's thread supervises: signals, the daemons (up_proc.c). What takes
 * time runs as a story in one worker thread: prepare (storage, image, keys) -> daemons -> template
 * -> first key -> demonstration -> wait; at the end: stop all sandboxes -> daemons (before
 * node-manager ends, it destroys what could not be stopped) -> unmount -> remove the run folder.
 *
 * One `up` per instance: a lock on RUN/../<instance>.lock is held for as long as it runs; `down`
 * signals its holder. When `up` was killed the lock is free and things are left over: the next `up`
 * adopts them, and `down` runs the same start and then the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "cli/up.h"
#include "ipc/sbx_ops.h"
#include "loop/work.h"
#include "ops/ops.h"

#define READY_MS 20000
#define SBX_READY_MS 60000           /* the run before it may end its jobs first (SBX_LEAVE_MS), then it adopts */
#define TEMPLATE_MS (15 * 60 * 1000)
#define STOP_CALL_MS 60000

struct up {
	struct cli *cli;
	struct up_options opt;
	struct conf conf;
	struct loop *loop;
	struct work *work;
	struct up_proc *procs;
	struct up_front *front;
	int lock_fd;
	int report_fd;                 /* --detach: the waiting parent; -1 = none */
	char api_url[160];
	bool end_only;                 /* `down` after a killed `up` */
	atomic_bool ending;            /* set in the loop's thread, read by the story between its steps */
	bool failed;
	int result;
	struct err err;
};


void up_say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "space: %s\n", line);
}

static int service_users(const struct up_options *o, struct conf *k, struct err *e)
{
	for (int i = 0; i < CONF_USER_COUNT; i++) {
		struct passwd *pw;

		if (o->service_uid) {
			k->users[i] = o->service_uid + (uid_t)i;
			continue;
		}
		pw = getpwnam(conf_user_names[i]);
		if (!pw)
			return err_set(
				e, -ENOENT,
				"there is no user %s; `sudo make install` makes the service users",
				conf_user_names[i]);
		k->users[i] = pw->pw_uid;
	}
	return 0;
}

/* The node's UUID is made once and kept in the state folder. */
static int worker_id(const char *state_dir, char dst[37], struct err *e)
{
	autofree char *path = x_asprintf("%s/worker", state_dir), *text = NULL;
	size_t n;
	int r = fd_read_file(AT_FDCWD, path, 64, &text, &n);

	if (r >= 0 && n >= 36) {
		text[36] = '\0';
		if (id_uuid_ok(text))
			return str_copy(dst, 37, text);
	}
	if ((r = fd_mkdir_p(state_dir, 0755)) < 0 || (r = id_new_uuid(dst)) < 0 ||
	    (r = fd_write_file(AT_FDCWD, path, dst, 36, 0644)) < 0)
		return err_errno(e, r, "cannot write %s", path);
	return 0;
}

/* The options behind the fields that are known before anything is made. */
static const char *option_of(const char *field)
{
	static const struct { const char *field, *option; } rows[] = {
		{ "instance", "--instance" },   { "state_dir", "--state-dir" },
		{ "run_dir", "--run-dir" },     { "cache_dir", "--cache-dir" },
		{ "lib_dir", "--lib-dir" },     { "domain", "--domain" },
		{ "origins", "--allow-origin" }
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].field, field))
			return rows[i].option;
	return NULL;
}

static int up_conf_make(const struct up_options *o, struct conf *k, struct err *e)
{
	int r;

	memset(k, 0, sizeof(*k));
	r = str_copy(k->instance, sizeof(k->instance), o->instance);
	r |= o->state_dir
		     ? str_copy(k->state_dir, CONF_PATH_MAX, o->state_dir)
		     : str_format(k->state_dir, CONF_PATH_MAX, "/var/lib/space/%s", o->instance);
	r |= o->run_dir ? str_copy(k->run_dir, CONF_PATH_MAX, o->run_dir)
			: str_format(k->run_dir, CONF_PATH_MAX, "/run/space/%s", o->instance);
	r |= str_copy(k->cache_dir, CONF_PATH_MAX, o->cache_dir);
	r |= str_copy(k->lib_dir, CONF_PATH_MAX, o->lib_dir);
	r |= str_format(k->cgroup_root, sizeof(k->cgroup_root), "space-%s", o->instance);
	r |= up_front_conf(o, k);
	r |= str_copy(k->origins, sizeof(k->origins), o->origins);
	r |= str_copy(k->accel, sizeof(k->accel), "auto");
	r |= str_copy(k->template_id, sizeof(k->template_id), "base");
	if (r < 0)
		return err_set(e, -ENAMETOOLONG,
			       "a name of the instance, of its folders or of an origin is too long");
	up_net_conf(o, k);
	k->uid_base = o->uid_base;
	k->max_sandboxes = o->max_sandboxes;
	if ((r = service_users(o, k, e)) < 0 || (r = conf_check_as(k, option_of, e)) < 0)
		return r;
	return worker_id(k->state_dir, k->worker, e);
}

/* ---- the story: blocking steps, in the worker ---- */

static int write_conf(struct up *u, struct err *e)
{
	char path[PATH_MAX];
	int r = conf_path(&u->conf, path, CONF_RUN, "conf.json");

	return r < 0 ? err_set(e, r, "the run folder's name is too long")
		     : conf_write(path, &u->conf, e);
}

static int prepare_store(struct up *u, struct store **ret, struct err *e)
{
	char url[PATH_MAX + 16], node[PATH_MAX];
	mode_t old = umask(007);
	int r = key_init() < 0 || up_store_url(&u->conf, url) < 0
			? err_set(e, -EIO, "cannot start the key library")
			: 0;

	const char *path = url + strlen("sqlite:");
	/*
	 * The database belongs to the control plane, not to us: before, since what SQLite makes
	 * beside it is like it; after, for a new one.
	 */
	if (r >= 0 && access(path, F_OK) == 0)
		r = up_own(path, u->conf.users[CONF_USER_API], u->conf.users[CONF_USER_CTL], 0660,
			   e);
	if (r >= 0)
		r = store_open(url, ret, e);
	umask(old);
	if (r < 0)
		return r;
	r = up_own(path, u->conf.users[CONF_USER_API], u->conf.users[CONF_USER_CTL], 0660, e);
	if (r >= 0)
		r = up_keys_prepare(&u->conf, *ret, e);
	if (r >= 0 && conf_path(&u->conf, node, CONF_RUN, "node-api/node.sock") >= 0) {
		autofree char *addr = x_asprintf("unix:%s", node);

		r = store_node_put(*ret, u->conf.worker, addr, e);
	}
	if (r < 0) {
		store_close(*ret);
		*ret = NULL;
	}
	return r;
}

static int prepare(struct up *u, struct err *e)
{
	int r = u->end_only ? 0 : up_front_check(&u->opt, &u->conf, e);

	if (r >= 0)
		r = up_run_dirs(&u->conf, e);
	if (r >= 0)
		r = up_store_open(&u->conf, u->opt.size_bytes, e);
	if (r >= 0)
		r = up_image_prepare(&u->conf, e);
	if (r >= 0)
		r = up_image_template(&u->conf, e);
	if (r >= 0)
		r = up_front_copy(&u->opt, &u->conf, e);
	if (r >= 0)
		r = write_conf(u, e);
	return r;
}

static int wait_sbx(struct up *u, struct ipc_sync **ret, struct err *e)
{
	int64_t start = clock_mono_ms();
	char path[PATH_MAX];
	int r = conf_path(&u->conf, path, CONF_RUN, "sbx-manager/sbx.sock");

	while (r >= 0) {
		int q = ipc_sync_open(path, u->conf.users[CONF_USER_SBX], ret, e);

		if (q >= 0)
			return 0;
		if (u->ending || clock_mono_ms() - start > SBX_READY_MS)
			return err_wrap(e, "sbx-manager did not come up; its log is in %s/log",
					u->conf.state_dir);
		usleep(20000);
	}
	return r;
}

static int ensure_template(struct up *u, struct store *s, struct err *e)
{
	struct sbx_template req = { 0 };
	struct sbx_template_rep rep = { 0 };
	struct ipc_sync *sbx;
	size_t n_fds = 0;
	int r = wait_sbx(u, &sbx, e);

	if (r < 0)
		return r;
	(void)str_copy(req.template, sizeof(req.template), u->conf.template_id);
	up_say("preparing the base template %s (the first time it is booted once)",
	       u->conf.template_id);
	r = ipc_sync_call(sbx, &sbx_ops[SBX_TEMPLATE_ENSURE], "up", &req, NULL, 0, &rep, NULL,
			  &n_fds, TEMPLATE_MS, e);
	ipc_sync_close(sbx);
	if (r < 0)
		return err_wrap(e, "the base template");
	return store_template_put(s, "", "base", u->conf.template_id, "{}", e);
}

/* Answers of the API prove that the way from the outside is open. */
static int wait_api(struct up *u, struct err *e)
{
	int64_t start = clock_mono_ms();

	for (;;) {
		struct http_call hc = { .addr = u->conf.api_listen,
					.method = "GET",
					.target = "/health",
					.host = "localhost",
					.timeout_ms = 2000,
					.max_answer = 4096 };
		struct http_answer a;
		int r = http_call(&hc, &a, e);

		if (r >= 0) {
			http_answer_done(&a);
			return 0;
		}
		if (u->ending || clock_mono_ms() - start > READY_MS)
			return err_wrap(e, "space-api did not come up; its log is in %s/log",
					u->conf.state_dir);
		usleep(20000);
	}
}

static int bring_up(struct up *u, struct err *e)
{
	struct store *s = NULL;
	int r = prepare_store(u, &s, e);

	if (r >= 0)
		r = up_proc_start(u->procs, e);
	if (r >= 0 && !u->end_only)
		r = ensure_template(u, s, e);
	if (r >= 0)
		r = wait_api(u, e);
	if (r >= 0 && !u->end_only)
		r = up_key_first(u->cli, s, u->api_url, e);
	store_close(s);
	return r;
}

static void story_up(void *arg)
{
	struct up *u = arg;
	int r = prepare(u, &u->err);

	if (r >= 0 && !u->ending)
		r = bring_up(u, &u->err);
	if (r >= 0 && fault_count() > 0)
		up_say("WARNING: %d failpoints are set in %s/failpoints", fault_count(), u->conf.run_dir);
	if (r >= 0 && !u->ending && !u->end_only) {
		struct cli c = *u->cli;

		(void)creds_set_url(&c, u->api_url, &u->err);
		r = creds_load(&c, &u->err);
		if (r >= 0 && u->opt.demo)
			r = up_demo(&c, &u->err);
	}
	u->result = r;
}

static int stop_one(struct store *s, const struct key_signer *key, const char *id, struct err *e)
{
	struct ops_ctx ctx = {
		.store = s, .signer = key, .claimer = "up", .timeout_ms = STOP_CALL_MS
	};
	int64_t start = clock_mono_ms();

	for (;;) {
		struct store_op op;
		int r = store_submit(s, id, "", LIFE_EV_STOP, "up", "up-end", &op, e);

		if (r >= 0 && op.id == 0)
			return 0;
		if (r >= 0 && op.state == STORE_OP_CLAIMED)
			r = ops_drive(&ctx, &op, e);
		if (r >= 0 || (r != -EAGAIN && r != -EBUSY) ||
		    clock_mono_ms() - start > STOP_CALL_MS)
			return r;
		usleep(50000);
	}
}

static int control_key(struct up *u, struct key_signer *ret, struct err *e)
{
	uint8_t public[KEY_PUBLIC_BYTES];
	char path[PATH_MAX];

	for (unsigned n = 999; n > 0; n--) {
		if (conf_path(&u->conf, path, CONF_STATE, "keys/ctl/ctl-%06u.key", n) >= 0 &&
		    access(path, F_OK) == 0)
			return key_load(path, ret, public, e);
	}
	return err_set(e, -ENOENT, "there is no signing key in %s/keys/ctl", u->conf.state_dir);
}

static int stop_sandboxes(struct up *u, struct err *e)
{
	struct store_list q = { .tenant = "",
				.state_csv = "creating,running,starting,paused,pausing,resuming",
				.cursor = "",
				.limit = 1000 };
	struct store_sandbox *list = NULL;
	char url[PATH_MAX + 16], cursor[64];
	struct store *s = NULL;
	struct key_signer key;
	size_t n = 0;
	int r = up_store_url(&u->conf, url), failed = 0;

	if (r >= 0 && access(url + strlen("sqlite:"), F_OK) < 0)
		return 0;                /* ended before it was made */
	if (r < 0 || (r = store_open(url, &s, e)) < 0)
		return r;
	r = store_sandbox_list(s, &q, &list, &n, cursor, e);
	if (r >= 0 && n)
		r = control_key(u, &key, e);
	for (size_t i = 0; i < n && r >= 0; i++) {
		struct err one = { 0 };

		up_say("stopping sandbox %zu of %zu (%s)", i + 1, n, list[i].id);
		if (stop_one(s, &key, list[i].id, &one) < 0) {
			up_say("%s: %s", list[i].id, one.text);
			failed++;
		}
	}
	for (size_t i = 0; i < n; i++)
		store_sandbox_done(&list[i]);
	free(list);
	store_close(s);
	if (r >= 0 && failed)
		return err_set(
			e, -EIO,
			"%d sandboxes were not stopped in order; the next `space up` cleans up after them",
			failed);
	return r;
}

static void story_stop(void *arg)
{
	struct up *u = arg;
	struct err e = { 0 };

	if (stop_sandboxes(u, &e) < 0) {
		up_say("%s", e.text);
		u->failed = true;
	}
}

/* ---- the loop's thread ---- */

static void begin_end(struct up *u);

static void report(struct up *u, const char *word)
{
	if (u->report_fd < 0)
		return;
	(void)!write(u->report_fd, word, 1);
	fd_close(TAKE_FD(u->report_fd));
}

static void say_background(const struct up_options *o)
{
	bool named = !str_eq(o->instance, "default");

	up_say("the node runs in the background; `sudo space down%s%s%s%s` ends it",
	       named ? " --instance " : "", named ? o->instance : "",
	       o->run_dir ? " --run-dir " : "", o->run_dir ? o->run_dir : "");
}

static void up_done(void *arg)
{
	struct up *u = arg;
	char path[PATH_MAX];

	if (u->result < 0) {
		if (!u->ending)
			cli_fail(u->cli, &u->err);
		u->failed = !u->ending;
		begin_end(u);
		return;
	}
	if (u->ending || u->end_only) {
		begin_end(u);
		return;
	}
	if (u->opt.detach)
		say_background(&u->opt);
	else
		up_say("the node runs; Ctrl-C stops all sandboxes and ends it");
	if (u->opt.detach && conf_path(&u->conf, path, CONF_STATE, "log/up.log") >= 0) {
		autoclose int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);

		report(u, "+");
		if (log >= 0) {
			dup2(log, 1);
			dup2(log, 2);
		}
	}
}

static void all_ended(void *arg)
{
	struct up *u = arg;
	struct err e = { 0 };

	if (up_store_close(&u->conf, &e) < 0) {
		up_say("%s", e.text);
		u->failed = true;
	}
	up_run_remove(&u->conf);
	up_say("the node has ended");
	loop_stop(u->loop);
}

static void nearly_ended(void *arg)
{
	struct up *u = arg;
	struct err e = { 0 };

	if (up_destroy_left(&u->conf, &e) < 0) {
		up_say("%s", e.text);
		u->failed = true;
	}
}

static void stop_done(void *arg)
{
	struct up *u = arg;

	up_proc_end(u->procs, nearly_ended, all_ended, u);
}

static void begin_end(struct up *u)
{
	u->ending = true;
	if (work_add(u->work, "story", story_stop, stop_done, u) < 0)
		stop_done(u);
}

static void on_signal(int signo, void *arg)
{
	struct up *u = arg;

	if (signo == SIGCHLD) {
		up_proc_reap(u->procs);
		return;
	}
	if (u->ending)
		return;
	up_say("ending");
	u->ending = true;
	/*
	 * The story sees it between its steps; when it has ended already, nothing else would begin
	 * the end.
	 */
	if (!work_pending(u->work))
		begin_end(u);
}

static int take_lock(struct up *u, struct err *e)
{
	autofree char *path = x_asprintf("%s.lock", u->conf.run_dir),
		      *dir = x_strdup(u->conf.run_dir);
	int r;

	*strrchr(dir, '/') = '\0';
	if ((r = fd_mkdir_p(dir, 0755)) < 0)
		return err_errno(e, r, "cannot make %s", dir);
	u->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (u->lock_fd < 0)
		return err_errno(e, -errno, "%s", path);
	if (flock(u->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		fd_close(TAKE_FD(u->lock_fd));
		return err_set_code(e, -EALREADY, "already-running", "the instance %s runs already",
				    u->conf.instance);
	}
	char text[24];
	(void)str_format(text, sizeof(text), "%d\n", (int)getpid());
	if (ftruncate(u->lock_fd, 0) < 0 || pwrite(u->lock_fd, text, strlen(text), 0) < 0)
		return err_errno(e, -errno, "%s", path);
	return 0;
}

/* A terminal that closes ends the node as Ctrl-C does, unless nohup(1) said otherwise. */
static int take_signals(struct up *u, struct err *e)
{
	static const int signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP };
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(signals) && r >= 0; i++)
		if (signals[i] != SIGHUP || !cli_nohup())
			r = loop_signal(u->loop, signals[i], on_signal, u);
	return r < 0 ? err_errno(e, r, "signals") : 0;
}

static int run(struct up *u, struct err *e)
{
	int r;

	fault_open(u->conf.run_dir, "up");
	u->loop = loop_new();
	if ((r = take_signals(u, e)) < 0)
		return r;
	u->work = work_new(u->loop, 1);
	if ((r = up_proc_new(u->loop, &u->conf, &u->procs, e)) < 0)
		return r;
	if ((r = work_add(u->work, "story", story_up, up_done, u)) < 0)
		return err_errno(e, r, "worker");
	u->front = up_front_watch(u->loop, &u->opt, &u->conf);
	r = loop_run(u->loop);
	up_front_free(u->front);
	work_free(u->work);
	up_proc_free(u->procs);
	loop_free(u->loop);
	report(u, "-");
	return r < 0 ? err_errno(e, r, "loop") : u->failed ? 1 : 0;
}

/* --detach: the child becomes the node; we wait until it runs or has failed. */
static int detach(struct up *u, struct err *e)
{
	int p[2];
	char word = '-';
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_errno(e, -errno, "pipe");
	pid = fork();
	if (pid < 0)
		return err_errno(e, -errno, "fork");
	if (pid == 0) {
		setsid();
		fd_close(p[0]);
		u->report_fd = p[1];
		return 0;
	}
	fd_close(p[1]);
	(void)!read(p[0], &word, 1);
	_exit(word == '+' ? 0 : 1);
}

static int parse_size(const char *s, uint64_t *ret)
{
	size_t n = strspn(s, "0123456789");
	uint64_t v;

	if (str_to_u64_n(s, n, 1 << 20, &v) < 0)
		return -EINVAL;
	if (str_eq(s + n, "T") || str_eq(s + n, "TiB"))
		*ret = v << 40;
	else if (str_eq(s + n, "G") || str_eq(s + n, "GiB") || !s[n])
		*ret = v << 30;
	else if (str_eq(s + n, "M") || str_eq(s + n, "MiB"))
		*ret = v << 20;
	else
		return -EINVAL;
	return *ret >= UP_SIZE_MIN ? 0 : -ERANGE;
}

/* LIB is where our own executable was installed: PREFIX/bin/space -> PREFIX/lib/space. */
static const char *default_lib_dir(void)
{
	static char dir[PATH_MAX];
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (n > 0) {
		exe[n] = '\0';
		slash = strrchr(exe, '/');
		*slash = '\0';
		slash = strrchr(exe, '/');
		if (slash && str_eq(slash, "/bin")) {
			*slash = '\0';
			(void)str_format(dir, sizeof(dir), "%s/lib/space", exe);
		}
	}
	return dir[0] ? dir : "/usr/local/lib/space";
}

struct up_strings {
	const char *detach, *size, *port, *instance, *state, *run, *cache, *lib, *uids, *uid_base,
		*max, *origins, *no_demo;
	struct up_front_strings front;
	struct up_net_strings net;
};

/* 0, or the exit code: it was said on stderr. */
static int parse_numbers(struct cli *c, const struct up_strings *s, struct up_options *o)
{
	uint64_t port = UP_PORT_DEFAULT, uids = 0, base = 2000000000, max = 64;
	const struct { const char *option, *text; uint64_t least, most, *ret; } rows[] = {
		{ "--port", s->port, 1, 65535, &port },
		{ "--service-uid", s->uids, 1, UINT32_MAX - 16, &uids },
		{ "--uid-base", s->uid_base, 1, UINT32_MAX - 65536, &base },
		{ "--max-sandboxes", s->max, 1, CONF_SANDBOXES_MAX, &max },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].text && (str_to_u64(rows[i].text, rows[i].most, rows[i].ret) < 0 ||
				     *rows[i].ret < rows[i].least))
			return cli_usage_error(c, "%s needs a number from %llu to %llu, not \"%s\"",
					       rows[i].option, (unsigned long long)rows[i].least,
					       (unsigned long long)rows[i].most, rows[i].text);
	o->port = (uint16_t)port;
	o->service_uid = (uint32_t)uids;
	o->uid_base = (uint32_t)base;
	o->max_sandboxes = (uint32_t)max;
	return 0;
}

static int parse_options(struct cli *c, int argc, char **argv, struct up_options *o)
{
	struct up_strings s = { 0 };
	const struct cli_option opts[] = {
		{ "--detach", NULL, "in the background, once it runs", &s.detach, false },
		{ "--size", "SIZE",
		  "of the storage file, when it is made (default: 64G, or what fits)", &s.size,
		  false },
		{ "--port", "PORT", "of the API on 127.0.0.1 (default: 4983)", &s.port, false },
		{ "--domain", "DOMAIN",
		  "of ports: <port>-<sandbox>.DOMAIN (default: localhost:PORT)",
		  &s.front.domain, false },
		{ "--tls-cert", "FILE", "certificate and chain (PEM): HTTPS for clients",
		  &s.front.cert, false },
		{ "--tls-key", "FILE", "its private key (PEM)", &s.front.key, false },
		{ "--tls-port", "PORT", "of HTTPS (default: 443)", &s.front.tls_port, false },
		{ "--listen", "ADDRESS", "of HTTPS (default: 127.0.0.1)", &s.front.listen, false },
		{ "--plain-http", NULL, "HTTP without TLS on that address too", &s.front.plain_http,
		  false },
		{ "--instance", "NAME", "several nodes on one machine (default: default)",
		  &s.instance, false },
		{ "--state-dir", "DIR", "default: /var/lib/space/INSTANCE", &s.state, false },
		{ "--run-dir", "DIR", "default: /run/space/INSTANCE", &s.run, false },
		{ "--cache-dir", "DIR", "default: /var/cache/space", &s.cache, false },
		{ "--lib-dir", "DIR", "where the programs are", &s.lib, false },
		{ "--service-uid", "N", "use four uids from N on, instead of the service users",
		  &s.uids, false },
		{ "--uid-base", "N", "first uid of the sandboxes (default: 2000000000)",
		  &s.uid_base, false },
		{ "--max-sandboxes", "N", "at once (default: 64)", &s.max, false },
		{ "--allow-origin", "ORIGINS",
		  "pages that may open terminals: \"https://a.example https://b.example\"",
		  &s.origins, false },
		{ "--net-allow", "CIDR",
		  "a private range that sandboxes may reach all the same; again for more",
		  s.net.allow, true },
		{ "--net-deny", "CIDR",
		  "a public range that sandboxes may not reach; again for more",
		  s.net.deny, true },
		{ "--nameserver", "ADDRESS",
		  "that sandboxes' names are looked up at (default: /etc/resolv.conf)",
		  s.net.nameserver, true },
		{ "--net-limit", "NAME=VALUE",
		  "what a sandbox may use of its network (docs/network.md); again for more",
		  s.net.limit, true },
		{ "--no-demo", NULL, "without the first sandbox", &s.no_demo, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1);

	if (n < 0)
		return n == -2 ? 0 : 2;
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments");
	o->size_bytes = 0;
	if (s.size && parse_size(s.size, &o->size_bytes) < 0)
		return cli_usage_error(
			c, "--size needs a size of at least %llu GiB like 40G, not \"%s\"",
			(unsigned long long)(UP_SIZE_MIN >> 30), s.size);
	n = parse_numbers(c, &s, o);
	if (n == 0)
		n = up_net_options(c, &s.net, &o->network);
	if (n == 0)
		n = up_front_options(c, &s.front, o);
	if (n)
		return n;
	o->instance = s.instance ? s.instance : "default";
	o->state_dir = s.state;
	o->run_dir = s.run;
	o->cache_dir = s.cache ? s.cache : "/var/cache/space";
	o->lib_dir = s.lib ? s.lib : default_lib_dir();
	o->origins = s.origins ? s.origins : "";
	o->detach = s.detach != NULL;
	o->demo = !s.no_demo;
	return -1;
}

static int already_running(struct up *u, struct err *e)
{
	struct cli c = *u->cli;
	int r;

	up_say(u->opt.demo ? "%s; here is what it does" : "%s", e->text);
	(void)creds_set_url(&c, u->api_url, e);
	r = creds_load(&c, e);
	if (r >= 0 && u->opt.demo)
		r = up_demo(&c, e);
	return r < 0 ? cli_fail(u->cli, e) : 0;
}

static int up_with(struct cli *c, struct up *u)
{
	struct err e = { 0 };
	int r;

	if (geteuid())
		return err_set(&e, -EACCES, "a node is started by root: sudo space %s", c->command),
		       cli_fail(c, &e);
	r = up_net_check(&u->opt, &e);
	if (r >= 0)
		r = up_conf_make(&u->opt, &u->conf, &e);
	if (r < 0)
		return cli_fail(c, &e);
	up_front_url(&u->opt, u->api_url);
	if (u->opt.detach && (r = detach(u, &e)) < 0)
		return cli_fail(c, &e);
	r = take_lock(u, &e);
	if (r == -EALREADY && !u->end_only) {
		r = already_running(u, &e);
		report(u, r ? "-" : "+");
		return r;
	}
	if (r >= 0)
		r = run(u, &e);
	return r < 0 ? cli_fail(c, &e) : r;
}

int cmd_up(struct cli *c, int argc, char **argv)
{
	autofree struct up *u = x_alloc(sizeof(*u));
	int r;

	u->cli = c;
	u->report_fd = u->lock_fd = -1;
	r = parse_options(c, argc, argv, &u->opt);
	return r >= 0 ? r : up_with(c, u);
}

/* ---- space down ---- */

static int signal_holder(struct cli *c, int fd, const char *path, struct err *e)
{
	char text[24] = "";
	uint64_t pid;
	int64_t said = clock_mono_ms();

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0 ||
	    str_to_u64_n(text, strspn(text, "0123456789"), 1 << 22, &pid) < 0)
		return err_set(e, -EBADMSG, "%s does not say who runs the node", path);
	autoclose int pidfd = proc_pidfd_open((pid_t)pid);
	if (pidfd < 0 || proc_pidfd_signal(pidfd, SIGTERM) < 0)
		return err_set(e, -ESRCH, "the process %llu that runs the node cannot be reached",
			       (unsigned long long)pid);
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (clock_mono_ms() - said > 1000) {
			said = clock_mono_ms();
			cli_note(c, "space: waiting for the node to end");
		}
		usleep(50000);
	}
	return 0;
}

int cmd_down(struct cli *c, int argc, char **argv)
{
	autofree struct up *u = x_alloc(sizeof(*u));
	struct err e = { 0 };
	struct stat st;
	int r;

	u->cli = c;
	u->report_fd = u->lock_fd = -1;
	r = parse_options(c, argc, argv, &u->opt);
	if (r >= 0)
		return r;
	autofree char *run_dir = u->opt.run_dir ? x_strdup(u->opt.run_dir)
						: x_asprintf("/run/space/%s", u->opt.instance);
	autofree char *path = x_asprintf("%s.lock", run_dir);
	autoclose int fd = open(path, O_RDWR | O_CLOEXEC);
	if (geteuid())
		return err_set(&e, -EACCES, "a node is ended by root: sudo space down"),
		       cli_fail(c, &e);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
		return signal_holder(c, fd, path, &e) < 0 ? cli_fail(c, &e) : 0;
	if (stat(run_dir, &st) < 0) {
		cli_note(c, "space: the instance %s does not run", u->opt.instance);
		return 0;
	}
	/*
	 * Left over from a killed `up`: start what adopts the sandboxes, then end it all in order.
	 */
	cli_note(c, "space: the node was killed earlier; cleaning up after it");
	if (fd >= 0)
		flock(fd, LOCK_UN);
	u->end_only = true;
	return up_with(c, u);
}
