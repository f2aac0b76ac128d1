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
    may "mounts and namespaces" "$box" unshare -m -n -p -f "$box" mount -t tmpfs none /mnt
    # `kubectl exec` would leave it.
    may "no chroot around it" "$box" nsenter -t $$ -m "$PWD/busybox" true
    may "device nodes" "$box" unshare -m "$box" sh -c 'mount -t tmpfs none /mnt && mknod /mnt/null c 1 3 && echo >/mnt/null'
    may "an overlay of /usr" "$box" unshare -m "$box" sh -c 'mount -t tmpfs none /mnt && mkdir /mnt/up /mnt/work /mnt/usr &&
        mount -t overlay -o lowerdir=/usr,upperdir=/mnt/up,workdir=/mnt/work none /mnt/usr'
    may "a bridge in a network of its own" "$box" unshare -n "$box" brctl addbr cluster0
    tree=/sys/fs/cgroup
    [ -e $tree/cgroup.procs ] || tree=/sys/fs/cgroup/memory
    may "control groups" "$box" sh -c "mkdir $tree/gpu-cluster && rmdir $tree/gpu-cluster"
    case " $* " in
    *" --simulated "*) ;;
    *)
        # A driver that nothing has used since the boot has no device nodes yet.
        nvidia-modprobe -u -c 0 >/dev/null 2>&1
        nvidia-smi -L >/dev/null 2>&1
        ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "no GPU: there is no /dev/nvidia0. Nothing was run."; exit 0; } ;;
    esac
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

results=$PWD/gpu-cluster
previous=""
for word in "$@"; do
    [ "$previous" != --results ] || results=$word
    previous=$word
done
mkdir -p "$results" && results=$(cd "$results" && pwd) || exit 1
# Names relative to the bundle: what is mounted on /mnt may hide its place.
cd "$(dirname "$0")" || exit 1
box=./busybox
for each in SHA256SUMS busybox; do [ -r $each ] || { echo "missing: $each"; exit 1; }; done
[ -x "$box" ] || chmod +x "$box" || exit 1

if [ "${GPU_CLUSTER_INSIDE-}" != 1 ]; then
    look "$@"
    [ -z "$refused" ] || bare "$@"
    # The one that may have PyTorch, by the name that it has here.
    GPU_CLUSTER_PYTHON=$(command -v "${PYTHON_GPU:-python3}" || echo python3)
    export GPU_CLUSTER_PYTHON
    GPU_CLUSTER_INSIDE=1 exec "$box" unshare -m -n /bin/sh ./start "$@" --results "$results"
fi
echo "==> unpacking"
"$box" mount -t tmpfs -o mode=755,size=12g none /mnt || exit 1
unpack /mnt
cd /mnt || exit 1
mkdir -p machine proc sys dev run tmp
bin/busybox pivot_root . machine || exit 1
cd /
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount --rbind /machine/sys /sys && mount --rbind /machine/dev /dev && mount -t proc proc /proc || exit 1
cd /opt/tree || exit 1
# bash stays as the first process: it reaps what the containers' shims leave behind.
# shellcheck disable=SC2016
exec env -i PATH=$PATH HOME=/root LANG=C.UTF-8 PYTHONPATH=/opt/tree GPU_DEVICE_PLUGIN_CACHE=/opt/cache GPU_DEVICE_PLUGIN_E2E=1 \
    GPU_CLUSTER_PYTHON="$GPU_CLUSTER_PYTHON" \
    unshare --pid --fork --kill-child --mount-proc -- bash -c '"$@"; exit $?' gpu-cluster \
    python3 -m tools.gpu_cluster "$@" --results "/machine$results"
