# The keeper of one private Postgres server. It creates the server's folder, runs the server, and removes the folder when
# the server has ended. It stops the server when its standard input closes, which also happens when the program that
# started it is killed.
#
#   $1 the server's folder; $2 "keep" or "remove", for the folder at the end; $3 initdb; $4 "--no-sync" or empty;
#   $5 postgres; $6 the folder of a stopped server whose data to copy, or empty; $7 the superuser; the rest are the
#   server's arguments. The first line of the input is the superuser's password. If
#   descriptor 3 is open, it is the lock on the folder: the server inherits it, so that it is free only when no server
#   runs there.
folder=$1 afterwards=$2 initdb=$3 nosync=$4 postgres=$5 template=$6 superuser=$7
shift 7
umask 077
IFS= read -r password || exit 0
exec 4<&0 </dev/null

# Once the input has closed, the watcher sends the keeper SIGTERM ten times a second, and the keeper signals its child each
# time, since a signal to a process that is just starting can be lost. The signal becomes SIGQUIT after quit_after times,
# and SIGKILL after kill_after times.
child= first=TERM asked=0 quit_after=60 kill_after=60
ask() {
	[ -n "$child" ] || return 0
	if [ "$asked" -le "$quit_after" ]; then
		kill -s "$first" "$child"
	elif [ "$asked" -le "$kill_after" ]; then
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
	trap exit TERM # takes effect when its sleep has ended
	while kill -s TERM "$keeper" 2>/dev/null; do sleep 0.1; done
	# The keeper was killed, and its server must not outlive it. This watcher ignores SIGQUIT; the server does not.
	kill -s QUIT 0
	sleep 2
	kill -s KILL 0
) &

# run runs a command until it has ended, whether or not it was asked to, and returns its status.
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

# The data gets its final name when it is complete.
create() {
	[ ! -e "$folder/data" ] || return 0
	mkdir -p "$folder" && rm -rf "$folder/new" && printf '%s\n' "$password" >"$folder/password" || return
	printf '%s\n' "$superuser" >"$folder/superuser" || return
	if [ -n "$template" ]; then
		run cp -R "$template/data" "$folder/new" || return
	else
		run "$initdb" -D "$folder/new" -U "$superuser" --pwfile="$folder/password" --auth=scram-sha-256 \
			-E UTF8 --locale=C --no-instructions $nosync >/dev/null || return
	fi
	mv "$folder/new" "$folder/data"
}

serve() {
	# The lock proves that no server runs here. The process id that the last one left may belong to another process by
	# now, which Postgres would take for a server.
	rm -f "$folder/data/postmaster.pid"
	if [ "$afterwards" = keep ]; then first=INT quit_after=200 kill_after=300; else first=QUIT; fi
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
