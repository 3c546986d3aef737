#include "spaced-guest/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define NEW_ROOT "/root"
#define MODULES "/modules"
#define ORDER_MAX (64 << 10)
#define DISK_POLL_US 1000
#define FILES_MAX 65536                  /* descriptors, also of commands */

struct mount_point { const char *type, *path; unsigned long flags; const char *data; mode_t mode; };

static const struct mount_point early[] = {
	{ "devtmpfs", "/dev", MS_NOSUID, "mode=0755", 0755 },
	{ "proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, 0555 },
	{ "sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, 0555 },
};

/* /tmp stays on the disk: memory is scarcer, and what lies there survives a stop. */
static const struct mount_point late[] = {
	{ "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666", 0755 },
	{ "tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777", 01777 },
	{ "tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755,size=64m", 0755 },
	{ "cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, 0755 },
};

static const struct { const char *path, *target; } links[] = {
	{ "/dev/fd", "/proc/self/fd" },
	{ "/dev/stdin", "/proc/self/fd/0" },
	{ "/dev/stdout", "/proc/self/fd/1" },
	{ "/dev/stderr", "/proc/self/fd/2" },
};

/* Files of /proc/sys; a kernel that does not know one is fine. */
static const struct { const char *path, *value; } sysctls[] = {
	{ "/proc/sys/fs/protected_symlinks", "1" }, { "/proc/sys/fs/protected_hardlinks", "1" },
	{ "/proc/sys/fs/protected_regular", "2" }, { "/proc/sys/fs/protected_fifos", "1" },
	{ "/proc/sys/fs/inotify/max_user_watches", "524288" },
	{ "/proc/sys/fs/inotify/max_user_instances", "1024" },
	{ "/proc/sys/net/ipv4/ping_group_range", "0 2147483647" },
};

static int mount_all(const struct mount_point *m, size_t n, struct err *e)
{
	for (size_t i = 0; i < n; i++) {
		if (mkdir(m[i].path, m[i].mode) < 0 && errno != EEXIST)
			return err_errno(e, -errno, "cannot make %s", m[i].path);
		if (mount(m[i].type, m[i].path, m[i].type, m[i].flags, m[i].data) < 0 &&
		    errno != EBUSY)
			return err_errno(e, -errno, "cannot mount %s", m[i].path);
	}
	return 0;
}

int boot_early(struct err *e)
{
	return mount_all(early, ARRAY_LEN(early), e);
}

static int load_module(const char *name, struct err *e)
{
	char path[256];
	autoclose int fd = -1;

	if (str_format(path, sizeof(path), MODULES "/%s.ko", name) < 0)
		return err_set(e, -EINVAL, "a module's name is too long");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, -errno, "cannot open %s", path);
	if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
		return err_errno(e, -errno, "cannot load %s", path);
	unlink(path);                            /* the memory of the initramfs is the guest's */
	return 0;
}

/*
 * A device that this machine does not have leaves its module without use, or makes it fail: both
 * are fine.
 */
void boot_modules(void)
{
	autofree char *order = NULL;
	char *save, *line;

	if (fd_read_file(AT_FDCWD, MODULES "/order", ORDER_MAX, &order, NULL) < 0)
		return;
	for (line = strtok_r(order, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct err e = { 0 };

		if (load_module(line, &e) < 0)
			log_warn("module not loaded", F_ERR(&e));
	}
}

static int wait_for_disk(struct err *e)
{
	int64_t until = clock_mono_ms() + BOOT_DISK_WAIT_MS;
	struct stat st;

	while (stat(BOOT_DISK, &st) < 0) {
		if (clock_mono_ms() >= until)
			return err_set(e, -ENODEV, "there is no disk " BOOT_DISK);
		usleep(DISK_POLL_US);
	}
	return 0;
}

static int switch_root(struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(early); i++) {
		autofree char *to = x_asprintf(NEW_ROOT "%s", early[i].path);

		if (mkdir(to, early[i].mode) < 0 && errno != EEXIST)
			return err_errno(e, -errno, "cannot make %s", to);
		if (mount(early[i].path, to, NULL, MS_MOVE, NULL) < 0)
			return err_errno(e, -errno, "cannot move %s", early[i].path);
	}
	unlink("/init");
	unlink(MODULES "/order");
	if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
	    chdir("/") < 0)
		return err_errno(e, -errno, "cannot switch to the root image");
	return 0;
}

static void set_sysctls(void)
{
	for (size_t i = 0; i < ARRAY_LEN(sysctls); i++) {
		autoclose int fd = open(sysctls[i].path, O_WRONLY | O_CLOEXEC);

		if (fd >= 0 && write(fd, sysctls[i].value, strlen(sysctls[i].value)) < 0)
			log_debug("sysctl not set", F_STR("path", sysctls[i].path));
	}
}

int boot_root(struct err *e)
{
	struct rlimit files = { FILES_MAX, FILES_MAX };
	int r;

	r = wait_for_disk(e);
	if (r < 0)
		return r;
	mkdir(NEW_ROOT, 0755);
	/* As fstab says. What is deleted goes back to the node: its storage is promised more than once. */
	if (mount(BOOT_DISK, NEW_ROOT, "ext4", MS_NOATIME, "discard") < 0)
		return err_errno(e, -errno, "cannot mount " BOOT_DISK);
	r = switch_root(e);
	if (r == 0)
		r = mount_all(late, ARRAY_LEN(late), e);
	if (r < 0)
		return r;
	mkdir("/run/lock", 01777);
	chmod("/run/lock", 01777);
	for (size_t i = 0; i < ARRAY_LEN(links); i++)
		if (symlink(links[i].target, links[i].path) < 0 && errno != EEXIST)
			return err_errno(e, -errno, "cannot make %s", links[i].path);
	set_sysctls();
	setrlimit(RLIMIT_NOFILE, &files);
	return 0;
}
