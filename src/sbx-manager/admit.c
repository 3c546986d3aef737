/*
 * THE admission (spec K-4, K-5, R-1 to R-3, B-1 to B-4). A stream goes to the bridge (purpose
 * control) or to the gateway (purpose service-port), by the same steps in this order, and nothing
 * reaches either before the last one:
 *
 *	signature (may be cached) and times of the capability, its purpose and access      -> deny
 *	the identity that it selects against the record                                    -> refresh-route or deny
 *	the state: does it serve, is it being ended                                        -> refresh-route
 *	limits                                                                             -> limit
 *	connect to its socket; pid and uid of who listens there                            -> deny
 *	node-manager: processes, start times, executables, socket files as recorded        -> deny
 *	capability and record once more, since the answer took its time                    -> as above
 *	a lease, the preamble with the epoch, and only then the descriptor goes out
 *
 * The same function compares before and after, so that both say the same. The gateway gets the
 * capability itself with the preamble, and checks it again by what it knows by itself.
 */
#include "sbx-manager/admit_stat.h"
#include "sbx-manager/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define ADMIT_REFUSALS_LOGGED_MAX 60         /* lines a minute */
#define ADMIT_DENY "refusal-deny"
#define ADMIT_REFRESH "refusal-refresh-route"

struct admit {
	struct sbx *s;
	struct ipc_call *call;
	struct capability cap;
	char text[CAP_TEXT_MAX];             /* of the capability */
	uint64_t peer_pid;                   /* who was connected to */
	int fd;                              /* connected, no byte written */
	int64_t begin_ns, part_ns;           /* of the whole, of the part that runs now */
};

static int admit_name_of(const char *const *names, unsigned n, const char *name)
{
	for (unsigned i = 0; i < n; i++) {
		if (str_eq(names[i], name))
			return (int)i;
	}
	return -1;
}

/* Signature and times, by the keys and the clock of now. */
static int admit_token(struct sbx *s, const char *text, struct capability *ret, struct err *e)
{
	int r = cap_cache_verify(s->caps, text, strlen(text), &s->bundle, clock_wall_ms() / 1000,
				 ret, e);

	if (r < 0)
		str_copy(e->code, sizeof(e->code), ADMIT_DENY);
	return r;
}

int admit_capability(struct sbx *s, const char *text, enum id_purpose purpose,
		     enum id_access access, uint64_t port, enum id_protocol protocol,
		     struct capability *ret, struct err *e)
{
	int r = admit_token(s, text, ret, e);

	if (r < 0)
		return r;
	if (ret->purpose != purpose)
		return err_set_code(e, -EACCES, ADMIT_DENY,
				    "The capability is for another purpose.");
	if (!id_access_allows(purpose, ret->access, access))
		return err_set_code(e, -EACCES, ADMIT_DENY,
				    "The capability does not allow this access.");
	if (purpose == ID_PURPOSE_SERVICE_PORT &&
	    (ret->port != port || ret->protocol != protocol))
		return err_set_code(e, -EACCES, ADMIT_DENY,
				    "The capability is for another port or protocol.");
	return 0;
}

/* Where this stream goes. */
static struct exec_peer admit_peer(const struct admit *a, const struct record *r)
{
	return a->cap.purpose == ID_PURPOSE_SERVICE_PORT
		       ? (struct exec_peer) { "gtw.sock", "gateway", r->gateway.pid, r->gateway.uid }
		       : (struct exec_peer) { "bridge.sock", "bridge", r->proc.bridge_pid,
					      r->proc.bridge_uid };
}

/* Only one that knows who it is: it has confirmed that (gateway.c). */
static int admit_gateway(const struct admit *a, const struct box *b, struct err *e)
{
	if (a->cap.purpose != ID_PURPOSE_SERVICE_PORT ||
	    (b->gateway.pid != 0 && b->gateway.pid == b->rec.gateway.pid))
		return 0;
	return err_set_code(e, -EAGAIN, "gateway-away",
			    "The sandbox's network gateway is being started; try again.");
}

