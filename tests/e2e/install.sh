#!/bin/sh
# Installs what `make e2e` needs: Debian packages, then Kubernetes, containerd and an OCI runtime, built
# into a cache outside the tree. Seconds when everything is there already.
# KUBE chooses the Kubernetes version, SCHEDULER another one for the chart's kube-scheduler, OCI_RUNTIME runc
# or crun, CRI containerd or crio.
set -eu
cd "$(dirname "$0")/../.."

missing=""
want() { # want PATH-OR-COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
PATH="$PATH:/usr/sbin:/sbin"
want etcd etcd-server
want cc gcc
want /usr/include/string.h libc6-dev
want pkg-config pkg-config
want /usr/include/seccomp.h libseccomp-dev
if [ "${OCI_RUNTIME-}" = crun ]; then
    want make make
    want /usr/include/sys/capability.h libcap-dev
    want /usr/include/yajl/yajl_parse.h libyajl-dev
fi
if [ "${CRI-}" = crio ]; then
    want conmon conmon
    want skopeo skopeo
fi
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
"$python" -m tools.harness.cluster.oci_runtimes
"$python" -m tools.harness.cluster.crio
exec "$python" -m tools.harness.cluster.binaries
