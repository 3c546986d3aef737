#include "netgtw/dns_msg.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define FLAG_QR 0x8000
#define FLAG_TC 0x0200
#define FLAG_RD 0x0100
#define FLAG_RA 0x0080
#define FLAG_CD 0x0010
#define OPCODE(flags) ((flags) >> 11 & 15)
#define RCODE(flags) ((flags) & 15)
#define CLASS_IN 1
#define POINTER 0xc0
#define POINTERS_MAX 64              /* in one name; each must go back, so there is no loop at all */
#define PLACES_MAX 128               /* names that a later one can point to */

/* ---- Reading ---- */

struct reader { const uint8_t *p; size_t n, at; };

static int get8(struct reader *r, unsigned *v)
{
	if (r->n - r->at < 1)
		return -EBADMSG;
	*v = r->p[r->at++];
	return 0;
}

static int get16(struct reader *r, uint16_t *v)
{
	if (r->n - r->at < 2)
		return -EBADMSG;
	*v = (uint16_t)(r->p[r->at] << 8 | r->p[r->at + 1]);
	r->at += 2;
	return 0;
}

static int get32(struct reader *r, uint32_t *v)
{
	uint16_t high, low;

	if (r->n - r->at < 4)
		return -EBADMSG;
	get16(r, &high);
	get16(r, &low);
	*v = (uint32_t)high << 16 | low;
	return 0;
}

/*
 * A pointer must lead to before the place where the stretch of labels began that it ends: each goes
 * further back, so there is no loop.
 */
static int get_pointer(struct reader *r, unsigned high, size_t *limit, unsigned *hops)
{
	unsigned low;
	size_t to;

	if ((high & POINTER) != POINTER || get8(r, &low) < 0)
		return -EBADMSG;
	to = (size_t)(high & 0x3f) << 8 | low;
	if (to >= *limit || to < DNS_HEAD || ++*hops > POINTERS_MAX)
		return -EBADMSG;
	*limit = to;
	return 0;
}

static int get_name(struct reader *r, bool pointers, struct dns_name *ret)
{
	size_t limit = r->at, resume = 0;
	unsigned len = 1, hops = 0;

	ret->len = 0;
	while (len != 0) {
		if (get8(r, &len) < 0)
			return -EBADMSG;
		if (len > 63) {
			if (!pointers || get_pointer(r, len, &limit, &hops) < 0)
				return -EBADMSG;
			resume = resume ? resume : r->at;
			r->at = limit;
			continue;
		}
		if (len > r->n - r->at || (size_t)ret->len + 1 + len > DNS_NAME_WIRE)
			return -EBADMSG;
		ret->wire[ret->len++] = (uint8_t)len;
		memcpy(ret->wire + ret->len, r->p + r->at, len);
		ret->len = (uint8_t)(ret->len + len);
		r->at += len;
	}
	r->at = resume ? resume : r->at;
	return 0;
}

static uint8_t lower(uint8_t c)
{
	return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

/* Lengths of labels are below 64, so they are no letters. */
static bool wire_eq(const uint8_t *a, const uint8_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (lower(a[i]) != lower(b[i]))
			return false;
	}
	return true;
}

static bool dns_name_eq(const struct dns_name *a, const struct dns_name *b)
{
	return a->len == b->len && wire_eq(a->wire, b->wire, a->len);
}

void dns_name_text(const struct dns_name *n, char dst[DNS_NAME_TEXT])
{
	size_t o = 0;

	for (size_t i = 0; i < n->len && n->wire[i] != 0;) {
		size_t len = n->wire[i++];

		if (o > 0)
			dst[o++] = '.';
		for (size_t k = 0; k < len; k++, i++) {
			char c = (char)lower(n->wire[i]);
			bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
				     c == '_';

			dst[o++] = plain ? c : '?';
		}
	}
	if (o == 0)
		dst[o++] = '.';
	dst[o] = '\0';
}

/* ---- Names of addresses ---- */

