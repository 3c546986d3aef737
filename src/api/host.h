/*
 * What a host name means here. Everything beneath the preview domain belongs to sandboxes: a
 * request that comes under such a name is for that sandbox alone, whatever else stands in it, and
 * is never served the API (pages of a sandbox share an origin with it, and nothing else does). Two
 * names there are ours: api.<domain> and sandbox.<domain>, as E2B's clients make them from
 * E2B_DOMAIN. The domain itself and all other names and addresses are the API's.
 */
#ifndef API_HOST_H
#define API_HOST_H

#include <stdbool.h>
#include <stdint.h>

enum host_kind {
	HOST_API,                /* control routes; a sandbox by header or token */
	HOST_SHARED,             /* sandbox.<domain>: a sandbox by header or token alone */
	HOST_PREVIEW,            /* <port>-<sandbox>.<domain> */
	HOST_UNKNOWN,            /* beneath the domain, and none of these */
};

struct host { enum host_kind kind; char id[64]; uint16_t port; };

/* host: as in the field Host, a port is left out of account; NULL is HOST_API. domain: without port. */
struct host host_parse(const char *host, const char *domain);
/* The same name, with or without port. */
bool host_same(const char *host, const char *name);

#endif
