/*
 * Runs a process in a sandbox with our standard streams: exec, shell, cp.
 *
 * One stream carries the events of the process (Start). Our input goes the other way in a second
 * one (StreamInput), opened with the first byte; sizes and signals in short calls (Update,
 * SendSignal). One loop over poll(2): both streams, standard input, and signals through a signalfd.
 * Standard input is read only while nothing waits to be sent: that is the flow control. And nothing
 * but the loop waits, because a process may write for long before it reads again.
 *
 * Signals. With a raw terminal, Ctrl-C is a byte like others. Else SIGINT, SIGTERM, SIGQUIT and
 * SIGHUP go to the process; the second one kills it, and the third one ends us, whatever became of
 * it. A terminal that hangs up hangs up the process.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"

#define RUN_INPUT_MAX 49152
#define RUN_OUT_MAX (2 * RUN_INPUT_MAX)
#define RUN_KEEPALIVE_MS 60000
#define RUN_OUTPUT_TIMEOUT_MS (24 * 3600 * 1000)
#define RUN_ANSWER_MS 30000
#define EXIT_SIGNALLED(sig) (128 + (sig))

/* Our stream of input: what is not sent yet; whether its end is among that. */
struct input { int fd; struct buf out; bool last; int64_t put_ms; };

struct run {
	struct cli *c;
	const struct box *b;
	const struct run_spec *spec;
	struct run_result *result;
	struct stream s;
	struct input in;
	int sfd;
	int64_t pid;
	bool started, ended;
	int code;
	bool stdin_open;
	unsigned signals;                 /* that asked for an end */
};

/* ---- the request ---- */

static json_t *window_size(void)
{
	struct winsize w;

	for (int fd = 0; fd < 3; fd++)
		if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_row && w.ws_col)
			return json_pack("{s:{s:i,s:i}}", "size", "cols", w.ws_col, "rows",
					 w.ws_row);
	return json_pack("{s:{s:i,s:i}}", "size", "cols", 80, "rows", 24);
}

/* "K=V", or "K" alone for the variable that we have ourselves, as docker does it. */
static int add_env(json_t *envs, const char *item, struct err *e)
{
	size_t n = strcspn(item, "=");
	autofree char *name = x_strndup(item, n);
	const char *value = item[n] ? item + n + 1 : getenv(name);

	if (!n)
		return err_set(e, -EINVAL, "\"%s\" is not NAME=VALUE", item);
	if (!value)
		return 0;
	if (!str_utf8_ok(item, strlen(item)) || !str_utf8_ok(value, strlen(value)))
		return err_set(e, -EINVAL, "the variable %s is not UTF-8", name);
	json_object_set_new(envs, name, json_string(value));
	return 0;
}

static int start_request(const struct run_spec *spec, json_t **ret, struct err *e)
{
	json_t *args = json_array(), *envs = json_object(), *process = json_object(), *req;
	int r = 0;

	for (int i = 0; i < spec->argc && r == 0; i++) {
		if (!str_utf8_ok(spec->argv[i], strlen(spec->argv[i])))
			r = err_set(e, -EINVAL, "argument %d of the command is not UTF-8", i);
		else if (i)
			json_array_append_new(args, json_string(spec->argv[i]));
		else
			json_object_set_new(process, "cmd", json_string(spec->argv[0]));
	}
	for (int i = 0; r == 0 && spec->env && spec->env[i]; i++)
		r = add_env(envs, spec->env[i], e);
	if (spec->tty && !json_object_get(envs, "TERM"))
		json_object_set_new(envs, "TERM", json_string(getenv("TERM") ?: "xterm-256color"));
	json_object_set_new(process, "args", args);
	json_object_set_new(process, "envs", envs);
	if (spec->cwd && r == 0 && !str_utf8_ok(spec->cwd, strlen(spec->cwd)))
		r = err_set(e, -EINVAL, "the folder is not UTF-8");
	if (spec->cwd)
		json_object_set_new(process, "cwd", json_string(spec->cwd));
	req = json_pack("{s:o}", "process", process);
	if (spec->tty)
		json_object_set_new(req, "pty", window_size());
	else
		json_object_set_new(req, "stdin", json_boolean(spec->stdin_open));
	if (r < 0)
		json_decref(req);
	else
		*ret = req;
	return r;
}

static int process_call(struct run *r, const char *method, json_t *body /* taken */, struct err *e)
{
	char target[64];
	json_t *answer = NULL;
	int ret;

	json_object_set_new(body, "process", json_pack("{s:I}", "pid", (json_int_t)r->pid));
	(void)str_format(target, sizeof(target), "/process.Process/%s", method);
	ret = box_call(r->c, r->b, "POST", target, body, &answer, e);
	json_decref(body);
	json_decref(answer);
	return ret;
}

