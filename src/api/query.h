/* Queries of control routes: an unknown or malformed parameter is refused, none is ignored. */
#ifndef API_QUERY_H
#define API_QUERY_H

#include <jansson.h>
#include <stdint.h>
#include "base/err.h"

/* 0, or -EINVAL "unknown-parameter" with its name. `known` ends with NULL. */
int query_only(const char *target, const char *const *known, struct err *e);
/* Decoded; *ret NULL = absent. Caller frees. */
int query_take(const char *target, const char *name, char **ret, struct err *e);
/* *ret stays as it is when the parameter is absent. */
int query_number(const char *target, const char *name, uint64_t min, uint64_t max, uint64_t *ret,
		 struct err *e);
/* A metadata filter (list.c) as an object of strings; caller json_decref's *ret. */
extern const char *const list_params[];  /* of the lists */
/* The same with each name and value encoded so many times: 1 or 2. */
int list_filter_take(const char *filter, unsigned times, json_t **ret, struct err *e);
int list_filter_parse(const char *filter, json_t **ret, struct err *e);

#endif
