"""Cards are cut as asked, or as the node's label asks, and never while somebody uses one.

On simulated cards, with the stand-in kubelet; the command runs as a person starts it.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.simulator.programs import hear, started
from tools.harness.kubelet_pods import StandInContainer, StandInPod
from tools.harness.rig import NODE, Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.domain.nvidia.mig_devices import MODELS
from gpu_device_plugin.nvml.card_session import profile_number

GPU = "nvidia.com/gpu"
OCCUPY = 'control("gpusim_occupy", 0, ctypes.c_uint32(0xffffffff), ctypes.c_uint64(MIB)); say("holds"); sys.stdin.read()'


async def mig(rig: Rig, *arguments: str, answer: bytes = b"") -> tuple[int, str]:
    """`mig apply` on the rig's node; exit code and all it wrote."""
    return await run(*command(rig, *arguments), answer=answer)


async def run(*words: str, answer: bytes = b"") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate(answer)
    return process.returncode or 0, output.decode()


def command(rig: Rig, *arguments: str) -> tuple[str, ...]:
    places = (f"--nvml-library={rig.cards.library}", f"--kubelet-dir={rig.root / 'k'}")
    return (sys.executable, "-m", "gpu_device_plugin", "mig", "apply", *arguments, *places)


def cut(rig: Rig) -> list[list[str]]:
    """The instances of each card."""
    return [[each.profile for each in card.instances] for card in rig.cards.view().cards]


async def test_cards_are_cut_after_what_goes_was_said_and_agreed_to() -> None:
    """Nothing happens with --dry-run or without a yes; what is cut so stays as it is (R-202)."""
    async with running_rig("a100", is_started=False) as rig:
        rig.cards.cut(0, ["3g.20gb"])
        old = rig.cards.view().cards[0].instances[0].uuid
        rig.cards.cut(1, ["1g.5gb"] * 7)
        kept = {each.uuid for each in rig.cards.view().cards[1].instances}

        code, text = await mig(rig, "MIG1g", "--dry-run")
        assert code == 0
        assert (
            f"1 instance will be destroyed (3g.20gb {old}); it will be cut into 7 x 1g.5gb" in text
        )
        assert "MIG mode will be turned on; it will be cut into 7 x 1g.5gb" in text
        assert "is cut into 7 x 1g.5gb already" in text
        code, text = await mig(rig, "MIG1g", answer=b"n\n")
        assert (code, cut(rig)[0]) == (1, ["3g.20gb"])

        code, text = await mig(rig, "MIG1g", answer=b"y\n")
        assert code == 0, text
        assert cut(rig) == [["1g.5gb"] * 7] * 8
        assert {each.uuid for each in rig.cards.view().cards[1].instances} == kept

        assert (await mig(rig, "MIG1g"))[0] == 0  # nothing to do, and nothing is asked
        assert (await mig(rig, "3g.20gb", "--yes"))[0] == 0
        assert cut(rig) == [["3g.20gb"] * 2] * 8


async def test_of_two_at_once_the_second_says_who_cuts_the_cards() -> None:
    """One destroyed what the other had just made. The first waits for its answer here."""
    async with running_rig("a100", is_started=False) as rig:
        words = command(rig, "MIG1g")
        pipe = asyncio.subprocess.PIPE
        first = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        assert first.stdout
        assert first.stdin
        said = await first.stdout.readline()
        assert b"it will be cut into" in said

        code, text = await mig(rig, "3g.20gb", "--yes")
        assert code != 0
        assert f"process {first.pid} (" in text
        assert "mig apply MIG1g" in " ".join(text.split())
        assert cut(rig) == [[]] * 8
        first.stdin.write(b"y\n")
        await first.communicate()
        assert cut(rig) == [["1g.5gb"] * 7] * 8
        assert (await mig(rig, "3g.20gb", "--yes"))[0] == 0


async def test_the_agent_offers_what_was_cut_beside_it() -> None:
    """Without a restart; the agent itself is no user of a card."""
    async with running_rig("a100", mode="default", mig_strategy="mixed") as rig:
        await until(lambda: rig.kubelet.allocatable(GPU) == 8, 60)
        code, text = await mig(rig, "MIG2g", "--yes")
        assert code == 0, text
        await until(lambda: rig.kubelet.allocatable("nvidia.com/mig-2g.10gb") == 24, 60)
        await until(lambda: rig.kubelet.allocatable(GPU) == 0, 60)


async def test_a_pod_with_a_gpu_keeps_every_card_as_it_is() -> None:
    """By the kubelet, and by name; without an answer of the kubelet nothing is known (R-204)."""
    async with running_rig("a100", mode="default") as rig:
        # The kubelet admits what asks for a resource that nobody has registered yet, and gives nothing.
        await until(lambda: rig.kubelet.allocatable(GPU) > 0, 60)
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        code, text = await mig(rig, "MIG7g", "--yes")
        assert code == 1, text
        assert "default/holder holds GPUs" in text
        assert cut(rig) == [[]] * 8
        await rig.kubelet.stop()
        code, text = await mig(rig, "MIG7g", "--yes")
        assert code == 1, text
        assert "PodResources List" in text
        assert cut(rig) == [[]] * 8


