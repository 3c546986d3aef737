/*
 * The probe VM; see probe.h.
 *
 * Theory of operation
 *
 * The child unshares mount, network and IPC namespaces, binds the VMM's tree on itself, binds kernel, initrd and /dev/kvm on
 * the empty files that the tree has for them, pivots into it, drops to the uid, and executes. The parent has connected
 * to the control socket before (the connection waits in the backlog until the VMM accepts it), so nobody else can be first.
 * The VM is over when its agent opened the port, when it stopped for whatever reason, or when the time is up; then the
 * child is killed and reaped, and the namespaces go with it.
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
#include <sys/stat.h>
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
#define KVM_DEVICE "/dev/kvm"

/* ---- The child ---- */

static int bind_file(const char *source, const char *target)
{
	autoclose int fd = open(target, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -errno;
	return mount(source, target, NULL, MS_BIND, NULL) < 0 ? -errno : 0;
}

static int enter_tree(const struct probe_conf *c, enum vmm_accel accel)
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
	if (r == 0 && accel == VMM_ACCEL_KVM)
		r = bind_file(KVM_DEVICE, "dev/kvm");
	if (r < 0)
		return r;
	/* pivot_root(2): with both the same, the old root lies over the new one and is unmounted at once. */
	if (syscall(SYS_pivot_root, ".", ".") == 0)
		return umount2(".", MNT_DETACH) < 0 || chdir("/") < 0 ? -errno : 0;
	/* EINVAL: our own root is no mount point (we are in a chroot). No descriptor leads out of this one. */
	if (errno != EINVAL || chroot(".") < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

static int drop_rights(const struct probe_conf *c, gid_t kvm_gid)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_CORE, &none);
	if (setgroups(1, &kvm_gid) < 0 || setresgid(c->uid, c->uid, c->uid) < 0 ||
	    setresuid(c->uid, c->uid, c->uid) < 0)
		return -errno;
	/* After the change of uid, which clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

/* Puts descriptors where the VMM looks for them: control at its number, nothing above. */
static int place_fds(int listener)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return -errno;
	/* In this order: the listener may itself stand at 0 to 2. */
	if (listener == VMM_FD_CONTROL)
		fd_set_cloexec(listener, false);
	else if (dup2(listener, VMM_FD_CONTROL) < 0)
		return -errno;
	for (int i = 0; i < 3; i++) {
		if (null != i && dup2(null, i) < 0)
			return -errno;
	}
	return proc_close_fds_from(VMM_FD_CONTROL + 1);
}

/* The step that failed as exit status; the VMM itself ends with 0 or 1. */
enum { CHILD_FDS = 100, CHILD_TREE, CHILD_RIGHTS, CHILD_EXEC };

static const char *const child_steps[] = {
	[CHILD_FDS - CHILD_FDS] = "its descriptors could not be placed",
	[CHILD_TREE - CHILD_FDS] = "its folder could not be entered",
	[CHILD_RIGHTS - CHILD_FDS] = "its rights could not be dropped",
	[CHILD_EXEC - CHILD_FDS] = "the VMM could not be executed",
};

static void __attribute__((noreturn)) child(const struct probe_conf *c, enum vmm_accel accel, gid_t kvm_gid,
					    const struct vmm_argv *argv, int listener)
{
	char *const env[] = { NULL };
	char program[64];

	setsid();
	if (place_fds(listener) < 0)
		_exit(CHILD_FDS);
	if (enter_tree(c, accel) < 0)
		_exit(CHILD_TREE);
	if (drop_rights(c, kvm_gid) < 0)
		_exit(CHILD_RIGHTS);
	str_format(program, sizeof(program), "/%s", vmm_qemu.program);
	execve(program, argv->argv, env);
	_exit(CHILD_EXEC);
}

/* ---- The parent ---- */

/* A listening socket with a name that the kernel chose (unix(7), autobind), and a connection to it. */
static int control_pair(int *ret_listener, int *ret_conn)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	socklen_t n = sizeof(a);
	autoclose int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	autoclose int conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0 || conn < 0)
		return -errno;
	if (bind(listener, (struct sockaddr *)&a, sizeof(a.sun_family)) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&a, &n) < 0 ||
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
	return err_set(e, -EIO, "its guest died before it reached its agent (%s)", vmm_run_names[state]);
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

