# A server in each of two networks (two_networks.sh). For scripts with `program`, in a directory of
# their own.
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
