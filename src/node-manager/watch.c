#include "node-manager/watch.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "jail-init/jail_init.h"

/* A gateway may be started again. */
static void watch_ended(struct exec *x, enum exec_who who)
{
	if (x->state == EXEC_ALIVE && who < EXEC_CORE_COUNT)
		exec_set_state(x, EXEC_ENDED);
}

/* Tells the end of one process, once. status: as waitpid(2), -1 = unknown. */
static void watch_tell(struct exec *x, enum exec_who who, int64_t status)
{
	struct nm_exited ev = { .generation = x->rec.generation, .status = status };
	struct exec_watch *w = &x->watch[who];

	if (w->told)
		return;
	w->told = true;
	log_info("process of an execution ended", F_STR("sandbox", x->rec.sandbox),
		 F_UINT("generation", x->rec.generation), F_STR("who", exec_who_names[who]),
		 F_INT("status", status));
	watch_ended(x, who);
	if (x->state == EXEC_DESTROYING || !x->nm->server)
		return;
	str_copy(ev.sandbox, sizeof(ev.sandbox), x->rec.sandbox);
	str_copy(ev.who, sizeof(ev.who), exec_who_names[who]);
	ipc_server_event(x->nm->server, "exited", nm_exited_fields, &ev);
}

static void watch_unreported(struct loop_timer *t)
{
	struct exec *x = t->arg;

	for (int i = 0; i < EXEC_WHO_COUNT; i++) {
		if (x->watch[i].gone)
			watch_tell(x, (enum exec_who)i, -1);
	}
}

static void watch_link_done(struct exec *x)
{
	loop_del(&x->link_io);
	fd_close(TAKE_FD(x->link_fd));
}

/*
 * jail-init's "PID STATUS". A sandbox's programs cannot write here, but nothing is believed beyond
 * its form.
 */
static void watch_report(struct exec *x, char *line)
{
	char *status = strchr(line, ' ');
	uint64_t pid, value;

	if (!status)
		return;
	*status++ = '\0';
	if (str_to_u64(line, INT32_MAX, &pid) < 0 || str_to_u64(status, 0xffff, &value) < 0)
		return;
	if (pid == JAIL_INIT_VMM_PID)
		watch_tell(x, EXEC_VMM, (int64_t)value);
	else if (pid == JAIL_INIT_BRIDGE_PID)
		watch_tell(x, EXEC_BRIDGE, (int64_t)value);
}

static void watch_link(struct loop_io *io, uint32_t events)
{
	struct exec *x = io->arg;
	char line[JAIL_INIT_MSG_MAX + 1];
	ssize_t n = recv(x->link_fd, line, sizeof(line) - 1, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		watch_link_done(x);
		return;
	}
	line[n] = '\0';
	watch_report(x, line);
}

static void watch_gone(struct loop_io *io, uint32_t events)
{
	struct exec_watch *w = io->arg;
	struct exec *x = w->x;

	loop_del(&w->io);
	fd_close(TAKE_FD(w->pidfd));
	w->gone = true;
	if (!w->told)
		loop_timer_set(x->nm->loop, &x->report_timer, WATCH_REPORT_MS, watch_unreported, x);
	/* From here on nothing is admitted, whatever the status turns out to be. */
	watch_ended(x, w->who);
}

static void watch_line(struct exec *x, int who)
{
	x->text[who][x->text_len[who]] = '\0';
	if (x->text_len[who] > 0 && log_limit_ok(&x->text_limit, WATCH_TEXT_PER_MIN))
		log_info("program says", F_STR("sandbox", x->rec.sandbox),
			 F_UINT("generation", x->rec.generation), F_STR("who", exec_who_names[who]),
			 F_STR("text", x->text[who]));
	x->text_len[who] = 0;
}

static void watch_listen_again(struct loop_timer *t)
{
	struct exec *x = t->arg;

	for (int i = 0; i < EXEC_WHO_COUNT; i++) {
		x->text_taken[i] = 0;
		if (x->text_io[i].loop)
			loop_mod(&x->text_io[i], EPOLLIN);
	}
}

/* The end of file comes all the same: EPOLLHUP cannot be left out (epoll_ctl(2)). */
static void watch_pause(struct exec *x, struct loop_io *io)
{
	loop_mod(io, 0);
	if (x->text_timer.heap_pos == 0)
		loop_timer_set(x->nm->loop, &x->text_timer, WATCH_TEXT_PAUSE_MS, watch_listen_again,
			       x);
}

