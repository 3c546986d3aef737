/*
 * The configuration: the first byte chooses between a whole file, the object `network` of a good
 * one, and the text of a range, an address or a limit. What is accepted keeps every limit, and
 * comes back the same when it is written and read again; what is refused has a sentence and sets
 * nothing.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "daemon/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GOOD                                                                                       \
	"{\"instance\":\"a\",\"state_dir\":\"/s\",\"run_dir\":\"/r\",\"cache_dir\":\"/c\","         \
	"\"lib_dir\":\"/l\",\"vmm\":\"/c/v\",\"kernel\":\"/c/k\",\"initrd\":\"/c/i\","              \
	"\"base_image\":\"/c/b\",\"template_id\":\"base-0\",\"cgroup_root\":\"space-a\","           \
	"\"uid_base\":2000000000,\"users\":{\"space-api\":1,\"space-ctl\":2,\"space-node\":3,"      \
	"\"space-sbx\":4},\"worker\":\"0b8f9ab2-1d5c-4c57-9f6e-0f6d2b1c3a4e\",\"accel\":\"auto\","  \
	"\"api_listen\":\"tcp:127.0.0.1:1\",\"domain\":\"d\",\"max_sandboxes\":1,\"network\":%s}"

static void look_file(const char *text, size_t n)
{
	static const struct conf none;
	struct conf c = { 0 }, again = { 0 };
	struct err e = { 0 };
	autofree char *written = NULL;

	if (conf_parse(text, n, &c, &e) < 0) {
		assert(e.num < 0 && e.text[0] && memcmp(&c, &none, sizeof(c)) == 0);
		return;
	}
	assert(conf_check(&c, NULL) == 0);
	written = conf_text(&c);
	assert(conf_parse(written, strlen(written), &again, NULL) == 0);
	assert(memcmp(&c, &again, sizeof(c)) == 0);
}

static void look_text(const char *text)
{
	static int (*const forms[])(char[CONF_NET_TEXT_MAX], const char *) = {
		conf_cidr, conf_ip_address, conf_limit
	};
	char form[CONF_NET_TEXT_MAX], again[CONF_NET_TEXT_MAX];
	int taken = 0;

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		if (forms[i](form, text) < 0)
			continue;
		taken++;
		assert(forms[i](again, form) == 0 && str_eq(form, again));
	}
	assert(taken < 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = NULL, *whole = NULL;

	if (size < 1)
		return 0;
	text = x_strndup((const char *)data + 1, size - 1);
	switch (data[0] % 3) {
	case 0:
		look_file((const char *)data + 1, size - 1);
		break;
	case 1:
		whole = x_asprintf(GOOD, text);
		look_file(whole, strlen(whole));
		break;
	default:
		look_text(text);
		break;
	}
	return 0;
}
