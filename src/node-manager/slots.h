/*
 * Slots: four uids each (VMM, bridge, gateway, spare), uid_base + 4 * slot + i. A slot is free
 * again only when no process, no file in /dev/shm and no System V or POSIX IPC object of this
 * machine belongs to one of its uids.
 */
#ifndef NODE_MANAGER_SLOTS_H
#define NODE_MANAGER_SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"
#include "daemon/conf.h"

#define SLOT_UIDS 4
#define SLOTS_MAX CONF_SANDBOXES_MAX

enum slot_uid { SLOT_VMM, SLOT_BRIDGE, SLOT_GATEWAY, SLOT_SPARE };
enum slot_state { SLOT_FREE, SLOT_USED, SLOT_DIRTY };

struct slots {
	uint32_t uid_base, n;
	uint32_t next;                   /* the search begins here, so that a slot rests as long as possible */
	uint8_t state[SLOTS_MAX];        /* enum slot_state */
};

/* One bit a slot: some uid of it owns something. */
struct slots_seen { uint8_t bits[SLOTS_MAX / 8]; };

void slots_init(struct slots *s, uint32_t uid_base, uint32_t n);
int slots_take(struct slots *s, uint32_t *ret);          /* -EAGAIN: none is free */
/*
 * For a record found at the start; -EBUSY. Also one above n: the configuration may have had a
 * larger one, and whoever runs goes on.
 */
int slots_claim(struct slots *s, uint32_t slot);
void slots_give_back(struct slots *s, uint32_t slot, bool clean);
uid_t slots_uid(const struct slots *s, uint32_t slot, enum slot_uid which);
/* Dirty slots that own nothing any more become free. */
void slots_refresh(struct slots *s, const struct slots_seen *seen);

/*
 * Looks through /proc, /dev/shm, /dev/mqueue and /proc/sysvipc. Takes some ms: for children and the
 * start.
 */
int slots_scan(const struct slots *s, struct slots_seen *ret, struct err *e);
void slots_scan_objects(const struct slots *s, struct slots_seen *ret);  /* the same without processes */
bool slots_seen_has(const struct slots_seen *seen, uint32_t slot);

/*
 * Calls fn for each process (zombies left out) whose real, effective or saved uid is in [first,
 * first + n).
 */
int slots_each_process(uid_t first, uint32_t n, void (*fn)(pid_t pid, uid_t uid, void *arg),
		       void *arg);

#endif
