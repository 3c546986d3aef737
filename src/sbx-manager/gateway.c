/*
 * The network gateway of an execution, seen from here (spec S-3, K-5, R-5).
 *
 * Theory of operation. Its death is not the end of the sandbox. So it is not a step of the
 * sandbox's story, but a state that is kept: what is wanted follows from the record and the bundle,
 * what there is stands in b->gateway, and gateway_look compares the two. Where they differ a job
 * makes them equal. It is looked at after each job of the box, when the gateway has ended, after a
 * new bundle, when node-manager is back, and by the timer of a try that failed.
 *
 *	wanted   as long as the execution is there (running, paused): a gateway that knows the
 *	         whole identity and the newest bundle; open, once the execution has run /init
 *	start    NM_GATEWAY (ends what was there), GTW_INSTALL, record, in memory, GTW_OPEN
 *
 * `create` and `start` do the same steps in their own job, so that the network is there when they
 * answer: NM_GATEWAY is asked as soon as there is a namespace, and heard when the VMM, which starts
 * meanwhile, has its channel. Where it fails they go on without, and the job goes on trying. In memory (b->gateway.pid)
 * stands only a gateway that has confirmed; nothing is admitted to another one.
 *
 * A doubt (its end was reported, node-manager was away) is checked first: node-manager compares
 * processes and start times, and it must take its identity again. The report may be about the one
 * before it: reports are counted, and a job that began before the last one does not end the doubt.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "sbx-manager/job.h"

#define GATEWAY_ASK_MS 2000              /* one question to it; a guest may have it in its hands */
#define GATEWAY_LISTEN_MS 3000           /* for one that was just started to listen */
#define GATEWAY_NM_MS 10000
#define GATEWAY_TRIES 5                  /* in a row, then the sandbox's log says so */
#define GATEWAY_RETRY_FIRST_MS 100
#define GATEWAY_RETRY_MAX_MS 30000
#define GATEWAY_STEADY_MS 30000          /* the end of one that lived so long is no failed start */
#define GATEWAY_PUSH_MS 500              /* a new bundle: to one gateway, */
#define GATEWAY_PUSH_ALL_MS 5000         /* and to all; who did not take it is looked at later */

/* ---- Questions to it (worker) ---- */

static int gateway_control(struct job *j, int wait_ms, struct ipc_sync **ret, struct err *e)
{
	const struct exec_peer peer = { "gtwctl.sock", "gateway", j->rec.gateway.pid,
					j->rec.gateway.uid };

	return exec_peer_open(j, &peer, wait_ms, ret, e);
}

int gateway_ask(struct job *j, enum gtw_op op, const void *req, void *rep, int timeout_ms,
		struct err *e)
{
	struct ipc_sync *c = NULL;
	int r = gateway_control(j, 0, &c, e);

	if (r == 0)
		r = ipc_sync_call(c, &gtw_ops[op], j->req_id, req, NULL, 0, rep, NULL, NULL,
				  timeout_ms, e);
	ipc_sync_close(c);
	return r;
}

struct gateway_text { struct sbx *s; char *text; };

static void gateway_text_in_loop(void *arg)
{
	struct gateway_text *t = arg;

	t->text = x_strdup(t->s->bundle_text ? t->s->bundle_text : "");
}

static int gateway_fill_install(struct job *j, struct gtw_install *q, struct err *e)
{
	const struct identity *id = &j->rec.id;
	struct gateway_text t = { .s = j->s };
	autofree char *text = NULL;

	if (sbx_in_loop(j->s, gateway_text_in_loop, &t) < 0)
		return err_set(e, -ECANCELED, "The node service is ending.");
	text = t.text;
	str_copy(q->tenant, sizeof(q->tenant), id->tenant);
	str_copy(q->sandbox, sizeof(q->sandbox), id->sandbox);
	str_copy(q->worker, sizeof(q->worker), id->worker);
	str_copy(q->substrate, sizeof(q->substrate), id_substrate_names[id->substrate]);
	str_copy(q->pod_uid, sizeof(q->pod_uid), id->pod_uid);
	q->generation = id->generation;
	str_hex(q->activation, id->activation, ID_ACTIVATION_BYTES);
	q->attempt = id->attempt;
	return str_copy(q->bundle, sizeof(q->bundle), text) < 0
		       ? err_set(e, -E2BIG, "The key bundle is too long.")
		       : 0;
}