/* The labels before the suffix, from the last one on, at most `max`. Returns how many, or -1. */
static int reverse_labels(const struct dns_name *n, const char *suffix, const uint8_t **ret,
			  int max)
{
	size_t len = strlen(suffix) + 1;
	const uint8_t *all[DNS_NAME_WIRE / 2 + 1];
	size_t at = 0;
	int count = 0;

	if (n->len < len || !wire_eq(n->wire + n->len - len, (const uint8_t *)suffix, len))
		return -1;
	for (; at < n->len - len; at += n->wire[at] + 1u)
		all[count++] = n->wire + at;
	/* Not at the border of a label: it only looks like one. */
	if (at != n->len - len)
		return -1;
	for (int i = 0; i < count && i < max; i++)
		ret[i] = all[count - 1 - i];
	return count < max ? count : max;
}

static int label_number(const uint8_t *label, bool hex, unsigned max)
{
	unsigned v = 0;

	if (label[0] == 0 || label[0] > 3)
		return -1;
	for (unsigned i = 1; i <= label[0]; i++) {
		uint8_t c = lower(label[i]);
		unsigned d = c >= '0' && c <= '9'	 ? (unsigned)c - '0'
			     : hex && c >= 'a' && c <= 'f' ? (unsigned)c - 'a' + 10
							   : 99;

		if (d == 99)
			return -1;
		v = v * (hex ? 16 : 10) + d;
	}
	return v <= max ? (int)v : -1;
}

bool dns_name_reverse(const struct dns_name *n, struct floor_range *ret)
{
	const uint8_t *labels[32];
	struct floor_range r = { .a.family = 4 };
	int count = reverse_labels(n, "\7in-addr\4arpa", labels, 4), v;

	if (count < 0) {
		r.a.family = 6;
		count = reverse_labels(n, "\3ip6\4arpa", labels, 32);
	}
	for (int i = 0; i < count; i++) {
		v = label_number(labels[i], r.a.family == 6, r.a.family == 6 ? 15 : 255);
		if (v < 0 && i == 0)
			return false;
		/* A part that was given a name (RFC 2317) is of the net before it. */
		if (v < 0)
			break;
		if (r.a.family == 4)
			r.a.ip[i] = (uint8_t)v;
		else
			r.a.ip[i / 2] |= (uint8_t)(i % 2 ? v : v << 4);
		r.bits = (uint8_t)(r.bits + (r.a.family == 4 ? 8 : 4));
	}
	*ret = r;
	return count >= 0;
}

bool dns_name_closed(const struct dns_name *n)
{
	struct floor_range r;

	return dns_name_reverse(n, &r) && floor_has(&r);
}

/* ---- Writing ---- */

struct writer {
	uint8_t *p;
	size_t max, at;
	bool full; /* something did not fit; the rest is not written either */
	struct { uint32_t hash; uint16_t at; } places[PLACES_MAX];
	unsigned n_places;
};

static void put(struct writer *w, const void *p, size_t n)
{
	if (w->full || w->max - w->at < n) {
		w->full = true;
		return;
	}
	memcpy(w->p + w->at, p, n);
	w->at += n;
}

static void put16(struct writer *w, unsigned v)
{
	put(w, (uint8_t[]){ (uint8_t)(v >> 8), (uint8_t)v }, 2);
}

static void put32(struct writer *w, uint32_t v)
{
	put16(w, v >> 16);
	put16(w, v & 0xffff);
}

/* Whether the name that stands at `at` in what was written is this one. */
static bool place_is(const struct writer *w, size_t at, const uint8_t *wire, size_t n)
{
	struct reader r = { .p = w->p, .n = w->at, .at = at };
	struct dns_name there;

	return get_name(&r, true, &there) == 0 && there.len == n && wire_eq(there.wire, wire, n);
}

static void put_labels(struct writer *w, const uint8_t *wire, size_t n, uint32_t hash)
{
	if (w->n_places < PLACES_MAX && w->at < 0x4000 && wire[0] != 0) {
		w->places[w->n_places].hash = hash;
		w->places[w->n_places++].at = (uint16_t)w->at;
	}
	put(w, wire, n);
}

