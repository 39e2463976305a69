# The keeper of one private Postgres server. It creates the server's folder, runs the server, and removes the folder
# when the server has ended. It stops the server when its standard input closes, which also happens when the program at
# the other end was killed.
#
#   $1 the server's folder; $2 "keep" or "remove" it at the end; $3 initdb; $4 "--no-sync" or empty; $5 postgres;
#   the rest are the server's arguments. The first line of the input is the superuser's password. Descriptor 3, when
#   open, is the lock on the folder: the server inherits it, so that the lock is free only when no server runs there.
folder=$1 afterwards=$2 initdb=$3 nosync=$4 postgres=$5
shift 5
umask 077
IFS= read -r password || exit 0
exec 4<&0 </dev/null

# Once the input has closed, the watcher asks the child to end, ten times a second: a signal that comes while a process is
# just starting is lost. After so many times it is told, and then killed.
child= polite=TERM asked=0 told=60 killed=60
ask() {
	[ -n "$child" ] || return 0
	if [ "$asked" -le "$told" ]; then
		kill -s "$polite" "$child"
	elif [ "$asked" -le "$killed" ]; then
		kill -s QUIT "$child"
	else
		kill -s KILL "$child"
	fi 2>/dev/null
}
trap 'asked=$((asked + 1)); ask' TERM
keeper=$$
(
	trap - TERM
	read -r _ <&4
	trap exit TERM # which lets it see its sleep end
	while kill -s TERM "$keeper" 2>/dev/null; do sleep 0.1; done
	# The keeper itself was killed: its server must not outlive it. This watcher ignores SIGQUIT, the server obeys.
	kill -s QUIT 0
	sleep 2
	kill -s KILL 0
) &

# run runs a command until it has ended, also when it was asked to, and returns its status.
run() {
	[ "$asked" -eq 0 ] || return 1
	"$@" 4<&- &
	child=$!
	[ "$asked" -eq 0 ] || ask
	while :; do
		wait "$child"
		status=$?
		kill -0 "$child" 2>/dev/null || break
	done
	child=
	return "$status"
}

# The data get their final name when they are complete.
create() {
	[ ! -e "$folder/data" ] || return 0
	mkdir -p "$folder" && rm -rf "$folder/new" && printf '%s\n' "$password" >"$folder/password" || return
	run "$initdb" -D "$folder/new" -U postgres --pwfile="$folder/password" --auth=scram-sha-256 \
		-E UTF8 --locale=C --no-instructions $nosync >/dev/null || return
	mv "$folder/new" "$folder/data"
}

serve() {
	# Whoever holds the lock knows that no server runs here. What the last one left must not be mistaken for one, now
	# that its process id may belong to somebody else.
	rm -f "$folder/data/postmaster.pid"
	if [ "$afterwards" = keep ]; then polite=INT told=200 killed=300; else polite=QUIT; fi
	run "$postgres" -D "$folder/data" "$@"
}

create && serve "$@"
status=$?

trap '' TERM
kill -s TERM 0 # the watcher
wait
if [ "$afterwards" = remove ]; then
	tries=0
	until rm -rf "$folder" || [ "$tries" -ge 50 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
fi
exit "$status"
