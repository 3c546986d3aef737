/*
 * After a restart: what the records say is compared with what node-manager has (L-3, L-4). Nothing
 * is served before.
 *
 *	running, and all of it is there      watched again; streams that nobody holds any more are revoked
 *	the same without its gateway         the same; gateway.c starts another one
 *	running, and something is not        as a crash
 *	paused, and all of it is there       watched again
 *	pausing, resuming                    paused; the request comes again
 *	creating, starting                   cleared away; the request comes again
 *	stopping, deleting                   done to the end
 *	an execution that no record claims   destroyed
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define ADOPT_CONTROL_MS 2000                /* all questions to one bridge together: it may be in a guest's hands */
#define ADOPT_QMP_MS 5000
#define ADOPT_AT_ONCE 8
#define ADOPT_NM_POLL_US 100000
#define ADOPT_GONE "the node has no such execution any more"

struct adopt_exec { char sandbox[ID_SANDBOX_LEN + 1]; uint64_t generation; bool claimed; };
struct adopt_list { struct adopt_exec *v; size_t n; };

static void adopt_list_done(struct adopt_list *l)
{
	free(l->v);
}

static void adopt_list_add(struct adopt_list *l, const char *sandbox, uint64_t generation)
{
	struct adopt_exec x = { .generation = generation };

	if (str_copy(x.sandbox, sizeof(x.sandbox), sandbox) < 0)
		return;
	if ((l->n & (l->n - 1)) == 0)
		l->v = x_realloc(l->v, (l->n ? 2 * l->n : 1) * sizeof(*l->v));
	l->v[l->n++] = x;
}

/* Executions that node-manager has, all pages. */
static int adopt_list_page(struct job *j, uint64_t *cursor, struct adopt_list *l, struct err *e)
{
	struct nm_list q = { .cursor = *cursor };
	struct nm_list_rep rep = { 0 };
	int r = job_nm(j, NM_LIST, &q, NULL, 0, &rep, NULL, NULL, SBX_NM_MS, e);
	json_t *item;
	size_t i;

	if (r < 0)
		return r;
	json_array_foreach(rep.items, i, item) {
		const char *kind = json_string_value(json_object_get(item, "kind"));
		const char *sandbox = json_string_value(json_object_get(item, "sandbox"));
		json_int_t generation = json_integer_value(json_object_get(item, "generation"));

		if (str_eq(kind, "execution") && sandbox)
			adopt_list_add(l, sandbox, (uint64_t)generation);
	}
	*cursor = rep.next;
	ipc_done(nm_ops[NM_LIST].rep, &rep);
	return 0;
}

static int adopt_list_get(struct job *j, struct adopt_list *l, struct err *e)
{
	uint64_t cursor = 0;
	int r;

	do {
		r = adopt_list_page(j, &cursor, l, e);
	} while (r == 0 && cursor != 0);
	return r;
}

static struct adopt_exec *adopt_find(struct adopt_list *l, const struct record *r)
{
	for (size_t i = 0; i < l->n; i++) {
		if (str_eq(l->v[i].sandbox, r->id.sandbox) &&
		    l->v[i].generation == r->id.generation)
			return &l->v[i];
	}
	return NULL;
}

static int adopt_bridge(struct job *j, struct err *e)
{
	int64_t until_ms = clock_mono_ms() + ADOPT_CONTROL_MS;
	struct bridge_leases q = { 0 };
	struct ipc_sync *c = NULL;
	int r = exec_control_open(j, 0, &c, e);

	do {
		struct bridge_leases_rep rep = { 0 };

		if (r == 0)
			r = ipc_sync_call(c, &bridge_ops[BRIDGE_LEASES], "", &q, NULL, 0, &rep,
					  NULL, NULL, job_left_ms(until_ms), e);
		if (r < 0)
			break;
		if (!rep.attached || rep.generation != j->rec.id.generation)
			r = err_set(e, -ECONNRESET, "The bridge has no guest channel.");
		else if (rep.closed)
			r = err_set(e, -ESHUTDOWN,
				    "the execution was being ended when the node service ended");
		if (r == 0)
			r = revoke_leases(c, &bridge_ops[BRIDGE_REVOKE], "", rep.leases, until_ms, e);
		q.after = rep.next;
		ipc_done(bridge_ops[BRIDGE_LEASES].rep, &rep);
	} while (r == 0 && q.after != 0);
	ipc_sync_close(c);
	return r;
}

