#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "ipc/ipc.h"
#include "ipc/msg.h"
#include "ipc/nm_ops.h"
#include "ipc/sbx_ops.h"

struct all {
	char s[8], so[8];
	uint64_t u, uo;
	int64_t i;
	bool b, bo;
	json_t *j, *jo;
};

static const struct ipc_field all_fields[] = {
	IPC_F_STR(struct all, s),
	IPC_F_STR_OPT(struct all, so),
	IPC_F_U64(struct all, u, 100),
	IPC_F_U64_OPT(struct all, uo, 0),
	IPC_F_I64(struct all, i),
	IPC_F_BOOL(struct all, b),
	IPC_F_BOOL_OPT(struct all, bo),
	IPC_F_JSON(struct all, j),
	IPC_F_JSON_OPT(struct all, jo),
	IPC_F_END,
};

static int decode(const char *text, struct all *ret)
{
	json_t *v = ipc_parse_json(text, strlen(text), IPC_DEPTH_MAX, NULL);
	struct err e = { 0 };
	int r;

	assert_non_null(v);
	memset(ret, 0xff, sizeof(*ret));
	r = ipc_decode(all_fields, v, ret, sizeof(*ret), &e);
	json_decref(v);
	if (r < 0)
		assert_int_equal(e.num, r);
	return r;
}

static void test_round_trip(void **st)
{
	struct all a = { .s = "1234567",
			 .so = "\xc3\xa4",
			 .u = 100,
			 .uo = UINT64_C(1) << 53,
			 .i = -5,
			 .b = true,
			 .bo = true },
		   b;
	autofree char *text = NULL;
	json_t *v;

	a.j = json_pack("{s:[i]}", "x", 1);
	a.jo = json_array();
	v = ipc_encode(all_fields, &a);
	assert_non_null(v);
	text = json_dumps(v, JSON_COMPACT);
	json_decref(v);
	assert_int_equal(decode(text, &b), 0);
	assert_string_equal(a.s, b.s);
	assert_string_equal(a.so, b.so);
	assert_true(a.u == b.u && a.uo == b.uo && a.i == b.i && a.b == b.b && a.bo == b.bo);
	assert_true(json_equal(a.j, b.j) && json_equal(a.jo, b.jo));
	ipc_done(all_fields, &a);
	ipc_done(all_fields, &b);
	assert_null(b.j);
}

static void test_optional(void **st)
{
	struct all a;

	assert_int_equal(decode("{\"s\":\"\",\"u\":0,\"i\":0,\"b\":false,\"j\":null}", &a), 0);
	assert_true(a.so[0] == 0 && a.uo == 0 && !a.bo && !a.jo);
	json_t *v = ipc_encode(all_fields, &a);
	assert_int_equal(json_object_size(v), 5);
	json_decref(v);
	ipc_done(all_fields, &a);
}

static void test_decode_refuses(void **st)
{
#define REST ",\"i\":0,\"b\":false,\"j\":{}"
	static const char *const bad[] = {
		"[]",
		"{}",
		"{\"s\":\"\",\"u\":0,\"i\":0,\"b\":false}",
		"{\"s\":\"\",\"u\":0" REST ",\"more\":1}",
		"{\"s\":\"12345678\",\"u\":0" REST "}",
		"{\"s\":1,\"u\":0" REST "}",
		"{\"s\":null,\"u\":0" REST "}",
		"{\"s\":\"\",\"u\":101" REST "}",
		"{\"s\":\"\",\"u\":-1" REST "}",
		"{\"s\":\"\",\"u\":1.0" REST "}",
		"{\"s\":\"\",\"u\":\"1\"" REST "}",
		"{\"s\":\"\",\"u\":true" REST "}",
		"{\"s\":\"\",\"u\":0,\"i\":1.5,\"b\":false,\"j\":{}}",
		"{\"s\":\"\",\"u\":0,\"i\":0,\"b\":0,\"j\":{}}",
		"{\"s\":\"\",\"u\":0" REST ",\"so\":null}",
		"{\"s\":\"\",\"u\":0" REST ",\"bo\":\"yes\"}",
	};
	struct all a;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(decode(bad[i], &a), -EBADMSG);
		assert_true(!a.j && !a.jo);              /* nothing is left to free */
	}
}

static void test_encode_refuses(void **st)
{
	struct all a = { .s = "", .j = json_object() };
	json_t *v = ipc_encode(all_fields, &a);

	assert_non_null(v);
	json_decref(v);
	a.u = 101;
	assert_null(ipc_encode(all_fields, &a));
	a.u = 0;
	a.uo = (UINT64_C(1) << 53) + 1;
	assert_null(ipc_encode(all_fields, &a));
	a.uo = 0;
	a.i = INT64_MIN;
	assert_null(ipc_encode(all_fields, &a));
	a.i = 0;
	memset(a.s, 'x', sizeof(a.s));           /* no NUL */
	assert_null(ipc_encode(all_fields, &a));
	str_copy(a.s, sizeof(a.s), "\xff");
	assert_null(ipc_encode(all_fields, &a));
	a.s[0] = '\0';
	json_decref(a.j);
	a.j = NULL;
	assert_null(ipc_encode(all_fields, &a));
}

