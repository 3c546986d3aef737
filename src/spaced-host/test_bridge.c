/*
 * The real bridge as a process, over a socketpair with the real multiplexer on the guest's side,
 * driven by a thread. What a guest stream does is said by its first byte: 'E' echo, 'S' sends
 * without end, 'H' takes nothing (no credit comes back), 'K' takes and counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "daemon/seccomp.h"
#include "ipc/sbx_ops.h"
#include "loop/test_fill.h"
#include "mux/mux.h"
#include "spaced-host/bridge.h"
#include "spaced-host/syscalls.h"

#define GENERATION 7
#define STREAMS_MAX 2048
#define WAIT_MS 60000

/* The sanitizers' runtimes make system calls of their own and keep memory. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const char *bridge_path;
static const uint8_t activation[ID_ACTIVATION_BYTES] = { 1, 2,	3,  4,	5,  6,	7,  8,
							 9, 10, 11, 12, 13, 14, 15, 16 };

/* ---- The guest ---- */

struct guest_stream {
	char kind;
	bool open, control, ended, rst;
	uint64_t got, after_rst, sent;
};

struct guest {
	int fd;
	struct mux *mux;
	pthread_t thread;
	pthread_mutex_t lock;
	atomic_bool stop, paused, breach;
	struct guest_stream s[STREAMS_MAX];
	struct buf echo[STREAMS_MAX];
	uint32_t opened, reset;
	struct mux_epoch epoch;
};

static void guest_pump(struct guest *g, uint32_t id)
{
	static char zeros[MUX_PAYLOAD_MAX];
	struct guest_stream *s = &g->s[id];
	size_t n;

	while (s->open && s->kind == 'S' && (n = mux_can_send(g->mux, id)) > 0) {
		n = n < sizeof(zeros) ? n : sizeof(zeros);
		assert_int_equal(mux_send(g->mux, id, zeros, n), 0);
		s->sent += n;
	}
	while (s->open && buf_len(&g->echo[id]) > 0 && (n = mux_can_send(g->mux, id)) > 0) {
		n = n < buf_len(&g->echo[id]) ? n : buf_len(&g->echo[id]);
		n = n < MUX_PAYLOAD_MAX ? n : MUX_PAYLOAD_MAX;
		assert_int_equal(mux_send(g->mux, id, buf_data(&g->echo[id]), n), 0);
		buf_consume(&g->echo[id], n);
		mux_taken(g->mux, id, n);
	}
	if (s->open && s->kind == 'E' && s->ended && buf_len(&g->echo[id]) == 0) {
		s->open = false;
		mux_end(g->mux, id);
	}
}

static void guest_event(struct guest *g, const struct mux_event *ev)
{
	struct guest_stream *s = &g->s[ev->stream % STREAMS_MAX];

	switch (ev->type) {
	case MUX_EV_READY:
		g->epoch = ev->epoch;
		break;
	case MUX_EV_OPEN:
		g->opened++;
		*s = (struct guest_stream){ .open = true, .control = ev->control };
		break;
	case MUX_EV_DATA:
		if (s->rst)
			s->after_rst += ev->len;
		if (!s->kind)
			s->kind = (char)ev->data[0];
		s->got += ev->len;
		if (s->kind == 'E')
			assert_int_equal(buf_put(&g->echo[ev->stream], ev->data, ev->len), 0);
		if (s->kind == 'K')
			mux_taken(g->mux, ev->stream, ev->len);
		break;
	case MUX_EV_END:
		s->ended = true;
		break;
	case MUX_EV_RST:
		s->open = false;
		s->rst = true;
		g->reset++;
		buf_clear(&g->echo[ev->stream]);
		break;
	default:
		break;
	}
	if (ev->stream)
		guest_pump(g, ev->stream);
}

static void guest_turn(struct guest *g)
{
	struct pollfd p = { .fd = g->fd,
			    .events = POLLIN | (buf_len(mux_out(g->mux)) ? POLLOUT : 0) };
	static char in[16384];
	struct mux_event ev;
	ssize_t n;

	poll(&p, 1, 5);
	pthread_mutex_lock(&g->lock);
	if (!atomic_load(&g->paused)) {
		size_t room = mux_in_room(g->mux);

		n = read(g->fd, in, room < sizeof(in) ? room : sizeof(in));
		if (n > 0)
			mux_feed(g->mux, in, (size_t)n);
		while (mux_next(g->mux, &ev))
			guest_event(g, &ev);
		for (uint32_t i = 1; i <= g->opened && i < STREAMS_MAX; i++)
			guest_pump(g, i);
		if (atomic_exchange(&g->breach, false))
			buf_put(mux_out(g->mux), "this is no frame", 16);
		buf_write_fd(mux_out(g->mux), g->fd);
	}
	pthread_mutex_unlock(&g->lock);
	if (atomic_load(&g->paused))
		usleep(1000);
}