/* Before node-manager is asked and again after it: may this capability be served here now? */
static struct box *admit_compare(struct admit *a, struct err *e)
{
	const struct capability *cap = &a->cap;
	struct sbx *s = a->s;

	struct box *b = box_find(s, cap->id.sandbox);
	const char *why = "";
	enum id_verdict v = id_compare(&cap->id, b ? &b->rec.id : NULL, &why);

	if (v == ID_DENY) {
		err_set_code(e, -EACCES, ADMIT_DENY, "The capability is for another one (%s).",
			     why);
		return NULL;
	}
	if (v == ID_REFRESH_ROUTE) {
		err_set_code(e, -EACCES, ADMIT_REFRESH,
			     "This execution is not installed here (%s).", why ? why : "sandbox");
		return NULL;
	}
	if (b->ending || !life_serves(b->rec.state)) {
		err_set_code(e, -EACCES, ADMIT_REFRESH, "The sandbox is %s.",
			     b->ending ? "ending" : life_state_names[b->rec.state]);
		return NULL;
	}
	return admit_gateway(a, b, e) < 0 ? NULL : b;
}

static int admit_limits(const struct admit *a, const struct box *b, struct err *e)
{
	bool port = a->cap.purpose == ID_PURPOSE_SERVICE_PORT;
	bool full = port ? b->n_ports >= SBX_PORTS_PER_BOX_MAX
			 : b->n_leases - b->n_ports >= SBX_LEASES_PER_BOX_MAX;

	if (!full && b->s->n_leases < SBX_LEASES_MAX && b->s->n_admits < SBX_ADMITS_PENDING_MAX)
		return 0;
	return err_set_code(e, -EAGAIN, "limit", "Too many streams of this %s.",
			    full ? "sandbox" : "node");
}

/* Who does not listen has ended: a bridge with its execution, and a gateway comes back. */
static int admit_no_listener(const struct exec_peer *p, bool port, struct err *e)
{
	if (errno == EAGAIN)
		return err_set_code(e, -EAGAIN, "limit", "The %s has too many connections waiting.",
				    p->what);
	return err_set_code(e, port ? -EAGAIN : -EACCES, port ? "gateway-away" : ADMIT_REFRESH,
			    "The %s does not listen (%s).", p->what, strerror(errno));
}

/*
 * A fresh connection; who listens must be the recorded process (SO_PEERCRED was taken at its
 * listen(2)).
 */
static int admit_connect(struct admit *a, struct box *b, struct err *e)
{
	const struct exec_peer p = admit_peer(a, &b->rec);
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	char path[PATH_MAX];
	struct fd_peer peer;
	autoclose int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return err_set_code(e, -EAGAIN, "limit", "The node has no descriptors left.");
	if (box_path(b->s, path, b->rec.id.sandbox, b->rec.id.generation, p.socket) < 0 ||
	    str_copy(sa.sun_path, sizeof(sa.sun_path), path) < 0)
		return err_set(e, -ENAMETOOLONG, "The run folder's name is too long.");
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return admit_no_listener(&p, a->cap.purpose == ID_PURPOSE_SERVICE_PORT, e);
	if (fd_peer_cred(fd, &peer) < 0 || (uint64_t)peer.pid != p.pid || peer.uid != p.uid)
		return err_set_code(e, -EACCES, ADMIT_DENY,
				    "The %s's socket belongs to another process.", p.what);
	a->peer_pid = p.pid;
	a->fd = TAKE_FD(fd);
	return 0;
}

static void admit_end(struct admit *a, const struct err *e)
{
	static struct log_limit limit;

	if (e) {
		if (log_limit_ok(&limit, ADMIT_REFUSALS_LOGGED_MAX))
			log_info("not admitted", F_REQ(ipc_call_req_id(a->call)),
				 F_STR("sandbox", a->cap.id.sandbox),
				 F_UINT("generation", a->cap.id.generation), F_ERR(e));
		ipc_fail(a->call, e);
	}
	fd_close(a->fd);
	a->s->n_admits--;
	explicit_bzero(a->text, sizeof(a->text));
	free(a);
}

