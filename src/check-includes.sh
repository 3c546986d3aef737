#!/bin/sh
# Who may include whom (ARCHITECTURE.md): each folder uses its own headers and those of the folders in its row. A program never
# includes another program; the exceptions are single headers, each with its reason. A folder without a row is an error.
#
#	src/check-includes.sh [SRC]
set -u
cd "${1:-$(dirname "$0")}" || exit 2

libraries='base json mux loop http ipc identity routes state store ops daemon vmm'

row() {
	case $1 in
	base)		echo ;;
	json)		echo base ;;
	mux)		echo base ;;
	loop)		echo base ;;
	http)		echo base loop ;;
	identity)	echo base json ;;
	ipc)		echo base json loop identity ;;
	routes)		echo base identity ;;
	state)		echo base ;;
	store)		echo base state identity ;;
	daemon)		echo base loop ;;
	vmm)		echo base json loop ipc ;;
	ops)		echo base json loop http ipc identity routes state store daemon ;;
	# static, in the guest: without threads, seccomp, database
	spaced-guest)	echo base json mux http ;;
	# static, PID 1 of the jail
	jail-init)	echo base ;;
	spaced-host)	echo base json mux loop ipc identity daemon ;;
	# static; daemon/ in its list of system calls and its tests alone
	netgtw)		echo base json loop ipc identity daemon ;;
	# root: no HTTP, no database
	node-manager)	echo base json loop ipc identity daemon vmm ;;
	sbx-manager)	echo base json mux loop http ipc identity state daemon vmm ;;
	# holds no key and no database
	node-api)	echo base json loop http ipc identity routes daemon ;;
	api|control)	echo base json loop http identity routes state store ops daemon ;;
	cli)		echo "$libraries" ;;
	*)		return 1 ;;
	esac
}

# FILE'S FOLDER, HEADER, reason
exception() {
	case $1:$2 in
	# the list stands with the program whose calls it names; node-manager loads it before it execs that program
	node-manager:spaced-host/syscalls.h|node-manager:netgtw/syscalls.h) return 0 ;;
	# what the two say to each other
	node-manager:jail-init/jail_init.h) return 0 ;;
	esac
	return 1
}

bad=0 seen=0
for dir in */; do
	dir=${dir%/}
	ls "$dir"/*.[ch] >/dev/null 2>&1 || continue
	if ! allowed=$(row "$dir"); then
		echo "$dir/: has no row in check-includes.sh"
		bad=1
		continue
	fi
	# file:line:header, one a line
	found=$(grep -nH '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$dir"/*.[ch] | sed 's/#[^"]*"\([^"]*\)".*/\1/; s/[[:space:]]//g')
	for item in $found; do
		header=${item##*:}
		where=${item%:*}
		to=${header%%/*}
		seen=$((seen + 1))
		case $header in
		*/*) ;;
		*) echo "$where: \"$header\" must be named with its folder"; bad=1; continue ;;
		esac
		[ -f "$header" ] || { echo "$where: \"$header\" does not exist"; bad=1; continue; }
		case " $dir $allowed " in
		*" $to "*) continue ;;
		esac
		exception "$dir" "$header" && continue
		echo "$where: $dir may not include \"$header\""
		bad=1
	done
done
[ "$seen" -gt 0 ] || { echo "no includes found: wrong folder?"; exit 2; }
exit $bad
