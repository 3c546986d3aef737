#include "spaced-guest/test_host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

struct host host;
char dir[64];
static const char *binary;
static char text[CALL_MAX / 32];

bool host_args(int argc, char **argv)
{
	if (argc < 2)
		return false;
	binary = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return true;
}

int host_setup(void **state)
{
	str_copy(dir, sizeof(dir), "/tmp/space-test-guest.XXXXXX");
	if (!mkdtemp(dir) || chmod(dir, 0755) < 0)
		return -1;
	host_start(&host);
	host_init(&host, "root");
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *w)
{
	return remove(path);
}

void host_remove(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

int host_teardown(void **state)
{
	host_stop(&host);
	host_remove(dir);
	return 0;
}

static void make_cgroup(struct host *h)
{
	static const char *const bases[] = { "/sys/fs/cgroup/unified", "/sys/fs/cgroup" };

	static unsigned number;

	h->cgroup[0] = '\0';
	number++;
	for (size_t i = 0; i < ARRAY_LEN(bases); i++) {
		char path[160];

		snprintf(path, sizeof(path), "%s/cgroup.procs", bases[i]);
		if (access(path, W_OK) < 0)
			continue;
		snprintf(h->cgroup, sizeof(h->cgroup), "%s/space-test-guest.%d.%u", bases[i],
			 getpid(), number);
		if (mkdir(h->cgroup, 0755) == 0 || errno == EEXIST)
			return;
		h->cgroup[0] = '\0';
	}
}

void host_start(struct host *h)
{
	char *argv[] = { (char *)binary, "--no-init", "--channel-fd", "3", "--cgroup",
			 h->cgroup,	 NULL };
	int sv[2];

	*h = (struct host){ .cut_out = SIZE_MAX,
			    .cut_in = SIZE_MAX,
			    .epoch = { .generation = 7, .activation = "0123456789abcde" } };
	make_cgroup(h);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	h->pid = fork();
	if (h->pid == 0) {
		if (sv[1] == 3)
			fd_set_cloexec(3, false);
		else
			dup2(sv[1], 3);
		if (!getenv("TEST_GUEST_LOG")) {
			int null = open("/dev/null", O_WRONLY);

			dup2(null, 2);
		}
		execv(binary, argv);
		_exit(127);
	}
	assert_true(h->pid > 0);
	close(sv[1]);
	h->fd = sv[0];
	fd_set_nonblock(h->fd, true);
	h->mux = mux_new(MUX_HOST);
	host_connect(h);
}

void host_stop(struct host *h)
{
	int64_t until = clock_mono_ms() + WAIT_MS;
	int status;

	close(h->fd);
	while (waitpid(h->pid, &status, WNOHANG) == 0) {
		if (clock_mono_ms() > until)
			kill(h->pid, SIGKILL);
		usleep(1000);
	}
	mux_free(h->mux);
	/* Killed processes leave their cgroups a moment later. */
	while (h->cgroup[0] && clock_mono_ms() < until) {
		char cmd[400];

		snprintf(cmd, sizeof(cmd), "%s/w", h->cgroup);
		if ((rmdir(cmd) == 0 || errno == ENOENT) && rmdir(h->cgroup) == 0)
			break;
		for (int i = 1; i < 3000; i++) {
			snprintf(cmd, sizeof(cmd), "%s/w/%d", h->cgroup, i);
			rmdir(cmd);
		}
		usleep(1000);
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void call_decode(struct call *c)
{
	enum http_error he;

	if (!c->has_head) {
		ssize_t n = http_parse_response(buf_data(&c->raw), buf_len(&c->raw), "POST",
						&c->head, &he);

		if (n < 0)
			fail_msg("the answer is malformed: %s", http_error_text(he));
		if (n == 0)
			return;
		c->has_head = true;
		buf_consume(&c->raw, (size_t)n);
		http_dec_init(&c->dec, &c->head, UINT64_MAX);
	}
	while (!c->complete) {
		size_t used, n;
		const char *data;
		int r = http_dec_feed(&c->dec, buf_data(&c->raw), buf_len(&c->raw), &used, &data,
				      &n, &he);

		if (r < 0)
			fail_msg("the answer's body is malformed: %s", http_error_text(he));
		assert_int_equal(buf_put(&c->body, data, n), 0);
		buf_consume(&c->raw, used);
		c->complete = r == 1;
		if (used == 0)
			break;
	}
}

static void on_event(struct host *h, const struct mux_event *e)
{
	struct call *c = e->user;

	h->seen++;
	if (e->type == MUX_EV_DATA && c && c->hold) {
		c->held += e->len;
		buf_put(&c->raw, e->data, e->len);
	} else if (e->type == MUX_EV_DATA) {
		if (c) {
			buf_put(&c->raw, e->data, e->len);
			call_decode(c);
		}
		mux_taken(h->mux, e->stream, e->len);
	}
	if (c && e->type == MUX_EV_END)
		c->end = true;
	if (c && e->type == MUX_EV_RST)
		c->rst = true;
}

bool host_turn(struct host *h, int wait_ms)
{
	struct buf *out = mux_out(h->mux);
	struct pollfd p = { .fd = h->fd, .events = POLLIN };
	char in[65536];
	struct mux_event e;
	bool moved = false;
	ssize_t n;

	if (buf_len(out)) {
		size_t k = buf_len(out) < h->cut_out ? buf_len(out) : h->cut_out;

		n = k ? send(h->fd, buf_data(out), k, MSG_NOSIGNAL) : 0;
		if (h->cut_out == 0)
			n = (ssize_t)buf_len(out);       /* lost */
		else if (n > 0 && h->cut_out != SIZE_MAX)
			h->cut_out -= (size_t)n;
		if (n > 0) {
			buf_consume(out, (size_t)n);
			moved = true;
		} else if (n < 0) {
			assert_int_equal(errno, EAGAIN);
		}
		p.events |= POLLOUT;
		if (buf_len(out) == 0)
			p.events = POLLIN;
	}
	if (poll(&p, 1, moved ? 0 : wait_ms) <= 0)
		return moved;
	if (!(p.revents & POLLIN))
		return true;
	n = recv(h->fd, in, mux_in_room(h->mux) < sizeof(in) ? mux_in_room(h->mux) : sizeof(in), 0);
	if (n <= 0)
		fail_msg("the agent has gone");
	if (h->cut_in != SIZE_MAX) {
		if ((size_t)n > h->cut_in)
			n = (ssize_t)h->cut_in;
		h->cut_in -= (size_t)n;
	}
	assert_int_equal(mux_feed(h->mux, in, (size_t)n), 0);
	while (mux_next(h->mux, &e))
		on_event(h, &e);
	if (mux_error(h->mux))
		fail_msg("the agent broke a rule: %s", mux_error(h->mux));
	return true;
}

#define WAIT_FOR(h, cond) do { \
	int64_t until_ = clock_mono_ms() + WAIT_MS; \
	while (!(cond)) { \
		host_turn((h), 200); \
		if (clock_mono_ms() > until_) \
			fail_msg("waited too long for: %s", #cond); \
	} \
} while (0)

void host_connect(struct host *h)
{
	h->cut_in = h->cut_out = SIZE_MAX;
	assert_int_equal(mux_start(h->mux, &h->epoch), 0);
	WAIT_FOR(h, mux_ready(h->mux));
}

struct call *call_new(struct host *h, bool control, const char *method, const char *target,
		      const char *fields, const void *body, size_t n)
{
	struct call *c = x_alloc(sizeof(*c));
	struct buf b;

	buf_init(&c->raw, CALL_MAX);
	buf_init(&c->body, CALL_MAX);
	assert_int_equal(mux_open(h->mux, control, &c->id), 0);
	mux_set_user(h->mux, c->id, c);
	buf_init(&b, CALL_MAX);
	buf_putf(&b,
		 "%s %s HTTP/1.1\r\nHost: x\r\nX-Access-Token: " TOKEN
		 "\r\nX-Request-Id: r%u\r\n%s",
		 method, target, c->id, fields ? fields : "");
	if (n || strcmp(method, "POST") == 0)
		buf_putf(&b, "Content-Length: %zu\r\n", n);
	buf_puts(&b, "\r\n");
	buf_put(&b, body, n);
	while (buf_len(&b)) {
		size_t k = mux_can_send(h->mux, c->id);
		int64_t until = clock_mono_ms() + WAIT_MS;

		if (k > buf_len(&b))
			k = buf_len(&b);
		if (k == 0) {
			host_turn(h, 200);
			if (clock_mono_ms() > until || c->rst || h->cut_out == 0)
				break;
			continue;
		}
		mux_send(h->mux, c->id, buf_data(&b), k);
		buf_consume(&b, k);
	}
	buf_done(&b);
	mux_end(h->mux, c->id);
	return c;
}

struct call *call_open(struct host *h, const char *target, const char *fields)
{
	struct call *c = x_alloc(sizeof(*c));
	char head[1024];

	buf_init(&c->raw, CALL_MAX);
	buf_init(&c->body, CALL_MAX);
	assert_int_equal(mux_open(h->mux, false, &c->id), 0);
	mux_set_user(h->mux, c->id, c);
	snprintf(head, sizeof(head),
		 "POST %s HTTP/1.1\r\nHost: x\r\nX-Access-Token: " TOKEN
		 "\r\n%sTransfer-Encoding: chunked\r\n\r\n",
		 target, fields);
	assert_int_equal(mux_send(h->mux, c->id, head, strlen(head)), 0);
	return c;
}

bool call_try(struct host *h, struct call *c, const void *p, size_t n)
{
	char chunk[8192];
	size_t len = (size_t)snprintf(chunk, sizeof(chunk), "%zx\r\n", n);

	assert_true(len + n + 2 <= sizeof(chunk));
	if (n == 0)
		return true;
	memcpy(chunk + len, p, n);
	memcpy(chunk + len + n, "\r\n", 2);
	if (mux_can_send(h->mux, c->id) < len + n + 2)
		return false;
	assert_int_equal(mux_send(h->mux, c->id, chunk, len + n + 2), 0);
	return true;
}

void call_send(struct host *h, struct call *c, const void *p, size_t n)
{
	for (size_t k; n; n -= k, p = (const char *)p + k) {
		k = n < 8000 ? n : 8000;
		WAIT_FOR(h, call_try(h, c, p, k) || c->end || c->rst);
	}
}

void call_finish(struct host *h, struct call *c)
{
	WAIT_FOR(h, mux_can_send(h->mux, c->id) >= 5 || c->end || c->rst);
	mux_send(h->mux, c->id, "0\r\n\r\n", 5);
	mux_end(h->mux, c->id);
}

void call_wait(struct host *h, struct call *c)
{
	call_decode(c);                          /* what came while it held */
	WAIT_FOR(h, c->end || c->rst);
}

int call_status(struct call *c)
{
	return c->has_head ? c->head.status : 0;
}

const char *call_text(struct call *c)
{
	size_t n = buf_len(&c->body) < sizeof(text) - 1 ? buf_len(&c->body) : sizeof(text) - 1;

	if (n)
		memcpy(text, buf_data(&c->body), n);
	text[n] = '\0';
	return text;
}

void call_free(struct host *h, struct call *c)
{
	if (mux_user(h->mux, c->id) == c)
		mux_rst(h->mux, c->id);
	if (c->has_head)
		http_head_done(&c->head);
	buf_done(&c->raw);
	buf_done(&c->body);
	free(c);
}

int host_call(struct host *h, bool control, const char *method, const char *target,
	      const char *fields, const char *body, const char **ret_body)
{
	struct call *c =
		call_new(h, control, method, target, fields, body, body ? strlen(body) : 0);
	int status;

	call_wait(h, c);
	status = call_status(c);
	if (ret_body)
		*ret_body = call_text(c);
	call_free(h, c);
	return status;
}

int rpc(struct host *h, const char *method, const char *json, const char **ret_body)
{
	char target[128];

	snprintf(target, sizeof(target), "/%s", method);
	return host_call(h, false, "POST", target,
			 "Content-Type: application/json\r\nConnect-Protocol-Version: 1\r\n", json,
			 ret_body);
}

void host_init(struct host *h, const char *user)
{
	char body[2048], act[33], entropy[STR_B64_LEN(64) + 1];
	uint8_t zero[64] = { 1 };

	str_hex(act, h->epoch.activation, 16);
	str_b64(entropy, zero, sizeof(zero));
	snprintf(body, sizeof(body),
		 "{\"sandbox\":\"sbx1\",\"tenant\":\"t\",\"generation\":%llu,\"activation\":\"%s\","
		 "\"hostname\":\"sbx1\","
		 "\"machine_id\":\"0123456789abcdef0123456789abcdef\",\"boot_id\":\"00000000-0000-"
		 "4000-8000-000000000000\","
		 "\"entropy\":\"%s\",\"wall_ms\":%lld,\"access_token\":\"" TOKEN
		 "\",\"env\":{\"HOME\":\"/var\",\"GLOBAL\":\"g1\",\"BOTH\":\"global\"},"
		 "\"default_user\":\"%s\",\"default_workdir\":\"\",\"template\":\"base\"}",
		 (unsigned long long)h->epoch.generation, act, entropy, (long long)clock_wall_ms(),
		 user);
	assert_int_equal(host_call(h, true, "POST", "/init", NULL, body, NULL), 204);
}

struct call *stream_new(struct host *h, const char *method, const char *fields, const char *json)
{
	char all[512], target[128];
	uint32_t be = htonl((uint32_t)strlen(json));
	struct call *c;
	struct buf b;

	snprintf(all, sizeof(all), "Content-Type: application/connect+json\r\n%s",
		 fields ? fields : "");
	snprintf(target, sizeof(target), "/%s%s", strchr(method, '/') ? "" : "process.Process/",
		 method);
	buf_init(&b, CALL_MAX);
	buf_put(&b, "", 1);
	buf_put(&b, &be, 4);
	buf_puts(&b, json);
	c = call_new(h, false, "POST", target, all, buf_data(&b), buf_len(&b));
	buf_done(&b);
	return c;
}

const char *stream_next(struct host *h, struct call *c, int *ret_flags)
{
	uint32_t be;
	size_t n;

	WAIT_FOR(h, buf_len(&c->body) >= 5 || c->end || c->rst);
	if (buf_len(&c->body) < 5)
		return NULL;
	assert_int_equal(call_status(c), 200);
	*ret_flags = buf_data(&c->body)[0];
	memcpy(&be, buf_data(&c->body) + 1, 4);
	n = ntohl(be);
	WAIT_FOR(h, buf_len(&c->body) >= 5 + n || c->end || c->rst);
	assert_true(buf_len(&c->body) >= 5 + n && n < sizeof(text));
	memcpy(text, buf_data(&c->body) + 5, n);
	text[n] = '\0';
	buf_consume(&c->body, 5 + n);
	return text;
}

int stream_pid(struct host *h, struct call *c)
{
	int flags, pid = 0;
	const char *p = stream_next(h, c, &flags);

	assert_non_null(p);
	if (sscanf(p, "{\"event\":{\"start\":{\"pid\":%d}}}", &pid) != 1)
		fail_msg("no start event but %s", p);
	return pid;
}

int about_pid(struct host *h, const char *method, const char *fmt, int pid, const char **ret_body)
{
	char json[512], path[64];

	snprintf(path, sizeof(path), "process.Process/%s", method);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(json, sizeof(json), fmt, pid);
#pragma GCC diagnostic pop
	return rpc(h, path, json, ret_body);
}

static void take(char *dst, size_t size, size_t *n, const json_t *b64)
{
	char raw[40000];
	size_t len;

	if (!b64)
		return;
	assert_int_equal(
		str_unb64(raw, sizeof(raw), json_string_value(b64), json_string_length(b64), &len),
		0);
	if (*n < size - 1)
		memcpy(dst + *n, raw, len < size - 1 - *n ? len : size - 1 - *n);
	*n += len;
}

void stream_result(struct host *h, struct call *c, struct result *ret)
{
	const char *p;
	int flags;

	while ((p = stream_next(h, c, &flags))) {
		json_t *j = json_loads(p, 0, NULL), *ev = json_object_get(j, "event"), *x;

		if (!j)
			fail_msg("an event is no JSON: %s", p);
		assert_false(ret->ended && !(flags & 2));
		if (flags & 2) {
			x = json_object_get(j, "error");
			if (x)
				snprintf(ret->error, sizeof(ret->error), "%s: %s",
					 json_string_value(json_object_get(x, "code")),
					 json_string_value(json_object_get(x, "message")));
		} else if ((x = json_object_get(ev, "start"))) {
			assert_false(ret->started);
			ret->started = true;
			ret->pid = (int)json_integer_value(json_object_get(x, "pid"));
		} else if ((x = json_object_get(ev, "data"))) {
			assert_true(ret->started);
			take(ret->out, sizeof(ret->out), &ret->n_out, json_object_get(x, "stdout"));
			take(ret->out, sizeof(ret->out), &ret->n_out, json_object_get(x, "pty"));
			take(ret->err, sizeof(ret->err), &ret->n_err, json_object_get(x, "stderr"));
		} else if ((x = json_object_get(ev, "end"))) {
			ret->ended = true;
			ret->code = (int)json_integer_value(json_object_get(x, "exitCode"));
			ret->exited = json_is_true(json_object_get(x, "exited"));
			str_copy(ret->status, sizeof(ret->status),
				 json_string_value(json_object_get(x, "status")));
		}
		json_decref(j);
	}
	assert_true(c->end);
}

struct call *run(struct host *h, const char *cmd, const char *more, const char *fields)
{
	json_t *s = json_string(cmd);
	autofree char *quoted = json_dumps(s, JSON_ENCODE_ANY);
	autofree char *body =
		x_asprintf("{\"process\":{\"cmd\":\"/bin/bash\",\"args\":[\"-l\",\"-c\",%s]}%s}",
			   quoted, more ? more : "");

	json_decref(s);
	return stream_new(h, "Start", fields, body);
}

void run_wait(struct host *h, const char *cmd, const char *more, struct result *ret)
{
	struct call *c = run(h, cmd, more, NULL);

	*ret = (struct result){ 0 };
	stream_result(h, c, ret);
	call_free(h, c);
}
