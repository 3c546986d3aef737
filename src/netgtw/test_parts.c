/* The parts that need no process: floor, limits, log, DNS messages. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/str.h"
#include "netgtw/dns_msg.h"
#include "netgtw/floor.h"
#include "netgtw/flowlog.h"
#include "netgtw/limits.h"

static struct addr addr(const char *text)
{
	struct addr a;

	if (addr_parse(text, &a) < 0)
		fail_msg("%s is no address", text);
	return a;
}

static bool closed(const char *text, const struct floor *f)
{
	struct addr a = addr(text);

	return floor_check(&a, f) != NULL;
}

/* The first and the last of each range, and their neighbours outside. */
static void test_floor(void **state)
{
	static const char *const in[] = {
		"0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0",
		"100.127.255.255",
		"127.0.0.0", "127.255.255.255", "169.254.0.0", "169.254.255.255", "172.16.0.0",
		"168.63.129.16", "64:ff9b::168.63.129.16",
		"172.31.255.255", "192.0.0.0", "192.0.0.255", "192.0.2.0", "192.0.2.255",
		"192.88.99.0",
		"192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.0",
		"203.0.113.0", "203.0.113.255", "224.0.0.0", "239.255.255.255", "240.0.0.0",
		"255.255.255.255",
		"::", "::1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::10.0.0.1",
		"64:ff9b:1::8.8.8.8",
		"100::", "100::ffff", "2001::", "2001:0:ffff::", "2001:10::", "2001:1f::",
		"2001:20::",
		"2001:2f:ffff::", "2001:db8::", "2001:db8:ffff::", "2002:a00::", "2002:7f00:1::1",
		"2002:c0a8:101::", "3fff::", "3fff:fff::", "4000::", "5f00::", "fc00::", "fdff::",
		"fe80::",
		"fe80::1", "febf::", "fec0::", "ff00::", "ff02::1", "1fff::", "2600::5efe:10.1.1.1",
		"2600::200:5efe:192.168.1.1", "2600:1:2:3:0:5efe:7f00:1",
	};
	static const char *const out[] = {
		"1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
		"126.255.255.255",
		"128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
		"168.63.129.15", "168.63.129.17",
		"192.0.1.0",
		"192.0.3.0", "192.88.98.0", "192.88.100.0", "192.167.255.255", "192.169.0.0",
		"198.17.255.255",
		"198.20.0.0", "198.51.99.0", "198.51.101.0", "203.0.112.255", "203.0.114.0",
		"223.255.255.255",
		"8.8.8.8", "2001:200::", "2001:4860:4860::8888", "2606:4700::1111",
		"2a10:9999::1", "3ffe::",
		"3fff:1000::", "64:ff9b::8.8.8.8", "2002:808:808::1", "2600::5efe:8.8.8.8",
		"2001:db7::", "2001:db9::",
	};

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		if (!closed(in[i], NULL))
			fail_msg("%s is open", in[i]);
	for (size_t i = 0; i < ARRAY_LEN(out); i++)
		if (closed(out[i], NULL))
			fail_msg("%s is closed", out[i]);
}

static void test_floor_allow(void **state)
{
	static const char *const bad[] = {
		"10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", "10.0.0.0/-1", "10.0.0.0/8 ", "x/8",
		"/8", "0.0.0.0/1",
		"127.0.0.1/32", "126.0.0.0/7", "224.0.0.0/4", "::1/128", "::/1",
		"::ffff:10.0.0.0/104", "ff00::/8",
		"64:ff9b:1::/48", "2001::/32", "fd00::/129",
	};
	struct floor a = { 0 };
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		memset(&e, 0, sizeof(e));
		if (floor_allow_add(&a, bad[i], &e) != -EINVAL || !e.text[0])
			fail_msg("%s was taken", bad[i]);
	}
	assert_int_equal(a.allow.n, 0);
	assert_int_equal(floor_allow_add(&a, "10.1.0.0/16", NULL), 0);
	assert_int_equal(floor_allow_add(&a, "169.254.169.254/32", NULL), 0);
	assert_int_equal(floor_allow_add(&a, "fd12::/16", NULL), 0);
	assert_false(closed("10.1.255.1", &a));
	assert_true(closed("10.2.0.1", &a));
	assert_false(closed("169.254.169.254", &a));
	assert_true(closed("169.254.169.253", &a));
	assert_false(closed("fd12::1", &a));
	assert_true(closed("fd13::1", &a));
	/* What is opened is opened as itself. */
	assert_true(closed("::ffff:10.1.0.1", &a));
	assert_true(closed("64:ff9b::10.1.0.1", &a));
	assert_true(closed("fd12::5efe:192.168.0.1", &a));
	for (int i = 3; i < FLOOR_RANGES_MAX; i++)
		assert_int_equal(floor_allow_add(&a, "10.1.0.0/16", NULL), 0);
	assert_int_equal(floor_allow_add(&a, "10.1.0.0/16", NULL), -ENOSPC);
}

