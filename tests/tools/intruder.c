/*
 * intruder: takes the place of the VMM or of the bridge and does what it is told, one system call
 * at a time. It is put where their executable lies, so it runs exactly as they would: same
 * namespaces, root, uid, limits, system call filter.
 *
 * No libc: its start needs no system call. Descriptor 3 is a bound socket (it listens and takes one
 * connection after the other) or already a connection. On a connection: struct order, answered by
 * struct order. An argument whose bit is set in `pointers` is an offset into data. A call that ends
 * the process is seen as the end of the connection.
 */
#include <stdint.h>

#define DATA_BYTES 16384
#define LINK 3

struct order { int64_t nr, arg[6], pointers, result; unsigned char data[DATA_BYTES]; };

void _start(void);

static long call(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

enum {
	NR_READ = 0,
	NR_WRITE = 1,
	NR_CLOSE = 3,
	NR_LISTEN = 50,
	NR_ACCEPT4 = 288,
	NR_EXIT_GROUP = 231
};

/* All of it, or 0 at the end of the connection. */
static int move(long nr, long fd, struct order *o)
{
	unsigned long done = 0;

	while (done < sizeof(*o)) {
		long n = call(nr, fd, (long)((unsigned char *)o + done), (long)(sizeof(*o) - done),
			      0, 0, 0);

		if (n == -4)                     /* EINTR */
			continue;
		if (n <= 0)
			return 0;
		done += (unsigned long)n;
	}
	return 1;
}

static void serve(long fd)
{
	static struct order o;

	while (move(NR_READ, fd, &o)) {
		long a[6];

		for (int i = 0; i < 6; i++)
			a[i] = o.pointers >> i & 1 ? (long)(o.data + o.arg[i]) : (long)o.arg[i];
		o.result = call((long)o.nr, a[0], a[1], a[2], a[3], a[4], a[5]);
		if (!move(NR_WRITE, fd, &o))
			break;
	}
}

__attribute__((force_align_arg_pointer)) void _start(void)
{
	if (call(NR_LISTEN, LINK, 4, 0, 0, 0, 0) < 0) {
		serve(LINK);
		call(NR_EXIT_GROUP, 0, 0, 0, 0, 0, 0);
	}
	for (;;) {
		long fd = call(NR_ACCEPT4, LINK, 0, 0, 0, 0, 0);

		if (fd < 0)
			call(NR_EXIT_GROUP, 1, 0, 0, 0, 0, 0);
		serve(fd);
		call(NR_CLOSE, fd, 0, 0, 0, 0, 0);
	}
}
