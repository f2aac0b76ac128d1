"""A node that is marked for uninstalling is given up: 0 of everything, no file that no pod needs."""

import json

from tools.harness.claim_rig import allocate, devices, end, prepare, start_with_claims
from tools.harness.rig import CORE, COUNT, FOUR_CARDS, MEM, NODE, Rig, running_rig, slice_of, until

from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
    kept_pods,
)
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, SERIES_ANNOTATION
from gpu_device_plugin.domain.node.labels import NODE_LABELS

NONE = {MEM: 0, CORE: 0, COUNT: 0}
PATH = f"/api/v1/nodes/{NODE}"
DONE_SECONDS = 60.0


async def become_installed(rig: Rig, uid: str = "installation-1") -> None:
    """The agent that starts next is of that DaemonSet."""
    rig.environment |= {"POD_NAMESPACE": "gpu", "POD_NAME": f"agent-{uid}"}
    owner = {"kind": "DaemonSet", "uid": uid, "controller": True}
    pod = {
        "metadata": {
            "namespace": "gpu",
            "name": f"agent-{uid}",
            "uid": f"pod-of-{uid}",
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "agent"}]},
        "status": {"phase": "Running"},
    }
    await rig.api.put(f"/api/v1/namespaces/gpu/pods/agent-{uid}", pod)


async def mark(rig: Rig, uid: str | None) -> None:
    """As the uninstall hook does, or (None) as a person takes it back."""
    node = json.loads(json.dumps(rig.api.objects[PATH]))
    annotations = node["metadata"].setdefault("annotations", {})
    if uid is None:
        annotations.pop(UNINSTALL_ANNOTATION)
    else:
        annotations[UNINSTALL_ANNOTATION] = uid
    await rig.api.put(PATH, node)


async def label_with_a_series(rig: Rig) -> None:
    """As the controller does."""
    found = rig.api.objects[PATH]
    meta = found["metadata"]
    labels = {**(meta.get("labels") or {}), MODEL_LABEL: "V100"}
    annotations = {**rig.annotations(), SERIES_ANNOTATION: "V100"}
    await rig.api.put(
        PATH, {**found, "metadata": {**meta, "labels": labels, "annotations": annotations}}
    )


async def until_withdrawn(rig: Rig, uid: str = "installation-1") -> tuple[str, ...]:
    """The pods whose files stay, once the agent has answered."""
    await until(
        lambda: kept_pods(rig.annotations().get(WITHDRAWN_ANNOTATION, ""), uid) is not None,
        DONE_SECONDS,
        lambda: rig.log.read_text()[-3000:],
    )
    return kept_pods(rig.annotations()[WITHDRAWN_ANNOTATION], uid) or ()


async def test_an_empty_node_is_left_as_it_was_found() -> None:
    """No library version, no file in state and run directory, no label, no annotation of cards."""
    async with running_rig(is_started=False) as rig:
        await become_installed(rig)
        await rig.serve()
        await until(lambda: CARDS_ANNOTATION in rig.annotations(), 10)
        await rig.until_offered(FOUR_CARDS)
        await label_with_a_series(rig)
        await mark(rig, "installation-1")

        await rig.until_offered(NONE)
        assert await until_withdrawn(rig) == ()
        assert CARDS_ANNOTATION not in rig.annotations()
        assert not set(NODE_LABELS) & set(rig.api.objects[PATH]["metadata"].get("labels") or {})
        await until(lambda: SERIES_ANNOTATION not in rig.annotations(), 20)
        await until(lambda: MODEL_LABEL not in rig.api.objects[PATH]["metadata"]["labels"], 20)
        await until(lambda: rig.events("Withdrawing"), 20)
        await rig.stop_agent()
        left = [path for path in (*rig.state.glob("*"), *rig.run.glob("*")) if path.name != "lock"]
        assert left == []
        assert [path.name for path in rig.library.iterdir()] == ["0.0.1"]  # somebody else's


async def test_pods_that_run_on_keep_their_files_and_can_be_taken_over() -> None:
    """Their slice, their library and their grant stay; the next installation knows them."""
    async with running_rig(is_started=False) as rig:
        await become_installed(rig)
        await rig.serve()
        await rig.admit("stays", slice_of(2, 30))
        grant = rig.grant("stays")
        await mark(rig, "installation-1")

        assert await until_withdrawn(rig) == ("default/stays",)
        await rig.until_offered(NONE)
        start = await rig.kubelet.start_container(rig.uid("stays"), "main-0")
        assert start.mounts  # while the agent is there
        await rig.stop_agent()
        assert (rig.run / "slices" / grant.slice_id / "config" / "limits").is_file()
        assert (rig.library / grant.library_version / "libgpuslice.so").is_file()

        await become_installed(rig, "installation-2")
        await rig.serve()
        await rig.until_offered(FOUR_CARDS)
        assert rig.grant("stays").slice_id == grant.slice_id
        await until(lambda: UNINSTALL_ANNOTATION not in rig.annotations(), 20)
        await until(lambda: WITHDRAWN_ANNOTATION not in rig.annotations(), 20)


