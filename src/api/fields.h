/*
 * The body of a create request, field by field. Nothing is ignored in silence: an unknown field, a
 * wrong type and an option that is not built yet are each refused with a sentence that names the
 * field. An option that is not built is accepted with the value that says "not": that is what the
 * client gets.
 */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

#define FIELDS_TIMEOUT_MAX_S (30 * 24 * 3600)
#define FIELDS_MAP_MAX 16384             /* bytes of JSON of metadata, and of envVars */
#define FIELDS_TEMPLATE_MAX 200

enum fields_version { FIELDS_V1 = 1, FIELDS_V2 = 2 };

struct fields_create {
	char template[FIELDS_TEMPLATE_MAX + 1];
	int64_t timeout_s;               /* of the default: 15 in version 1, 300 in version 2 */
	bool auto_pause, auto_resume;
	json_t *metadata, *env;          /* objects of strings, owned */
	json_t *options;                 /* {"allow_internet_access":...} if it was said, owned */
	bool no_internet, no_public_traffic;
};

int fields_create(enum fields_version v, const char *body, size_t n, struct fields_create *ret,
		  struct err *e);
void fields_create_done(struct fields_create *f);
/* One field, of both interfaces; *ret: a new reference in the place of what was there. */
int fields_strings(json_t *v, const char *name, json_t **ret, struct err *e);
int fields_env(json_t *v, const char *name, json_t **ret, struct err *e);
/* A body that may be absent or {} and has no fields. */
int fields_none(const char *body, size_t n, struct err *e);

#endif