static void *guest_main(void *arg)
{
	struct guest *g = arg;

	while (!atomic_load(&g->stop))
		guest_turn(g);
	return NULL;
}

static void guest_start(struct guest *g, int fd)
{
	memset(g, 0, sizeof(*g));
	g->fd = fd;
	fd_set_nonblock(fd, true);
	g->mux = mux_new(MUX_GUEST);
	for (unsigned i = 0; i < STREAMS_MAX; i++)
		buf_init(&g->echo[i], MUX_CREDIT_INITIAL);
	pthread_mutex_init(&g->lock, NULL);
	assert_int_equal(pthread_create(&g->thread, NULL, guest_main, g), 0);
}

static void guest_stop(struct guest *g)
{
	atomic_store(&g->stop, true);
	pthread_join(g->thread, NULL);
	mux_free(g->mux);
	for (unsigned i = 0; i < STREAMS_MAX; i++)
		buf_done(&g->echo[i]);
	fd_close(g->fd);
}

/* Reads one number under the lock until it is at least `want`. */
static void guest_wait(struct guest *g, const uint32_t *what, uint32_t want)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	uint32_t now;

	do {
		pthread_mutex_lock(&g->lock);
		now = *what;
		pthread_mutex_unlock(&g->lock);
		if (now < want)
			usleep(1000);
	} while (now < want && clock_mono_ms() < until);
	assert_true(now >= want);
}

/* ---- The bridge ---- */

struct fixture {
	char dir[64], stream[100], control[100];
	pid_t pid;
	struct ipc_sync *ctl;
	struct guest guest;
	bool attached;
};

static int bind_socket(const char *path, int type)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type, 0);

	str_copy(sa.sun_path, sizeof(sa.sun_path), path);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static void fixture_start(struct fixture *f, uid_t uid)
{
	static const char *const *const lists[] = { bridge_syscalls, NULL };
	char uid_text[16];
	int a, b;

	memset(f, 0, sizeof(*f));
	str_copy(f->dir, sizeof(f->dir), "/tmp/test-bridge-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	str_format(f->stream, sizeof(f->stream), "%s/bridge.sock", f->dir);
	str_format(f->control, sizeof(f->control), "%s/control.sock", f->dir);
	str_format(uid_text, sizeof(uid_text), "%u", uid);
	a = bind_socket(f->stream, SOCK_STREAM);
	b = bind_socket(f->control, SOCK_SEQPACKET);
	f->pid = fork();
	assert_true(f->pid >= 0);
	if (f->pid == 0) {
		int x = fcntl(a, F_DUPFD, 10), y = fcntl(b, F_DUPFD, 10);

		dup2(x, 3);
		dup2(y, 4);
		close_range(5, ~0u, 0);
		/* Under its own allow-list, as in its jail. */
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		if (seccomp_apply(lists, NULL) < 0)
			_exit(126);
		execl(bridge_path, "spaced-host", "--sandbox", "i0123456789abcdefghij",
		      "--generation", "7", "--peer-uid", uid_text, (char *)NULL);
		_exit(127);
	}
	close(a);
	close(b);
}

static int connect_retry(const char *path, int type)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	int fd;

	while ((fd = fd_unix_connect(path, type, 1000)) < 0 && clock_mono_ms() < until)
		usleep(1000);
	assert_true(fd >= 0);
	return fd;
}

static int attach(struct fixture *f, uint64_t generation, const uint8_t act[ID_ACTIVATION_BYTES],
		  bool with_guest, struct err *e)
{
	struct bridge_attach a = { .generation = generation };
	int p[2], r;

	str_hex(a.activation, act, ID_ACTIVATION_BYTES);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
	if (with_guest)
		guest_start(&f->guest, p[1]);
	f->attached = with_guest;
	r = ipc_sync_call(f->ctl, &bridge_ops[BRIDGE_ATTACH], "test", &a, &p[0], 1, NULL, NULL,
			  NULL, WAIT_MS, e);
	close(p[0]);
	if (!with_guest)
		close(p[1]);
	return r;
}