/* ---- what comes ---- */

static int write_data(struct run *r, json_t *data, struct err *e)
{
	static const char *const keys[] = { "stdout", "stderr", "pty" };

	for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
		json_t *v = json_object_get(data, keys[i]);
		autofree char *bytes = NULL;
		size_t n;
		int w;

		if (!json_is_string(v))
			continue;
		bytes = x_alloc(json_string_length(v) + 1);
		if (str_unb64(bytes, json_string_length(v), json_string_value(v),
			      json_string_length(v), &n) < 0)
			return err_set(e, -EBADMSG, "the output is not base64");
		if (r->spec->out) {
			w = r->spec->out(r->spec->out_arg, i == 1, bytes, n, e);
			if (w < 0)
				return w;
			continue;
		}
		w = fd_write_all(i == 1 ? r->spec->err_fd : r->spec->out_fd, bytes, n,
				 RUN_OUTPUT_TIMEOUT_MS);
		if (w == -EPIPE)
			return -EPIPE;
		if (w < 0)
			return err_errno(e, w, "cannot write the output");
	}
	return 0;
}

/* Does the text name this signal: "signal: killed", "signal: aborted (core dumped)", "SIGTERM"? */
static bool names_signal(const char *text, int sig)
{
	const char *abbrev = sigabbrev_np(sig), *descr = sigdescr_np(sig), *at;
	size_t n;

	if (!text || !abbrev || !descr)
		return false;
	at = str_starts(text, "signal: ") ? text + strlen("signal: ") : text;
	n = strlen(descr);
	if (strncasecmp(at, descr, n) == 0 && (!at[n] || str_starts(at + n, " (core")))
		return true;
	return str_starts(at, "SIG") && str_eq(at + 3, abbrev);
}

int run_code(int code, const char *status, const char *error)
{
	if (code >= 0)
		return code;
	for (int sig = 1; sig < NSIG; sig++)
		if (names_signal(status, sig) || names_signal(error, sig))
			return EXIT_SIGNALLED(sig);
	return EXIT_SIGNALLED(SIGKILL);
}

static int take_event(struct run *r, json_t *message, struct err *e)
{
	json_t *ev = json_object_get(message, "event"), *v;
	int ret = 0;

	if ((v = json_object_get(ev, "start"))) {
		r->pid = json_integer_value(json_object_get(v, "pid"));
		r->started = true;
	} else if ((v = json_object_get(ev, "data"))) {
		ret = write_data(r, v, e);
	} else if ((v = json_object_get(ev, "end"))) {
		r->ended = true;
		r->code = run_code((int)json_integer_value(json_object_get(v, "exitCode")),
				   json_string_value(json_object_get(v, "status")),
				   json_string_value(json_object_get(v, "error")));
	}
	json_decref(message);
	return ret;
}

/* All that is there. */
static int take_stream(struct run *r, struct err *e)
{
	json_t *message;
	int ret = stream_next(&r->s, &message, e);

	if (ret == 1)
		return take_event(r, message, e);
	if (ret == -EAGAIN)
		return 0;
	if (ret == 0 && !r->ended)
		return err_set_code(e, -ECONNRESET, "stream-cut",
				    "the stream ended before the command did");
	return ret;
}

/* ---- what goes ---- */

/* One message of our stream: an envelope in a chunk of its own. Takes v. */
static void input_put(struct run *r, json_t *v)
{
	autofree char *text = json_dumps(v, JSON_COMPACT);
	size_t n = strlen(text);
	autofree unsigned char *envelope = x_alloc(n + 5);

	for (int i = 0; i < 4; i++)
		envelope[1 + i] = (unsigned char)(n >> (24 - 8 * i));
	memcpy(envelope + 5, text, n);
	http_put_chunk(&r->in.out, envelope, n + 5);
	r->in.put_ms = clock_mono_ms();
	json_decref(v);
}

static int input_open(struct run *r, struct err *e)
{
	struct http_field fields[8];
	struct http_call hc = { .dial = cli_dial,
				.dial_arg = r->c,
				.method = "POST",
				.target = "/process.Process/StreamInput",
				.host = r->c->host,
				.fields = fields,
				.timeout_ms = RUN_ANSWER_MS };
	int ret;

	box_fields(r->b, fields, "application/connect+json", NULL);
	ret = http_call_open(&hc, true, &r->in.fd, NULL, NULL, e);
	if (ret < 0)
		return err_wrap(e, "the input was not sent");
	fd_set_nonblock(r->in.fd, true);
	buf_init(&r->in.out, RUN_OUT_MAX);
	input_put(r, json_pack("{s:{s:{s:I}}}", "start", "process", "pid", (json_int_t)r->pid));
	return 0;
}

static void input_close(struct run *r)
{
	fd_close(r->in.fd);
	r->in.fd = -1;
	buf_done(&r->in.out);
	r->stdin_open = false;
}

