/* QMP client; see qmp.h. */
#include "vmm/qmp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "ipc/ipc.h"

struct qmp {
	int fd;
	struct buf in;
	uint64_t last_id;
	unsigned strays;             /* answers that were not ours */
	int64_t second_ms;           /* since when `events` are counted */
	unsigned events;
	bool waiting;                /* a command is out; its answer goes to `answer` */
	json_t *answer;
	qmp_event_fn *fn;
	void *arg;
	struct err dead;             /* num != 0: the connection is of no use any more */
};

static void json_auto(json_t **j) { json_decref(*j); }
#define autojson __attribute__((cleanup(json_auto)))

static int fail(struct qmp *q, struct err *e, int num, const char *what)
{
	if (num == -EPROTO)
		err_set(&q->dead, num, "the VMM broke its control protocol: %s", what);
	else if (num == -ECONNRESET)
		err_set(&q->dead, num, "the VMM has closed its control connection");
	else
		err_errno(&q->dead, num, "the VMM's control connection: %s", what);
	if (e)
		*e = q->dead;
	return num;
}

static int dead(const struct qmp *q, struct err *e)
{
	if (q->dead.num && e)
		*e = q->dead;
	return q->dead.num;
}

/*
 * Whoever reads them has other sandboxes to serve. QEMU holds back a few kinds itself, but not all
 * that a guest can cause: each write to the port of pvpanic is one.
 */
static bool too_many_events(struct qmp *q)
{
	int64_t now = clock_mono_ms();

	if (now - q->second_ms >= 1000) {
		q->second_ms = now;
		q->events = 0;
	}
	return ++q->events > QMP_EVENTS_PER_S;
}

static int take_event(struct qmp *q, json_t *msg, struct err *e)
{
	json_t *data = json_object_get(msg, "data");
	const char *name = json_string_value(json_object_get(msg, "event"));

	if (too_many_events(q))
		return fail(q, e, -EPROTO, "events without end");
	if (!name || strlen(name) > QMP_NAME_MAX || (data && !json_is_object(data)))
		return fail(q, e, -EPROTO, "a malformed event");
	q->fn(name, data, q->arg);
	return 0;
}

static int take_answer(struct qmp *q, json_t *msg, struct err *e)
{
	json_t *id = json_object_get(msg, "id");

	if (!json_is_integer(id) || (q->last_id == 0 && !q->answer))
		return fail(q, e, -EPROTO, "an answer to no command");
	if (q->waiting && !q->answer && json_integer_value(id) == (json_int_t)q->last_id) {
		q->answer = json_incref(msg);
		return 0;
	}
	/*
	 * A QEMU that stood still answers the command of a connection that was closed meanwhile over
	 * the next one (seen).
	 */
	return ++q->strays <= QMP_STRAYS_MAX
		       ? 0
		       : fail(q, e, -EPROTO, "answers that nobody asked for");
}

/* One line that has arrived. */
static int take_line(struct qmp *q, const char *p, size_t n, struct err *e)
{
	struct err why = { 0 };
	autojson json_t *msg = ipc_parse_json(p, n, QMP_DEPTH_MAX, &why);

	if (!json_is_object(msg))
		return fail(q, e, -EPROTO, "what it said is no JSON object");
	if (json_object_get(msg, "event"))
		return take_event(q, msg, e);
	if (json_object_get(msg, "return") || json_object_get(msg, "error"))
		return take_answer(q, msg, e);
	if (json_object_get(msg, "QMP") && q->waiting && q->last_id == 0 && !q->answer) {
		q->answer = json_incref(msg);
		return 0;
	}
	return fail(q, e, -EPROTO, "a message of an unknown kind");
}

static int take_lines(struct qmp *q, struct err *e)
{
	while (buf_len(&q->in) > 0) {
		const char *p = buf_data(&q->in);
		const char *end = memchr(p, '\n', buf_len(&q->in));
		size_t n;
		int r;

		if (!end) {
			if (buf_room(&q->in) == 0)
				return fail(q, e, -EPROTO, "a message that is too long");
			return 0;
		}
		n = (size_t)(end - p);
		while (n > 0 && p[n - 1] == '\r')
			n--;
		r = n > 0 ? take_line(q, p, n, e) : 0;
		if (r < 0)
			return r;
		buf_consume(&q->in, (size_t)(end - p) + 1);
	}
	return 0;
}

/* Reads once without blocking and handles whole lines. 0 also when nothing was there. */
static int pump(struct qmp *q, struct err *e)
{
	ssize_t n = buf_read_fd(&q->in, q->fd, QMP_MESSAGE_MAX);

	if (n == -EAGAIN || n == -EINTR)
		return 0;
	if (n == 0)
		return fail(q, e, -ECONNRESET, "");
	if (n < 0)
		return fail(q, e, n == -EPIPE ? -ECONNRESET : (int)n, "reading");
	return take_lines(q, e);
}

