# Completion of space(1) for bash.

# What can stand for a sandbox: IDs and names. Only plain ones: compgen expands its words, "$(...)" in them too.
_space_sandboxes() {
	space ls --all 2>/dev/null | awk 'NR > 1 { print $1; if ($7 != "-") print $7 }' | grep -x '[A-Za-z0-9_.-]*'
}

_space_options() {
	case $1 in
	up | down) echo '--detach --size --port --instance --state-dir --run-dir --cache-dir --lib-dir --service-uid --uid-base --max-sandboxes --allow-origin --domain --tls-cert --tls-key --tls-port --listen --plain-http --net-allow --net-deny --nameserver --net-limit --no-demo' ;;
	key) echo '--tenant --name --instance --run-dir' ;;
	create) echo '-T --template --name --timeout --on-timeout --auto-resume --no-internet --private -e --env -l --label --meta' ;;
	ls) echo '-a --all -q --state -l --label --template -f --filter' ;;
	resume) echo '--timeout' ;;
	exec) echo '-i --interactive -t --tty -d --detach -u --user -w --workdir -e --env' ;;
	shell) echo '-u --user' ;;
	connect) echo '-u --user --timeout --no-shell' ;;
	cp) echo '-r -R --recursive -u --user' ;;
	logs) echo '-f --follow -n --tail' ;;
	metrics) echo '-w --watch --interval' ;;
	port-forward) echo '--address' ;;
	net) echo '-f --follow' ;;
	esac
	echo '--json --quiet --help'
}

_space() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]:-}
	local commands='up down key env create ls inspect pause resume stop start timeout kill exec shell connect ps cp logs metrics port-forward net version'

	# "SANDBOX:" is one word to us, whatever the shell takes for the end of a word.
	if declare -F _get_comp_words_by_ref >/dev/null; then
		_get_comp_words_by_ref -n : cur prev
	fi
	if [ "$COMP_CWORD" = 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W "$commands help --help --version" -- "$cur")
		return
	fi
	case "$prev" in
	--tls-cert | --tls-key)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	--state-dir | --run-dir | --cache-dir | --lib-dir)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		return
		;;
	--on-timeout)
		mapfile -t COMPREPLY < <(compgen -W 'kill pause' -- "$cur")
		return
		;;
	--state)
		mapfile -t COMPREPLY < <(compgen -W 'running paused stopped failed' -- "$cur")
		return
		;;
	esac
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_space_options "$command")" -- "$cur")
		return
	fi
	case "$command" in
	key)
		mapfile -t COMPREPLY < <(compgen -W 'new ls revoke rotate reset' -- "$cur")
		;;
	help)
		mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
		;;
	net)
		if [ "$COMP_CWORD" = 2 ]; then
			mapfile -t COMPREPLY < <(compgen -W 'log stats' -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -W "$(_space_sandboxes)" -- "$cur")
		fi
		;;
	inspect | pause | resume | stop | start | timeout | kill | exec | shell | connect | ps | logs | metrics | port-forward)
		mapfile -t COMPREPLY < <(compgen -W "$(_space_sandboxes)" -- "$cur")
		;;
	cp)
		compopt -o nospace
		mapfile -t COMPREPLY < <(compgen -f -- "$cur"; compgen -S : -W "$(_space_sandboxes)" -- "$cur")
		;;
	esac
}
complete -F _space space