/* Labels until the rest of the name stands somewhere already; then a pointer to it. */
static void put_name(struct writer *w, const struct dns_name *n, bool compress)
{
	uint32_t hashes[DNS_NAME_WIRE / 2 + 1], h = 2166136261u;
	uint8_t starts[DNS_NAME_WIRE / 2 + 1];
	int count = 0;

	for (size_t i = 0; n->wire[i] != 0; i += n->wire[i] + 1u)
		starts[count++] = (uint8_t)i;
	for (int i = count - 1; i >= 0; i--) {
		for (size_t k = 0; k <= n->wire[starts[i]]; k++)
			h = (h ^ lower(n->wire[starts[i] + k])) * 16777619u;
		hashes[i] = h;
	}
	for (int i = 0; i < count; i++) {
		const uint8_t *rest = n->wire + starts[i];

		for (unsigned k = 0; compress && k < w->n_places; k++) {
			if (w->places[k].hash == hashes[i] &&
			    place_is(w, w->places[k].at, rest, (size_t)n->len - starts[i])) {
				put16(w, 0xc000u | w->places[k].at);
				return;
			}
		}
		put_labels(w, rest, rest[0] + 1u, hashes[i]);
	}
	put(w, "", 1);
}

static void put_head(struct writer *w, unsigned id, unsigned flags, unsigned an, unsigned ns,
		     unsigned ar, const struct dns_question *q)
{
	put16(w, id);
	put16(w, flags);
	put16(w, q->name.len ? 1 : 0);
	put16(w, an);
	put16(w, ns);
	put16(w, ar);
	if (q->name.len) {
		put_name(w, &q->name, true);
		put16(w, q->type);
		put16(w, CLASS_IN);
	}
}

static void put_opt(struct writer *w, unsigned extended)
{
	put(w, "", 1);
	put16(w, DNS_OPT);
	put16(w, DNS_UDP_MOST);
	put32(w, extended << 24);
	put16(w, 0);
}

/* ---- The question ---- */

static const struct { uint16_t type; enum dns_treat treat; } treats[] = {
	{ DNS_A, DNS_FORWARD },    { DNS_AAAA, DNS_FORWARD }, { DNS_CNAME, DNS_FORWARD },
	{ DNS_NS, DNS_FORWARD },   { DNS_SOA, DNS_FORWARD },  { DNS_PTR, DNS_FORWARD },
	{ DNS_MX, DNS_FORWARD },   { DNS_TXT, DNS_FORWARD },  { DNS_SRV, DNS_FORWARD },
	{ DNS_CAA, DNS_FORWARD },
	/*
	 * They would take clients to HTTP/3 and to hidden names (ECH); A and AAAA lead there as
	 * well.
	 */
	{ DNS_HTTPS, DNS_EMPTY },  { DNS_SVCB, DNS_EMPTY },
};

enum dns_treat dns_treat(uint16_t type)
{
	for (size_t i = 0; i < ARRAY_LEN(treats); i++) {
		if (treats[i].type == type)
			return treats[i].treat;
	}
	return DNS_REFUSE;
}

/* The only additional record that a question may have. */
static int question_opt(struct reader *r, struct dns_question *q)
{
	struct dns_name owner;
	uint16_t type, size, len, code, n;
	uint32_t ttl;
	size_t end;

	if (get_name(r, false, &owner) < 0 || get16(r, &type) < 0 || get16(r, &size) < 0 ||
	    get32(r, &ttl) < 0 || get16(r, &len) < 0 || len > r->n - r->at || owner.len != 1 ||
	    type != DNS_OPT)
		return DNS_FORMERR;
	for (end = r->at + len; r->at < end; r->at += n) {
		if (get16(r, &code) < 0 || get16(r, &n) < 0 || r->at + n > end)
			return DNS_FORMERR;
	}
	q->edns = true;
	q->udp_size = size < DNS_UDP_PLAIN  ? DNS_UDP_PLAIN
		      : size > DNS_UDP_MOST ? DNS_UDP_MOST
					    : size;
	return (ttl >> 16 & 0xff) != 0 ? DNS_BADVERS : DNS_NOERROR;
}

static int question_body(struct reader *r, const uint16_t count[4], struct dns_question *q)
{
	uint16_t class;
	int code = DNS_NOERROR;

	if (count[0] != 1 || count[1] != 0 || count[2] != 0 || count[3] > 1 ||
	    get_name(r, false, &q->name) < 0 || get16(r, &q->type) < 0 || get16(r, &class) < 0)
		return DNS_FORMERR;
	if (count[3] == 1)
		code = question_opt(r, q);
	if (r->at != r->n)
		return DNS_FORMERR;
	return code != DNS_NOERROR ? code : class != CLASS_IN ? DNS_REFUSED : DNS_NOERROR;
}