/* The whole capability goes with it: the gateway decides for itself (K-5). */
static int admit_send_to_gateway(const struct admit *a, const struct box *b, uint64_t lease,
				 struct err *e)
{
	struct {
		struct gtw_preamble p;
		char text[CAP_TEXT_MAX];
	} m = { .p = { .magic = GTW_PREAMBLE_MAGIC,
		       .token_len = (uint32_t)strlen(a->text),
		       .lease = lease,
		       .generation = b->rec.id.generation,
		       .port = a->cap.port,
		       .protocol = (uint8_t)a->cap.protocol } };
	size_t n = sizeof(m.p) + m.p.token_len;
	ssize_t sent;

	memcpy(m.p.activation, b->rec.id.activation, sizeof(m.p.activation));
	memcpy(m.text, a->text, m.p.token_len);
	sent = send(a->fd, &m, n, MSG_NOSIGNAL);
	explicit_bzero(&m, sizeof(m));
	return sent == (ssize_t)n ? 0
				  : err_set_code(e, -EAGAIN, "gateway-away",
						 "The gateway has closed the connection.");
}

static int admit_send_to_bridge(const struct box *b, int fd, uint64_t lease, struct err *e)
{
	struct bridge_preamble p = { .magic = BRIDGE_PREAMBLE_MAGIC,
				     .kind = 0,
				     .lease = lease,
				     .generation = b->rec.id.generation };

	memcpy(p.activation, b->rec.id.activation, sizeof(p.activation));
	if (send(fd, &p, sizeof(p), MSG_NOSIGNAL) != sizeof(p))
		return err_set_code(e, -EACCES, ADMIT_REFRESH,
				    "The bridge has closed the connection.");
	return 0;
}

static int admit_hand_out(struct admit *a, struct box *b, struct err *e)
{
	struct sbx_admit_rep rep = { .lease = lease_next_id(a->s),
				     .generation = b->rec.id.generation };
	bool port = a->cap.purpose == ID_PURPOSE_SERVICE_PORT;
	int dup_fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 3);
	int r;

	if (dup_fd < 0)
		return err_set_code(e, -EAGAIN, "limit", "The node has no descriptors left.");
	r = lease_add(b, ipc_call_peer(a->call), rep.lease, port, dup_fd, e);
	if (r < 0)
		return r;
	r = port ? admit_send_to_gateway(a, b, rep.lease, e)
		 : admit_send_to_bridge(b, a->fd, rep.lease, e);
	if (r < 0) {
		lease_drop(b, rep.lease);
		return r;
	}
	/* What only the control routes need does not go along with a port. */
	if (!port)
		str_copy(rep.guest_token, sizeof(rep.guest_token), b->rec.guest_token);
	str_copy(rep.sandbox, sizeof(rep.sandbox), b->rec.id.sandbox);
	ipc_answer(a->call, &rep, &a->fd, 1);
	admit_stat_add(ADMIT_HAND_OVER, a->part_ns);
	admit_stat_add(ADMIT_TOTAL, a->begin_ns);
	return 0;
}

/* A gateway that has ended comes back; whatever else is not as recorded is not served. */
static int admit_unverified(const struct admit *a, struct box *b, const struct err *failed,
			    struct err *e)
{
	bool unknown = failed->num == -ETIMEDOUT || failed->num == -ECONNRESET ||
		       failed->num == -EAGAIN;

	if (failed->num == -ESRCH && a->cap.purpose == ID_PURPOSE_SERVICE_PORT) {
		b->gateway_doubt = true;
		gateway_look(b);
		return err_set_code(e, -EAGAIN, "gateway-away",
				    "The sandbox's network gateway has ended; try again.");
	}
	return err_set_code(e, unknown ? -EAGAIN : -EACCES, unknown ? "limit" : ADMIT_DENY,
			    "The execution could not be verified: %s", failed->text);
}

