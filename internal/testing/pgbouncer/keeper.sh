# Runs PgBouncer, the program $1, until the pipe at descriptor 3 closes: when its test says so, or has died.
umask 077
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
printf '%s\n' "$POOLER_USERS" >users.txt
printf '%s\n' "$POOLER_SETTINGS" >pgbouncer.ini
unset POOLER_USERS POOLER_SETTINGS
"$1" pgbouncer.ini 3<&- &
pooler=$!
{ read -r _; kill "$pooler"; } <&3 2>/dev/null &
wait "$pooler"
