/*
 * The network gateway beside nginx's stream module, in one run and with the same bytes: a load
 * generator in the guest's place on a veth, servers in a namespace that is the internet (the rig of
 * the unit tests). The real three processes under their real lists of system calls; nginx (one
 * worker) in the node's namespace, with a veth of its own to the guest's. Rounds alternate; medians
 * are what is printed, as JSON. Needs root.
 *
 *	gateway NETGTW [--quick]
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "netgtw/test_rig.h"

#define SERVER "9.9.10.2"
#define SERVER_PORT 5001
#define FDS_MAX 19000
#define BATCH 64
#define STREAMS 8                    /* of the throughput */
#define CLIENTS 32                   /* of the new connections */
#define IDLE 5000
#define ROUNDS_MAX 9

static char block[65536];
static struct rig rig;

/*
 * ---- The server: the first byte says what a connection is: 'D' gets, 'U' gives, 'E' is echoed
 * ----
 */

static char
	kinds[FDS_MAX]; /* by descriptor; in the client: those of new_connections that are open */

static void server_io(int ep, int fd)
{
	ssize_t n;

	if (kinds[fd] == 'D') {
		while ((n = send(fd, block, sizeof(block), MSG_NOSIGNAL)) > 0)
			;
		if (errno != EAGAIN)
			close(fd);
		return;
	}
	n = recv(fd, block, sizeof(block), 0);
	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			close(fd);
		return;
	}
	if (kinds[fd] == 0) {
		kinds[fd] = block[0];
		if (kinds[fd] == 'D')
			epoll_ctl(ep, EPOLL_CTL_MOD, fd,
				  &(struct epoll_event) { .events = EPOLLOUT, .data.fd = fd });
	}
	if (kinds[fd] == 'E' && send(fd, block, (size_t)n, MSG_NOSIGNAL) < 0)
		close(fd);
}

static void server_run(int listener)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fd;
	struct epoll_event ev[BATCH];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	epoll_ctl(ep, EPOLL_CTL_ADD, listener,
		  &(struct epoll_event) { .events = EPOLLIN, .data.fd = listener });
	for (;;) {
		int n = epoll_wait(ep, ev, BATCH, -1);

		for (int i = 0; i < n; i++) {
			if (ev[i].data.fd != listener) {
				server_io(ep, ev[i].data.fd);
				continue;
			}
			while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
				if (fd >= FDS_MAX) {
					close(fd);
					continue;
				}
				kinds[fd] = 0;
				epoll_ctl(ep, EPOLL_CTL_ADD, fd,
					  &(struct epoll_event) { .events = EPOLLIN,
								  .data.fd = fd });
			}
		}
	}
}

/* ---- Who is measured ---- */

struct subject { const char *name, *addr; pid_t pids[3]; };

static double cpu_s(const struct subject *s)
{
	double sum = 0;

	for (int i = 0; i < 3 && s->pids[i]; i++) {
		char path[64], *text = NULL, *p;
		unsigned long u, k;

		str_format(path, sizeof(path), "/proc/%d/stat", (int)s->pids[i]);
		if (fd_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0)
			continue;
		p = strrchr(text, ')');
		if (p && sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u,
				&k) == 2)
			sum += (double)(u + k) / (double)sysconf(_SC_CLK_TCK);
		free(text);
	}
	return sum;
}

/* Private memory of all its processes, KiB. */
static long memory_kib(const struct subject *s)
{
	long sum = 0;

	for (int i = 0; i < 3 && s->pids[i]; i++) {
		char path[64], *text = NULL, *p;

		str_format(path, sizeof(path), "/proc/%d/smaps_rollup", (int)s->pids[i]);
		if (fd_read_file(AT_FDCWD, path, 8192, &text, NULL) < 0)
			continue;
		p = strstr(text, "Private_Dirty:");
		sum += p ? strtol(p + 14, NULL, 10) : 0;
		free(text);
	}
	return sum;
}

static int dial(const struct subject *s)
{
	int fd = rig_connect(&rig, RIG_GUEST, s->addr, SERVER_PORT);

	if (fd < 0) {
		fprintf(stderr, "gateway: %s: connect: %s\n", s->name, strerror(-fd));
		exit(1);
	}
	return fd;
}

/* Bytes a second, either way. */
static double throughput(const struct subject *s, char kind, int ms)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), fds[STREAMS];
	struct epoll_event ev[STREAMS];
	uint64_t bytes = 0;
	int64_t start, now;
	ssize_t n;

	for (int i = 0; i < STREAMS; i++) {
		fds[i] = dial(s);
		rig_send(fds[i], &kind, 1);
		epoll_ctl(ep, EPOLL_CTL_ADD, fds[i],
			  &(struct epoll_event) { .events = kind == 'D' ? EPOLLIN : EPOLLOUT,
						  .data.fd = fds[i] });
	}
	start = clock_mono_ms();
	while ((now = clock_mono_ms()) < start + ms) {
		int k = epoll_wait(ep, ev, STREAMS, 100);

		for (int i = 0; i < k; i++) {
			n = kind == 'D' ? recv(ev[i].data.fd, block, sizeof(block), 0)
					: send(ev[i].data.fd, block, sizeof(block), MSG_NOSIGNAL);
			bytes += n > 0 ? (uint64_t)n : 0;
		}
	}
	for (int i = 0; i < STREAMS; i++)
		close(fds[i]);
	close(ep);
	return (double)bytes * 1000 / (double)(now - start);
}

