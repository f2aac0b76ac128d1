"""The promise: what an operator is woken by shows in the metrics of the agent, while it lasts."""

import signal

from tools.harness.rig import NODE, Rig, running_rig, slice_of, until

from gpu_device_plugin.disk.grant_file import KIND


async def until_no_metric(rig: Rig, start: str) -> None:
    """Wait until none of our series begins so."""

    async def is_gone() -> bool:
        status, text = await rig.page("metrics")
        return status == 200 and f"gpu_device_plugin_{start}" not in text

    await until(is_gone, 30)


async def test_what_stops_the_node_is_a_figure_and_so_is_that_it_is_not_ready() -> None:
    """Without its library the node offers nothing; once it has one both figures turn."""
    async with running_rig(has_library=False, is_started=False) as rig:
        await rig.start_agent()
        await rig.until_page("IsolationLibraryMissing")
        await rig.until_metric('node_fault{reason="IsolationLibraryMissing"}', " 1.0", 20)
        await rig.until_metric("ready", " 0.0", 20)

        rig.install_library()

        await rig.until_ready()
        await rig.until_metric("ready", " 1.0", 20)
        await until_no_metric(rig, "node_fault{")


async def test_a_card_that_is_out_says_why_and_nothing_more_when_it_is_back() -> None:
    """The reason is a label, so that an alert can name it."""
    # Longer than callers get one page of metrics: else the fault can come and go between two pages.
    async with running_rig(recovery_seconds=8) as rig:
        rig.cards.xid(2, 79)
        await rig.until_metric('card_fault{card="2",reason="XID79"', " 1.0", 20)
        await rig.until_metric("ready", " 1.0", 20)

        await until_no_metric(rig, "card_fault{")
        await rig.until_metric('card_changes_total{reason="Recovered"', " 1.0", 20)


async def test_grants_that_were_made_again_are_counted() -> None:
    """Damaged once, set aside once, and the slice of the pod taken over once."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 30))
        await rig.stop_agent(signal.SIGKILL)
        for path in rig.state.glob("grants*"):
            path.unlink()
        (rig.state / KIND).write_text(f"{KIND} of {NODE}, scribbled over\n")

        await rig.serve()

        await rig.until_metric("state_files_set_aside_total", " 1.0", 20)
        await rig.until_metric('slice_repairs_total{reason="SliceAdopted"}', " 1.0", 60)
