/* The argument vector against the one that was tried, word for word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "vmm/qemu.h"

#define HEAD(accel, mem)                                                                                    \
	"qemu-system-x86_64 -machine microvm,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on,pit=off," \
	"pic=off,rtc=on " accel " -m 512 -smp 1 -nodefaults -no-user-config -display none "                 \
	"-no-reboot -global migration.send-configuration=off -L /fw "                                       \
	"-object memory-backend-file,id=m0,size=512M,mem-path=/mem," mem                                    \
	" -machine memory-backend=m0 "                                                                      \
	"-add-fd fd=6,set=1 -blockdev driver=file,node-name=f0,filename=/dev/fdset/1,auto-read-only=off,"   \
	"locking=off,discard=unmap,cache.direct=off,cache.no-flush=off "                                    \
	"-blockdev driver=raw,node-name=d0,file=f0,discard=unmap "                                          \
	"-device virtio-blk-device,drive=d0,werror=stop,rerror=report,write-cache=on "                      \
	"-device virtio-serial-device -chardev socket,id=ch0,fd=4,server=on,wait=off "                      \
	"-device virtserialport,chardev=ch0,name=space.0 "                                                  \
	"-netdev tap,id=n0,fd=5 -device virtio-net-device,netdev=n0,mac=02:00:00:00:00:02 "                 \
	"-object rng-builtin,id=r0 -device virtio-rng-device,rng=r0 "                                       \
	"-chardev ringbuf,id=con,size=65536 -serial chardev:con "                                           \
	"-chardev socket,id=qmp,fd=3,server=on,wait=off -mon chardev=qmp,mode=control "                     \
	"-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny "                 \
	"-device pvpanic -no-shutdown -action panic=pause "
#define CMDLINE \
	"console=ttyS0 quiet reboot=t panic=-1 tsc_early_khz=2596142 lpj=5192284 mitigations=off " \
	"random.trust_cpu=on tsc=reliable nowatchdog"

static char *joined(const struct vmm_spec *s)
{
	struct vmm_argv a;
	struct buf b;
	char *text;

	assert_int_equal(vmm_argv(s, &a, NULL), 0);
	assert_null(a.argv[a.n]);
	buf_init(&b, 8192);
	for (size_t i = 0; i < a.n; i++)
		buf_putf(&b, "%s%s", i ? " " : "", a.argv[i]);
	vmm_argv_done(&a);
	text = buf_take_str(&b);
	buf_done(&b);
	return text;
}

static void test_modes(void **state)
{
	static const struct {
		enum vmm_mode mode;
		enum vmm_accel accel;
		const char *want;
	} cases[] = {
		{ VMM_TEMPLATE, VMM_ACCEL_TCG,
		  HEAD("-accel tcg,tb-size=64 -cpu max,erms=off,fsrm=off",
		       "share=on") "-kernel /vmlinuz -initrd /initrd.gz -append " CMDLINE },
		{ VMM_BOOT, VMM_ACCEL_KVM,
		  HEAD("-add-fd fd=7,set=2 -accel kvm,device=/dev/fdset/2 -cpu max",
		       "share=off,readonly=on,rom=off") "-kernel /vmlinuz -initrd /initrd.gz -append " CMDLINE },
		{ VMM_RESTORE, VMM_ACCEL_TCG,
		  HEAD("-accel tcg,tb-size=64 -cpu max,erms=off,fsrm=off",
		       "share=off,readonly=on,rom=off") "-S -incoming defer" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct vmm_spec s = { .mode = cases[i].mode,
				      .accel = cases[i].accel,
				      .memory_mib = 512,
				      .vcpus = 1,
				      .tsc_khz = 2596142 };
		char *text = joined(&s);

		assert_string_equal(text, cases[i].want);
		free(text);
	}
}

static void test_limits(void **state)
{
	static const struct vmm_spec bad[] = {
		{ .memory_mib = 127, .vcpus = 1, .tsc_khz = 2000000 },
		{ .memory_mib = 16385, .vcpus = 1, .tsc_khz = 2000000 },
		{ .memory_mib = 512, .vcpus = 0, .tsc_khz = 2000000 },
		{ .memory_mib = 512, .vcpus = 9, .tsc_khz = 2000000 },
		{ .memory_mib = 512, .vcpus = 1, .tsc_khz = 0 },
		{ .memory_mib = 512, .vcpus = 1, .tsc_khz = 2000000, .mode = VMM_MODE_COUNT },
		{ .memory_mib = 512, .vcpus = 1, .tsc_khz = 2000000, .accel = VMM_ACCEL_COUNT },
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct vmm_argv a = { 0 };
		struct err e = { 0 };

		assert_int_equal(vmm_argv(&bad[i], &a, &e), -EINVAL);
		assert_true(e.text[0] != '\0');
		assert_int_equal(a.n, 0);
	}
}

static void test_names(void **state)
{
	enum vmm_accel accel;
	enum vmm_mode mode;

	for (unsigned i = 0; i < VMM_ACCEL_COUNT; i++) {
		assert_int_equal(vmm_accel_of(vmm_accel_names[i], &accel), 0);
		assert_int_equal(accel, i);
	}
	for (unsigned i = 0; i < VMM_MODE_COUNT; i++) {
		assert_int_equal(vmm_mode_of(vmm_mode_names[i], &mode), 0);
		assert_int_equal(mode, i);
	}
	for (unsigned i = 0; i < VMM_RUN_COUNT; i++)
		assert_non_null(vmm_run_names[i]);
	for (unsigned i = 0; i < VMM_EV_KIND_COUNT; i++)
		assert_non_null(vmm_event_names[i]);
	assert_int_equal(vmm_accel_of("xen", &accel), -EINVAL);
	assert_int_equal(vmm_accel_of(NULL, &accel), -EINVAL);
	assert_ptr_equal(vmm_driver_find("qemu"), &vmm_qemu);
	assert_null(vmm_driver_find("firecracker"));
}

/* The rate is in a sane range and stays the same; the comparison has its tolerance both ways. */
static void test_tsc(void **state)
{
	uint32_t a, b;

	assert_int_equal(vmm_tsc_khz(&a), 0);
	assert_in_range(a, 100000, 10000000);
	assert_int_equal(vmm_tsc_khz(&b), 0);
	assert_int_equal(a, b);
	assert_true(vmm_tsc_same(2596142, 2596200));
	assert_false(vmm_tsc_same(2596142, 2597142));
	assert_false(vmm_tsc_same(2597142, 2596142));
	assert_true(vmm_tsc_same(a, a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_tsc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
