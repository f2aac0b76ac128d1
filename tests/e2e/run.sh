#!/bin/bash
# Runs the end-to-end tests, all of them or those named: tests/e2e/run.sh [pytest arguments]
# Runs another program where they would run:             tests/e2e/run.sh -- COMMAND ...
#
# Everything runs in namespaces of its own (processes, mounts, network). So the cluster may use
# /var/lib/kubelet and the usual ports whatever this machine already runs, and when the tests end,
# however they end, the kernel takes every process, mount and interface with them.
# To look inside while it runs: nsenter --all --target <pid of the inner bash>.
#
# Without arguments two halves of the tests run side by side, each on a cluster of its own, because a
# cluster mostly waits. What the second half says is printed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(id -u)" -ne 0 ]; then
    echo "the end-to-end tests start a kubelet and containerd: run them as root" >&2
    exit 2
fi
if [ ! -x .venv/bin/python ]; then
    echo "there is no .venv: \`make test\` makes it" >&2
    exit 2
fi
# The second half, about as long as the rest. For a minute after a kubelet's start no grant ends: what
# restarts the first node's kubelet comes last.
second=(tests/e2e/test_{lifecycle,extender,image,quickstart,nvidia,moving_in}.py)

# The only thing that outlives the namespaces. A group with a process in it stays: another runtime's.
remove_empty_cgroups() {
    find /sys/fs/cgroup -depth -regex '.*/\(k8s\.io\|crio\).*' -type d -exec rmdir {} + 2>/dev/null || true
}

# A way out, for the one test that downloads something: the network that we leave here.
exec 9</proc/self/ns/net
export GPU_DEVICE_PLUGIN_E2E=1 GPU_DEVICE_PLUGIN_E2E_NETWORK=9

cluster() { # cluster NAME COMMAND ...
    local lane=$1
    shift
    # Every cluster has the same address, and what kubectl and helm keep of its API is not another's.
    # bash stays as the first process: it reaps what the containers' shims leave behind.
    # crun refuses a hybrid tree of cgroups whose v2 part has controllers: in there that part is away.
    GPU_DEVICE_PLUGIN_E2E_LANE=$lane KUBECACHEDIR=$kept/$lane exec \
        unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc -- \
        bash -c '[ "${OCI_RUNTIME-}" != crun ] || umount -q /sys/fs/cgroup/unified || true
            "$@"; exit $?' e2e "$@"
}

finish() {
    [ -z "$other" ] || kill -KILL "$other" 2>/dev/null || true  # unshare ignores all else
    remove_empty_cgroups
    rm -rf "$kept"
}

main() {
    kept=$(mktemp -d)
    other=""
    trap finish EXIT
    remove_empty_cgroups
    if [ "${1-}" = "--" ]; then
        shift
        (cluster one "$@")
        exit
    fi

    # pyproject.toml keeps these tests out of every other pytest run; here they are wanted.
    options="-ra --strict-markers --strict-config --import-mode=importlib -p no:cacheprovider"
    pytest=(.venv/bin/python -m pytest -o "addopts=$options" -m cluster)
    if [ $# -gt 0 ]; then
        chosen=(tests/e2e)
        for argument in "$@"; do
            case "$argument" in tests/e2e/*) chosen=() ;; esac
        done
        (cluster one "${pytest[@]}" "${chosen[@]}" "$@")
        exit
    fi
    (cluster two "${pytest[@]}" "${second[@]}") >"$kept/second.log" 2>&1 &
    other=$!
    failed=0
    (cluster one "${pytest[@]}" tests/e2e "${second[@]/#/--ignore=}") || failed=$?
    echo "==> the second half"
    wait "$other" || failed=$?
    other=""
    cat "$kept/second.log"
    exit "$failed"
}

# At once, so that an edit of this file during the run changes nothing.
main "$@"; exit
