/*
 * Create, start, stop, delete, console: one story each, repeatable at any point (spec L-3, C-1,
 * I-5). A request names the execution that it is about by its capability. Rules about generations,
 * the same for all: older than the installed one = stale; the same = the same result again; newer =
 * the old execution ends first.
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "sbx-manager/job.h"

#define LIFECYCLE_STATUS_MS 2000
#define LIFECYCLE_CONSOLE_ANSWER_MAX 32768       /* bytes of JSON text; the packet also holds the events */

/* ---- What a request may do ---- */

static int lifecycle_stale(const struct job *j, struct err *e)
{
	return err_set_code(
		e, -ESTALE, "stale-generation",
		"Execution %llu of sandbox %s is installed here, the request is for %llu.",
		(unsigned long long)j->rec.id.generation, j->rec.id.sandbox,
		(unsigned long long)j->cap.id.generation);
}

int lifecycle_load(struct job *j, struct err *e)
{
	const struct identity *want = &j->cap.id;
	struct err lookup = { 0 };
	int r = record_get(j->s->db, j->sandbox, &j->rec, &lookup);

	/* Where this node is; without a pod, which id_check has seen to. */
	if (!str_eq(want->worker, j->s->conf.worker) || want->substrate != ID_SUBSTRATE_MICROVM)
		return err_set_code(e, -EACCES, "refusal-refresh-route",
				    "The request is for another worker.");
	if (r < 0 && r != -ENOENT) {
		*e = lookup;
		return r;
	}
	j->had_record = r == 0;
	if (!j->had_record)
		return 0;
	if (!str_eq(want->tenant, j->rec.id.tenant))
		return err_set_code(e, -EACCES, "refusal-deny",
				    "The sandbox belongs to another tenant.");
	if (want->generation < j->rec.id.generation)
		return lifecycle_stale(j, e);
	if (want->generation > j->rec.id.generation)
		return 0;
	if (memcmp(want->activation, j->rec.id.activation, ID_ACTIVATION_BYTES) != 0 ||
	    want->attempt < j->rec.id.attempt)
		return lifecycle_stale(j, e);
	if (want->attempt == j->rec.id.attempt || lifecycle_gone(j))
		return 0;
	/* Another owner: it counts from now on, whether there is anything left to do or not (T-2). */
	j->rec.id.attempt = want->attempt;
	return job_commit(j, e);
}

int lifecycle_installed(const struct job *j, struct err *e)
{
	return j->rec.id.generation == j->cap.id.generation ? 0 : lifecycle_stale(j, e);
}

bool lifecycle_gone(const struct job *j)
{
	return !j->had_record || j->rec.state == LIFE_NONE || j->rec.state == LIFE_DELETING;
}

int lifecycle_not_found(const struct job *j, struct err *e)
{
	return err_set_code(e, -ENOENT, "sandbox-not-found", "This node has no sandbox %s.",
			    j->sandbox);
}

/* The result of a create or start that was done before, whatever became of the execution since. */
int lifecycle_result(struct job *j)
{
	j->result = json_pack("{s:s, s:s, s:O?}", "state", life_state_names[j->rec.state], "reason",
			      j->rec.reason, "ms", j->ms);
	return 0;
}

static uint64_t lifecycle_number(json_t *spec, const char *name, uint64_t otherwise)
{
	json_int_t v = json_integer_value(json_object_get(spec, name));

	return v > 0 ? (uint64_t)v : otherwise;
}

/* ---- Create ---- */

static int lifecycle_shape(struct job *j, struct err *e)
{
	const char *template = json_string_value(json_object_get(j->spec, "template"));
	struct manifest m;
	int r;

	if (!template || str_copy(j->rec.template, sizeof(j->rec.template), template) < 0)
		return err_set(e, -EINVAL, "The request names no template.");
	r = template_manifest(j, template, &m, e);
	if (r == -ENOENT)
		return err_set_code(e, -ENOENT, "template-not-found",
				    "This node has no template %s.", template);
	if (r == 0)
		r = template_fits(j->s, &m, e);
	if (r < 0)
		return r;
	j->rec.memory_mib = lifecycle_number(j->spec, "memory_mib", m.memory_mib);
	j->rec.vcpus = lifecycle_number(j->spec, "vcpus", m.vcpus);
	j->rec.disk_mib = m.disk_bytes >> 20;
	if (j->rec.memory_mib != m.memory_mib || j->rec.vcpus != m.vcpus)
		return err_set(e, -EINVAL,
			       "Sandboxes of the template %s have %llu vCPU and %llu MiB.",
			       template, (unsigned long long)m.vcpus,
			       (unsigned long long)m.memory_mib);
	return str_copy(j->rec.accel, sizeof(j->rec.accel), m.accel);
}

