/*
 * What the processes of a gateway read from each other. The first byte chooses: of main and inside,
 * or an answer of outside. Of what is accepted every number that is used without another look is
 * within its bounds, and the addresses can be given to the kernel.
 */
#include <assert.h>
#include <string.h>

#include "netgtw/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

union packet { struct in_msg m; uint8_t bytes[sizeof(struct in_msg) + PROTO_DATAGRAM_MAX]; };

static void look_address(const struct addr *a)
{
	struct sockaddr_storage ss;
	struct addr back;

	assert(addr_to_sockaddr(a, &ss) <= sizeof(ss) && addr_of_sockaddr(&ss, &back) == 0);
	if (a->family == 6)
		assert(addr_eq(a, &back) && a->port == back.port);
}

static void look_in(const uint8_t *p, size_t n)
{
	union packet got = { 0 };

	if (n > sizeof(got))
		return;                          /* fd_recv refuses it */
	memcpy(&got, p, n);
	if (!proto_in_ok(&got.m, n))
		return;
	assert(got.m.kind == IN_DIAL || got.m.kind == IN_DATAGRAM);
	assert(got.m.size <= PROTO_DATAGRAM_MAX && (got.m.kind == IN_DATAGRAM || !got.m.size));
	assert(sizeof(got.m) + got.m.size == n);
	look_address(&got.m.guest);
	look_address(&got.m.asked);
}

static void look_rep(const uint8_t *p, size_t n)
{
	struct out_rep rep = { 0 };

	if (n > sizeof(rep))
		return;
	memcpy(&rep, p, n);
	if (proto_rep_ok(&rep, n))
		assert(n == sizeof(rep) && rep.answer < OUT_ANSWER_COUNT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	if (data[0] & 1)
		look_rep(data + 1, size - 1);
	else
		look_in(data + 1, size - 1);
	return 0;
}
