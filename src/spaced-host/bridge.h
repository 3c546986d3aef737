/*
 * spaced-host: the bridge from a Unix socket to the guest channel (spec L-9, B-3, T-1). One process
 * per execution, jailed.
 *
 * Theory of operation
 *
 * Two listening sockets come in as descriptors. On the control socket sbx-manager hands in the
 * guest channel and revokes; on the stream socket each connection is one lease: it begins with a
 * preamble (ipc/sbx_ops.h) that must carry the epoch of the attached channel, and then becomes one
 * stream of the multiplexer. Nothing here looks into the bytes.
 *
 * What a client sent is read from its socket only when the multiplexer takes it (credit of the
 * stream, room in the channel's queue), so nothing is buffered in that direction. What the guest
 * sent is written at once; what the socket does not take is kept in the lease's own buffer, whose
 * limit is the credit that the guest has; the guest gets new credit for what was written. All those
 * buffers together have a limit too (BRIDGE_BUFFERED_MAX): the stream that passes it is reset.
 *
 * A lease ends when both directions have ended, when either side resets, when it is revoked, when
 * the channel is lost. A lost channel (end of file, error, or a guest that broke the protocol) is
 * never taken up again by itself: all leases end, the event "channel-lost" goes out, and only a new
 * BRIDGE_ATTACH (of the same epoch) makes it useful again.
 *
 * Revocation: the streams are reset and their client sockets closed at once, with all that was
 * buffered. It is confirmed when the RST frames, and with them all that stood before them in the
 * channel's queue, have left this process: from then on not one byte of those streams passes on
 * either side. Connections that wait in the listening queue are taken before a lease is looked for,
 * so that a revocation cannot overtake the connection that it is about.
 *
 * States of the channel: NONE -> SYNC (reset sent, waiting for the guest's nonce) -> READY -> LOST
 * -> SYNC ...
 */
#ifndef SPACED_HOST_BRIDGE_H
#define SPACED_HOST_BRIDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "ipc/ipc.h"
#include "ipc/sbx_ops.h"
#include "loop/loop.h"
#include "mux/mux.h"

#define BRIDGE_LEASES_MAX 1000                      /* below MUX_STREAMS_MAX; more are closed without a byte */
#define BRIDGE_BUFFERED_MAX (32u << 20)             /* bytes of the guest that wait for slow readers, all leases together */
#define BRIDGE_PREAMBLE_MS 2000                     /* time for the preamble */
#define BRIDGE_ACCEPT_PAUSE_MS 200                  /* without descriptors */
#define BRIDGE_ATTACH_MS 60000                      /* most time for the guest's answer to the reset */
#define BRIDGE_REVOKES_MAX 64                       /* revocations that wait for their confirmation */
#define BRIDGE_CONTROL_PEERS_MAX 8
#define BRIDGE_LIST_PAGE 512

enum chan_state { CHAN_NONE, CHAN_SYNC, CHAN_READY, CHAN_LOST };

struct bridge_conf {
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	uid_t peer_uid;                             /* sbx-manager's; nobody else is served */
};

struct bridge {
	struct loop *loop;
	struct bridge_conf conf;

	struct ipc_server *control;
	struct ipc_call *attach_call;               /* waits for the guest's RESET-ACK */
	struct list revokes;                        /* struct revoke */
	size_t n_revokes;

	enum chan_state state;
	int chan_fd;
	struct loop_io chan_io;
	struct loop_timer attach_timer;
	struct mux *mux;
	bool pinned;                                /* the first attach names the activation for good */
	struct mux_epoch epoch;
	uint64_t written;                           /* bytes that went into this channel */
	struct list waiting;                        /* leases with input that wait for credit or room */

	int listen_fd;
	struct loop_io listen_io;
	struct loop_timer accept_timer;
	struct list leases;
	size_t n_leases, buffered;
	bool closed_for_data;                       /* everything was revoked for good */
};

enum lease_state {
	LEASE_PREAMBLE,
	LEASE_OPENING /* waits for room in the channel's queue */,
	LEASE_OPEN
};

struct lease {
	struct list node, wait;
	struct bridge *b;
	enum lease_state state;
	int fd;
	struct loop_io io;
	struct loop_timer timer;
	union { struct bridge_preamble p; uint8_t bytes[sizeof(struct bridge_preamble)]; } pre;
	size_t n_pre;
	uint32_t stream;
	struct buf to_peer;
	bool peer_ended, guest_ended, write_shut, off;     /* off: taken out of epoll, since EPOLLHUP would stay on */
	uint64_t in, out;                           /* bytes to the guest, bytes to the client */
};

/*
 * bridge.c: the process and its control socket. Both descriptors are bound, and owned from here on.
 */
int bridge_new(struct loop *l, int stream_fd, int control_fd, const struct bridge_conf *c,
	       struct bridge **ret, struct err *e);
void bridge_free(struct bridge *b);
void bridge_attach_done(struct bridge *b, const struct err *e);        /* NULL = the guest has answered */
void bridge_lost_event(struct bridge *b, const char *reason);
void bridge_confirm_revokes(struct bridge *b);                         /* those whose frames have left; all when there is no channel */

/* channel.c: the guest's side */
int channel_attach(struct bridge *b, int fd, const struct mux_epoch *epoch, struct err *e);      /* owns fd */
void channel_flush(struct bridge *b);              /* writes what is queued; lets waiting leases send */
void channel_close(struct bridge *b);

/* lease.c: the clients' side */
void lease_accept_all(struct bridge *b);
void lease_on_listen(struct loop_io *io, uint32_t events);
void lease_pump(struct lease *l);                  /* client to guest: one read, if it may be sent */
void lease_from_guest(struct lease *l, const uint8_t *p, size_t n);
void lease_guest_end(struct lease *l);
void lease_end(struct lease *l, bool reset_guest); /* closes, forgets; frees l */
uint64_t lease_revoke(struct bridge *b, uint64_t id);        /* 0 = all; how many ended */
void lease_end_all(struct bridge *b, bool reset_guest);

#endif
