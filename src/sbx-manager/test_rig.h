/*
 * What the unit tests of sbx-manager share: the program's own socket, records, keys and leases in a
 * folder of their own; this process listens in the places of bridge and gateway, and answers in
 * node-manager's place.
 */
#ifndef SBX_MANAGER_TEST_RIG_H
#define SBX_MANAGER_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sbx-manager/job.h"

#define SANDBOX "i0123456789abcdefghij"
#define OTHER_SANDBOX "i9999999999abcdefghij"
#define WORKER "11111111-2222-4333-8444-555555555555"
#define WAIT_MS 60000

struct fixture {
	char dir[64];
	struct sbx s;
	struct ipc_server *nm;
	struct ipc_client *client;
	int bridge_fd, gateway_fd;
	/* node-manager */
	int verify_error;                    /* what it answers */
	void (*on_verify)(void);             /* what happens while it is asked */
	bool sweeps;                         /* it is asked about no stream */
	unsigned verified, destroyed, disks_deleted;
	void (*on_gateway)(struct ipc_call *call, const struct nm_gateway *q);
	void (*on_kill)(struct ipc_call *call, const struct nm_kill *q);
	struct key_signer root, api, ctl, stranger;
	struct record rec;
	/* the last answer */
	bool answered;
	struct err e;
	struct sbx_admit_rep rep;
	json_t *result;
	uint64_t number;
	int fd;
	unsigned revoked;
};
extern struct fixture *fx;

int rig_setup(void **state);
int rig_teardown(void **state);
void rig_in_dir(char dst[PATH_MAX], const char *name);
/* The loop turns until cond holds. */
#define TURN_UNTIL(cond)                                                                           \
	do {                                                                                       \
		int64_t until_ = clock_mono_ms() + WAIT_MS;                                        \
		while (!(cond) && clock_mono_ms() < until_)                                        \
			loop_turn(fx->s.loop, 20);                                                 \
		if (!(cond))                                                                       \
			fail_msg("waited in vain for: %s", #cond);                                 \
	} while (0)
void rig_add_key(struct key_bundle *b, const char *kid, struct key_signer *k, unsigned purposes);
int rig_put_bundle(const struct key_bundle *b);              /* through the program's socket */
struct record rig_running(void);                             /* generation 7; bridge and gateway are this process */
void rig_write_root_pub(const uint8_t public[KEY_PUBLIC_BYTES]);
void rig_admit(const struct sbx_admit *q);                   /* its answer is in fx */
void rig_lifecycle(const char *kind, json_t *spec);          /* takes spec; signed as fx->rec */
void rig_lifecycle_as(const struct capability *c, int64_t age_s, const char *kind, json_t *spec);
struct box *rig_box(void);

#endif
