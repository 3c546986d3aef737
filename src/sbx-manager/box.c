#include "sbx-manager/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"

struct box *box_find(struct sbx *s, const char *sandbox)
{
	return map_get(s->boxes, sandbox);
}

int box_path(struct sbx *s, char dst[PATH_MAX], const char *sandbox, uint64_t generation,
	     const char *name)
{
	return conf_path(&s->conf, dst, CONF_RUN, "sbx/%s.%llu/%s", sandbox,
			 (unsigned long long)generation, name);
}

static void box_free(struct box *b)
{
	box_unwatch(b);
	lease_cut_all(b);
	loop_timer_stop(&b->retry);
	loop_timer_stop(&b->finish);
	gateway_forget(b);
	map_del(b->s->boxes, b->rec.id.sandbox);
	list_del(&b->node);
	free(b);
}

static struct box *box_new(struct sbx *s, const char *sandbox)
{
	struct box *b = x_alloc(sizeof(*b));

	b->s = s;
	b->seq = ++s->next_seq;
	list_init(&b->leases);
	if (map_put(s->boxes, sandbox, b) < 0) {
		free(b);
		return NULL;
	}
	list_add_tail(&s->box_list, &b->node);
	return b;
}

struct box *box_set(struct sbx *s, const struct record *r)
{
	struct box *b = box_find(s, r->id.sandbox);

	if (r->state == LIFE_NONE) {
		if (b)
			box_free(b);
		return NULL;
	}
	if (!b)
		b = box_new(s, r->id.sandbox);
	if (!b)
		return NULL;
	/* The mark is for the execution that is there; whatever comes after it begins unmarked. */
	if (!life_resident(b->rec.state) || !life_resident(r->state) ||
	    b->rec.id.generation != r->id.generation)
		b->ending = false;
	if (!life_resident(r->state) || b->rec.id.generation != r->id.generation)
		gateway_forget(b);
	b->rec = *r;
	return b;
}

void box_free_all(struct sbx *s)
{
	LIST_FOR_SAFE(&s->box_list, b, struct box, node)
		box_free(b);
}

/* What the VMM says by itself, and what it means (the life-cycle table knows what follows). */
static const struct {
	enum vmm_event_kind kind;
	enum life_event ev;
	const char *reason;
} box_meanings[] = {
	{ VMM_EV_GUEST_OFF, LIFE_EV_GUEST_OFF, "the guest was powered off" },
	{ VMM_EV_GUEST_RESET, LIFE_EV_GUEST_REBOOT, "the guest was rebooted" },
	{ VMM_EV_PANIC, LIFE_EV_CRASH, "the guest's kernel has panicked" },
	{ VMM_EV_QUIT, LIFE_EV_CRASH, "the virtual machine was told to end" },
};

static void box_vm_event(struct box *b, const struct vmm_event *ev)
{
	for (unsigned i = 0; i < ARRAY_LEN(box_meanings); i++) {
		if (box_meanings[i].kind == ev->kind)
			crash_seen(b->s, b->rec.id.sandbox, b->rec.id.generation,
				   box_meanings[i].ev, box_meanings[i].reason);
	}
	if (ev->kind == VMM_EV_IO_ERROR)
		crash_seen(b->s, b->rec.id.sandbox, b->rec.id.generation, LIFE_EV_CRASH,
			   ev->no_space ? "the node's disk is full" : "the node's disk has failed");
}

/*
 * It has stopped and has not said why (KVM's internal error, an emulator's): its state is asked
 * for.
 */
static void box_look(struct box *b)
{
	if (b->crashed || b->ending || b->jobs > 0)
		return;
	job_start(job_new(b->s, "look", b->rec.id.sandbox, "", lifecycle_look));
}

/* Nobody here stops a machine while its connection is watched: jobs borrow it. */
static void box_vm_events_now(struct box *b)
{
	struct vmm_event ev;
	bool stopped = false;

	while (vmm_next_event(b->vm, &ev)) {
		stopped |= ev.kind == VMM_EV_STOP;
		box_vm_event(b, &ev);
	}
	if (stopped)
		box_look(b);
}

static void box_vm_readable(struct loop_io *io, uint32_t events)
{
	struct box *b = io->arg;
	struct err e = { 0 };
	int r = vmm_poll(b->vm, &e);

	box_vm_events_now(b);
	if (r == 0)
		return;
	loop_del(&b->vm_io);
	crash_seen(b->s, b->rec.id.sandbox, b->rec.id.generation, LIFE_EV_CRASH,
		   r == -ECONNRESET ? "the virtual machine monitor has ended" : e.text);
}

/*
 * Whatever it says is the last that is heard of it: a bridge may be in a guest's hands, and this
 * loop is everybody's.
 */
static void box_bridge_event(const char *name, json_t *a, void *arg)
{
	struct box *b = arg;
	struct bridge_lost lost = { 0 };
	autofree char *reason = NULL;

	if (!str_eq(name, "channel-lost") ||
	    ipc_decode(bridge_lost_fields, a, &lost, sizeof(lost), NULL) < 0)
		str_copy(lost.reason, sizeof(lost.reason), "the bridge has broken its protocol");
	reason = str_printable(lost.reason, strlen(lost.reason));
	ipc_client_free(TAKE(b->control));
	crash_seen(b->s, b->rec.id.sandbox, b->rec.id.generation, LIFE_EV_CRASH, reason);
}

void box_watch(struct box *b, struct vmm *vm)
{
	char path[PATH_MAX];
	int r;

	b->vm = vm;
	r = loop_add(b->s->loop, &b->vm_io, vmm_fd(vm), EPOLLIN, box_vm_readable, b);
	if (r < 0)
		log_error("a virtual machine cannot be watched",
			  F_STR("sandbox", b->rec.id.sandbox), F_INT("errno", -r));
	/* What came while a job had it. */
	box_vm_events_now(b);
	if (b->control)
		return;
	if (box_path(b->s, path, b->rec.id.sandbox, b->rec.id.generation, "control.sock") < 0)
		return;
	b->control = ipc_client_new(b->s->loop, path, (uid_t)b->rec.proc.bridge_uid);
	if (b->control) {
		ipc_client_on_event(b->control, box_bridge_event, b);
		ipc_client_pace(b->control);
	}
}

struct vmm *box_lend_vm(struct box *b)
{
	if (b->vm)
		loop_del(&b->vm_io);
	return TAKE(b->vm);
}

void box_unwatch(struct box *b)
{
	vmm_close(box_lend_vm(b));
	ipc_client_free(b->control);
	b->control = NULL;
}