/* As much as the other side takes now. Who closes early has answered: that is read as usual. */
static int input_flush(struct run *r, struct err *e)
{
	while (buf_len(&r->in.out)) {
		ssize_t n = buf_write_fd(&r->in.out, r->in.fd);

		if (n == -EAGAIN)
			return 0;
		if (n == -EPIPE || n == -ECONNRESET)
			buf_clear(&r->in.out);
		else if (n < 0 && n != -EINTR)
			return err_errno(e, (int)n, "the input was not sent");
	}
	return 0;
}

/*
 * Our stream was answered: it ended, or the process takes no more. That it ended or closed its
 * stdin is no error; a terminal has no such excuse: one that takes no input must not look as if it
 * did.
 */
static int input_answer(struct run *r, struct err *e)
{
	struct stream s = { .fd = TAKE_FD(r->in.fd) };
	bool whole = r->in.last;
	json_t *message;
	int ret = stream_answer(r->c, &s, RUN_ANSWER_MS, e);

	input_close(r);
	while (ret >= 0 && (ret = stream_next(&s, &message, e)) != 0) {
		struct pollfd p = { .fd = s.fd, .events = POLLIN };

		if (ret == 1)
			json_decref(message);
		else if (ret == -EAGAIN)
			ret = poll(&p, 1, RUN_ANSWER_MS) == 1 ? 0 : -ETIMEDOUT;
	}
	stream_close(&s);
	if (ret == -ECONNRESET || ret == -ENOENT || str_eq(e->code, "not_found"))
		return 0;                        /* the other stream says how it ended */
	if (str_eq(e->code, "failed_precondition") && !r->spec->tty)
		return 0;
	if (ret < 0 || !whole || r->spec->tty)
		return ret;
	ret = process_call(r, "CloseStdin", json_object(), e);
	return ret == -ENOENT || ret == -EREMOTEIO ? 0 : ret;
}

static ssize_t read_input(struct run *r, char *dst, size_t n)
{
	ssize_t got = r->spec->in ? r->spec->in(r->spec->in_arg, dst, n)
				  : read(r->spec->in_fd, dst, n);

	if (got < 0 && !r->spec->in && errno == EIO && r->spec->tty)
		return 0;                        /* the terminal hung up */
	return got;
}

/* One read of our input, sent on; at its end the process's stdin is closed. */
static int send_input(struct run *r, struct err *e)
{
	char raw[RUN_INPUT_MAX], b64[STR_B64_LEN(RUN_INPUT_MAX) + 1];
	ssize_t n = read_input(r, raw, sizeof(raw));
	int ret;

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n < 0)
		return err_errno(e, -errno, "cannot read the input");
	if (n == 0 && r->spec->tty) {
		r->stdin_open = false;
		return 0;
	}
	if (r->in.fd < 0 && (ret = input_open(r, e)) < 0)
		return ret;
	if (n == 0) {
		r->in.last = true;
		http_put_chunk(&r->in.out, NULL, 0);
	} else {
		str_b64(b64, raw, (size_t)n);
		input_put(r, json_pack("{s:{s:{s:s}}}", "data", "input",
				       r->spec->tty ? "pty" : "stdin", b64));
	}
	return input_flush(r, e);
}

static int send_signal(struct run *r, const char *name)
{
	struct err ignored = { 0 };
	int ret = process_call(r, "SendSignal", json_pack("{s:s}", "signal", name), &ignored);

	r->c->request_id[0] = '\0';
	return ret;
}

/* Agents know KILL and TERM at least; what one does not know becomes `otherwise`. */
static void pass_signal(struct run *r, int sig)
{
	char name[32];
	int ret;

	(void)str_format(name, sizeof(name), "SIGNAL_SIG%s", sigabbrev_np(sig));
	ret = send_signal(r, r->signals > 1 ? "SIGNAL_SIGKILL" : name);
	if (ret == -EREMOTEIO)
		send_signal(r, sig == SIGHUP ? "SIGNAL_SIGKILL" : "SIGNAL_SIGTERM");
}

static void take_signal(struct run *r)
{
	struct signalfd_siginfo si;
	struct err ignored = { 0 };

	if (read(r->sfd, &si, sizeof(si)) != sizeof(si))
		return;
	if (si.ssi_signo == SIGWINCH) {
		if (r->spec->tty && r->started)
			(void)process_call(r, "Update", json_pack("{s:o}", "pty", window_size()),
					   &ignored);
		return;
	}
	r->signals++;
	if (r->started && r->signals < 3)
		pass_signal(r, (int)si.ssi_signo);
	if (!r->started || r->signals >= 3 || si.ssi_signo == SIGHUP) {
		r->ended = true;
		r->code = EXIT_SIGNALLED((int)si.ssi_signo);
	}
}

