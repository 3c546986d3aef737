#include "netgtw/port.h"

#include <errno.h>
#include <string.h>

enum gtw_code port_check(const struct gtw_preamble *p, const char *token, struct cap_cache *caps,
			 const struct key_bundle *bundle, const struct identity *installed,
			 int64_t now_s, struct err *e)
{
	struct capability c;
	const char *why = NULL;
	enum id_verdict v;

	if (cap_cache_verify(caps, token, p->token_len, bundle, now_s, &c, e) < 0)
		return GTW_DENY;
	v = id_compare(&c.id, installed, &why);
	if (v == ID_DENY) {
		err_set(e, -EACCES, "The capability is for another %s.", why);
		return GTW_DENY;
	}
	if (c.purpose != ID_PURPOSE_SERVICE_PORT || c.port == 0 || c.port != p->port ||
	    c.protocol == ID_PROTOCOL_NONE || c.protocol != p->protocol ||
	    c.port == GTW_DOOR_PORT) {
		err_set(e, -EACCES, "The capability is for another purpose, port or protocol.");
		return GTW_DENY;
	}
	if (v != ID_MATCH) {
		err_set(e, -EACCES, "The capability is for another %s.", why);
		return GTW_REFRESH;
	}
	if (p->generation != installed->generation ||
	    memcmp(p->activation, installed->activation, sizeof(p->activation)) != 0) {
		err_set(e, -EACCES, "The stream is for another epoch.");
		return GTW_DENY;
	}
	return GTW_OK;
}

bool port_preamble_ok(const struct gtw_preamble *p)
{
	static const uint8_t zero[sizeof(p->zero)];

	return p->magic == GTW_PREAMBLE_MAGIC && p->token_len > 0 && p->token_len < CAP_TEXT_MAX &&
	       p->lease > 0 && p->lease <= UINT64_C(1) << 53 &&
	       memcmp(p->zero, zero, sizeof(zero)) == 0;
}
