/*
 * The smallest thing that can stand in the guest's place, so that a bench measures the path and not
 * the guest. One fixed answer to every request, with two faces:
 *
 *	responder PATH            a plain HTTP/1.1 responder (keep-alive) on a Unix socket: what nginx proxies to
 *	qemu-system-x86_64 ...    (by its name) in the VMM's place, in its jail: QMP on descriptor 3 as far as src/vmm/qemu.c
 *	                          speaks it, and the guest's side of src/mux on descriptor 4. All else of the path is real.
 *
 * Theory of operation. One thread, one epoll. Requests are not parsed beyond what is needed to find
 * their end: the length, or the last chunk, or the end of the stream; who sends them here is known.
 * In the VMM's place only system calls are used that a VMM may use (src/vmm/qemu_argv.c), so plain
 * read(2) and write(2) on sockets.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "mux/mux.h"

#define REQUEST_MAX 65536            /* the plain face: head and body */
#define STREAM_HEAD_MAX 8192
#define QMP_LINE_MAX 65536
#define EVENTS_MAX 64
#define READ_BYTES 16384

#define ANSWER_BODY "ok\n"
#define ANSWER "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n" ANSWER_BODY
#define ANSWER_NONE "HTTP/1.1 204 No Content\r\n\r\n"

struct io {
	int fd;
	void (*fn)(struct io *io, uint32_t events);
};

static int epfd;

static void die(const char *what)
{
	fprintf(stderr, "responder: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void io_set(struct io *io, int op, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = io };

	if (epoll_ctl(epfd, op, io->fd, &ev) < 0)
		die("epoll_ctl");
}

/* ---- Requests: where one ends ---- */

static const char *find_field(const char *p, const char *end, const char *name)
{
	size_t n = strlen(name);

	for (; p && p + n < end; p = memchr(p, '\n', (size_t)(end - p)), p = p ? p + 1 : NULL) {
		if (strncasecmp(p, name, n) == 0)
			return p + n;
	}
	return NULL;
}

/* Bytes of the head with its empty line; 0 = not whole. */
static size_t head_bytes(const char *p, size_t n)
{
	const char *end = memmem(p, n, "\r\n\r\n", 4);

	return end ? (size_t)(end - p) + 4 : 0;
}

static bool body_is_chunked(const char *p, size_t head)
{
	return find_field(p, p + head, "Transfer-Encoding:") != NULL;
}

static uint64_t body_length(const char *p, size_t head)
{
	const char *v = find_field(p, p + head, "Content-Length:");

	return v ? strtoull(v, NULL, 10) : 0;
}

/* ---- The plain face ---- */

struct client { struct io io; struct buf in, out; };

static void client_write(struct client *c)
{
	while (buf_len(&c->out) > 0) {
		ssize_t n = buf_write_fd(&c->out, c->io.fd);

		if (n < 0)
			break;
	}
	io_set(&c->io, EPOLL_CTL_MOD, EPOLLIN | (buf_len(&c->out) ? (uint32_t)EPOLLOUT : 0));
}

static void client_answer_all(struct client *c)
{
	for (;;) {
		size_t head = head_bytes(buf_data(&c->in), buf_len(&c->in));
		uint64_t whole = head ? head + body_length(buf_data(&c->in), head) : 0;

		if (head == 0 || buf_len(&c->in) < whole)
			return;
		buf_consume(&c->in, (size_t)whole);
		if (buf_puts(&c->out, ANSWER) < 0)
			return;
	}
}

static void on_client(struct io *io, uint32_t events)
{
	struct client *c = CONTAINER_OF(io, struct client, io);

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		ssize_t n = buf_read_fd(&c->in, io->fd, READ_BYTES);

		if (n == 0 || (n < 0 && n != -EAGAIN)) {
			close(io->fd);
			buf_done(&c->in);
			buf_done(&c->out);
			free(c);
			return;
		}
	}
	client_answer_all(c);
	if (buf_len(&c->out))
		client_write(c);
}

