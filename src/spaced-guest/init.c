#include "spaced-guest/init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/cgroup.h"
#include "spaced-guest/metrics.h"
#include "spaced-guest/network.h"
#include "spaced-guest/process.h"
#include "spaced-guest/spawn.h"

#define HOSTS_MAX (1 << 20)
#define HOSTS_NAME_ADDRESS "127.0.1.1"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define SSH_FOLDER "/etc/ssh"
#define NO_ID "00000000000000000000000000000000"
#define SHUTDOWN_TRIES 100
#define SHUTDOWN_WAIT_US 10000

/*
 * In place and without fsync: all of it is written again at the next start. Not by O_TRUNC, which
 * would free the block and take a new one: right after a restore that reads bitmaps from a cold
 * disk (seen: 87 of 190 ms of /init).
 */
static int put_file(const char *path, const char *text, mode_t mode)
{
	const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	autoclose int fd = open(path, flags, mode);
	size_t n = strlen(text);
	struct stat st;
	int r;

	/* The user may have put anything there (a FIFO would keep us waiting): it is replaced. */
	if (fd < 0 ? errno == ELOOP || errno == ENXIO
		   : fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
		fd_close(TAKE_FD(fd));
		if (unlink(path) == 0)
			fd = open(path, flags | O_EXCL, mode);
	}
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if ((st.st_mode & 07777) != mode && fchmod(fd, mode) < 0)
		return -errno;
	r = fd_write_all(fd, text, n, -1);
	if (r == 0 && st.st_size > (off_t)n && ftruncate(fd, (off_t)n) < 0)
		r = -errno;
	return r;
}

static int set_clock(struct agent *a, const struct init_req *q, struct err *e)
{
	struct timespec t = { .tv_sec = q->wall_ms / 1000, .tv_nsec = q->wall_ms % 1000 * 1000000 };

	return clock_settime(CLOCK_REALTIME, &t) < 0 ? err_errno(e, -errno, "cannot set the clock")
						     : 0;
}

/*
 * The host's bytes are credited, and the generator is reseeded at once: copies of a snapshot would
 * go on alike (seen).
 */
static int add_entropy(struct agent *a, const struct init_req *q, struct err *e)
{
	autofree struct rand_pool_info *info = x_alloc(sizeof(*info) + q->n_entropy);
	autoclose int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	int r = 0;

	info->entropy_count = (int)q->n_entropy * 8;
	info->buf_size = (int)q->n_entropy;
	memcpy(info->buf, q->entropy, q->n_entropy);
	if (fd < 0 || ioctl(fd, RNDADDENTROPY, info) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
		r = err_errno(e, -errno, "cannot add entropy");
	explicit_bzero(info->buf, q->n_entropy);
	return r;
}

/*
 * Files of the root image: whatever the user has made of them (a folder, an immutable file, a full
 * disk), it must not keep the sandbox from its next start.
 */
static void put_identity(const char *path, const char *text, mode_t mode)
{
	int r = put_file(path, text, mode);

	if (r < 0)
		log_warn("identity not written", F_STR("path", path), F_INT("errno", -r));
}

static int set_machine_id(struct agent *a, const struct init_req *q, struct err *e)
{
	autofree char *text = x_asprintf("%s\n", q->machine_id);
	struct stat st;

	put_identity("/etc/machine-id", text, 0444);
	if (lstat("/var/lib/dbus/machine-id", &st) == 0 && S_ISREG(st.st_mode))
		put_identity("/var/lib/dbus/machine-id", text, 0444);
	return 0;
}

char *init_hosts_text(const char *old, const char *hostname)
{
	struct buf b;
	bool done = false;

	buf_init(&b, HOSTS_MAX + 256);
	while (*old) {
		size_t n = strcspn(old, "\n");
		bool ours =
			str_starts(old, HOSTS_NAME_ADDRESS) && (old[9] == ' ' || old[9] == '\t');

		if (ours && !done)
			buf_putf(&b, HOSTS_NAME_ADDRESS "\t%s\n", hostname);
		else if (!ours)
			buf_putf(&b, "%.*s\n", (int)n, old);
		done |= ours;
		old += n;
		old += *old == '\n';
	}
	if (!done)
		buf_putf(&b, HOSTS_NAME_ADDRESS "\t%s\n", hostname);
	return buf_take_str(&b);
}

static int set_hostname(struct agent *a, const struct init_req *q, struct err *e)
{
	autofree char *old = NULL, *hosts = NULL, *line = x_asprintf("%s\n", q->hostname);

	if (sethostname(q->hostname, strlen(q->hostname)) < 0)
		return err_errno(e, -errno, "cannot set the host name");
	put_identity("/etc/hostname", line, 0644);
	if (fd_read_regular(AT_FDCWD, "/etc/hosts", HOSTS_MAX, &old, NULL) < 0)
		old = x_strdup("127.0.0.1\tlocalhost\n");
	hosts = init_hosts_text(old, q->hostname);
	if (!str_eq(old, hosts))
		put_identity("/etc/hosts", hosts, 0644);
	return 0;
}

/*
 * The kernel's boot_id cannot change, so a file is bound over it (/prepare has done so already);
 * its contents change in place.
 */
static int set_boot_id(struct agent *a, const struct init_req *q, struct err *e)
{
	autofree char *text = x_asprintf("%s\n", q->boot_id);
	int r = fd_mkdir_p("/run/space", 0755);

	if (r == 0)
		r = put_file("/run/space/boot_id", text, 0444);
	if (r == 0 && !a->boot_id_mounted) {
		if (mount("/run/space/boot_id", BOOT_ID, NULL, MS_BIND, NULL) < 0 ||
		    mount(NULL, BOOT_ID, NULL,
			  MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
			  NULL) < 0)
			r = -errno;
		a->boot_id_mounted = r == 0;
	}
	return r < 0 ? err_errno(e, r, "cannot set the boot ID") : 0;
}

static unsigned remove_ssh_keys(void)
{
	DIR *d = opendir(SSH_FOLDER);
	struct dirent *de;
	unsigned n = 0;

	while (d && (de = readdir(d)))
		if (str_starts(de->d_name, "ssh_host_") && strstr(de->d_name, "_key") &&
		    unlinkat(dirfd(d), de->d_name, 0) == 0)
			n++;
	if (d)
		closedir(d);
	return n;
}

/* The old keys go before the answer; making new ones takes seconds and goes on behind it. */
static int renew_ssh_keys(struct agent *a, const struct init_req *q, struct err *e)
{
	static char *const argv[] = { "ssh-keygen", "-A", NULL }, *const envp[] = {
		"PATH=" AGENT_PATH_ENV, NULL
	};
	struct user root = { .name = "root", .home = "/root" };
	autoclose int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int status;
	pid_t pid;

	if (remove_ssh_keys() == 0)
		return 0;
	pid = spawn_start(&(struct spawn){ .argv = argv,
					   .envp = envp,
					   .cwd = "/",
					   .user = &root,
					   .in = null,
					   .out = null,
					   .err = null,
					   .cgroup = -1 },
			  &status);
	if (pid < 0)
		log_warn("no new ssh host keys", F_INT("errno", -pid));
	else
		close(status);
	return 0;
}

static int set_network(struct agent *a, const struct init_req *q, struct err *e)
{
	return network_up(e);
}

static int write_run_files(struct agent *a, const struct init_req *q, struct err *e)
{
	const struct { const char *path, *text; } files[] = {
		{ "/run/e2b/.E2B_SANDBOX", "true" },
		{ "/run/e2b/.E2B_SANDBOX_ID", q->sandbox },
		{ "/run/e2b/.E2B_TEMPLATE_ID", q->template },
	};
	int r = fd_mkdir_p("/run/e2b", 0755);

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(files); i++)
		r = put_file(files[i].path, files[i].text, 0644);
	return r < 0 ? err_errno(e, r, "cannot write /run/e2b") : 0;
}