static int setup(void **state)
{
	struct fixture *f = x_alloc(sizeof(*f));
	struct err e = { 0 };

	fixture_start(f, getuid());
	close(connect_retry(f->control, SOCK_SEQPACKET));
	assert_int_equal(ipc_sync_open(f->control, (uid_t)-1, &f->ctl, &e), 0);
	if (attach(f, GENERATION, activation, true, &e) < 0)
		fail_msg("attach: %s", e.text);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	int st;

	ipc_sync_close(f->ctl);
	kill(f->pid, SIGTERM);
	assert_int_equal(waitpid(f->pid, &st, 0), f->pid);
	/* It has not died of anything else before. */
	assert_true(WIFSIGNALED(st) && WTERMSIG(st) == SIGTERM);
	if (f->attached)
		guest_stop(&f->guest);
	unlink(f->stream);
	unlink(f->control);
	rmdir(f->dir);
	free(f);
	return 0;
}

static int lease_open_as(struct fixture *f, uint32_t magic, uint32_t kind, uint64_t lease,
			 uint64_t generation, const uint8_t act[16])
{
	struct bridge_preamble p = {
		.magic = magic, .kind = kind, .lease = lease, .generation = generation
	};
	int fd = connect_retry(f->stream, SOCK_STREAM);

	memcpy(p.activation, act, sizeof(p.activation));
	assert_int_equal(fd_write_all(fd, &p, sizeof(p), WAIT_MS), 0);
	return fd;
}

static int lease_open(struct fixture *f, uint64_t lease)
{
	return lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 0, lease, GENERATION, activation);
}

static int bridge_revoke_now(struct fixture *f, uint64_t lease, int timeout_ms, uint64_t *ret_ended)
{
	struct ipc_revoke q = { .lease = lease };
	struct ipc_revoke_rep rep = { 0 };
	struct ipc_sync *c = NULL;
	struct err e = { 0 };
	int r;

	assert_int_equal(ipc_sync_open(f->control, (uid_t)-1, &c, &e), 0);
	r = ipc_sync_call(c, &bridge_ops[BRIDGE_REVOKE], "test", &q, NULL, 0, &rep, NULL, NULL,
			  timeout_ms, &e);
	ipc_sync_close(c);
	if (ret_ended)
		*ret_ended = rep.ended;
	return r;
}

/*
 * End of file or reset within the time, after throwing away what there is. Returns the bytes that
 * came.
 */
static uint64_t read_to_end(int fd)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	static char p[65536];
	uint64_t n = 0;

	for (;;) {
		struct pollfd pf = { .fd = fd, .events = POLLIN };
		ssize_t r;

		assert_true(clock_mono_ms() < until);
		if (poll(&pf, 1, 100) == 0)
			continue;
		r = recv(fd, p, sizeof(p), MSG_DONTWAIT);
		if (r < 0 && errno == EAGAIN)
			continue;
		if (r <= 0)
			return n;
		n += (uint64_t)r;
	}
}

/* ---- Tests ---- */

