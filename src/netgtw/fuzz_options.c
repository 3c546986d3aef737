/*
 * What a gateway is told on its command line: limits, ranges, addresses. The first byte chooses.
 * All of it comes through the configuration (daemon/conf.h), so the two must mean the same; and a
 * range opens addresses in it, and no other.
 */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "daemon/conf.h"
#include "netgtw/floor.h"
#include "netgtw/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_limit(const char *text)
{
	struct limits before, l;
	char form[CONF_NET_TEXT_MAX];
	struct err e = { 0 };
	size_t changed = 0;

	limits_init(&l);
	before = l;
	if (limits_set(&l, text, &e) < 0) {
		assert(e.num < 0 && e.text[0] && memcmp(&l, &before, sizeof(l)) == 0);
		return;
	}
	for (size_t i = 0; i < LIMIT_COUNT; i++) {
		assert(l.v[i] >= limit_defs[i].least && l.v[i] <= limit_defs[i].most);
		changed += l.v[i] != before.v[i];
	}
	assert(changed <= 1);
	assert(strlen(text) >= sizeof(form) || conf_limit(form, text) == 0);
}

static void look_address(const char *text)
{
	char form[CONF_NET_TEXT_MAX], again[ADDR_TEXT_MAX];
	struct addr a, b;
	bool taken = addr_parse(text, &a) == 0;

	assert(taken == (conf_ip_address(form, text) == 0));
	if (!taken)
		return;
	addr_text(&a, again);
	assert(str_eq(again, form));
	assert(addr_parse(form, &b) == 0 && addr_eq(&a, &b));
}

/* An address of the range: its prefix, and these bits behind it. */
static struct addr in_range(const struct floor_range *r, const uint8_t bits[16])
{
	struct addr a = r->a;

	for (unsigned i = r->bits; i < (a.family == 4 ? 32u : 128u); i++)
		a.ip[i / 8] = (uint8_t)((a.ip[i / 8] & ~(0x80 >> i % 8)) |
					(bits[i / 8] & (0x80 >> i % 8)));
	return a;
}

static void look_opened(const struct floor *f, const uint8_t bits[16])
{
	static const struct floor none;
	const struct floor_range *r = &f->allow.r[0];
	struct addr a = in_range(r, bits), v4;
	const char *why = floor_check(&a, f);

	/* What stays closed in a range that was opened: other forms of IPv4, and what is nobody's. */
	assert(!why || (a.family == 6 && (floor_inside(&a, &v4) || str_eq(why, "reserved"))));
	assert(floor_check(&a, &none) || !why);
	/* The bit before its end is another one: outside of the range nothing is changed. */
	a.ip[(r->bits - 1) / 8] ^= 0x80 >> ((r->bits - 1) % 8);
	assert(floor_check(&a, &none) == floor_check(&a, f));
}

static void look_closed(const char *text, const uint8_t bits[16])
{
	struct floor f = { 0 };
	struct addr a;

	if (floor_deny_add(&f, text, NULL) < 0)
		return;
	a = in_range(&f.deny.r[0], bits);
	assert(floor_check(&a, &f));
}

static void look_range(const char *text, const uint8_t bits[16])
{
	struct floor f = { 0 };
	char form[CONF_NET_TEXT_MAX];
	struct err e = { 0 };
	int r = floor_allow_add(&f, text, &e);

	assert((r == 0) == (f.allow.n == 1) && (r == 0 || (e.num < 0 && e.text[0])));
	if (r == 0)
		look_opened(&f, bits);
	/* The configuration takes fewer: no bits behind the prefix. */
	if (conf_cidr(form, text) < 0)
		return;
	assert(r == 0 || strstr(e.text, "cannot be opened"));
	assert(floor_allow_add(&f, form, NULL) == r);
	assert(r < 0 || (addr_eq(&f.allow.r[0].a, &f.allow.r[1].a) &&
			 f.allow.r[0].bits == f.allow.r[1].bits));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL;

	if (size < 17)
		return 0;
	text = x_strndup((const char *)data + 17, size - 17);
	switch (data[0] % 3) {
	case 0:
		look_limit(text);
		break;
	case 1:
		look_address(text);
		break;
	default:
		look_closed(text, data + 1);
		look_range(text, data + 1);
		break;
	}
	return 0;
}
