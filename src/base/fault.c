/*
 * Theory of operation. The table below is a copy of the file as it was at the last look. It is
 * shared by the loop's thread and the workers and guarded by one flag that is held for a few
 * instructions, or while the file (a few lines) is read; nothing is logged and nobody sleeps while
 * it is held. A program without fault_open (the guest) pays one load. A file that is not trusted
 * (owner, mode, kind) counts as empty.
 */
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define FAULT_MAX 64                 /* further lines are ignored */
#define FAULT_NAME_MAX 64
#define FAULT_FILE_MAX 16384
#define FAULT_LOOK_MS 100
#define FAULT_DELAY_MAX_MS 600000

enum fault_action { FAULT_CRASH, FAULT_ERROR, FAULT_DELAY, FAULT_ACTION_COUNT };

static const struct {
	const char *name;
	uint64_t arg_max;            /* 0 = takes no argument */
} fault_actions[] = {
	[FAULT_CRASH] = { "crash", 0 },
	[FAULT_ERROR] = { "error", 4095 },
	[FAULT_DELAY] = { "delay", FAULT_DELAY_MAX_MS },
};
_Static_assert(ARRAY_LEN(fault_actions) == FAULT_ACTION_COUNT, "every action has a row");

struct fault_point {
	char name[FAULT_NAME_MAX];
	enum fault_action action;
	int arg;
	uint64_t left;
};

/* What tells that a file is another one than at the last look. */
struct fault_stamp {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime, ctime;
};

static char fault_path[PATH_MAX], fault_shift_path[PATH_MAX], fault_log_path[PATH_MAX];
static const char *fault_prog = "";
static atomic_bool fault_opened;
static atomic_flag fault_lock = ATOMIC_FLAG_INIT;
static _Atomic int64_t fault_look_ms;
static _Atomic int fault_n;
static struct fault_point fault_table[FAULT_MAX];
static struct fault_stamp fault_stamp, fault_shift_stamp;

static void fault_take_lock(void)
{
	while (atomic_flag_test_and_set_explicit(&fault_lock, memory_order_acquire))
		sched_yield();
}

static void fault_drop_lock(void)
{
	atomic_flag_clear_explicit(&fault_lock, memory_order_release);
}

/* 1 = changed and read, 1 with *ret NULL = not there or not trusted, 0 = as before. */
static int fault_read(const char *path, struct fault_stamp *last, char **ret)
{
	autoclose int fd = -1;
	struct fault_stamp now = { 0 };
	struct stat st;

	*ret = NULL;
	if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 ||
	    (st.st_mode & 022)) {
		memset(last, 0, sizeof(*last));
		return 1;
	}
	now.dev = st.st_dev;
	now.ino = st.st_ino;
	now.size = st.st_size;
	now.mtime = st.st_mtim;
	now.ctime = st.st_ctim;
	if (memcmp(&now, last, sizeof(now)) == 0)
		return 0;
	*last = now;
	*ret = x_alloc(FAULT_FILE_MAX + 1);
	if (fd_read_full(fd, *ret, FAULT_FILE_MAX, 1000) < 0)
		(*ret)[0] = '\0';
	return 1;
}

static int fault_parse_line(char *line, struct fault_point *p)
{
	char *save = NULL, *name = strtok_r(line, " \t", &save),
	     *action = strtok_r(NULL, " \t", &save);
	char *word = strtok_r(NULL, " \t", &save);
	uint64_t v = 0;
	int i;

	if (!name || name[0] == '#' || !action || str_copy(p->name, sizeof(p->name), name) < 0)
		return -EINVAL;
	for (i = 0; i < FAULT_ACTION_COUNT && !str_eq(action, fault_actions[i].name); i++)
		;
	if (i == FAULT_ACTION_COUNT)
		return -EINVAL;
	p->action = (enum fault_action)i;
	if (fault_actions[i].arg_max) {
		if (!word || str_to_u64(word, fault_actions[i].arg_max, &v) < 0 || v == 0)
			return -EINVAL;
		word = strtok_r(NULL, " \t", &save);
	}
	p->arg = (int)v;
	p->left = UINT64_MAX;
	if (word && str_to_u64(word, UINT64_MAX, &p->left) < 0)
		return -EINVAL;
	return 0;
}