static void test_floor_deny(void **state)
{
	struct floor f = { 0 };

	assert_int_equal(floor_deny_add(&f, "8.8.8.0/24", NULL), 0);
	assert_int_equal(floor_deny_add(&f, "2600:1::/32", NULL), 0);
	assert_int_equal(floor_deny_add(&f, "10.1.2.0/24", NULL), 0);
	assert_int_equal(floor_allow_add(&f, "10.1.0.0/16", NULL), 0);
	assert_true(closed("8.8.8.8", &f));
	assert_false(closed("8.8.4.4", &f));
	assert_true(closed("2600:1::1", &f));
	assert_false(closed("2600:2::1", &f));
	/* In every spelling, and also of what was opened. */
	assert_true(closed("64:ff9b::8.8.8.8", &f));
	assert_true(closed("2002:808:808::1", &f));
	assert_true(closed("2600:2::5efe:8.8.8.8", &f));
	assert_true(closed("10.1.2.3", &f));
	assert_false(closed("10.1.3.3", &f));
	assert_int_equal(floor_deny_add(&f, "8.8.8.8", NULL), -EINVAL);
	for (int i = 3; i < FLOOR_RANGES_MAX; i++)
		assert_int_equal(floor_deny_add(&f, "0.0.0.0/0", NULL), 0);
	assert_int_equal(floor_deny_add(&f, "8.8.8.0/24", NULL), -ENOSPC);
}

static void test_bucket(void **state)
{
	struct bucket b;

	bucket_init(&b, 10, 20, 0);
	for (int i = 0; i < 20; i++)
		assert_true(bucket_one(&b, 0));
	assert_false(bucket_one(&b, 0));
	assert_false(bucket_one(&b, 99999));
	assert_true(bucket_one(&b, 100000));
	assert_false(bucket_one(&b, 100001));
	assert_int_equal(bucket_look(&b, 1000000000), 20);
	/* Asked often, it fills as fast. */
	bucket_init(&b, 1000, 100, 0);
	bucket_take(&b, 100);
	for (int t = 0; t <= 50000; t += 7)
		bucket_look(&b, t);
	assert_int_equal(bucket_look(&b, 50000), 50);
	bucket_init(&b, 0, 0, 0);
	assert_true(bucket_look(&b, 0) == UINT64_MAX);
	bucket_init(&b, UINT64_C(1) << 40, UINT64_C(1) << 40, 0);
	bucket_take(&b, UINT64_C(1) << 40);
	assert_true(bucket_look(&b, INT64_MAX) == UINT64_C(1) << 40);
}

static void test_limits(void **state)
{
	static const char *const bad[] = { "",
					   "connections",
					   "connections=",
					   "connections=0",
					   "connections=7501",
					   "connection=1",
					   "connections =1",
					   "dns-per-s=-1",
					   "leases=2001" };
	struct limits l;

	limits_init(&l);
	assert_int_equal(l.v[LIMIT_CONNECTIONS], 7500);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (limits_set(&l, bad[i], NULL) != -EINVAL)
			fail_msg("%s was taken", bad[i]);
	assert_int_equal(limits_set(&l, "connections=7", NULL), 0);
	assert_int_equal(l.v[LIMIT_CONNECTIONS], 7);
	assert_int_equal(limits_set(&l, "bytes-up-per-s=0", NULL), 0);
}