/* Forks the child. Here only the child holds the listener afterwards, so that its death ends the connection. */
static int start(const struct probe_conf *c, enum vmm_accel accel, const struct vmm_argv *argv, pid_t *ret_pid,
		 int *ret_conn, struct err *e)
{
	struct stat st = { .st_gid = c->uid };
	autoclose int listener = -1, conn = -1;
	int r = 0;
	pid_t pid;

	if (accel == VMM_ACCEL_KVM && stat(KVM_DEVICE, &st) < 0)
		return err_errno(e, -errno, KVM_DEVICE);
	r = control_pair(&listener, &conn);
	if (r < 0)
		return err_errno(e, r, "no control socket");
	pid = fork();
	if (pid < 0)
		return err_errno(e, -errno, "no process");
	if (pid == 0)
		child(c, accel, st.st_gid, argv, listener);
	*ret_pid = pid;
	*ret_conn = TAKE_FD(conn);
	return 0;
}

int probe_run(const struct probe_conf *c, enum vmm_accel accel, int timeout_ms, struct err *e)
{
	struct vmm_spec spec = { .mode = VMM_PROBE, .accel = accel, .memory_mib = PROBE_MEMORY_MIB, .vcpus = 1 };
	int64_t deadline = clock_mono_ms() + timeout_ms;
	struct vmm_argv argv = { 0 };
	struct vmm *vm = NULL;
	int conn = -1, status, r;
	pid_t pid = -1;

	r = vmm_tsc_khz(&spec.tsc_khz);
	if (r < 0)
		return err_errno(e, r, "the rate of the time-stamp counter cannot be measured");
	r = vmm_argv(&spec, &argv, e);
	if (r < 0)
		return r;
	r = start(c, accel, &argv, &pid, &conn, e);
	vmm_argv_done(&argv);
	if (r < 0)
		return r;
	r = vmm_open(&vmm_qemu, conn, timeout_ms, &vm, e);
	if (r == 0)
		r = watch(vm, deadline, e);
	vmm_close(vm);
	status = end_child(pid);
	if (r < 0 && WIFEXITED(status) && WEXITSTATUS(status) >= CHILD_FDS && WEXITSTATUS(status) <= CHILD_EXEC)
		return err_set(e, -EIO, "%s", child_steps[WEXITSTATUS(status) - CHILD_FDS]);
	return r;
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

/* Is there a device at all that speaks the API? Linux, Documentation/virt/kvm/api.rst: version 12 for ever. */
static int kvm_present(char why[PROBE_WHY_MAX])
{
	autoclose int fd = open(KVM_DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		str_format(why, PROBE_WHY_MAX, "this machine has no usable %s (%s)", KVM_DEVICE, strerror(errno));
		return -ENODEV;
	}
	if (ioctl(fd, KVM_GET_API_VERSION, 0) != KVM_API_VERSION) {
		str_format(why, PROBE_WHY_MAX, "%s does not speak KVM's API", KVM_DEVICE);
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
	r = probe_run(c, VMM_ACCEL_KVM, PROBE_TIMEOUT_MS, &why);
	if (r == 0) {
		ret->accel = VMM_ACCEL_KVM;
		str_format(ret->why, sizeof(ret->why), "a probe VM with KVM reached its agent");
	} else {
		str_format(ret->why, sizeof(ret->why), "%s is there, but a probe VM on it failed: %.120s",
			   KVM_DEVICE, why.text);
	}
	remember(dir, path, ret);
	return 0;
}

int probe_accel(const struct probe_conf *c, const char *wanted, struct probe_result *ret, struct err *e)
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
			return err_set(e, -EINVAL, "the accelerator is auto, kvm or tcg, not '%.32s'", wanted);
		if (res.accel == VMM_ACCEL_KVM && kvm_present(res.why) < 0)
			return err_set(e, -ENODEV, "KVM is demanded, but %s", res.why);
		res.forced = true;
		str_format(res.why, sizeof(res.why), "%s was demanded", vmm_accel_names[res.accel]);
	}
	if (r == 0)
		*ret = res;
	return r;
}
