/*
 * What a guest sends to port 53: read; what was understood is written for the nameserver and read
 * again as the same.
 */
#include <assert.h>
#include <string.h>

#include "netgtw/dns_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t packet[DNS_QUESTION_MAX], own[DNS_UDP_PLAIN];
	struct dns_question q, again;
	char text[DNS_NAME_TEXT];
	struct floor_range r;
	int code = dns_question_read(data, size, &q);
	size_t n;

	if (code < 0)
		return 0;
	n = dns_answer_own(&q, (enum dns_rcode)code, own);
	assert(n >= DNS_HEAD && n <= sizeof(own));
	assert(dns_question_read(own, n, &again) < 0);          /* an answer is no question */
	if (code != DNS_NOERROR)
		return 0;
	dns_name_text(&q.name, text);
	assert(strlen(text) < sizeof(text));
	assert(!dns_name_closed(&q.name) || (dns_name_reverse(&q.name, &r) && floor_check(&r.a, NULL)));
	n = dns_question_write(&q, 7, packet);
	assert(n >= DNS_HEAD && dns_question_read(packet, n, &again) == DNS_NOERROR);
	assert(again.id == 7 && again.type == q.type && again.edns == q.edns);
	assert(again.name.len == q.name.len &&
	       memcmp(again.name.wire, q.name.wire, q.name.len) == 0);
	return 0;
}
