#include "netgtw/floor.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

struct floor_row {
	uint8_t family, bits;
	bool for_good;               /* the operator cannot open it */
	uint8_t ip[16];
	const char *what;
};

/* IANA's registries of special addresses (RFC 6890 and its successors). First match counts. */
static const struct floor_row floor_rows[] = {
	{ 4, 8, true, { 0 }, "unspecified" },
	{ 4, 8, false, { 10 }, "private" },
	{ 4, 10, false, { 100, 64 }, "shared (CGNAT)" },
	{ 4, 8, true, { 127 }, "loopback" },
	/* A public address, and Azure's platform at each of its machines. */
	{ 4, 32, false, { 168, 63, 129, 16 }, "metadata" },
	{ 4, 16, false, { 169, 254 }, "link-local" },
	{ 4, 12, false, { 172, 16 }, "private" },
	{ 4, 24, false, { 192, 0, 0 }, "reserved" },
	{ 4, 24, false, { 192, 0, 2 }, "documentation" },
	{ 4, 24, false, { 192, 88, 99 }, "6to4 relay" },
	{ 4, 16, false, { 192, 168 }, "private" },
	{ 4, 15, false, { 198, 18 }, "benchmarking" },
	{ 4, 24, false, { 198, 51, 100 }, "documentation" },
	{ 4, 24, false, { 203, 0, 113 }, "documentation" },
	{ 4, 4, true, { 224 }, "multicast" },
	{ 4, 4, true, { 240 }, "reserved" },
	{ 6, 96, true, { 0 }, "unspecified, loopback or IPv4-compatible" },
	{ 6, 96, true, { [10] = 0xff, 0xff }, "IPv4-mapped" },
	{ 6, 48, true, { 0x00, 0x64, 0xff, 0x9b, 0x00, 0x01 }, "local NAT64" },
	{ 6, 64, true, { 0x01, 0x00 }, "discard" },
	{ 6, 32, true, { 0x20, 0x01, 0x00, 0x00 }, "Teredo" },
	{ 6, 28, true, { 0x20, 0x01, 0x00, 0x10 }, "ORCHID" },
	{ 6, 28, true, { 0x20, 0x01, 0x00, 0x20 }, "ORCHID" },
	{ 6, 23, false, { 0x20, 0x01 }, "reserved" },
	{ 6, 32, false, { 0x20, 0x01, 0x0d, 0xb8 }, "documentation" },
	{ 6, 20, false, { 0x3f, 0xff }, "documentation" },
	{ 6, 16, false, { 0x5f, 0x00 }, "segment routing" },
	{ 6, 7, false, { 0xfc }, "private" },
	{ 6, 10, false, { 0xfe, 0x80 }, "link-local" },
	{ 6, 10, false, { 0xfe, 0xc0 }, "site-local" },
	{ 6, 8, true, { 0xff }, "multicast" },
};

/* Global unicast is 2000::/3; whatever else has no row above is not given out by anybody. */
static const struct floor_row floor_global = { 6, 3, false, { 0x20 }, NULL };
static const struct floor_row floor_nat64 = { 6, 96, false, { 0x00, 0x64, 0xff, 0x9b }, NULL };

/* Where an IPv6 address holds an IPv4 one that its packets end at: that one is judged. */
static const struct { struct floor_row form; uint8_t at; } floor_holds[] = {
	{ { 6, 96, false, { 0x00, 0x64, 0xff, 0x9b }, NULL }, 12 },          /* NAT64, RFC 6052 */
	{ { 6, 16, false, { 0x20, 0x02 }, NULL }, 2 },                       /* 6to4, RFC 3056 */
};

static bool prefix_eq(const uint8_t *a, const uint8_t *b, unsigned bits)
{
	unsigned whole = bits / 8, rest = bits % 8;

	return memcmp(a, b, whole) == 0 &&
	       (rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0);
}

static bool row_has(const struct floor_row *r, const struct addr *a)
{
	return r->family == a->family && prefix_eq(a->ip, r->ip, r->bits);
}

/* ISATAP (RFC 5214): the interface identifier is 0000:5efe or 0200:5efe and the IPv4 address. */
static bool is_isatap(const struct addr *a)
{
	return a->family == 6 && (a->ip[8] & 0xfd) == 0 && a->ip[9] == 0 && a->ip[10] == 0x5e &&
	       a->ip[11] == 0xfe;
}

