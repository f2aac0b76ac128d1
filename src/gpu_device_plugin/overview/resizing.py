"""A resize as a person asks for it: the container, the annotation of its pod, and what the agent answers."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.pod_annotations import RESIZE, RESIZED
from gpu_device_plugin.domain.fractions.resize import (
    AskedSize,
    ContainerAnswer,
    ResizeAnswer,
    ResizeState,
    parse_resize,
    parse_resized,
    resize_text,
    size_text,
    understood,
)
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRequest
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.errors import ClusterError, ConfigError, NotKnownError, clip
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import check_answer
from gpu_device_plugin.kubernetes.objects.explained_pod import ExplainedPod
from gpu_device_plugin.kubernetes.objects.pod_spec import whole_request
from gpu_device_plugin.kubernetes.objects.survey import Survey

_LOOK_SECONDS = 0.5
_LOOKS = 10  # without --wait
_MOST_CONFLICTS = 8


class WantedResize(NamedTuple):
    """Which container is to have what, as in `AskedSize`; without a name, the only one that has a slice."""

    namespace: str
    name: str
    container: str
    units: int | None = None
    percent: int | None = None
    within_seconds: int | None = None

    def __str__(self) -> str:
        """`namespace/name, container main`."""
        return f"{self.namespace}/{self.name}, container {self.container}"

    @property
    def asked(self) -> AskedSize:
        units = None if self.units is None else Units(self.units)
        return AskedSize(units, self.percent, self.within_seconds)

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class WrittenResize(NamedTuple):
    """A resize that stands in its pod's annotation as `text`."""

    wanted: WantedResize
    text: str
    uid: str
    node: str


class Progress(NamedTuple):
    """What the agent says of it, for people."""

    state: ResizeState
    text: str


async def ask_resize(api: ApiServer, wanted: WantedResize) -> WrittenResize:
    """Write the annotation; what other containers of the pod ask stays in it.

    NotKnownError: There is no such pod or container. ConfigError: The container cannot be resized.
    """
    for _ in range(_MOST_CONFLICTS):
        pod = await _pod(api, wanted)
        container, text = _asking(pod, wanted)
        if await _write(api, wanted, pod.metadata.resource_version, text):
            written = wanted._replace(container=container)
            return WrittenResize(written, text, pod.metadata.uid, pod.spec.node_name)
    raise ClusterError(
        f"pod {wanted.namespace}/{wanted.name} is changed again and again: ask later"
    )


def _asking(pod: ExplainedPod, wanted: WantedResize) -> tuple[str, str]:
    """The container's name, and the pod's annotation with what it asks."""
    if pod.status.is_over:
        raise ClusterError(f"pod {wanted.namespace}/{wanted.name} has ended")
    if not pod.spec.node_name:
        text = "is on no node yet: change what it asks for instead"
        raise ClusterError(f"pod {wanted.namespace}/{wanted.name} {text}")
    name = choose_container(whole_request(pod), wanted.container).name
    answer = parse_resized(pod.annotations.get(RESIZED, ""))
    before, answered = pod.annotations.get(RESIZE, ""), answer.asked if answer else ""
    return name, _asked_anew(name, wanted.asked, before, answered)


def _asked_anew(name: str, asked: AskedSize, before: str, answered: str) -> str:
    """The annotation `before` with what this container asks now, in a text that answers nothing of before.

    `answered` is what the agent has answered. What others ask stays as it is written. RequestError: it is too long.

    >>> _asked_anew("main", AskedSize(Units(4)), "main=mem:4;side=mem:1", "")
    'side=mem:1;main=mem:04'
    """
    said = {*before.split(";"), *answered.split(";")}
    parts = before.split(";") if understood(before) else []
    part = resize_text({name: asked})
    while part in said:
        part = part.replace(":", ":0", 1)
    text = ";".join([*(each for each in parts if each.partition("=")[0] != name), part])
    parse_resize(text)
    return text


