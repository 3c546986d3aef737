#!/bin/bash
# Packs the initramfs of the guest: the agent as /init and the modules that it loads.
#
#   initramfs.sh KERNELDIR AGENT OUT
#
# KERNELDIR is what kernel.sh printed, AGENT the static spaced-guest. The same input gives the same
# bytes (fixed times, owners and order), so that its digest can stand in a manifest. The kernel
# itself adds /dev/console to every initramfs.

. "${BASH_SOURCE[0]%/*}/common.sh"

main() {
	[ "$#" = 3 ] || die "usage: initramfs.sh KERNELDIR AGENT OUT"
	local kernel=$1 agent=$2 out=$3 name
	need_programs cpio gzip flock
	[ -f "$kernel/modules/order" ] || die "$kernel is no kernel folder of kernel.sh"
	[ -f "$agent" ] || die "there is no agent at $agent; build it first"
	make_work "$(dirname "$out")"
	mkdir -p "$WORK/tree/"{dev,proc,sys,run,root,modules}
	cp "$agent" "$WORK/tree/init"
	chmod 0755 "$WORK/tree/init"
	cp "$kernel/modules/order" "$WORK/tree/modules/"
	while read -r name; do
		cp "$kernel/modules/$name.ko" "$WORK/tree/modules/"
	done <"$kernel/modules/order"
	find "$WORK/tree" -exec touch -h -d @0 {} +
	(cd "$WORK/tree" && find . -mindepth 1 | sort |
		cpio --quiet -o -H newc -R 0:0 --reproducible) >"$WORK/cpio"
	gzip -9 -n <"$WORK/cpio" >"$WORK/cpio.gz"
	chmod 0644 "$WORK/cpio.gz"
	sync "$WORK/cpio.gz"
	mv -f "$WORK/cpio.gz" "$out"
}

main "$@"