static void test_log(void **state)
{
	struct flowlog *l = x_alloc(sizeof(*l));
	struct gtw_log_rep rep;
	uint64_t after = 0, seen = 0;
	struct addr a = addr("8.8.8.8"), b = addr("8.8.4.4");

	flowlog_init(l, 1);
	for (int i = 0; i < GTW_LOG_RECORDS + 10; i++)
		flowlog_add(l,
			    &(struct flow_record) { .flow = 1, .addr = a, .name = "example.com" });
	do {
		flowlog_page(l, after, &rep);
		if (after == 0)
			assert_int_equal(rep.lost, 10);
		else
			assert_int_equal(rep.lost, 0);
		seen += json_array_size(rep.records);
		after = rep.next;
		json_decref(rep.records);
	} while (rep.more);
	assert_int_equal(seen, GTW_LOG_RECORDS);
	assert_int_equal(after, GTW_LOG_RECORDS + 10);
	flowlog_page(l, after, &rep);
	assert_true(json_array_size(rep.records) == 0 && rep.next == after && !rep.more);
	json_decref(rep.records);
	/* A number of another process: from the first that is kept. */
	flowlog_page(l, after + 1000, &rep);
	assert_int_equal(json_array_size(rep.records), GTW_LOG_PAGE);
	json_decref(rep.records);
	/* A flood of refusals has few records. */
	for (int i = 0; i < 1000; i++)
		flowlog_add(l, &(struct flow_record){ .refused = true, .why = WHY_LIMIT });
	flowlog_page(l, after, &rep);
	assert_true(json_array_size(rep.records) >= FLOWLOG_LIMIT_RATE && !rep.more);
	json_decref(rep.records);
	flowlog_name_put(l, &a, "one.example.com");
	flowlog_name_put(l, &a, "two.example.com");
	assert_string_equal(flowlog_name(l, &a), "two.example.com");
	assert_null(flowlog_name(l, &b));
	flowlog_done(l);
	free(l);
}

/* ---- DNS messages ---- */

static bool any(const struct addr *a, void *arg) { return true; }

static int pass(const struct dns_question *q, const char *p, size_t n, struct dns_answer *ret)
{
	static uint8_t dst[DNS_MESSAGE_MAX];

	return dns_answer_pass(q, (const uint8_t *)p, n, any, NULL, dst, sizeof(dst), ret);
}

#define HEAD_Q "\x12\x34\x01\x00\0\1\0\0\0\0\0\0"
#define NAME "\3www\7example\3com\0"
#define TEXT_OF(text) (text), sizeof(text) - 1
#define MESSAGE(text) (const uint8_t *)(text), sizeof(text) - 1

static void test_question(void **state)
{
	struct dns_question q;
	char text[DNS_NAME_TEXT];

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\1"), &q), 0);
	dns_name_text(&q.name, text);
	assert_string_equal(text, "www.example.com");
	assert_true(q.type == DNS_A && q.id == 0x1234 && q.rd && !q.edns);
	assert_true(dns_question_read(MESSAGE("\x12\x34\x01\x00\0\1\0\0\0\0\0"), &q) < 0);
	assert_true(dns_question_read(MESSAGE("\x12\x34\x81\x00\0\1\0\0\0\0\0\0" NAME "\0\1\0\1"),
				      &q) < 0);
	/* Cut, a label that is too long, a pointer, a byte too much, class CH. */
	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q "\3www"), &q), DNS_FORMERR);
	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q "\x40" "w\0\0\1\0\1"), &q), DNS_FORMERR);
	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q "\xc0\x0c\0\1\0\1"), &q), DNS_FORMERR);
	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\1\0"), &q), DNS_FORMERR);
	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\3"), &q), DNS_REFUSED);
	/* EDNS: a size that is kept within bounds, a version that is not ours, options. */
	assert_int_equal(dns_question_read(MESSAGE("\0\1\1\0\0\1\0\0\0\0\0\1" NAME
						   "\0\1\0\1\0\0\x29\xff\xff\0\0\0\0\0\0"),
					   &q),
			 0);
	assert_true(q.edns && q.udp_size == DNS_UDP_MOST);
	assert_int_equal(dns_question_read(MESSAGE("\0\1\1\0\0\1\0\0\0\0\0\1" NAME
						   "\0\1\0\1\0\0\x29\1\0\0\1\0\0\0\0"),
					   &q),
			 DNS_BADVERS);
	assert_int_equal(q.udp_size, DNS_UDP_PLAIN);
	assert_int_equal(dns_question_read(MESSAGE("\0\1\1\0\0\1\0\0\0\0\0\1" NAME
						   "\0\1\0\1\0\0\x29\1\0\0\0\0\0\0\5\0\1\0\1x"),
					   &q),
			 0);
	assert_int_equal(dns_question_read(MESSAGE("\0\1\1\0\0\1\0\0\0\0\0\1" NAME
						   "\0\1\0\1\0\0\x29\1\0\0\0\0\0\0\5\0\1\0\2x"),
					   &q),
			 DNS_FORMERR);
}

