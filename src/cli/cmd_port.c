/*
 * `space port-forward`: ports of this machine that lead to ports of a sandbox. Each connection that
 * is accepted asks the API for a tunnel (GET .../ports/N/tunnel with Upgrade: space-tunnel), over a
 * connection of its own that a worker makes; after its 101 bytes go both ways through a relay,
 * half-closes included. A connection that gets no tunnel is reset, and the reason is said once a
 * connection on stderr.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/str.h"
#include "cli/cli.h"
#include "loop/conn.h"
#include "loop/listen.h"
#include "loop/loop.h"
#include "loop/relay.h"
#include "loop/work.h"

#define PORTS_MAX 32
#define OPEN_MAX 1024                    /* connections at once; beyond: reset */
#define ANSWER_MS 30000
#define DIALERS 8                        /* that make connections to the API at once */
#define IN_MAX (2 * HTTP_HEAD_MAX)

struct forward_port {
	struct fw *fw;
	uint16_t local, remote;
	struct listener *listener;
};

struct fw {
	struct cli *c;
	struct loop *loop;
	struct work *work;
	struct list opens;
	size_t n_open;
	const char *address;
	char id[64];
	struct forward_port ports[PORTS_MAX];
	size_t n_ports;
};

/* A connection of a client: on its way, then a relay that has both sockets. */
struct fw_open {
	struct list node;
	struct forward_port *port;
	int client;
	bool dialing;                    /* a worker has it: fd and err are the worker's */
	int fd;
	struct err err;
	struct conn *api;
	struct relay *relay;
};

static void reset(int fd)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	fd_close(fd);
}

static void open_free(struct fw_open *o)
{
	list_del(&o->node);
	o->port->fw->n_open--;
	free(o);
}

/* Without a tunnel. */
static void give_up(struct fw_open *o, const char *why)
{
	if (why)
		cli_note(o->port->fw->c, "port %u: %s", o->port->remote, why);
	conn_free(o->api);
	if (o->client >= 0)
		reset(o->client);
	open_free(o);
}

static void on_relay_end(struct relay *r, const struct relay_end *end, void *arg)
{
	open_free(arg);
}

static void open_done(struct fw_open *o, struct buf *in)
{
	struct fw *fw = o->port->fw;
	size_t n = buf_len(in);
	autofree char *rest = x_alloc(n + 1);
	int fd;

	memcpy(rest, buf_data(in), n);
	buf_consume(in, n);
	fd = conn_detach(TAKE(o->api));
	o->relay = relay_new(fw->loop, TAKE_FD(o->client), fd, NULL, 0, rest, n, on_relay_end, o);
	if (!o->relay) {
		cli_note(fw->c, "no descriptors are left for another connection");
		open_free(o);
	}
}

/* The sentence of an answer that is no tunnel, as far as it has come. */
static void refused(struct fw_open *o, const struct http_head *h, struct buf *in)
{
	struct err e = { 0 };

	api_error(o->port->fw->c, h->status, http_get(h, "X-Request-Id"), buf_data(in), buf_len(in),
		  &e);
	give_up(o, e.text);
}

static void on_answer(struct fw_open *o, bool ended)
{
	struct buf *in = conn_in(o->api);
	enum http_error err;
	struct http_head h;
	ssize_t n = 0;

	if (buf_len(in))
		n = http_parse_response(buf_data(in), buf_len(in), "GET", &h, &err);
	if (n < 0 || (n == 0 && ended)) {
		give_up(o, n < 0 ? "what answers is no SPACE API" : "the API ended the connection");
		return;
	}
	if (n == 0)
		return;
	if (h.status == 101) {
		buf_consume(in, (size_t)n);
		open_done(o, in);
	} else if (ended || h.body != HTTP_BODY_LENGTH || buf_len(in) >= (size_t)n + h.length ||
		   buf_room(in) == 0) {
		buf_consume(in, (size_t)n);
		refused(o, &h, in);
	}
	http_head_done(&h);
}

static void on_api(struct conn *c, enum conn_event ev, void *arg)
{
	struct fw_open *o = arg;

	if (ev == CONN_ERROR)
		give_up(o, "the API cannot be reached");
	else if (ev == CONN_TIMEOUT)
		give_up(o, "the API did not answer in time");
	else if (ev == CONN_DATA || ev == CONN_EOF)
		on_answer(o, ev == CONN_EOF);
}

static void ask(struct fw_open *o)
{
	struct fw *fw = o->port->fw;
	autofree char *text = x_asprintf("GET /v1/sandboxes/%s/ports/%u/tunnel HTTP/1.1\r\n"
					 "Host: %s\r\nX-API-Key: %s\r\nConnection: Upgrade\r\n"
					 "Upgrade: space-tunnel\r\n\r\n",
					 fw->id, o->port->remote, fw->c->host, fw->c->api_key);

	conn_write(o->api, text, strlen(text));
	conn_set_timeout(o->api, ANSWER_MS);
	explicit_bzero(text, strlen(text));
}

static void dial(void *arg)
{
	struct fw_open *o = arg;

	o->fd = cli_dial(o->port->fw->c, ANSWER_MS, &o->err);
}

static void dialled(void *arg)
{
	struct fw_open *o = arg;

	o->dialing = false;
	if (o->fd < 0) {
		give_up(o, o->err.text);
		return;
	}
	fd_set_nonblock(o->fd, true);
	o->api = conn_new(o->port->fw->loop, o->fd, IN_MAX, IN_MAX, on_api, o);
	ask(o);
}

