/*
 * The probe VM; see probe.h.
 *
 * Theory of operation
 *
 * The child unshares mount, network and IPC namespaces, binds the VMM's tree on itself, binds
 * kernel and initrd on the empty files that the tree has for them, pivots into it, drops to the
 * uid, and executes. The parent has connected to the control socket before (the connection waits in
 * the backlog until the VMM accepts it), so nobody else can be first. The VM is over when its agent
 * opened the port, when it stopped for whatever reason, or when the time is up; then the child is
 * killed and reaped, and the namespaces go with it.
 */
#include "vmm/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/kvm.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/str.h"
#include "vmm/manifest.h"
#include "vmm/vmm.h"

#define PROBE_KEY_HEX 32
#define PROBE_NOTE_MAX 256
#define PROBE_WORDS_MAX 120

/* ---- The child ---- */

static int bind_file(const char *source, const char *target)
{
	autoclose int fd = open(target, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -errno;
	return mount(source, target, NULL, MS_BIND, NULL) < 0 ? -errno : 0;
}

static int enter_tree(const struct probe_conf *c)
{
	int r;

	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
		return -errno;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount(c->vmm_tree, c->vmm_tree, NULL, MS_BIND, NULL) < 0 || chdir(c->vmm_tree) < 0)
		return -errno;
	r = bind_file(c->kernel, "vmlinuz");
	if (r == 0)
		r = bind_file(c->initrd, "initrd.gz");
	if (r < 0)
		return r;
	/*
	 * pivot_root(2): with both the same, the old root lies over the new one and is unmounted at
	 * once.
	 */
	if (syscall(SYS_pivot_root, ".", ".") == 0)
		return umount2(".", MNT_DETACH) < 0 || chdir("/") < 0 ? -errno : 0;
	/*
	 * EINVAL: our own root is no mount point (we are in a chroot). No descriptor leads out of
	 * this one.
	 */
	if (errno != EINVAL || chroot(".") < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

static int drop_rights(const struct probe_conf *c)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
	if (setgroups(0, NULL) < 0 || setresgid(c->uid, c->uid, c->uid) < 0 ||
	    setresuid(c->uid, c->uid, c->uid) < 0)
		return -errno;
	/* After the change of uid, which clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

/*
 * What the child takes along. kvm is -1 with software emulation; words takes what the VMM
 * complains.
 */
struct child_fds { int listener, kvm, words; };

/* Puts descriptors where the VMM looks for them, and nothing else. */
static int place_fds(const struct child_fds *f)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return -errno;
	/* First above all numbers that are used, so that no dup2 hits one that is still needed. */
	int listener = fcntl(f->listener, F_DUPFD_CLOEXEC, VMM_FD_KVM + 1);
	int words = fcntl(f->words, F_DUPFD_CLOEXEC, VMM_FD_KVM + 1);
	int kvm = f->kvm < 0 ? null : f->kvm;

	kvm = fcntl(kvm, F_DUPFD_CLOEXEC, VMM_FD_KVM + 1);
	null = fcntl(null, F_DUPFD_CLOEXEC, VMM_FD_KVM + 1);
	for (int i = VMM_FD_CONTROL + 1; i <= VMM_FD_KVM; i++)
		close(i);
	if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(words, 2) < 0 ||
	    dup2(listener, VMM_FD_CONTROL) < 0 || dup2(kvm, VMM_FD_KVM) < 0)
		return -errno;
	return proc_close_fds_from(VMM_FD_KVM + 1);
}

/* The step that failed as exit status; the VMM itself ends with 0 or 1. */
enum { CHILD_FDS = 100, CHILD_TREE, CHILD_RIGHTS, CHILD_EXEC };

static const char *const child_steps[] = {
	[CHILD_FDS - CHILD_FDS] = "its descriptors could not be placed",
	[CHILD_TREE - CHILD_FDS] = "its folder could not be entered",
	[CHILD_RIGHTS - CHILD_FDS] = "its rights could not be dropped",
	[CHILD_EXEC - CHILD_FDS] = "the VMM could not be executed",
};