static void admit_verified(void *arg, const struct err *failed, const void *rep, int *fds,
			   size_t n_fds)
{
	struct admit *a = arg;
	struct err e = { 0 };
	struct box *b;
	int r;

	a->part_ns = admit_stat_add(ADMIT_VERIFY, a->part_ns);
	r = admit_token(a->s, a->text, &a->cap, &e);
	b = r == 0 ? admit_compare(a, &e) : NULL;
	r = b ? admit_limits(a, b, &e) : e.num;
	if (r == 0 && admit_peer(a, &b->rec).pid != a->peer_pid)
		r = err_set_code(&e, -EAGAIN, "gateway-away",
				 "The sandbox's network gateway was replaced; try again.");
	/* What has changed meanwhile says more than what was not found any more. */
	if (failed) {
		log_error("an execution was not verified", F_REQ(ipc_call_req_id(a->call)),
			  F_STR("sandbox", a->cap.id.sandbox), F_ERR(failed));
		if (r == 0)
			r = admit_unverified(a, b, failed, &e);
	}
	if (r == 0)
		r = admit_hand_out(a, b, &e);
	admit_end(a, r < 0 ? &e : NULL);
}

static int admit_begin(struct admit *a, const struct sbx_admit *q, struct err *e)
{
	struct nm_verify v = { 0 };
	int purpose = admit_name_of(id_purpose_names, ID_PURPOSE_COUNT, q->purpose);
	int access = admit_name_of(id_access_names, ID_ACCESS_DATA_COUNT, q->access);
	int protocol = admit_name_of(id_protocol_names, ID_PROTOCOL_COUNT, q->protocol);
	uint64_t misses = cap_cache_misses(a->s->caps);
	struct box *b;
	int r;

	if ((purpose != ID_PURPOSE_CONTROL && purpose != ID_PURPOSE_SERVICE_PORT) || access < 0 ||
	    protocol < 0)
		return err_set_code(e, -EACCES, ADMIT_DENY, "No such purpose, access or protocol.");
	r = admit_capability(a->s, q->capability, (enum id_purpose)purpose, (enum id_access)access,
			     q->port, (enum id_protocol)protocol, &a->cap, e);
	if (r < 0)
		return r;
	a->part_ns = admit_stat_add(cap_cache_misses(a->s->caps) != misses ? ADMIT_SIGNATURE
									   : ADMIT_SIGNATURE_CACHED,
				    a->part_ns);
	b = admit_compare(a, e);
	r = b ? admit_limits(a, b, e) : e->num;
	a->part_ns = admit_stat_add(ADMIT_COMPARE, a->part_ns);
	if (r == 0)
		r = admit_connect(a, b, e);
	if (r < 0)
		return r;
	a->part_ns = admit_stat_add(ADMIT_CONNECT, a->part_ns);
	str_copy(v.sandbox, sizeof(v.sandbox), b->rec.id.sandbox);
	v.generation = b->rec.id.generation;
	if (purpose == ID_PURPOSE_SERVICE_PORT)
		v.gateway_pid = a->peer_pid;
	else
		v.bridge_pid = a->peer_pid;
	str_copy(a->text, sizeof(a->text), q->capability);
	ipc_client_call(a->s->nm, &nm_ops[NM_VERIFY], ipc_call_req_id(a->call), &v, NULL, 0,
			SBX_VERIFY_MS, admit_verified, a);
	return 0;
}

void admit_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	struct sbx *s = arg;
	struct admit *a = x_alloc(sizeof(*a));
	struct err e = { 0 };

	a->s = s;
	a->call = call;
	a->fd = -1;
	a->begin_ns = a->part_ns = admit_stat_now();
	s->n_admits++;
	if (admit_begin(a, req, &e) < 0)
		admit_end(a, &e);
}
