/*
 * Shared by the files of identity/ alone: claims, read from verified JSON with exact names, types
 * and sizes.
 */
#ifndef IDENTITY_INTERNAL_H
#define IDENTITY_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool kid_ok(const char *s);

/* Each: false when it is missing, of another type, too long or out of range. */
bool claim_str(json_t *obj, const char *name, char *dst, size_t dst_size);
bool claim_u64(json_t *obj, const char *name, uint64_t min, uint64_t max, uint64_t *ret);
bool claim_enum(json_t *obj, const char *name, const char *const *names, unsigned n, unsigned *ret);
bool claim_hex(json_t *obj, const char *name, uint8_t *dst, size_t bytes);          /* lower case only */
bool enum_of(const char *s, const char *const *names, unsigned n, unsigned *ret);

#endif
