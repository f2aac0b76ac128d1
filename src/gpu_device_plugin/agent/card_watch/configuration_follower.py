"""The configuration in force: NVIDIA's file, named by a setting or chosen by a label of the node.

Disks may be stuck: a thread reads the files, another one CDI specifications, and nobody waits long. What
a pod holds of a card keeps that card from changing (`domain.nvidia.effective_configuration`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore, Signal
from gpu_device_plugin.disk.cdi_files import read_cdi_cards
from gpu_device_plugin.disk.device_nodes import imex_channels
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.last_good import LastGood
from gpu_device_plugin.disk.mps_serving import kept_by_daemon, waits_for
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.grants.cdi_spec import CdiCards, cards_in_cdi, cdi_names, has_cdi
from gpu_device_plugin.domain.grants.container_edits import CardsInCdi
from gpu_device_plugin.domain.node.modes import MIG_PROFILE_LABEL
from gpu_device_plugin.errors import ConfigError, shorten
from gpu_device_plugin.kubernetes.objects.events import time_stamp
from gpu_device_plugin.settings.agent_settings import Settings, kept_configuration
from gpu_device_plugin.settings.nvidia_configuration import (
    Configuration,
    LastRead,
    nvidia_configuration,
    read_if_changed,
    wrong_profile,
)

_log = structlog.get_logger("configuration")
_CDI_SECONDS = 4.0


class SeenCards(NamedTuple):
    """What the names of cards in CDI depend on."""

    cards: Sequence[Card]
    driver: str
    runtime: str
    specs: Sequence[CdiCards] | None = None


@dataclass(slots=True)
class InForce:
    """The configuration in force, which `ConfigurationFollower` alone changes."""

    current: Configuration  # the settings alone while no file was read


@dataclass(eq=False)
class ConfigurationFollower:
    """Follows NVIDIA's configuration file, and the label that chooses it among several."""

    settings: Settings
    node_store: NodeStore
    labels: Callable[[], Mapping[str, str] | None]
    holders: Callable[[], Sequence[str] | None]
    recorder: EventRecorder
    in_force: InForce
    remember: Callable[[], None]

    def __post_init__(self) -> None:
        self.changed = Signal[None]()  # emitted when another configuration is in force
        self._thread, self._cdi_thread = Writer(), Writer()
        self._is_wanted = asyncio.Event()
        # As read last; as in force, before its cards are named.
        self._base = self._unnamed = self.in_force.current
        self._has_profile = False
        self._refused = ""
        self._is_missing_reported = False
        self._last_read = LastRead()
        self._last_good = LastGood(kept_configuration(self.settings))
        self._is_in_force = not self.settings.config_file_srcdir
        self._has_base = self._is_in_force
        self._specs: Sequence[CdiCards] | None = None
        self._look: Callable[[], SeenCards] | None = None
        self._seen: SeenCards | None = None  # by which cards are named
        self._cdi = CardsInCdi()
        self._logged_names = ""
        self._doubt = ""  # why they could not be by CDI, when specifications were read last

    @property
    def may_choose(self) -> bool:
        """Whether the way of cards into containers is, or may yet be, the agent's to choose."""
        has_file = self.settings.config_file or self.settings.config_file_srcdir
        return self._base.access.is_auto or bool(has_file and self._last_read.result is None)

    async def read_cdi(self) -> None:
        """Read the node's CDI specifications, and follow them once it is known how cards are named."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CDI_SECONDS):
                if self.settings.cdi_dir:
                    job = partial(read_cdi_cards, Path(self.settings.cdi_dir))
                    self._specs = await self._cdi_thread.run(job)
        self._name_cards()

    def name_cards(self, look: Callable[[], SeenCards]) -> None:
        """From now on it is known how containers' cards are named, under any configuration."""
        self._look = look
        self._name_cards()

    def _name_cards(self) -> None:
        """As it is now; that cards cannot come by CDI any more counts when two reads say so.

        A specification may be half written, or older than the cards; and a container that gets its
        card in a way that its runtime does not know starts without. The first read decides alone.
        """
        if self._look is None:
            return
        seen = self._look()._replace(specs=self._specs)
        problem = self._in_cdi(self._unnamed, seen).problem
        is_new, self._doubt = problem != self._doubt, problem
        if problem and is_new and self._seen is not None:
            return
        self._seen = seen
        self._apply_names()

    def _in_cdi(self, base: Configuration, seen: SeenCards) -> CardsInCdi:
        """What the specifications say of the cards, and for `auto` the node too."""
        if base.access.is_auto and not has_cdi(seen.runtime):
            known = seen.runtime or "not known"
            text = f"the container runtime ({known}) has CDI not on by default"
            return CardsInCdi(problem=text)
        if base.access.is_auto and not seen.driver:
            return CardsInCdi(problem="the driver has not answered")
        if self.settings.cdi_dir and seen.specs is None:
            return CardsInCdi(problem="the disk of the CDI specifications did not answer")
        wanted = cdi_names(seen.cards, is_by_index=base.is_by_index)
        cards = cards_in_cdi(seen.specs or (), wanted, seen.driver)
        return cards._replace(is_misfit=True) if base.access.is_auto and cards.problem else cards

    @property
    def names(self) -> str:
        """How containers' cards are named, where that was not simply set; empty before it is decided."""
        if self._seen is None or not self._unnamed.access.is_auto:
            return ""
        access, problem = self.in_force.current.access, self._cdi.problem
        how = f"cards by {', '.join(access.strategies)}"
        return f"{how}: {problem}" if problem else f"{how} ({access.cdi_kind})"

    def find_cdi_misfit(self) -> str | None:
        """What is wrong with the specification that is there; `auto` needs one, and else one elsewhere, which nobody sees here, may be right."""
        access, cards = self._unnamed.access, self._cdi
        is_used = access.asks_for_cdi or access.is_auto
        return cards.problem if is_used and cards.is_misfit else None

    def run(self, _: None = None) -> None:
        """Look at labels and files; `follow` reads the files."""
        if not self._is_in_force and self._last_read.result is None:
            text = f"the node's label {self.settings.node_label} has not been read yet"
            self.node_store.set_fault("ConfigurationMissing", text)
        has_file = self.settings.config_file or self.settings.config_file_srcdir
        if not self._has_profile and self.labels() is not None:
            self._has_profile = True
            remembered = self.node_store.read().mig_profile
            profile = self._asked_profile() if remembered is None else remembered
            self._put_in_force(replace(self._unnamed, mig_profile=profile))
        self._is_wanted.set()
        if not has_file:
            self._take(self._base)

    async def follow(self) -> None:
        """Read the files each time that `run` was called, until cancelled."""
        has_file = self.settings.config_file or self.settings.config_file_srcdir
        if not has_file:
            await self._keep(None)
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            if has_file:
                await self._read()

    async def _read(self) -> None:
        labels, name = self.labels(), None
        if self.settings.config_file_srcdir:
            if labels is None:
                return  # not read yet
            name = labels.get(self.settings.node_label, "")
        job = partial(read_if_changed, self.settings, name, self._last_read)
        read = await self._thread.run(job)
        is_new, self._last_read = read is not self._last_read, read
        if isinstance(read.result, Configuration):
            self._base, self._has_base = read.result, True
            if is_new:
                self.node_store.update(older_configuration="")
                await self._keep(read.text if read.path else None)
        elif read.result is not None and is_new:
            if not self._has_base:
                await self._thread.run(self._take_last_good)
            self._refuse(read.result)
        if self._has_base:
            self._take(self._base)

    def _take_last_good(self) -> None:
        """That of the last run counts where the choice of this one is bad."""
        with suppress(ConfigError):
            if self._last_good.since_seconds is not None:
                self._base = nvidia_configuration(self.settings, self._last_good.path)
                self._has_base = True

    async def _keep(self, text: str | None) -> None:
        """Keep a file's text for the next start; without a file nothing may be older than none."""
        last = self._last_good
        job = last.forget if text is None else partial(last.keep, text)
        try:
            await self._thread.run(job)
        except OSError as error:
            _log.warning("the configuration is not kept for the next start", error=str(error))

    @property
    def file(self) -> str:
        """Where the configuration comes from, for people."""
        return str(self._last_read.path or self.settings.config_file or "the settings")

    def follow_mps(self) -> None:
        """Publish what is served now; of a daemon that was killed, which cards it has not given back.

        The daemon's lock lies in memory (below /run). A directory that is configured no more counts
        until another one is, and its cards are back.
        """
        root, wanted = self.node_store.read().mps_root, self.in_force.current.mps_root
        served = kept_by_daemon(root)
        self.node_store.update(mps_waits=waits_for(Path(wanted)) if wanted else "")
        if served or wanted in {"", root}:
            self.node_store.update(mps_served=served)
        else:
            self.node_store.update(mps_root=wanted, mps_served=kept_by_daemon(wanted))
            self.remember()

    def follow_imex(self) -> None:
        """Publish which of the configured IMEX channels the node has."""
        self.node_store.update(imex_channels=imex_channels(self.in_force.current.imex_channels))

    def _refuse(self, error: ConfigError) -> None:
        if self._has_base:
            since = self._last_good.since_seconds
            which = "previous configuration" if since is None else f"one of {time_stamp(since)}"
            text = f"{error}; the {which} stays in force"
            self.node_store.update(older_configuration=" ".join(shorten(text).split()))
            self.recorder.node_note("ConfigurationRefused", text)
        else:
            self._is_missing_reported = True
            self.recorder.fault("ConfigurationMissing", str(error))

    def _apply_names(self) -> None:
        wanted = self.in_force.current = self._unnamed
        if self._seen is not None:
            self._cdi = self._in_cdi(wanted, self._seen)
            access = wanted.access.with_cdi(self._cdi, is_by_index=wanted.is_by_index)
            self.in_force.current = replace(wanted, access=access)
        before, self._logged_names = self._logged_names, self.names
        if self._logged_names not in ("", before):
            _log.info("cards are named", how=self._logged_names)

    def _put_in_force(self, wanted: Configuration) -> None:
        """Its profile is remembered: what pods hold keeps it over a restart, whatever is asked then."""
        self._unnamed = wanted
        self._apply_names()
        if wanted.mig_profile != self.node_store.read().mig_profile:
            self.node_store.update(mig_profile=wanted.mig_profile)
            self.remember()

    def _asked_profile(self) -> str:
        return (self.labels() or {}).get(MIG_PROFILE_LABEL, self._base.mig_profile)

    def _profile(self, holders: Sequence[str]) -> str:
        """The MIG profile: on a node in use it does not change (R-204), nor to one that its cards lack."""
        asked, current = self._asked_profile(), self.in_force.current.mig_profile
        wrong = wrong_profile(self.node_store.read().cards, asked)
        if asked == current or not (holders or wrong):
            self._refused = ""
            return asked
        why = wrong or f"{', '.join(holders)} hold cards; drain the node"
        text = f"the MIG profile stays {current or 'unset'} and does not become {asked or 'unset'}: {why}"
        if text != self._refused:
            self.recorder.node_note("MigProfileRefused", text)
        self._refused = text
        return current

    def _take(self, base: Configuration) -> None:
        """Put it in force with the MIG profile that is asked for, once the holders are known."""
        holders = self.holders()
        if holders is None:
            return  # who holds what now is not known
        wanted = replace(base, mig_profile=self._profile(holders))
        if wanted == self._unnamed and self._is_in_force:
            return
        self._put_in_force(wanted)
        was_in_force, self._is_in_force = self._is_in_force, True
        if was_in_force:
            text = f"{self._last_read.path or 'another configuration'} is in force"
            self.recorder.node_note("ConfigurationChanged", text, is_warning=False)
        if self._is_missing_reported:
            self._is_missing_reported = False
            self.recorder.fault("ConfigurationMissing", None)
        self.node_store.set_fault("ConfigurationMissing", None)
        self.changed.emit(None)
