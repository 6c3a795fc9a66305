# Servers in two networks, of which only TCP port 2811 of the inner one can be reached.
# Usage: firewall.sh ROPEWALK DIRECTORY
set -eu
program=$1
scripts=$(dirname "$0")
cd "$2"
passes=tcp:2811
. "$scripts/two_networks.sh"
. "$scripts/two_servers.sh"
copy() { outside timeout 100 "$program" cp --json "$@" > events 2> errors || { cat events errors; exit 1; }; tail -n 1 events; }
inner=ftp://10.2.0.2:2811
outer=ftp://10.1.0.2:2812
copy -p 16 source $inner/upload > upload.event
cmp source inner/upload
# The next copy knows that, and says so.
copy -p 16 $inner/upload download > download.event
cat events errors | grep -q "less than a day ago"
cmp source download
# Without its memory, it tries the announced port again.
find "$XDG_STATE_HOME" -name paths.json -exec rm {} +
copy -r tree/ $inner/tree/ > tree.event
cat events errors | grep -q "cannot be reached"
diff -r tree inner/tree
cp source outer/source
copy -p 4 $outer/source $inner/into > into.event
cmp source inner/into
copy -p 4 $inner/into $outer/from > from.event
cmp source outer/from
