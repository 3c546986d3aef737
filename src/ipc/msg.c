#include "ipc/msg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/str.h"

struct ipc_error { int64_t num; char code[ERR_CODE_MAX]; char text[ERR_TEXT_MAX]; };
struct ipc_answer { uint64_t id; json_t *r, *e; };
struct ipc_event { char ev[IPC_NAME_MAX]; json_t *a; };

static const struct ipc_field request_fields[] = {
	IPC_F_U64(struct ipc_request, v, 0),
	IPC_F_STR(struct ipc_request, op),
	IPC_F_U64(struct ipc_request, id, 0),
	IPC_F_STR_OPT(struct ipc_request, req),
	IPC_F_JSON_OPT(struct ipc_request, a),
	IPC_F_END,
};

static const struct ipc_field answer_fields[] = {
	IPC_F_U64(struct ipc_answer, id, 0),
	IPC_F_JSON_OPT(struct ipc_answer, r),
	IPC_F_JSON_OPT(struct ipc_answer, e),
	IPC_F_END,
};

static const struct ipc_field error_fields[] = {
	IPC_F_I64(struct ipc_error, num),
	IPC_F_STR(struct ipc_error, code),
	IPC_F_STR(struct ipc_error, text),
	IPC_F_END,
};

static const struct ipc_field event_fields[] = {
	IPC_F_STR(struct ipc_event, ev),
	IPC_F_JSON_OPT(struct ipc_event, a),
	IPC_F_END,
};

void ipc_request_done(struct ipc_request *r)
{
	ipc_done(request_fields, r);
}

int ipc_request_parse(const char *p, size_t n, struct ipc_request *ret, struct err *e)
{
	json_t *v = ipc_parse_json(p, n, IPC_DEPTH_MAX, e);
	int r;

	if (!v)
		return -EBADMSG;
	r = ipc_decode(request_fields, v, ret, sizeof(*ret), e);
	json_decref(v);
	if (r < 0)
		return r;
	if (ret->v != IPC_VERSION) {
		r = err_set(e, -EBADMSG, "version %llu is not served", (unsigned long long)ret->v);
		ipc_request_done(ret);
	}
	return r;
}

void ipc_incoming_done(struct ipc_incoming *m)
{
	json_decref(m->a);
	json_decref(m->r);
	m->a = m->r = NULL;
}

static int incoming_event(json_t *v, struct ipc_incoming *ret, struct err *e)
{
	struct ipc_event ev;
	int r = ipc_decode(event_fields, v, &ev, sizeof(ev), e);

	if (r < 0)
		return r;
	if (!ev.ev[0]) {
		ipc_done(event_fields, &ev);
		return err_set(e, -EBADMSG, "an event without a name");
	}
	memcpy(ret->ev, ev.ev, sizeof(ret->ev));
	ret->a = ev.a;
	return 0;
}

static int incoming_error(json_t *v, struct err *ret, struct err *e)
{
	struct ipc_error f;
	int r = ipc_decode(error_fields, v, &f, sizeof(f), e);

	if (r < 0)
		return r;
	if (f.num >= 0 || f.num < -4095)         /* the range of errno, as the kernel has it */
		return err_set(e, -EBADMSG, "an error without a number");
	ret->num = (int)f.num;
	memcpy(ret->code, f.code, sizeof(ret->code));
	memcpy(ret->text, f.text, sizeof(ret->text));
	return 0;
}

static int incoming_answer(json_t *v, struct ipc_incoming *ret, struct err *e)
{
	struct ipc_answer a;
	int r = ipc_decode(answer_fields, v, &a, sizeof(a), e);

	if (r < 0)
		return r;
	if (!a.r == !a.e) {
		ipc_done(answer_fields, &a);
		return err_set(e, -EBADMSG, "an answer must have either a result or an error");
	}
	ret->id = a.id;
	ret->r = a.r;
	ret->failed = a.e != NULL;
	if (a.e)
		r = incoming_error(a.e, &ret->err, e);
	json_decref(a.e);
	return r;
}

int ipc_incoming_parse(const char *p, size_t n, struct ipc_incoming *ret, struct err *e)
{
	json_t *v = ipc_parse_json(p, n, IPC_DEPTH_MAX, e);
	int r;

	memset(ret, 0, sizeof(*ret));
	if (!v)
		return -EBADMSG;
	r = json_object_get(v, "ev") ? incoming_event(v, ret, e) : incoming_answer(v, ret, e);
	json_decref(v);
	return r;
}

static bool msg_depth_ok(json_t *v, unsigned levels)
{
	const char *key;
	json_t *child;
	size_t i;

	if (!json_is_object(v) && !json_is_array(v))
		return true;
	if (levels == 0)
		return false;
	json_array_foreach(v, i, child)
		if (!msg_depth_ok(child, levels - 1))
			return false;
	json_object_foreach(v, key, child)
		if (!msg_depth_ok(child, levels - 1))
			return false;
	return true;
}

/*
 * Steals v. What its reader would refuse is not sent: with the connection all else would end that is
 * on it, and a value that is passed on may come from a hostile program.
 */
static char *msg_dump(json_t *v, struct err *e)
{
	bool deep = v && !msg_depth_ok(v, IPC_DEPTH_MAX);
	char *text = v && !deep ? json_dumps(v, JSON_COMPACT) : NULL;

	json_decref(v);
	if (deep) {
		err_set(e, -EMSGSIZE, "the message is nested deeper than %d levels", IPC_DEPTH_MAX);
		return NULL;
	}
	if (!text) {
		err_set(e, -EINVAL, "a field does not fit its form");
		return NULL;
	}
	if (strlen(text) > IPC_MSG_MAX) {
		free(text);
		err_set(e, -EMSGSIZE, "the message is over %d bytes", IPC_MSG_MAX);
		return NULL;
	}
	return text;
}

