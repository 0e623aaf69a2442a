#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# debian13.sh [WORKDIR] - build and test the daemon in a Debian 13 root
#
# mmdebstrap makes the root in WORKDIR/root [build-debian13 in the source tree], once,
# from the mirror that this machine's apt uses.  In it ./configure --install-deps
# finds out what to install, the tracked files are built, and the unit tests and those of
# virtual guests run.  As root, or without by mmdebstrap's user namespace (needs uidmap and
# an entry in /etc/subuid).
#
# Prints "ok", "FAIL" or "SKIP" and a name for each step and, last, "N passed, N
# failed, N skipped".

set -uo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
work=${1:-$repo/build-debian13}
suite=trixie
prefix=debian13
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

mkdir -p "$work"
work=$(cd "$work" && pwd -P)
apt=$work/apt
log=$work/log
root=$work/root
lock_folder "$work"
: >"$log"
. "$repo/scripts/private-apt.bash"

passed=0 failed=0
finish()
{
    echo "$passed passed, $failed failed, ${1:-0} skipped"
    [ "$failed" -eq 0 ]
    exit
}

# step NAME COMMAND...: nothing goes on after a failure.
step()
{
    local name=$1
    shift
    echo "+ $*" >>"$log"
    if "$@" >>"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name: $(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        tail -n 30 "$log"
        echo "FAIL $name: see $log"
        finish
    fi
}

helper=()
[ "$(id -u)" -eq 0 ] || helper=(mmdebstrap --unshare-helper)

# inside COMMAND...: in the root, in /src, with what programs expect to be mounted.
inside()
{
    "${helper[@]}" unshare -m -- sh -c '
        mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" &&
        mount -t tmpfs shm "$0/tmp" &&
        exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
            LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            sh -c "cd /src && exec \"\$@\"" sh "$@"' "$root" "$@"
}

make_root()
{
    local mirror
    [ -e "$work/complete" ] && return
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || die "apt knows no Debian mirror"
    rm -rf "$root"
    mmdebstrap --variant=apt --include=ca-certificates "$suite" "$root" \
        "deb [signed-by=$private_apt_keyring] $mirror $suite main" || return 1
    touch "$work/complete"
}

copy_source()
{
    (cd "$repo" && git ls-files -z --cached --others --exclude-standard |
        tar -c --null --ignore-failed-read -T -) |
        "${helper[@]}" sh -c 'rm -rf "$0/src" && mkdir "$0/src" && tar -x --no-same-owner -C "$0/src"' "$root"
}

if ! command -v mmdebstrap >/dev/null; then
    echo "SKIP debian13: mmdebstrap is not installed"
    finish 1
fi
step root make_root
step source copy_source
step configure inside ./configure --builddir=/build --install-deps --disable-qemu \
    --disable-images --disable-fuzz --enable-werror
step build inside ninja -C /build
step tests inside python3 tests/run-check.py --builddir=/build --layer=tests
# Each time but for how long it takes: other things may run beside this.
step vguest inside meson test -C /build --print-errorlogs --timeout-multiplier=2 \
    --suite=soak-plain --suite=soak-quiet
finish
