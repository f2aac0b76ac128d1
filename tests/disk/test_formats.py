"""The promise: state files of each released format, and of the next release, are read without a loss.

`data/layout1` holds files as the agent writes them, without keys that have a default; the zeros up
to a whole block are left out.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.held import fraction

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, VERSION, GrantStore, Loaded
from gpu_device_plugin.disk.state_file import (
    CardsRecord,
    MemoryFile,
    NodeRecord,
    cards_of,
    cards_record,
    health_of,
)
from gpu_device_plugin.domain.cards.health_values import CardHealth, Fault, Health, Recovery
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.fraction import fraction_of, to_record, with_amounts
from gpu_device_plugin.domain.fractions.resize import sizes_of
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.grant import Grant, Resized, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef

BLOCK = 4096
DATA = Path(__file__).parent / "data"
BOOT = "4b7e1f5a-0d52-4c0e-9f0a-6f1f6f1d2c11"
CARDS = tuple(f"GPU-0000000{n}-aaaa-bbbb-cccc-00000000000{n}" for n in range(4))
TRAIN = fraction(
    "0a1b2c3d4e5f6071",
    PodRef("team-a", "train-0", "8f1c7a52-54a8-4a0e-8a0f-1d2f5a3c9b01"),
    "main",
    units={Resource.MEM: ("m00", "m01"), Resource.CORE: tuple(f"c0{digit}" for digit in range(10))},
    cards=CARDS[:1],
    card_bytes=(2 << 30,),
    mem_units=2,
    core_percent=10,
    pod_units=2,
    library_version="0.1.0-0123456789ab",
    created_seconds=1763770000.25,
)
PREPARE = fraction(
    "1122334455667788",
    PodRef("team-a", "prepare-1", "8f1c7a52-54a8-4a0e-8a0f-1d2f5a3c9b02"),
    "fetch",
    kind=ContainerKind.INIT,
    index=1,
    units={Resource.MEM: ("m10",)},
    cards=CARDS[1:2],
    mem_units=1,
    pod_units=3,
    mode="cgpu",
    is_isolated=False,
    created_seconds=1763770010.0,
)
WIDE = fraction(
    "99aabbccddeeff00",
    PodRef("team-b", "wide-2"),
    "",
    units={Resource.MEM: ("m20", "m30")},
    cards=CARDS[2:],
    card_bytes=(128 << 20, 128 << 20),
    mem_units=2,
    pod_units=2,
    unit_mib=128,
    mode="share",
    is_isolated=False,
    is_checked=False,
    library_version="0.0.9-ba9876543210",
    created_seconds=1763770020.5,
)
LEDGER = {grant.slice_id: grant for grant in (TRAIN, PREPARE, WIDE)}
GRANTS = st.builds(
    fraction,
    slice_id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True),
    pod=st.builds(PodRef, st.text(), st.text(), st.text()),
    container=st.text(),
    kind=st.sampled_from(ContainerKind),
    index=st.integers(0, 9),
    units=st.fixed_dictionaries(
        {
            Resource.MEM: st.integers(0, 40).map(lambda n: unit_ids(Resource.MEM, 3, n)),
            Resource.CORE: st.integers(0, 40).map(lambda n: unit_ids(Resource.CORE, 3, n)),
        }
    ),
    cards=st.lists(st.text(), unique=True, min_size=1).map(tuple),
    mem_units=st.integers(0, 1 << 40),
    core_percent=st.integers(0, 100),
    pod_units=st.integers(0, 1 << 40),
    unit_mib=st.sampled_from([128, 1024]),
    mode=st.sampled_from([NodeMode.CORE_MEM, NodeMode.CGPU, NodeMode.SHARE]).map(str),
    resized=st.none()
    | st.builds(
        Resized,
        st.builds(UnitsAndPercent, st.integers(0, 40), st.integers(0, 100)),
        st.integers(1, 9).map(lambda n: {Resource.MEM: unit_ids(Resource.MEM, 4, n)}),
        st.integers(0, 1 << 31),
    ),
    is_isolated=st.booleans(),
    is_checked=st.booleans(),
    library_version=st.text(),
    created_seconds=st.floats(0, 1e12),
).map(lambda made: AliyunScheme().restore(made, to_record(made)))


def laid_out(state: Path) -> Path:
    """The files of the first format in a state directory; the path of its grants."""
    for file in (DATA / "layout1").iterdir():
        content = file.read_bytes()
        (state / file.name).write_bytes(content + bytes(-len(content) % BLOCK))
    return state / "grants"


def store_at(path: Path) -> tuple[GrantStore, Loaded]:
    store = GrantStore(path.parent, BOOT)
    return store, store.load(7.0)


def written_by_next(state: Path) -> dict[str, Any]:
    """The grants file of a release to come, sealed in place; its content."""
    content: dict[str, Any] = json.loads((DATA / "next" / "grants.json").read_text())
    file = SealedFile(state / KIND, KIND, VERSION)
    file.write([json.dumps(content).encode()], BOOT)
    return content


def content_now(path: Path) -> dict[str, Any]:
    sealed = SealedFile(path, KIND, VERSION).read()
    assert sealed is not None
    content: dict[str, Any] = json.loads(sealed.payload)
    return content


def test_the_grants_of_the_first_format_are_read(tmp_path: Path) -> None:
    """Every value of every grant, of several kinds of pods."""
    _, loaded = store_at(laid_out(tmp_path))

    assert loaded == Loaded(Ledger(LEDGER))


def test_cards_and_node_of_the_first_format_are_read(tmp_path: Path) -> None:
    """Numbers, the cards last seen, an open fault, the mode."""
    laid_out(tmp_path)
    cards, bad = MemoryFile(tmp_path, "cards", CardsRecord, BOOT).load(7.0)
    node, also_bad = MemoryFile(tmp_path, "node", NodeRecord, BOOT).load(7.0)

    assert (bad, also_bad) == (None, None)
    assert cards.numbers == {uuid: number for number, uuid in enumerate(CARDS)}
    assert [(card.uuid, card.index, card.memory_mib) for card in cards_of(cards)] == [
        (CARDS[0], 0, 16160),
        (CARDS[1], -1, 16160),
    ]
    assert cards.health is not None
    health = health_of(cards.health)
    assert (health.boot_id, health.driver, health.outage) == (BOOT, "575.57.08", None)
    assert [(card.uuid, card.is_shown) for card in health.cards] == [
        (CARDS[0], True),
        (CARDS[1], False),
    ]
    assert health.cards[1].faults == (
        Fault(
            "Xid79",
            "XID 79 (GPU has fallen off the bus)",
            Recovery.RESET,
            4211.5,
            4211.5,
            is_action_asked=True,
        ),
    )
    labels = {"ack.node.gpu.schedule": "cgpu"}
    assert node == NodeRecord("cgpu", "GiB", labels, is_from_label=True, wished="core_mem")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(GRANTS, unique_by=lambda grant: grant.slice_id, max_size=4))
def test_every_ledger_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, grants: list[Grant]
) -> None:
    """What this release writes it reads."""
    path, ledger = tmp_path_factory.mktemp("s") / KIND, {g.slice_id: g for g in grants}
    store, _ = store_at(path)
    store.save(Ledger(ledger))

    assert store.read() == Ledger(ledger)
    assert store_at(path)[1] == Loaded(Ledger(ledger))


def test_an_agent_that_knows_no_resize_counts_a_grown_slice_as_it_is(tmp_path: Path) -> None:
    """It reads the other keys: memory and percent with what was grown, and writes back what it does not know."""
    extra: dict[str, tuple[str, ...]] = {Resource.MEM: ("m02", "m03")}
    resized = Resized(UnitsAndPercent(Units(4), 5), extra, 3)
    grown = with_amounts(replace(TRAIN, resized=resized), fraction_of(TRAIN), 10)
    store, _ = store_at(tmp_path / KIND)
    store.save(Ledger({grown.slice_id: grown}))
    [record] = content_now(tmp_path / KIND)["grants"]

    assert record["units"][Resource.MEM] == ["m00", "m01"]
    assert (record["mem_units"], record["core_percent"]) == (4, 10)
    assert record["resized"] == {
        "units": 4,
        "percent": 5,
        "extra": {"aliyun.com/gpu-mem": ["m02", "m03"]},
        "revision": 3,
    }


@pytest.mark.parametrize(("mem_units", "limit"), [(4, 4), (2, 4), (0, 4), (4, 9)])
def test_amounts_that_another_agent_wrote_are_no_more_than_a_grown_slice_has(
    tmp_path: Path, mem_units: int, limit: int
) -> None:
    """One that knows no resize writes them without what was grown; the units tell the request."""
    resized = Resized(UnitsAndPercent(Units(4), 5), {Resource.MEM: ("m02", "m03")}, 3)
    grown = with_amounts(replace(TRAIN, resized=resized), fraction_of(TRAIN), 10)
    store, _ = store_at(tmp_path / KIND)
    store.save(Ledger({grown.slice_id: grown}))
    content = content_now(tmp_path / KIND)
    content["grants"][0]["mem_units"] = mem_units
    content["grants"][0]["resized"]["units"] = limit
    SealedFile(tmp_path / KIND, KIND, VERSION).write([json.dumps(content).encode()], BOOT)
    [read] = store_at(tmp_path / KIND)[1].ledger.grants.values()

    four = UnitsAndPercent(Units(4), 10)
    assert sizes_of(read) == (four._replace(units=Units(2)), four, four._replace(percent=5))
    assert read.resized is not None
    assert read.resized.revision == (3 if limit == 4 else 4)
    assert read.is_sized == (limit == 4)
    store.save(Ledger({read.slice_id: read}))
    assert store.read().grants == {read.slice_id: read}


def test_what_only_the_next_release_knows_is_written_back_as_it_was(tmp_path: Path) -> None:
    """Keys of the file, a grant, its holder and a share; a grant that means nothing here."""
    was = written_by_next(tmp_path)
    store, loaded = store_at(tmp_path / "grants")

    assert loaded.ledger.grants == {TRAIN.slice_id: TRAIN}
    assert "grant 1 is left as it is" in (loaded.bad or "")
    assert "example.com/gpu" in (loaded.bad or "")
    changed = replace(TRAIN, library_version="0.2.0")
    store.save(Ledger({TRAIN.slice_id: changed, PREPARE.slice_id: PREPARE}))
    now = content_now(tmp_path / "grants")
    was["grants"][0] |= {"library_version": "0.2.0", "compute_policy": "fixed"}
    was["grants"][0]["memory_enforcer"] = "library"
    was["grants"][0]["holder"] |= {"claim": "", "claim_name": ""}
    was["grants"][0]["shares"][0]["is_exclusive"] = False
    assert [now["grants"][0], now["grants"][2]] == was["grants"]
    assert now["grants"][1]["id"] == PREPARE.slice_id
    assert {key: value for key, value in now.items() if key != "grants"} == {"epoch": 4}


def test_a_grant_that_ends_takes_with_it_what_nobody_here_knows(tmp_path: Path) -> None:
    """Nothing grows for ever."""
    written_by_next(tmp_path)
    store, _ = store_at(tmp_path / "grants")
    store.save(Ledger({}))

    assert [grant["id"] for grant in content_now(tmp_path / "grants")["grants"]] == [
        "feedfacecafebeef"
    ]


def of_later(slice_id: object, uid: str = "uid-1", **more: object) -> dict[str, Any]:
    """A grant with a key whose value only a later release knows."""
    holder = {"namespace": "a", "pod": "b", "uid": uid}
    return {"id": slice_id, "holder": holder, "compute_policy": "of-later", **more}


def kept(path: Path) -> list[Any]:
    """What the file holds of grants."""
    found: list[Any] = content_now(path)["grants"]
    return found


def test_every_entry_that_cannot_be_read_stays(tmp_path: Path) -> None:
    """Whether it has an id, shares it, or is no grant at all."""
    odd = [of_later(None), of_later(None, more=2), of_later("one"), of_later("one", more=3), "?", 7]
    file = SealedFile(tmp_path / KIND, KIND, VERSION)
    file.write([json.dumps({"grants": odd}).encode()], BOOT)
    store, _ = store_at(tmp_path / "grants")
    store.save(Ledger({}))

    assert kept(tmp_path / "grants") == odd


def test_an_entry_that_cannot_be_read_ends_with_its_slice_or_its_pod(tmp_path: Path) -> None:
    """It is not back when the grant has ended that was made again from the kubelet's snapshot."""
    odd = [of_later("slice"), of_later("other", "uid-2"), of_later("lives", "uid-3"), of_later("")]
    file = SealedFile(tmp_path / KIND, KIND, VERSION)
    file.write([json.dumps({"grants": odd}).encode()], BOOT)
    store, _ = store_at(tmp_path / "grants")
    again = fraction("slice", PodRef("a", "b", "uid-1"), "main")
    store.save(Ledger({"slice": again}))
    assert [entry["id"] for entry in kept(tmp_path / "grants")] == ["slice", "other", "lives", ""]

    store.forget({"slice"}, {"uid-2", ""})
    store.save(Ledger({}))
    assert kept(tmp_path / "grants") == odd[2:]


