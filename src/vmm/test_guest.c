/*
 * The /init of the driver tests' guest: loads modules, opens the guest channel, and does what
 * single letters on it say.
 *
 *	e      echoes the next byte                 o      powers off
 *	r      reboots                              p      panics the kernel (SysRq)
 *	w      writes 1 MiB to the disk, fsyncs, answers 'k' (or 'E')
 *	c      writes "console-mark\n" to the console, answers 'k'
 *	t      answers 'k' when eth0 and the random generator's device are there, else 'E'
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DISK_BYTES (1 << 20)

static void load_modules(void)
{
	char name[64], path[96];
	FILE *f = fopen("/modules/order", "r");

	while (f && fscanf(f, "%63s", name) == 1) {
		int fd;

		snprintf(path, sizeof(path), "/modules/%s.ko", name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || syscall(SYS_finit_module, fd, "", 0) != 0)
			printf("module %s: failed\n", name);
		close(fd);
	}
}

static int open_port(void)
{
	char path[32];

	for (int tries = 0; tries < 6000; tries++) {
		for (int i = 0; i < 4; i++) {
			int fd;

			snprintf(path, sizeof(path), "/dev/vport%dp1", i);
			fd = open(path, O_RDWR | O_CLOEXEC);
			if (fd >= 0)
				return fd;
		}
		usleep(10000);
	}
	return -1;
}

static char write_disk(void)
{
	static char block[DISK_BYTES];
	int fd = open("/dev/vda", O_WRONLY | O_CLOEXEC);
	char answer = 'E';

	memset(block, 'w', sizeof(block));
	if (fd >= 0 && write(fd, block, sizeof(block)) == DISK_BYTES && fsync(fd) == 0)
		answer = 'k';
	close(fd);
	return answer;
}

static char check_devices(void)
{
	char buf[16];
	int rng = open("/dev/hwrng", O_RDONLY | O_CLOEXEC);
	char answer = access("/sys/class/net/eth0/address", R_OK) == 0 && rng >= 0 &&
				      read(rng, buf, sizeof(buf)) > 0 ? 'k' : 'E';

	close(rng);
	return answer;
}

static void panic(void)
{
	int fd = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);

	if (write(fd, "c", 1) < 0)
		printf("no sysrq\n");
}

static void obey(int port, char order)
{
	char answer = 0;

	switch (order) {
	case 'e':
		if (read(port, &answer, 1) != 1)
			return;
		break;
	case 'w':
		answer = write_disk();
		break;
	case 'c':
		printf("console-mark\n");
		answer = 'k';
		break;
	case 't':
		answer = check_devices();
		break;
	case 'o':
		reboot(RB_POWER_OFF);
		break;
	case 'r':
		reboot(RB_AUTOBOOT);
		break;
	case 'p':
		panic();
		break;
	}
	if (answer && write(port, &answer, 1) != 1)
		printf("port: cannot write\n");
}

int main(void)
{
	int console, port;
	char order;

	mkdir("/dev", 0755);
	mount("dev", "/dev", "devtmpfs", 0, "");
	mount("proc", "/proc", "proc", 0, "");
	mount("sys", "/sys", "sysfs", 0, "");
	console = open("/dev/console", O_RDWR);
	for (int i = 0; i < 3; i++)
		dup2(console, i);
	setvbuf(stdout, NULL, _IONBF, 0);
	load_modules();
	port = open_port();
	printf("test guest: port %s\n", port < 0 ? "missing" : "open");
	/* While no host is attached read gives 0 bytes: wait a little, the channel comes back. */
	for (;;) {
		if (read(port, &order, 1) == 1)
			obey(port, order);
		else
			usleep(5000);
	}
}