/* Of a range of addresses: the range that they hold. */
static bool range_inside(const struct floor_range *r, struct floor_range *ret)
{
	int at = is_isatap(&r->a) ? 12 : -1;

	for (size_t i = 0; i < ARRAY_LEN(floor_holds) && at < 0; i++) {
		if (row_has(&floor_holds[i].form, &r->a))
			at = floor_holds[i].at;
	}
	if (at < 0)
		return false;
	*ret = (struct floor_range){ .a.family = 4 };
	memcpy(ret->a.ip, r->a.ip + at, 4);
	if (r->bits > 8 * at)
		ret->bits = (uint8_t)(r->bits - 8 * at < 32 ? r->bits - 8 * at : 32);
	return true;
}

bool floor_inside(const struct addr *a, struct addr *ret)
{
	struct floor_range r = { .a = *a, .bits = 128 }, v4;

	if (!range_inside(&r, &v4))
		return false;
	*ret = v4.a;
	return true;
}

static bool in_ranges(const struct addr *a, const struct floor_ranges *l)
{
	for (size_t i = 0; i < l->n; i++) {
		const struct floor_range *r = &l->r[i];

		if (r->a.family == a->family && prefix_eq(a->ip, r->a.ip, r->bits))
			return true;
	}
	return false;
}

static const struct floor_row *row_of(const struct addr *a)
{
	for (size_t i = 0; i < ARRAY_LEN(floor_rows); i++) {
		if (row_has(&floor_rows[i], a))
			return &floor_rows[i];
	}
	return NULL;
}

const char *floor_check(const struct addr *a, const struct floor *f)
{
	static const struct floor none;
	const struct floor_row *row = row_of(a);
	struct addr v4;

	if (!f)
		f = &none;
	if (a->family != 4 && a->family != 6)
		return "of no known family";
	if (in_ranges(a, &f->deny))
		return "closed by the operator";
	if (row && (row->for_good || !in_ranges(a, &f->allow)))
		return row->what;
	if (floor_inside(a, &v4) && (row_of(&v4) || in_ranges(&v4, &f->deny)))
		return "closed, inside an IPv6 address";
	if (!row && a->family == 6 && !row_has(&floor_global, a) && !row_has(&floor_nat64, a))
		return "reserved";
	return NULL;
}

/* Whether one of the two prefixes holds the other. */
static bool overlap(const struct floor_range *r, const struct floor_row *row)
{
	return r->a.family == row->family &&
	       prefix_eq(r->a.ip, row->ip, r->bits < row->bits ? r->bits : row->bits);
}

bool floor_has(const struct floor_range *r)
{
	struct floor_range v4;

	for (size_t i = 0; i < ARRAY_LEN(floor_rows); i++) {
		if (floor_rows[i].bits <= r->bits && row_has(&floor_rows[i], &r->a))
			return true;
	}
	if (range_inside(r, &v4))
		return floor_has(&v4);
	return r->a.family == 6 && r->bits >= floor_global.bits && !row_has(&floor_global, &r->a) &&
	       !overlap(r, &floor_nat64);
}

static int range_parse(const char *cidr, struct floor_range *ret, struct err *e)
{
	const char *slash = strchr(cidr, '/');
	struct floor_range r = { 0 };
	char text[ADDR_TEXT_MAX];
	uint64_t bits;

	if (!slash || (size_t)(slash - cidr) >= sizeof(text))
		return err_set(e, -EINVAL, "%.60s is no range such as 10.1.0.0/16.", cidr);
	memcpy(text, cidr, (size_t)(slash - cidr));
	text[slash - cidr] = '\0';
	if (addr_parse(text, &r.a) < 0 ||
	    str_to_u64(slash + 1, r.a.family == 4 ? 32 : 128, &bits) < 0)
		return err_set(e, -EINVAL, "%.60s is no range such as 10.1.0.0/16.", cidr);
	r.bits = (uint8_t)bits;
	*ret = r;
	return 0;
}

static int range_add(struct floor_ranges *l, const struct floor_range *r, struct err *e)
{
	if (l->n == FLOOR_RANGES_MAX)
		return err_set(e, -ENOSPC, "There can be %d ranges at most.", FLOOR_RANGES_MAX);
	l->r[l->n++] = *r;
	return 0;
}

int floor_allow_add(struct floor *f, const char *cidr, struct err *e)
{
	struct floor_range r;
	int n = range_parse(cidr, &r, e);

	for (size_t i = 0; i < ARRAY_LEN(floor_rows) && n == 0; i++) {
		if (floor_rows[i].for_good && overlap(&r, &floor_rows[i]))
			n = err_set(e, -EINVAL,
				    "%.60s holds addresses (%s) that cannot be opened.", cidr,
				    floor_rows[i].what);
	}
	return n < 0 ? n : range_add(&f->allow, &r, e);
}

int floor_deny_add(struct floor *f, const char *cidr, struct err *e)
{
	struct floor_range r;
	int n = range_parse(cidr, &r, e);

	return n < 0 ? n : range_add(&f->deny, &r, e);
}
