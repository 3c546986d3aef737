#include "node-manager/slots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define SLOTS_STATUS_MAX 16384
#define SLOTS_IPC_MAX (1u << 20)

void slots_init(struct slots *s, uint32_t uid_base, uint32_t n)
{
	*s = (struct slots){ .uid_base = uid_base, .n = n };
}

int slots_take(struct slots *s, uint32_t *ret)
{
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t slot = (s->next + i) % s->n;

		if (s->state[slot] != SLOT_FREE)
			continue;
		s->state[slot] = SLOT_USED;
		s->next = (slot + 1) % s->n;
		*ret = slot;
		return 0;
	}
	return -EAGAIN;
}

int slots_claim(struct slots *s, uint32_t slot)
{
	if (slot >= SLOTS_MAX || s->state[slot] == SLOT_USED)
		return -EBUSY;
	s->state[slot] = SLOT_USED;
	return 0;
}

void slots_give_back(struct slots *s, uint32_t slot, bool clean)
{
	if (slot < SLOTS_MAX)
		s->state[slot] = clean ? SLOT_FREE : SLOT_DIRTY;
}

uid_t slots_uid(const struct slots *s, uint32_t slot, enum slot_uid which)
{
	return s->uid_base + SLOT_UIDS * slot + (uint32_t)which;
}

bool slots_seen_has(const struct slots_seen *seen, uint32_t slot)
{
	return slot < SLOTS_MAX && seen->bits[slot / 8] & (1u << (slot % 8));
}

void slots_refresh(struct slots *s, const struct slots_seen *seen)
{
	for (uint32_t i = 0; i < s->n; i++) {
		if (s->state[i] == SLOT_DIRTY && !slots_seen_has(seen, i))
			s->state[i] = SLOT_FREE;
	}
}

/* ---- Looking ---- */

/*
 * A zombie that is the last of its threads: another thread may still hold files, while the first is
 * a zombie already.
 */
static bool process_is_over(const char *status)
{
	return (strstr(status, "\nState:\tZ") || strstr(status, "\nState:\tX")) &&
	       (strstr(status, "\nThreads:\t1\n") || strstr(status, "\nThreads:\t0\n"));
}

int slots_each_process(uid_t first, uint32_t n, void (*fn)(pid_t pid, uid_t uid, void *arg),
		       void *arg)
{
	DIR *d = opendir("/proc");

	if (!d)
		return -errno;
	for (struct dirent *de; (de = readdir(d));) {
		autofree char *text = NULL;
		char path[64];
		unsigned uid[3];
		uint64_t pid;
		const char *p;

		if (str_to_u64(de->d_name, INT32_MAX, &pid) < 0)
			continue;
		str_format(path, sizeof(path), "/proc/%llu/status", (unsigned long long)pid);
		if (fd_read_file(AT_FDCWD, path, SLOTS_STATUS_MAX, &text, NULL) < 0)
			continue;
		p = strstr(text, "\nUid:\t");
		if (!p || sscanf(p, "\nUid:\t%u\t%u\t%u", &uid[0], &uid[1], &uid[2]) != 3)
			continue;
		if (process_is_over(text))
			continue;
		for (int i = 0; i < 3; i++) {
			if (uid[i] - first < n) {
				fn((pid_t)pid, uid[i], arg);
				break;
			}
		}
	}
	closedir(d);
	return 0;
}

struct slots_mark { const struct slots *s; struct slots_seen *seen; };

static void mark_uid(const struct slots_mark *m, uid_t uid)
{
	uint32_t slot = (uid - m->s->uid_base) / SLOT_UIDS;

	if (uid >= m->s->uid_base && slot < m->s->n)
		m->seen->bits[slot / 8] |= (uint8_t)(1u << (slot % 8));
}

static void mark_process(pid_t pid, uid_t uid, void *arg) { mark_uid(arg, uid); }

static void mark_folder(const struct slots_mark *m, const char *path)
{
	DIR *d = opendir(path);
	struct stat st;

	if (!d)
		return;
	for (struct dirent *de; (de = readdir(d));) {
		if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    !str_eq(de->d_name, ".."))
			mark_uid(m, st.st_uid);
	}
	closedir(d);
}

/* /proc/sysvipc tables: a head line names the columns. */
static void mark_ipc_line(const struct slots_mark *m, const char *head, char *line)
{
	char *hsave = NULL, *lsave = NULL;
	autofree char *names = x_strdup(head);
	char *name = strtok_r(names, " ", &hsave), *word = strtok_r(line, " ", &lsave);

	for (; name && word;
	     name = strtok_r(NULL, " ", &hsave), word = strtok_r(NULL, " ", &lsave)) {
		uint64_t uid;

		if ((str_eq(name, "uid") || str_eq(name, "cuid")) &&
		    str_to_u64(word, UINT32_MAX, &uid) == 0)
			mark_uid(m, (uid_t)uid);
	}
}

static void mark_ipc(const struct slots_mark *m, const char *path)
{
	autofree char *text = NULL;
	char *save = NULL, *head;

	if (fd_read_file(AT_FDCWD, path, SLOTS_IPC_MAX, &text, NULL) < 0)
		return;
	head = strtok_r(text, "\n", &save);
	for (char *line; head && (line = strtok_r(NULL, "\n", &save));)
		mark_ipc_line(m, head, line);
}

void slots_scan_objects(const struct slots *s, struct slots_seen *ret)
{
	struct slots_mark m = { .s = s, .seen = ret };

	memset(ret, 0, sizeof(*ret));
	mark_folder(&m, "/dev/shm");
	mark_folder(&m, "/dev/mqueue");
	mark_ipc(&m, "/proc/sysvipc/shm");
	mark_ipc(&m, "/proc/sysvipc/msg");
	mark_ipc(&m, "/proc/sysvipc/sem");
}

int slots_scan(const struct slots *s, struct slots_seen *ret, struct err *e)
{
	struct slots_mark m = { .s = s, .seen = ret };
	int r;

	slots_scan_objects(s, ret);
	r = slots_each_process(s->uid_base, SLOT_UIDS * s->n, mark_process, &m);
	return r < 0 ? err_errno(e, r, "/proc cannot be read") : 0;
}
