/*
 * The line of the door, after each byte that comes: a port is taken from exactly the lines that
 * "port %u\n" writes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "spaced-guest/door.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const char *line, size_t n)
{
	char rule[DOOR_LINE_MAX + 1];
	uint16_t port = 0;
	int r = door_line(line, n, &port);

	if (r == -EAGAIN) {
		assert(port == 0 && n < DOOR_LINE_MAX && !memchr(line, '\n', n));
	} else if (r == -EBADMSG) {
		assert(port == 0);
	} else {
		assert(r == 0 && port > 0);
		str_format(rule, sizeof(rule), "port %u\n", port);
		assert(strlen(rule) == n && memcmp(rule, line, n) == 0);
	}
}

/* Each of those is taken, and not before its end. */
static void look_rule(uint16_t want)
{
	char rule[DOOR_LINE_MAX + 1];
	uint16_t port = 0;

	str_format(rule, sizeof(rule), "port %u\n", want);
	assert(door_line(rule, strlen(rule) - 1, &port) == -EAGAIN);
	assert(door_line(rule, strlen(rule), &port) == (want ? 0 : -EBADMSG) && port == want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= 2)
		look_rule((uint16_t)(data[0] << 8 | data[1]));
	for (size_t n = 0; n <= size && n <= DOOR_LINE_MAX; n++) {
		char *copy = malloc(n ? n : 1);          /* exact, for the sanitizer */

		memcpy(copy, data, n);
		look(copy, n);
		free(copy);
	}
	return 0;
}
