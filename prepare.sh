#!/usr/bin/env bash
# Installs what building needs on Debian, where something is missing: a C linker, pkg-config and the
# headers of OpenSSL.
set -euo pipefail

packages=()
command -v cc >/dev/null || packages+=(gcc libc6-dev)
command -v pkg-config >/dev/null || packages+=(pkg-config)
[ -e /usr/include/openssl/ssl.h ] || packages+=(libssl-dev)
[ ${#packages[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "prepare.sh: missing, by the names of Debian's packages: ${packages[*]}" >&2
    exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
echo "prepare.sh: installing ${packages[*]}" >&2
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
