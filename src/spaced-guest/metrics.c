#include "spaced-guest/metrics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"

#define PROC_MAX (64 << 10)
#define CPU_FIELDS 8 /* user nice system idle iowait irq softirq steal (proc(5)) */
#define CPU_TICKS_MIN 25 /* of all processors, 10 ms each */
#define MIB (1024 * 1024)

static uint64_t meminfo(const char *text, const char *name)
{
	const char *p = strstr(text, name);

	return p ? 1024 * strtoull(p + strlen(name), NULL, 10) : 0;
}

void metrics_sample(struct agent *a)
{
	autofree char *text = NULL;
	uint64_t all = 0, idle = 0, busy;
	char *p;

	if (fd_read_file(AT_FDCWD, "/proc/stat", PROC_MAX, &text, NULL) < 0 ||
	    strncmp(text, "cpu ", 4) != 0)
		return;
	p = text + 4;
	for (int i = 0; i < CPU_FIELDS; i++) {
		uint64_t v = strtoull(p, &p, 10);

		all += v;
		if (i == 3 || i == 4)
			idle += v;
	}
	busy = all - idle;
	/* Two calls in a short time would compare a few ticks, or none. */
	if (all - a->cpu_all < CPU_TICKS_MIN)
		return;
	a->cpu_pct = 100.0 * (double)(busy - a->cpu_busy) / (double)(all - a->cpu_all);
	a->cpu_all = all;
	a->cpu_busy = busy;
}

void metrics_handle(struct req *r, const char *body, size_t n)
{
	autofree char *mem = NULL;
	struct statvfs vfs = { 0 };
	uint64_t total, avail, cache, disk;
	struct buf b;

	if (fd_read_file(AT_FDCWD, "/proc/meminfo", PROC_MAX, &mem, NULL) < 0)
		mem = x_strdup("");
	total = meminfo(mem, "MemTotal:");
	avail = meminfo(mem, "MemAvailable:");
	cache = meminfo(mem, "\nCached:");
	statvfs("/", &vfs);
	disk = (uint64_t)vfs.f_blocks * vfs.f_frsize;
	metrics_sample(r->a);
	buf_init(&b, 1024);
	buf_putf(&b, "{\"ts\":%" PRId64 ",\"cpu_count\":%ld,\"cpu_used_pct\":%.2f,",
		 clock_wall_ms() / 1000, sysconf(_SC_NPROCESSORS_ONLN), r->a->cpu_pct);
	buf_putf(&b,
		 "\"mem_total\":%" PRIu64 ",\"mem_used\":%" PRIu64 ",\"mem_cache\":%" PRIu64 ",",
		 total, total - avail, cache);
	buf_putf(&b, "\"mem_total_mib\":%" PRIu64 ",\"mem_used_mib\":%" PRIu64 ",", total / MIB,
		 (total - avail) / MIB);
	buf_putf(&b, "\"disk_used\":%" PRIu64 ",\"disk_total\":%" PRIu64
		     ",\"idle_ms\":%" PRId64 "}",
		 disk - (uint64_t)vfs.f_bfree * vfs.f_frsize, disk, activity_idle_ms(r->a));
	req_answer_buf(r, 200, "application/json", &b);
}