int dns_question_read(const uint8_t *p, size_t n, struct dns_question *ret)
{
	struct reader r = { .p = p, .n = n };
	struct dns_question q = { .udp_size = DNS_UDP_PLAIN };
	uint16_t flags = 0, count[4] = { 0 };
	int code;

	if (n < DNS_HEAD)
		return -EBADMSG;
	get16(&r, &q.id);
	get16(&r, &flags);
	for (int i = 0; i < 4; i++)
		get16(&r, &count[i]);
	if (flags & FLAG_QR)
		return -EBADMSG;
	q.rd = (flags & FLAG_RD) != 0;
	q.cd = (flags & FLAG_CD) != 0;
	if (OPCODE(flags) != 0)
		code = DNS_NOTIMP;
	else if (n > DNS_QUESTION_MAX || (flags & FLAG_TC))
		code = DNS_FORMERR;
	else
		code = question_body(&r, count, &q);
	if (code == DNS_FORMERR || code == DNS_NOTIMP) {
		q.name.len = 0;
		q.edns = false;
	}
	*ret = q;
	return code;
}

size_t dns_question_write(const struct dns_question *q, uint16_t id, uint8_t *dst)
{
	struct writer w = { .p = dst, .max = DNS_QUESTION_MAX };

	put_head(&w, id, FLAG_RD, 0, 0, q->edns ? 1 : 0, q);
	if (q->edns)
		put_opt(&w, 0);
	return w.full ? 0 : w.at;
}

static unsigned answer_flags(const struct dns_question *q, enum dns_rcode rcode)
{
	return FLAG_QR | FLAG_RA | (q->rd ? FLAG_RD : 0) | (q->cd ? FLAG_CD : 0) | (rcode & 15);
}

size_t dns_answer_own(const struct dns_question *q, enum dns_rcode rcode, uint8_t *dst)
{
	struct writer w = { .p = dst, .max = DNS_UDP_PLAIN };

	put_head(&w, q->id, answer_flags(q, rcode), 0, 0, q->edns ? 1 : 0, q);
	if (q->edns)
		put_opt(&w, rcode >> 4);
	return w.full ? 0 : w.at;
}

/* ---- The answer ---- */

struct record { size_t owner, data; uint32_t ttl; uint16_t type, class, len; };

struct answer {
	const struct dns_question *q;
	struct reader r;
	struct record records[DNS_RECORDS_MAX];
	unsigned n_answer, n_authority, n_all;
	struct dns_name chain[DNS_CHAIN_MAX + 1]; /* the question's name, and what CNAMEs lead to */
	unsigned n_chain;
};

/* What stands in the data of a record: `lead` bytes, names, `tail` bytes. */
static const struct { uint16_t type; uint8_t lead, names, tail; bool compress; } shapes[] = {
	{ DNS_A, 4, 0, 0, false },   { DNS_AAAA, 16, 0, 0, false }, { DNS_NS, 0, 1, 0, true },
	{ DNS_CNAME, 0, 1, 0, true }, { DNS_PTR, 0, 1, 0, true },   { DNS_MX, 2, 1, 0, true },
	{ DNS_SRV, 6, 1, 0, false }, { DNS_SOA, 0, 2, 20, true },
};

static int answer_record(struct answer *a, struct record *ret)
{
	struct reader *r = &a->r;
	struct dns_name owner;

	ret->owner = r->at;
	if (get_name(r, true, &owner) < 0 || get16(r, &ret->type) < 0 ||
	    get16(r, &ret->class) < 0 || get32(r, &ret->ttl) < 0 || get16(r, &ret->len) < 0 ||
	    ret->len > r->n - r->at)
		return -EBADMSG;
	/* RFC 2181, section 8. */
	if (ret->ttl > INT32_MAX)
		ret->ttl = 0;
	ret->data = r->at;
	r->at += ret->len;
	return 0;
}

