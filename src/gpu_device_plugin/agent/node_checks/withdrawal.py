"""The mark for uninstalling: the node is withdrawn, and answers.

The chart's pre-delete hook marks a node, and the agent leaves it and answers. A marked
node offers nothing (its device lists are empty, so that the kubelet counts 0 at once), and what no
grant names is removed. Running containers keep their files; claims are waited for, because only the
agent can give them back. The answer is an annotation of the node, for which `gpu-device-plugin
uninstall` waits. A mark is for one installation (`domain.grants.node_annotations`); that of an earlier one is
removed and has no effect. When the mark is gone, the agent serves again.
"""

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.admission.library_installer import LibraryInstaller
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.reconcile.reconciler import Reconciler
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.remains import Remains
from gpu_device_plugin.domain.grants.node_annotations import UNINSTALL_ANNOTATION
from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.kubernetes.objects.node_object import OwnNode

_log = structlog.get_logger("withdrawal")


@dataclass(eq=False)
class Withdrawal:
    """Follows the mark on the node."""

    node_store: NodeStore
    ledger_store: LedgerStore
    cluster: Cluster
    recorder: EventRecorder
    reconciler: Reconciler
    library: LibraryInstaller
    remains: Remains
    resources: Collection[str]

    def __post_init__(self) -> None:
        self._is_clean = False
        self._waited_for = ""
        self._reason_told = ""
        self.reconciler.passed.subscribe(self._after_pass)

    def follow(self) -> None:
        node = self.cluster.node
        if node is None:
            return
        mark = node.annotations.get(UNINSTALL_ANNOTATION, "")
        own = self.cluster.installation
        if mark and not own:
            return  # our own pod is not known yet, so it is not known whom the mark means
        if mark and mark != own:
            self.cluster.drop(annotation=UNINSTALL_ANNOTATION)
            mark = ""
        if mark != self.node_store.read().mark:
            self._turn(mark)
        elif mark:
            self._report(node)

    def _after_pass(self, _: None) -> None:
        """After a reconcile pass: what no grant names is removed, if nothing is uncertain."""
        if not self.node_store.read().mark:
            return
        self._is_clean = self.reconciler.is_idle
        if self._is_clean:
            self.remains.sweep()
        self.follow()

    def end(self) -> None:
        """The process ends: remove the state of a withdrawn node.

        Unless something is uncertain: an empty ledger alone may be one that was lost.
        """
        is_given_up = bool(self.node_store.read().mark) and self._is_clean
        if not is_given_up or self.ledger_store.ledger.grants:
            return
        try:
            _log.info("records of this node are removed", files=list(self.remains.forget()))
        except StorageError as error:
            _log.error("files stay on this node", error=str(error))

    def _turn(self, mark: str) -> None:
        self._is_clean = False
        self.library.leave(is_leaving=bool(mark))
        self.node_store.update(mark=mark, kept=None)
        if mark:
            text = "this node is marked for uninstalling: it offers nothing any more"
            self.recorder.node_note("Withdrawing", text, is_warning=False)
            self.reconciler.request_pass()
        else:
            text = "the mark for uninstalling was removed: the node serves again"
            self.recorder.node_note("WithdrawalEnded", text, is_warning=False)

    def _report(self, view: OwnNode) -> None:
        """Answer when nothing is uncertain, all files are gone and the node counts 0 units."""
        reason = self._reason(view)
        if reason != self._reason_told:
            self._reason_told = reason
            if reason:
                _log.info("not withdrawn yet", reason=reason)
        if reason:
            return
        pods = (str(grant.pod) for grant in self.ledger_store.ledger.grants.values())
        kept = tuple(sorted(set(pods)))
        if kept != self.node_store.read().kept:
            _log.info("withdrawn", kept=list(kept))
            self.node_store.update(kept=kept)

    def _reason(self, view: OwnNode) -> str:
        if not self._is_clean:
            return "it is not certain yet which pods have ended"
        counted = [name for name in self.resources if view.allocatable.get(name, "0") != "0"]
        if counted:
            return f"the kubelet still counts {', '.join(counted)}"
        return self._waits_for_claims()

    def _waits_for_claims(self) -> str:
        """Without the agent the kubelet cannot give claims back: their pods would never end."""
        grants = self.ledger_store.ledger.grants.values()
        pods = ", ".join(sorted({str(grant.pod) for grant in grants if grant.holder.claim}))
        if not pods:
            self._waited_for = ""
            return ""
        text = f"the uninstall waits for pods with claims, which could not end without the agent: {pods}"
        if pods != self._waited_for:
            self.recorder.node_note("WithdrawalWaits", text)
        self._waited_for = pods
        return text