/* What an execution begins with: nothing of the one before it. */
static int lifecycle_fresh(struct job *j, struct err *e)
{
	json_t *internet = json_object_get(j->spec, "internet");

	if (internet)
		j->rec.internet = json_is_true(internet);
	j->rec.proc = (struct nm_spawn_rep){ 0 };
	j->rec.gateway = (struct nm_gateway_rep){ 0 };
	j->rec.installed_ms = 0;
	j->rec.reason[0] = '\0';
	return str_random_hex(j->rec.guest_token, 32) < 0
		       ? err_set(e, -EIO, "The node has no random numbers.")
		       : 0;
}

static int lifecycle_disk(struct job *j, enum nm_op op, struct err *e)
{
	struct nm_disk_create c = { 0 };
	struct nm_sandbox d = { 0 };
	int r;

	str_copy(c.sandbox, sizeof(c.sandbox), j->sandbox);
	str_copy(c.template, sizeof(c.template), j->rec.template);
	str_copy(d.sandbox, sizeof(d.sandbox), j->sandbox);
	r = job_nm(j, op, op == NM_DISK_CREATE ? (void *)&c : (void *)&d, NULL, 0, NULL, NULL, NULL,
		   SBX_NM_MS, e);
	return op == NM_DISK_CREATE && r == -EEXIST ? 0 : r;
}

/*
 * A failed create leaves nothing: the request may come again. What cannot be cleared now is cleared
 * by the next try or start.
 */
static void lifecycle_undo_create(struct job *j)
{
	struct err e = { 0 };
	int r = exec_end(j, false, &e);

	if (r == 0)
		r = lifecycle_disk(j, NM_DISK_DELETE, &e);
	if (r == 0)
		r = job_forget(j, &e);
	if (r < 0)
		log_warn("a failed create was not cleared away", F_REQ(j->req_id),
			 F_STR("sandbox", j->sandbox), F_ERR(&e));
}

static int lifecycle_install(struct job *j, struct err *e)
{
	int r;

	j->rec.installed_ms = clock_wall_ms();
	r = job_set_state(j, LIFE_RUNNING, "", e);
	job_step(j, "commit");
	if (r == 0)
		r = job_fault("sbx.exec.installed", e);
	if (r == 0)
		r = exec_announce(j, e);
	return r;
}

void lifecycle_total(struct job *j)
{
	json_object_set_new(j->ms, "total",
			    json_real((double)(clock_mono_us() - j->begin_us) / 1000.0));
}

static int lifecycle_create_steps(struct job *j, struct err *e)
{
	int r = job_set_state(j, LIFE_CREATING, "", e);

	job_step(j, "record");
	if (r == 0)
		r = job_fault("sbx.create.recorded", e);
	if (r == 0)
		r = lifecycle_disk(j, NM_DISK_CREATE, e);
	job_step(j, "disk");
	if (r == 0)
		r = job_fault("sbx.create.after-disk", e);
	if (r == 0)
		r = exec_begin(j, "restore", json_object_get(j->spec, "env"), e);
	if (r == 0)
		r = lifecycle_install(j, e);
	return r;
}

static int lifecycle_create(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (j->had_record && lifecycle_gone(j))
		return err_set_code(e, -ESTALE, "sandbox-deleted", "The sandbox %s was deleted.",
				    j->sandbox);
	if (j->had_record && j->rec.id.generation < j->cap.id.generation)
		return err_set_code(e, -EEXIST, "sandbox-exists", "The sandbox %s exists already.",
				    j->sandbox);
	if (j->had_record && j->rec.installed_ms != 0)
		return lifecycle_result(j);
	/* A try that was broken off is cleared away and made again. */
	if (j->had_record && (r = exec_end(j, false, e)) < 0)
		return r;
	j->rec = (struct record){ .id = j->cap.id, .internet = true };
	r = lifecycle_shape(j, e);
	job_step(j, "template");
	if (r == 0)
		r = lifecycle_fresh(j, e);
	if (r == 0 && str_random_hex(j->rec.machine_id, 16) < 0)
		r = err_set(e, -EIO, "The node has no random numbers.");
	if (r < 0)
		return r;
	r = lifecycle_create_steps(j, e);
	if (r < 0) {
		lifecycle_undo_create(j);
		return r;
	}
	job_event(j, "created: execution %llu", (unsigned long long)j->rec.id.generation);
	lifecycle_total(j);
	return lifecycle_result(j);
}

