#!/bin/bash
# The bundle on a simulated card, in a Debian that has neither Python nor a network nor anything of this checkout:
# with a part that is damaged, where no kubelet can run, whole, and whole after a try that was killed. As root.
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=$PWD/build/gpu-bundle
place=$(mktemp -d -p "$PWD/build")
trap 'rm -rf "$place"' EXIT
root=$place/root
mkdir -p "$root"
tar -C "$root" -xf "$(ls -t "${GPU_DEVICE_PLUGIN_CACHE:-$HOME/.cache/gpu-device-plugin}"/gpu-bundle-*.tar | head -n 1)"
rm -f "$root"/usr/bin/{python3*,openssl,etcd*,busybox} "$root"/usr/sbin/{ip,iptables*,ip6tables*,xtables*} "$root"/bin/ip
mkdir -p "$root"/{bundle,results,dev,proc,sys}
# NVIDIA's program is downloaded for the run and is in no bundle.
version=$(.venv/bin/python - "$place" <<'PYTHON'
import pathlib, shutil, sys
sys.path.insert(0, ".")
from tests.nvidia_smi import download
place = pathlib.Path(sys.argv[1])
(place / "smi").mkdir()
smi = download(place / "smi")
shutil.copy(smi.path, place / "root/usr/bin/nvidia-smi")
print(smi.driver_version)
PYTHON
)

# A stand-in for MPS, which keeps nothing: the simulated driver takes for its client who finds that file.
printf '#!/bin/sh\necho $$ >$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid\n' >"$root/usr/bin/nvidia-cuda-mps-control"
chmod +x "$root/usr/bin/nvidia-cuda-mps-control"

# try BUNDLE [chroot]: becomes `start` there; in a chroot no kubelet can run
try() {
    exec unshare --mount --net --propagation private -- bash -c '
        root=$1 bundle=$2 kind=$3; shift 3
        ip link set lo up
        mount --bind "$root" "$root"
        mount --rbind /sys "$root/sys"; mount --rbind /dev "$root/dev"; mount -t proc proc "$root/proc"
        mount --bind "$bundle" "$root/bundle"; mount -o remount,bind,ro "$root/bundle"
        # Who enters a mount namespace, as `kubectl exec` does, begins at its real root.
        if [ -z "$kind" ]; then
            mkdir -p "$root/results/old"
            cd "$root" && pivot_root . results/old && umount -l results/old && rmdir results/old && root=/ || exit
        fi
        exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bundle/start "$@"
    ' rehearse "$root" "$1" "${2-}" --simulated "$version" --results /results
}
files() { (cd /proc/sys && grep . vm/{overcommit_memory,panic_on_oom} kernel/panic{,_on_oops} kernel/keys/root_max*); (cd "$root" && find . -path ./results -prune -o -type f -printf '%p %s %T@\n' -o -print | sort); }
# Control groups without a process; others are another cluster's.
left() { for each in $(find /sys/fs/cgroup -regex '.*/k8s\.io/.*' -type d); do grep -q . "$each/cgroup.procs" || echo "$each"; done; }

files >"$place/before"
whole() {
    echo "==> the whole, $1"
    begin=$(date +%s)
    (try "$bundle")
    echo "    $(($(date +%s) - begin)) s"
    files | diff "$place/before" - || { echo "files of the machine were changed" >&2; exit 1; }
    [ -z "$(left)" ] || { left; echo "control groups are left" >&2; exit 1; }
    mkdir -p build/gpu-rehearsal
    cp -r "$root/results/." build/gpu-rehearsal
}

echo "==> a damaged part"
mkdir "$place/damaged"
cp "$bundle"/* "$place/damaged"
truncate --size=-1 "$place/damaged/part-1.tar.gz"
if (try "$place/damaged") >"$place/log"; then echo "a damaged part was taken" >&2; exit 1; fi
grep "damaged: part-1" "$place/log"
rm -r "$place/damaged"

echo "==> where a kubelet cannot run"
(try "$bundle" chroot) >"$place/log" || true  # it judges the simulated card's speed too
cat "$place/log"
grep -q "the slice of 30 %: .* met" "$place/log" || { echo "no slice of the agent's was seen" >&2; exit 1; }
files | diff "$place/before" - || { echo "files of the machine were changed" >&2; exit 1; }
whole "fresh"
echo "==> a try that is killed while its cluster runs"
(try "$bundle") >"$place/log" 2>&1 &
while ! grep -q "==> README's pod" "$place/log"; do
    kill -0 $! || { cat "$place/log"; exit 1; }
    sleep 1
done
# It ends last of its namespace.
first=$(pgrep -P "$(pgrep -P $!)")
kill -KILL $!
wait $! 2>/dev/null || true
ended() { [ ! -e "/proc/$first" ] || grep -q "^State:.Z" "/proc/$first/status"; }
for _ in {1..20}; do ! ended || break; sleep 1; done
ended || { kill -KILL "$first"; echo "what was started goes on after a kill" >&2; exit 1; }
whole "over it"