static int adopt_verify(struct job *j, struct err *e)
{
	struct nm_verify v = { .generation = j->rec.id.generation,
			       .bridge_pid = j->rec.proc.bridge_pid };

	str_copy(v.sandbox, sizeof(v.sandbox), j->rec.id.sandbox);
	return job_nm(j, NM_VERIFY, &v, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
}

static void adopt_set_in_loop(void *arg)
{
	struct job *j = arg;

	box_set(j->s, &j->rec);
}

/* Serving begins with the copy in memory, when everything was found. */
static int adopt_resident(struct job *j, struct err *e)
{
	int r = adopt_verify(j, e);

	if (r == 0)
		r = adopt_bridge(j, e);
	if (r == 0)
		r = exec_vm_open(j, ADOPT_QMP_MS, e);
	if (r < 0)
		return r;
	j->gateway = (struct gateway){ 0 };
	gateway_adopt(j);
	if (life_in_transition(j->rec.state))
		return pause_settle(j, e);
	r = sbx_in_loop(j->s, adopt_set_in_loop, j);
	return r < 0 ? r : exec_announce(j, e);
}

static void adopt_seen_in_loop(void *arg)
{
	struct job *j = arg;
	struct box *b = box_find(j->s, j->rec.id.sandbox);

	/* no_box: not by an earlier pass */
	j->no_box = !b || !b->vm || b->rec.id.generation != j->rec.id.generation;
}

static int adopt_crashed(struct job *j, const char *why, struct err *e)
{
	char reason[RECORD_REASON_MAX];
	int r = exec_end(j, false, e);

	if (r < 0)
		return r;
	str_format(reason, sizeof(reason), "crashed: %s", why);
	r = job_set_state(j, LIFE_STOPPED, reason, e);
	job_event(j, "execution %llu ended: %s", (unsigned long long)j->rec.id.generation, reason);
	return r;
}

static int adopt_unfinished(struct job *j, struct err *e)
{
	struct nm_sandbox d = { 0 };
	enum life_state st = j->rec.state;
	int r = exec_end(j, false, e);

	str_copy(d.sandbox, sizeof(d.sandbox), j->rec.id.sandbox);
	if (r == 0 && (st == LIFE_CREATING || st == LIFE_DELETING))
		r = job_nm(j, NM_DISK_DELETE, &d, NULL, 0, NULL, NULL, NULL, SBX_NM_MS, e);
	if (r < 0)
		return r;
	if (st == LIFE_STOPPING)
		return job_set_state(j, LIFE_STOPPED, "", e);
	if (st == LIFE_DELETING)
		return job_set_state(j, LIFE_NONE, "", e);
	return job_commit(j, e);
}

static int adopt_one(struct job *j, const struct record *rec, struct adopt_list *l, struct err *e)
{
	struct adopt_exec *x = adopt_find(l, rec);
	struct err why = { 0 };
	int r;

	j->rec = *rec;
	if (x)
		x->claimed = life_resident(rec->state);
	if (life_in_transition(rec->state) && !life_resident(rec->state))
		return adopt_unfinished(j, e);
	if (!life_resident(rec->state))
		return job_commit(j, e);
	r = sbx_in_loop(j->s, adopt_seen_in_loop, j);
	if (r < 0 || !j->no_box)
		return r;
	j->no_box = j->nm_away = false;
	/* The list has pages, and what ends between two of them hides others: it is asked for itself. */
	r = adopt_resident(j, &why);
	if (r == -ESRCH)
		err_set(&why, r, ADOPT_GONE);
	if (r == 0) {
		log_info("adopted", F_STR("sandbox", rec->id.sandbox),
			 F_UINT("generation", rec->id.generation));
		return 0;
	}
	if (j->nm_away) {
		/* That says nothing about the sandbox: the next pass finds out. */
		vmm_close(TAKE(j->vm));
		*e = why;
		return r;
	}
	log_warn("a sandbox could not be adopted", F_STR("sandbox", rec->id.sandbox),
		 F_UINT("generation", rec->id.generation), F_ERR(&why));
	r = adopt_crashed(j, why.text, e);
	vmm_close(TAKE(j->vm));
	return r;
}

/*
 * Several at once: a VMM or bridge that does not answer costs its time limits, and nothing is
 * served before the last one is done. Each thread takes the next record; the entries of the list
 * that they mark are different ones.
 */
struct adopt_crew {
	struct sbx *s;
	const struct record *v;
	size_t n;
	struct adopt_list *l;
	atomic_size_t next;
};
struct adopt_hand { struct adopt_crew *crew; pthread_t thread; bool there; struct err e; };

static void *adopt_hand_run(void *arg)
{
	struct adopt_hand *h = arg;
	struct adopt_crew *c = h->crew;
	struct job *j = job_new(c->s, "adopt", "", "", NULL);
	size_t i;

	while ((i = atomic_fetch_add(&c->next, 1)) < c->n) {
		int r = adopt_one(j, &c->v[i], c->l, &h->e);

		if (r == 0)
			continue;
		if (h->e.num == 0)
			err_errno(&h->e, r, "adoption");
		atomic_store(&c->next, c->n);
	}
	job_free(j);
	return NULL;
}

static int adopt_all(struct sbx *s, const struct record *v, size_t n, struct adopt_list *l,
		     struct err *e)
{
	struct adopt_crew crew = { .s = s, .v = v, .n = n, .l = l };
	struct adopt_hand hands[ADOPT_AT_ONCE] = { 0 };
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(hands); i++) {
		hands[i].crew = &crew;
		hands[i].there =
			i > 0 && i < n &&
			pthread_create(&hands[i].thread, NULL, adopt_hand_run, &hands[i]) == 0;
	}
	adopt_hand_run(&hands[0]);
	for (size_t i = 0; i < ARRAY_LEN(hands); i++) {
		if (hands[i].there)
			pthread_join(hands[i].thread, NULL);
		if (r == 0 && hands[i].e.num < 0) {
			*e = hands[i].e;
			r = e->num;
		}
	}
	return r;
}