static void on_listener(struct io *io, uint32_t events)
{
	int fd;

	while ((fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		struct client *c = x_alloc(sizeof(*c));

		c->io = (struct io){ fd, on_client };
		buf_init(&c->in, REQUEST_MAX);
		buf_init(&c->out, REQUEST_MAX);
		io_set(&c->io, EPOLL_CTL_ADD, EPOLLIN);
	}
}

/* ---- The VMM's place: control ---- */

static const char *run_state = "running";
static int held_fd = -1;             /* the newest that add-fd brought */

struct control { struct io io; struct buf in; };

/* write(2) on a blocking socket: a VMM may not use send(2). */
static void control_say(struct control *q, const char *text)
{
	for (size_t n = strlen(text); n > 0;) {
		ssize_t r = write(q->io.fd, text, n);

		if (r < 0)
			exit(1);
		text += r;
		n -= (size_t)r;
	}
}

/* Events first or after: QEMU's order differs too, and the driver takes both. */
static void control_return(struct control *q, unsigned long long id, const char *value,
			   const char *event)
{
	autofree char *line =
		x_asprintf("{\"return\": %s, \"id\": %llu}\r\n%s", value, id, event ? event : "");

	control_say(q, line);
}

static void do_status(struct control *q, unsigned long long id)
{
	autofree char *v = x_asprintf("{\"status\": \"%s\", \"running\": false}", run_state);

	control_return(q, id, v, NULL);
}

static void do_incoming(struct control *q, unsigned long long id)
{
	run_state = "paused";
	control_return(q, id, "{}",
		       "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\r\n");
}

static void do_stop(struct control *q, unsigned long long id)
{
	run_state = "paused";
	control_return(q, id, "{}", "{\"event\": \"STOP\"}\r\n");
}

static void do_cont(struct control *q, unsigned long long id)
{
	run_state = "running";
	control_return(q, id, "{}", "{\"event\": \"RESUME\"}\r\n");
}

static void do_save(struct control *q, unsigned long long id)
{
	static const char state[] = "the responder's device state\n";

	if (held_fd < 0 || write(held_fd, state, sizeof(state) - 1) != sizeof(state) - 1)
		exit(1);
	control_return(q, id, "{}", NULL);
}

static void do_quit(struct control *q, unsigned long long id)
{
	control_return(q, id, "{}", NULL);
	exit(0);
}

static void do_nothing(struct control *q, unsigned long long id)
{
	control_return(q, id, "{}", NULL);
}
static void do_add_fd(struct control *q, unsigned long long id)
{
	control_return(q, id, "{\"fdset-id\": 7, \"fd\": 9}", NULL);
}
static void do_console(struct control *q, unsigned long long id)
{
	control_return(q, id, "\"\"", NULL);
}

static const struct {
	const char *name;
	void (*fn)(struct control *q, unsigned long long id);
} commands[] = {
	{ "query-status", do_status },
	{ "migrate-incoming", do_incoming },
	{ "stop", do_stop },
	{ "cont", do_cont },
	{ "xen-save-devices-state", do_save },
	{ "quit", do_quit },
	{ "add-fd", do_add_fd },
	{ "ringbuf-read", do_console },
	{ "qmp_capabilities", do_nothing },
	{ "remove-fd", do_nothing },
	{ "migrate-set-capabilities", do_nothing },
	{ "query-migrate", do_nothing },
};

/* Our own driver wrote it: the name and the number are found by their keys. */
static void control_line(struct control *q, const char *line)
{
	const char *name = strstr(line, "\"execute\""), *id = strstr(line, "\"id\"");
	unsigned long long number = id ? strtoull(id + strcspn(id, "0123456789"), NULL, 10) : 0;

	name = name ? strchr(name + strlen("\"execute\""), '"') : NULL;
	for (size_t i = 0; name && i < ARRAY_LEN(commands); i++) {
		size_t n = strlen(commands[i].name);

		if (strncmp(name + 1, commands[i].name, n) == 0 && name[1 + n] == '"') {
			commands[i].fn(q, number);
			return;
		}
	}
	control_say(
		q,
		"{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"not known here\"}}\r\n");
}

static void on_control(struct io *io, uint32_t events)
{
	struct control *q = CONTAINER_OF(io, struct control, io);
	char block[4096], *end;
	int fds[FD_PASS_MAX];
	size_t n_fds = FD_PASS_MAX;
	ssize_t n = fd_recv(io->fd, block, sizeof(block), fds, &n_fds, 0);

	if (n == -EAGAIN || n == -EINTR)
		return;
	if (n <= 0) {
		close(io->fd);
		buf_done(&q->in);
		free(q);
		return;
	}
	for (size_t i = 0; i < n_fds; i++) {
		fd_close(held_fd);
		held_fd = fds[i];
	}
	if (buf_put(&q->in, block, (size_t)n) < 0)
		exit(1);
	while ((end = memchr(buf_data(&q->in), '\n', buf_len(&q->in)))) {
		autofree char *line = x_strndup(buf_data(&q->in), (size_t)(end - buf_data(&q->in)));

		buf_consume(&q->in, strlen(line) + 1);
		control_line(q, line);
	}
}

static void on_control_listener(struct io *io, uint32_t events)
{
	int fd = accept4(io->fd, NULL, NULL, SOCK_CLOEXEC);
	struct control *q;

	if (fd < 0)
		return;
	q = x_alloc(sizeof(*q));
	q->io = (struct io){ fd, on_control };
	buf_init(&q->in, QMP_LINE_MAX);
	control_say(
		q,
		"{\"QMP\": {\"version\": {\"qemu\": {\"major\": 10, \"minor\": 0, \"micro\": 0}}, \"capabilities\": [\"oob\"]}}\r\n");
	io_set(&q->io, EPOLL_CTL_ADD, EPOLLIN);
}

/* ---- The VMM's place: the guest ---- */

struct stream {
	char head[STREAM_HEAD_MAX];
	size_t n;                    /* bytes of it; grows until the head is whole */
	uint64_t body_left;
	bool has_head, chunked, complete, answered, ended;
	char tail[5];                /* the newest bytes of a chunked body */
	const char *answer;
	struct stream *next;         /* waits for room */
	uint32_t id;
};

static struct mux *mux;
static struct io channel = { .fd = -1 };
static struct stream *waiting;

static void channel_arm(void)
{
	static bool armed;
	bool want = buf_len(mux_out(mux)) > 0;

	if (want != armed)
		io_set(&channel, EPOLL_CTL_MOD, EPOLLIN | (want ? (uint32_t)EPOLLOUT : 0));
	armed = want;
}

static void stream_drop(struct stream *s)
{
	for (struct stream **p = &waiting; *p; p = &(*p)->next) {
		if (*p == s) {
			*p = s->next;
			break;
		}
	}
	free(s);
}

static bool stream_answer(struct stream *s)
{
	size_t n = strlen(s->answer);

	if (mux_can_send(mux, s->id) < n)
		return false;
	mux_send(mux, s->id, s->answer, n);
	mux_end(mux, s->id);
	s->answered = true;
	if (s->ended)
		free(s);
	return true;
}

static void stream_complete(struct stream *s)
{
	if (s->complete)
		return;
	s->complete = true;
	s->answer = strncmp(s->head, "POST /init ", 11) == 0 ||
				    strncmp(s->head, "POST /prepare ", 14) == 0 ||
				    strncmp(s->head, "POST /shutdown ", 15) == 0
			    ? ANSWER_NONE
			    : ANSWER;
	if (!stream_answer(s)) {
		s->next = waiting;
		waiting = s;
	}
}

static void stream_body(struct stream *s, const uint8_t *p, size_t n)
{
	if (s->chunked) {
		for (size_t i = n > sizeof(s->tail) ? n - sizeof(s->tail) : 0; i < n; i++) {
			memmove(s->tail, s->tail + 1, sizeof(s->tail) - 1);
			s->tail[sizeof(s->tail) - 1] = (char)p[i];
		}
		if (memcmp(s->tail, "0\r\n\r\n", sizeof(s->tail)) == 0)
			stream_complete(s);
		return;
	}
	s->body_left -= n < s->body_left ? n : s->body_left;
	if (s->body_left == 0)
		stream_complete(s);
}

static void stream_data(struct stream *s, const uint8_t *p, size_t n)
{
	size_t take = sizeof(s->head) - s->n, before = s->n, head;

	if (s->has_head) {
		stream_body(s, p, n);
		return;
	}
	take = n < take ? n : take;
	memcpy(s->head + s->n, p, take);
	s->n += take;
	head = head_bytes(s->head, s->n);
	if (head == 0)
		return;
	s->has_head = true;
	s->chunked = body_is_chunked(s->head, head);
	s->body_left = body_length(s->head, head);
	stream_body(s, p + (head - before), n - (head - before));
}

static void guest_event(const struct mux_event *e)
{
	struct stream *s = e->user;

	if (e->type == MUX_EV_OPEN) {
		s = x_alloc(sizeof(*s));
		s->id = e->stream;
		mux_set_user(mux, e->stream, s);
	} else if (e->type == MUX_EV_DATA) {
		mux_taken(mux, e->stream, e->len);
		if (s && !s->complete)
			stream_data(s, e->data, e->len);
	} else if (e->type == MUX_EV_RST && s) {
		stream_drop(s);
	} else if (e->type == MUX_EV_END && s) {
		s->ended = true;
		if (s->answered)
			free(s);
		else if (s->has_head)
			stream_complete(s);
	}
}

static void on_channel(struct io *io, uint32_t events)
{
	struct mux_event e;

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		size_t room;
		void *p = mux_in_reserve(mux, &room);
		ssize_t n = p ? read(io->fd, p, room) : -1;

		if (n > 0)
			mux_in_commit(mux, (size_t)n);
		if (n == 0 || (n < 0 && p && errno != EAGAIN && errno != EINTR)) {
			close(io->fd);
			io->fd = -1;
			mux_drop(mux);
		}
	}
	while (mux_next(mux, &e))
		guest_event(&e);
	if (io->fd < 0)
		return;
	while (buf_len(mux_out(mux)) && buf_write_fd(mux_out(mux), io->fd) > 0)
		;
	while (waiting) {
		struct stream *s = waiting;

		waiting = s->next;
		s->next = NULL;
		if (!stream_answer(s)) {
			s->next = waiting;
			waiting = s;
			break;
		}
	}
	channel_arm();
}

