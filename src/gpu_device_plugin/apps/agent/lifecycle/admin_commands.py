"""What a person can ask on this node: `why` and `recover`."""

from collections.abc import Mapping
from typing import Any

from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.lifecycle.admin_socket import Command
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.node_state import StateReader
from gpu_device_plugin.errors import NotKnownError


class AdminCommands:
    """Answers the CLI's commands through the admin socket."""

    def __init__(
        self,
        recorder: EventRecorder,
        ledger_store: LedgerStore,
        cards: CardInventory,
        state: StateReader,
    ) -> None:
        self._recorder = recorder
        self._ledger_store = ledger_store
        self._cards = cards
        self._state = state

    def by_name(self) -> Mapping[str, Command]:
        """The commands."""
        return {"why": self._why, "recover": self._recover}

    def _why(self, question: Mapping[str, Any]) -> str:
        namespace, name = str(question.get("namespace", "")), str(question.get("name", ""))
        return self._recorder.why(namespace, name, self._ledger_store.living)

    def _recover(self, question: Mapping[str, Any]) -> str:
        wanted = str(question.get("card", ""))
        shown = [card for card in self._state().cards if card.is_shown]
        card = next((c for c in shown if wanted in (c.uuid, str(c.index))), None)
        if not self._cards.recover(card.uuid if card else wanted):
            known = ", ".join(f"{c.index} ({c.uuid})" for c in shown) or "none"
            raise NotKnownError(f"no card {wanted!r} on this node; known: {known}")
        if card is None:
            return f"card {wanted}: it is not there any more; what was known of it is removed\n"
        return f"card {wanted}: its faults are cleared; a fault that is still there takes it out again\n"
