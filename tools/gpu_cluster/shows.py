"""What slices of this card show in pods of a real kubelet, step by step."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from tools.bench.rows import Row, at_most, shown
from tools.gpu import compute, frameworks, limits, memory
from tools.gpu.card import find
from tools.gpu.place import MIB, Place, Told, library_base, on_card, together
from tools.gpu_cluster import decode, pod_root
from tools.gpu_cluster.driver_root import DRIVER_PROGRAMS, copy_driver
from tools.harness.cluster.cdi_node import LIBRARIES, CdiNode, lay_out
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import (
    ADDRESS,
    CHART,
    DAEMONSET,
    DEPLOYMENTS,
    Helm,
    left_on_nodes,
    load_scheduler,
    wait_for_rollout,
)
from tools.harness.cluster.layout import Layout, overlay_file
from tools.harness.cluster.pods import CORE, FOREVER, MEMORY, container, pod, slice_of
from tools.harness.cluster.processes import Program, ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.simulation.simulated_node import DEFAULT_STATE

MACHINE, OPT = Path("/machine"), Path("/opt")
STATE = Path("/opt/state")
PROFILE, DRIVER = "h200", "580.159.04"
MODE = "ack.node.gpu.schedule=core_mem"
CARDS = "gpu-device-plugin/cards"
STAY = ("sh", "-c", FOREVER)
SHOWN = re.compile(r"(\d+)MiB / +(\d+)MiB")
WINDOW_SECONDS, SIMULATED_SECONDS = 6.0, 1.0
READY_SECONDS, ROLLOUT_SECONDS = 90, 120
OVER_SECONDS = 45
"""An upgrade of the agent and a restart of the kubelet fit in."""
KERNEL = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What a kubelet sets for the whole machine where it finds anything else."""
NAMED_CARDS = "policies.cdiNamespaces={gpu-operator,default}"
"""The models without a slice name their card by annotation."""
MPS, MPS_CONTROL = Path("/opt/mps"), "nvidia-cuda-mps-control"
MOUNTED = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
KINDS = {
    "a stream of 100 µs kernels": ("work", "stream"),
    "copies of 32 MB from pinned memory": ("copies",),
}


