#include "spaced-guest/gunzip.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/alloc.h"

#define OUT_BYTES 32768
#define GZIP_ONLY (MAX_WBITS + 16)
#define PACK_MEMORY 8                            /* zlib's default */

struct gunzip {
	z_stream z;
	bool complete;
	char out[OUT_BYTES];
};

struct gunzip *gunzip_new(void)
{
	struct gunzip *g = x_alloc(sizeof(*g));

	if (inflateInit2(&g->z, GZIP_ONLY) != Z_OK)
		abort();
	return g;
}

void gunzip_free(struct gunzip *g)
{
	if (!g)
		return;
	inflateEnd(&g->z);
	free(g);
}

int gunzip_feed(struct gunzip *g, const char *p, size_t n, gunzip_fn *out, void *arg)
{
	g->z.next_in = (Bytef *)p;
	g->z.avail_in = (uInt)n;
	do {
		int r, z;

		if (g->complete)
			return g->z.avail_in ? -EBADMSG : 0;
		g->z.next_out = (Bytef *)g->out;
		g->z.avail_out = OUT_BYTES;
		z = inflate(&g->z, Z_NO_FLUSH);
		if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
			return -EBADMSG;
		g->complete = z == Z_STREAM_END;
		r = g->z.avail_out < OUT_BYTES ? out(arg, g->out, OUT_BYTES - g->z.avail_out) : 0;
		if (r < 0)
			return r;
	} while (g->z.avail_in || g->z.avail_out == 0);
	return 0;
}

bool gunzip_complete(const struct gunzip *g)
{
	return g->complete;
}

struct gzip {
	z_stream z;
	char out[OUT_BYTES];
};

struct gzip *gzip_new(void)
{
	struct gzip *g = x_alloc(sizeof(*g));

	if (deflateInit2(&g->z, Z_BEST_SPEED, Z_DEFLATED, GZIP_ONLY, PACK_MEMORY,
			 Z_DEFAULT_STRATEGY) != Z_OK)
		abort();
	return g;
}

void gzip_free(struct gzip *g)
{
	if (!g)
		return;
	deflateEnd(&g->z);
	free(g);
}

int gzip_feed(struct gzip *g, const char *p, size_t n, gunzip_fn *out, void *arg)
{
	int r = 0, z = Z_OK;

	g->z.next_in = (Bytef *)p;
	g->z.avail_in = (uInt)n;
	do {
		g->z.next_out = (Bytef *)g->out;
		g->z.avail_out = OUT_BYTES;
		z = deflate(&g->z, n ? Z_NO_FLUSH : Z_FINISH);
		if (z == Z_STREAM_ERROR)
			abort();
		if (g->z.avail_out < OUT_BYTES)
			r = out(arg, g->out, OUT_BYTES - g->z.avail_out);
	} while (r == 0 && g->z.avail_out == 0);
	return r;
}
