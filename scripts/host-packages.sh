# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced: install_packages NAME... installs with apt what is missing, when we are root.

install_packages() {
    local missing=() package state
    for package in "$@"; do
        state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ $state == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    if ((EUID != 0)); then
        echo "$0: run it as root, or install first: ${missing[*]}" >&2
        return 1
    fi
    echo "$0: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update </dev/null &&
        apt-get -qq -y --no-install-recommends install "${missing[@]}" </dev/null >/dev/null
}