static int answer_head(struct answer *a, enum dns_rcode *rcode)
{
	uint16_t id = 0, flags = 0, count[4] = { 0 }, type, class;
	struct dns_name name;

	if (a->r.n < DNS_HEAD)
		return -EBADMSG;
	get16(&a->r, &id);
	get16(&a->r, &flags);
	for (int i = 0; i < 4; i++)
		get16(&a->r, &count[i]);
	if (!(flags & FLAG_QR) || OPCODE(flags) != 0)
		return -EBADMSG;
	*rcode = (enum dns_rcode)RCODE(flags);
	if (*rcode != DNS_NOERROR && *rcode != DNS_NXDOMAIN)
		return -EREMOTEIO;
	if ((flags & FLAG_TC) || count[0] != 1 || get_name(&a->r, true, &name) < 0 ||
	    get16(&a->r, &type) < 0 || get16(&a->r, &class) < 0 ||
	    !dns_name_eq(&name, &a->q->name) || type != a->q->type || class != CLASS_IN)
		return -EBADMSG;
	a->n_answer = count[1];
	a->n_authority = count[2];
	a->n_all = (unsigned)count[1] + count[2] + count[3];
	return a->n_all > DNS_RECORDS_MAX ? -EBADMSG : 0;
}

static struct dns_name name_at(const struct answer *a, size_t at)
{
	struct reader r = { .p = a->r.p, .n = a->r.n, .at = at };
	struct dns_name n = { 0 };

	if (get_name(&r, true, &n) < 0)
		n.len = 0;
	return n;
}

static bool in_chain(const struct answer *a, const struct dns_name *n)
{
	for (unsigned i = 0; i < a->n_chain; i++) {
		if (dns_name_eq(&a->chain[i], n))
			return true;
	}
	return false;
}

/* One CNAME further. 1: there is one; 0: the end. */
static int answer_follow(struct answer *a)
{
	for (unsigned i = 0; i < a->n_answer; i++) {
		const struct record *rec = &a->records[i];
		struct dns_name owner, target;

		if (rec->type != DNS_CNAME || rec->class != CLASS_IN)
			continue;
		owner = name_at(a, rec->owner);
		if (!dns_name_eq(&owner, &a->chain[a->n_chain - 1]))
			continue;
		target = name_at(a, rec->data);
		if (target.len == 0 || in_chain(a, &target) || a->n_chain > DNS_CHAIN_MAX)
			return -EBADMSG;
		a->chain[a->n_chain++] = target;
		return 1;
	}
	return 0;
}

static int answer_read(struct answer *a, enum dns_rcode *rcode)
{
	int r = answer_head(a, rcode);

	for (unsigned i = 0; i < a->n_all && r == 0; i++)
		r = answer_record(a, &a->records[i]);
	if (r == 0 && a->r.at != a->r.n)
		r = -EBADMSG;
	if (r < 0)
		return r;
	a->chain[0] = a->q->name;
	a->n_chain = 1;
	if (a->q->type == DNS_CNAME)
		return 0;
	do
		r = answer_follow(a);
	while (r > 0);
	return r;
}

/* TXT: strings with their lengths. CAA: flags, a tag with its length, the rest. */
static bool text_ok(const struct record *rec, const uint8_t *p)
{
	size_t at = 0;

	if (rec->type == DNS_CAA)
		return rec->len >= 2 && p[1] > 0 && p[1] <= rec->len - 2;
	while (at < rec->len)
		at += p[at] + 1u;
	return at == rec->len && rec->len > 0;
}

static int put_shape(struct answer *a, const struct record *rec, struct writer *w, size_t i)
{
	struct reader r = { .p = a->r.p, .n = a->r.n, .at = rec->data };
	size_t end = rec->data + rec->len;
	struct dns_name n;

	if (rec->len < shapes[i].lead + shapes[i].names + shapes[i].tail)
		return -EBADMSG;
	put(w, r.p + r.at, shapes[i].lead);
	r.at += shapes[i].lead;
	for (unsigned k = 0; k < shapes[i].names; k++) {
		if (get_name(&r, true, &n) < 0 || r.at > end)
			return -EBADMSG;
		put_name(w, &n, shapes[i].compress);
	}
	if (end - r.at != shapes[i].tail)
		return -EBADMSG;
	put(w, r.p + r.at, shapes[i].tail);
	return 0;
}

static int put_data(struct answer *a, const struct record *rec, struct writer *w)
{
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		if (shapes[i].type == rec->type)
			return put_shape(a, rec, w, i);
	}
	if (!text_ok(rec, a->r.p + rec->data))
		return -EBADMSG;
	put(w, a->r.p + rec->data, rec->len);
	return 0;
}