@pytest.mark.parametrize(
    ("grant", "named"),
    [
        ({"id": "../grants"}, "$.id"),
        ({"id": ""}, "$.id"),
        ({"id": ".."}, "$.id"),
        ({"id": 7}, "$.id"),
        ({"holder": None}, "$.holder"),
        ({"holder": {"namespace": "a"}}, "pod"),
        ({"holder": {"namespace": "a", "pod": "b", "kind": "ephemeral"}}, "$.holder.kind"),
        ({"units": ["m00"]}, "$.units"),
        ({"units": {"aliyun.com/gpu-mem": ["c00"]}}, "c00"),
        ({"units": {"aliyun.com/gpu-mem": ["GPU-0"]}}, "GPU-0"),
        ({"units": {"example.com/gpu": ["m00"]}}, "example.com/gpu"),
        ({"shares": [{"device": "GPU-0", "memory_bytes": -1}]}, "$.shares[0].memory_bytes"),
        ({"unit_mib": 512}, "512"),
        ({"mode": "exclusive"}, "$.mode"),
        ({"is_isolated": 1}, "$.is_isolated"),
        ({"created_seconds": "now"}, "$.created_seconds"),
    ],
)
def test_a_grant_that_cannot_be_read_is_named_and_the_others_count(
    tmp_path: Path, grant: dict[str, Any], named: str
) -> None:
    """One odd grant empties no ledger; anyone who looks learns which key is at fault."""
    whole = {"holder": {"namespace": "a", "pod": "b"}}
    odd = {"id": "feedfacecafebeef", **whole, **grant}
    file = SealedFile(tmp_path / KIND, KIND, VERSION)
    file.write([json.dumps({"grants": [odd, {"id": "fine", **whole}]}).encode()], BOOT)
    _, loaded = store_at(tmp_path / "grants")

    assert loaded.ledger.grants == {"fine": fraction("fine", PodRef("a", "b"), "")}
    assert "grant 0 is left as it is" in (loaded.bad or "")
    assert named in (loaded.bad or "")


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"grants": 7}', b"\xff"])
def test_a_file_that_holds_no_grants_is_set_aside(tmp_path: Path, payload: bytes) -> None:
    """Its seal is whole, so somebody else has written it; so was the one before it."""
    file = SealedFile(tmp_path / KIND, KIND, VERSION)
    for _ in range(3):
        file.write([payload], BOOT)
    store, loaded = store_at(tmp_path / KIND)

    assert (loaded.ledger, loaded.is_new_boot, loaded.may_lack) == (Ledger(), False, True)
    assert loaded.bad
    assert {p.name for p in tmp_path.glob("*.bad-*")} == {"grants.bad-7", "grants.bad-7-1"}
    store.save(Ledger(LEDGER))
    assert store_at(tmp_path / KIND)[1].ledger == Ledger(LEDGER)


