/*
 * The two fields of a client's hello: the first byte chooses which. What is accepted as a name is one:
 * bounded, lower-case, without empty labels; and nothing that was refused is taken when its length
 * fields are left as they are and bytes follow.
 */
#include <assert.h>
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "loop/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char name[TLS_NAME_MAX + 1];
	bool h2, http1;
	uint8_t *copy;

	if (size == 0)
		return 0;
	copy = malloc(size - 1);                 /* exact, for the sanitizer */
	if (size > 1)
		memcpy(copy, data + 1, size - 1);
	if (data[0] & 1) {
		tls_hello_alpn(copy, size - 1, &h2, &http1);
	} else if (tls_hello_name(copy, size - 1, name) == 0) {
		size_t n = strlen(name);

		assert(n > 0 && n <= TLS_NAME_MAX && n == size - 6);
		assert(name[0] != '.' && name[n - 1] != '.' && !strstr(name, ".."));
		for (size_t i = 0; i < n; i++)
			assert(!isupper((unsigned char)name[i]));
	}
	free(copy);
	return 0;
}
