#include "api/host.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

static size_t name_len(const char *host)
{
	return host[0] == '[' ? strlen(host) : strcspn(host, ":");
}

/* "<port>-<id>": a port without zeros in front, so that each sandbox's port has one name. */
static bool preview(const char *label, size_t n, struct host *h)
{
	const char *dash = memchr(label, '-', n);
	size_t digits = dash ? (size_t)(dash - label) : 0, id = dash ? n - digits - 1 : 0;
	uint64_t port;

	if (digits == 0 || id == 0 || id >= sizeof(h->id) || label[0] == '0' ||
	    str_to_u64_n(label, digits, 65535, &port) < 0)
		return false;
	h->port = (uint16_t)port;
	for (size_t i = 0; i < id; i++)
		h->id[i] = (char)(dash[1 + i] >= 'A' && dash[1 + i] <= 'Z' ? dash[1 + i] + 32
									     : dash[1 + i]);
	h->id[id] = '\0';
	return true;
}

static bool is_label(const char *label, size_t n, const char *want)
{
	return n == strlen(want) && strncasecmp(label, want, n) == 0;
}

struct host host_parse(const char *host, const char *domain)
{
	struct host h = { .kind = HOST_API };
	size_t n = host ? name_len(host) : 0, d = strlen(domain), label;

	if (n > 0 && host[n - 1] == '.')
		n--;                             /* the rooted form of the same name */
	if (n <= d || host[n - d - 1] != '.' || strncasecmp(host + n - d, domain, d) != 0)
		return h;
	label = n - d - 1;
	if (is_label(host, label, "api"))
		h.kind = HOST_API;
	else if (is_label(host, label, "sandbox"))
		h.kind = HOST_SHARED;
	else if (!memchr(host, '.', label) && preview(host, label, &h))
		h.kind = HOST_PREVIEW;
	else
		h.kind = HOST_UNKNOWN;
	return h;
}

bool host_same(const char *host, const char *name)
{
	size_t n = host ? name_len(host) : 0;

	if (n > 0 && host[n - 1] == '.')
		n--;
	return n == strlen(name) && strncasecmp(host, name, n) == 0;
}
