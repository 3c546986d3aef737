/*
 * What a nameserver says, whoever that is: byte 0 chooses the type that was asked for and the room,
 * the name is that of the message itself. What is passed on must be an answer to the question, fit,
 * and pass unchanged when it is passed again.
 */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "netgtw/dns_msg.h"
#include "netgtw/floor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint16_t types[] = { DNS_A,   DNS_AAAA, DNS_CNAME, DNS_NS,	 DNS_SOA,
				  DNS_PTR, DNS_MX,   DNS_TXT,	DNS_SRV, DNS_CAA };

static bool may(const struct addr *a, void *arg)
{
	return floor_check(a, NULL) == NULL;
}

/* The question that the message repeats, if it can be read as one. */
static bool question_of(const uint8_t *p, size_t n, uint16_t type, struct dns_question *q)
{
	uint8_t text[DNS_QUESTION_MAX] = { 0, 9, 1, 0, 0, 1 };
	size_t end = DNS_HEAD;

	while (end < n && p[end] != 0 && end < 300)
		end += p[end] + 1u;
	if (end + 5 > n || end + 5 > sizeof(text))
		return false;
	memcpy(text + DNS_HEAD, p + DNS_HEAD, end + 5 - DNS_HEAD);
	text[end + 1] = (uint8_t)(type >> 8);
	text[end + 2] = (uint8_t)type;
	return dns_question_read(text, end + 5, q) == DNS_NOERROR;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t out[DNS_MESSAGE_MAX], again[DNS_MESSAGE_MAX];
	struct dns_question q;
	struct dns_answer a, b;
	size_t max;

	if (size < 1 + DNS_HEAD || size > DNS_MESSAGE_MAX ||
	    !question_of(data + 1, size - 1, types[data[0] % ARRAY_LEN(types)], &q))
		return 0;
	q.edns = (data[0] & 0x40) != 0;
	max = data[0] & 0x80 ? DNS_UDP_PLAIN : DNS_MESSAGE_MAX;
	if (dns_answer_pass(&q, data + 1, size - 1, may, NULL, out, max, &a) < 0)
		return 0;
	assert(a.len >= DNS_HEAD && a.len <= max);
	if (a.truncated)
		return 0;
	assert(dns_answer_pass(&q, out, a.len, may, NULL, again, max, &b) == 0);
	assert(b.kept == a.kept && b.removed == 0 && b.rcode == a.rcode && !b.truncated);
	assert(b.len == a.len && memcmp(out, again, a.len) == 0);
	return 0;
}
