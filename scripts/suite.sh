# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Packages of another Debian suite, with a private folder for apt: nothing is installed. To be sourced.

# open_suite SUITE FOLDER: downloads the suite's package lists; prints messages on stdout.
open_suite() {
    suite_apt=$2/apt
    archive=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' | awk '$1 == "Debian" {print $2; exit}')
    [ -n "$archive" ] || { echo "Debian's archive is not among the sources of apt"; return 1; }
    rm -rf "$suite_apt"
    mkdir -p "$suite_apt/lists/partial" "$suite_apt/archives/partial"
    echo "deb $archive $1 main" >"$suite_apt/sources.list"
    of_suite apt-get update
}

# of_suite PROGRAM ARGUMENTS: runs apt-get or apt-cache for the open suite.
of_suite() {
    program=$1
    shift
    "$program" -o "Dir::Etc::SourceList=$suite_apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$suite_apt/lists" -o "Dir::Cache=$suite_apt" "$@"
}

# unpack_of_suite FOLDER PACKAGE...: must be the last use of the open suite.
unpack_of_suite() {
    into=$1
    shift
    (cd "$suite_apt" && of_suite apt-get download "$@") || return 1
    for deb in "$suite_apt"/*.deb; do dpkg -x "$deb" "$into" || return 1; done
    rm -rf "$suite_apt"
}
