# SPDX-License-Identifier: GPL-2.0-or-later
#
# A private apt, pointed at this machine's own Debian mirror; sourced by build
# scripts that fetch sources or packages of another suite.
#
# It has its own lists and cache below $apt, so nothing of the machine's apt
# changes and no root rights are needed.  apt checks the signature chain and the
# checksums of all it fetches.
#
# The caller sources common.sh and downloads.sh, and sets before it calls anything here:
#   $apt  folder for lists and downloads

private_apt_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# debian_mirror [LABEL]: the URI under which this machine's apt gets Debian's main archive,
# or with LABEL Debian-Security that of its updates, which a machine may not have.
# apt itself reads its configuration, whatever the format of the sources files;
# origin and label come from the signed Release files, so third-party
# repositories and the security archive drop out.
debian_mirror()
{
    apt-get indextargets --format \
        '$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' |
        awk -F'|' -v label="${1:-Debian}" '$1 == "Packages" && $2 == "Debian" &&
                   $3 == label && $4 == "main" { print $5; exit }'
}

private_apt()
{
    local tool=$1
    shift
    "$tool" -o "Dir::Etc::sourcelist=$apt/sources.list" \
        -o "Dir::Etc::sourceparts=$apt/none" \
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" \
        -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none "$@"
}

# private_apt_setup 'deb|deb-src SUITE'...: reads the lists of these suites, but for
# SUITE-security where the machine's apt knows none.
# Does nothing when called again within one run of the script.
private_apt_setup()
{
    local mirror security entry uri
    [ -z "${private_apt_ready:-}" ] || return 0
    apt_lists
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || die "apt knows no source of Debian's main archive;
  check /etc/apt/sources.list* and run 'apt-get update'"
    [ -r "$private_apt_keyring" ] ||
        die "$private_apt_keyring is missing; install debian-archive-keyring"
    security=$(debian_mirror Debian-Security)
    mkdir -p "$apt/none" "$apt/lists/partial" "$apt/cache/archives/partial"
    for entry in "$@"; do
        uri=$mirror
        case $entry in
            *-security) uri=$security ;;
        esac
        [ -z "$uri" ] ||
            echo "${entry%% *} [signed-by=$private_apt_keyring] $uri ${entry#* } main"
    done >"$apt/sources.list"
    say "reading package lists: $*"
    quiet private_apt apt-get -q update
    private_apt_ready=1
}

# private_apt_unpack DIR PACKAGE[=VERSION]...: downloads and unpacks into DIR.
private_apt_unpack()
{
    local tmp=$apt/debs dir=$1 deb
    shift
    rm -rf "$tmp"
    mkdir -p "$tmp" "$dir"
    fetch "$tmp" private_apt apt-get -q download "$@" ||
        die "cannot fetch $*; the whole output is in $log"
    for deb in "$tmp"/*.deb; do
        dpkg -x "$deb" "$dir"
    done
    rm -rf "$tmp"
}