async def run_resize(
    api: ApiServer, wanted: WantedResize, tell: Callable[[str], object], *, is_waited_for: bool
) -> str:
    """Ask, and give the agent's answer: the first one, or with `is_waited_for` the last; `tell` gets others.

    ClusterError: It is refused, or was not reached within its time.
    """
    written, told = await ask_resize(api, wanted), ""
    for look in count():
        found = await _look(api, written)
        if found and found.state is ResizeState.REFUSED:
            raise ClusterError(found.text)
        if found and (found.state is ResizeState.DONE or not is_waited_for):
            return found.text
        if found and found.text != told:
            told = found.text
            tell(told)
        if look == _LOOKS and not is_waited_for:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return f"asked; the agent of node {written.node} has not answered yet: `kubectl gpu why` tells, or --wait"


def choose_container(request: PodRequest, name: str) -> ContainerRequest:
    """The container of this name, or without one the only one with a slice that stays."""
    mem = Resource.MEM
    lasting = [c for c in request.containers if c.kind is not ContainerKind.INIT and c.amount(mem)]
    names = few([each.name for each in lasting]) or "none"
    pod = f"pod {request.ref}"
    if not name:
        if len(lasting) != 1:
            text = (
                f"{pod} has no single container with a slice ({names}); name one with --container"
            )
            raise ConfigError(text)
        return lasting[0]
    found = request.container(name)
    if found is None:
        raise NotKnownError(f"{pod} has no container {clip(name)}; with a slice: {names}")
    if found not in lasting:
        is_init = found.kind is ContainerKind.INIT
        why = "is an init container: it ends" if is_init else f"asks for no {mem}"
        raise ConfigError(f"container {name} of {pod} {why}; with a slice: {names}")
    return found


async def _look(api: ApiServer, of: WrittenResize) -> Progress | None:
    """What the agent says of it; None as long as it has said nothing.

    ClusterError: The pod has ended, or something else is asked of it now.
    """
    pod = await _pod(api, of.wanted)
    if pod.metadata.uid != of.uid or pod.status.is_over:
        raise ClusterError(f"pod {of.wanted.namespace}/{of.wanted.name} has ended")
    # Others of its containers may be resized too.
    of = of._replace(text=pod.annotations.get(RESIZE, ""))
    if understood(of.text).get(of.wanted.container) != of.wanted.asked:
        raise ClusterError(f"something else is asked of {of.wanted} now")
    answer = parse_resized(pod.annotations.get(RESIZED, ""))
    return _progress(of, answer) if answer else None


def _progress(of: WrittenResize, answer: ResizeAnswer) -> Progress | None:
    if answer.asked != of.text:
        return None
    if answer.text:
        return Progress(ResizeState.REFUSED, answer.text)
    found = answer.containers.get(of.wanted.container)
    return Progress(found.state, _text(of.wanted, found, answer.unit_mib)) if found else None


def _text(wanted: WantedResize, of: ContainerAnswer, unit_mib: int) -> str:
    unit = next((unit for unit in MemoryUnit if unit.mib == unit_mib), MemoryUnit.GIB)
    has = f"{wanted} has {size_text(UnitsAndPercent(Units(of.mem), of.core), unit)}"
    return f"{has}: {of.text}" if of.text else has


async def _pod(api: ApiServer, wanted: WantedResize) -> ExplainedPod:
    pod = await Survey(api).pod(wanted.namespace, wanted.name)
    if pod is None:
        raise NotKnownError(f"no pod {wanted.namespace}/{wanted.name}")
    return pod


async def _write(api: ApiServer, wanted: WantedResize, version: str, text: str) -> bool:
    """Whether it was written: the pod was still of this version."""
    body = {"metadata": {"resourceVersion": version, "annotations": {RESIZE: text}}}
    answer = await api.call(Request("PATCH", wanted.path, body=body))
    return answer.status != 409 and check_answer(answer, f"PATCH {wanted.path}").is_success
