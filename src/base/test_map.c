#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"

static void test_put_get(void **state)
{
	struct map *m = map_new(1000);
	char key[16];

	for (uintptr_t i = 1; i <= 1000; i++) {
		str_format(key, sizeof(key), "k%d", (int)i);
		assert_int_equal(map_put(m, key, (void *)i), 0);
	}
	assert_int_equal(map_put(m, "one more", &key), -ENOSPC);
	assert_int_equal(map_put(m, "k5", &key), 0);
	assert_ptr_equal(map_get(m, "k5"), &key);
	assert_int_equal(map_len(m), 1000);
	assert_null(map_get(m, "k1001"));
	for (uintptr_t i = 6; i <= 1000; i++) {
		str_format(key, sizeof(key), "k%d", (int)i);
		assert_ptr_equal(map_get(m, key), (void *)i);
		assert_ptr_equal(map_del(m, key), (void *)i);
		assert_null(map_del(m, key));
	}
	assert_int_equal(map_len(m), 5);
	map_free(m);
	map_free(NULL);
}

struct walk {
	struct map *m;
	uintptr_t sum;
};

static int drop_odd(const char *key, void *value, void *arg)
{
	struct walk *w = arg;

	w->sum += (uintptr_t)value;
	if ((uintptr_t)value % 2)
		assert_ptr_equal(map_del(w->m, key), value);
	return 0;
}

static int stop(const char *key, void *value, void *arg)
{
	return 42;
}

static void test_each(void **state)
{
	struct walk w = { .m = map_new(100) };
	char key[16];

	for (uintptr_t i = 1; i <= 100; i++) {
		str_format(key, sizeof(key), "%d", (int)i);
		map_put(w.m, key, (void *)i);
	}
	assert_int_equal(map_each(w.m, drop_odd, &w), 0);
	assert_int_equal(w.sum, 5050);
	assert_int_equal(map_len(w.m), 50);
	assert_int_equal(map_each(w.m, stop, NULL), 42);
	map_free(w.m);
}

struct item {
	struct list node;
	int n;
};

static void test_list(void **state)
{
	struct list head;
	int sum = 0, seen = 0;

	list_init(&head);
	assert_true(list_empty(&head));
	for (int i = 0; i < 10; i++) {
		struct item *it = x_alloc(sizeof(*it));

		it->n = i;
		list_add_tail(&head, &it->node);
	}
	LIST_FOR(&head, it, struct item, node)
		assert_int_equal(it->n, seen++);
	LIST_FOR_SAFE(&head, it, struct item, node) {
		if (it->n % 2)
			continue;
		list_del(&it->node);
		list_del(&it->node);
		free(it);
	}
	LIST_FOR_SAFE(&head, it, struct item, node) {
		sum += it->n;
		list_del(&it->node);
		free(it);
	}
	assert_int_equal(sum, 25);
	assert_true(list_empty(&head));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put_get),
		cmocka_unit_test(test_each),
		cmocka_unit_test(test_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