static void on_accept(int fd, void *arg)
{
	struct forward_port *p = arg;
	struct fw *fw = p->fw;
	struct fw_open *o;

	if (fw->n_open >= OPEN_MAX) {
		cli_note(fw->c, "more than %d connections at once", OPEN_MAX);
		reset(fd);
		return;
	}
	o = x_alloc(sizeof(*o));
	o->port = p;
	o->client = fd;
	list_add_tail(&fw->opens, &o->node);
	fw->n_open++;
	o->dialing = work_add(fw->work, NULL, dial, dialled, o) == 0;
	if (!o->dialing)
		give_up(o, "too many connections wait");
}

/* "8080" or "8080:80"; a local 0 is any that is free. */
static int parse_pair(const char *text, struct forward_port *p)
{
	const char *colon = strchr(text, ':');
	uint64_t local, remote;

	if (str_to_u64(colon ? colon + 1 : text, 65535, &remote) < 0 || remote == 0 ||
	    str_to_u64_n(text, colon ? (size_t)(colon - text) : strlen(text), 65535, &local) < 0)
		return -EINVAL;
	p->local = (uint16_t)local;
	p->remote = (uint16_t)remote;
	return 0;
}

static int listen_one(struct fw *fw, struct forward_port *p, struct err *e)
{
	bool six = strchr(fw->address, ':') != NULL;
	autofree char *addr = x_asprintf(six ? "tcp:[%s]:%u" : "tcp:%s:%u", fw->address, p->local);
	struct sockaddr_storage sa = { 0 };
	socklen_t n = sizeof(sa);
	int r = listener_new(fw->loop, "port", addr, 0, on_accept, p, &p->listener, e);

	if (r < 0)
		return r;
	getsockname(listener_fd(p->listener), (struct sockaddr *)&sa, &n);
	p->local = ntohs(six ? ((struct sockaddr_in6 *)&sa)->sin6_port
			     : ((struct sockaddr_in *)&sa)->sin_port);
	return 0;
}

static void say_ports(struct fw *fw)
{
	bool six = strchr(fw->address, ':') != NULL;
	json_t *list = json_array();

	for (size_t i = 0; i < fw->n_ports; i++) {
		struct forward_port *p = &fw->ports[i];

		if (fw->c->json)
			json_array_append_new(list,
					      json_pack("{s:s,s:i,s:i}", "address", fw->address,
							"local", p->local, "remote", p->remote));
		else
			printf(six ? "[%s]:%u -> %s:%u\n" : "%s:%u -> %s:%u\n", fw->address,
			       p->local, fw->id, p->remote);
	}
	if (fw->c->json)
		cli_print_json(list);
	json_decref(list);
	fflush(stdout);
}

static void on_signal(int signo, void *arg)
{
	struct fw *fw = arg;

	loop_stop(fw->loop);
}

/*
 * Whose connection is cut here is told by a reset: it is no end of what the other side sent. Who
 * still dials is not waited for, and ends with the program.
 */
static void end_all(struct fw *fw)
{
	LIST_FOR_SAFE(&fw->opens, o, struct fw_open, node) {
		if (o->dialing)
			reset(TAKE_FD(o->client));
		else if (o->relay)
			relay_cut(o->relay);
		else
			give_up(o, NULL);
	}
	for (size_t i = 0; i < fw->n_ports; i++)
		listener_free(fw->ports[i].listener);
	if (fw->work && work_pending(fw->work))
		return;
	work_free(fw->work);
	loop_free(fw->loop);
}

static int serve(struct fw *fw, struct err *e)
{
	int r = 0;

	fw->loop = loop_new();
	if (!fw->loop || loop_signal(fw->loop, SIGINT, on_signal, fw) < 0 ||
	    loop_signal(fw->loop, SIGTERM, on_signal, fw) < 0)
		r = err_set(e, -EMFILE, "no descriptors are left");
	if (r >= 0)
		fw->work = work_new(fw->loop, DIALERS);      /* with the signals blocked */
	for (size_t i = 0; i < fw->n_ports && r >= 0; i++)
		r = listen_one(fw, &fw->ports[i], e);
	if (r >= 0) {
		say_ports(fw);
		r = loop_run(fw->loop);
	}
	end_all(fw);
	return r;
}

int cmd_port_forward(struct cli *c, int argc, char **argv)
{
	const char *address = NULL;
	const struct cli_option opts[] = {
		{ "--address", "ADDRESS", "to listen on (default: 127.0.0.1)", &address, false },
		{ 0 },
	};
	struct fw fw = { .c = c };
	int n = cli_parse(c, argc, argv, opts, -1), r;
	struct err e = { 0 };
	json_t *v;

	PARSED(n);
	if (n < 2)
		return cli_usage_error(c, "which sandbox, and which ports?");
	if (n - 1 > PORTS_MAX)
		return cli_usage_error(c, "at most %d ports", PORTS_MAX);
	for (int i = 2; i <= n; i++) {
		fw.ports[fw.n_ports].fw = &fw;
		if (parse_pair(argv[i], &fw.ports[fw.n_ports++]) < 0)
			return cli_usage_error(c, "\"%s\" is not PORT or LOCAL:REMOTE", argv[i]);
	}
	fw.address = address ? address : "127.0.0.1";
	list_init(&fw.opens);
	r = creds_load(c, &e);
	if (r >= 0)
		r = box_id(c, argv[1], fw.id, &e);
	if (r >= 0 && (r = cli_get_sandbox(c, fw.id, &v, &e)) >= 0)
		json_decref(v);
	if (r >= 0)
		r = serve(&fw, &e);
	return r < 0 ? cli_fail(c, &e) : 0;
}
