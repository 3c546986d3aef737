/*
 * Runs a process in a sandbox with our standard streams: exec, shell.
 *
 * One stream carries the events of the process (Start); our input goes the other way in calls of
 * its own (SendInput, CloseStdin, Update, SendSignal), each a short request on a new connection.
 * One loop over poll(2): the stream, standard input (only while the last SendInput was answered:
 * flow control), and signals through a signalfd.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/cli.h"

#define RUN_INPUT_MAX 16384
#define RUN_OUTPUT_TIMEOUT_MS (24 * 3600 * 1000)

struct run {
	struct cli *c;
	const struct box *b;
	const struct run_spec *spec;
	struct stream s;
	int64_t pid;
	bool started, ended;
	int code;
	bool stdin_open;
};

static json_t *window_size(void)
{
	struct winsize w = { .ws_row = 24, .ws_col = 80 };

	if (ioctl(STDIN_FILENO, TIOCGWINSZ, &w) < 0 || !w.ws_row || !w.ws_col)
		w = (struct winsize){ .ws_row = 24, .ws_col = 80 };
	return json_pack("{s:{s:i,s:i}}", "size", "cols", w.ws_col, "rows", w.ws_row);
}

static json_t *start_request(const struct run_spec *spec)
{
	json_t *process = json_pack("{s:s}", "cmd", spec->argv[0]), *args = json_array(),
	       *envs = json_object();

	for (int i = 1; i < spec->argc; i++)
		json_array_append_new(args, json_string(spec->argv[i]));
	for (int i = 0; spec->env && spec->env[i]; i++) {
		const char *eq = strchr(spec->env[i], '=');
		autofree char *k = x_strndup(spec->env[i], eq ? (size_t)(eq - spec->env[i])
							      : strlen(spec->env[i]));

		json_object_set_new(envs, k, json_string(eq ? eq + 1 : ""));
	}
	if (spec->tty && !json_object_get(envs, "TERM"))
		json_object_set_new(envs, "TERM",
				    json_string(getenv("TERM") ? getenv("TERM")
							       : "xterm-256color"));
	json_object_set_new(process, "args", args);
	json_object_set_new(process, "envs", envs);
	if (spec->cwd)
		json_object_set_new(process, "cwd", json_string(spec->cwd));
	json_t *req = json_pack("{s:o}", "process", process);
	if (spec->tty)
		json_object_set_new(req, "pty", window_size());
	else
		json_object_set_new(req, "stdin", json_boolean(spec->stdin_open));
	return req;
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
		w = fd_write_all(i == 1 ? r->spec->err_fd : r->spec->out_fd, bytes, n,
				 RUN_OUTPUT_TIMEOUT_MS);
		if (w < 0)
			return err_errno(e, w, "cannot write the output");
	}
	return 0;
}

static void take_end(struct run *r, json_t *end)
{
	const char *error = json_string_value(json_object_get(end, "error"));
	const char *status = json_string_value(json_object_get(end, "status"));
	int code = (int)json_integer_value(json_object_get(end, "exitCode"));

	r->ended = true;
	r->code = code;
	if (code >= 0)
		return;
	/* Ended by a signal: 128 + its number, as shells say it. */
	r->code = 128 + SIGKILL;
	for (int sig = 1; sig < 65; sig++) {
		char name[64];
		const char *abbrev = sigabbrev_np(sig), *descr = sigdescr_np(sig);

		if (abbrev && str_format(name, sizeof(name), "SIG%s", abbrev) == 0 &&
		    ((status && strstr(status, name)) || (error && strstr(error, name))))
			r->code = 128 + sig;
		if (descr &&
		    ((status && strcasestr(status, descr)) || (error && strcasestr(error, descr))))
			r->code = 128 + sig;
	}
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
		take_end(r, v);
	}
	json_decref(message);
	return ret;
}

