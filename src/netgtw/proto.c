#include "netgtw/proto.h"

bool proto_in_ok(const struct in_msg *m, size_t n)
{
	return n >= sizeof(*m) && m->magic == PROTO_MAGIC && m->kind < IN_KIND_COUNT &&
	       n == sizeof(*m) + m->size &&
	       m->size <= (m->kind == IN_DATAGRAM ? PROTO_DATAGRAM_MAX : 0);
}

bool proto_rep_ok(const struct out_rep *r, size_t n)
{
	return n == sizeof(*r) && r->magic == PROTO_MAGIC && r->answer < OUT_ANSWER_COUNT;
}
