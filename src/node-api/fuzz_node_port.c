/*
 * A request for a port (Space-Op: port), and the gateway's word about it. The first byte chooses.
 */
#include <assert.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "ipc/gtw_ops.h"
#include "node-api/node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_ask(const struct http_head *h)
{
	enum id_protocol protocol = ID_PROTOCOL_NONE;
	struct err e = { 0 };
	uint16_t port = 0;

	if (port_ask(h, &port, &protocol, &e) < 0) {
		assert(e.num < 0 && e.text[0]);
		return;
	}
	assert(port > 0 && http_count(h, "Space-Port") == 1 && !str_eq(h->method, "CONNECT"));
	if (protocol == ID_PROTOCOL_HTTP) {
		assert(!http_get(h, "Space-Tunnel"));
		return;
	}
	assert(protocol == ID_PROTOCOL_TCP || protocol == ID_PROTOCOL_H2);
	assert(str_eq(http_get(h, "Space-Tunnel"), id_protocol_names[protocol]));
	assert(http_count(h, "Space-Tunnel") == 1 && h->upgrade && h->body == HTTP_BODY_NONE);
}

static void look_request(const char *text)
{
	autofree char *head = x_asprintf("%s\r\n\r\n", text);
	enum http_error why;
	struct http_head h;

	if (http_parse_request(head, strlen(head), &h, &why) <= 0)
		return;
	look_ask(&h);
	http_head_done(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 1)
		return 0;
	if (data[0] & 1) {
		text = x_strndup((const char *)data + 1, size - 1);
		look_request(text);
	} else if (size - 1 >= sizeof(struct gtw_verdict)) {
		assert(port_verdict(data + 1) < GTW_CODE_END);
	}
	return 0;
}
