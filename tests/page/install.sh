#!/bin/sh
# Prints where axe-core stands, which tests/page looks for barriers with: unpacked from npm's package into the
# cache outside the tree.
set -eu

version=4.10.3
integrity=Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==
axe=${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}/axe-core-$version.js
if [ ! -f "$axe" ]; then
    command -v npm >/dev/null || {
        echo "axe-core comes by npm, which is not installed (apt install npm)" >&2
        exit 1
    }
    new=$(mktemp -d "${TMPDIR:-/tmp}/axe.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    (cd "$new" && npm pack --silent "axe-core@$version" >/dev/null)
    found=$(openssl dgst -sha512 -binary "$new/axe-core-$version.tgz" | openssl base64 -A)
    [ "$found" = "$integrity" ] || {
        echo "axe-core $version has the digest sha512-$found, not the pinned one" >&2
        exit 1
    }
    tar -xzf "$new/axe-core-$version.tgz" -C "$new" package/axe.min.js
    mkdir -p "${axe%/*}"
    mv "$new/package/axe.min.js" "$axe.$$"
    mv "$axe.$$" "$axe"
fi
echo "$axe"