static void test_echo_and_half_close(void **state)
{
	struct fixture *f = *state;
	const size_t total = 5 << 20;
	autofree unsigned char *out = x_alloc(total), *in = x_alloc(total + 1);
	int fd = lease_open(f, 1);
	size_t sent = 0, got = 0;
	bool shut = false;

	for (size_t i = 0; i < total; i++)
		out[i] = (unsigned char)(i * 31 + (i >> 12));
	out[0] = 'E';
	while (got <= total) {
		struct pollfd pf = { .fd = fd, .events = POLLIN | (sent < total ? POLLOUT : 0) };
		ssize_t r;

		assert_true(poll(&pf, 1, WAIT_MS) == 1);
		if (sent < total && (pf.revents & POLLOUT)) {
			r = send(fd, out + sent, total - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
			sent += r > 0 ? (size_t)r : 0;
		}
		if (sent == total && !shut) {
			shut = true;
			shutdown(fd, SHUT_WR);
		}
		r = recv(fd, in + got, total + 1 - got, MSG_DONTWAIT);
		if (r == 0)
			break;
		got += r > 0 ? (size_t)r : 0;
	}
	assert_int_equal(got, total);
	assert_memory_equal(in, out, total);
	close(fd);
	assert_int_equal(f->guest.epoch.generation, GENERATION);
	assert_memory_equal(f->guest.epoch.activation, activation, 16);
}

static void test_wrong_preambles(void **state)
{
	struct fixture *f = *state;
	uint8_t other[16] = { 0 };
	int ok = lease_open(f, 5), fds[6];

	assert_int_equal(send(ok, "K", 1, 0), 1);
	guest_wait(&f->guest, &f->guest.opened, 1);
	fds[0] = lease_open_as(f, 0x12345678, 0, 6, GENERATION, activation);
	fds[1] = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 2, 6, GENERATION, activation);
	fds[2] = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 0, 0, GENERATION, activation);
	fds[3] = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 0, 6, GENERATION + 1, activation);
	fds[4] = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 0, 6, GENERATION, other);
	fds[5] = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 0, 5, GENERATION, activation);       /* the number is taken */
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++) {
		assert_int_equal(read_to_end(fds[i]), 0);
		close(fds[i]);
	}
	assert_int_equal(f->guest.opened, 1);
	close(ok);
	guest_wait(&f->guest, &f->guest.reset, 1);
}

static void test_wrong_uid(void **state)
{
	struct fixture f;
	int fd;

	fixture_start(&f, getuid() + 1);
	fd = connect_retry(f.stream, SOCK_STREAM);
	assert_int_equal(read_to_end(fd), 0);
	close(fd);
	fd = connect_retry(f.control, SOCK_SEQPACKET);
	assert_int_equal(read_to_end(fd), 0);
	close(fd);
	kill(f.pid, SIGKILL);
	waitpid(f.pid, NULL, 0);
	unlink(f.stream);
	unlink(f.control);
	rmdir(f.dir);
}

static void echo_once(int fd, const char *text)
{
	char in[64];
	size_t n = strlen(text);

	assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), n);
	assert_int_equal(fd_read_full(fd, in, n, WAIT_MS), n);
	assert_memory_equal(in, text, n);
}

