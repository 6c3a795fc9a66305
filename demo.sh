#!/usr/bin/env bash
# Builds Ropewalk, starts servers on the loopback interface, moves a few GiB down, up and between
# two servers, and compares every byte. Wants about 8 GiB in $TMPDIR (makes do with less); leaves
# nothing behind.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }
die() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

# --- what is missing ------------------------------------------------------------------------------

install_packages() {
    local missing=()
    ./prepare.sh
    command -v curl >/dev/null || missing+=(curl ca-certificates)
    command -v openssl >/dev/null || missing+=(openssl)
    command -v diff >/dev/null || missing+=(diffutils)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    say "Installing ${missing[*]}"
    "${root[@]}" apt-get update -q
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
}

install_rust() {
    if command -v cargo >/dev/null; then
        local wanted have
        wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
        have=$(rustc --version | cut -d ' ' -f 2)
        [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
            die "Rust $wanted or newer is needed, this is $have; try: rustup update"
        return 0
    fi
    if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        return 0
    fi
    say "Installing Rust with rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --no-modify-path
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

install_packages
install_rust
say "Building"
cargo build --release -p ropewalk --no-default-features
ropewalk="${CARGO_TARGET_DIR:-target}/release/ropewalk"
ropewalk="$(realpath "$ropewalk")"

# --- a place that goes away -----------------------------------------------------------------------

work="$(mktemp -d "${TMPDIR:-/tmp}/ropewalk-demo.XXXXXX")"
servers=()
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
    for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Settings of this user must not change what is shown.
export XDG_CONFIG_HOME="$work/config"

# --- data -----------------------------------------------------------------------------------------

free_mib=$(df --output=avail -B1M "$work" | tail -n 1 | tr -d ' ')
large_mib=$((free_mib / 8 < 1024 ? free_mib / 8 : 1024))
[ "$large_mib" -ge 16 ] || die "only $free_mib MiB are free in $work; set TMPDIR to a place with 8 GiB"

# Bytes that look random, differ everywhere, and are the same in each run: AES in counter mode, from
# a fixed key.
stream() {
    openssl enc -aes-128-ctr -K 526f706577616c6b2064656d6f206b65 -iv "$(printf '%032x' "$1")" -in /dev/zero 2>/dev/null
}
bytes() { # number of the stream, bytes, file
    { stream "$1" || true; } | head -c "$2" >"$3"
}

say "Making data: 2 files of $large_mib MiB, 1000 of 64 KiB, some with odd names"
data="$work/data"
mkdir -p "$data/large" "$data/small" "$data/odd/deep/er/still"
bytes 1 "$((large_mib << 20))" "$data/large/one.bin"
bytes 99999999999 "$((large_mib << 20))" "$data/large/two.bin"
{ stream 7 || true; } | head -c $((1000 * 65536)) | split -b 65536 -a 4 -d - "$data/small/file-"
: >"$data/odd/empty"
n=0
for name in 'with spaces  inside' ' leading and trailing ' -rf 'per%20cent' 'quote"s' "apostrophe's" 'semi;colon=equals' \
    'a+b&c?d#e' '[brackets]*' '~' '.hidden' 'Grüße aus Köln' '日本語' $'not\xffUTF-8' $'tab\tinside' deep/er/still/file; do
    n=$((n + 1))
    bytes "$((1000 + n))" "$((n * 4099))" "$data/odd/$name"
done
files=$(find "$data" -type f -printf x | wc -c)

# --- transfers ------------------------------------------------------------------------------------

# Starts a server for directory $1 with the other flags; its address is in $address.
start_server() {
    local root=$1 line descriptor
    shift
    exec {descriptor}< <(exec "$ropewalk" serve --listen 127.0.0.1:0 --root "$root" "$@" 2>"$work/server.log")
    servers+=($!)
    read -r line <&"$descriptor" || die "the server did not start: $(cat "$work/server.log")"
    address=${line#Server listening at }
}

compare() {
    diff -r "$data" "$1" || die "$1 is not the same as $data"
    [ "$(find "$1" -type f -printf x | wc -c)" = "$files" ] || die "$1 has another number of files"
    echo "All $files files are the same, byte for byte."
}

mkdir "$work/inbox"
start_server "$data" --anonymous --anonymous-third-party
source="ftp://$address"
start_server "$work/inbox" --anonymous=rw --anonymous-third-party
inbox="ftp://$address"

say "Download: $source/ to a directory"
"$ropewalk" cp -r "$source/" "$work/download/"
compare "$work/download"
rm -rf "$work/download"

say "Upload: a directory to $inbox/upload/"
"$ropewalk" cp -r "$data/" "$inbox/upload/"
compare "$work/inbox/upload"
rm -rf "$work/inbox/upload"

say "Between two servers: $source/ to $inbox/third/"
"$ropewalk" cp -r "$source/" "$inbox/third/"
compare "$work/inbox/third"

say "Again, with --sync: nothing is left to do"
"$ropewalk" cp -r --sync=size "$source/" "$inbox/third/"

say "Done"
