/* A resolv.conf(5) of the machine: what is taken out of it is what the configuration takes. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/up.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = x_strndup((const char *)data, size), *lines = x_strdup("");
	struct conf_network n = { 0 }, again = { 0 };
	bool end = false;

	up_nameservers(text, &n);
	for (size_t i = 0; i < CONF_NAMESERVERS_MAX; i++) {
		char form[CONF_NET_TEXT_MAX];
		char *more;

		end |= !n.nameservers[i][0];
		assert(end == !n.nameservers[i][0]);
		if (end)
			continue;
		assert(conf_ip_address(form, n.nameservers[i]) == 0);
		assert(str_eq(form, n.nameservers[i]) && strstr(text, "nameserver"));
		more = x_asprintf("%snameserver %s\n", lines, form);
		auto_free_ptr(&lines);
		lines = more;
	}
	assert(!n.allow[0][0]);
	up_nameservers(lines, &again);
	assert(memcmp(&n, &again, sizeof(n)) == 0);
	return 0;
}
