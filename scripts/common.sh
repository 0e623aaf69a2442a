# SPDX-License-Identifier: GPL-2.0-or-later
#
# Messages and logs of the build scripts; sourced, by sh and bash alike.
#
# The caller sets:
#   $prefix      what each message begins with
#   $log         file for the output of commands, before quiet is called
#   $die_status  exit status of die, 1 unless set
# and make, PVRDMA_ERRORS: a file for what die says, which it shows at the end.

# What a script builds by make has jobs of its own; the caller's make keeps its to itself, and
# would be asked for them in vain, with a warning.
unset MAKEFLAGS MFLAGS MAKELEVEL

say() { printf '[%s] %s\n' "$prefix" "$*"; }

die()
{
    printf '[%s] error: %s\n' "$prefix" "$*" |
        tee -a "${PVRDMA_ERRORS:-/dev/null}" >&2
    exit "${die_status:-1}"
}

# Run a command with its output in the log; show the log's end if it fails.
quiet()
{
    echo "+ $*" >> "$log"
    if ! "$@" >> "$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "'$1' failed; the whole output is in $log"
    fi
}

# Two builds in one folder would tread on each other.  The lock ends with the script.
lock_folder()
{
    exec 9> "$1/lock"
    flock -n 9 || { say "waiting for another build in $1"; flock 9; }
}

# apt knows the installed packages without lists, too.
apt_has_lists()
{
    [ -n "$(apt-get indextargets --format has 'Created-By: Packages' 2> /dev/null)" ]
}

# apt_lists: apt's own, which root fetches if there are none; what runs beside it waits, for
# half of them would name half of the packages.
apt_lists()
{
    (
        flock 7
        apt_has_lists && exit
        [ "$(id -u)" -eq 0 ] ||
            die "apt has no package lists: run 'apt-get update' as root first"
        say "apt has no package lists yet: updating them"
        quiet apt-get -q update
    ) 7< /var/lib/apt || exit "${die_status:-1}"
}

# cache_works COMPILER: ccache fails, and does not just compile, where it has no home or
# may not write to its cache; that shows only when it stores something.
cache_works()
{
    command -v ccache > /dev/null 2>&1 && cache_probe=$(mktemp -d) || return 1
    echo 'int probe;' > "$cache_probe/probe.c"
    cache_status=0
    CCACHE_RECACHE=1 ccache "$1" -c "$cache_probe/probe.c" -o "$cache_probe/probe.o" \
        > /dev/null 2>&1 || cache_status=1
    rm -rf "$cache_probe"
    return $cache_status
}

# cached_cc COMPILER: the same through ccache, if it is there and works (configure says
# if it does not).
cached_cc()
{
    if cache_works "$1"; then
        echo "ccache $1"
    else
        echo "$1"
    fi
}
