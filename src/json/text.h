/*
 * JSON for people's terminals as well: beside what JSON itself forbids (C0), DEL and the C1 controls
 * are escaped, which a terminal obeys, and the characters that turn the direction of text around.
 * To a parser it is the same.
 */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>

char *json_text(const json_t *v);        /* compact; caller frees; NULL: it cannot be written */

#endif