/* Who it serves, and by which keys it checks. The same once more is fine. */
static int gateway_install(struct job *j, int wait_ms, struct err *e)
{
	struct gtw_install *q = x_alloc(sizeof(*q));
	autofree struct gtw_install *hold = q;
	struct gtw_bundle_rep rep = { 0 };
	struct ipc_sync *c = NULL;
	int r = gateway_fill_install(j, hold, e);

	if (r == 0)
		r = gateway_control(j, wait_ms, &c, e);
	if (r == 0)
		r = ipc_sync_call(c, &gtw_ops[GTW_INSTALL], j->req_id, q, NULL, 0, &rep, NULL,
				  NULL, GATEWAY_ASK_MS, e);
	ipc_sync_close(c);
	if (r < 0)
		return r;
	j->gateway = (struct gateway){ .pid = j->rec.gateway.pid,
				       .attempt = j->rec.id.attempt,
				       .bundle = rep.number };
	return 0;
}

static int gateway_open(struct job *j, struct err *e)
{
	int r = gateway_ask(j, GTW_OPEN, NULL, NULL, GATEWAY_ASK_MS, e);

	j->gateway.open = r == 0;
	return r;
}

int gateway_revoke(struct job *j, int timeout_ms, struct err *e)
{
	struct ipc_revoke q = { .lease = 0 };
	struct ipc_revoke_rep rep = { 0 };

	return gateway_ask(j, GTW_REVOKE, &q, &rep, timeout_ms, e);
}

/* ---- Start (worker) ---- */

/* What went through the one that is to end: cut, never a clean end. */
static void gateway_away_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (!b || b->rec.id.generation != j->rec.id.generation)
		return;
	b->gateway = (struct gateway){ 0 };
	j->gateway_reports = b->gateway_reports;
	lease_cut_ports(b);
}

static int gateway_away(struct job *j, struct nm_gateway *q, struct err *e)
{
	int r = sbx_in_loop(j->s, gateway_away_in_loop, j);

	j->gateway = (struct gateway){ 0 };
	*q = (struct nm_gateway){ .generation = j->rec.id.generation, .internet = j->rec.internet };
	str_copy(q->sandbox, sizeof(q->sandbox), j->rec.id.sandbox);
	return r < 0 ? err_set(e, r, "The node service is ending.") : 0;
}

static int gateway_started(struct job *j, struct err *e)
{
	int r = job_fault("sbx.gateway.started", e);

	return r < 0 ? r : gateway_install(j, GATEWAY_LISTEN_MS, e);
}

int gateway_start(struct job *j, struct err *e)
{
	struct nm_gateway q;
	int r = gateway_away(j, &q, e);

	if (r == 0)
		r = job_nm(j, NM_GATEWAY, &q, NULL, 0, &j->rec.gateway, NULL, NULL, GATEWAY_NM_MS,
			   e);
	if (r == 0)
		r = gateway_started(j, e);
	return r < 0 ? err_wrap(e, "The network gateway") : 0;
}

void gateway_ask_for(struct job *j)
{
	struct nm_gateway q;

	if (!j->unrecorded && gateway_away(j, &q, NULL) == 0)
		job_nm_begin(j, NM_GATEWAY, &q, &j->nm_gateway, NULL);
}

/* What was asked for, and once more, with patience, what did not come. */
static int gateway_take(struct job *j, struct err *e)
{
	struct ipc_sync *c = TAKE(j->nm_gateway);
	int r = -ENOTCONN;

	if (c)
		r = ipc_sync_end(c, &nm_ops[NM_GATEWAY], &j->rec.gateway, NULL, NULL,
				 GATEWAY_NM_MS, e);
	ipc_sync_close(c);
	return r < 0 ? gateway_start(j, e) : gateway_started(j, e);
}

