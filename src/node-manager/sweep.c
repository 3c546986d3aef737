#include "node-manager/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/map.h"
#include "base/proc.h"
#include "base/str.h"
#include "node-manager/net.h"
#include "node-manager/sockets.h"
#include "node-manager/watch.h"

#define SWEEP_NO_SLOT UINT64_MAX
#define SWEEP_POLL_MS_MIN 1
#define SWEEP_POLL_MS_MAX 20
#define SWEEP_NAMES_MAX 4096

struct sweep_kill { int n; };

static void kill_process(pid_t pid, uid_t uid, void *arg)
{
	struct sweep_kill *k = arg;

	kill(pid, SIGKILL);
	k->n++;
}

static bool kill_recorded(const struct exec_record *rec)
{
	bool any = false;

	for (int i = 0; rec && i < EXEC_WHO_COUNT; i++) {
		pid_t pid = (pid_t)rec->proc[i].pid;
		autoclose int pidfd = pid > 0 ? proc_pidfd_open(pid) : -1;
		struct pollfd over = { .fd = pidfd, .events = POLLIN };
		struct proc_id id;

		/*
		 * The pidfd first, then the comparison: after it the number cannot have become
		 * another process. It is readable when the last thread has ended; a zombie's other
		 * threads may still hold files.
		 */
		if (pidfd >= 0 && proc_id_of(pid, &id) == 0 &&
		    id.start_ticks == rec->proc[i].start && poll(&over, 1, 0) == 0) {
			proc_pidfd_signal(pidfd, SIGKILL);
			any = true;
		}
	}
	return any;
}

/* True while something of the execution lives; it has been sent SIGKILL. */
static bool kill_all(struct nm *nm, const char *name, const struct exec_record *rec, uint64_t slot)
{
	bool recorded = kill_recorded(rec);
	struct sweep_kill k = { 0 };

	if (cgroup_kill(&nm->cgroups, name) > 0 || recorded)
		return true;
	/* All of /proc, some ms: only when the quick ways find nothing any more. */
	if (slot != SWEEP_NO_SLOT)
		slots_each_process(slots_uid(&nm->slots, (uint32_t)slot, SLOT_VMM), SLOT_UIDS,
				   kill_process, &k);
	return k.n > 0;
}

static int end_processes(struct nm *nm, const char *name, const struct exec_record *rec,
			 uint64_t slot, struct err *e)
{
	int64_t end = clock_mono_ms() + SWEEP_WAIT_MS;
	int wait_ms = SWEEP_POLL_MS_MIN;

	while (kill_all(nm, name, rec, slot)) {
		if (clock_mono_ms() >= end)
			return err_set_code(e, -EBUSY, "process-stays",
					    "a process of %s does not end", name);
		poll(NULL, 0, wait_ms);
		wait_ms = wait_ms * 2 < SWEEP_POLL_MS_MAX ? wait_ms * 2 : SWEEP_POLL_MS_MAX;
	}
	return 0;
}

/* A dead process leaves its cgroup a moment after it is gone from /proc. */
static int remove_groups(struct nm *nm, const char *name, struct err *e)
{
	int64_t end = clock_mono_ms() + SWEEP_WAIT_MS;
	int r;

	while ((r = cgroup_remove(&nm->cgroups, name)) == -EBUSY && clock_mono_ms() < end)
		poll(NULL, 0, SWEEP_POLL_MS_MIN);
	return r < 0 ? err_errno(e, r, "the cgroups of %s cannot be removed", name) : 0;
}

static int sweep_fault(const char *step, struct err *e)
{
	int r = FAULT(step);

	return r < 0 ? err_errno(e, r, "failpoint %s", step) : 0;
}

/* slot: SWEEP_NO_SLOT when unknown. */
static int sweep_execution(struct nm *nm, const char *name, const struct exec_record *rec,
			   uint64_t slot, struct err *e)
{
	char path[PATH_MAX];
	int r = sweep_fault("nm.destroy.begin", e);

	if (r == 0)
		r = end_processes(nm, name, rec, slot, e);
	if (r == 0)
		r = sweep_fault("nm.destroy.killed", e);
	if (r == 0)
		r = conf_path(&nm->conf, path, CONF_RUN, "nm/" NET_FOLDER "/%s", name);
	if (r == 0 && (r = net_remove(path)) < 0)
		err_errno(e, r, "the network namespace of %s cannot be removed", name);
	if (r == 0)
		r = sweep_fault("nm.destroy.net", e);
	if (r == 0 && (r = sockets_remove(nm, name)) < 0)
		err_errno(e, r, "the sockets of %s cannot be removed", name);
	if (r == 0)
		r = sweep_fault("nm.destroy.sockets", e);
	if (r == 0)
		r = remove_groups(nm, name, e);
	if (r == 0)
		r = sweep_fault("nm.destroy.cgroups", e);
	if (r == 0 && (r = exec_record_remove(nm->run_fd, name)) < 0)
		err_errno(e, r, "the record of %s cannot be removed", name);
	return r;
}