/* A socket in the guest's namespace whose connect is on its way; the caller has entered it. */
static void dial_start(const struct subject *s, int ep)
{
	struct sockaddr_storage ss;
	struct addr a;
	socklen_t n;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	addr_parse(s->addr, &a);
	a.port = SERVER_PORT;
	n = addr_to_sockaddr(&a, &ss);
	if (fd < 0 || (connect(fd, (struct sockaddr *)&ss, n) < 0 && errno != EINPROGRESS)) {
		perror("gateway: connect");
		exit(1);
	}
	kinds[fd] = 1;
	epoll_ctl(ep, EPOLL_CTL_ADD, fd,
		  &(struct epoll_event) { .events = EPOLLOUT, .data.fd = fd });
}

/* Connections a second: connect, a byte there and back, close. */
static double new_connections(const struct subject *s, int ms)
{
	int ep = epoll_create1(EPOLL_CLOEXEC), open = 0;
	struct epoll_event ev[BATCH];
	uint64_t done = 0, failed = 0;
	int64_t start = clock_mono_ms(), now;
	char c = 'E';

	rig_enter(&rig, RIG_GUEST);
	for (; open < CLIENTS; open++)
		dial_start(s, ep);
	while ((now = clock_mono_ms()) < start + ms) {
		int k = epoll_wait(ep, ev, BATCH, 100);

		for (int i = 0; i < k; i++) {
			int fd = ev[i].data.fd;

			if (ev[i].events == EPOLLOUT) {
				if (send(fd, &c, 1, MSG_NOSIGNAL) == 1)
					epoll_ctl(ep, EPOLL_CTL_MOD, fd,
						  &(struct epoll_event) { .events = EPOLLIN,
									  .data.fd = fd });
				continue;
			}
			if (recv(fd, &c, 1, 0) == 1)
				done++;
			else
				failed++;
			close(fd);
			kinds[fd] = 0;
			dial_start(s, ep);
		}
	}
	rig_leave(&rig);
	close(ep);
	for (int fd = 0; fd < FDS_MAX; fd++) {
		if (kinds[fd])
			close(fd);
		kinds[fd] = 0;
	}
	if (failed)
		fprintf(stderr, "gateway: %s: %llu connections failed\n", s->name,
			(unsigned long long)failed);
	return (double)done * 1000 / (double)(now - start);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	return v[n / 2];
}

/* Microseconds until the first byte has come back on a new connection, one after the other. */
static double latency(const struct subject *s, int n)
{
	double *v = x_array((size_t)n, sizeof(*v)), m;

	for (int i = 0; i < n; i++) {
		int64_t t = clock_mono_us();
		int fd = dial(s);
		char c = 'E';

		rig_send(fd, &c, 1);
		if (rig_recv(fd, &c, 1) != 1)
			exit(1);
		v[i] = (double)(clock_mono_us() - t);
		close(fd);
	}
	m = median(v, n);
	free(v);
	return m;
}

static void idle(const struct subject *s, json_t *out)
{
	static int fds[IDLE];
	long before = memory_kib(s), after;
	int64_t start = clock_mono_ms();
	char c = 'E';

	for (int i = 0; i < IDLE; i++) {
		fds[i] = dial(s);
		rig_send(fds[i], &c, 1);
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < IDLE; i++) {
			if (round)
				rig_send(fds[i], &c, 1);
			if (rig_recv(fds[i], &c, 1) != 1) {
				fprintf(stderr, "gateway: %s: connection %d of %d is gone\n",
					s->name, i, IDLE);
				exit(1);
			}
		}
	}
	after = memory_kib(s);
	json_object_set_new(out, "idle_connections", json_integer(IDLE));
	json_object_set_new(out, "idle_bytes_each",
			    json_real((double)(after - before) * 1024 / IDLE));
	json_object_set_new(out, "idle_open_ms", json_integer(clock_mono_ms() - start));
	for (int i = 0; i < IDLE; i++)
		close(fds[i]);
}

/* ---- The run ---- */

