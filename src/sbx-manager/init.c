/*
 * What only the host may ask of the guest: /init, /prepare, /shutdown, over a control connection of
 * its own through the bridge. What comes back is hostile: bounded, parsed strictly, and only its
 * status counts.
 */
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/http.h"
#include "sbx-manager/job.h"

#define GUEST_ANSWER_MAX (HTTP_HEAD_MAX + 4096)
#define GUEST_ENTROPY_BYTES 256
#define GUEST_CLOCK_OFF_MS 40            /* most that the guest's clock may be off by */
#define GUEST_CLOCK_TRIES 3

static int guest_connect(struct sbx *s, const struct record *r, uint32_t kind, uint64_t lease,
			 int timeout_ms, int *ret_fd, struct err *e)
{
	struct bridge_preamble p = { .magic = BRIDGE_PREAMBLE_MAGIC,
				     .kind = kind,
				     .lease = lease,
				     .generation = r->id.generation };
	autoclose int fd = -1;
	char path[PATH_MAX];
	struct fd_peer peer;

	if (box_path(s, path, r->id.sandbox, r->id.generation, "bridge.sock") < 0)
		return err_set(e, -ENAMETOOLONG, "The run folder's name is too long.");
	fd = fd_unix_connect(path, SOCK_STREAM, timeout_ms);
	if (fd < 0)
		return err_errno(e, fd, "The bridge does not listen");
	if (fd_peer_cred(fd, &peer) < 0 || (uint64_t)peer.pid != r->proc.bridge_pid ||
	    peer.uid != r->proc.bridge_uid)
		return err_set(e, -EACCES, "The bridge's socket belongs to another process.");
	memcpy(p.activation, r->id.activation, sizeof(p.activation));
	if (fd_write_all(fd, &p, sizeof(p), timeout_ms) < 0)
		return err_set(e, -EPIPE, "The bridge has closed the connection.");
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int guest_put_request(struct buf *b, const char *req_id, const char *target,
			     const char *body, size_t n)
{
	int r = http_put_request(b, "POST", target);

	if (r == 0)
		r = http_put_field(b, "Host", "guest");
	if (r == 0)
		r = http_put_field(b, "Content-Type", "application/json");
	if (r == 0 && req_id[0])
		r = http_put_field(b, "X-Request-Id", req_id);
	if (r == 0)
		r = http_put_field(b, "Connection", "close");
	if (r == 0)
		r = http_put_fieldf(b, "Content-Length", "%zu", n);
	if (r == 0)
		r = http_put_end(b);
	return r == 0 ? buf_put(b, body, n) : r;
}

struct guest_answer { int status; uint64_t age_ms; /* of the clock that /init set; else 0 */ };

/* Reads until the head is whole; the body of an answer does not matter. */
static int guest_read_answer(int fd, int timeout_ms, struct guest_answer *ret, struct err *e)
{
	int64_t until = clock_mono_ms() + timeout_ms;
	char *in = x_alloc(GUEST_ANSWER_MAX);
	autofree char *hold = in;
	size_t n = 0;

	while (n < GUEST_ANSWER_MAX) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left = until - clock_mono_ms();
		struct http_head head;
		enum http_error bad;
		const char *age;
		ssize_t r;

		if (left <= 0 || poll(&p, 1, (int)left) == 0)
			return err_set(e, -ETIMEDOUT, "The guest did not answer in time.");
		r = recv(fd, in + n, GUEST_ANSWER_MAX - n, 0);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return err_set(e, -ECONNRESET,
				       "The guest ended the connection without an answer.");
		n += (size_t)r;
		r = http_parse_response(in, n, "POST", &head, &bad);
		if (r < 0)
			return err_set(e, -EPROTO, "The guest's answer is malformed: %s.",
				       http_error_text(bad));
		if (r == 0)
			continue;
		ret->status = head.status;
		age = http_get(&head, "Space-Clock-Age-Ms");
		if (!age || str_to_u64(age, INT32_MAX, &ret->age_ms) < 0)
			ret->age_ms = 0;
		http_head_done(&head);
		return 0;
	}
	return err_set(e, -EPROTO, "The guest's answer is too long.");
}

struct guest_lease { struct sbx *s; uint64_t id; };

static void guest_lease_in_loop(void *arg)
{
	struct guest_lease *g = arg;

	g->id = lease_next_id(g->s);
}

