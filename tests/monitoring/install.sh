#!/bin/sh
# Prints the directory that holds prometheus and promtool: where they are installed, else unpacked from
# Debian's package into the cache outside the tree. Nothing is installed, and no daemon is started.
set -eu

if promtool=$(command -v promtool) && command -v prometheus >/dev/null; then
    dirname "$promtool"
    exit 0
fi
cache=${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}/prometheus
if [ ! -x "$cache/promtool" ]; then
    command -v apt-get >/dev/null || {
        echo "prometheus and promtool are not installed, and without apt-get they cannot be had" >&2
        exit 1
    }
    new=$(mktemp -d "${TMPDIR:-/tmp}/prometheus.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    cd "$new"
    apt-get -qq download prometheus >/dev/null 2>&1 || {
        apt-get -qq update >/dev/null
        apt-get -qq download prometheus >/dev/null
    }
    dpkg -x prometheus_*.deb unpacked
    mkdir -p "$cache"
    for program in prometheus promtool; do # promtool last: who sees it has both
        mv "unpacked/usr/bin/$program" "$cache/.$program.$$"
        mv "$cache/.$program.$$" "$cache/$program"
    done
fi
echo "$cache"
