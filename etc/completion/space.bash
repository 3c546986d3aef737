# Completion of space(1) for bash.

_space_sandboxes() {
	space ls --all --json --quiet 2>/dev/null | sed -n 's/.*"id": "\([a-z0-9]*\)".*/\1/p'
}

_space() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]:-}
	local commands='up down key env create ls stop start kill exec shell ps cp logs version'

	if [ "$COMP_CWORD" = 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$cur")
		return
	fi
	case "$prev" in
	--state-dir | --run-dir | --cache-dir | --lib-dir)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		return
		;;
	esac
	case "$command" in
	up | down)
		mapfile -t COMPREPLY < <(compgen -W '--detach --size --port --instance --state-dir --run-dir --cache-dir --lib-dir --service-uid --uid-base --max-sandboxes --no-demo --help' -- "$cur")
		;;
	key)
		mapfile -t COMPREPLY < <(compgen -W 'new ls revoke rotate reset --tenant --name --instance --json --help' -- "$cur")
		;;
	create)
		mapfile -t COMPREPLY < <(compgen -W '--template --timeout --env --meta --json --quiet --help' -- "$cur")
		;;
	ls)
		mapfile -t COMPREPLY < <(compgen -W '--all --json --quiet --help' -- "$cur")
		;;
	stop | start | kill | exec | shell | ps | logs)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W '-i -t -u -w -e --json --quiet --help' -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -W "$(_space_sandboxes)" -- "$cur")
		fi
		;;
	cp)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur"; compgen -S : -W "$(_space_sandboxes)" -- "$cur")
		;;
	esac
}
complete -F _space space