#define HEAD_A(an) "\x12\x34\x81\x80\0\1\0" an "\0\0\0\0" NAME "\0\1\0\1"

static void test_answer(void **state)
{
	struct dns_question q;
	struct dns_answer a;

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\1"), &q), 0);
#define PASS(text) pass(&q, text, sizeof(text) - 1, &a)
	assert_int_equal(PASS(HEAD_A("\1") "\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), 0);
	assert_true(a.kept == 1 && a.rcode == DNS_NOERROR);
	/*
	 * A pointer to itself, forward, into the head; a loop of two CNAMEs; a name that never
	 * ends.
	 */
	assert_int_equal(PASS(HEAD_A("\1") "\xc0\x21\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), -EBADMSG);
	assert_int_equal(PASS(HEAD_A("\1") "\xc0\x30\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), -EBADMSG);
	assert_int_equal(PASS(HEAD_A("\1") "\xc0\x02\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), -EBADMSG);
	assert_int_equal(PASS(HEAD_A("\2") "\xc0\x0c\0\5\0\1\0\0\0\5\0\2\xc0\x10"
					   "\xc0\x10\0\5\0\1\0\0\0\5\0\2\xc0\x0c"), -EBADMSG);
	/*
	 * More records than there are, fewer, an address that is too short, another question, TC.
	 */
	assert_int_equal(PASS(HEAD_A("\2") "\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), -EBADMSG);
	assert_int_equal(PASS(HEAD_A("\0") "\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), -EBADMSG);
	assert_int_equal(PASS(HEAD_A("\1") "\xc0\x0c\0\1\0\1\0\0\0\5\0\3\1\2\3"), -EBADMSG);
	assert_int_equal(PASS("\x12\x34\x81\x80\0\1\0\0\0\0\0\0\3xxx\7example\3com\0\0\1\0\1"),
			 -EBADMSG);
	assert_int_equal(PASS("\x12\x34\x81\x80\0\1\0\0\0\0\0\0" NAME "\0\x1c\0\1"), -EBADMSG);
	assert_int_equal(PASS("\x12\x34\x83\x80\0\1\0\0\0\0\0\0" NAME "\0\1\0\1"), -EBADMSG);
	assert_int_equal(PASS("\x12\x34\x81\x82\0\1\0\0\0\0\0\0" NAME "\0\1\0\1"), -EREMOTEIO);
	/* A record of somebody else is left out. */
	assert_int_equal(PASS(HEAD_A("\1") "\3foo\0\0\1\0\1\0\0\0\5\0\4\1\2\3\4"), 0);
	assert_int_equal(a.kept, 0);
}

static void test_compression(void **state)
{
	static const char answer[] = "\x12\x34\x81\x80\0\1\0\3\0\0\0\0" NAME "\0\1\0\1"
				     "\xc0\x0c\0\5\0\1\0\0\0\5\0\x13\3cdn\7example\3net\0"
				     "\3cdn\7example\3net\0\0\1\0\1\0\0\0\5\0\4\1\2\3\4"
				     "\3cdn\7example\3net\0\0\1\0\1\0\0\0\5\0\4\1\2\3\5";
	static uint8_t dst[DNS_MESSAGE_MAX];
	struct dns_question q;
	struct dns_answer a, again;
	uint8_t second[DNS_MESSAGE_MAX];

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\1"), &q), 0);
	/* The length of the CNAME's data is 17, not 19: refused. */
	assert_int_equal(dns_answer_pass(&q, (const uint8_t *)answer, sizeof(answer) - 1, any, NULL,
					 dst, sizeof(dst), &a),
			 -EBADMSG);
	{
		char good[sizeof(answer)];

		memcpy(good, answer, sizeof(answer));
		good[12 + 17 + 4 + 11] = 0x11;
		assert_int_equal(dns_answer_pass(&q, (const uint8_t *)good, sizeof(good) - 1, any,
						 NULL, dst, sizeof(dst), &a),
				 0);
		assert_true(a.kept == 2 && a.len < sizeof(good) - 1);
	}
	/* What was written is read as the same, and does not become longer. */
	assert_int_equal(dns_answer_pass(&q, dst, a.len, any, NULL, second, sizeof(second), &again),
			 0);
	assert_int_equal(a.len, again.len);
	assert_memory_equal(dst, second, a.len);
	/* Whatever the room is: a whole answer, or TC. */
	for (size_t max = DNS_UDP_PLAIN; max > 40; max--) {
		assert_int_equal(dns_answer_pass(&q, dst, a.len, any, NULL, second, max, &again),
				 0);
		assert_true(again.len <= max);
		assert_true(again.truncated == (max < a.len));
	}
}

/* A long answer: so many addresses are told, and the rest is left out. */
static void test_addresses(void **state)
{
	static char answer[12 + 21 + 300 * 16] = "\x12\x34\x81\x80\0\1\1\x2c\0\0\0\0" NAME "\0\1\0\1";
	struct dns_question q;
	struct dns_answer a;

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q NAME "\0\1\0\1"), &q), 0);
	for (int i = 0; i < 300; i++)
		memcpy(answer + 12 + 21 + i * 16, "\xc0\x0c\0\1\0\1\0\0\0\5\0\4\1\2\3\4", 16);
	assert_int_equal(pass(&q, answer, sizeof(answer), &a), 0);
	assert_int_equal(a.kept, DNS_ADDRESSES_MAX);
}

static void test_reverse(void **state)
{
	static const struct { const char *wire, *addr; uint8_t bits; bool closed; } cases[] = {
		{ "\1" "1\1" "0\3" "168\3" "192\7in-addr\4arpa", "192.168.0.1", 32, true },
		{ "\1" "1\1" "1\1" "1\1" "1\7in-addr\4arpa", "1.1.1.1", 32, false },
		{ "\2" "10\7IN-addr\4ARPA", "10.0.0.0", 8, true },
		{ "\1" "1\1" "d\1" "f\3ip6\4arpa", "fd10::", 12, true },
		{ "\3" "256\7in-addr\4arpa", NULL, 0, false },
		{ "\1" "a\7in-addr\4arpa", NULL, 0, false },
		/* RFC 2317: of 10.1.2.0/24. */
		{ "\1" "5\4" "0-25\1" "2\1" "1\2" "10\7in-addr\4arpa", "10.1.2.0", 24, true },
		{ "\1" "x\1" "4\1" "3\1" "2\1" "1\7in-addr\4arpa", "1.2.3.4", 32, false },
		{ "\3www\7example\3com", NULL, 0, false },
		/* Public nets, whose first addresses are in the floor. */
		{ "\7in-addr\4arpa", "0.0.0.0", 0, false },
		{ "\3ip6\4arpa", "::", 0, false },
		{ "\3" "192\7in-addr\4arpa", "192.0.0.0", 8, false },
		{ "\1" "0\3" "192\7in-addr\4arpa", "192.0.0.0", 16, false },
		{ "\1" "0\1" "0\3" "192\7in-addr\4arpa", "192.0.0.0", 24, true },
		{ "\1" "1\1" "0\1" "0\1" "2\3ip6\4arpa", "2001::", 16, false },
		{ "\1" "0\1" "0\1" "1\1" "0\1" "0\1" "2\3ip6\4arpa", "2001::", 24, true },
		/* Given out to nobody; the net of NAT64; 6to4 of 10/8 and of 11/8. */
		{ "\1" "e\1" "f\3ip6\4arpa", "fe00::", 8, true },
		{ "\1" "0\1" "0\3ip6\4arpa", "::", 8, false },
		{ "\1" "a\1" "0\1" "2\1" "0\1" "0\1" "2\3ip6\4arpa", "2002:a00::", 24, true },
		{ "\1" "b\1" "0\1" "2\1" "0\1" "0\1" "2\3ip6\4arpa", "2002:b00::", 24, false },
		{ "\1" "2\1" "0\1" "0\1" "2\3ip6\4arpa", "2002::", 16, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct dns_name n = { .len = (uint8_t)(strlen(cases[i].wire) + 1) };
		struct floor_range r;
		struct addr want;

		memcpy(n.wire, cases[i].wire, n.len);
		if (dns_name_reverse(&n, &r) != (cases[i].addr != NULL))
			fail_msg("case %zu", i);
		if (dns_name_closed(&n) != cases[i].closed)
			fail_msg("case %zu: closed or not", i);
		if (!cases[i].addr)
			continue;
		want = addr(cases[i].addr);
		assert_true(addr_eq(&r.a, &want));
		assert_int_equal(r.bits, cases[i].bits);
	}
}

/* A name of the guest's choice that leads, by a CNAME, to the name of a private address. */
static void test_reverse_by_alias(void **state)
{
#define PTR_Q "\1x\4test\0\0\x0c\0\1"
#define PTR_CHAIN(octet) "\xc0\x0c\0\5\0\1\0\0\0\5\0\x17" "\1" "4\1" "3\1" "2" octet \
	"\7in-addr\4arpa\0" "\xc0\x24\0\x0c\0\1\0\0\0\5\0\6\4host\0"
	struct dns_question q;
	struct dns_answer a;

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q PTR_Q), &q), 0);
	assert_int_equal(pass(&q, TEXT_OF("\x12\x34\x81\x80\0\1\0\2\0\0\0\0" PTR_Q
					     PTR_CHAIN("\2" "11")), &a), 0);
	assert_true(a.kept == 1 && a.removed == 0);
	assert_int_equal(pass(&q, TEXT_OF("\x12\x34\x81\x80\0\1\0\2\0\0\0\0" PTR_Q
					     PTR_CHAIN("\2" "10")), &a), 0);
	assert_true(a.kept == 0 && a.removed == 1);
}

/* Nor does a "no" tell who serves such names. */
static void test_reverse_negative(void **state)
{
#define SOA_OF(octet) octet "\7in-addr\4arpa\0" "\0\6\0\1\0\0\0\5\0\x1a" "\1m\0" "\1r\0" \
	"\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1"
#define NXDOMAIN "\x12\x34\x81\x83\0\1\0\0\0\1\0\0" PTR_Q
	uint8_t dst[DNS_UDP_PLAIN];
	struct dns_question q;
	struct dns_answer a;

	assert_int_equal(dns_question_read(MESSAGE(HEAD_Q PTR_Q), &q), 0);
	assert_int_equal(dns_answer_pass(&q, MESSAGE(NXDOMAIN SOA_OF("\2" "11")), any, NULL, dst,
					 sizeof(dst), &a), 0);
	assert_int_equal(dst[9], 1);
	assert_int_equal(dns_answer_pass(&q, MESSAGE(NXDOMAIN SOA_OF("\2" "10")), any, NULL, dst,
					 sizeof(dst), &a), 0);
	assert_int_equal(dst[9], 0);
	assert_int_equal(a.rcode, DNS_NXDOMAIN);
	/* A zone of public addresses, for how long there is no such name. */
	assert_int_equal(dns_answer_pass(&q, MESSAGE(NXDOMAIN SOA_OF("")), any, NULL, dst,
					 sizeof(dst), &a), 0);
	assert_int_equal(dst[9], 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_floor),	 cmocka_unit_test(test_floor_allow), cmocka_unit_test(test_floor_deny),
		cmocka_unit_test(test_bucket),	 cmocka_unit_test(test_limits),
		cmocka_unit_test(test_log),	 cmocka_unit_test(test_question),
		cmocka_unit_test(test_answer),	 cmocka_unit_test(test_compression),
		cmocka_unit_test(test_reverse),	 cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_reverse_by_alias), cmocka_unit_test(test_reverse_negative),
	};

	return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
