#!/bin/bash
# Runs the end-to-end tests, all of them or those named: tests/e2e/run.sh [pytest arguments]
# Runs another program where they would run:             tests/e2e/run.sh -- COMMAND ...
#
# Everything runs in namespaces of its own (processes, mounts, network). So the cluster may use
# /var/lib/kubelet and the usual ports whatever this machine already runs, and when the tests end,
# however they end, the kernel takes every process, mount and interface with them.
# To look inside while it runs: nsenter --all --target <pid of the inner bash>.
set -eu
cd "$(dirname "$0")/../.."
if [ "$(id -u)" -ne 0 ]; then
    echo "the end-to-end tests start a kubelet and containerd: run them as root" >&2
    exit 2
fi
if [ ! -x .venv/bin/python ]; then
    echo "there is no .venv: \`make test\` makes it" >&2
    exit 2
fi

chosen=(tests/e2e)
for argument in "$@"; do
    case "$argument" in tests/e2e/*) chosen=() ;; esac
done

# pyproject.toml keeps these tests out of every other pytest run; here they are wanted.
options="-ra --strict-markers --strict-config --import-mode=importlib -p no:cacheprovider"
export GPU_DEVICE_PLUGIN_E2E=1
# A way out, for the one test that downloads something: the network that we leave here.
exec 9</proc/self/ns/net
export GPU_DEVICE_PLUGIN_E2E_NETWORK=9
if [ "${1-}" = "--" ]; then
    shift
else
    set -- .venv/bin/python -m pytest -o addopts="$options" -m cluster "${chosen[@]}" "$@"
fi
# bash stays as the first process: it reaps what the containers' shims leave behind.
exec unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc -- \
    bash -c '"$@"; exit $?' e2e "$@"
