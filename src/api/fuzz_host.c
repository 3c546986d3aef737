/*
 * What a host name means, as the field Host and a TLS client's hello have it, and which sandbox a
 * request is for. The first byte chooses. A port of a sandbox has one name; nothing beneath the
 * domain is the API but api.<domain>; and fields never lead a sandbox's own host elsewhere.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include "api/api.h"
#include "api/host.h"
#include "base/alloc.h"
#include "base/str.h"

#define DOMAIN "space.example"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_beneath(const char *host)
{
	autofree char *name = x_strndup(host, strcspn(host, host[0] == '[' ? "" : ":"));
	size_t n = strlen(name);

	if (n > 0 && name[n - 1] == '.')
		name[--n] = '\0';
	return n > strlen(DOMAIN) &&
	       strcasecmp(name + n - strlen("." DOMAIN), "." DOMAIN) == 0;
}

static void look_preview(const char *text, const struct host *h)
{
	autofree char *name = x_asprintf("%u-%s." DOMAIN, h->port, h->id);
	struct host again = host_parse(name, DOMAIN);

	assert(h->port > 0 && h->id[0]);
	for (const char *c = h->id; *c; c++)
		assert(*c < 'A' || *c > 'Z');
	assert(host_same(text, name) && again.kind == HOST_PREVIEW && again.port == h->port);
	assert(str_eq(again.id, h->id));
}

static void look_name(const char *text)
{
	struct host h = host_parse(text, DOMAIN);

	if (h.kind == HOST_PREVIEW)
		look_preview(text, &h);
	else
		assert(h.port == 0 && !h.id[0]);
	if (h.kind == HOST_API)
		assert(!is_beneath(text) || host_same(text, "api." DOMAIN));
	else
		assert(is_beneath(text));
	if (h.kind == HOST_SHARED)
		assert(host_same(text, "sandbox." DOMAIN));
}

/* The host's word counts, and fields that say something else are refused. */
static void look_own_host(const struct http_head *h, struct host *host, const struct data_target *t)
{
	const char *field = http_get(h, "E2b-Sandbox-Port");
	uint64_t port;

	host->id[strcspn(host->id, "-")] = '\0';
	assert(t->port == host->port && str_eq(t->id, host->id) && !t->by_token);
	assert(!field || (str_to_u64(field, 65535, &port) == 0 && port == t->port));
}

static void look_target(struct api *a, const struct http_head *h)
{
	struct host host = host_parse(h->host, DOMAIN);
	struct data_target t;
	struct err e = { 0 };
	int r = data_target_of(a, h, &t, &e);

	assert(r <= 1 && (r < 0) == (e.num < 0 && e.text[0]));
	if (r == 1)
		assert(t.port > 0 && t.port <= 65535);
	if (host.kind == HOST_UNKNOWN)
		assert(r == -ENOENT);
	if (host.kind == HOST_SHARED)
		assert(r != 0);
	if (host.kind == HOST_PREVIEW && r == 1)
		look_own_host(h, &host, &t);
}

static void look_request(const char *text)
{
	static struct api a = { .domain = DOMAIN ":4983", .domain_host = DOMAIN };
	autofree char *head = x_asprintf("GET / HTTP/1.1\r\n%s\r\n\r\n", text);
	enum http_error why;
	struct http_head h;

	if (http_parse_request(head, strlen(head), &h, &why) <= 0)
		return;
	look_target(&a, &h);
	http_head_done(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 1)
		return 0;
	text = x_strndup((const char *)data + 1, size - 1);
	if (data[0] & 1)
		look_request(text);
	else
		look_name(text);
	return 0;
}
