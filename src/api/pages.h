/*
 * The static pages of web/, which are part of this program (made by web/embed.py): nothing is read
 * at run time, so there is no path to escape from and no version that does not fit.
 */
#ifndef API_PAGES_H
#define API_PAGES_H

#include <stdbool.h>
#include <stddef.h>

struct page { const char *path, *type, *etag; const char *data; size_t len; };
extern const struct page pages[];
extern const unsigned pages_len;

struct call;
/* true: it was a page's path, and the answer is out. */
bool pages_handle(struct call *c);

#endif