void gateway_begin(struct job *j)
{
	struct err e = { 0 };

	if (j->unrecorded)
		return;
	if (gateway_take(j, &e) < 0)
		log_warn("an execution begins without its network gateway", F_REQ(j->req_id),
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
	job_step(j, "gateway");
}

void gateway_let_out(struct job *j)
{
	struct err e = { 0 };

	if (j->unrecorded || j->gateway.pid == 0 || gateway_open(j, &e) == 0)
		return;
	log_warn("a network gateway did not open", F_REQ(j->req_id),
		 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
}

/* ---- The one that is there (worker) ---- */

static int gateway_verify(struct job *j, struct err *e)
{
	struct nm_verify v = { .generation = j->rec.id.generation,
			       .gateway_pid = j->rec.gateway.pid };

	if (v.gateway_pid == 0)
		return err_set(e, -ESRCH, "There is none.");
	str_copy(v.sandbox, sizeof(v.sandbox), j->rec.id.sandbox);
	return job_nm(j, NM_VERIFY, &v, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
}

/* Its leases, page by page; drop: nobody holds them any more. */
static int gateway_leases(struct job *j, bool drop, struct err *e)
{
	int64_t until = clock_mono_ms() + GATEWAY_ASK_MS;
	struct gtw_leases q = { 0 };
	struct ipc_sync *c = NULL;
	int r = gateway_control(j, 0, &c, e);

	if (r < 0)
		return r;
	do {
		struct gtw_leases_rep rep = { 0 };

		r = ipc_sync_call(c, &gtw_ops[GTW_LEASES], j->req_id, &q, NULL, 0, &rep, NULL, NULL,
				  job_left_ms(until), e);
		if (r < 0)
			break;
		if (rep.closed || rep.generation != j->rec.id.generation)
			r = err_set(e, -ESHUTDOWN, "it serves nothing any more");
		if (r == 0 && drop)
			r = revoke_leases(c, &gtw_ops[GTW_REVOKE], j->req_id, rep.leases, until, e);
		q.after = drop ? rep.next : 0;
		ipc_done(gtw_ops[GTW_LEASES].rep, &rep);
	} while (r == 0 && q.after != 0);
	ipc_sync_close(c);
	return r;
}

static int gateway_check(struct job *j, bool drop_leases, struct err *e)
{
	int r = gateway_verify(j, e);

	if (r == 0)
		r = gateway_install(j, 0, e);
	if (r == 0)
		r = gateway_leases(j, drop_leases, e);
	if (r < 0)
		j->gateway = (struct gateway){ 0 };
	return r;
}

/* After a restart of this program. What is wrong with it is put right by gateway_look. */
void gateway_adopt(struct job *j)
{
	struct err e = { 0 };

	if (gateway_check(j, true, &e) < 0)
		log_warn("a network gateway could not be adopted",
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(&e));
}

/* ---- The job that keeps it ---- */

static void gateway_set_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	if (b)
		gateway_set(b, j);
}

static int gateway_again(struct job *j, const struct err *why, struct err *e)
{
	bool had = j->rec.gateway.pid != 0;
	int r;

	if (had)
		log_warn("a network gateway is started again",
			 F_STR("sandbox", j->rec.id.sandbox), F_ERR(why));
	r = gateway_start(j, e);
	if (r == 0)
		r = job_commit(j, e);
	if (r == 0)
		job_event(j, had ? "the network gateway was started again; its connections have ended"
				 : "the network gateway was started");
	return r;
}

static int gateway_run(struct job *j, struct err *e)
{
	struct err why = { 0 };
	int r = record_get(j->s->db, j->sandbox, &j->rec, e);

	if (r < 0 || !life_resident(j->rec.state) || j->rec.id.generation != j->generation)
		return r == -ENOENT ? 0 : r;
	if (gateway_check(j, false, &why) < 0)
		r = j->nm_away ? why.num : gateway_again(j, &why, e);
	if (r < 0 && e->num == 0)
		*e = why;
	if (r == 0 && life_serves(j->rec.state))
		r = gateway_open(j, e);
	if (r == 0)
		r = sbx_in_loop(j->s, gateway_set_in_loop, j);
	if (r < 0 && j->tries + 1 >= GATEWAY_TRIES && !j->gateway_said) {
		job_event(j, "the network gateway does not start, the sandbox has no network: %s",
			  e->text);
		j->gateway_said = true;
	}
	return r;
}

static int64_t gateway_delay(unsigned fails)
{
	int64_t ms = GATEWAY_RETRY_FIRST_MS;

	for (unsigned i = 1; i < fails && ms < GATEWAY_RETRY_MAX_MS; i++)
		ms *= 2;
	return fails == 0 ? 0 : ms < GATEWAY_RETRY_MAX_MS ? ms : GATEWAY_RETRY_MAX_MS;
}

static void gateway_retry(struct loop_timer *t)
{
	gateway_look(t->arg);
}

static void gateway_later(struct box *b)
{
	int64_t ms = gateway_delay(b->gateway_fails);

	if (ms > 0)
		loop_timer_set(b->s->loop, &b->gateway_timer, ms, gateway_retry, b);
}

static void gateway_done(struct job *j)
{
	struct box *b = box_find(j->s, j->sandbox);

	/* One that had nothing to do would begin again at once. */
	if (!b || b->rec.id.generation != j->generation || (j->e.num == 0 && j->gateway.pid != 0))
		return;
	b->gateway_fails++;
	b->gateway_said = j->gateway_said;
	str_copy(b->gateway_why, sizeof(b->gateway_why), j->e.text);
	gateway_later(b);
}

/* ---- In the loop ---- */

void gateway_set(struct box *b, const struct job *j)
{
	if (b->rec.id.generation != j->rec.id.generation || j->gateway.pid == 0)
		return;
	if (b->gateway.pid != j->gateway.pid)
		b->gateway_since_ms = clock_mono_ms();
	b->gateway = j->gateway;
	b->gateway_doubt = b->gateway_reports != j->gateway_reports;
	b->gateway_said = false;
	b->gateway_why[0] = '\0';
}

void gateway_forget(struct box *b)
{
	loop_timer_stop(&b->gateway_timer);
	b->gateway = (struct gateway){ 0 };
	b->gateway_doubt = b->gateway_said = false;
	b->gateway_fails = 0;
	b->gateway_why[0] = '\0';
}

static bool gateway_as_wanted(const struct box *b)
{
	const struct gateway *g = &b->gateway;

	return g->pid != 0 && !b->gateway_doubt && g->attempt == b->rec.id.attempt &&
	       g->bundle >= b->s->bundle.number && (g->open || !life_serves(b->rec.state));
}

void gateway_look(struct box *b)
{
	struct job *j;

	if (b->jobs > 0 || b->ending || b->crashed || !life_resident(b->rec.state) ||
	    life_in_transition(b->rec.state) || b->gateway_timer.heap_pos > 0 ||
	    gateway_as_wanted(b) || atomic_load(&b->s->leaving))
		return;
	j = job_new(b->s, "gateway", b->rec.id.sandbox, "", gateway_run);
	j->generation = b->rec.id.generation;
	j->tries = b->gateway_fails;
	j->gateway_said = b->gateway_said;
	j->gateway_reports = b->gateway_reports;
	j->done = gateway_done;
	job_start(j);
}

void gateway_look_all(struct sbx *s, bool doubt)
{
	LIST_FOR_SAFE(&s->box_list, b, struct box, node) {
		b->gateway_doubt |= doubt;
		b->gateway_reports += doubt;
		gateway_look(b);
	}
}

void gateway_exited(struct sbx *s, const char *sandbox, uint64_t generation, const char *reason)
{
	struct box *b = box_find(s, sandbox);

	if (!b || b->rec.id.generation != generation || b->ending || !life_resident(b->rec.state))
		return;
	log_warn("a network gateway has ended", F_STR("sandbox", sandbox),
		 F_UINT("generation", generation), F_STR("reason", reason));
	b->gateway_doubt = true;
	b->gateway_reports++;
	str_copy(b->gateway_why, sizeof(b->gateway_why), reason);
	/* The first time at once; one that ends again and again waits longer each time. */
	if (b->gateway.pid != 0) {
		bool steady = clock_mono_ms() - b->gateway_since_ms >= GATEWAY_STEADY_MS;

		if (steady)
			b->gateway_fails = 0;
		gateway_later(b);
		b->gateway_fails += !steady;
	}
	gateway_look(b);
}

/* ---- A new bundle: all of them are told before it is acknowledged ---- */

struct gateway_target { struct record rec; struct list node; };
struct gateway_push { struct sbx *s; struct list targets; struct job *j; bool taken; };

static void gateway_targets_in_loop(void *arg)
{
	struct gateway_push *p = arg;

	LIST_FOR(&p->s->box_list, b, struct box, node) {
		struct gateway_target *t;

		if (b->gateway.pid == 0 || b->ending)
			continue;
		t = x_alloc(sizeof(*t));
		t->rec = b->rec;
		list_add_tail(&p->targets, &t->node);
	}
}

static void gateway_pushed_in_loop(void *arg)
{
	struct gateway_push *p = arg;
	struct box *b = box_find(p->s, p->j->rec.id.sandbox);

	if (!b || b->gateway.pid != p->j->rec.gateway.pid)
		return;
	if (p->taken)
		b->gateway.bundle = p->s->bundle.number;
	else
		gateway_look(b);
}

void gateway_push_bundle(struct job *j, const char *text)
{
	struct gateway_push p = { .s = j->s, .j = j };
	struct gtw_bundle *q = x_alloc(sizeof(*q));
	int64_t until = clock_mono_ms() + GATEWAY_PUSH_ALL_MS;

	list_init(&p.targets);
	str_copy(q->text, sizeof(q->text), text);
	sbx_in_loop(j->s, gateway_targets_in_loop, &p);
	LIST_FOR_SAFE(&p.targets, t, struct gateway_target, node) {
		struct gtw_bundle_rep rep = { 0 };
		struct err e = { 0 };

		j->rec = t->rec;
		p.taken = clock_mono_ms() < until &&
			  gateway_ask(j, GTW_BUNDLE, q, &rep, GATEWAY_PUSH_MS, &e) == 0;
		if (!p.taken)
			log_warn("a network gateway has not taken the key bundle",
				 F_STR("sandbox", t->rec.id.sandbox), F_ERR(&e));
		sbx_in_loop(j->s, gateway_pushed_in_loop, &p);
		list_del(&t->node);
		free(t);
	}
	free(q);
}