/* ---- Start ---- */

static int lifecycle_start_steps(struct job *j, struct err *e)
{
	int r = job_set_state(j, LIFE_STARTING, "", e);

	job_step(j, "record");
	if (r == 0)
		r = job_fault("sbx.start.recorded", e);
	if (r == 0)
		r = exec_begin(j, "boot", json_object_get(j->spec, "env"), e);
	if (r == 0)
		r = lifecycle_install(j, e);
	return r;
}

/* The disk stays; the sandbox is stopped and says why. */
static void lifecycle_undo_start(struct job *j, const struct err *why)
{
	struct err e = { 0 };
	int r = exec_end(j, false, &e);

	if (r == 0)
		r = job_set_state(j, LIFE_STOPPED, why->text, &e);
	if (r < 0)
		log_warn("a failed start was not cleared away", F_REQ(j->req_id),
			 F_STR("sandbox", j->sandbox), F_ERR(&e));
	else
		job_event(j, "start failed: %s", why->text);
}

static int lifecycle_start(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (lifecycle_gone(j))
		return lifecycle_not_found(j, e);
	if (j->rec.id.generation == j->cap.id.generation && j->rec.installed_ms != 0)
		return lifecycle_result(j);
	/* The older execution, or a try that was broken off, ends first: its streams too. */
	r = exec_end(j, life_serves(j->rec.state) ||
			(life_resident(j->rec.state) && pause_thaw(j)),
		     e);
	job_step(j, "end");
	if (r == 0)
		r = job_fault("sbx.start.ended-old", e);
	if (r < 0)
		return r;
	j->rec.id = j->cap.id;
	r = lifecycle_fresh(j, e);
	if (r < 0)
		return r;
	r = lifecycle_start_steps(j, e);
	if (r < 0) {
		lifecycle_undo_start(j, e);
		return r;
	}
	job_event(j, "started: execution %llu", (unsigned long long)j->rec.id.generation);
	lifecycle_total(j);
	return lifecycle_result(j);
}

/* ---- Stop and delete ---- */

static int lifecycle_stop(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);
	bool serves, paused;

	if (r < 0)
		return r;
	if (lifecycle_gone(j))
		return lifecycle_not_found(j, e);
	if (j->rec.state == LIFE_STOPPED && j->rec.id.generation == j->cap.id.generation)
		return lifecycle_result(j);
	serves = life_serves(j->rec.state);
	paused = life_resident(j->rec.state) && !serves;
	r = job_set_state(j, LIFE_STOPPING, NULL, e);
	if (r == 0)
		r = job_fault("sbx.stop.recorded", e);
	if (r == 0)
		r = exec_end(j, serves || (paused && pause_thaw(j)), e);
	if (r < 0)
		return r;
	/*
	 * A stop that was decided for a later execution, which never came here: that one is over
	 * too.
	 */
	j->rec.id = j->cap.id;
	if (j->rec.installed_ms == 0)
		j->rec.installed_ms = clock_wall_ms();
	r = job_set_state(j, LIFE_STOPPED, "", e);
	if (r < 0)
		return r;
	job_event(j, "stopped");
	return lifecycle_result(j);
}

static int lifecycle_delete(struct job *j, struct err *e)
{
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (!j->had_record)
		j->rec = (struct record){ .id = j->cap.id, .state = LIFE_NONE };
	else if (j->rec.state != LIFE_NONE)
		r = job_set_state(j, LIFE_DELETING, NULL, e);
	if (r == 0)
		r = job_fault("sbx.delete.recorded", e);
	if (r == 0 && j->rec.state != LIFE_NONE)
		r = exec_end(j, false, e);
	if (r == 0)
		r = lifecycle_disk(j, NM_DISK_DELETE, e);
	if (r == 0)
		r = job_fault("sbx.delete.after-disk", e);
	if (r < 0)
		return r;
	/* The row stays for a day, so that nothing late revives it. */
	j->rec.id = j->cap.id;
	r = job_set_state(j, LIFE_NONE, "", e);
	if (r == 0)
		r = lifecycle_result(j);
	return r;
}