static int adopt_unclaimed(struct job *j, const struct adopt_list *l, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < l->n && r == 0; i++) {
		if (l->v[i].claimed)
			continue;
		log_warn("an execution without a record is ended",
			 F_STR("sandbox", l->v[i].sandbox),
			 F_UINT("generation", l->v[i].generation));
		j->rec = (struct record){ .id.generation = l->v[i].generation };
		str_copy(j->rec.id.sandbox, sizeof(j->rec.id.sandbox), l->v[i].sandbox);
		r = exec_destroy(j, e);
	}
	return r;
}

static int adopt_pass(struct job *j, struct err *e)
{
	__attribute__((cleanup(adopt_list_done))) struct adopt_list l = { 0 };
	autofree struct record *v = NULL;
	size_t n = 0;
	int r = record_purge(j->s->db, clock_wall_ms() - RECORD_TOMBSTONE_MS, e);

	if (r == 0)
		r = record_list(j->s->db, &v, &n, e);
	if (r == 0)
		r = adopt_list_get(j, &l, e);
	if (r == 0)
		r = adopt_all(j->s, v, n, &l, e);
	return r == 0 ? adopt_unclaimed(j, &l, e) : r;
}

/* Without node-manager there is nothing to be found out: it is waited for. */
int adopt_run(struct job *j, struct err *e)
{
	for (;;) {
		int r;

		*e = (struct err){ 0 };
		r = adopt_pass(j, e);
		if (r == 0 || atomic_load(&j->s->leaving))
			return r;
		if (j->reason[0] == '\0')
			log_warn("the records cannot be compared with node-manager yet", F_ERR(e));
		str_copy(j->reason, sizeof(j->reason), "waits");
		usleep(ADOPT_NM_POLL_US);
	}
}

struct adopt_sweep { struct sbx *s; struct adopt_list *l; };

static void adopt_residents_in_loop(void *arg)
{
	struct adopt_sweep *w = arg;

	LIST_FOR(&w->s->box_list, b, struct box, node) {
		if (life_resident(b->rec.state))
			adopt_list_add(w->l, b->rec.id.sandbox, b->rec.id.generation);
	}
}

static void adopt_gone_in_loop(void *arg)
{
	struct job *j = arg;

	crash_seen(j->s, j->rec.id.sandbox, j->rec.id.generation, LIFE_EV_CRASH, ADOPT_GONE);
}

static void adopt_doubt_in_loop(void *arg)
{
	gateway_look_all(arg, true);
}

/* node-manager was away: an end may have been missed. It is asked for each execution that stands. */
int adopt_sweep(struct job *j, struct err *e)
{
	__attribute__((cleanup(adopt_list_done))) struct adopt_list l = { 0 };
	struct adopt_sweep w = { j->s, &l };
	int r = sbx_in_loop(j->s, adopt_residents_in_loop, &w);

	for (size_t i = 0; i < l.n && r == 0; i++) {
		struct err why = { 0 };

		j->rec = (struct record){ .id.generation = l.v[i].generation };
		str_copy(j->rec.id.sandbox, sizeof(j->rec.id.sandbox), l.v[i].sandbox);
		if (adopt_verify(j, &why) == -ESRCH)
			r = sbx_in_loop(j->s, adopt_gone_in_loop, j);
		if (j->nm_away) {
			/* Its return begins this anew. */
			*e = why;
			return e->num;
		}
	}
	return r < 0 ? r : sbx_in_loop(j->s, adopt_doubt_in_loop, j->s);
}