char *ipc_request_text(const struct ipc_op *op, uint64_t id, const char *req_id, const void *st,
		       struct err *e)
{
	struct ipc_request r = { .v = IPC_VERSION, .id = id };
	char *text;

	if (str_copy(r.op, sizeof(r.op), op->name) < 0 ||
	    str_copy(r.req, sizeof(r.req), req_id ? req_id : "") < 0) {
		err_set(e, -EINVAL, "the request ID is too long");
		return NULL;
	}
	r.a = ipc_encode(op->req, st);
	if (!r.a) {
		err_set(e, -EINVAL, "%s: a field does not fit its form", op->name);
		return NULL;
	}
	text = msg_dump(ipc_encode(request_fields, &r), e);
	ipc_request_done(&r);
	return text;
}

char *ipc_answer_text(const struct ipc_op *op, uint64_t id, const void *st, struct err *e)
{
	struct ipc_answer a = { .id = id, .r = ipc_encode(op->rep, st) };
	char *text;

	if (!a.r) {
		err_set(e, -EINVAL, "%s: a field of the answer does not fit its form", op->name);
		return NULL;
	}
	text = msg_dump(ipc_encode(answer_fields, &a), e);
	ipc_done(answer_fields, &a);
	return text;
}

char *ipc_fail_text(uint64_t id, const struct err *failure)
{
	autofree char *clean = str_printable(failure->text, strlen(failure->text));
	struct ipc_error f = { .num = failure->num < 0 && failure->num >= -4095 ? failure->num
										: -EIO };
	struct ipc_answer a = { .id = id };
	char *text;

	str_copy(f.code, sizeof(f.code), err_code(failure));
	/*
	 * What is no UTF-8 (a sentence that was cut inside a character) is escaped, and may be cut
	 * again: now it is ASCII there.
	 */
	str_copy(f.text, sizeof(f.text),
		 str_utf8_ok(failure->text, strlen(failure->text)) ? failure->text : clean);
	a.e = ipc_encode(error_fields, &f);
	if (!a.e) {
		str_copy(f.text, sizeof(f.text), "the reason cannot be shown");
		str_copy(f.code, sizeof(f.code), "internal");
		a.e = ipc_encode(error_fields, &f);
	}
	text = msg_dump(ipc_encode(answer_fields, &a), NULL);
	ipc_done(answer_fields, &a);
	return text;
}

char *ipc_event_text(const char *name, const struct ipc_field *fields, const void *st,
		     struct err *e)
{
	struct ipc_event ev = { .a = ipc_encode(fields, st) };
	char *text;

	if (!ev.a || str_copy(ev.ev, sizeof(ev.ev), name) < 0) {
		json_decref(ev.a);
		err_set(e, -EINVAL, "event %s: a field does not fit its form", name);
		return NULL;
	}
	text = msg_dump(ipc_encode(event_fields, &ev), e);
	ipc_done(event_fields, &ev);
	return text;
}

void ipc_close_fds(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		fd_close(fds[i]);
		fds[i] = -1;
	}
}

/* ---- The queue ---- */

struct ipc_out {
	struct list node;
	char *text;
	size_t n;
	int fds[FD_PASS_MAX];
	size_t n_fds;
};

static void out_free(struct ipc_out *o)
{
	ipc_close_fds(o->fds, o->n_fds);
	free(o->text);
	free(o);
}

void ipc_outq_init(struct ipc_outq *q)
{
	list_init(&q->head);
	q->len = 0;
	q->bytes = 0;
}

static void outq_drop(struct ipc_outq *q, struct ipc_out *o)
{
	list_del(&o->node);
	q->len--;
	q->bytes -= o->n;
	out_free(o);
}

void ipc_outq_done(struct ipc_outq *q)
{
	LIST_FOR_SAFE(&q->head, o, struct ipc_out, node)
		outq_drop(q, o);
}

static int outq_keep(struct ipc_outq *q, const char *text, size_t n, const int *fds, size_t n_fds)
{
	struct ipc_out *o;

	if (q->len >= IPC_OUT_MAX || q->bytes + n > IPC_OUT_BYTES_MAX)
		return -ENOBUFS;
	o = x_alloc(sizeof(*o));
	for (size_t i = 0; i < n_fds; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

		if (fd < 0) {
			int r = -errno;

			out_free(o);
			return r;
		}
		o->fds[o->n_fds++] = fd;
	}
	o->text = x_strndup(text, n);
	o->n = n;
	list_add_tail(&q->head, &o->node);
	q->len++;
	q->bytes += n;
	return 0;
}

int ipc_outq_send(struct ipc_outq *q, int fd, const char *text, const int *fds, size_t n_fds)
{
	size_t n = strlen(text);
	ssize_t r;

	if (n_fds > FD_PASS_MAX)
		return -E2BIG;
	if (!list_empty(&q->head))
		return outq_keep(q, text, n, fds, n_fds);
	r = fd_send(fd, text, n, fds, n_fds, MSG_DONTWAIT);
	if (r == -EAGAIN)
		return outq_keep(q, text, n, fds, n_fds);
	return r < 0 ? (int)r : 0;
}

int ipc_outq_flush(struct ipc_outq *q, int fd)
{
	LIST_FOR_SAFE(&q->head, o, struct ipc_out, node) {
		ssize_t r = fd_send(fd, o->text, o->n, o->fds, o->n_fds, MSG_DONTWAIT);

		if (r < 0)
			return (int)r;
		outq_drop(q, o);
	}
	return 0;
}
