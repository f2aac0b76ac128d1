"""Pods of the sources' manifests on a rig's node, and programs in their containers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tools.harness.boxes import Boxes
from tools.harness.kubelet_pods import PodAdmission
from tools.harness.rig import Rig


async def apply(rig: Rig, manifest: Mapping[str, Any], name: str = "") -> PodAdmission:
    """The kubelet admits the pod of a Pod, Job or StatefulSet, here called `name` or as that is."""
    template = manifest if manifest["kind"] == "Pod" else manifest["spec"]["template"]
    limits = [each["resources"]["limits"] for each in template["spec"]["containers"]]
    vendors = [{key: n for key, n in limit.items() if "/" in key} for limit in limits]
    labels = template["metadata"].get("labels", {})
    return await rig.admit(name or manifest["metadata"]["name"], *vendors, labels=labels)


class Containers(Boxes):
    """Containers of pods with slices, and of pods that have devices whole."""

    async def environment(self, rig: Rig, pod: str) -> dict[str, str]:
        """As the container runtime would start a process in the pod."""
        container = await rig.kubelet.start_container(rig.uid(pod), "main-0")
        place = {"LD_LIBRARY_PATH": str(rig.cards.library.parent)}
        if "/etc/ld.so.preload" in container.mounts:
            place = self.box(rig, pod).environment
        return {"TZ": "UTC", **place, **container.env}

    async def run(self, rig: Rig, pod: str, program: str, *words: str) -> str:
        """What a program prints in the pod's container before it ends well."""
        return await self._output(await self.environment(rig, pod), program, *words)

    async def on_node(self, rig: Rig, program: str, *words: str) -> str:
        """What it prints outside of pods, where only the node's first card is looked at."""
        card = rig.cards.view().cards[0].uuid
        place = {"LD_LIBRARY_PATH": str(rig.cards.library.parent), "NVIDIA_VISIBLE_DEVICES": card}
        return await self._output(place, program, *words)

    async def _output(self, environment: Mapping[str, str], program: str, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            self.programs / program,
            *words,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()