/*
 * A VMM's port takes one host side at a time; a new one takes the place of an old one that has
 * left.
 */
static void on_channel_listener(struct io *io, uint32_t events)
{
	int fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (channel.fd >= 0) {
		close(fd);
		return;
	}
	channel = (struct io){ fd, on_channel };
	io_set(&channel, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
	io_set(&channel, EPOLL_CTL_MOD, EPOLLIN | (buf_len(mux_out(mux)) ? (uint32_t)EPOLLOUT : 0));
}

/* ---- Both ---- */

static void serve(void)
{
	for (;;) {
		struct epoll_event ev[EVENTS_MAX];
		int n = epoll_wait(epfd, ev, EVENTS_MAX, -1);

		if (n < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < n; i++) {
			struct io *io = ev[i].data.ptr;

			io->fn(io, ev[i].events);
		}
	}
}

static int in_vmms_place(int argc, char **argv)
{
	static struct io control = { 3, on_control_listener }, port = { 4, on_channel_listener };

	for (int i = 1; i < argc; i++) {
		if (str_eq(argv[i], "-incoming"))
			run_state = "inmigrate";
		/* The probe for KVM asks whether a VM runs on it; there is none here. */
		if (strstr(argv[i], "kvm"))
			return 1;
	}
	mux = mux_new(MUX_GUEST);
	if (listen(control.fd, 4) < 0 || listen(port.fd, 4) < 0)
		die("listen");
	fd_set_nonblock(control.fd, true);
	fd_set_nonblock(port.fd, true);
	io_set(&control, EPOLL_CTL_ADD, EPOLLIN);
	io_set(&port, EPOLL_CTL_ADD, EPOLLIN);
	serve();
	return 0;
}

static int plain(const char *path)
{
	static struct io listener = { -1, on_listener };
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	unlink(path);
	if (listener.fd < 0 || str_copy(a.sun_path, sizeof(a.sun_path), path) < 0 ||
	    bind(listener.fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener.fd, 512) < 0)
		die(path);
	io_set(&listener, EPOLL_CTL_ADD, EPOLLIN);
	serve();
	return 0;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');

	signal(SIGPIPE, SIG_IGN);
	epfd = epoll_create1(EPOLL_CLOEXEC);
	if (epfd < 0)
		die("epoll_create1");
	if (str_eq(slash ? slash + 1 : argv[0], "qemu-system-x86_64"))
		return in_vmms_place(argc, argv);
	if (argc != 2) {
		fprintf(stderr, "usage: responder PATH\n");
		return 2;
	}
	return plain(argv[1]);
}