static pid_t nginx_start(void)
{
	static const char conf[] =
		"load_module /usr/lib/nginx/modules/ngx_stream_module.so; daemon off; master_process off; user root;\n"
		"pid /dev/null; error_log /dev/null; worker_rlimit_nofile 19000;\n"
		"events { worker_connections 16000; }\n"
		"stream { server { listen 10.0.3.1:5001 backlog=4096; proxy_pass " SERVER ":5001; } }\n";
	char path[] = "/tmp/bench-nginx-XXXXXX";
	int fd = mkstemp(path);
	pid_t pid;

	if (fd < 0 || fd_write_all(fd, conf, strlen(conf), -1) < 0)
		exit(1);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		rig_enter(&rig, RIG_NODE);
		execlp("nginx", "nginx", "-p", "/tmp", "-c", path, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 500; i++) {
		int c = rig_connect(&rig, RIG_GUEST, "10.0.3.1", SERVER_PORT);

		if (c >= 0) {
			close(c);
			unlink(path);
			return pid;
		}
		usleep(10000);
	}
	fputs("gateway: nginx does not start (setup.sh --test installs it and its stream module)\n",
	      stderr);
	exit(1);
}

static void sysctls(enum rig_ns ns)
{
	static const struct { const char *path, *value; } all[] = {
		{ "/proc/sys/net/ipv4/ip_local_port_range", "1024 65000" },
		{ "/proc/sys/net/ipv4/tcp_tw_reuse", "1" },
	};

	rig_enter(&rig, ns);
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		int fd = open(all[i].path, O_WRONLY);

		if (fd < 0 || write(fd, all[i].value, strlen(all[i].value)) < 0)
			perror(all[i].path);
		fd_close(fd);
	}
	rig_leave(&rig);
}

static void network(void)
{
	char text[256];

	rig_net(&rig);
	str_format(text, sizeof(text),
		   "link add side type veth peer name eth1 netns /proc/%d/fd/%d\n", (int)getpid(),
		   rig.ns[RIG_GUEST]);
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch", text);
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch",
	       "addr add 10.0.3.1/24 dev side\nlink set side up\n");
	rig_sh(&rig, RIG_GUEST, "/usr/sbin/ip", "-batch",
	       "addr add 10.0.3.15/24 dev eth1\nlink set eth1 up\n");
	sysctls(RIG_GUEST);
	sysctls(RIG_NODE);
	sysctls(RIG_INTERNET);
}

enum { DOWN, UP, RATE, LATENCY, FIGURES };
static const char *const figure_names[FIGURES] = { "down_bytes_s", "up_bytes_s", "connections_s",
						   "first_byte_us" };

static double figure(const struct subject *s, int which, int ms)
{
	return which == DOWN   ? throughput(s, 'D', ms)
	       : which == UP   ? throughput(s, 'U', ms)
	       : which == RATE ? new_connections(s, ms)
			       : latency(s, ms / 4);
}

static void measure(struct subject subjects[2], int rounds, int ms, json_t *out[2])
{
	for (int which = 0; which < FIGURES; which++) {
		double v[2][ROUNDS_MAX], cpu[2] = { 0 };

		for (int round = 0; round < rounds; round++) {
			for (int i = 0; i < 2; i++) {
				double before = cpu_s(&subjects[i]);

				v[i][round] = figure(&subjects[i], which, ms);
				cpu[i] += cpu_s(&subjects[i]) - before;
			}
		}
		for (int i = 0; i < 2; i++) {
			char name[64];

			str_format(name, sizeof(name), "%s_cpu_s", figure_names[which]);
			json_object_set_new(out[i], name, json_real(cpu[i] / rounds));
			json_object_set_new(out[i], figure_names[which],
					    json_real(median(v[i], rounds)));
		}
	}
}

int main(int argc, char **argv)
{
	static const char *const args[] = { "--limit", "connections-per-s=0", "--limit",
					    "dials=8192", NULL };
	bool quick = argc == 3 && str_eq(argv[2], "--quick");
	struct rlimit files;
	struct subject subjects[2] = { { "space", SERVER, { 0 } }, { "nginx", "10.0.3.1", { 0 } } };
	json_t *out[2] = { json_object(), json_object() };
	int listener;
	pid_t server;

	if (argc < 2 || (argc == 3 && !quick) || argc > 3) {
		fputs("usage: gateway NETGTW [--quick]\n", stderr);
		return 2;
	}
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	network();
	listener = rig_listen(&rig, RIG_INTERNET, SERVER, SERVER_PORT);
	server = fork();
	if (server == 0)
		server_run(listener);
	close(listener);
	rig_start(&rig, &(struct rig_conf){ .program = argv[1], .main_args = args });
	rig_install(&rig);
	rig_open(&rig);
	memcpy(subjects[0].pids, rig.pid, sizeof(rig.pid));
	subjects[1].pids[0] = nginx_start();
	measure(subjects, quick ? 1 : 5, quick ? 300 : 1500, out);
	for (int i = 0; i < 2; i++)
		idle(&subjects[i], out[i]);
	printf("{\"space\": ");
	json_dumpf(out[0], stdout, JSON_REAL_PRECISION(6));
	printf(", \"nginx\": ");
	json_dumpf(out[1], stdout, JSON_REAL_PRECISION(6));
	puts("}");
	for (int i = 0; i < 2; i++)
		json_decref(out[i]);
	kill(subjects[1].pids[0], SIGKILL);
	kill(server, SIGKILL);
	rig_stop(&rig);
	return 0;
}
