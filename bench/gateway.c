/*
 * The network gateway beside nginx's stream module, in one run and with the same bytes: a load
 * generator (load.c) in the guest's place on a veth, its server in a namespace that is the internet
 * (the rig of the unit tests). The real three processes under their real lists of system calls;
 * nginx (one worker) in the node's namespace, with a veth of its own to the guest's. Beside both,
 * the direct way: over nginx's veth too, but the node's kernel forwards the packets. Rounds
 * alternate; medians are what is printed, as JSON. Needs root.
 *
 *	gateway NETGTW [--quick]
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "load.h"
#include "netgtw/test_rig.h"

#define SERVER "9.9.10.2"
#define SERVER_DIRECT "9.9.10.3"
#define PORT 5001
#define IDLE 5000
#define ROUNDS 5

static struct rig rig;

/* ---- Who is measured ---- */

enum { SPACE, NGINX, DIRECT, SUBJECTS };
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

static void idle(const struct subject *s, json_t *out)
{
	static int fds[IDLE];
	struct sockaddr_in to = load_addr(s->addr, PORT);
	long before = memory_kib(s), after;
	int64_t start = clock_mono_ms();

	rig_enter(&rig, RIG_GUEST);
	for (int i = 0; i < IDLE; i++)
		fds[i] = load_dial(&to);
	rig_leave(&rig);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < IDLE; i++)
			load_echo(fds[i]);
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
		"stream { server { listen 10.0.3.1:5001 backlog=4096; proxy_pass " SERVER ":5001; proxy_half_close on; } }\n";
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
		int c = rig_connect(&rig, RIG_GUEST, "10.0.3.1", PORT);

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

static void sysctl(enum rig_ns ns, const char *path, const char *value)
{
	int fd;

	rig_enter(&rig, ns);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0) {
		perror(path);
		exit(1);
	}
	close(fd);
	rig_leave(&rig);
}

static void network(void)
{
	static const enum rig_ns users[] = { RIG_GUEST, RIG_NODE, RIG_INTERNET };
	char text[256];

	rig_net(&rig);
	str_format(text, sizeof(text),
		   "link add side type veth peer name eth1 netns /proc/%d/fd/%d\n", (int)getpid(),
		   rig.ns[RIG_GUEST]);
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch", text);
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch",
	       "addr add 10.0.3.1/24 dev side\nlink set side up\n");
	rig_sh(&rig, RIG_GUEST, "/usr/sbin/ip", "-batch",
	       "addr add 10.0.3.15/24 dev eth1\nlink set eth1 up\n"
	       "route add " SERVER_DIRECT "/32 via 10.0.3.1\n");
	/* In the table before the one that makes all of 10.0.0.0/8 local over there. */
	rig_sh(&rig, RIG_INTERNET, "/usr/sbin/ip", "-batch",
	       "addr add " SERVER_DIRECT "/24 dev wan\n"
	       "route add 10.0.3.0/24 via 9.9.10.1 table local\n");
	for (size_t i = 0; i < ARRAY_LEN(users); i++) {
		sysctl(users[i], "/proc/sys/net/ipv4/ip_local_port_range", "1024 65000");
		sysctl(users[i], "/proc/sys/net/ipv4/tcp_tw_reuse", "1");
	}
	sysctl(RIG_NODE, "/proc/sys/net/ipv4/ip_forward", "1");
}

static void measure(const struct subject *subjects, bool quick, json_t **out)
{
	static const int amounts[LOAD_FIGURES] = { 1500, 1500, 10000, 375 };
	int rounds = quick ? 1 : ROUNDS;

	for (int which = 0; which < LOAD_FIGURES; which++) {
		double v[SUBJECTS][ROUNDS], cpu[SUBJECTS] = { 0 }, units[SUBJECTS] = { 0 };

		for (int round = 0; round < rounds; round++) {
			for (int i = 0; i < SUBJECTS; i++) {
				struct sockaddr_in to = load_addr(subjects[i].addr, PORT);
				double before = cpu_s(&subjects[i]);
				struct load_result r;

				rig_enter(&rig, RIG_GUEST);
				load_measure(&to, (enum load_figure)which,
					     amounts[which] / (quick ? 5 : 1), &r);
				rig_leave(&rig);
				v[i][round] = r.value;
				units[i] += r.units;
				cpu[i] += cpu_s(&subjects[i]) - before;
			}
		}
		for (int i = 0; i < SUBJECTS; i++)
			json_object_set_new(out[i], load_names[which],
					    json_pack("{s:f, s:f}", "p50",
						      load_median(v[i], rounds), "cpu_s",
						      cpu[i] / units[i]));
	}
}

int main(int argc, char **argv)
{
	static const char *const args[] = { "--limit", "connections-per-s=0", "--limit",
					    "dials=8192", NULL };
	bool quick = argc == 3 && str_eq(argv[2], "--quick");
	struct rlimit files;
	struct subject subjects[SUBJECTS] = { { "space", SERVER, { 0 } },
					      { "nginx", "10.0.3.1", { 0 } },
					      { "direct", SERVER_DIRECT, { 0 } } };
	json_t *out[SUBJECTS], *all = json_object();
	struct sockaddr_in any = load_addr("0.0.0.0", PORT);
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
	rig_enter(&rig, RIG_INTERNET);
	listener = load_listen(&any);
	rig_leave(&rig);
	server = fork();
	if (server == 0)
		load_serve(listener);
	close(listener);
	rig_start(&rig, &(struct rig_conf){ .program = argv[1], .main_args = args });
	rig_install(&rig);
	rig_open(&rig);
	memcpy(subjects[SPACE].pids, rig.pid, sizeof(rig.pid));
	subjects[NGINX].pids[0] = nginx_start();
	for (int i = 0; i < SUBJECTS; i++) {
		out[i] = json_object();
		json_object_set_new(all, subjects[i].name, out[i]);
	}
	measure(subjects, quick, out);
	idle(&subjects[SPACE], out[SPACE]);
	idle(&subjects[NGINX], out[NGINX]);
	json_dumpf(all, stdout, JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
	kill(subjects[NGINX].pids[0], SIGKILL);
	kill(server, SIGKILL);
	rig_stop(&rig);
	return 0;
}