static void __attribute__((noreturn)) child(const struct probe_conf *c, const struct vmm_argv *argv,
					    const struct child_fds *fds)
{
	char *const env[] = { NULL };
	char program[64];

	setsid();
	if (place_fds(fds) < 0)
		_exit(CHILD_FDS);
	if (enter_tree(c) < 0)
		_exit(CHILD_TREE);
	if (drop_rights(c) < 0)
		_exit(CHILD_RIGHTS);
	str_format(program, sizeof(program), "/%s", vmm_qemu.program);
	execve(program, argv->argv, env);
	_exit(CHILD_EXEC);
}

/* ---- The parent ---- */

/*
 * A listening socket with a name that the kernel chose (unix(7), autobind), and a connection to it.
 */
static int control_pair(int *ret_listener, int *ret_conn)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	socklen_t n = sizeof(a);
	autoclose int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	autoclose int conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0 || conn < 0)
		return -errno;
	if (bind(listener, (struct sockaddr *)&a, sizeof(a.sun_family)) < 0 ||
	    listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&a, &n) < 0 ||
	    connect(conn, (struct sockaddr *)&a, n) < 0)
		return -errno;
	*ret_listener = TAKE_FD(listener);
	*ret_conn = TAKE_FD(conn);
	return 0;
}

/* Has it got to its agent, or where is it stuck? 1 = reached, 0 = goes on. */
static int judge(struct vmm *vm, struct err *e)
{
	enum vmm_run_state state = VMM_RUN_RUNNING;
	struct vmm_event ev;
	bool stopped = false;

	while (vmm_next_event(vm, &ev)) {
		if (ev.kind == VMM_EV_CHANNEL_OPEN)
			return 1;
		stopped = stopped || ev.kind != VMM_EV_RESUME;
	}
	if (!stopped)
		return 0;
	if (vmm_status(vm, &state, 2000, e) < 0)
		return -EIO;
	return err_set(e, -EIO, "its guest died before it reached its agent (%s)",
		       vmm_run_names[state]);
}

static int watch(struct vmm *vm, int64_t deadline_ms, struct err *e)
{
	enum vmm_run_state state;
	/* It may have died before anyone listened to events. */
	int r = vmm_status(vm, &state, 2000, e);

	if (r == 0 && state != VMM_RUN_RUNNING)
		return err_set(e, -EIO, "its guest died at once (%s)", vmm_run_names[state]);
	while (r == 0) {
		struct pollfd p = { .fd = vmm_fd(vm), .events = POLLIN };
		int64_t left = deadline_ms - clock_mono_ms();

		if (left <= 0)
			return err_set(e, -ETIMEDOUT, "its guest did not reach its agent in time");
		poll(&p, 1, (int)left);
		r = vmm_poll(vm, e);
		if (r == 0)
			r = judge(vm, e);
	}
	return r > 0 ? 0 : r;
}