async def test_what_a_pod_that_has_ended_left_goes_as_well() -> None:
    """The agent answers when the end is certain, not before."""
    async with running_rig(is_started=False, is_hasty=True) as rig:
        await become_installed(rig)
        await rig.serve()
        await rig.admit("ends", slice_of(2, 30))
        slice_id = rig.grant("ends").slice_id
        await rig.delete(rig.uid("ends"))
        await mark(rig, "installation-1")

        await until(
            lambda: (
                kept_pods(rig.annotations().get(WITHDRAWN_ANNOTATION, ""), "installation-1") == ()
            ),
            DONE_SECONDS,
            lambda: rig.log.read_text()[-3000:],
        )
        await until(lambda: rig.grants() == [], 20)
        assert not (rig.run / "slices" / slice_id).exists()


async def test_a_node_that_offers_nothing_does_not_wait_for_a_stale_checkpoint() -> None:
    """The kubelet writes its checkpoint again only when something is offered or admitted."""
    async with running_rig(is_started=False, is_hasty=True) as rig:
        await become_installed(rig)
        await rig.serve()
        await rig.admit("ends", slice_of(2, 30))
        slice_id = rig.grant("ends").slice_id
        await rig.stop_agent()
        await rig.delete(rig.uid("ends"))
        await rig.set_labels(schedule="disabled")
        await rig.start_agent()
        await mark(rig, "installation-1")

        assert await until_withdrawn(rig) == ()
        await until(lambda: rig.grants() == [], 20)
        assert not (rig.run / "slices" / slice_id).exists()


async def test_a_mark_for_another_installation_is_removed_and_not_obeyed() -> None:
    """A reinstall serves at once, and a mark that comes afterwards for it is left alone."""
    async with running_rig(is_started=False) as rig:
        await mark(rig, "of-before")
        await become_installed(rig)
        await rig.serve()
        await rig.until_offered(FOUR_CARDS)
        await until(lambda: UNINSTALL_ANNOTATION not in rig.annotations(), 20)
        await mark(rig, "installation-1")

        await until_withdrawn(rig)
        assert rig.annotations()[UNINSTALL_ANNOTATION] == "installation-1"


async def test_a_mark_that_is_taken_back_lets_the_node_serve_again() -> None:
    """With its library, its labels and all of its units."""
    async with running_rig(is_started=False) as rig:
        await become_installed(rig)
        await rig.serve()
        await mark(rig, "installation-1")
        await until_withdrawn(rig)
        await mark(rig, None)

        await rig.until_offered(FOUR_CARDS, seconds=20)
        await until(lambda: CARDS_ANNOTATION in rig.annotations(), 20)
        await until(lambda: WITHDRAWN_ANNOTATION not in rig.annotations(), 20)
        await rig.admit("p", slice_of(2, 30))
        version = rig.grant("p").library_version
        assert (rig.library / version / "libgpuslice.so").is_file()


async def test_an_agent_that_starts_on_a_marked_node_withdraws_too() -> None:
    """A crash between mark and removal changes nothing."""
    async with running_rig(is_started=False) as rig:
        await become_installed(rig)
        await mark(rig, "installation-1")
        await rig.start_agent()

        await until_withdrawn(rig)
        await rig.until_offered(NONE)


async def test_a_node_with_claims_answers_when_the_last_one_has_ended() -> None:
    """Its pods are named meanwhile; then the node has none of our ResourceSlices."""
    async with running_rig(is_started=False) as rig:
        await become_installed(rig)
        await start_with_claims(rig)
        await allocate(rig, "a", 0)
        assert await prepare(rig, "a") == ""
        await mark(rig, "installation-1")
        await until(lambda: rig.events("WithdrawalWaits"), DONE_SECONDS)
        assert "default/p-a" in rig.events("WithdrawalWaits")[0]["message"]
        assert WITHDRAWN_ANNOTATION not in rig.annotations()

        await end(rig, "a")
        assert await until_withdrawn(rig) == ()
        await until(lambda: not devices(rig), 30)
