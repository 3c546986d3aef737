/*
 * DNS messages (RFC 1035, 2181, 3596, 6891): a strict reader and a writer. Nothing is ever passed
 * on as it came: a question of the guest is read and written anew for the nameserver, an answer is
 * read and written anew for the guest, with only the records that belong to the question. No I/O,
 * no clock, no allocation.
 */
#ifndef NETGTW_DNS_MSG_H
#define NETGTW_DNS_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "netgtw/addr.h"
#include "netgtw/floor.h"

#define DNS_HEAD 12
#define DNS_NAME_WIRE 255
#define DNS_NAME_TEXT 256
#define DNS_QUESTION_MAX 1232        /* a question that is longer is none */
#define DNS_UDP_PLAIN 512            /* RFC 1035: without EDNS */
#define DNS_UDP_MOST 1232            /* what we send at most, whatever was asked for (RFC 9715) */
#define DNS_MESSAGE_MAX 65535
#define DNS_RECORDS_MAX 1024         /* of all sections of an answer; more: it is taken for malformed */
#define DNS_ADDRESSES_MAX 256        /* of an answer; the rest is left out */
#define DNS_CHAIN_MAX 16             /* CNAMEs one after the other */

enum dns_rcode {
	DNS_NOERROR,
	DNS_FORMERR,
	DNS_SERVFAIL,
	DNS_NXDOMAIN,
	DNS_NOTIMP,
	DNS_REFUSED,
	DNS_BADVERS = 16
};

enum { DNS_A = 1, DNS_NS = 2, DNS_CNAME = 5, DNS_SOA = 6, DNS_PTR = 12, DNS_MX = 15, DNS_TXT = 16,
       DNS_AAAA = 28, DNS_SRV = 33, DNS_OPT = 41, DNS_SVCB = 64, DNS_HTTPS = 65, DNS_CAA = 257 };

struct dns_name { uint8_t len; uint8_t wire[DNS_NAME_WIRE]; };     /* labels, with the root's 0 */

struct dns_question {
	uint16_t id, type, udp_size;         /* udp_size: what an answer over UDP may have */
	bool rd, cd, edns;
	struct dns_name name;
};

/*
 * What a guest asks. Negative: it is no question and gets no answer (too short, or an answer
 * itself). 0: fine. Else the code of the answer, and *ret says as much as was understood (id, rd;
 * the name too unless it is DNS_FORMERR).
 */
int dns_question_read(const uint8_t *p, size_t n, struct dns_question *ret);
/* For the nameserver, with this id. Returns its length; dst: DNS_QUESTION_MAX bytes. */
size_t dns_question_write(const struct dns_question *q, uint16_t id, uint8_t *dst);

/* How a type is dealt with. */
enum dns_treat { DNS_FORWARD, DNS_EMPTY /* "no such record" at once */, DNS_REFUSE };
enum dns_treat dns_treat(uint16_t type);

/* true: may be told to the guest. false: it is taken out. */
typedef bool dns_addr_fn(const struct addr *a, void *arg);

struct dns_answer {
	enum dns_rcode rcode;
	size_t len;                          /* of the message in dst */
	/* Records that answer the question; those taken out: addresses, names of the floor's. */
	unsigned kept, removed;
	bool truncated;                      /* TC is set: the guest asks again over TCP */
};

/*
 * Reads what a nameserver says to q and writes it for the guest into dst (max bytes; what does not
 * fit: TC, without records). -EBADMSG: malformed, not to this question, or not whole: ask another
 * one. -EREMOTEIO: the nameserver could not or would not (SERVFAIL, REFUSED, ...).
 */
int dns_answer_pass(const struct dns_question *q, const uint8_t *p, size_t n, dns_addr_fn *may,
		    void *arg, uint8_t *dst, size_t max, struct dns_answer *ret);
/* An answer of ours, without records. dst: DNS_UDP_PLAIN bytes. Returns its length. */
size_t dns_answer_own(const struct dns_question *q, enum dns_rcode rcode, uint8_t *dst);

/*
 * Lower case, "." between labels, "?" for what is no letter, digit, "-" or "_"; "." for the root.
 */
void dns_name_text(const struct dns_name *n, char dst[DNS_NAME_TEXT]);
/*
 * The addresses that a name below in-addr.arpa or ip6.arpa stands for, to the first label that is
 * missing or no number. false: it is no such name.
 */
bool dns_name_reverse(const struct dns_name *n, struct floor_range *ret);
/* Of addresses in the floor alone: it would tell the names of the operator's own network. */
bool dns_name_closed(const struct dns_name *n);

#endif
