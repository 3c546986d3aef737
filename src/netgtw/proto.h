/*
 * What the three processes of a gateway say to each other: structs of fixed size over
 * SOCK_SEQPACKET pairs, in the byte order of the machine (it is one machine, and one binary).
 * Whoever gets a packet of another size, magic or kind ends: the other one is not what it should
 * be.
 */
#ifndef NETGTW_PROTO_H
#define NETGTW_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "netgtw/addr.h"

#define PROTO_MAGIC 0x32777467u      /* "gtw2"; changes with every change here */

/*
 * main -> outside. DIAL on the pair of dials (answers in order, at most PROTO_DIALS_UNANSWERED
 * without one); the others on the pair of the resolver, one question and one answer.
 */
enum out_kind {
	OUT_DIAL,                    /* TCP to addr: [0] a socket whose connect is in progress */
	OUT_DNS_UDP,                 /* to nameserver `index`: [0] a connected socket */
	OUT_DNS_TCP,
	OUT_CHECK,                   /* would addr be dialled? no socket */
	OUT_KIND_COUNT
};
#define PROTO_DIALS_UNANSWERED 64

struct out_req {
	uint32_t magic;
	uint32_t kind;
	uint32_t id;                 /* comes back */
	uint32_t index;
	struct addr addr;
};

enum out_answer {
	OUT_OK,
	OUT_INTERNET,                /* this sandbox has no way out */
	OUT_FLOOR,                   /* the platform floor, or one of the node's own addresses */
	OUT_NO_ROUTE,                /* the node has no way there */
	OUT_INDEX,                   /* no such nameserver */
	OUT_FAILED,                  /* the kernel said no: errno */
	OUT_ANSWER_COUNT
};
struct out_rep {
	uint32_t magic;
	uint32_t answer;
	uint32_t id;
	int32_t error;               /* negative errno with OUT_FAILED */
};

/* main -> inside */
enum in_kind {
	IN_DIAL,                     /* a port of the guest */
	IN_DATAGRAM,                 /* an answer of DNS: `size` bytes follow the struct */
	IN_KIND_COUNT
};
/*
 * inside -> main: IN_DIAL answered ([0] the connected socket, when error is 0), IN_DATAGRAM asked
 */

#define PROTO_DATAGRAM_MAX 1232      /* no fragments on the link (RFC 9715) */
struct in_msg {
	uint32_t magic;
	uint32_t kind;
	uint32_t id;
	int32_t error; /* negative errno; IN_DIAL: -ECONNREFUSED, -ETIMEDOUT, others */
	uint32_t size;
	uint16_t port;               /* IN_DIAL */
	uint8_t door;                /* IN_DIAL: 1 = through the guest's agent to its loopback */
	uint8_t zero;
	struct addr guest, asked;    /* IN_DATAGRAM: who asked, and what address it asked */
};

/*
 * Whether a packet of n bytes, of which there is room for the struct, is a message: magic, kind,
 * size. Addresses are whatever the sender wrote.
 */
bool proto_in_ok(const struct in_msg *m, size_t n);
bool proto_rep_ok(const struct out_rep *r, size_t n);

#endif
