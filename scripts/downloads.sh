# SPDX-License-Identifier: GPL-2.0-or-later
#
# Downloads of the build scripts and tests, which are kept for other build folders;
# sourced, by sh and bash alike.
#
# What apt fetched is kept in ${XDG_CACHE_HOME:-~/.cache}/pvrdma/downloads by its file's
# name.  That is no source of truth: which version is wanted and what its checksum is,
# apt says anew each time, from its signed lists, and a kept file with another checksum
# is not used.  Builds may share the folder; without one, or if it cannot be written,
# all is downloaded.  What nobody took for 60 days goes, and the oldest beyond 3 GB.
#
# The caller sources common.sh and sets $log.

downloads_days=60
downloads_bytes=3000000000
downloads=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
downloads=${downloads:+$downloads/pvrdma/downloads}

# has_sum FILE SHA256
has_sum() { echo "$2  $1" | sha256sum --check --status 2> /dev/null; }

# same_file FROM TO: by another name or, on another file system, a copy.
same_file() { { ln -f "$1" "$2" || cp "$1" "$2"; } 2> /dev/null; }

# take_download NAME SHA256 TO: the file of that name, if one with this sum was kept.
take_download()
{
    [ -n "$downloads" ] && [ -f "$downloads/$1" ] || return 1
    # What is checked is what was taken: another build may store a new one meanwhile.
    if same_file "$downloads/$1" "$3" && has_sum "$3" "$2"; then
        touch -c "$downloads/$1" 2> /dev/null || :
        return 0
    fi
    rm -f "$3"
    return 1
}

# keep_download FILE...: for the next build; a folder that cannot be had is no error.
keep_download()
{
    [ -n "$downloads" ] && mkdir -p "$downloads" 2> /dev/null || return 0
    for keep_file; do
        keep_new=$(mktemp "$downloads/.new-XXXXXX" 2> /dev/null) || return 0
        # The time is that of its last use, not what the mirror said; first, for by what
        # the mirror said another build would remove it at once.
        touch "$keep_file" || :
        same_file "$keep_file" "$keep_new" &&
            mv -f "$keep_new" "$downloads/${keep_file##*/}" || rm -f "$keep_new"
    done 2> /dev/null
    find "$downloads" -type f -mtime "+$downloads_days" -delete 2> /dev/null || :
    find "$downloads" -type f ! -name '.new-*' -printf '%T@ %s %p\n' 2> /dev/null | sort -rn |
        awk -v most="$downloads_bytes" '{ sum += $2 }
            sum > most { sub(/^[^ ]* [^ ]* /, ""); print }' |
        while read -r keep_old; do
            rm -f "$keep_old"
        done
}

# downloads_of COMMAND...: "FILE SHA256" for each that this call of apt-get would fetch.
downloads_of()
{
    "$@" -o Acquire::ForceHash=SHA256 --print-uris 2> /dev/null |
        sed -n "s/^'[^']*' \([^ ]*\) [0-9]* SHA256:\([0-9a-f]*\)\$/\1 \2/p"
}

# take_downloads DIR LIST: those of the LIST that downloads_of printed; false if one or
# more are missing.
take_downloads()
{
    take_status=0
    while read -r take_name take_sum; do
        [ -n "$take_name" ] || continue
        take_download "$take_name" "$take_sum" "$1/$take_name" || take_status=1
    done << END
$2
END
    return $take_status
}

# fetch DIR COMMAND...: what the apt-get command downloads, in DIR; its output goes to
# the log.  Status 1 if it cannot be had, 2 if that is not what apt's lists promise.
fetch()
{
    fetch_dir=$1
    shift
    mkdir -p "$fetch_dir"
    echo "+ fetch $*" >> "$log"
    fetch_list=$(cd "$fetch_dir" && downloads_of "$@")
    # apt-get takes a file that lies there already for what it wants, by its size.
    while read -r fetch_name fetch_sum; do
        [ -z "$fetch_name" ] || rm -f "$fetch_dir/$fetch_name"
    done << END
$fetch_list
END
    [ -z "$fetch_list" ] || ! take_downloads "$fetch_dir" "$fetch_list" || return 0
    fetch_status=0
    fetch_said=$(cd "$fetch_dir" && LC_ALL=C && export LC_ALL && "$@" 2>&1) || fetch_status=1
    echo "$fetch_said" >> "$log"
    case $fetch_status$fetch_said in
        0*) ;;
        *'Hash Sum mismatch'*) return 2 ;;
        *) return 1 ;;
    esac
    set --
    while read -r fetch_name fetch_sum; do
        [ -n "$fetch_name" ] || continue
        has_sum "$fetch_dir/$fetch_name" "$fetch_sum" || return 2
        set -- "$@" "$fetch_dir/$fetch_name"
    done << END
$fetch_list
END
    keep_download "$@"
}

# bootstrap SUITE DIR MIRROR OPTION...: debootstrap, which checks each package.
bootstrap()
{
    boot_suite=$1 boot_dir=$2 boot_mirror=$3
    shift 3
    rm -rf "$boot_dir.debs"
    mkdir -p "$boot_dir.debs"
    [ -z "$downloads" ] || ln "$downloads"/*.deb "$boot_dir.debs/" 2> /dev/null || :
    quiet debootstrap --cache-dir="$(cd "$boot_dir.debs" && pwd -P)" "$@" \
        "$boot_suite" "$boot_dir" "$boot_mirror"
    # Not all that lay there, or nothing would ever be old: what was downloaded, and what
    # was put into the root.
    for boot_deb in "$boot_dir.debs"/*.deb; do
        boot_name=${boot_deb##*/}
        if [ -f "$boot_dir/var/cache/apt/archives/$boot_name" ] ||
           ! [ "$boot_deb" -ef "$downloads/$boot_name" ]; then
            keep_download "$boot_deb"
        fi
    done
    rm -rf "$boot_dir.debs"
}