class Stage:
    """The cluster, the card, and each step's rows."""

    def __init__(self, simulated: str, results: Path) -> None:
        self._simulated = DRIVER if simulated == "1" else simulated
        self._logs = results / "logs"
        for log in self._logs.glob("*.log"):  # of an earlier try
            log.unlink()
        self._driver = OPT / "driver"
        self._state = OPT / "driver-state" if simulated else None
        self._programs: list[Program] = []
        self._begin_seconds = time.monotonic()
        self._cluster: Cluster | None = None
        self._seconds = SIMULATED_SECONDS if simulated else WINDOW_SECONDS
        self._python = os.environ.get("GPU_CLUSTER_PYTHON", "python3")
        self._version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        self._units = 0
        self._turns = ""
        self._alone: Told = {}
        self._loop: Sequence[str] = ()

    @property
    def cluster(self) -> Cluster:
        """Once it is up."""
        assert self._cluster
        return self._cluster

    def driver(self) -> Sequence[Row]:
        """The card as it is seen from outside every container."""
        if self._state:
            programs = [MACHINE / "usr/bin" / each for each in DRIVER_PROGRAMS]
            programs = [path for path in programs if path.exists()]
            lay_out(self._driver, self._state, PROFILE, self._simulated, programs, cards=1)
        else:
            copy_driver(MACHINE, self._driver)
        base = {**library_base(), "LD_LIBRARY_PATH": str(self._driver / LIBRARIES)}
        if self._state:
            base["GPU_SIMULATOR_STATE"] = str(self._state)
        card = find(base)
        self._place = Place(
            directory=pod_root.PROGRAMS,
            library=OPT / "native/libgpuslice.so",
            base=on_card(base, card),
            card=card,
            seconds=self._seconds,
            count=1000,
            python="python3",
            is_simulated=bool(self._simulated),
        )
        self._turns = self._place.turns(100_000)
        kind = "SIMULATED " if self._simulated else ""
        return [
            shown("card", f"{kind}{card.name}, {card.total_bytes // MIB} MiB, driver {card.driver}")
        ]

    def cluster_up(self) -> Sequence[Row]:
        """Control plane and node, with both images."""
        _keep_kernel_settings()
        cluster = Cluster(Layout(STATE, self._logs))
        cluster.start()
        self._cluster = cluster
        pieces = sorted(OPT.glob("image.tar.*"))
        (OPT / "image.tar").write_bytes(b"".join(path.read_bytes() for path in pieces))
        cluster.node.load_archive(OPT / "image.tar", "", "docker-archive")
        cluster.node.load(pod_root.machine_image(MACHINE))
        return [shown("Kubernetes", cluster.binaries.kubernetes_version)]

    def install(self) -> Sequence[Row]:
        """The chart, and what the node then offers."""
        node = CdiNode(self.cluster.node, OPT / "nvidia", self._driver, self._state)
        self._programs.append(node.start_plugin(self._logs / "nri-plugin.log"))
        self.cluster.kubectl("label", "node", NODE, MODE)
        self._values = ("image.pullPolicy=Never", *node.settings(), NAMED_CARDS)
        self._install()
        rows = self._offered()
        seconds = time.monotonic() - self._begin_seconds
        return [
            *rows,
            self._judged(at_most("ready after unpacking", seconds, READY_SECONDS, "s", 0)),
        ]

    def _offered(self) -> Sequence[Row]:
        self._wait_for_agent()
        self._units = self._place.card.total_bytes // MIB // 1024
        cards = wait_for("the node's cards are known", self._cards, 60)
        allocatable = self.cluster.get("node", NODE)["status"]["allocatable"]
        offered = {name: allocatable.get(name) for name in (MEMORY, CORE)}
        wanted = {MEMORY: str(sum(card["units"] for card in cards)), CORE: str(100 * len(cards))}
        total = f"{self._units} units of {self._place.card.total_bytes // MIB} MiB"
        (card,) = [card for card in cards if card["uuid"] == self._place.card.uuid]
        measured = f"{card['units']} units of {card['memory_mib']} MiB"
        return [
            Row("the agent offers of the card", total, measured, measured == total),
            Row("kubectl get node", f"{wanted}", f"{offered}", offered == wanted),
        ]

    def first_slice(self) -> Sequence[Row]:
        """README's first pod, with the machine's programs in place of an image's."""
        sample = yaml.safe_load((CHART.parents[1] / "samples/first-slice.yaml").read_text())
        resources = sample["spec"]["containers"][0]["resources"]
        begin_seconds = time.monotonic()
        self._run_pod("first-slice", resources)
        started = shown(
            "from kubectl apply to Running", f"{time.monotonic() - begin_seconds:.1f} s"
        )
        self._adopt(
            self._in("first-slice", *pod_root.on_card("sh", "-c", "echo $CARD_UUID")).strip()
        )
        return [started, self._nvidia_smi("first-slice", int(resources["limits"][MEMORY]))]

    def _adopt(self, uuid: str) -> None:
        """Compare with the card that the agent fills first, where there are several."""
        card = find(self._place.base, uuid)
        self._place = replace(self._place, base=on_card(self._place.base, card), card=card)

    def memory(self) -> Sequence[Row]:
        """Beyond the slice."""
        limit = self._bytes(2)
        told = self._tell("first-slice", pod_root.CARD, "fill", "linear", str(limit))
        return memory.inside_rows("2 units", limit, told)

    def shares(self) -> Sequence[Row]:
        """One pod at a time, against the same program outside."""
        self._clear()
        rows: list[Row] = []
        for percent in (30, 60):
            self._run_pod(f"share-{percent}", slice_of(2, percent))
        for what, words in KINDS.items():
            full = [*words, *([self._turns] if words[0] == "work" else []), f"{self._seconds:g}"]
            native = compute.rate(self._place.tell(self._place.base, *full))
            rows.append(shown(f"{what}: without a slice", f"{native:.1f} a second"))
            for percent in (30, 60):
                part = compute.rate(self._tell(f"share-{percent}", pod_root.CARD, *full)) / native
                rows.append(self._judged(compute.share_row(what, percent, part)))
        return rows

    def together(self) -> Sequence[Row]:
        """Three pods at the same moment."""
        self._clear()
        pods = {"first-30": 30, "second-30": 30, "only-40": 40}
        for name, percent in pods.items():
            self._run_pod(name, slice_of(2, percent))
        words = ["work", "stream", self._turns, str(max(self._seconds, compute.FEWEST_SECONDS))]
        base = self._place.base
        native = compute.rate(self._place.tell(base, *words))
        told = together([(base, self._exec(name, pod_root.CARD, *words)) for name in pods])
        return [
            self._judged(compute.share_row(name, percent, compute.rate(one) / native))
            for (name, percent), one in zip(pods.items(), told, strict=True)
        ]

    def pytorch(self) -> Sequence[Row]:
        """The machine's own PyTorch: memory up to the cap, then its share and its numbers."""
        what, target = "PyTorch", "refused at the cap"
        if self._simulated:
            return [Row(what, target, "not run: it does not start on a simulated driver")]
        units = min(8, self._units // 4)
        self._clear()
        self._run_pod("torch-100", slice_of(units, 100))
        version = self._torch("torch-100")
        if not version.endswith("True"):
            return [Row(what, target, f"not run: {version}")]
        program = f"{pod_root.INSIDE}/torch_fill.py"
        told = self._tell("torch-100", self._python, program)
        rows = [shown(what, version), *frameworks.fill_rows("in a pod", self._bytes(units), told)]
        words = [self._python, program.replace("fill", "work"), "gemm", f"{self._seconds:g}"]
        self._run_native("torch-native")
        native = compute.rate(self._tell("torch-native", *words))
        rows.append(shown("PyTorch's products: without a slice", f"{native:.1f} a second"))
        for percent in (100, 60, 30):
            if percent < 100:  # one after the other: they are more than a card
                self._clear()
                self._run_pod(f"torch-{percent}", slice_of(units, percent))
            told = self._tell(f"torch-{percent}", *words)
            kept = compute.rate(told) / native
            rows.append(compute.kept_row("PyTorch's products", percent, kept, compute.MOST_KEPT))
            rows.append(
                frameworks.right_row(f"PyTorch, {percent} %: relative error", told["error"])
            )
        return rows

    def models(self, way: str) -> Sequence[Row]:
        """One model or two that write one token after another, the card shared in this way."""
        self._clear()
        shared = decode.WAYS[way]
        number = [*decode.WAYS].index(way)
        if shared.is_mps and not self._has(MPS_CONTROL):
            return [Row(way, "", "not run: no nvidia-cuda-mps-control on this machine")]
        if shared.is_mps:
            self._start_mps(f"mps-{number}")
        pods = {f"decode-{number}-{each}": part for each, part in enumerate(shared.parts)}
        for name, part in pods.items():
            if shared.is_mps:
                self._run_native(name, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part)})
            elif part:
                self._run_pod(name, slice_of(min(8, self._units // 4), part))
            else:
                self._run_native(name)
        if way == decode.ALONE:
            self._loop = self._model(*pods)
        commands = [self._exec(name, *self._loop[1:]) for name in pods]
        told = decode.at_once(self._place.base, commands)
        if way != decode.ALONE:
            return decode.rows(way, self._alone, told)
        (self._alone,) = told
        model = shown("decode loop", self._loop[0])
        return [model, decode.PUBLISHED, *decode.rows(way, self._alone, told)]

    def _model(self, name: str) -> Sequence[str]:
        """What it is, and its command: the one of PyTorch, else kernels in its shape."""
        version = "" if self._simulated else self._torch(name)
        if version.endswith("True"):
            program = f"{pod_root.INSIDE}/torch_model.py"
            what = (
                f"a transformer of 16 layers in fp16, one at a time, PyTorch {version.split()[0]}"
            )
            return what, self._python, program, "decode", f"{self._seconds:g}", "wait"
        turns = str(int(self._turns) // 10)
        what = "160 kernels of 10 µs a token; PyTorch was not used"
        return what, pod_root.CARD, "decode", turns, f"{self._seconds:g}"

    def _start_mps(self, name: str) -> None:
        """In a pod, which takes it along when it ends."""
        shutil.rmtree(MPS, ignore_errors=True)
        MPS.mkdir()
        self._run_native(name, {"CUDA_MPS_LOG_DIRECTORY": str(MPS)})
        said = self._in(name, "sh", "-c", f"{MPS_CONTROL} -d 2>&1 || true")
        wait_for(f"MPS runs: {said}", (MPS / f"{MPS_CONTROL}.pid").exists, 20)

    def _torch(self, name: str) -> str:
        script = "import torch; print(torch.__version__, torch.cuda.is_available())"
        asked = f"{self._python} -c '{script}' 2>&1 || true"
        said = self._in(name, "sh", "-c", asked).strip()
        return said.rpartition("\n")[2]  # warnings stand above

    def upgrade(self) -> Sequence[Row]:
        """Another tag of the image, and another kubelet, while a program runs in its slice."""
        self._clear()
        words = f"{pod_root.CARD} work stream {self._turns} {OVER_SECONDS}; {FOREVER}"
        self._run_pod("kept", slice_of(2, 30), pod_root.on_card("sh", "-c", words))
        before = self._container("kept")
        self._upgraded()
        self.cluster.restart_kubelet()
        self.cluster.wait_until_ready()
        wait_for("the node offers its cards again", self._offers, 60)
        early = "ended" if self._log("kept") else "still runs"
        meanwhile = Row("its work when they are back", "still runs", early, early == "still runs")
        log = wait_for("its work is done", lambda: self._log("kept"), 90, 0.5)
        native = 1e9 / self._place.tell(self._place.base, "solo", "stream", self._turns)["piece_ns"]
        after = self._container("kept")
        kept = Row("the container that ran meanwhile", before, after, before == after)
        part = compute.rate(json.loads(log.splitlines()[0])) / native
        work = self._judged(compute.share_row("its work meanwhile", 30, part))
        smi = self._nvidia_smi("kept", 2)
        self._run_pod("after", slice_of(2, 30))
        return [kept, self._judged(meanwhile), work, smi, self._nvidia_smi("after", 2)]

    def _upgraded(self) -> None:
        name = f"localhost/gpu-device-plugin:{self._version}"
        self.cluster.node.tag(name, f"{name}-next")
        self._version += "-next"
        self._install()
        self._wait_for_agent()

    def driver_limits(self) -> Sequence[Row]:
        """Whether this machine's driver could hold memory limits by itself."""
        missing = limits.missing(self._place)
        rows = [shown("memory limits by the driver", f"not run: {missing}")] if missing else []
        if int(self._place.card.driver.partition(".")[0]) < 535:
            rows.append(shown("driver", "older than 535: not what this project is proved with"))
        if not Path("/sys/fs/cgroup/cgroup.procs").exists():
            rows.append(
                shown("control groups", "version 1: no limits by the driver on any release")
            )
        return rows if missing else [*rows, *limits.measure(self._place)]

    def placed(self) -> Sequence[Row]:
        """The chart as it comes: its own scheduler, named by policy, asks its controller for a card."""
        self._clear()
        load_scheduler(self.cluster)
        self._install("controller.enabled=true", f"controller.clusterIP={ADDRESS}")
        wait_for_rollout(self.cluster, *DEPLOYMENTS, seconds=ROLLOUT_SECONDS)
        wanted = yaml.safe_load((CHART / "values.yaml").read_text())["scheduler"]["name"]
        asked = json.dumps(pod("asked", container("main", resources=slice_of(2, 30))))
        words = ("create", "--dry-run=server", "-o", "jsonpath={.spec.schedulerName}", "-f", "-")
        by = partial(self.cluster.kubectl, *words, stdin=asked)
        wait_for(f"new pods get {wanted}", lambda: by() == wanted, 60, 0.3)
        self._run_pod("placed", slice_of(2, 30))
        found = self.cluster.get("pod", "placed")["spec"]["schedulerName"]
        return [
            Row("the pod's scheduler", wanted, found, found == wanted),
            self._nvidia_smi("placed", 2),
        ]

    def uninstall(self) -> Sequence[Row]:
        """What the node has afterwards."""
        self._clear()
        Helm(self.cluster).uninstall()
        left = left_on_nodes(self.cluster) - {MODE.partition("=")[0]}
        wait_for("nothing is offered", lambda: not self._offers(), 60)
        return [
            Row("labels and annotations that stay", "none", ", ".join(left) or "none", not left)
        ]

    def end(self) -> None:
        """Everything down; what is left goes with the namespaces."""
        try:
            for program in self._programs:
                program.stop()
        finally:
            if self._cluster:
                self._cluster.stop()

    def log_end(self) -> str:
        """Of the three logs that were written last."""
        logs = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime)[-3:]
        ends = [f"--- {path.name}\n{path.read_text(errors='replace')[-600:]}" for path in logs]
        if self._cluster:
            try:
                ends.append(self.cluster.kubectl("get", "pods,events", "-A", seconds=10)[-3000:])
            except (ProgramError, subprocess.TimeoutExpired) as error:  # the API server failed
                ends.append(str(error))
        return "\n".join(ends)

    def _install(self, *more: str) -> None:
        Helm(self.cluster).install(*self._values, f"image.tag={self._version}", *more)

    def _wait_for_agent(self) -> None:
        wait_for_rollout(self.cluster, DAEMONSET, seconds=ROLLOUT_SECONDS)
        wait_for("the node offers its cards", self._offers, 60)

    def _offers(self) -> bool:
        allocatable = self.cluster.get("node", NODE)["status"]["allocatable"]
        return bool(int(allocatable.get(MEMORY, "0")))

    def _cards(self) -> Sequence[Mapping[str, Any]]:
        annotations = self.cluster.get("node", NODE)["metadata"].get("annotations", {})
        return list(json.loads(annotations.get(CARDS, '{"cards": []}'))["cards"])

    def _bytes(self, units: int) -> int:
        return self._place.card.total_bytes // MIB * units // self._units * MIB

    def _log(self, name: str) -> str:
        try:
            return self.cluster.kubectl("logs", name)
        except ProgramError:  # the kubelet has just begun
            return ""

    def _run_native(self, name: str, variables: Mapping[str, str] | None = None) -> None:
        """A pod that has the whole card and nothing of ours; with `variables`, one of MPS."""
        body = self._body(name, {}, STAY, {} if variables is None else {str(MPS): MPS})
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(MPS)} if variables else {}
        pod_root.take_card(body, self._place.card.uuid, {**pipes, **(variables or {})})
        self._start(name, body)

    def _run_pod(
        self, name: str, resources: Mapping[str, Any], command: Sequence[str] = STAY
    ) -> None:
        self._start(name, self._body(name, resources, command))

    def _body(
        self,
        name: str,
        resources: Mapping[str, Any],
        command: Sequence[str],
        more_mounts: Mapping[str, Path] = MappingProxyType({}),
    ) -> dict[str, Any]:
        mounts = {str(DEFAULT_STATE): self._state} if self._state else {}
        # Where the machine's own Python is outside /usr, or what it imports.
        paths = os.environ.get("GPU_CLUSTER_PATHS", self._python).split(":")
        more = {each for path in paths for each in Path(path).parts[1:2]} - MOUNTED
        more = {each for each in more if (MACHINE / each).is_dir()}
        mounts |= more_mounts
        return pod_root.machine_pod(
            name, command, resources, machine=MACHINE, mounts=mounts, more=sorted(more)
        )

    def _start(self, name: str, body: Mapping[str, Any]) -> None:
        self.cluster.apply(body)
        found = self.cluster.wait_for_phase(name, "Running", "Failed", "Succeeded", seconds=30)
        if found["status"]["phase"] != "Running":
            log = self.cluster.kubectl("logs", name, "--tail=5")
            raise RuntimeError(f"{name}: {found['status'].get('message', '')} {log}")

    def _clear(self) -> None:
        """No pod has the card: what an earlier step left, also one that failed, would take its share."""
        self.cluster.kubectl("delete", "pod", "--all", "--wait=true", "--timeout=60s")

    def _in(self, name: str, *words: str) -> str:
        return self.cluster.kubectl("exec", name, "--", *words, seconds=90)

    def _exec(self, name: str, *words: str) -> list[str]:
        command = [str(self.cluster.binaries.kubectl), "--kubeconfig"]
        command += [str(self.cluster.admin_kubeconfig), "exec", "-i", name, "--"]
        return [*command, *pod_root.on_card(*words)]

    def _tell(self, name: str, *words: str) -> Told:
        with self._place.running(self._place.base, self._exec(name, *words)) as told:
            return told

    def _nvidia_smi(self, name: str, units: int) -> Row:
        wanted = self._bytes(units) // MIB
        what, target = f"nvidia-smi in {name}", f"… / {wanted}MiB"
        if not self._has("nvidia-smi"):
            return Row(what, target, "not run: no nvidia-smi on this machine")
        said = self._in(name, "sh", "-c", "nvidia-smi 2>&1 || true")
        found = SHOWN.search(said)
        is_met = found is not None and int(found[2]) == wanted
        return Row(what, target, found[0] if found else said[-200:], is_met)

    def _has(self, program: str) -> bool:
        """Whether containers get it with the driver."""
        return (self._driver / "usr/bin" / program).exists()

    def _container(self, name: str) -> str:
        (status,) = self.cluster.get("pod", name)["status"]["containerStatuses"]
        return f"{status['containerID'][-12:]}, {status['restartCount']} restarts"

    def _judged(self, row: Row) -> Row:
        """A simulated card's speed is not this product's."""
        return shown(row.what, row.measured) if self._simulated else row


def _keep_kernel_settings() -> None:
    """The kubelet finds its values set, in files of this namespace, and leaves the machine's as they are."""
    for name, value in KERNEL.items():
        file = OPT / name.replace("/", "-")
        file.write_text(f"{value}\n")
        overlay_file(Path("/proc/sys", name), file, ())
