#!/bin/sh
# Installs what `make e2e` needs: Debian packages, then Kubernetes and containerd built from Go
# modules into a cache outside the tree. Seconds when everything is there already.
# KUBE chooses the Kubernetes version.
set -eu
cd "$(dirname "$0")/../.."

missing=""
want() { # want PATH-OR-COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
PATH="$PATH:/usr/sbin:/sbin"
want etcd etcd-server
want runc runc
want /usr/lib/cni/ptp containernetworking-plugins
want busybox busybox-static
want openssl openssl
want ip iproute2
want unshare util-linux
want iptables iptables

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "e2e needs these Debian packages or their like:$missing" >&2
        exit 1
    fi
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # a list of names
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 || {
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends $missing >/dev/null
    }
fi

python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" -m tools.harness.cluster.binaries
