#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/up.h"

void up_nameservers(const char *text, struct conf_network *ret)
{
	autofree char *copy = x_strdup(text);
	char *save = NULL;
	size_t n = 0;

	for (char *line = strtok_r(copy, "\n", &save); line && n < CONF_NAMESERVERS_MAX;
	     line = strtok_r(NULL, "\n", &save)) {
		char *inner = NULL, *word = strtok_r(line, " \t\r", &inner);

		if (!str_eq(word, "nameserver") || !(word = strtok_r(NULL, " \t\r", &inner)))
			continue;
		n += conf_ip_address(ret->nameservers[n], word) == 0;
	}
}