static int (*const vm_steps[])(struct agent *a, const struct init_req *q, struct err *e) = {
	set_clock,   add_entropy, set_machine_id,  set_hostname,
	set_boot_id, set_network, write_run_files, renew_ssh_keys, NULL,
};

/*
 * The same execution goes on after a pause: time has passed, all else is as it was (its boot ID and
 * host keys too, and whatever the user has made of its name).
 */
static int (*const resume_steps[])(struct agent *a, const struct init_req *q, struct err *e) = {
	set_clock,
	add_entropy,
	NULL,
};

static void take_over(struct agent *a, struct init_req *q)
{
	secret_done(&a->token);
	secret_init(&a->token, q->access_token, strlen(q->access_token));
	str_copy(a->sandbox, sizeof(a->sandbox), q->sandbox);
	str_copy(a->template, sizeof(a->template), q->template);
	if (q->default_user[0])
		str_copy(a->default_user, sizeof(a->default_user), q->default_user);
	free(a->default_workdir);
	a->default_workdir = TAKE(q->default_workdir);
	envs_done(&a->envs);
	a->envs = q->envs;
	q->envs = (struct envs){ 0 };
	a->init_epoch = a->epoch;
	a->ready = true;
}

static bool epoch_eq(const struct mux_epoch *a, uint64_t generation, const uint8_t *activation)
{
	return a->generation == generation &&
	       memcmp(a->activation, activation, sizeof(a->activation)) == 0;
}

void init_epoch(struct agent *a, const struct mux_epoch *epoch)
{
	bool same = a->token.n && epoch_eq(&a->init_epoch, epoch->generation, epoch->activation);

	a->epoch = *epoch;
	a->ready = same;
	if (!same)
		cgroups_freeze_all(a->cgroups, true);
	log_info("host attached", F_UINT("generation", epoch->generation),
		 F_STR("execution", same ? "known" : "new"));
}

/* The node is told how old the clock's setting is by now, and so learns what the way here took. */
static void answer_set(struct req *r, int64_t since_ms)
{
	char age[24];
	const struct http_field fields[] = { { "Space-Clock-Age-Ms", age }, { NULL, NULL } };

	str_format(age, sizeof(age), "%lld", (long long)(clock_mono_ms() - since_ms));
	req_start(r, 204, NULL, fields, 0);
	req_finish(r);
}

