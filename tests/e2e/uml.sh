#!/bin/bash
# Runs a command where cgroup is v2 alone, whatever this machine has: tests/e2e/uml.sh COMMAND ...
#
# The command runs on a kernel of its own: user-mode Linux, a program that needs neither KVM nor rights.
# UML is the path of that program. Its root directory is this machine's below an overlay in memory, so
# what the command writes goes when it ends. Only what it writes into build/ stays. It has no network.
set -euo pipefail

here() { # here MEMORY COMMAND ...: on this machine
    cd "$(dirname "$0")/../.."
    [ -x "${UML-}" ] || { echo "UML is the path of user-mode Linux: docs/conformance.md" >&2; exit 2; }
    place=$(mktemp -d "$PWD/build/uml.XXXXXX")
    unset GPU_DEVICE_PLUGIN_UPGRADE  # fetches what it builds
    kernel=""
    trap 'kill -KILL "$kernel" 2>/dev/null || true; rm -rf "$place"' EXIT
    : >"$place/kernel"
    { export -p && printf 'cd %q && ' "$PWD" && printf '%q ' "${@:2}"; } >"$place/command"
    nice -n 10 "$UML" mem="$1" ncpus="$(nproc)" \
        seccomp=auto quiet loglevel=1 ro rootfstype=hostfs hostfs=/ init="$PWD/tests/e2e/uml.sh" \
        con=null con0=null,fd:1 -- "$place" </dev/null >>"$place/kernel" 2>&1 &
    kernel=$!
    tail --pid=$kernel -s 0.2 -f -n +1 "$place/kernel" | sed -u '0,/^Runs on cgroup v2$/d'
    wait $kernel || true
    [ -e "$place/exit" ] || { cat "$place/kernel" >&2; echo "$UML ended without an exit code" >&2; exit 1; }
    return "$(cat "$place/exit")"
}

there() { # there PLACE: as the first process of that kernel
    local root=/mnt/root
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/upper /mnt/work "$root"
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay "$root"
    cd "$root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t devtmpfs devtmpfs dev
    mkdir -p dev/shm dev/pts
    mount -t tmpfs tmpfs dev/shm
    mount -t devpts devpts dev/pts
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t hostfs -o "$(dirname "$1")" none ".$(dirname "$1")"
    # The kubelet asks for the clock's rate, which this kernel does not tell.
    mount -t tmpfs tmpfs sys/devices/system/cpu/cpu0
    mkdir sys/devices/system/cpu/cpu0/cpufreq
    echo 2000000 >sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq
    pivot_root . mnt
    umount -l /mnt
    stty -opost </dev/console
    { bash -c 'echo "Runs on cgroup v2"; . "$1"/command; ' uml "$1" 2>&1 && code=0 || code=$?
      echo "$code" >"$1/exit"; } </dev/null | cat >/dev/console
    busybox poweroff -f
}

if [ $$ -eq 1 ]; then there "$1"; else here 8G "$@"; fi