/* ---- What ended by itself ---- */

/*
 * Where the record goes; what would start a new execution is for the control plane, here it is
 * stopped.
 */
static enum life_state lifecycle_after(enum life_state from, enum life_event ev)
{
	const struct life_rule *rule = life_find(from, ev);

	return rule && !life_in_transition(rule->to) && !life_serves(rule->to) ? rule->to
									       : LIFE_STOPPED;
}

int lifecycle_crash(struct job *j, struct err *e)
{
	enum life_state from;
	int r = record_get(j->s->db, j->sandbox, &j->rec, e);

	if (r < 0)
		return r;
	from = j->rec.state;
	if (j->rec.id.generation != j->generation || !life_resident(from))
		return 0;
	r = job_fault("sbx.crash.seen", e);
	if (r == 0)
		r = exec_end(j, false, e);
	if (r == 0)
		r = job_set_state(j, lifecycle_after(from, j->event), j->reason, e);
	if (r < 0)
		return r;
	job_event(j, "execution %llu ended: %s", (unsigned long long)j->generation, j->reason);
	return 0;
}

/*
 * Nobody waits for this: a create that failed is undone, a start ends stopped, a stop or delete
 * goes on, a pause or resume ends paused.
 */
int lifecycle_finish(struct job *j, struct err *e)
{
	enum life_state st;
	int r = record_get(j->s->db, j->sandbox, &j->rec, e);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	st = j->rec.state;
	if (!life_in_transition(st))
		return 0;
	if (life_resident(st))
		return pause_settle(j, e);
	r = exec_end(j, false, e);
	if (r == 0 && (st == LIFE_CREATING || st == LIFE_DELETING))
		r = lifecycle_disk(j, NM_DISK_DELETE, e);
	if (r < 0)
		return r;
	return st == LIFE_CREATING ? job_forget(j, e)
				   : job_set_state(j, st == LIFE_DELETING ? LIFE_NONE : LIFE_STOPPED,
						   NULL, e);
}

struct lifecycle_seen { struct job *j; const char *reason; };

static void lifecycle_seen_in_loop(void *arg)
{
	struct lifecycle_seen *seen = arg;
	const struct record *r = &seen->j->rec;

	crash_seen(seen->j->s, r->id.sandbox, r->id.generation, LIFE_EV_CRASH, seen->reason);
}

int lifecycle_look(struct job *j, struct err *e)
{
	enum vmm_run_state st = VMM_RUN_CRASHED;
	struct lifecycle_seen seen = { .j = j };
	int r = record_get(j->s->db, j->sandbox, &j->rec, e);

	if (r < 0 || !life_serves(j->rec.state))
		return r;
	job_take_vm(j);
	if (!j->vm) {
		struct err lost = { 0 };

		if (exec_vm_again(j, &lost) < 0) {
			str_copy(j->reason, sizeof(j->reason), lost.text);
			return sbx_in_loop(j->s, lifecycle_vm_lost, j);
		}
	}
	if (vmm_status(j->vm, &st, LIFECYCLE_STATUS_MS, NULL) < 0)
		st = VMM_RUN_CRASHED;
	r = exec_announce(j, e);
	if (r < 0 || st == VMM_RUN_RUNNING)
		return r;
	seen.reason = vmm_run_names[st];
	return sbx_in_loop(j->s, lifecycle_seen_in_loop, &seen);
}

/* ---- Console ---- */

/*
 * Bytes of a hostile guest as a JSON string: no NUL, no broken UTF-8, and as many bytes as before
 * (the marks count them).
 */
static json_t *lifecycle_text(char *p, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t len = 1;

		while (len < 4 && i + len < n && !str_utf8_ok(p + i, len))
			len++;
		if (p[i] == '\0' || !str_utf8_ok(p + i, len)) {
			p[i++] = '?';
			continue;
		}
		i += len;
	}
	return json_stringn(p, n);
}

