"""Cards that an operator takes out by the ConfigMap unhealthy-gpu-NODE (R-542), with no controller there."""

import json
from typing import Any

from tests.agent.test_cards import THREE
from tools.harness.api_server import status
from tools.harness.rig import FOUR_CARDS, MEM, NODE, Rig, command, running_rig, slice_of
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import COLLECTION, PREFIX, WRITTEN

_PATH = f"{COLLECTION}/{PREFIX}{NODE}"


async def put(rig: Rig, gpus: str, written: str = "") -> None:
    """The ConfigMap lists these; the controller has written some of them."""
    meta = {"namespace": "kube-system", "annotations": {WRITTEN: written}}
    await rig.api.put(_PATH, {"metadata": meta, "data": {"gpus": gpus}})


def told(rig: Rig) -> list[dict[str, Any]]:
    """The cards as the node's annotation tells them, by index."""
    found = json.loads(rig.annotations().get(CARDS_ANNOTATION, '{"cards":[]}'))["cards"]
    return sorted(found, key=lambda card: int(card["index"]))


async def test_a_card_that_an_operator_takes_out_is_out_for_all_until_it_is_named_no_more() -> None:
    """By its index, in a range, by its UUID, or all; who has a slice of it keeps that (R-542)."""
    async with running_rig() as rig:
        await rig.admit("before", slice_of(2, 30))
        uuid = rig.card_of("before")
        for entries in ("0", f"{uuid.upper()}", "0-0"):
            await put(rig, entries)
            await rig.until_offered(THREE)
            assert rig.kubelet.capacity(MEM) == 60
            await until(lambda: "TakenOut since" in str([c.get("fault") for c in told(rig)][:1]))
            assert [card["healthy"] for card in told(rig)] == [False, True, True, True]
            assert [grant.pod.name for grant in rig.grants()] == ["before"]
            await rig.api.delete(_PATH)
            await rig.until_offered(FOUR_CARDS)
        await put(rig, "all")
        await rig.until_offered(dict.fromkeys(FOUR_CARDS, 0))
        assert len(rig.events("TakenOut")) >= 1
        assert not rig.events("UnknownCard")


async def test_what_the_controller_wrote_there_takes_no_card_out() -> None:
    """It repeats what the agent found: taken for a wish, the card would never come back."""
    async with running_rig() as rig:
        await put(rig, "1,0", written="1")
        await rig.until_offered(THREE)
        await until(lambda: [c["healthy"] for c in told(rig)] == [False, True, True, True])


async def test_an_entry_that_names_no_card_is_an_event_and_the_others_count() -> None:
    """Before, it was dropped without a word."""
    async with running_rig() as rig:
        await put(rig, "GPU-elsewhere, 3")
        await rig.until_offered(THREE)
        await until(lambda: "GPU-elsewhere" in str(rig.events("UnknownCard")))


async def test_a_card_stays_out_while_the_list_may_not_be_read_also_over_a_restart() -> None:
    """No answer is no wish to have it back; /readyz says why it is not known."""
    async with running_rig() as rig:
        await put(rig, "2")
        await rig.until_offered(THREE)
        rig.api.fault = lambda seen: status(403, "no") if seen.path == COLLECTION else None
        await rig.api.drop_watches()
        await rig.api.delete(_PATH)
        await rig.restart_agent()
        await rig.until_page("configmaps: 403 no")
        await rig.until_offered(THREE)
        code, text = await command(rig, "recover", "2")
        assert (code, "an operator takes it out" in text) == (1, True)
        rig.api.fault = lambda _: None
        await rig.until_offered(FOUR_CARDS, 30)