static void fault_parse(char *text)
{
	char *save = NULL;
	int n = 0;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line && n < FAULT_MAX;
	     line = strtok_r(NULL, "\n", &save))
		if (fault_parse_line(line, &fault_table[n]) == 0)
			n++;
	atomic_store(&fault_n, n);
}

static void fault_parse_shift(const char *text)
{
	bool minus = text && text[0] == '-';
	uint64_t v = 0;

	if (text)
		text += minus;
	if (text && str_to_u64_n(text, strcspn(text, "\n"), INT64_MAX / 4, &v) < 0)
		v = 0;
	clock_set_shift_ms(minus ? -(int64_t)v : (int64_t)v);
}

static void fault_look(void)
{
	autofree char *points = NULL, *shift = NULL;

	if (fault_read(fault_path, &fault_stamp, &points))
		fault_parse(points);
	if (fault_read(fault_shift_path, &fault_shift_stamp, &shift))
		fault_parse_shift(shift);
}

void fault_open(const char *run_dir, const char *prog)
{
	if (str_format(fault_path, sizeof(fault_path), "%s/failpoints", run_dir) < 0 ||
	    str_format(fault_shift_path, sizeof(fault_shift_path), "%s/clock-shift-ms", run_dir) <
		    0 ||
	    str_format(fault_log_path, sizeof(fault_log_path), "%s/faults.log", run_dir) < 0)
		return;
	fault_take_lock();
	fault_prog = prog;
	memset(&fault_stamp, 0, sizeof(fault_stamp));
	memset(&fault_shift_stamp, 0, sizeof(fault_shift_stamp));
	fault_look();
	atomic_store(&fault_look_ms, clock_mono_ms() + FAULT_LOOK_MS);
	fault_drop_lock();
	atomic_store(&fault_opened, true);
}

void fault_poll(void)
{
	int64_t now;

	if (!atomic_load_explicit(&fault_opened, memory_order_relaxed))
		return;
	now = clock_mono_ms();
	if (now < atomic_load_explicit(&fault_look_ms, memory_order_relaxed))
		return;
	if (atomic_flag_test_and_set_explicit(&fault_lock, memory_order_acquire))
		return;                         /* another thread is looking */
	atomic_store(&fault_look_ms, now + FAULT_LOOK_MS);
	fault_look();
	fault_drop_lock();
}

/* The name equals one that stands in the program, and prog is a constant: nothing to escape. */
static void fault_note(const struct fault_point *p)
{
	char line[512], when[CLOCK_ISO_LEN];
	autoclose int fd =
		open(fault_log_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return;
	clock_iso(when, clock_wall_ms());
	str_format(
		line, sizeof(line),
		"{\"t\":\"%s\",\"prog\":\"%s\",\"pid\":%d,\"name\":\"%s\",\"action\":\"%s\",\"arg\":%d}\n",
		when, fault_prog, (int)getpid(), p->name, fault_actions[p->action].name, p->arg);
	fd_write_all(fd, line, strlen(line), 1000);
}

static void fault_sleep(int ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
		;
}

int fault_hit(const char *name)
{
	struct fault_point hit = { 0 };

	fault_poll();
	if (atomic_load_explicit(&fault_n, memory_order_relaxed) == 0)
		return 0;
	fault_take_lock();
	for (int i = 0; i < atomic_load(&fault_n); i++) {
		struct fault_point *p = &fault_table[i];

		if (p->left == 0 || !str_eq(p->name, name))
			continue;
		if (p->left != UINT64_MAX)
			p->left--;
		hit = *p;
		break;
	}
	fault_drop_lock();
	if (!hit.name[0])
		return 0;
	fault_note(&hit);
	if (hit.action == FAULT_CRASH)
		kill(getpid(), SIGKILL);
	if (hit.action == FAULT_DELAY)
		fault_sleep(hit.arg);
	return hit.action == FAULT_ERROR ? -hit.arg : 0;
}

int fault_count(void)
{
	fault_poll();
	return atomic_load(&fault_n);
}
