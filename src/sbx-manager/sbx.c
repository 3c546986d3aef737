/* The program's parts in their order, and the one way from a worker into the loop. */
#include "sbx-manager/sbx.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "loop/listen.h"
#include "sbx-manager/job.h"

#define SBX_LEAVE_MS 15000               /* for running jobs to end */
#define SBX_WAIT_POLL_MS 200

/* ---- From a worker into the loop ---- */

struct handoff { void (*fn)(void *arg); void *arg; int event_fd; };

static void handoff_run(void *arg)
{
	struct handoff *h = arg;
	uint64_t one = 1;

	h->fn(h->arg);
	/* After this the waiting thread may be gone with h. */
	while (write(h->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* The loop turns until every job has ended (sbx_close), so this always comes back. */
int sbx_in_loop(struct sbx *s, void (*fn)(void *arg), void *arg)
{
	autoclose int fd = eventfd(0, EFD_CLOEXEC);
	struct handoff h = { fn, arg, fd };
	uint64_t n;
	int r;

	if (fd < 0)
		return -errno;
	r = loop_post(s->loop, handoff_run, &h);
	if (r < 0)
		return r;
	while (read(fd, &n, sizeof(n)) < 0 && errno == EINTR)
		;
	return 0;
}

/* ---- node-manager ---- */

static void sbx_on_nm_state(bool connected, void *arg)
{
	struct sbx *s = arg;

	if (!connected) {
		log_warn("node-manager is away");
		return;
	}
	/* Before there is a server, adoption does the same. */
	if (s->server)
		job_start(job_new(s, "sweep", "", "", adopt_sweep));
}

/* ---- Old tombstones ---- */

static int sbx_purge_run(struct job *j, struct err *e)
{
	return record_purge(j->s->db, clock_wall_ms() - RECORD_TOMBSTONE_MS, e);
}

static void sbx_purge(struct loop_timer *t)
{
	struct sbx *s = t->arg;

	job_start(job_new(s, "purge", "", "", sbx_purge_run));
	loop_timer_set(s->loop, &s->purge, SBX_PURGE_MS, sbx_purge, s);
}

/* ---- Begin and end ---- */

bool sbx_only_root(struct ipc_call *call)
{
	struct err e = { 0 };

	if (ipc_peer_cred(ipc_call_peer(call))->uid == 0)
		return true;
	err_set(&e, -EPERM, "Only root may ask for that.");
	ipc_fail(call, &e);
	return false;
}

static const struct ipc_handler sbx_handlers[] = {
	{ &sbx_ops[SBX_ADMIT], admit_handle },
	{ &sbx_ops[SBX_LEASE_END], lease_end_handle },
	{ &sbx_ops[SBX_LIFECYCLE], lifecycle_handle },
	{ &sbx_ops[SBX_BUNDLE], bundle_handle },
	{ &sbx_ops[SBX_REPORT], report_handle },
	{ &sbx_ops[SBX_TEMPLATE_ENSURE], template_handle },
	{ NULL, NULL },
};

int sbx_open(struct sbx *s, struct err *e)
{
	char path[PATH_MAX];
	int r;

	list_init(&s->box_list);
	if (key_init() < 0 || lease_init(s) < 0)
		return err_set(e, -EIO, "The cryptographic library cannot start.");
	s->boxes = map_new(SBX_BOXES_MAX);
	s->caps = cap_cache_new(SBX_CAP_CACHE_ENTRIES);
	r = bundle_load(s, e);
	if (r == 0)
		r = conf_path(&s->conf, path, CONF_STATE, "sbx/records.db");
	if (r == 0)
		r = record_open(path, &s->db, e);
	if (r == 0)
		r = conf_path(&s->conf, s->nm_path, CONF_RUN, "nm/nm.sock");
	if (r < 0)
		return e->num ? r : err_errno(e, r, "The folders' names");
	s->work = work_new(s->loop, SBX_WORKERS);
	s->nm = ipc_client_new(s->loop, s->nm_path, s->nm_uid);
	if (!s->work || !s->nm)
		return err_set(e, -ENOMEM, "Workers and connections cannot be made.");
	ipc_client_on_event(s->nm, crash_on_nm_event, s);
	ipc_client_on_state(s->nm, sbx_on_nm_state, s);
	return 0;
}

static void sbx_path(const struct sbx *s, char dst[PATH_MAX])
{
	conf_path(&s->conf, dst, CONF_RUN, "sbx-manager/sbx.sock");
}

int sbx_serve(struct sbx *s, struct err *e)
{
	char path[PATH_MAX], addr[PATH_MAX + 8];
	int fd;

	s->server_uids[0] = 0;
	s->server_uids[1] = s->conf.users[CONF_USER_NODE];
	sbx_path(s, path);
	str_format(addr, sizeof(addr), "unix:%s", path);
	fd = listen_addr(addr, SOCK_SEQPACKET, 0666, e);
	if (fd < 0)
		return fd;
	s->server = ipc_server_new(s->loop, fd,
				   &(struct ipc_server_conf) { .handlers = sbx_handlers,
							       .uids = s->server_uids,
							       .n_uids = 2,
							       .max_peers = SBX_PEERS_MAX,
							       .joined = lease_door_joined,
							       .left = lease_door_left,
							       .arg = s });
	if (!s->server)
		return err_set(e, -ENOMEM, "The loop does not take the socket.");
	loop_timer_set(s->loop, &s->purge, SBX_PURGE_MS, sbx_purge, s);
	return 0;
}

/*
 * Sandboxes live on; what runs here comes to its end first, since half of it would be somebody's
 * wait. Who comes now waits for the next run.
 */
void sbx_close(struct sbx *s)
{
	int64_t until = clock_mono_ms() + SBX_LEAVE_MS;
	char path[PATH_MAX];

	atomic_store(&s->leaving, true);
	sbx_path(s, path);
	if (s->server)
		unlink(path);
	loop_timer_stop(&s->purge);
	while (s->work && work_pending(s->work) > 0 && clock_mono_ms() < until)
		loop_turn(s->loop, SBX_WAIT_POLL_MS);
	if (s->work && work_pending(s->work) > 0) {
		/* The records say what was begun; the next start finishes it. */
		log_warn("ended in the middle of jobs", F_UINT("jobs", work_pending(s->work)));
		_exit(0);
	}
	work_free(s->work);
	box_free_all(s);
	ipc_server_free(s->server);
	ipc_client_free(s->nm);
	record_close(s->db);
	free(s->bundle_text);
	cap_cache_free(s->caps);
	map_free(s->boxes);
}
