"""Whether the node can place pods now, and if not, why not."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
from gpu_device_plugin.agent.card_watch.configuration_follower import ConfigurationFollower
from gpu_device_plugin.agent.claims.claim_service import ClaimEndpoint
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.publish.device_lists import DeviceLists
from gpu_device_plugin.domain.node.memory_enforcer import USUAL_ENFORCERS
from gpu_device_plugin.domain.node.modes import is_served
from gpu_device_plugin.domain.node.state import NodeState, StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.web.http_server import ReadyState


@dataclass(eq=False)
class Readiness:
    """What /readyz says."""

    state: StateReader
    cards: CardInventory
    device_lists: DeviceLists
    cluster: Cluster
    schemes: Schemes
    claims: ClaimEndpoint
    configuration: ConfigurationFollower
    idle_sharing: Callable[[], str | None]
    state_dir: str
    has_read_state: bool = False
    is_prepared: bool = False

    def tell(self) -> ReadyState:
        """Whether the node is ready, and the reasons, one per line."""
        state = self.state()
        return self._without_resources(state) or self._with_resources(state)

    def _without_resources(self, state: NodeState) -> ReadyState | None:
        """What there is to say before it is known what to offer, or if that is nothing."""
        if not self.has_read_state:
            return ReadyState(
                is_ready=False,
                text=f"state: {self.state_dir} is not read yet; its disk is slow or stuck",
            )
        if state.mark:
            kept = "not done yet" if state.kept is None else f"{len(state.kept)} pods keep files"
            return ReadyState(
                is_ready=True,
                text=f"ready: withdrawn from this node, which is to be uninstalled; {kept}",
            )
        if state.mode is None:
            trouble = self.cluster.node_trouble or "the API server has not answered"
            return ReadyState(
                is_ready=False, text=f"mode: waiting for the node's labels; {trouble}"
            )
        if not self.schemes.offers(state):
            later = "" if is_served(state.mode) else ", which is not served yet"
            return ReadyState(is_ready=True, text=f"ready: mode {state.mode}{later}; no resources")
        return None

    def _with_resources(self, state: NodeState) -> ReadyState:
        problems = [f"{reason}: {text}" for reason, text in state.faults.items()]
        if self.cards.missing:
            problems.append(f"cards: {self.cards.missing}")
        if not self.is_prepared:
            problems.append("grants: still comparing with what the kubelet holds")
        problems += self.device_lists.not_ready(state)
        if trouble := self.claims.trouble:
            problems.append(f"claims: {trouble}")
        if problems:
            return ReadyState(is_ready=False, text="\n".join(problems))
        served = ", ".join(self.device_lists.registered_resources(state))
        out = ", ".join(
            f"card {c.index if c.is_shown else c.uuid} {state.unhealthy[c.uuid]}"
            for c in state.cards
            if c.uuid in state.unhealthy
        )
        by = {state.memory_by(card.uuid) for card in state.cards if state.isolates}
        enforced = "".join(f"; memory by {each}" for each in sorted(by - USUAL_ENFORCERS))
        tail = f"; out: {out}" if out else ""
        more = (self.configuration.names, state.older_configuration, self.cluster.taken_out_trouble)
        tail += "".join(f"; {each}" for each in more if each)
        tail += f"; {idle}" if (idle := self.idle_sharing()) else ""
        return ReadyState(is_ready=True, text=f"ready: mode {state.mode}, {served}{enforced}{tail}")