static int end_child(pid_t pid)
{
	int status = 0;

	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/*
 * Forks the child. Here only the child holds the listener afterwards, so that its death ends the
 * connection.
 */
static int start(const struct probe_conf *c, enum vmm_accel accel, const struct vmm_argv *argv,
		 pid_t *ret_pid, int *ret_conn, int *ret_words, struct err *e)
{
	autoclose int listener = -1, conn = -1, kvm = -1, words_in = -1, words_out = -1;
	int words[2], r;
	pid_t pid;

	if (accel == VMM_ACCEL_KVM && (kvm = open(VMM_KVM_DEVICE, O_RDWR | O_CLOEXEC)) < 0)
		return err_errno(e, -errno, VMM_KVM_DEVICE);
	r = control_pair(&listener, &conn);
	if (r < 0)
		return err_errno(e, r, "no control socket");
	if (pipe2(words, O_CLOEXEC) < 0)
		return err_errno(e, -errno, "no pipe");
	words_in = words[0];
	words_out = words[1];
	pid = fork();
	if (pid < 0)
		return err_errno(e, -errno, "no process");
	if (pid == 0)
		child(c, argv,
		      &(struct child_fds) { .listener = listener, .kvm = kvm, .words = words_out });
	*ret_words = TAKE_FD(words_in);
	*ret_conn = TAKE_FD(conn);
	*ret_pid = pid;
	return 0;
}

/* The reason that a dead child gave: the step before the VMM, or the VMM's first words. */
static int explain(int r, int status, int words, struct err *e)
{
	char text[PROBE_WORDS_MAX];
	ssize_t n;

	if (WIFEXITED(status) && WEXITSTATUS(status) >= CHILD_FDS &&
	    WEXITSTATUS(status) <= CHILD_EXEC)
		return err_set(e, -EIO, "%s", child_steps[WEXITSTATUS(status) - CHILD_FDS]);
	/* The writers are dead: what is in the pipe is all. */
	n = read(words, text, sizeof(text));
	if (n > 0) {
		size_t len = (size_t)n;
		const char *end = memchr(text, '\n', len);
		autofree char *line = str_printable(text, end ? (size_t)(end - text) : len);

		return err_set(e, r, "%s", line);
	}
	return r;
}

int probe_run(const struct probe_conf *c, enum vmm_accel accel, int timeout_ms, struct err *e)
{
	struct vmm_spec spec = {
		.mode = VMM_PROBE, .accel = accel, .memory_mib = PROBE_MEMORY_MIB, .vcpus = 1
	};
	int64_t deadline = clock_mono_ms() + timeout_ms;
	struct vmm_argv argv = { 0 };
	struct vmm *vm = NULL;
	autoclose int words = -1;
	int conn = -1, status, r;
	pid_t pid = -1;

	r = vmm_tsc_khz(&spec.tsc_khz);
	if (r < 0)
		return err_errno(e, r, "the rate of the time-stamp counter cannot be measured");
	r = vmm_argv(&spec, &argv, e);
	if (r < 0)
		return r;
	r = start(c, accel, &argv, &pid, &conn, &words, e);
	vmm_argv_done(&argv);
	if (r < 0)
		return r;
	r = vmm_open(&vmm_qemu, conn, timeout_ms, &vm, e);
	if (r == 0)
		r = watch(vm, deadline, e);
	vmm_close(vm);
	status = end_child(pid);
	return r < 0 ? explain(r, status, words, e) : 0;
}

/* ---- What is remembered ---- */

static int hash_file(crypto_hash_sha256_state *h, const char *path, struct err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char block[65536];
	ssize_t n;

	if (fd < 0)
		return err_errno(e, -errno, "cannot open %s", path);
	while ((n = read(fd, block, sizeof(block))) > 0)
		crypto_hash_sha256_update(h, block, (size_t)n);
	return n < 0 ? err_errno(e, -errno, "cannot read %s", path) : 0;
}

static void hash_word(crypto_hash_sha256_state *h, const char *s)
{
	crypto_hash_sha256_update(h, (const unsigned char *)s, strlen(s) + 1);
}

static int note_key(const struct probe_conf *c, char ret[PROBE_KEY_HEX + 1], struct err *e)
{
	unsigned char digest[crypto_hash_sha256_BYTES];
	char cpu[MANIFEST_DIGEST_HEX + 1];
	crypto_hash_sha256_state h;
	struct utsname host = { 0 };
	const char *build = strrchr(c->vmm_tree, '/');
	int r = manifest_cpu_host(VMM_ACCEL_KVM, cpu, e);

	if (r < 0)
		return r;
	uname(&host);
	crypto_hash_sha256_init(&h);
	hash_word(&h, build ? build + 1 : c->vmm_tree);
	hash_word(&h, cpu);
	hash_word(&h, host.release);
	hash_word(&h, host.version);
	r = hash_file(&h, c->kernel, e);
	if (r < 0)
		return r;
	crypto_hash_sha256_final(&h, digest);
	str_hex(ret, digest, PROBE_KEY_HEX / 2);
	return 0;
}

/* A note: the accelerator's name, a blank, the reason, a newline. */
static bool recall(const char *path, struct probe_result *ret)
{
	autofree char *text = NULL;
	char *blank;
	size_t n;

	if (fd_read_file(AT_FDCWD, path, PROBE_NOTE_MAX, &text, &n) < 0)
		return false;
	blank = strchr(text, ' ');
	if (!blank || text[n - 1] != '\n')
		return false;
	text[n - 1] = '\0';
	*blank = '\0';
	if (vmm_accel_of(text, &ret->accel) < 0)
		return false;
	str_copy(ret->why, sizeof(ret->why), blank + 1);
	ret->remembered = true;
	return true;
}

static void remember(const char *dir, const char *path, const struct probe_result *res)
{
	char note[PROBE_NOTE_MAX];

	/* A note that cannot be written only costs another probe the next time. */
	if (fd_mkdir_p(dir, 0755) == 0 &&
	    str_format(note, sizeof(note), "%s %s\n", vmm_accel_names[res->accel], res->why) == 0)
		fd_write_file(AT_FDCWD, path, note, strlen(note), 0644);
}

/*
 * Is there a device at all that speaks the API? Linux, Documentation/virt/kvm/api.rst: version 12
 * for ever.
 */
static int kvm_present(char why[PROBE_WHY_MAX])
{
	autoclose int fd = open(VMM_KVM_DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		str_format(why, PROBE_WHY_MAX, "this machine has no usable %s (%s)", VMM_KVM_DEVICE,
			   strerror(errno));
		return -ENODEV;
	}
	if (ioctl(fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION) {
		str_format(why, PROBE_WHY_MAX, "%s does not speak KVM's API", VMM_KVM_DEVICE);
		return -ENODEV;
	}
	return 0;
}

static int decide(const struct probe_conf *c, struct probe_result *ret, struct err *e)
{
	char key[PROBE_KEY_HEX + 1], dir[PATH_MAX], path[PATH_MAX];
	struct err why = { 0 };
	int r;

	ret->accel = VMM_ACCEL_TCG;
	if (kvm_present(ret->why) < 0)
		return 0;
	r = note_key(c, key, e);
	if (r < 0)
		return r;
	if (str_format(dir, sizeof(dir), "%s/probe", c->cache_dir) < 0 ||
	    str_format(path, sizeof(path), "%s/%s", dir, key) < 0)
		return err_set(e, -ENAMETOOLONG, "the name of the cache folder is too long");
	if (recall(path, ret))
		return 0;
	r = probe_run(c, VMM_ACCEL_KVM, c->timeout_ms, &why);
	if (r == 0) {
		ret->accel = VMM_ACCEL_KVM;
		str_format(ret->why, sizeof(ret->why), "a probe VM with KVM reached its agent");
	} else {
		str_format(ret->why, sizeof(ret->why),
			   "%s is there, but a probe VM on it failed: %.120s", VMM_KVM_DEVICE,
			   why.text);
	}
	/* -EIO, -ECONNRESET: the VMM or its guest has ended. All else may be better the next time. */
	if (r == 0 || r == -EIO || r == -ECONNRESET)
		remember(dir, path, ret);
	return 0;
}

int probe_accel(const struct probe_conf *c, const char *wanted, struct probe_result *ret,
		struct err *e)
{
	const char *forced = getenv("SPACE_ACCEL");
	struct probe_result res = { 0 };
	int r = 0;

	if (forced && *forced)
		wanted = forced;
	if (str_eq(wanted, "auto")) {
		r = decide(c, &res, e);
	} else {
		if (vmm_accel_of(wanted, &res.accel) < 0)
			return err_set(e, -EINVAL,
				       "the accelerator is auto, kvm or tcg, not '%.32s'", wanted);
		if (res.accel == VMM_ACCEL_KVM && kvm_present(res.why) < 0)
			return err_set(e, -ENODEV, "KVM is demanded, but %s", res.why);
		res.forced = true;
		str_format(res.why, sizeof(res.why), "%s was demanded", vmm_accel_names[res.accel]);
	}
	if (r == 0)
		*ret = res;
	return r;
}