/* The socket's file may be anybody's: the bridge looks at who connects. */
static void test_another_user(void **state)
{
	struct fixture *f = *state;
	pid_t pid;
	int st;

	if (getuid() != 0)
		skip();
	assert_int_equal(chmod(f->dir, 0755), 0);
	assert_int_equal(chmod(f->stream, 0777), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct bridge_preamble p = { .magic = BRIDGE_PREAMBLE_MAGIC,
					     .lease = 1,
					     .generation = GENERATION };
		int fd = setuid(12345) < 0 ? -1 : fd_unix_connect(f->stream, SOCK_STREAM, WAIT_MS);

		memcpy(p.activation, activation, sizeof(p.activation));
		if (fd < 0)
			_exit(1);
		send(fd, &p, sizeof(p), MSG_NOSIGNAL);
		/* Its end, by reset or not. */
		_exit(recv(fd, &p, sizeof(p), 0) <= 0 ? 0 : 2);
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_int_equal(st, 0);
	echo_once(lease_open(f, 1), "Emine");
	assert_int_equal(f->guest.opened, 1);
}

static int attach_as(struct fixture *f, uint64_t generation, const char *act, size_t n_fds,
		     struct err *e)
{
	struct bridge_attach a = { .generation = generation };
	int p[2], r;

	str_copy(a.activation, sizeof(a.activation), act);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
	r = ipc_sync_call(f->ctl, &bridge_ops[BRIDGE_ATTACH], "test", &a, p, n_fds, NULL, NULL,
			  NULL, WAIT_MS, e);
	close(p[0]);
	close(p[1]);
	return r;
}

/* Before anything is pinned the command line says which execution it is. */
static void test_wrong_first_attach(void **state)
{
	static const char act[] = "0102030405060708090a0b0c0d0e0f10";
	struct fixture f;
	struct err e = { 0 };

	fixture_start(&f, getuid());
	close(connect_retry(f.control, SOCK_SEQPACKET));
	assert_int_equal(ipc_sync_open(f.control, (uid_t)-1, &f.ctl, &e), 0);
	assert_int_equal(attach_as(&f, GENERATION + 1, act, 1, &e), -EACCES);
	assert_string_equal(e.code, "wrong-epoch");
	assert_int_equal(attach_as(&f, GENERATION, "0102", 1, &e), -EACCES);
	assert_int_equal(attach_as(&f, GENERATION, "zz02030405060708090a0b0c0d0e0f10", 1, &e),
			 -EACCES);
	assert_int_equal(attach_as(&f, GENERATION, act, 0, &e), -EINVAL);
	assert_int_equal(attach(&f, GENERATION, activation, true, &e), 0);
	/* One channel at a time; the one that is there goes on. */
	assert_int_equal(attach_as(&f, GENERATION, act, 1, &e), -EBUSY);
	echo_once(lease_open(&f, 1), "Estill");
	ipc_sync_close(f.ctl);
	kill(f.pid, SIGKILL);
	waitpid(f.pid, NULL, 0);
	guest_stop(&f.guest);
	unlink(f.stream);
	unlink(f.control);
	rmdir(f.dir);
}

static uint64_t rss_kb(pid_t pid)
{
	char path[64];
	autofree char *text = NULL;
	size_t n;
	const char *p;

	str_format(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	assert_int_equal(fd_read_file(AT_FDCWD, path, 65536, &text, &n), 0);
	p = strstr(text, "Pss:");
	assert_non_null(p);
	return strtoull(p + 4, NULL, 10);
}

static void test_slow_reader_stalls_nobody(void **state)
{
	struct fixture *f = *state;
	uint64_t idle = rss_kb(f->pid), full;
	int slow[8], fd;

	for (unsigned i = 0; i < ARRAY_LEN(slow); i++) {
		slow[i] = lease_open(f, 100 + i);
		assert_int_equal(send(slow[i], "S", 1, 0), 1);
	}
	fd = lease_open(f, 1);
	for (unsigned i = 0; i < 200; i++)
		echo_once(fd, "Eecho");
	full = rss_kb(f->pid);
	print_message("PSS of the bridge: %llu kB idle, %llu kB with 8 readers that do not read\n",
		      (unsigned long long)idle, (unsigned long long)full);
#ifndef __SANITIZE_ADDRESS__                     /* its shadow and its quarantine are larger than all else */
	assert_true(idle <= 2048);
	assert_true(full <= idle + 8 * MUX_CREDIT_INITIAL / 1024 + 1024);
#endif
	for (unsigned i = 0; i < ARRAY_LEN(slow); i++)
		close(slow[i]);
	close(fd);
}

static void test_many_streams(void **state)
{
	struct fixture *f = *state;
	struct rlimit lim = { 4096, 4096 };
	int fds[500];

	setrlimit(RLIMIT_NOFILE, &lim);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = lease_open(f, i + 1);
	for (unsigned round = 0; round < 3; round++)
		for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
			echo_once(fds[i], "Ehello");
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++) {
		shutdown(fds[i], SHUT_WR);
		assert_int_equal(read_to_end(fds[i]), 0);
		close(fds[i]);
	}
}

/* Readers that do not read, with more waiting for them than the bridge keeps: some of them end. */
static void test_all_buffers_together(void **state)
{
	struct fixture *f = *state;
	struct rlimit lim = { 4096, 4096 };
	static int slow[BRIDGE_BUFFERED_MAX / MUX_CREDIT_INITIAL + 20];

	setrlimit(RLIMIT_NOFILE, &lim);
	for (unsigned i = 0; i < ARRAY_LEN(slow); i++) {
		slow[i] = lease_open(f, i + 1);
		send(slow[i], "S", 1, MSG_NOSIGNAL);             /* it may be one of those */
	}
	guest_wait(&f->guest, &f->guest.reset, 1);
	for (unsigned i = 0; i < ARRAY_LEN(slow); i++)
		close(slow[i]);
}

static void test_limits(void **state)
{
	struct fixture *f = *state;
	static int fds[BRIDGE_LEASES_MAX];
	struct rlimit lim = { 4096, 4096 };
	int silent = connect_retry(f->stream, SOCK_STREAM), late;

	/* Who says nothing is not waited for. */
	assert_int_equal(read_to_end(silent), 0);
	close(silent);
	setrlimit(RLIMIT_NOFILE, &lim);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = lease_open(f, i + 1);
	late = lease_open(f, ARRAY_LEN(fds) + 1);
	assert_int_equal(read_to_end(late), 0);
	close(late);
	echo_once(fds[0], "Efirst");
	echo_once(fds[ARRAY_LEN(fds) - 1], "Elast");
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
}

static void test_revoke_full_queues(void **state)
{
	struct fixture *f = *state;
	int in = lease_open(f, 1), out = lease_open(f, 2), other = lease_open(f, 3), queued = 0;
	int64_t until = clock_mono_ms() + WAIT_MS;
	uint64_t ended = 0, sent;

	assert_true(fill_socket(in, f->pid) > MUX_CREDIT_INITIAL);
	assert_int_equal(send(out, "S", 1, 0), 1);
	echo_once(other, "Eecho");
	/* Until the guest has no credit: the socket is full, and the bridge's buffer behind it. */
	do {
		usleep(1000);
		assert_true(clock_mono_ms() < until);
		pthread_mutex_lock(&f->guest.lock);
		sent = f->guest.s[2].sent;
		pthread_mutex_unlock(&f->guest.lock);
		assert_int_equal(ioctl(out, FIONREAD, &queued), 0);
	} while (queued == 0 || sent < (uint64_t)queued + MUX_CREDIT_INITIAL / 2 || !fill_asleep(f->pid));
	assert_int_equal(bridge_revoke_now(f, 1, WAIT_MS, &ended), 0);
	assert_int_equal(ended, 1);
	assert_int_equal(bridge_revoke_now(f, 2, WAIT_MS, &ended), 0);
	assert_int_equal(ended, 1);
	assert_int_equal(ioctl(out, FIONREAD, &queued), 0);
	assert_int_equal(bridge_revoke_now(f, 77, WAIT_MS, &ended), 0);
	assert_int_equal(ended, 0);
	/* The client gets what the kernel had for it and not one byte of what the bridge held. */
	assert_int_equal(read_to_end(out), queued);
	assert_true((uint64_t)queued < sent);
	assert_true(send(in, "x", 1, MSG_NOSIGNAL) < 0);
	guest_wait(&f->guest, &f->guest.reset, 2);
	assert_int_equal(f->guest.s[1].after_rst, 0);
	assert_int_equal(f->guest.s[2].after_rst, 0);
	assert_true(f->guest.s[1].got <= MUX_CREDIT_INITIAL);
	echo_once(other, "Eagain");
	close(in);
	close(out);
	close(other);
}

/* The guest reads no more, and what the lease sends has filled all that lies before it. */
static void guest_stands_still(struct fixture *f, int fd)
{
	assert_int_equal(send(fd, "K", 1, 0), 1);
	guest_wait(&f->guest, &f->guest.opened, 1);
	pthread_mutex_lock(&f->guest.lock);
	atomic_store(&f->guest.paused, true);
	pthread_mutex_unlock(&f->guest.lock);
	fill_socket(fd, f->pid);
}

/*
 * A guest that does not read: no confirmation, since bytes of the stream still wait in the bridge.
 */
static void test_revoke_needs_the_channel(void **state)
{
	struct fixture *f = *state;
	int fd = lease_open(f, 1);
	uint64_t got;

	guest_stands_still(f, fd);
	assert_true(bridge_revoke_now(f, 1, 300, NULL) < 0);
	assert_true(send(fd, "x", 1, MSG_NOSIGNAL) < 0);
	atomic_store(&f->guest.paused, false);
	guest_wait(&f->guest, &f->guest.reset, 1);
	pthread_mutex_lock(&f->guest.lock);
	got = f->guest.s[1].got;
	assert_int_equal(f->guest.s[1].after_rst, 0);
	pthread_mutex_unlock(&f->guest.lock);
	assert_true(got <= MUX_CREDIT_INITIAL);
	close(fd);
}

static ssize_t raw_answer(int fd, char *dst, size_t size);

/* Revocations that cannot be confirmed wait, but not without end. */
static void test_revokes_are_limited(void **state)
{
	struct fixture *f = *state;
	int fd = lease_open(f, 1), control = connect_retry(f->control, SOCK_SEQPACKET);
	char text[256];

	guest_stands_still(f, fd);
	for (unsigned i = 1; i <= BRIDGE_REVOKES_MAX + 1; i++) {
		str_format(text, sizeof(text),
			   "{\"v\":1,\"op\":\"revoke\",\"id\":%u,\"req\":\"t\",\"a\":{\"lease\":1}}", i);
		assert_int_equal(send(control, text, strlen(text), 0), strlen(text));
	}
	raw_answer(control, text, sizeof(text));
	assert_non_null(strstr(text, "{\"id\":65,\"e\":"));
	close(control);
	close(fd);
}

static ssize_t raw_answer(int fd, char *dst, size_t size)
{
	struct pollfd pf = { .fd = fd, .events = POLLIN };
	ssize_t n;

	assert_int_equal(poll(&pf, 1, WAIT_MS), 1);
	n = recv(fd, dst, size - 1, 0);
	assert_true(n > 0);
	dst[n] = '\0';
	return n;
}

/*
 * The connection is older than the revocation, though the bridge has looked at neither when both
 * are there.
 */
static void test_revoke_does_not_overtake(void **state)
{
	static const char list[] = "{\"v\":1,\"op\":\"leases\",\"id\":1,\"req\":\"t\",\"a\":{}}";
	static const char cut[] =
		"{\"v\":1,\"op\":\"revoke\",\"id\":2,\"req\":\"t\",\"a\":{\"lease\":9}}";
	struct fixture *f = *state;
	int control = connect_retry(f->control, SOCK_SEQPACKET), fd;
	char answer[4096];

	assert_int_equal(send(control, list, strlen(list), 0), strlen(list));
	raw_answer(control, answer, sizeof(answer));
	kill(f->pid, SIGSTOP);
	fd = lease_open(f, 9);
	assert_int_equal(send(fd, "K", 1, 0), 1);
	assert_int_equal(send(control, cut, strlen(cut), 0), strlen(cut));
	kill(f->pid, SIGCONT);
	raw_answer(control, answer, sizeof(answer));
	assert_non_null(strstr(answer, "\"ended\":1"));
	assert_int_equal(read_to_end(fd), 0);
	assert_int_equal(f->guest.s[1].got, 0);
	close(fd);
	close(control);
}

static void test_revoke_all_is_for_good(void **state)
{
	struct fixture *f = *state;
	struct bridge_leases q = { 0 };
	struct bridge_leases_rep rep = { 0 };
	int a = lease_open(f, 1), b = lease_open(f, 2), c;
	uint64_t ended = 0;

	echo_once(a, "Ea");
	echo_once(b, "Eb");
	assert_int_equal(bridge_revoke_now(f, 0, WAIT_MS, &ended), 0);
	assert_int_equal(ended, 2);
	assert_int_equal(read_to_end(a), 0);
	assert_int_equal(read_to_end(b), 0);
	c = lease_open(f, 3);
	assert_int_equal(read_to_end(c), 0);
	close(c);
	assert_int_equal(ipc_sync_call(f->ctl, &bridge_ops[BRIDGE_LEASES], "", &q, NULL, 0, &rep,
				       NULL, NULL, WAIT_MS, NULL),
			 0);
	assert_true(rep.closed);
	assert_true(rep.attached);
	ipc_done(bridge_ops[BRIDGE_LEASES].rep, &rep);
	/* sbx-manager still asks the guest to write its disk back. */
	c = lease_open_as(f, BRIDGE_PREAMBLE_MAGIC, 1, 4, GENERATION, activation);
	echo_once(c, "Econtrol");
	assert_true(f->guest.s[3].control);
	close(a);
	close(b);
	close(c);
}

static void test_breach_ends_the_channel(void **state)
{
	struct fixture *f = *state;
	uint8_t other[16] = { 9 };
	int a = lease_open(f, 1), b;
	struct err e = { 0 };

	echo_once(a, "Ea");
	atomic_store(&f->guest.breach, true);
	assert_int_equal(read_to_end(a), 0);
	close(a);
	b = lease_open(f, 2);
	assert_int_equal(read_to_end(b), 0);
	close(b);
	guest_stop(&f->guest);
	f->attached = false;
	/* Another execution's channel is refused; the same epoch may be attached again. */
	assert_int_equal(attach(f, GENERATION, other, false, &e), -EACCES);
	assert_int_equal(attach(f, GENERATION + 1, activation, false, &e), -EACCES);
	assert_int_equal(attach(f, GENERATION, activation, true, &e), 0);
	b = lease_open(f, 3);
	echo_once(b, "Eb");
	close(b);
}

static void test_channel_lost_event(void **state)
{
	struct fixture *f = *state;
	int fd = connect_retry(f->control, SOCK_SEQPACKET);
	char text[4096];
	struct pollfd pf = { .fd = fd, .events = POLLIN };
	ssize_t n;
	int a = lease_open(f, 1);

	echo_once(a, "Ea");
	guest_stop(&f->guest);
	f->attached = false;
	assert_int_equal(read_to_end(a), 0);
	close(a);
	assert_int_equal(poll(&pf, 1, WAIT_MS), 1);
	n = recv(fd, text, sizeof(text) - 1, 0);
	assert_true(n > 0);
	text[n] = '\0';
	assert_non_null(strstr(text, "channel-lost"));
	close(fd);
}

/* All pages, by number. */
static uint64_t count_listed(struct fixture *f)
{
	struct bridge_leases q = { 0 };
	struct bridge_leases_rep rep = { 0 };
	uint64_t last = 0, n = 0;
	struct err e = { 0 };

	do {
		json_t *item;
		size_t i;

		assert_int_equal(ipc_sync_call(f->ctl, &bridge_ops[BRIDGE_LEASES], "", &q, NULL, 0,
					       &rep, NULL, NULL, WAIT_MS, &e),
				 0);
		assert_true(rep.attached);
		assert_int_equal(rep.generation, GENERATION);
		json_array_foreach(rep.leases, i, item) {
			uint64_t id = (uint64_t)json_integer_value(json_object_get(item, "lease"));

			assert_true(id > last);
			last = id;
			n++;
		}
		q.after = rep.next;
		ipc_done(bridge_ops[BRIDGE_LEASES].rep, &rep);
	} while (q.after);
	return n;
}

static void test_leases_are_listed(void **state)
{
	struct fixture *f = *state;
	static int fds[600];
	struct rlimit lim = { 4096, 4096 };

	setrlimit(RLIMIT_NOFILE, &lim);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = lease_open(f, 1000 - i);
	assert_int_equal(count_listed(f), ARRAY_LEN(fds));
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
}

/* A guest that takes nothing: those that wait for room in the channel are leases like the others. */
static void test_waiting_leases_are_listed(void **state)
{
	struct fixture *f = *state;
	static int fds[800];
	struct rlimit lim = { 4096, 4096 };

	setrlimit(RLIMIT_NOFILE, &lim);
	pthread_mutex_lock(&f->guest.lock);
	atomic_store(&f->guest.paused, true);
	pthread_mutex_unlock(&f->guest.lock);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++) {
		fds[i] = lease_open(f, i + 1);
		if (i < 4)
			fill_socket(fds[i], f->pid);
	}
	assert_int_equal(count_listed(f), ARRAY_LEN(fds));
	/* The last one waits, and is as revocable as the first. */
	assert_true(bridge_revoke_now(f, ARRAY_LEN(fds), 300, NULL) < 0);
	assert_int_equal(read_to_end(fds[ARRAY_LEN(fds) - 1]), 0);
	assert_int_equal(count_listed(f), ARRAY_LEN(fds) - 1);
	for (unsigned i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_echo_and_half_close, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_preambles, setup, teardown),
		cmocka_unit_test(test_wrong_uid),
		cmocka_unit_test_setup_teardown(test_another_user, setup, teardown),
		cmocka_unit_test(test_wrong_first_attach),
		cmocka_unit_test_setup_teardown(test_all_buffers_together, setup, teardown),
		cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
		cmocka_unit_test_setup_teardown(test_revokes_are_limited, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slow_reader_stalls_nobody, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_streams, setup, teardown),
		cmocka_unit_test_setup_teardown(test_revoke_full_queues, setup, teardown),
		cmocka_unit_test_setup_teardown(test_revoke_needs_the_channel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_revoke_does_not_overtake, setup, teardown),
		cmocka_unit_test_setup_teardown(test_revoke_all_is_for_good, setup, teardown),
		cmocka_unit_test_setup_teardown(test_breach_ends_the_channel, setup, teardown),
		cmocka_unit_test_setup_teardown(test_channel_lost_event, setup, teardown),
		cmocka_unit_test_setup_teardown(test_leases_are_listed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_waiting_leases_are_listed, setup, teardown),
	};

	if (argc != 2)
		return 2;
	bridge_path = argv[1];
	signal(SIGPIPE, SIG_IGN);                /* the guest writes on when its bridge has ended */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
