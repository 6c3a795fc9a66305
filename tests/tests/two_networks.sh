# Two networks, and between them a router. For scripts in the network namespace of the router. If
# they set `passes`, a list of protocol:port (first-last is a range), the router lets only these
# ports of the inner network through. It filters by port and keeps no state.
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
if [ -n "${passes:-}" ]; then
    for pass in $passes; do
        ip rule add priority 10 iif out ipproto ${pass%:*} dport ${pass#*:} lookup main
        ip rule add priority 10 iif in ipproto ${pass%:*} sport ${pass#*:} lookup main
    done
    ip rule add priority 20 iif out blackhole
    ip rule add priority 20 iif in blackhole
fi
