/*
 * The driver against real virtual machines: Debian's kernel with test_guest.c as its /init, QEMU in
 * a small jail (its own tree, mount namespace and uid). One cold boot makes a state; most tests
 * restore it.
 *
 *	test_qemu IMAGE_SCRIPTS TEST_GUEST       needs root
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/proc.h"
#include "base/str.h"
#include "vmm/probe.h"
#include "vmm/vmm.h"

#define MEMORY_MIB 128
#define DISK_BYTES (8 << 20)
#define TEST_UID 65534
#define WAIT_MS 60000            /* a guest on a busy machine */

static char dir[] = "/tmp/vmm-test.XXXXXX";
static char kernel_dir[PATH_MAX], tree[PATH_MAX], kernel[PATH_MAX + 16], initrd[64];
static int state_fd = -1;        /* device state of the cold boot; its memory is dir/mem */

struct vm {
	pid_t pid;
	struct vmm *vmm;
	int channel;
	char disk[64];
};

/* ---- Helpers ---- */

/* Runs a program and gives the first line of its output. */
static void run(char *const argv[], char *ret, size_t size)
{
	int p[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		dup2(p[1], 1);
		execv(argv[0], argv);
		_exit(127);
	}
	close(p[1]);
	n = fd_read_full(p[0], ret, size - 1, 300000);
	close(p[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("%s failed", argv[0]);
	assert_true(n >= 0);
	ret[n] = '\0';
	ret[strcspn(ret, "\n")] = '\0';
}

static void make_file(const char *path, size_t bytes, mode_t mode, uid_t uid)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fchown(fd, uid, uid), 0);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static int open_tap(void)
{
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, TUNSETIFF, &r), 0);
	return fd;
}

static int listener(struct sockaddr_un *a, socklen_t *n)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*n = sizeof(*a);
	assert_int_equal(bind(fd, (struct sockaddr *)a, sizeof(a->sun_family)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)a, n), 0);
	return fd;
}

static int dial(const struct sockaddr_un *a, socklen_t n)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (const struct sockaddr *)a, n), 0);
	return fd;
}

static void bind_on(const char *source, const char *target)
{
	if (mount(source, target, NULL, MS_BIND, NULL) < 0)
		_exit(101);
}

static void __attribute__((noreturn))
vm_child(const struct vmm_argv *argv, const char *mem, const int fds[4])
{
	char *const env[] = { NULL };

	/* First above all numbers that are used, then down. */
	for (int i = 0; i < 4; i++)
		dup2(fds[i], 100 + i);
	for (int i = 0; i < 4; i++)
		dup2(100 + i, VMM_FD_CONTROL + i);
	proc_close_fds_from(VMM_FD_DISK + 1);
	if (unshare(CLONE_NEWNS | CLONE_NEWNET) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount(tree, tree, NULL, MS_BIND, NULL) < 0 || chdir(tree) < 0)
		_exit(100);
	bind_on(mem, "mem");
	bind_on(kernel, "vmlinuz");
	bind_on(initrd, "initrd.gz");
	if (chroot(".") < 0 || setresgid(TEST_UID, TEST_UID, TEST_UID) < 0 ||
	    setresuid(TEST_UID, TEST_UID, TEST_UID) < 0)
		_exit(102);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	execve("/qemu-system-x86_64", argv->argv, env);
	_exit(103);
}

static void vm_start(struct vm *vm, enum vmm_mode mode, const char *mem, const char *disk)
{
	struct vmm_spec spec = {
		.mode = mode, .accel = VMM_ACCEL_TCG, .memory_mib = MEMORY_MIB, .vcpus = 1
	};
	struct sockaddr_un qmp_at, channel_at;
	socklen_t qmp_n, channel_n;
	struct vmm_argv argv;
	struct err e = { 0 };
	int fds[4], conn;

	assert_int_equal(vmm_tsc_khz(&spec.tsc_khz), 0);
	assert_int_equal(vmm_argv(&spec, &argv, NULL), 0);
	fds[0] = listener(&qmp_at, &qmp_n);
	fds[1] = listener(&channel_at, &channel_n);
	fds[2] = open_tap();
	fds[3] = open(disk, O_RDWR | O_CLOEXEC);
	assert_true(fds[3] >= 0);
	conn = dial(&qmp_at, qmp_n);
	vm->channel = dial(&channel_at, channel_n);
	vm->pid = fork();
	if (vm->pid == 0)
		vm_child(&argv, mem, fds);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	vmm_argv_done(&argv);
	if (vmm_open(&vmm_qemu, conn, WAIT_MS, &vm->vmm, &e) < 0)
		fail_msg("%s", e.text);
}

