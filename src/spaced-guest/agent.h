/*
 * The agent: one context, passed everywhere; there are no other globals than the acting user
 * (users.h) and the log.
 *
 * Life: ev_new, channel_open, then turns of the loop. Until the first /init of this execution
 * (execution = the epoch that RESET carries) requests on data streams are answered 503 and the
 * workload that a restored memory holds stays frozen.
 */
#ifndef GUEST_AGENT_H
#define GUEST_AGENT_H

#include <stdbool.h>
#include "base/err.h"
#include "base/list.h"
#include "base/secret.h"
#include "mux/mux.h"
#include "spaced-guest/activity.h"
#include "spaced-guest/decode.h"
#include "spaced-guest/ev.h"
#include "spaced-guest/users.h"

#define AGENT_PATH_ENV "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct channel;
struct cgroups;
struct procs;
struct watches;

struct agent {
	struct ev *ev;
	struct channel *channel;
	struct cgroups *cgroups;
	struct procs *procs;
	struct watches *watches;
	struct list reqs;                        /* struct req, see serve.c */
	struct list walks;                       /* struct walk, see fsrpc.c */
	bool in_vm;                              /* PID 1 of a guest: identity, network and clock are ours to set */
	bool quit;
	struct mux_epoch epoch;                  /* of the connection */
	bool ready;                              /* /init was done for this epoch */
	struct mux_epoch init_epoch;
	struct secret token;
	char sandbox[64], template[128], default_user[USERS_NAME_MAX];
	char *default_workdir;
	struct envs envs;                        /* global environment */
	bool boot_id_mounted;
	unsigned stages;                         /* of uploads, see sink.h */
	uint64_t cpu_busy, cpu_all;              /* at the last sample for /metrics, clock ticks */
	double cpu_pct;                          /* of that sample */
	struct activity activity;
};

#endif
