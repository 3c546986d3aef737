/*
 * /files: downloads and uploads in pieces, as the asking user. An upload goes to a temporary file
 * beside its target and is renamed when the whole body was there; several parts are renamed
 * together at the end. What cannot be replaced (devices, a file in a folder that the user cannot
 * write) is written in place.
 */
#ifndef GUEST_FILES_H
#define GUEST_FILES_H

#include "spaced-guest/serve.h"

#define FILES_PARTS_MAX 4096             /* files in one upload */
#define FILES_METADATA_KEY_MAX 246
#define FILES_METADATA_MAX 4096          /* bytes of all X-Metadata-* of an upload */

void files_get(struct req *r, const char *body, size_t n);
void files_post(struct req *r);

#endif