static void test_fail_text(void **st)
{
	struct err cut = { .num = -ENOENT, .text = "cut \xc3" }, zero = { 0 };
	struct ipc_incoming m;
	autofree char *a = ipc_fail_text(7, &cut), *b = ipc_fail_text(8, &zero);

	assert_int_equal(ipc_incoming_parse(a, strlen(a), &m, NULL), 0);
	assert_true(m.failed && m.id == 7 && m.err.num == -ENOENT);
	assert_string_equal(m.err.code, "not-found");
	ipc_incoming_done(&m);
	assert_int_equal(ipc_incoming_parse(b, strlen(b), &m, NULL), 0);
	assert_int_equal(m.err.num, -EIO);
	ipc_incoming_done(&m);
}

static void test_incoming_refuses(void **st)
{
	static const char *const bad[] = {
		"",
		"[]",
		"{}",
		"{\"id\":1}",
		"{\"id\":1,\"r\":{},\"e\":{\"num\":-1,\"code\":\"\",\"text\":\"\"}}",
		"{\"r\":{}}",
		"{\"id\":-1,\"r\":{}}",
		"{\"id\":1,\"e\":{}}",
		"{\"id\":1,\"e\":{\"num\":0,\"code\":\"\",\"text\":\"\"}}",
		"{\"id\":1,\"e\":{\"num\":5,\"code\":\"\",\"text\":\"\"}}",
		"{\"id\":1,\"e\":{\"num\":-5000,\"code\":\"\",\"text\":\"\"}}",
		"{\"id\":1,\"e\":7}",
		"{\"ev\":\"\"}",
		"{\"ev\":7}",
		"{\"ev\":\"x\",\"id\":1}",
		"{\"ev\":\"x\",\"a\":{},\"r\":{}}",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct ipc_incoming m;

		assert_int_equal(ipc_incoming_parse(bad[i], strlen(bad[i]), &m, NULL), -EBADMSG);
		ipc_incoming_done(&m);
	}
}

/*
 * Of all tables: names are unique, fields lie inside their struct and do not overlap, descriptors
 * are within the limit.
 */
static void check_fields(const struct ipc_field *f, size_t size)
{
	for (; f && f->name; f++) {
		assert_true(f->size > 0 && f->off + f->size <= size);
		for (const struct ipc_field *g = f + 1; g->name; g++) {
			assert_string_not_equal(f->name, g->name);
			assert_true(f->off + f->size <= g->off || g->off + g->size <= f->off);
		}
	}
}

static void check_ops(const struct ipc_op *ops, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		assert_non_null(ops[i].name);
		assert_true(strlen(ops[i].name) < IPC_NAME_MAX);
		assert_int_equal(!ops[i].req, !ops[i].req_size);
		assert_int_equal(!ops[i].rep, !ops[i].rep_size);
		assert_true(ops[i].req_fds <= FD_PASS_MAX && ops[i].rep_fds <= FD_PASS_MAX);
		check_fields(ops[i].req, ops[i].req_size);
		check_fields(ops[i].rep, ops[i].rep_size);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(ops[i].name, ops[j].name);
	}
}

static void test_all_tables(void **st)
{
	check_ops(nm_ops, NM_OP_COUNT);
	check_ops(sbx_ops, SBX_OP_COUNT);
	check_ops(bridge_ops, BRIDGE_OP_COUNT);
	check_fields(nm_exited_fields, sizeof(struct nm_exited));
	check_fields(sbx_revoked_fields, sizeof(struct sbx_lease));
	check_fields(sbx_progress_fields, sizeof(struct sbx_progress));
	check_fields(bridge_lost_fields, sizeof(struct bridge_lost));
}

/* The biggest messages that the tables allow fit into a packet. */
static void test_biggest(void **st)
{
	static struct sbx_bundle b;
	struct err e = { 0 };
	struct sbx_lifecycle l = { .kind = "create" };
	autofree char *text = NULL, *spec = x_alloc(SBX_SPEC_MAX + 1), *text2 = NULL;

	memset(b.text, 'A', sizeof(b.text) - 1);
	text = ipc_request_text(&sbx_ops[SBX_BUNDLE], 1, "r", &b, &e);
	assert_non_null(text);
	memset(l.capability, 'A', sizeof(l.capability) - 1);
	memset(spec, 'x', SBX_SPEC_MAX - 20);
	l.spec = json_pack("{s:s}", "metadata", spec);
	text2 = ipc_request_text(&sbx_ops[SBX_LIFECYCLE], 1, "r", &l, &e);
	assert_non_null(text2);
	json_decref(l.spec);
	/* One that does not: */
	autofree char *huge = x_alloc(IPC_MSG_MAX + 1);
	memset(huge, 'x', IPC_MSG_MAX);
	l.spec = json_pack("{s:s}", "metadata", huge);
	assert_null(ipc_request_text(&sbx_ops[SBX_LIFECYCLE], 1, "r", &l, &e));
	assert_int_equal(e.num, -EMSGSIZE);
	json_decref(l.spec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_optional),
		cmocka_unit_test(test_decode_refuses),
		cmocka_unit_test(test_encode_refuses),
		cmocka_unit_test(test_fail_text),
		cmocka_unit_test(test_incoming_refuses),
		cmocka_unit_test(test_all_tables),
		cmocka_unit_test(test_biggest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
