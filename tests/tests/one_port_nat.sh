# A server behind a router that translates addresses, and forwards one port to it; and one outside.
# Usage: one_port_nat.sh ROPEWALK DIRECTORY
set -eu
program=$1
scripts=$(dirname "$0")
cd "$2"
. "$scripts/two_networks.sh"
# The inner network has no address that the outer one knows: it appears as the router.
iptables -P FORWARD DROP
iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A FORWARD -i in -j ACCEPT
iptables -A FORWARD -i out -p tcp -d 10.2.0.2 --dport 2811 -j ACCEPT
iptables -t nat -A POSTROUTING -o out -j MASQUERADE
iptables -t nat -A PREROUTING -i out -p tcp --dport 2811 -j DNAT --to-destination 10.2.0.2:2811
outside ip route del default
. "$scripts/two_servers.sh"
run() { "$@" > events 2> errors || { echo "$@" >&2; cat events errors >&2; exit 1; }; tail -n 1 events; }
inner=ftp://10.1.0.1:2811
outer=ftp://10.1.0.2:2812

# A client behind the router.
run inside timeout 100 "$program" cp --json -p 16 source $outer/up > /dev/null
cmp source outer/up
run inside timeout 100 "$program" cp --json -p 16 $outer/up down > /dev/null
cmp source down

# A server behind the router.
run outside timeout 100 "$program" cp --json -p 16 source $inner/upload > upload.event
cmp source inner/upload
run outside timeout 100 "$program" cp --json -p 16 $inner/upload download > /dev/null
cmp source download

# Between two servers, of which one is behind the router.
cp source outer/source
run outside timeout 100 "$program" cp --json -p 4 $outer/source $inner/into > /dev/null
cmp source inner/into
run outside timeout 100 "$program" cp --json -p 4 $inner/into $outer/from > /dev/null
cmp source outer/from

# A killed client, and the same command again.
nsenter --net=/proc/$outer_net/ns/net "$program" cp --json -p 4 --bandwidth 500KB/s source $inner/again > killed 2> errors & client=$!
until grep -q '"progress","bytes":[0-9]\{7\}' killed; do sleep 0.05; done
kill -KILL $client
wait $client || true
[ ! -e inner/again ]
run outside timeout 100 "$program" cp --json -p 4 source $inner/again > again.event
cmp source inner/again
