# Two networks, and between them a router that lets only TCP port 2811 of the inner one through.
# Usage: firewall.sh ROPEWALK DIRECTORY
set -eu
program=$1
cd "$2"
unshare --net sleep 300 & outer_net=$!
unshare --net sleep 300 & inner_net=$!
trap 'kill $(jobs -p) 2>/dev/null' EXIT
for one in $outer_net $inner_net; do
    until [ "$(readlink /proc/$one/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
done
outside() { nsenter --net=/proc/$outer_net/ns/net "$@"; }
inside() { nsenter --net=/proc/$inner_net/ns/net "$@"; }
ip link add out type veth peer name wire netns $outer_net
ip link add in type veth peer name wire netns $inner_net
ip addr add 10.1.0.1/24 dev out
ip addr add 10.2.0.1/24 dev in
ip link set out up
ip link set in up
echo 1 > /proc/sys/net/ipv4/ip_forward
for side in "outside 1" "inside 2"; do
    set -- $side
    $1 ip addr add 10.$2.0.2/24 dev wire
    $1 ip link set lo up
    $1 ip link set wire up
    $1 ip route add default via 10.$2.0.1
done
ip rule add priority 10 iif out ipproto tcp dport 2811 lookup main
ip rule add priority 10 iif in ipproto tcp sport 2811 lookup main
ip rule add priority 20 iif out blackhole
ip rule add priority 20 iif in blackhole
settings="[anonymous]
write = true
third_party = true
[identity]
mapped = false
[data]
connect_timeout = 3"
mkdir inner outer
echo "$settings" > server.toml
nsenter --net=/proc/$inner_net/ns/net "$program" serve --config server.toml --root inner --listen 10.2.0.2:2811 > inner.log 2>&1 &
nsenter --net=/proc/$outer_net/ns/net "$program" serve --config server.toml --root outer --listen 10.1.0.2:2812 > outer.log 2>&1 &
for log in inner.log outer.log; do
    until grep -q listening $log; do sleep 0.05; done
done
copy() { outside timeout 100 "$program" cp --json "$@" > events 2> errors || { cat events errors; exit 1; }; tail -n 1 events; }
inner=ftp://10.2.0.2:2811
outer=ftp://10.1.0.2:2812
copy -p 16 source $inner/upload > upload.event
cmp source inner/upload
copy -p 16 $inner/upload download > download.event
cmp source download
copy -r tree/ $inner/tree/ > tree.event
diff -r tree inner/tree
cp source outer/source
copy -p 4 $outer/source $inner/into > into.event
cmp source inner/into
copy -p 4 $inner/into $outer/from > from.event
cmp source outer/from
