"""NVIDIA's feature labels on our node, and in a file where one is asked for.

The node's annotation names the labels that the agent wrote. It is written with them, in one patch: so
another run of the agent, or the uninstall, removes exactly those, and never another's. A file is
removed only where this run wrote it, or the annotation tells that an earlier run wrote labels.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.node.labels import (
    FEATURES_ANNOTATION,
    DriverVersions,
    Machine,
    listed_features,
    named_features,
)
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.settings.nvidia_configuration import FeatureSettings

_log = structlog.get_logger("features")


@dataclass(eq=False)
class FeatureLabels:
    """Keeps the labels to cards and configuration.

    A change of a label is one patch, so that no label vanishes in between.
    """

    settings: Callable[[], FeatureSettings]
    labels_of: Callable[[Sequence[Card], NodeState, Machine], Mapping[str, str]]
    cards: Callable[[], Sequence[Card] | None]
    driver: Callable[[], DriverVersions]
    state: StateReader
    cluster: Cluster
    recorder: EventRecorder

    def __post_init__(self) -> None:
        self._thread = Writer()
        self._written: dict[str, str] = {}
        self._stamp = 0
        self._file = self._file_error = ""
        self._taken: tuple[str, ...] = ()

    async def run(self) -> None:
        settings, state = self.settings(), self.state()
        if not settings.is_on or state.mark:
            path = self._file or (settings.output_file if self._own_labels() else "")
            self._want({})
            if await self._keep_file(path, None):
                self._file = ""
            return
        cards = self.cards()
        if cards is None or state.mode is None or "ConfigurationMissing" in state.faults:
            return  # what stands there stays
        kind = await self._thread.run(partial(_read, settings.machine_type_file))
        labels = dict(self.labels_of(cards, state, Machine(*self.driver(), kind)))
        if labels != self._written:
            self._written, self._stamp = labels, int(time.time())
        if not settings.omits_timestamp:
            stamped = self.labels_of((), state, Machine("", "", timestamp=self._stamp))
            labels = {**stamped, **labels}
        self._want(labels)
        text = "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))
        self._file = settings.output_file
        await self._keep_file(self._file, text)

    def _own_labels(self) -> frozenset[str]:
        """The labels that an agent has written on this node, in an earlier run too."""
        node = self.cluster.node
        return listed_features(node.annotations.get(FEATURES_ANNOTATION, "") if node else "")

    def _want(self, labels: Mapping[str, str]) -> None:
        node = self.cluster.node
        if node is None:
            return
        own = self._own_labels()
        taken = tuple(sorted(key for key in labels if key in node.labels and key not in own))
        if taken and taken != self._taken:
            text = f"labels that somebody else has set on this node stay as they are: {', '.join(taken)}"
            self.recorder.node_note("FeatureLabelsTaken", text)
        self._taken = taken
        wanted = {key: value for key, value in labels.items() if key not in taken}
        for key in own - wanted.keys():
            self.cluster.drop(label=key)
        if wanted:
            named = {FEATURES_ANNOTATION: named_features(wanted)}
            self.cluster.describe_node(labels=wanted, annotations=named)
        elif FEATURES_ANNOTATION in node.annotations:
            self.cluster.drop(annotation=FEATURES_ANNOTATION)

    async def _keep_file(self, path: str, text: str | None) -> bool:
        """Keep the file as it should be (None: no file), even if it was removed; whether it is so."""
        if not path:
            return True
        error = await self._thread.run(partial(_replace, Path(path), text))
        if error and error != self._file_error:
            _log.warning("the file of feature labels cannot be written", path=path, error=error)
        self._file_error = error
        return not error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _replace(path: Path, text: str | None) -> str:
    """Write the file whole where it is another, or remove it; returns what went wrong, or ""."""
    try:
        if text is None:
            path.unlink(missing_ok=True)
            return ""
        if _read(str(path)) == text.strip():
            return ""
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name with a dot first: NFD does not read it before it is complete.
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        return str(error)
    return ""