@pytest.mark.parametrize("driver", ["gpu-device-plugin", "gpu.nvidia.com", "disks.example.com"])
async def test_a_pod_with_a_gpu_by_a_claim_keeps_every_card_as_it_is(driver: str) -> None:
    """Whose driver gives it, ours or NVIDIA's; no process computes just now. Other devices are no GPUs."""
    async with running_rig("a100", is_started=False) as rig:
        main = StandInContainer("main", drivers=(driver,))
        await rig.kubelet.admit(StandInPod("default", "holder", "uid-holder", (main,)))
        code, text = await mig(rig, "MIG7g", "--yes")
        is_gpu = "example" not in driver
        assert (code, "default/holder holds GPUs" in text) == (int(is_gpu), is_gpu)
        assert cut(rig) == [[] if is_gpu else ["7g.40gb"]] * 8


async def test_where_the_nodes_processes_are_not_seen_every_card_stays_as_it_is() -> None:
    """A container without hostPID: a monitor of the node would not be noticed."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a pid namespace")
    async with running_rig("a100", is_started=False) as rig:
        hidden = ("unshare", "--pid", "--fork", "--mount-proc")
        code, text = await run(*hidden, *command(rig, "MIG7g", "--yes"))
        assert code == 1
        assert "does not show the kubelet" in text
        assert cut(rig) == [[]] * 8


async def test_a_process_on_a_card_keeps_every_card_as_it_is() -> None:
    """Also one of the host that no pod stands for; it is named with its card."""
    async with running_rig("a100", is_started=False) as rig:
        with started(rig.cards, OCCUPY) as user:
            assert hear(user) == "holds"
            code, text = await mig(rig, "MIG7g", "--yes")
            assert code == 1
            assert f"process {user.pid} uses card 0 (GPU-" in text
            assert cut(rig) == [[]] * 8
        assert (await mig(rig, "MIG7g", "--yes"))[0] == 0
        assert cut(rig) == [["7g.40gb"]] * 8


async def test_a_profile_that_no_card_has_is_refused_with_those_there_are() -> None:
    """Exit code 2, and nothing is changed; so on cards that cannot be cut (R-309)."""
    async with running_rig("a100", is_started=False) as rig:
        code, text = await mig(rig, "2g.7gb", "--yes")
        assert code == 2
        assert "MIG profile '2g.7gb' is none of" in text
        assert "1g.5gb" in text
        assert (await mig(rig))[0] == 2
        assert (await mig(rig, "MIG1g", "--watch"))[0] == 2
    async with running_rig("v100", is_started=False) as rig:
        code, text = await mig(rig, "MIG1g", "--yes")
        assert code == 2
        assert "no card of this node can be in MIG mode; it has Tesla-V100-SXM2-16GB" in text


@asynccontextmanager
async def watching(rig: Rig) -> AsyncIterator[None]:
    """`mig apply --watch` beside the test."""
    more = ("--watch", f"--node-name={NODE}", f"--kubeconfig={rig.root / 'kubeconfig'}")
    process = await asyncio.create_subprocess_exec(*command(rig, *more))
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def label(rig: Rig, profile: str | None) -> None:
    """The node's label; None removes it."""
    labels = {} if profile is None else {"gpu-device-plugin/mig-profile": profile}
    node: dict[str, Any] = {"metadata": {"name": NODE, "labels": labels}, "status": {}}
    await rig.api.put(f"/api/v1/nodes/{NODE}", json.loads(json.dumps(node)))


async def test_the_watch_follows_the_nodes_label_and_waits_for_users() -> None:
    """With an Event for each; a node without the label is left alone (R-203)."""
    async with running_rig("a100", is_started=False) as rig, watching(rig):
        with started(rig.cards, OCCUPY) as user:
            assert hear(user) == "holds"
            await label(rig, "MIG3g")
            await until(lambda: bool(rig.events("MigProfileWaits")), 60)
            assert f"process {user.pid}" in rig.events("MigProfileWaits")[0]["message"]
            assert cut(rig) == [[]] * 8
        await label(rig, None)
        await label(rig, "MIG2g")
        await until(lambda: cut(rig) == [["2g.10gb"] * 3] * 8, 60)
        await until(lambda: bool(rig.events("MigProfileApplied")), 60)


def test_every_profile_has_a_number_of_nvmls_and_no_two_of_a_model_the_same() -> None:
    """Those of the table that no simulated card is of as well."""
    for model in MODELS:
        numbers = [
            profile_number(each.compute_slices, each.memory_slices, each.kind)
            for each in model.profiles
        ]
        assert len(set(numbers)) == len(numbers)
