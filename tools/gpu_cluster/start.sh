#!/bin/sh
# start [--simulated DRIVER] [--results DIRECTORY]
# A whole Kubernetes from the files beside this one, slices of this machine's card in its pods, and what they show.
# As root, without network, in namespaces of its own. What it unpacks lies in memory; only the results stay.
set -u

# may WORDS COMMAND ...: says whether the machine allows it
may() {
    what=$1; shift
    if why=$("$@" 2>&1); then echo "    $what: yes"; else echo "    $what: no: $why"; refused="$refused; $what"; fi
}

look() {
    refused=""
    echo "==> what this machine allows ($(nproc) cores, Linux $(uname -r))"
    may "root" test "$(id -u)" = 0
    may "mounts and namespaces" "$box" unshare -m -n -i -p -f "$box" mount -t tmpfs none /mnt
    # `kubectl exec` would leave it.
    may "no chroot around it" "$box" nsenter -t $$ -m "$PWD/busybox" true
    may "device nodes" "$box" unshare -m "$box" sh -c 'mount -t tmpfs none /mnt && mknod /mnt/null c 1 3 && echo >/mnt/null'
    may "an overlay of /usr" "$box" unshare -m "$box" sh -c 'mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work /mnt/usr &&
        mount -t overlay -o lowerdir=/usr,upperdir=/mnt/up,workdir=/mnt/work none /mnt/usr'
    may "a bridge in a network of its own" "$box" unshare -n "$box" brctl addbr cluster0
    [ -e $tree/cgroup.procs ] || tree=/sys/fs/cgroup/memory
    may "control groups" "$box" sh -c "mkdir $tree/gpu-cluster && rmdir $tree/gpu-cluster"
    # In a container's own version 2 the root has processes, and gives its children no controllers.
    [ ! -e $control ] || may "controllers and limits" "$box" sh -c "echo +cpu +memory +pids >$control && mkdir $tree/gpu-cluster || exit
        echo 100 >$tree/gpu-cluster/pids.max && (echo 0 >$tree/gpu-cluster/cgroup.procs); made=\$?; rmdir $tree/gpu-cluster; exit \$made"
    case " $* " in
    *" --simulated "*) ;;
    *)
        # A driver that nothing has used since the boot has no device nodes yet.
        nvidia-modprobe -u -c 0 >/dev/null 2>&1
        nvidia-smi -L >/dev/null 2>&1
        ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "no GPU: there is no /dev/nvidia0. Nothing was run."; exit 0; } ;;
    esac
}

# The controllers of version 2 that runc, or the look, has given to the first level.
take_back() {
    for each in $(cat $control 2>/dev/null); do
        case " $had " in *" $each "*) ;; *) echo "-$each" >$control ;; esac
    done
}

# unpack DIRECTORY: every part at once, each compared with its digest
unpack() {
    begin=$(date +%s)
    while read -r sum name; do
        case $name in part-*) (
            [ "$("$box" sha256sum <"$name")" = "$sum  -" ] && "$box" gunzip -c "$name" | "$box" tar -x -C "$1"
        ) || echo "$name" >>"$1/damaged" & ;;
        esac
    done <SHA256SUMS
    wait
    [ ! -e "$1/damaged" ] || { echo "missing or damaged: $(cat "$1/damaged")"; exit 1; }
    echo "    unpacked: $(($(date +%s) - begin)) s"
}

# What needs no kubelet: the checks of the bare card, and the agent's real answers to Allocate in mount namespaces. By the
# bundle's own Python, which brings its C library along, and the machine's Python for what needs PyTorch.
bare() {
    echo "a kubelet cannot run here, for want of: ${refused#; }. The checks of make gpu, which need none:"
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    unpack "$place"
    python=$place/usr/bin/python3-here
    libraries=$place/usr/lib/x86_64-linux-gnu
    cat >"$python" <<SCRIPT
#!/bin/sh
exec $libraries/ld-linux-x86-64.so.2 --argv0 $python --library-path "$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" \\
    $place/usr/bin/python3 "\$@"
SCRIPT
    chmod +x "$python"
    cd "$place/opt/tree" || exit 1
    checks() {
        PYTHONPATH=$place/opt/programs "$python" -m tools.gpu --native "$place/opt/native" --program "$place/opt/programs/card" \
            --keep "$results/gpu.json" --document "$results/bare-card" "$@"
    }
    case " $* " in
    *" --simulated "*) checks --simulated --seconds 1 memory slices ;;
    *) checks slices; checks ;;  # the agent's first; all of them take what is measured already
    esac
    exit
}

tree=/sys/fs/cgroup
control=$tree/cgroup.subtree_control
results=$PWD/gpu-cluster
previous=""
for word in "$@"; do
    [ "$previous" != --results ] || results=$word
    previous=$word
done
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1
from=$PWD
# Names relative to the bundle: what is mounted on /mnt may hide its place.
cd "$(dirname "$0")" || exit 1
box=./busybox
for each in SHA256SUMS busybox; do [ -r $each ] || { echo "missing: $each"; exit 1; }; done
[ -x "$box" ] || chmod +x "$box" || exit 1

if [ "${GPU_CLUSTER_INSIDE-}" != 1 ]; then
    had=$(cat $control 2>/dev/null)
    look "$@"
    [ -z "$refused" ] || { take_back; bare "$@"; }
    # The one that may have PyTorch, by the name that it has here, and where its parts are.
    asked=$(cd "$from" && "${PYTHON_GPU:-python3}" -c 'import os, sys
print(sys.executable, os.path.realpath(sys.executable), sys.base_prefix, *filter(None, sys.path), sep=":")' 2>/dev/null) || asked=python3
    trap : INT  # what was started ends first
    GPU_CLUSTER_INSIDE=1 GPU_CLUSTER_PYTHON=${asked%%:*} GPU_CLUSTER_PATHS=$asked \
        "$box" unshare -m -n -i /bin/sh ./start "$@" --results "$results"
    code=$?
    trap - INT
    take_back
    [ $code = 3 ] || exit $code
    refused="; what failed above"
    (bare "$@")
    exit 1
fi
echo "==> unpacking"
"$box" mount -t tmpfs -o mode=755,size=12g none /mnt || exit 3
unpack /mnt
cd /mnt || exit 1
mkdir -p machine proc sys dev run tmp
bin/busybox pivot_root . machine || exit 3
cd /
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount --rbind /machine/sys /sys && mount --rbind /machine/dev /dev && mount -t proc proc /proc || exit 3
mount -t tmpfs none /dev/shm || exit 3  # programs of MPS share it with the node's
cd /opt/tree || exit 1
# It ends when the first one is killed. bash stays as the first process: it reaps what the containers' shims leave behind.
kill -0 "$PPID" || exit 1
# shellcheck disable=SC2016
exec env -i PATH=$PATH HOME=/root LANG=C.UTF-8 PYTHONPATH=/opt/tree GPU_DEVICE_PLUGIN_CACHE=/opt/cache GPU_DEVICE_PLUGIN_E2E=1 \
    GPU_CLUSTER_PYTHON="$GPU_CLUSTER_PYTHON" GPU_CLUSTER_PATHS="$GPU_CLUSTER_PATHS" GPU_PATIENCE_SECONDS=60 \
    setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc -- bash -c '"$@"; exit $?' gpu-cluster \
    python3 -m tools.gpu_cluster "$@" --results "/machine$results"