static int wait_readable(struct qmp *q, int64_t deadline_ms, struct err *e)
{
	struct pollfd p = { .fd = q->fd, .events = POLLIN };
	int64_t left = deadline_ms - clock_mono_ms();
	int r;

	/*
	 * A deadline that has passed counts even if there is something to read: a VMM that never
	 * falls silent would hold us up.
	 */
	do {
		r = left > 0 ? poll(&p, 1, (int)left) : 0;
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return fail(q, e, -errno, "waiting");
	if (r == 0)
		return err_set(e, -ETIMEDOUT, "the VMM did not answer in time");
	return 0;
}

int qmp_poll(struct qmp *q, struct err *e)
{
	int r = dead(q, e);

	return r < 0 ? r : pump(q, e);
}

int qmp_wait(struct qmp *q, int timeout_ms, struct err *e)
{
	int r = dead(q, e);

	if (r == 0)
		r = wait_readable(q, clock_mono_ms() + timeout_ms, e);
	return r < 0 ? r : pump(q, e);
}

/*
 * The answer of the command that is out. A late one would be taken for that of the next command, so
 * a time-out is final.
 */
static int wait_answer(struct qmp *q, int64_t deadline_ms, json_t **ret, struct err *e)
{
	int r = 0;

	while (!q->answer && r == 0) {
		r = wait_readable(q, deadline_ms, e);
		if (r == -ETIMEDOUT)
			r = fail(q, e, -ETIMEDOUT, "no answer");
		if (r == 0)
			r = pump(q, e);
	}
	q->waiting = false;
	/* What came together with the end of the connection counts. */
	if (!q->answer)
		return r;
	*ret = TAKE(q->answer);
	return 0;
}

static int send_line(struct qmp *q, const char *text, size_t n, int pass_fd, int timeout_ms,
		     struct err *e)
{
	ssize_t sent = 0;
	int r;

	if (pass_fd >= 0) {
		/*
		 * The descriptor belongs to the first byte; what does not fit may follow on its
		 * own.
		 */
		sent = fd_send(q->fd, text, n, &pass_fd, 1, 0);
		if (sent < 0)
			return fail(q, e, sent == -EPIPE ? -ECONNRESET : (int)sent, "sending");
	}
	r = fd_write_all(q->fd, text + sent, n - (size_t)sent, timeout_ms);
	if (r < 0)
		return fail(q, e, r == -EPIPE ? -ECONNRESET : r, "sending");
	return 0;
}

static int refused(json_t *error, const char *command, struct err *e)
{
	const char *class = json_string_value(json_object_get(error, "class"));
	const char *desc = json_string_value(json_object_get(error, "desc"));
	autofree char *text = str_printable(desc ? desc : "no reason", desc ? strlen(desc) : 9);

	return err_set(e, str_eq(class, "CommandNotFound") ? -ENOSYS : -EREMOTEIO,
		       "the VMM refused %s: %.300s", command, text);
}

int qmp_call(struct qmp *q, const char *command, json_t *args, int pass_fd, int timeout_ms,
	     json_t **ret, struct err *e)
{
	int64_t deadline = clock_mono_ms() + timeout_ms;
	autojson json_t *stolen = args, *answer = NULL;
	autojson json_t *msg = json_object();
	autofree char *text = NULL, *line = NULL;
	json_t *error;
	int r = dead(q, e);

	if (r < 0)
		return r;
	json_object_set_new(msg, "execute", json_string(command));
	json_object_set_new(msg, "id", json_integer((json_int_t)++q->last_id));
	if (stolen)
		json_object_set(msg, "arguments", stolen);
	text = json_dumps(msg, JSON_COMPACT);
	line = x_asprintf("%s\r\n", text);
	q->waiting = true;
	r = send_line(q, line, strlen(line), pass_fd, timeout_ms, e);
	if (r == 0)
		r = wait_answer(q, deadline, &answer, e);
	q->waiting = false;
	if (r < 0)
		return r;
	error = json_object_get(answer, "error");
	if (error)
		return refused(error, command, e);
	if (ret)
		*ret = json_incref(json_object_get(answer, "return"));
	return 0;
}

/* {"QMP": {"version": {"qemu": {"major": 10, ...}, ...}, "capabilities": [...]}} */
static int greet(struct qmp *q, int64_t deadline_ms, struct err *e)
{
	autojson json_t *greeting = NULL;
	json_t *major;
	int r;

	q->waiting = true;
	r = wait_answer(q, deadline_ms, &greeting, e);
	if (r < 0)
		return r;
	major = json_object_get(json_object_get(json_object_get(json_object_get(greeting, "QMP"),
								"version"),
						"qemu"),
				"major");
	if (!json_is_integer(major))
		return fail(q, e, -EPROTO, "a malformed greeting");
	return 0;
}

int qmp_open(int fd, qmp_event_fn *fn, void *arg, int timeout_ms, struct qmp **ret, struct err *e)
{
	int64_t deadline = clock_mono_ms() + timeout_ms;
	struct qmp *q = x_alloc(sizeof(*q));
	int r;

	q->fd = fd;
	q->fn = fn;
	q->arg = arg;
	buf_init(&q->in, QMP_MESSAGE_MAX);
	r = fd_set_nonblock(fd, true);
	if (r < 0)
		r = fail(q, e, r, "no descriptor");
	if (r == 0)
		r = greet(q, deadline, e);
	if (r == 0)
		r = qmp_call(q, "qmp_capabilities", NULL, -1, timeout_ms, NULL, e);
	if (r < 0) {
		qmp_free(q);
		return r;
	}
	*ret = q;
	return 0;
}

void qmp_free(struct qmp *q)
{
	if (!q)
		return;
	json_decref(q->answer);
	buf_done(&q->in);
	fd_close(q->fd);
	free(q);
}

int qmp_fd(const struct qmp *q) { return q->fd; }