static int guest_ask(struct job *j, const char *target, json_t *body, int timeout_ms,
		     struct guest_answer *ret, struct err *e)
{
	struct guest_lease lease = { .s = j->s };
	autofree char *text = json_dumps(body, JSON_COMPACT);
	autoclose int fd = -1;
	struct buf out;
	int r;

	if (!text)
		return err_set(e, -EINVAL, "%s: the body cannot be written as JSON.", target);
	r = sbx_in_loop(j->s, guest_lease_in_loop, &lease);
	if (r < 0)
		return err_set(e, r, "The node service is ending.");
	r = guest_connect(j->s, &j->rec, 1, lease.id, timeout_ms, &fd, e);
	if (r < 0)
		return err_wrap(e, "%s", target);
	buf_init(&out, HTTP_HEAD_MAX + strlen(text));
	r = guest_put_request(&out, j->req_id, target, text, strlen(text));
	if (r == 0)
		r = fd_write_all(fd, buf_data(&out), buf_len(&out), timeout_ms);
	buf_done(&out);
	if (r < 0)
		return err_errno(e, r, "%s: the guest does not take the request", target);
	r = guest_read_answer(fd, timeout_ms, ret, e);
	if (r < 0)
		return err_wrap(e, "%s", target);
	if (ret->status != 204 && ret->status != 200)
		return err_set(e, -EIO, "%s: the guest answered with status %d.", target,
			       ret->status);
	return 0;
}

int guest_post(struct job *j, const char *target, json_t *body, int timeout_ms, struct err *e)
{
	struct guest_answer answer = { 0 };

	return guest_ask(j, target, body, timeout_ms, &answer, e);
}

static json_t *guest_entropy(void)
{
	unsigned char raw[GUEST_ENTROPY_BYTES];
	char text[STR_B64_LEN(GUEST_ENTROPY_BYTES) + 1];

	randombytes_buf(raw, sizeof(raw));
	str_b64(text, raw, sizeof(raw));
	sodium_memzero(raw, sizeof(raw));
	return json_string(text);
}

/*
 * The guest sets its clock to what ours was when the request began: what is off by then is the way
 * there, of which we know the most that it can have been. On a busy machine that is too much at
 * times: then the clock is set once more. (The second /init of an execution sets nothing else.)
 */
static int guest_set(struct job *j, json_t *body, int timeout_ms, struct err *e)
{
	for (int i = 0; i < GUEST_CLOCK_TRIES; i++) {
		struct guest_answer answer = { 0 };
		int64_t begin_ms = clock_mono_ms();
		int r;

		json_object_set_new(body, "entropy", guest_entropy());
		json_object_set_new(body, "wall_ms", json_integer((json_int_t)clock_wall_ms()));
		r = guest_ask(j, "/init", body, timeout_ms, &answer, e);
		if (r < 0)
			return r;
		if (clock_mono_ms() - begin_ms - (int64_t)answer.age_ms <= GUEST_CLOCK_OFF_MS)
			break;
	}
	return 0;
}

/* The fresh identity of this execution (ARCHITECTURE: the guest). */
int guest_init(struct job *j, json_t *env, int timeout_ms, struct err *e)
{
	char activation[ID_ACTIVATION_HEX + 1], boot_id[ID_UUID_LEN + 1];
	json_t *body;
	int r;

	str_hex(activation, j->rec.id.activation, ID_ACTIVATION_BYTES);
	if (id_new_uuid(boot_id) < 0)
		return err_set(e, -EIO, "The node has no random numbers.");
	body = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:O?, s:s, s:s, s:s}",
			 "sandbox", j->rec.id.sandbox, "tenant", j->rec.id.tenant, "generation",
			 (json_int_t)j->rec.id.generation, "activation", activation, "hostname",
			 j->rec.id.sandbox, "machine_id", j->rec.machine_id, "boot_id", boot_id,
			 "access_token", j->rec.guest_token, "env", env, "default_user", "user",
			 "default_workdir", "", "template", "base");
	if (!body)
		return err_set(e, -EINVAL, "/init: the values cannot be written as JSON.");
	if (!json_object_get(body, "env"))
		json_object_set_new(body, "env", json_object());
	r = guest_set(j, body, timeout_ms, e);
	json_decref(body);
	return r;
}