/* ---- the loop ---- */

/*
 * Half an hour without a key stroke is no reason to take our stream for dead; whatever comes the
 * other way meanwhile.
 */
static void keep_alive(struct run *r)
{
	if (r->in.fd >= 0 && !buf_len(&r->in.out) && !r->in.last &&
	    clock_mono_ms() - r->in.put_ms >= RUN_KEEPALIVE_MS)
		input_put(r, json_pack("{s:{}}", "keepalive"));
}

static int run_turn(struct run *r, struct err *e)
{
	bool input = r->started && r->stdin_open && !buf_len(&r->in.out) && !r->in.last;
	short out = buf_len(&r->in.out) ? POLLOUT : 0;
	struct pollfd p[4] = {
		{ .fd = r->s.fd, .events = POLLIN },
		{ .fd = input && !r->spec->in ? r->spec->in_fd : -1, .events = POLLIN },
		{ .fd = r->in.fd, .events = POLLIN | out },
		{ .fd = r->sfd, .events = POLLIN },
	};
	bool more = stream_has_more(&r->s), pull = input && r->spec->in;
	int ret = poll(p, ARRAY_LEN(p), more || pull ? 0 : RUN_KEEPALIVE_MS);

	if (ret < 0 && errno != EINTR)
		return err_errno(e, -errno, "poll");
	keep_alive(r);
	ret = 0;
	if (p[3].revents)
		take_signal(r);
	if (p[2].revents & POLLOUT)
		ret = input_flush(r, e);
	if (ret >= 0 && (p[2].revents & ~POLLOUT))
		ret = input_answer(r, e);
	else if (ret >= 0 && (p[1].revents || pull))
		ret = send_input(r, e);
	if (ret >= 0 && (more || p[0].revents))
		ret = take_stream(r, e);
	return ret;
}

/* *ret_old: the thread's mask as it was; `up` runs this in a worker that must keep its own. */
static int signal_fd(sigset_t *ret_old)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGQUIT);
	if (!cli_nohup())
		sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, ret_old);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

/*
 * Our reader went away (`| head`): the process is asked to end, and we end as one does that SIGPIPE
 * ended.
 */
static int out_closed(struct run *r)
{
	send_signal(r, "SIGNAL_SIGTERM");
	return EXIT_SIGNALLED(SIGPIPE);
}

static int run_loop(struct run *r, struct err *e)
{
	int ret = 0;

	while (!r->ended && ret >= 0) {
		ret = run_turn(r, e);
		if (ret == -EPIPE)
			return out_closed(r);
		if (r->started && r->spec->detach)
			return 0;
	}
	return ret < 0 ? ret : r->code;
}

/* Why it did not start, in the way that shells say it. */
static enum run_refused refusal(const struct run *r, const struct err *e)
{
	static const char *const codes[] = { "invalid_argument", "unauthenticated", "not_found",
					     "permission_denied" };

	if (r->started)
		return RUN_STARTED;
	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (str_eq(e->code, codes[i]))
			return strcasestr(e->text, "cannot execute") &&
					       strcasestr(e->text, "no such file")
				       ? RUN_NOT_FOUND
				       : RUN_CANNOT;
	return RUN_STARTED;
}

int run_in_box_full(struct cli *c, const struct box *b, const struct run_spec *spec,
		    struct run_result *result, struct err *e)
{
	struct run r = { .c = c,
			 .b = b,
			 .spec = spec,
			 .in.fd = -1,
			 .stdin_open = spec->stdin_open };
	struct termios saved, raw;
	bool is_raw = false;
	sigset_t mask;
	json_t *req;
	int ret = start_request(spec, &req, e);

	*result = (struct run_result){ 0 };
	if (ret < 0)
		return ret;
	ret = stream_open(c, b, "/process.Process/Start", req, spec->user, &r.s, e);
	json_decref(req);
	if (ret < 0)
		return ret;
	r.sfd = signal_fd(&mask);
	if (spec->tty && spec->stdin_open && !tcgetattr(spec->in_fd, &saved)) {
		raw = saved;
		cfmakeraw(&raw);
		is_raw = !tcsetattr(spec->in_fd, TCSANOW, &raw);
	}
	ret = run_loop(&r, e);
	if (is_raw)
		tcsetattr(spec->in_fd, TCSANOW, &saved);
	if (ret < 0)
		result->refused = refusal(&r, e);
	result->pid = r.pid;
	fd_close(r.sfd);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (r.in.fd >= 0)
		input_close(&r);
	stream_close(&r.s);
	return ret;
}

int run_in_box(struct cli *c, const struct box *b, const struct run_spec *spec, struct err *e)
{
	struct run_result ignored;

	return run_in_box_full(c, b, spec, &ignored, e);
}
