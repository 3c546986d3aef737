/*
 * The host's side for tests of the agent: the real binary on a socketpair, the real multiplexer,
 * HTTP by the real parser. Every wait has a deadline.
 */
#ifndef GUEST_TEST_HOST_H
#define GUEST_TEST_HOST_H

#include <stdbool.h>
#include <sys/types.h>
#include "base/buf.h"
#include "http/http.h"
#include "mux/mux.h"

#define TOKEN "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define WAIT_MS 60000
#define CALL_MAX (256u << 20)

struct call {
	uint32_t id;
	struct buf raw;                  /* what came and was not decoded yet */
	bool end, rst, hold;             /* hold: take nothing, give no credit */
	size_t held;                     /* bytes that came while holding */
	struct http_head head;
	bool has_head, complete;
	struct http_dec dec;
	struct buf body;                 /* decoded */
};

struct host {
	int fd;
	pid_t pid;
	struct mux *mux;
	struct mux_epoch epoch;
	char cgroup[128];                /* "" = none */
	size_t cut_out, cut_in;          /* bytes that may still pass before the rest is lost; SIZE_MAX = all */
	unsigned seen;                   /* events */
};

/* Waits until a condition outside of the channel holds. */
#define EVENTUALLY_ON(h, cond) do { \
	int64_t until_ = clock_mono_ms() + WAIT_MS; \
	while (!(cond)) { \
		host_turn((h), 5); \
		if (clock_mono_ms() > until_) \
			fail_msg("waited too long for: %s", #cond); \
	} \
} while (0)

/*
 * What the tests of a program share: an agent, and a folder that everybody may enter. argv[1] = the
 * agent's program, argv[2] = a filter of cmocka's; false: none is named.
 */
extern struct host host;
extern char dir[64];
bool host_args(int argc, char **argv);
int host_setup(void **state);                            /* for the group */
int host_teardown(void **state);

void host_remove(const char *path);                      /* a folder and what is in it, but not what is mounted there */
void host_start(struct host *h);
void host_stop(struct host *h);
void host_connect(struct host *h);                       /* RESET until READY */
bool host_turn(struct host *h, int wait_ms);             /* moves what can be moved; false = nothing came in wait_ms */
void host_init(struct host *h, const char *user);        /* POST /init as the bridge does */

/*
 * A request with this token; fields are whole lines with CRLF. The stream's direction is ended
 * after the body.
 */
struct call *call_new(struct host *h, bool control, const char *method, const char *target,
		      const char *fields, const void *body, size_t n);
/*
 * The same with a chunked body that is sent in pieces: call_try sends n bytes as one chunk, or
 * nothing when there is no credit for all of it; call_send waits for credit.
 */
struct call *call_open(struct host *h, const char *target, const char *fields);
bool call_try(struct host *h, struct call *c, const void *p, size_t n);
void call_send(struct host *h, struct call *c, const void *p, size_t n);
void call_finish(struct host *h, struct call *c);
void call_wait(struct host *h, struct call *c);          /* whole answer */
int call_status(struct call *c);
const char *call_text(struct call *c);                   /* the body as a string, valid until the next call on c */
void call_free(struct host *h, struct call *c);          /* RST when it is alive */

/* One call from start to end: status, and the body in a static buffer. */
int host_call(struct host *h, bool control, const char *method, const char *target,
	      const char *fields, const char *body, const char **ret_body);
int rpc(struct host *h, const char *method, const char *json, const char **ret_body);

/* Streams. method: of process.Process, or "SERVICE/METHOD". */
struct call *stream_new(struct host *h, const char *method, const char *fields, const char *json);
/*
 * The next envelope's payload (static buffer), NULL = the stream is over. *ret_flags 2 =
 * end-stream.
 */
const char *stream_next(struct host *h, struct call *c, int *ret_flags);

struct result {
	int pid, code;
	bool started, ended, exited;
	char out[8192], err[1024], status[64], error[512];
	size_t n_out, n_err;
};
/* The start event's pid. */
int stream_pid(struct host *h, struct call *c);
/* A unary call of process.Process: fmt has one %d. */
int about_pid(struct host *h, const char *method, const char *fmt, int pid, const char **ret_body);
/* Reads to the end. */
void stream_result(struct host *h, struct call *c, struct result *ret);
/* bash -l -c CMD; more = further members of the request, e.g. ",\"stdin\":false". */
struct call *run(struct host *h, const char *cmd, const char *more, const char *fields);
void run_wait(struct host *h, const char *cmd, const char *more, struct result *ret);

#endif