void init_handle(struct req *r, const char *body, size_t n)
{
	struct agent *a = r->a;
	int (*const *steps)(struct agent *a, const struct init_req *q, struct err *e);
	struct init_req q = { 0 };
	struct err e = { 0 };
	int64_t begin_ms = clock_mono_ms();
	int ret = decode_init(body, n, &q, &e);

	if (ret < 0) {
		req_error(r, 400, "%s", e.text);
	} else if (!epoch_eq(&a->epoch, q.generation, q.activation)) {
		req_error(r, 409, "generation and activation are not those of this connection");
	} else {
		bool resumed = a->ready;

		steps = resumed ? resume_steps : vm_steps;
		for (size_t i = 0; ret == 0 && a->in_vm && steps[i]; i++)
			ret = steps[i](a, &q, &e);
		if (ret < 0) {
			req_error(r, 500, "%s", e.text);
		} else {
			if (!resumed)
				take_over(a, &q);
			cgroups_freeze_all(a->cgroups, false);
			activity_note(a, ACTIVITY_INIT);
			metrics_sample(a);
			a->cpu_pct = 0;
			log_info(resumed ? "resumed" : "initialised", F_REQ(r->id),
				 F_STR("sandbox", a->sandbox),
				 F_UINT("generation", q.generation));
			answer_set(r, begin_ms);
		}
	}
	init_req_done(&q);
}

/* ---- /prepare ---- */

static void drop_caches(void)
{
	autoclose int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "3", 1) < 0)
		log_warn("caches not dropped", F_INT("errno", errno));
}

static int run_once(struct agent *a, char *const *argv, struct err *e)
{
	autoclose int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct user u;
	struct envs envs;
	int status = 0, fd;
	pid_t pid;

	if (user_find(a->default_user, &u) < 0)
		return err_set(e, -ENOENT, "there is no user '%s'", a->default_user);
	process_envs(a, &u, NULL, &envs);
	pid = spawn_start(&(struct spawn){ .argv = argv,
					   .envp = envs.v,
					   .cwd = u.home,
					   .user = &u,
					   .in = null,
					   .out = null,
					   .err = null,
					   .cgroup = -1 },
			  &fd);
	envs_done(&envs);
	if (pid < 0)
		return err_errno(e, pid, "cannot run %s", argv[0]);
	close(fd);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return err_errno(e, -errno, "cannot wait for %s", argv[0]);
	return status ? err_set(e, -EIO, "%s failed (status %d)", argv[0], status) : 0;
}

/*
 * Goes the way of /init once, with an identity that is nobody's, so that what /init reads and
 * writes is in the snapshot's memory, its files have their blocks, and the mount for the boot ID
 * stands.
 */
static int rehearse(struct agent *a, struct err *e)
{
	static const struct init_req nobody = {
		.hostname = "localhost",
		.machine_id = NO_ID,
		.boot_id = "00000000-0000-0000-0000-000000000000",
	};
	static int (*const steps[])(struct agent * a, const struct init_req *q, struct err *e) = {
		set_machine_id, set_hostname,	 set_boot_id,
		set_network,	write_run_files, renew_ssh_keys,
	};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (steps[i](a, &nobody, e) < 0)
			return -EIO;
	return 0;
}

/*
 * The caches are dropped first: what the warm run reads is what a first command needs, and only
 * that is in the snapshot.
 */
void prepare_handle(struct req *r, const char *body, size_t n)
{
	static char *const warm_argv[] = { "/bin/bash", "-l", "-c", "echo", NULL };
	struct err e = { 0 };
	bool warm = false;

	if (decode_prepare(body, n, &warm, &e) < 0) {
		req_error(r, 400, "%s", e.text);
		return;
	}
	sync();
	if (r->a->in_vm)
		drop_caches();
	if (r->a->in_vm && rehearse(r->a, &e) < 0) {
		req_error(r, 500, "%s", e.text);
		return;
	}
	if (warm && run_once(r->a, warm_argv, &e) < 0) {
		req_error(r, 500, "%s", e.text);
		return;
	}
	sync();
	log_info("prepared", F_REQ(r->id));
	req_answer(r, 204, NULL, NULL, 0);
}

/* ---- /shutdown ---- */

void shutdown_handle(struct req *r, const char *body, size_t n)
{
	struct agent *a = r->a;
	int left = 0;

	log_info("shutdown", F_REQ(r->id));
	procs_kill_all(a->procs);
	if (a->in_vm) {
		kill(-1, SIGKILL);               /* root may have moved some out of the cgroup */
		sync();
		/* The killed ones hold files until they are gone. */
		for (left = SHUTDOWN_TRIES; left > 0; left--) {
			procs_reap(a->procs);
			if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0)
				break;
			usleep(SHUTDOWN_WAIT_US);
		}
		if (left == 0)
			log_warn("the root stays writable; it was synced");
		sync();
	}
	req_answer(r, 204, NULL, NULL, 0);
}
