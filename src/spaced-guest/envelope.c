#include "spaced-guest/envelope.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

void envelopes_init(struct envelopes *s, size_t max, size_t behind)
{
	s->max = max;
	buf_init(&s->in, ENVELOPE_BYTES + max + behind);
}

void envelopes_done(struct envelopes *s)
{
	buf_done(&s->in);
}

int envelopes_put(struct envelopes *s, const void *p, size_t n)
{
	return buf_put(&s->in, p, n);
}

int envelopes_next(struct envelopes *s, const char **ret, size_t *ret_n, struct err *e)
{
	const char *p = buf_data(&s->in);
	size_t len = buf_len(&s->in), n;
	uint32_t be;

	/* Each as soon as it is seen: nobody should wait for what is refused anyway. */
	if (len > 0 && (p[0] & ENVELOPE_COMPRESSED))
		return err_set(e, -ENOSYS, "compressed messages are not accepted");
	if (len > 0 && p[0] != 0)
		return err_set(e, -EINVAL, "a message has the unknown flags %d",
			       (unsigned char)p[0]);
	if (len < ENVELOPE_BYTES)
		return 0;
	memcpy(&be, p + 1, sizeof(be));
	n = ntohl(be);
	if (n > s->max)
		return err_set(e, -EMSGSIZE,
			       "a message has %zu bytes; at most %zu are taken: send it in parts",
			       n, s->max);
	if (len < ENVELOPE_BYTES + n)
		return 0;
	*ret = p + ENVELOPE_BYTES;
	*ret_n = n;
	return 1;
}

void envelopes_take(struct envelopes *s, size_t n)
{
	buf_consume(&s->in, ENVELOPE_BYTES + n);
	buf_shrink(&s->in);
}

bool envelopes_empty(const struct envelopes *s)
{
	return buf_len(&s->in) == 0;
}
