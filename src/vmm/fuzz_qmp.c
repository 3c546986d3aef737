/*
 * The bytes of a VMM as the driver hears them: opening, three commands, then events until the end.
 * A byte of value 1 in the input waits for the next command (qmp_peer.h).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "vmm/qmp_peer.h"
#include "vmm/vmm.h"

#define FUZZ_QMP_BYTES_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void listen_to(struct vmm *vm)
{
	enum vmm_run_state run;
	struct vmm_event ev;
	char *text = NULL;
	size_t n = 0;

	vmm_status(vm, &run, 50, NULL);
	if (vmm_console(vm, &text, &n, 50, NULL) == 0 && n > VMM_CONSOLE_BYTES)
		abort();
	free(text);
	vmm_load(vm, 0, 50, NULL);
	for (int i = 0; i < 4 && vmm_poll(vm, NULL) == 0; i++)
		;
	for (int i = 0; vmm_next_event(vm, &ev); i++) {
		if (i >= VMM_EV_KIND_COUNT || memchr(ev.detail, '\0', sizeof(ev.detail)) == NULL)
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vmm *vm = NULL;
	struct qmp_peer p;

	if (size > FUZZ_QMP_BYTES_MAX)
		return 0;
	if (vmm_open(&vmm_qemu, qmp_peer_start(&p, (const char *)data, size, false), 50, &vm,
		     NULL) == 0)
		listen_to(vm);
	vmm_close(vm);
	qmp_peer_end(&p);
	return 0;
}