int sweep_run(struct child_task *t, struct err *e)
{
	struct exec *x = t->x;

	return sweep_execution(t->nm, x->name, x->rec.proc[EXEC_INIT].pid ? &x->rec : NULL,
			       x->rec.slot, e);
}

/* ---- Start ---- */

static void adopt(const char *name, void *arg)
{
	struct nm *nm = arg;
	struct exec_record rec;
	struct err e = { 0 };
	struct exec *x;

	if (exec_record_read(nm->run_fd, name, &rec, &e) < 0) {
		log_warn("record cannot be used", F_STR("name", name), F_ERR(&e));
		return;
	}
	if (!str_eq(rec.boot_id, nm->boot_id) || slots_claim(&nm->slots, (uint32_t)rec.slot) < 0)
		return;
	x = exec_add(nm, rec.sandbox, rec.generation);
	x->rec = rec;
	x->state = EXEC_ALIVE;
	watch_start(x);
	/* What was made of a gateway when its maker was killed, or is left of one whose main process ended. */
	if (x->watch[EXEC_GATEWAY].pidfd < 0)
		cgroup_kill_leaf(&nm->cgroups, x->name, CGROUP_GATEWAY);
	log_info("execution adopted", F_STR("sandbox", rec.sandbox),
		 F_UINT("generation", rec.generation), F_STR("state", exec_state_names[x->state]));
}

static bool is_ours(struct nm *nm, const char *name)
{
	LIST_FOR(&nm->execs, x, struct exec, node) {
		if (str_eq(x->name, name))
			return true;
	}
	return false;
}

struct sweep_names { struct nm *nm; struct map *names; };

static void take_name(struct sweep_names *s, const char *name)
{
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;

	if (exec_name_parse(name, sandbox, &generation) == 0 && !is_ours(s->nm, name))
		map_put(s->names, name, s);
}

static void take_record(const char *name, void *arg) { take_name(arg, name); }
static void take_group(const char *name, const char *path, void *arg) { take_name(arg, name); }

static void take_folder(struct sweep_names *s, int dir_fd, const char *path)
{
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		fd_close(fd);
		return;
	}
	for (struct dirent *de; (de = readdir(d));)
		take_name(s, de->d_name);
	closedir(d);
}

/* What cannot be removed is kept in the table: its sandbox gets no other execution before. */
static int sweep_name(const char *name, void *value, void *arg)
{
	struct nm *nm = arg;
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	struct err e = { 0 };
	struct exec *x;

	log_info("remains of an execution without a record are removed", F_STR("name", name));
	if (sweep_execution(nm, name, NULL, SWEEP_NO_SLOT, &e) == 0 ||
	    exec_name_parse(name, sandbox, &generation) < 0)
		return 0;
	log_error("remains of an execution stay until it is destroyed again", F_STR("name", name),
		  F_ERR(&e));
	x = exec_add(nm, sandbox, generation);
	x->rec.slot = SWEEP_NO_SLOT;
	x->state = EXEC_ENDED;
	return 0;
}

/* Processes of our uids that belong to no adopted execution. */
static void kill_stray(pid_t pid, uid_t uid, void *arg)
{
	struct nm *nm = arg;
	uint32_t slot = (uid - nm->slots.uid_base) / SLOT_UIDS;

	if (nm->slots.state[slot] != SLOT_USED) {
		log_warn("stray process killed", F_INT("pid", pid), F_UINT("uid", uid));
		kill(pid, SIGKILL);
	}
}

int sweep_start(struct nm *nm, struct err *e)
{
	struct sweep_names s = { .nm = nm, .names = map_new(SWEEP_NAMES_MAX) };
	struct slots_seen seen;
	int r = exec_record_each(nm->run_fd, adopt, nm);

	if (r == 0)
		r = exec_record_each(nm->run_fd, take_record, &s);
	if (r < 0) {
		map_free(s.names);
		return err_errno(e, r, "the records cannot be listed");
	}
	take_folder(&s, nm->run_fd, NET_FOLDER);
	take_folder(&s, nm->sockets_fd, ".");
	cgroup_each(&nm->cgroups, take_group, &s);
	map_each(s.names, sweep_name, nm);
	map_free(s.names);
	slots_each_process(nm->slots.uid_base, SLOT_UIDS * nm->slots.n, kill_stray, nm);
	r = slots_scan(&nm->slots, &seen, e);
	for (uint32_t i = 0; r == 0 && i < nm->slots.n; i++) {
		if (nm->slots.state[i] == SLOT_FREE && slots_seen_has(&seen, i))
			nm->slots.state[i] = SLOT_DIRTY;
	}
	return r;
}
