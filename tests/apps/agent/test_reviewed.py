"""What a review found once stays mended: odd cards, odd files, odd calls."""

import pytest
from tests.apps.agent.rig import CORE, COUNT, MEM, Rig, running_rig, slice_of, until

from gpu_device_plugin.simulation import library


async def restart(rig: Rig, **settings: object) -> None:
    """End the agent, start it again, wait until it serves."""
    await rig.stop_agent()
    await rig.start_agent(**settings)
    await rig.until_ready()


async def test_without_a_label_the_operators_mode_counts_at_every_start() -> None:
    """`--mode` is for nodes without a label, and not for the first start only."""
    async with running_rig() as rig:
        await restart(rig, mode="cgpu")
        await rig.until_offered({MEM: 60, CORE: 0, COUNT: 4})
        await rig.set_labels(schedule="share")
        await until(lambda: len(rig.events("ModeSwitched")) == 2, 10)
        await rig.stop_agent()
        await rig.set_labels()  # gone while nobody watched: the remembered one is no news
        await rig.start_agent(mode="core_mem")

        await rig.until_offered({MEM: 60, CORE: 400, COUNT: 4})


async def test_a_card_that_shows_less_than_was_granted_keeps_its_slices_as_they_were() -> None:
    """ECC or another driver takes memory: what was promised stays, and nothing crashes."""
    async with running_rig() as rig:
        await rig.admit("full", slice_of(15, 30))
        limits = rig.run / "slices" / rig.grant("full").slice_id / "config" / "limits"
        before = limits.read_text()
        await rig.stop_agent()
        library.set_fields(rig.cards.state, ["cards.0.memory_total_mib=15000"])
        await rig.start_agent()
        await rig.until_ready()

        assert rig.kubelet.allocatable(MEM) == 59
        assert limits.read_text() == before


async def test_a_damaged_cards_file_gives_no_card_another_number() -> None:
    """Numbers stand in the units that running pods hold: grants and the kubelet tell them."""
    async with running_rig(is_started=False) as rig:
        rig.cards.unplug(0)
        await rig.start_agent()
        await rig.until_ready()
        await rig.admit("old", slice_of(8, 30))
        card = rig.card_of("old")
        await rig.stop_agent()
        rig.cards.plug(0)
        path = rig.state / "cards"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
        await rig.start_agent()
        await rig.until_ready()
        await rig.admit("new", slice_of(8, 30))

        assert rig.card_of("new") != card
        assert rig.grant("new").devices != rig.grant("old").devices


async def test_a_bad_percentage_is_refused_without_the_pods_text_whichever_comes_first() -> None:
    """The size of each call is known even where the API is not; the order is the kubelet's die."""
    async with running_rig() as rig:
        await rig.api.stop()
        for number in range(6):
            refused = await rig.kubelet.admit(rig.pod(f"odd{number}", slice_of(2, 7)))

            assert not refused.is_admitted
            assert "multiple of 5" in refused.message


async def test_a_slice_keeps_its_limits_while_its_card_is_away() -> None:
    """Nothing in a slice's config changes while its container runs."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        limits = rig.run / "slices" / rig.grant("p").slice_id / "config" / "limits"
        before = limits.read_text()
        await rig.stop_agent()
        rig.cards.unplug(0)
        await rig.start_agent()
        await rig.until_ready()

        assert limits.read_text() == before


async def test_a_pod_made_again_under_its_name_during_an_outage_gets_its_own_uid() -> None:
    """Granted under the old text, corrected from what the kubelet says, before it looks gone."""
    async with running_rig() as rig:
        await rig.admit("web", slice_of(2, 30))
        await rig.api.stop()
        old = rig.uid("web")
        rig.kubelet.remove(old)
        pod = rig.pod("web", slice_of(2, 30))
        assert (await rig.kubelet.admit(pod)).is_admitted
        await rig.kubelet.start_container(pod.uid, "main-0")
        await restart(rig)

        def has_its_own() -> bool:
            return [g.pod.uid for g in rig.grants() if g.pod.uid != old] == [pod.uid]

        await until(has_its_own, 20, rig.grants)


async def test_stray_files_in_the_run_directory_kill_nobody() -> None:
    """What somebody else put there is left alone; a directory in the socket's place too."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        (rig.run / "cards" / "stray").write_text("x")
        (rig.run / "slices" / "orphan").mkdir()
        await restart(rig)

        assert (rig.run / "cards" / "stray").exists()
        assert (rig.run / "slices" / "orphan").exists()  # nobody knows yet whose it is
        assert (await rig.admit("q", slice_of(2, 30))).is_admitted


async def test_the_agent_can_be_asked_again_after_its_run_directory_was_wiped() -> None:
    """`why` and `recover` come back by themselves."""
    async with running_rig() as rig:
        (rig.run / "agent.sock").unlink()

        await until((rig.run / "agent.sock").is_socket, 20)


@pytest.mark.parametrize("node", ["missing", "forbidden"])
async def test_readyz_says_what_keeps_the_labels_away(node: str) -> None:
    """A missing Node object and missing rights are not an API server that does not answer."""
    async with running_rig(is_started=False) as rig:
        if node == "missing":
            await rig.api.delete("/api/v1/nodes/n1")
        else:
            from tests.fakes.api_server import status

            rig.api.fault = lambda seen: status(403, "forbidden") if "/nodes" in seen.path else None
        await rig.start_agent()

        await rig.until_page("no node n1" if node == "missing" else "403")


async def test_another_plugin_is_remembered_over_a_restart_without_the_api() -> None:
    """What was kept from being offered is not offered because nobody can say so again."""
    async with running_rig() as rig:
        node = rig.api.objects["/api/v1/nodes/n1"]
        foreign = {**node, "status": {"capacity": {"nvidia.com/gpu": "4"}, "nodeInfo": {}}}
        await rig.api.put("/api/v1/nodes/n1", foreign)
        await rig.until_offered({MEM: 0, CORE: 0, COUNT: 0})
        await rig.stop_agent()
        await rig.api.stop()
        await rig.start_agent()
        await rig.until_page("OtherPlugin")
        await rig.until_page("nvidia.com/gpu: 4")

        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}


async def test_more_cards_than_the_node_has_are_refused_in_these_words() -> None:
    """Nine cards of a node of four."""
    async with running_rig(mode="cgpu") as rig:
        refused = await rig.admit("wide", slice_of(9), labels={"aliyun.com/gpu-count": "9"})

        assert "the node has 4 cards, 9 are asked" in refused.message
