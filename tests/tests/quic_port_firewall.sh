# A server of which only some ports can be reached: with the first set only one TCP and one UDP
# port, with the second only the UDP ports that it announces beside the control port.
# Usage: quic_port_firewall.sh ROPEWALK DIRECTORY one|announced
set -eu
program=$1
scripts=$(dirname "$0")
open=$3
cd "$2"
case $open in
    one) passes="tcp:2811 udp:2811" ;;
    announced) passes="tcp:2811 udp:5000-5010" ;;
esac
. "$scripts/two_networks.sh"
mkdir inner
echo "[anonymous]
write = true
[identity]
mapped = false
[data]
drivers = ['tcp', 'quic']
ports = [5000, 5010]" > server.toml
nsenter --net=/proc/$inner_net/ns/net "$program" serve --config server.toml --root inner --listen 10.2.0.2:2811 > inner.log 2>&1 &
until grep -q listening inner.log; do sleep 0.05; done
copy() {
    outside timeout 100 "$program" cp --json --stack quic --retries 0 "$@" > events 2> errors || { cat events errors; exit 1; }
    tail -n 1 events
}
inner=ftp://10.2.0.2:2811
copy -p 4 source $inner/upload > upload.event
cmp source inner/upload
copy -p 4 $inner/upload download > download.event
# With the second set, the first copy has stored that the shared port cannot be reached.
case $open in
    one) test ! -s errors ;;
    announced) cat events errors | grep -q "less than a day ago" ;;
esac
cmp source download
copy --mode stream $inner/upload streamed > streamed.event
cmp source streamed
copy -r tree/ $inner/tree/ > tree.event
diff -r tree inner/tree