def test_what_only_the_next_release_remembers_of_cards_is_written_back_as_it_was(
    tmp_path: Path,
) -> None:
    """Also where the health of a card has changed meanwhile."""
    was: dict[str, Any] = json.loads((DATA / "next" / "cards.json").read_text())
    SealedFile(tmp_path / "cards", "cards", 1).write([json.dumps(was).encode()], BOOT)
    file = MemoryFile(tmp_path, "cards", CardsRecord, BOOT)
    content, bad = file.load(7.0)
    assert (bad, content.health is None) == (None, False)
    assert content.health is not None
    health = health_of(content.health)
    file.save(
        cards_record(
            content.numbers,
            cards_of(content),
            replace(health, driver="600.1"),
            content.instances,
            content.taken_out,
        )
    )

    was["health"]["driver"] = "600.1"
    sealed = SealedFile(tmp_path / "cards", "cards", 1).read()
    assert sealed is not None
    assert json.loads(sealed.payload) == was


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("cards", [{"uuid": "GPU-a"}], "missing required field `number` - at `$[0]`"),
        ("health", {"boot_id": 7}, "$.boot_id"),
        ("health", {"cards": [{"uuid": "a", "is_shown": 1}]}, "$.cards[0].is_shown"),
        ("health", {"cards": [{"uuid": "a", "faults": [{"recovery": "pray"}]}]}, "$.cards[0]"),
    ],
)
def test_of_a_file_in_which_one_thing_is_wrong_the_others_are_remembered(
    tmp_path: Path, key: str, value: object, named: str
) -> None:
    """Card numbers stand in unit ids: they are not lost with a fault that nobody can read."""
    content = {"numbers": {"GPU-a": 5}, "cards": [], "health": {"boot_id": "b"}, key: value}
    SealedFile(tmp_path / "cards", "cards", 1).write([json.dumps(content).encode()], BOOT)
    found, bad = MemoryFile(tmp_path, "cards", CardsRecord, BOOT).load(7.0)

    assert found.numbers == {"GPU-a": 5}
    assert getattr(found, key) == getattr(CardsRecord(), key)
    assert f"cards: {key} is ignored" in (bad or "")
    assert named in (bad or "")


def test_a_fault_that_is_seen_again_is_no_news_for_the_disk() -> None:
    """A card may repeat an XID a thousand times a minute."""
    faults = (Fault("Xid", "", Recovery.PROBE, 1.0, seen) for seen in (1.0, 7.0))
    first, second = (
        cards_record({}, (), Health("b", cards=(CardHealth("a", (f,)),)), {}) for f in faults
    )

    assert first == second


def test_a_fault_that_every_inventory_reports_again_is_not_kept() -> None:
    """A release that does not know this kind of fault can read the file, too."""
    mig = Fault("MigEnabled", "in MIG mode", Recovery.INVENTORY, 1, 1)
    record = cards_record({}, (), Health("b", cards=(CardHealth("GPU-a", (mig,)),)), {})

    assert record.health is not None
    assert health_of(record.health).cards == (CardHealth("GPU-a"),)