static json_t *lifecycle_tail(const char *text, size_t n)
{
	for (size_t keep = n;; keep /= 2) {
		autofree char *copy = x_strndup(text + n - keep, keep);
		json_t *v;
		size_t size;

		/* strndup stops at a NUL. */
		copy = x_realloc(copy, keep + 1);
		memcpy(copy, text + n - keep, keep);
		v = lifecycle_text(copy, keep);
		size = json_dumpb(v, NULL, 0, JSON_ENCODE_ANY);
		if (size <= LIFECYCLE_CONSOLE_ANSWER_MAX || keep == 0)
			return v;
		json_decref(v);
	}
}

void lifecycle_vm_lost(void *arg)
{
	struct job *j = arg;

	crash_seen(j->s, j->rec.id.sandbox, j->rec.id.generation, LIFE_EV_CRASH, j->reason);
}

static int lifecycle_console(struct job *j, struct err *e)
{
	autofree char *text = NULL;
	json_t *events = NULL, *marks = NULL;
	size_t n = 0;
	int r = lifecycle_load(j, e);

	if (r < 0)
		return r;
	if (lifecycle_gone(j))
		return lifecycle_not_found(j, e);
	job_take_vm(j);
	if (j->vm) {
		struct err lost = { 0 };

		if (exec_console(j, &lost) < 0) {
			log_warn("the console was not read", F_REQ(j->req_id),
				 F_STR("sandbox", j->sandbox), F_ERR(&lost));
			/* On a machine with much to do that alone is no reason to end a sandbox. */
			if (exec_vm_again(j, &lost) < 0) {
				str_copy(j->reason, sizeof(j->reason), lost.text);
				sbx_in_loop(j->s, lifecycle_vm_lost, j);
			}
		}
		r = exec_announce(j, e);
	}
	if (r == 0)
		r = record_console(j->s->db, j->sandbox, &text, &n, e);
	if (r == 0)
		r = record_console_marks(j->s->db, j->sandbox, &marks, e);
	if (r == 0)
		r = record_events(j->s->db, j->sandbox, &events, e);
	if (r == 0)
		j->result = json_pack("{s:o, s:O, s:o}", "text", lifecycle_tail(text, n), "marks",
				      marks, "events", events);
	json_decref(marks);
	return r;
}

/* ---- Requests ---- */

static const struct lifecycle_kind {
	enum id_access access;           /* its word is the name of the kind */
	int (*run)(struct job *j, struct err *e);
} lifecycle_kinds[] = {
	{ ID_ACCESS_CREATE, lifecycle_create },
	{ ID_ACCESS_START, lifecycle_start },
	{ ID_ACCESS_STOP, lifecycle_stop },
	{ ID_ACCESS_DELETE, lifecycle_delete },
	{ ID_ACCESS_PAUSE, lifecycle_pause },
	{ ID_ACCESS_RESUME, lifecycle_resume },
	{ ID_ACCESS_CONSOLE, lifecycle_console },
	{ ID_ACCESS_NETLOG, lifecycle_netlog },
	{ ID_ACCESS_NETSTATS, lifecycle_netstats },
};

void lifecycle_handle(struct ipc_call *call, const void *req, int *fds, size_t n_fds, void *arg)
{
	const struct sbx_lifecycle *q = req;
	const struct lifecycle_kind *kind = NULL;
	struct capability cap;
	struct sbx *s = arg;
	struct err e = { 0 };
	struct box *b;
	struct job *j;

	for (unsigned i = 0; i < ARRAY_LEN(lifecycle_kinds) && !kind; i++)
		kind = str_eq(q->kind, id_access_names[lifecycle_kinds[i].access])
			       ? &lifecycle_kinds[i]
			       : NULL;
	if (!kind)
		err_set_code(&e, -ENOSYS, "not-built-yet",
			     "There is no life-cycle operation of that name.");
	else
		admit_capability(s, q->capability, ID_PURPOSE_LIFECYCLE, kind->access, 0,
				 ID_PROTOCOL_NONE, &cap, &e);
	b = e.num < 0 ? NULL : box_find(s, cap.id.sandbox);
	if (b && b->jobs >= SBX_JOBS_PER_BOX_MAX)
		err_set_code(&e, -EAGAIN, "limit", "Too many requests wait for this sandbox.");
	if (e.num < 0) {
		ipc_fail(call, &e);
		return;
	}
	j = job_new(s, id_access_names[kind->access], cap.id.sandbox, ipc_call_req_id(call), kind->run);
	j->call = call;
	j->cap = cap;
	j->spec = json_incref(q->spec);
	job_start(j);
}