/* One read of our input, sent on; at its end the process's stdin is closed. */
static int send_input(struct run *r, struct err *e)
{
	char raw[RUN_INPUT_MAX], b64[STR_B64_LEN(RUN_INPUT_MAX) + 1];
	ssize_t n = read(STDIN_FILENO, raw, sizeof(raw));
	int ret;

	if (n < 0)
		return errno == EINTR || errno == EAGAIN
			       ? 0
			       : err_errno(e, -errno, "cannot read the input");
	if (n == 0) {
		r->stdin_open = false;
		if (r->spec->tty)
			return 0;
		ret = process_call(r, "CloseStdin", json_object(), e);
		return ret == -ENOENT || ret == -EREMOTEIO ? 0 : ret;
	}
	str_b64(b64, raw, (size_t)n);
	ret = process_call(r, "SendInput",
			   json_pack("{s:{s:s}}", "input", r->spec->tty ? "pty" : "stdin", b64), e);
	/*
	 * The process ended, or closed its stdin: its end event follows. A terminal has no such
	 * excuse: one that takes no input must not look as if it did.
	 */
	if (ret == -ENOENT || (ret == -EREMOTEIO && !r->spec->tty)) {
		r->stdin_open = false;
		return 0;
	}
	return ret;
}

static int take_signal(struct run *r, int sfd, struct err *e)
{
	struct signalfd_siginfo si;

	if (read(sfd, &si, sizeof(si)) != sizeof(si))
		return 0;
	if (si.ssi_signo == SIGWINCH) {
		if (!r->spec->tty)
			return 0;
		(void)process_call(r, "Update", json_pack("{s:o}", "pty", window_size()), e);
		return 0;
	}
	/* Ctrl-C and a request to end go to the process; a second one ends us. */
	(void)process_call(r, "SendSignal", json_pack("{s:s}", "signal", "SIGNAL_SIGTERM"), e);
	return 0;
}

static int run_turn(struct run *r, int sfd, struct err *e)
{
	struct pollfd p[3] = {
		{ .fd = r->s.fd, .events = POLLIN },
		{ .fd = r->started && r->stdin_open ? STDIN_FILENO : -1, .events = POLLIN },
		{ .fd = r->started ? sfd : -1, .events = POLLIN },
	};
	json_t *message;
	int ret;

	if (!stream_has_message(&r->s) && !buf_len(&r->s.rest) && poll(p, 3, -1) < 0 &&
	    errno != EINTR)
		return err_errno(e, -errno, "poll");
	if (p[2].revents)
		take_signal(r, sfd, e);
	if (p[1].revents && (ret = send_input(r, e)) < 0)
		return ret;
	if (p[0].revents || stream_has_message(&r->s) || buf_len(&r->s.rest)) {
		ret = stream_next(&r->s, &message, e);
		if (ret == 1)
			return take_event(r, message, e);
		if (ret == 0 && !r->ended)
			return err_set_code(e, -ECONNRESET, "stream-cut",
					    "the stream ended before the command did");
		return ret;
	}
	return 0;
}

/* *ret_old: the thread's mask as it was; `up` runs this in a worker that must keep its own. */
static int signal_fd(sigset_t *ret_old)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, ret_old);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

static void signal_fd_end(int fd, const sigset_t *old)
{
	fd_close(fd);
	pthread_sigmask(SIG_SETMASK, old, NULL);
}

int run_in_box(struct cli *c, const struct box *b, const struct run_spec *spec, struct err *e)
{
	struct run r = {
		.c = c, .b = b, .spec = spec, .stdin_open = spec->stdin_open || spec->tty
	};
	json_t *req = start_request(spec);
	struct termios saved, raw;
	bool is_raw = false;
	sigset_t mask;
	int ret, sfd;

	ret = stream_open(c, b, "/process.Process/Start", req, spec->user, &r.s, e);
	json_decref(req);
	if (ret < 0)
		return ret;
	sfd = signal_fd(&mask);
	if (spec->tty && !tcgetattr(STDIN_FILENO, &saved)) {
		raw = saved;
		cfmakeraw(&raw);
		is_raw = !tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	while (!r.ended && ret >= 0)
		ret = run_turn(&r, sfd, e);
	if (is_raw)
		tcsetattr(STDIN_FILENO, TCSANOW, &saved);
	signal_fd_end(sfd, &mask);
	stream_close(&r.s);
	return ret < 0 ? ret : r.code;
}