/* Hostile text (S-12): cut into bounded lines, escaped by the log. */
static void watch_text(struct loop_io *io, uint32_t events)
{
	struct exec *x = io->arg;
	int who = (int)(io - x->text_io);
	char text[EXEC_TEXT_MAX];
	ssize_t n = read(x->text_fd[who], text, sizeof(text));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	for (ssize_t i = 0; i < n; i++) {
		if (text[i] != '\n' && text[i] != '\0')
			x->text[who][x->text_len[who]++] = text[i];
		if (text[i] == '\n' || x->text_len[who] == EXEC_TEXT_MAX - 1)
			watch_line(x, who);
	}
	x->text_taken[who] += n > 0 ? (size_t)n : 0;
	if (x->text_taken[who] >= WATCH_TEXT_BYTES)
		watch_pause(x, io);
	if (n <= 0) {
		watch_line(x, who);
		loop_del(io);
		fd_close(TAKE_FD(x->text_fd[who]));
	}
}

static void watch_process(struct exec *x, enum exec_who who)
{
	struct proc_id id = { .pid = (pid_t)x->rec.proc[who].pid,
			      .start_ticks = x->rec.proc[who].start };
	struct exec_watch *w = &x->watch[who];
	int fd = proc_pidfd_open(id.pid);

	/* The pidfd first, then the comparison: then it is that process for good. */
	if (fd >= 0 && proc_id_same(&id) &&
	    loop_add(x->nm->loop, &w->io, fd, EPOLLIN, watch_gone, w) == 0) {
		w->pidfd = fd;
		return;
	}
	fd_close(fd);
	w->gone = true;
	watch_ended(x, who);
	loop_timer_set(x->nm->loop, &x->report_timer, WATCH_REPORT_MS, watch_unreported, x);
}

static void watch_begin(struct exec *x, int who)
{
	watch_process(x, (enum exec_who)who);
	if (x->text_fd[who] >= 0)
		loop_add(x->nm->loop, &x->text_io[who], x->text_fd[who], EPOLLIN, watch_text, x);
}

static void watch_end(struct exec *x, int who)
{
	loop_del(&x->watch[who].io);
	fd_close(TAKE_FD(x->watch[who].pidfd));
	loop_del(&x->text_io[who]);
	fd_close(TAKE_FD(x->text_fd[who]));
}

void watch_start(struct exec *x)
{
	for (int i = 0; i < EXEC_CORE_COUNT; i++)
		watch_begin(x, i);
	if (x->rec.proc[EXEC_GATEWAY].pid)
		watch_begin(x, EXEC_GATEWAY);
	if (x->link_fd >= 0)
		loop_add(x->nm->loop, &x->link_io, x->link_fd, EPOLLIN, watch_link, x);
}

void watch_start_gateway(struct exec *x)
{
	struct exec_watch *w = &x->watch[EXEC_GATEWAY];

	w->gone = w->told = false;
	watch_begin(x, EXEC_GATEWAY);
}

void watch_forget_gateway(struct exec *x)
{
	struct exec_watch *w = &x->watch[EXEC_GATEWAY];

	watch_end(x, EXEC_GATEWAY);
	x->text_len[EXEC_GATEWAY] = 0;
	w->told = true;
	w->gone = false;
}

void watch_stop(struct exec *x)
{
	loop_timer_stop(&x->report_timer);
	loop_timer_stop(&x->text_timer);
	loop_del(&x->link_io);
	fd_close(TAKE_FD(x->link_fd));
	for (int i = 0; i < EXEC_WHO_COUNT; i++)
		watch_end(x, i);
}

void watch_reaped(struct nm *nm, pid_t pid, int status)
{
	/* Those whose maker was a child of ours: process 1 of each of the two PID namespaces. */
	static const enum exec_who ours[] = { EXEC_INIT, EXEC_GATEWAY };

	LIST_FOR(&nm->execs, x, struct exec, node) {
		/*
		 * The pidfd may have told of the end before. Once it is told, the number is
		 * anybody's.
		 */
		for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
			if ((pid_t)x->rec.proc[ours[i]].pid == pid && !x->watch[ours[i]].told &&
			    x->state != EXEC_SPAWNING)
				watch_tell(x, ours[i], status);
		}
	}
}

int watch_kill(struct exec *x, enum exec_who who)
{
	int fd = x->watch[who].pidfd;

	return fd < 0 ? -ESRCH : proc_pidfd_signal(fd, SIGKILL);
}