static void vm_end(struct vm *vm)
{
	struct err e = { 0 };
	int status;

	if (vmm_quit(vm->vmm, WAIT_MS, &e) < 0)
		fail_msg("%s", e.text);
	vmm_close(vm->vmm);
	close(vm->channel);
	assert_int_equal(waitpid(vm->pid, &status, 0), vm->pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void order(struct vm *vm, const char *what)
{
	assert_int_equal(fd_write_all(vm->channel, what, strlen(what), WAIT_MS), 0);
}

static void ask(struct vm *vm, const char *what, char want)
{
	char got = '?';

	order(vm, what);
	assert_int_equal(fd_read_full(vm->channel, &got, 1, WAIT_MS), 1);
	assert_int_equal(got, want);
}

static void expect_status(struct vm *vm, enum vmm_run_state want)
{
	enum vmm_run_state got;
	struct err e = { 0 };

	assert_int_equal(vmm_status(vm->vmm, &got, WAIT_MS, &e), 0);
	assert_string_equal(vmm_run_names[got], vmm_run_names[want]);
}

/* Waits until an event of this kind has come; others are passed over. */
static struct vmm_event expect_event(struct vm *vm, enum vmm_event_kind kind)
{
	int64_t deadline = clock_mono_ms() + WAIT_MS;
	struct vmm_event ev;

	for (;;) {
		struct pollfd p = { .fd = vmm_fd(vm->vmm), .events = POLLIN };

		while (vmm_next_event(vm->vmm, &ev)) {
			if (ev.kind == kind)
				return ev;
		}
		if (clock_mono_ms() > deadline || poll(&p, 1, WAIT_MS) != 1)
			fail_msg("no event %s", vmm_event_names[kind]);
		assert_int_equal(vmm_poll(vm->vmm, NULL), 0);
	}
}

static void path_of(char dst[64], const char *name)
{
	str_format(dst, 64, "%s/%s", dir, name);
}

/* A restored VM that runs, with an empty disk of its own. */
static void vm_restore(struct vm *vm)
{
	struct err e = { 0 };
	char mem[64];

	path_of(mem, "mem");
	path_of(vm->disk, "disk");
	make_file(vm->disk, DISK_BYTES, 0600, TEST_UID);
	vm_start(vm, VMM_RESTORE, mem, vm->disk);
	expect_status(vm, VMM_RUN_INCOMING);
	assert_int_equal(lseek(state_fd, 0, SEEK_SET), 0);
	if (vmm_load(vm->vmm, state_fd, WAIT_MS, &e) < 0)
		fail_msg("%s", e.text);
	expect_status(vm, VMM_RUN_PAUSED);
	assert_int_equal(vmm_cont(vm->vmm, WAIT_MS, &e), 0);
	expect_status(vm, VMM_RUN_RUNNING);
}

static uint64_t hash_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t h = 14695981039346656037u;
	static uint64_t block[8192];
	ssize_t n;

	assert_true(fd >= 0);
	while ((n = read(fd, block, sizeof(block))) > 0) {
		for (size_t i = 0; i < (size_t)n / 8; i++)
			h = (h ^ block[i]) * 1099511628211u;
	}
	close(fd);
	return h;
}

/* Saves into a memfd and gives a read-only descriptor of it. */
static int save(struct vm *vm)
{
	char path[64];
	struct err e = { 0 };
	struct stat st;
	int mem = memfd_create("state", MFD_CLOEXEC), out, in;

	str_format(path, sizeof(path), "/proc/self/fd/%d", mem);
	out = open(path, O_WRONLY | O_CLOEXEC);
	in = open(path, O_RDONLY | O_CLOEXEC);
	if (vmm_save(vm->vmm, out, WAIT_MS, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(fstat(in, &st), 0);
	assert_in_range(st.st_size, 8192, VMM_STATE_BYTES_MAX);
	close(out);
	close(mem);
	return in;
}

/* ---- Tests; the first makes what the others restore ---- */

static void test_boot_and_save(void **state)
{
	struct vm vm;
	struct err e = { 0 };
	char mem[64], *text;
	size_t n;

	path_of(mem, "mem");
	path_of(vm.disk, "disk");
	make_file(mem, (size_t)MEMORY_MIB << 20, 0600, TEST_UID);
	make_file(vm.disk, DISK_BYTES, 0600, TEST_UID);
	vm_start(&vm, VMM_TEMPLATE, mem, vm.disk);
	expect_status(&vm, VMM_RUN_RUNNING);
	ask(&vm, "ex", 'x');
	ask(&vm, "t", 'k');
	ask(&vm, "w", 'k');
	ask(&vm, "c", 'k');
	assert_int_equal(vmm_console(vm.vmm, &text, &n, WAIT_MS, &e), 0);
	assert_non_null(memmem(text, n, "test guest: port open", 21));
	assert_non_null(memmem(text, n, "console-mark", 12));
	free(text);
	assert_int_equal(vmm_console(vm.vmm, &text, &n, WAIT_MS, &e), 0);
	assert_int_equal(n, 0);
	free(text);

	/* Only a stopped one can be saved; it goes on afterwards. */
	assert_int_equal(vmm_save(vm.vmm, 1, WAIT_MS, &e), -EBUSY);
	assert_int_equal(vmm_stop(vm.vmm, WAIT_MS, &e), 0);
	expect_event(&vm, VMM_EV_STOP);
	assert_int_equal(vmm_stop(vm.vmm, WAIT_MS, &e), 0);
	close(save(&vm));
	assert_int_equal(vmm_cont(vm.vmm, WAIT_MS, &e), 0);
	ask(&vm, "ey", 'y');
	assert_int_equal(vmm_stop(vm.vmm, WAIT_MS, &e), 0);
	state_fd = save(&vm);
	vm_end(&vm);
	assert_int_equal(chmod(mem, 0444), 0);
	assert_int_equal(chown(mem, 0, 0), 0);
}

static void test_restore(void **state)
{
	uint64_t before;
	struct vm vm;
	char mem[64];
	int next;

	path_of(mem, "mem");
	before = hash_file(mem);
	vm_restore(&vm);
	ask(&vm, "ez", 'z');
	ask(&vm, "t", 'k');
	ask(&vm, "w", 'k');
	/*
	 * A client of the control socket leaves and comes again; so does one of a restored process'
	 * child state.
	 */
	assert_int_equal(vmm_stop(vm.vmm, WAIT_MS, NULL), 0);
	next = save(&vm);
	close(next);
	assert_int_equal(vmm_cont(vm.vmm, WAIT_MS, NULL), 0);
	ask(&vm, "ea", 'a');
	vm_end(&vm);
	assert_true(hash_file(mem) == before);
}

static void test_guest_ends(void **state)
{
	static const struct {
		const char *order;
		enum vmm_event_kind event;
		enum vmm_run_state state;
	} cases[] = {
		{ "o", VMM_EV_GUEST_OFF, VMM_RUN_OFF },
		{ "r", VMM_EV_GUEST_RESET, VMM_RUN_OFF },
		{ "p", VMM_EV_PANIC, VMM_RUN_PANICKED },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct vm vm;

		vm_restore(&vm);
		order(&vm, cases[i].order);
		expect_event(&vm, cases[i].event);
		expect_status(&vm, cases[i].state);
		vm_end(&vm);
	}
}

static void test_vmm_dies(void **state)
{
	enum vmm_run_state run;
	struct err e = { 0 };
	struct vm vm;

	vm_restore(&vm);
	kill(vm.pid, SIGKILL);
	assert_int_equal(waitpid(vm.pid, NULL, 0), vm.pid);
	assert_int_equal(vmm_status(vm.vmm, &run, WAIT_MS, &e), -ECONNRESET);
	assert_int_equal(vmm_poll(vm.vmm, &e), -ECONNRESET);
	vmm_close(vm.vmm);
	close(vm.channel);
}

/* States that are empty, cut, flipped in the head, and no state at all. */
static void test_bad_states(void **state)
{
	char head[4096], name[64];

	assert_int_equal(pread(state_fd, head, sizeof(head), 0), sizeof(head));
	for (int i = 0; i < 4; i++) {
		struct err e = { 0 };
		struct vm vm;
		int fd, in;

		path_of(name, "bad");
		fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		head[0] = (char)(i == 2 ? 'X' : 'Q');
		if (i == 3)
			memset(head, 0, sizeof(head));
		assert_int_equal(fd_write_all(fd, head, i == 0 ? 0 : sizeof(head), WAIT_MS), 0);
		in = open(name, O_RDONLY | O_CLOEXEC);
		path_of(name, "mem");
		path_of(vm.disk, "disk");
		make_file(vm.disk, DISK_BYTES, 0600, TEST_UID);
		vm_start(&vm, VMM_RESTORE, name, vm.disk);
		assert_int_equal(vmm_load(vm.vmm, in, WAIT_MS, &e), -EBADMSG);
		assert_true(strlen(e.text) > 40);
		expect_status(&vm, VMM_RUN_INCOMING);
		vm_end(&vm);
		close(in);
		close(fd);
	}
}

/*
 * The host's disk is full: the VM stops with an event, nothing is lost, and it goes on when there
 * is space.
 */
static void test_disk_full(void **state)
{
	struct err e = { 0 };
	struct vmm_event ev;
	char place[64], mem[64];
	struct vm vm;

	path_of(place, "small");
	path_of(mem, "mem");
	assert_int_equal(mkdir(place, 0755), 0);
	assert_int_equal(mount("small", place, "tmpfs", 0, "size=256k"), 0);
	str_format(vm.disk, sizeof(vm.disk), "%s/disk", place);
	make_file(vm.disk, DISK_BYTES, 0600, TEST_UID);
	vm_start(&vm, VMM_RESTORE, mem, vm.disk);
	assert_int_equal(lseek(state_fd, 0, SEEK_SET), 0);
	assert_int_equal(vmm_load(vm.vmm, state_fd, WAIT_MS, &e), 0);
	assert_int_equal(vmm_cont(vm.vmm, WAIT_MS, &e), 0);
	order(&vm, "w");
	ev = expect_event(&vm, VMM_EV_IO_ERROR);
	assert_true(ev.no_space);
	expect_status(&vm, VMM_RUN_IO_ERROR);
	close(save(&vm));
	assert_int_equal(mount("small", place, "tmpfs", MS_REMOUNT, "size=16m"), 0);
	assert_int_equal(vmm_cont(vm.vmm, WAIT_MS, &e), 0);
	ask(&vm, "", 'k');
	ask(&vm, "eb", 'b');
	vm_end(&vm);
	assert_int_equal(umount(place), 0);
	assert_int_equal(rmdir(place), 0);
}

/* A cold boot whose memory lies over a file of zeros that it may only read. */
static void test_private_boot(void **state)
{
	char zero[64];
	struct stat st;
	struct vm vm;

	path_of(zero, "zero");
	path_of(vm.disk, "disk");
	make_file(zero, (size_t)MEMORY_MIB << 20, 0444, 0);
	make_file(vm.disk, DISK_BYTES, 0600, TEST_UID);
	vm_start(&vm, VMM_BOOT, zero, vm.disk);
	ask(&vm, "ec", 'c');
	ask(&vm, "t", 'k');
	vm_end(&vm);
	assert_int_equal(stat(zero, &st), 0);
	assert_int_equal(st.st_blocks, 0);
}

static void test_probe(void **state)
{
	struct probe_conf c = { .vmm_tree = tree,
				.kernel = kernel,
				.initrd = initrd,
				.cache_dir = dir,
				.uid = TEST_UID,
				.timeout_ms = 1 };
	struct probe_result a, b;
	struct err e = { 0 };
	char junk[64];

	if (probe_run(&c, VMM_ACCEL_TCG, WAIT_MS, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(probe_run(&c, VMM_ACCEL_TCG, 400, &e), -ETIMEDOUT);
	/* A kernel that is none: QEMU or its guest ends, and that is said. */
	path_of(junk, "zero");
	c.kernel = junk;
	assert_true(probe_run(&c, VMM_ACCEL_TCG, 3000, &e) < 0);
	assert_true(e.text[0] != '\0');
	c.kernel = kernel;
	c.vmm_tree = "/nonexistent";
	assert_int_equal(probe_run(&c, VMM_ACCEL_TCG, WAIT_MS, &e), -EIO);
	assert_non_null(strstr(e.text, "folder"));
	c.vmm_tree = tree;

	unsetenv("SPACE_ACCEL");
	/* Too busy to come to an end: nothing to be remembered. */
	assert_int_equal(probe_accel(&c, "auto", &a, &e), 0);
	assert_true(a.accel == VMM_ACCEL_TCG);
	c.timeout_ms = PROBE_TIMEOUT_MS;
	assert_int_equal(probe_accel(&c, "auto", &a, &e), 0);
	assert_false(a.remembered || a.forced);
	print_message("auto: %s: %s\n", vmm_accel_names[a.accel], a.why);
	assert_int_equal(probe_accel(&c, "auto", &b, &e), 0);
	assert_int_equal(b.accel, a.accel);
	assert_string_equal(b.why, a.why);
	if (access("/dev/kvm", R_OK | W_OK) == 0)
		assert_true(b.remembered);
	assert_int_equal(probe_accel(&c, "tcg", &a, &e), 0);
	assert_true(a.accel == VMM_ACCEL_TCG && a.forced);
	setenv("SPACE_ACCEL", "tcg", 1);
	assert_int_equal(probe_accel(&c, "kvm", &a, &e), 0);
	assert_true(a.accel == VMM_ACCEL_TCG && a.forced);
	setenv("SPACE_ACCEL", "hvf", 1);
	assert_int_equal(probe_accel(&c, "auto", &a, &e), -EINVAL);
	unsetenv("SPACE_ACCEL");
}

static char *image_scripts, *guest;

static int setup(void **state)
{
	char script[PATH_MAX], out[PATH_MAX];

	assert_non_null(mkdtemp(dir));
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(unshare(CLONE_NEWNS | CLONE_NEWNET), 0);
	assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	str_format(script, sizeof(script), "%s/vmm.sh", image_scripts);
	run((char *[]){ script, NULL }, tree, sizeof(tree));
	str_format(script, sizeof(script), "%s/kernel.sh", image_scripts);
	run((char *[]){ script, NULL }, kernel_dir, sizeof(kernel_dir));
	str_format(kernel, sizeof(kernel), "%s/vmlinuz", kernel_dir);
	path_of(initrd, "initrd.gz");
	str_format(script, sizeof(script), "%s/initramfs.sh", image_scripts);
	run((char *[]){ script, kernel_dir, guest, initrd, NULL }, out, sizeof(out));
	return 0;
}

static int teardown(void **state)
{
	char out[16];

	fd_close(state_fd);
	run((char *[]){ "/bin/rm", "-r", dir, NULL }, out, sizeof(out));
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_boot_and_save), cmocka_unit_test(test_restore),
		cmocka_unit_test(test_guest_ends),    cmocka_unit_test(test_vmm_dies),
		cmocka_unit_test(test_bad_states),    cmocka_unit_test(test_disk_full),
		cmocka_unit_test(test_private_boot),  cmocka_unit_test(test_probe),
	};

	if (argc != 3) {
		fprintf(stderr, "usage: test_qemu IMAGE_SCRIPTS TEST_GUEST\n");
		return 2;
	}
	image_scripts = argv[1];
	guest = argv[2];
	if (geteuid() != 0) {
		printf("needs root: skipped\n");
		return 77;
	}
	/* What a test mounts goes with this process, however it ends. */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return 2;
	return cmocka_run_group_tests(tests, setup, teardown);
}
