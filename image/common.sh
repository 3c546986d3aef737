# Sourced by kernel.sh, initramfs.sh and base.sh: messages, the cache, work folders that vanish.

set -euo pipefail
export LC_ALL=C
umask 022
unset CDPATH

CACHE=${SPACE_CACHE:-/var/cache/space}
ARGUMENTS=("$@")
PROGRAM=${0##*/}
PROGRAM=${PROGRAM%.sh}

# The path of a finished thing is the only output on stdout; all else goes to stderr.
say() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

die() {
	printf '%s: %s\n' "$PROGRAM" "$*" >&2
	exit 1
}

need_programs() {
	local name
	for name in "$@"; do
		command -v "$name" >/dev/null || die "the program '$name' is missing; run ./setup.sh first"
	done
}

WORK=
drop_work() {
	[ -z "$WORK" ] || rm -rf --one-file-system "$WORK"
}

# Makes $WORK, a folder in the given one (so that a rename is atomic), removed at the exit.
# What a killed run left there is removed first: a lock tells whether its owner still lives. Two runs for the
# same folder do the work once: the second waits, then looks again.
make_work() {
	local parent=$1 old
	mkdir -p "$parent" || die "cannot make the cache folder $parent"
	exec {BUILD_LOCK}>"$parent/.lock"
	if ! flock -n "$BUILD_LOCK"; then
		say "another run is at it; waiting for what it makes"
		flock "$BUILD_LOCK"
		exec {BUILD_LOCK}>&-
		exec "$0" "${ARGUMENTS[@]}"
	fi
	for old in "$parent"/.work.*; do
		[ -d "$old" ] || continue
		flock -n "$old" rm -rf --one-file-system "$old" || true
	done
	WORK=$(mktemp -d "$parent/.work.XXXXXX") || die "cannot write in the cache folder $parent"
	chmod 0755 "$WORK"
	exec {WORK_LOCK}<"$WORK"
	flock -n "$WORK_LOCK"
	trap drop_work EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
}

# need_space FOLDER MIB: refuses before anything is begun, rather than in the middle.
need_space() {
	local free
	free=$(df -P -B1M "$1" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge "$2" ] || die "no space: $1 has $free MiB free and $2 MiB are needed" \
		"(make space, or name another folder in SPACE_CACHE)"
}

# publish FOLDER TARGET: moves a finished folder to its place. Another run may have been faster.
publish() {
	sync -f "$1"
	if ! mv -T "$1" "$2" 2>/dev/null; then
		[ -d "$2" ] || die "cannot move $1 to $2"
	fi
}
