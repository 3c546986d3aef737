#!/bin/bash
# Collects the VMM: QEMU, the libraries that it loads and its firmware, as the tree that becomes the
# root of its jail. Two builds of QEMU cannot read each other's snapshots for certain, so the tree's
# digest stands in every manifest, and trees that snapshots need are kept.
#
#   vmm.sh        prints the folder $SPACE_CACHE/vmm/DIGEST (default /var/cache/space); makes it
#                 first where it is missing
#
# In it: qemu-system-x86_64, libraries at the paths where ld.so looks for them, fw/ with firmware, and
# empty files on which the jail mounts: mem, vmlinuz, initrd.gz.

. "${BASH_SOURCE[0]%/*}/common.sh"

QEMU='/usr/bin/qemu-system-x86_64'
FIRMWARE=(bios-microvm.bin linuxboot_dma.bin)
FIRMWARE_DIRS=(/usr/share/qemu /usr/share/seabios)
BIND_TARGETS=(mem vmlinuz initrd.gz)

# Every file of the tree as "SOURCE TARGET", sorted.
contents() {
	local name dir found
	printf '%s /%s\n' "$QEMU" "${QEMU##*/}"
	# Lines of ldd: "NAME => PATH (ADDRESS)" or "PATH (ADDRESS)"; the kernel's vdso has no path.
	ldd "$QEMU" | awk '$2 == "=>" && $3 ~ /^\// { print $3, $3 } $1 ~ /^\// { print $1, $1 }'
	for name in "${FIRMWARE[@]}"; do
		found=
		for dir in "${FIRMWARE_DIRS[@]}"; do
			if [ -f "$dir/$name" ] && [ -z "$found" ]; then
				found="$dir/$name"
			fi
		done
		[ -n "$found" ] || die "QEMU's firmware $name is missing; run ./setup.sh first"
		printf '%s /fw/%s\n' "$found" "$name"
	done
}

# One digest over targets and contents.
digest() {
	local source target
	while read -r source target; do
		printf '%s %s\n' "$(sha256sum <"$source")" "$target"
	done <<<"$1" | sha256sum | cut -c 1-64
}

# What the packages' files look like, to know without reading 60 MB whether anything has changed.
stamp() {
	local list=$1
	stat -L -c '%n %s %Y %i' $(awk '{ print $1 }' <<<"$list") | sha256sum | cut -c 1-32
}

build() {
	local list=$1 id=$2 out source target
	need_space "$CACHE/vmm" 200
	say "collecting QEMU and its libraries"
	out="$WORK/out"
	while read -r source target; do
		mkdir -p "$out${target%/*}"
		cp -L "$source" "$out$target"
		chmod 0444 "$out$target"
	done <<<"$list"
	chmod 0555 "$out/${QEMU##*/}" "$out"/lib64/*
	for target in "${BIND_TARGETS[@]}"; do
		mkdir -p "$(dirname "$out/$target")"
		: >"$out/$target"
	done
	publish "$out" "$CACHE/vmm/$id"
}

main() {
	[ "$#" = 0 ] || die "usage: vmm.sh"
	need_programs ldd sha256sum stat flock
	[ -x "$QEMU" ] || die "QEMU is missing; run ./setup.sh first"
	local list mark id known
	list=$(contents | sort -u)
	mark=$(stamp "$list")
	known="$CACHE/vmm/.stamp.$mark"
	if [ -f "$known" ] && id=$(cat "$known") && [ -x "$CACHE/vmm/$id/${QEMU##*/}" ]; then
		printf '%s\n' "$CACHE/vmm/$id"
		return
	fi
	make_work "$CACHE/vmm"
	id=$(digest "$list")
	[ -d "$CACHE/vmm/$id" ] || build "$list" "$id"
	printf '%s\n' "$id" >"$WORK/stamp"
	mv -f "$WORK/stamp" "$known"
	printf '%s\n' "$CACHE/vmm/$id"
}

main "$@"
