/* Manifest text: what is accepted must survive being written and read again, and match itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "vmm/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct manifest m, back;
	json_t *obj;
	char *text;

	if (manifest_parse((const char *)data, size, &m, NULL) < 0)
		return 0;
	obj = manifest_to_json(&m, NULL);
	text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	if (!text || manifest_parse(text, strlen(text), &back, NULL) < 0 ||
	    memcmp(&m, &back, sizeof(m)) != 0 || manifest_match(&m, &back, MANIFEST_ALL, NULL) < 0)
		abort();
	free(text);
	json_decref(obj);
	return 0;
}