static int put_record(struct answer *a, const struct record *rec, const struct dns_name *owner,
		      struct writer *w)
{
	size_t len_at;
	int r;

	put_name(w, owner, true);
	put16(w, rec->type);
	put16(w, CLASS_IN);
	put32(w, rec->ttl);
	len_at = w->at;
	put16(w, 0);
	r = put_data(a, rec, w);
	if (r == 0 && !w->full) {
		size_t len = w->at - len_at - 2;

		w->p[len_at] = (uint8_t)(len >> 8);
		w->p[len_at + 1] = (uint8_t)len;
	}
	return r;
}

static bool record_may(struct answer *a, const struct record *rec, dns_addr_fn *may, void *arg,
		       struct dns_answer *ret)
{
	struct addr addr = { .family = rec->type == DNS_A ? 4 : 6 };

	if ((rec->type != DNS_A || rec->len != 4) && (rec->type != DNS_AAAA || rec->len != 16))
		return true;
	memcpy(addr.ip, a->r.p + rec->data, rec->len);
	if (may(&addr, arg))
		return true;
	ret->removed++;
	return false;
}

/* The records that answer the question; *count of them were written. */
static int put_answers(struct answer *a, dns_addr_fn *may, void *arg, struct writer *w,
		       struct dns_answer *ret, unsigned *count)
{
	for (unsigned i = 0; i < a->n_answer; i++) {
		const struct record *rec = &a->records[i];
		bool wanted = rec->type == a->q->type;
		struct dns_name owner;
		int r;

		if (rec->class != CLASS_IN || (!wanted && rec->type != DNS_CNAME))
			continue;
		/* Each of them is a question to outside. */
		if ((rec->type == DNS_A || rec->type == DNS_AAAA) &&
		    ret->kept + ret->removed >= DNS_ADDRESSES_MAX)
			continue;
		owner = name_at(a, rec->owner);
		if (!in_chain(a, &owner))
			continue;
		/* An alias led there. */
		if (dns_name_closed(&owner)) {
			ret->removed++;
			continue;
		}
		if (!record_may(a, rec, may, arg, ret))
			continue;
		r = put_record(a, rec, &owner, w);
		if (r < 0)
			return r;
		ret->kept += wanted;
		++*count;
	}
	return 0;
}

/* For how long "no" holds (RFC 2308): the SOA of the authority section. */
static int put_negative(struct answer *a, struct writer *w, unsigned *count)
{
	for (unsigned i = a->n_answer; i < a->n_answer + a->n_authority; i++) {
		const struct record *rec = &a->records[i];
		struct dns_name owner;

		if (rec->type != DNS_SOA || rec->class != CLASS_IN)
			continue;
		owner = name_at(a, rec->owner);
		if (dns_name_closed(&owner))
			continue;
		*count = 1;
		return put_record(a, rec, &owner, w);
	}
	return 0;
}

int dns_answer_pass(const struct dns_question *q, const uint8_t *p, size_t n, dns_addr_fn *may,
		    void *arg, uint8_t *dst, size_t max, struct dns_answer *ret)
{
	struct answer a = { .q = q, .r = { .p = p, .n = n } };
	struct writer w = { .p = dst, .max = max };
	unsigned an = 0, ns = 0;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = answer_read(&a, &ret->rcode);
	if (r < 0)
		return r;
	put_head(&w, q->id, answer_flags(q, ret->rcode), 0, 0, q->edns ? 1 : 0, q);
	r = put_answers(&a, may, arg, &w, ret, &an);
	if (r == 0 && ret->kept == 0 && ret->removed == 0)
		r = put_negative(&a, &w, &ns);
	if (r < 0)
		return r;
	if (q->edns)
		put_opt(&w, 0);
	ret->truncated = w.full;
	if (w.full) {
		w = (struct writer){ .p = dst, .max = max };
		put_head(&w, q->id, answer_flags(q, ret->rcode) | FLAG_TC, 0, 0, q->edns ? 1 : 0,
			 q);
		if (q->edns)
			put_opt(&w, 0);
		an = ns = 0;
	}
	dst[7] = (uint8_t)an;
	dst[6] = (uint8_t)(an >> 8);
	dst[9] = (uint8_t)ns;
	ret->len = w.at;
	return 0;
}
