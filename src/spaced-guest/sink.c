#include "spaced-guest/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define PAGE 4096                        /* alignment of memory, offset and length */

_Static_assert(SINK_DIRECT_FROM % PAGE == 0 && SINK_STAGE_BYTES % PAGE == 0,
	       "direct writes are of whole pages");

void sink_init(struct sink *s, unsigned *stages)
{
	*s = (struct sink){ .fd = -1, .stages = stages };
}

void sink_open(struct sink *s, int fd, bool regular)
{
	s->fd = fd;
	s->regular = regular;
	s->refused = false;
	s->offset = 0;
	s->staged = 0;
}

static void drop_stage(struct sink *s)
{
	if (s->stage)
		(*s->stages)--;
	free(s->stage);
	s->stage = NULL;
	s->staged = 0;
}

void sink_done(struct sink *s)
{
	drop_stage(s);
	fd_close(s->fd);
	s->fd = -1;
}

static int plain(struct sink *s, const char *p, size_t n)
{
	while (n) {
		ssize_t k = write(s->fd, p, n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		p += k;
		n -= (size_t)k;
		s->offset += (uint64_t)k;
	}
	return 0;
}

static bool set_direct(struct sink *s, bool on)
{
	int flags = fcntl(s->fd, F_GETFL);

	return flags >= 0 && fcntl(s->fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Writes the whole pages of the stage directly, and the rest, if any, through the page cache. */
static int flush(struct sink *s)
{
	size_t whole = s->staged - s->staged % PAGE, rest = s->staged - whole;
	int r = 0;

	if (whole && set_direct(s, true)) {
		r = plain(s, s->stage, whole);
		set_direct(s, false);
		if (r == -EINVAL) {
			/* Some file systems say so only when it is written. Nothing was. */
			s->refused = true;
			r = plain(s, s->stage, whole);
		}
	} else if (whole) {
		s->refused = true;
		r = plain(s, s->stage, whole);
	}
	if (r == 0)
		r = plain(s, s->stage + whole, rest);
	s->staged = 0;
	if (s->refused)
		drop_stage(s);
	return r;
}

static bool want_stage(struct sink *s)
{
	if (s->stage)
		return true;
	if (!s->regular || s->refused || s->offset < SINK_DIRECT_FROM || s->offset % PAGE ||
	    *s->stages == SINK_STAGES_MAX)
		return false;
	s->stage = aligned_alloc(PAGE, SINK_STAGE_BYTES);
	if (s->stage)
		(*s->stages)++;
	return s->stage;
}

int sink_write(struct sink *s, const char *p, size_t n)
{
	int r = 0;

	while (n && r == 0) {
		size_t k = n;

		if (want_stage(s)) {
			k = k < SINK_STAGE_BYTES - s->staged ? k : SINK_STAGE_BYTES - s->staged;
			memcpy(s->stage + s->staged, p, k);
			s->staged += k;
			if (s->staged == SINK_STAGE_BYTES)
				r = flush(s);
		} else {
			/* Up to the place where gathering may begin. */
			if (s->offset < SINK_DIRECT_FROM && k > SINK_DIRECT_FROM - s->offset)
				k = (size_t)(SINK_DIRECT_FROM - s->offset);
			r = plain(s, p, k);
		}
		p += k;
		n -= k;
	}
	return r;
}

int sink_end(struct sink *s)
{
	int r = s->staged ? flush(s) : 0;

	sink_done(s);
	return r;
}
