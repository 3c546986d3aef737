/*
 * The bodies of the routes under /v1. One table for each (v1_create, ...); nothing is ignored: an
 * unknown field, null, and a value outside of its range are refused with the field's name. A body
 * without fields may be left out.
 */
#ifndef API_V1_FIELDS_H
#define API_V1_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include "api/fields.h"

struct v1_body {
	char template[FIELDS_TEMPLATE_MAX + 1];
	int64_t timeout_s;               /* 0: was not said */
	json_t *metadata, *env;          /* NULL: were not said; owned */
	bool end_pauses, auto_resume, only_extend;
	bool no_internet, no_public_traffic;
};

struct v1_field {
	const char *name;                /* NULL: the end */
	int (*take)(json_t *v, const char *name, struct v1_body *b, struct err *e);
	bool required;
};

extern const struct v1_field v1_nothing[], v1_create[], v1_resume[], v1_timeout[];

int v1_body_take(const char *body, size_t n, const struct v1_field *fields, struct v1_body *ret,
		 struct err *e);
void v1_body_done(struct v1_body *b);

#endif
