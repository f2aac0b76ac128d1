"""What we want written gets written once, to the right object, and nobody waits for it."""

from typing import Any

from tools.harness.api_server import ApiRequest, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.kubernetes.objects.metadata_writer import NodeMetadata, PodAnnotations
from gpu_device_plugin.kubernetes.objects.node_object import NodeWatch
from gpu_device_plugin.kubernetes.objects.pod_watch import PodWatch

NODE = "/api/v1/nodes/n1"
POD = "/api/v1/namespaces/ns/pods/p"


def labels(server: Any) -> dict[str, str]:
    """The node's labels at the server."""
    return dict(server.objects[NODE]["metadata"].get("labels", {}))


def annotations(server: Any) -> dict[str, str]:
    """The pod's annotations at the server."""
    return dict(server.objects[POD]["metadata"].get("annotations", {}))


def pod(uid: str, **annotations: str) -> Any:
    """The pod ns/p."""
    meta = {"namespace": "ns", "name": "p", "uid": uid, "annotations": annotations}
    return {"metadata": meta, "spec": {"nodeName": "n1", "containers": []}}


async def test_labels_and_annotations_fold_into_one_patch() -> None:
    """Wishes before the API answers are merged; None removes; equal ones cost nothing."""
    async with running(is_up=False) as (server, api):
        watch = NodeWatch(api, "n1", on_change=lambda: wanted.observe())
        wanted = NodeMetadata(api, "n1", lambda: watch.view)
        wanted.put(labels={"a": "0", "old": None, "kept": "1"})
        wanted.put(labels={"a": "1"}, annotations={"cards": "[]"})
        async with working(watch.run, wanted.run):
            server.objects[NODE] = {
                "metadata": {"name": "n1", "labels": {"old": "x", "kept": "1", "theirs": "y"}}
            }
            await server.start()
            await until(lambda: watch.view and watch.view.labels.get("a") == "1")

        assert labels(server) == {"kept": "1", "theirs": "y", "a": "1"}
        patches = server.seen("PATCH")
        assert [p.body for p in patches] == [
            {"metadata": {"labels": {"a": "1", "old": None}, "annotations": {"cards": "[]"}}}
        ]


async def test_a_foreign_change_is_undone() -> None:
    """What somebody else removes from the node comes back."""
    async with running() as (server, api):
        await server.put(NODE, {"metadata": {"name": "n1"}})
        watch = NodeWatch(api, "n1", on_change=lambda: wanted.observe())
        wanted = NodeMetadata(api, "n1", lambda: watch.view)
        wanted.put(labels={"a": "1"})
        async with working(watch.run, wanted.run):
            await until(lambda: labels(server) == {"a": "1"})
            await server.put(NODE, {"metadata": {"name": "n1"}})
            await until(lambda: labels(server) == {"a": "1"})


STARTUP, OTHER = {"key": "up", "effect": "NoSchedule"}, {"key": "other", "effect": "NoExecute"}


async def test_of_a_nodes_taints_only_the_startup_taint_is_removed() -> None:
    """One that somebody sets between our look and our patch stays too."""
    later = {"key": "later", "value": "x", "effect": "NoSchedule"}
    async with running() as (server, api):
        watch = NodeWatch(api, "n1")
        wanted = NodeMetadata(api, "n1", lambda: watch.view)
        spec = {"unschedulable": True, "taints": [STARTUP, OTHER]}
        await server.put(NODE, {"metadata": {"name": "n1"}, "spec": spec})

        def race(request: ApiRequest) -> None:
            if len(server.seen("PATCH")) == 1 and request.method == "PATCH":
                server.patch(NODE, {"spec": {"taints": [STARTUP, OTHER, later]}})

        server.fault = race
        async with working(watch.run, wanted.run):
            await until(lambda: watch.view is not None)
            wanted.remove_taint("up")
            kept = {"unschedulable": True, "taints": [OTHER, later]}
            await until(lambda: server.objects[NODE]["spec"] == kept)
        assert len(server.seen("PATCH")) == 2


async def test_a_startup_taint_is_removed_once_in_a_nodes_life() -> None:
    """Who sets it again has a reason; the next agent knows it too."""
    async with running() as (server, api):
        await server.put(NODE, {"metadata": {"name": "n1"}, "spec": {"taints": [STARTUP]}})
        watch = NodeWatch(api, "n1")
        wanted = NodeMetadata(api, "n1", lambda: watch.view)
        async with working(watch.run, wanted.run):
            await until(lambda: watch.view is not None)
            wanted.remove_taint("up")
            await until(lambda: not server.objects[NODE]["spec"].get("taints"))
            told = server.objects[NODE]["metadata"]["annotations"]
            assert told == {"gpu-device-plugin/startup-taint-removed": "up"}
            server.patch(NODE, {"spec": {"taints": [STARTUP]}})
            await until(lambda: watch.view and watch.view.taints)
            after_restart = NodeMetadata(api, "n1", lambda: watch.view)
            after_restart.remove_taint("up")
            after_restart.put(labels={"a": "1"})
            async with working(after_restart.run):
                await until(lambda: labels(server) == {"a": "1"})
        assert server.objects[NODE]["spec"]["taints"] == [STARTUP]


async def test_a_refused_feature_label_keeps_nothing_else_from_the_node_and_is_told_once() -> None:
    """The card list must not freeze because a machine has an odd name."""
    feature, told = {"nvidia.com/gpu.machine": "x."}, list[str]()
    async with running() as (server, api):
        server.fault = lambda seen: (
            status(422, "a valid label must end with a letter")
            if seen.method == "PATCH" and "nvidia.com/gpu.machine" in str(seen.body)
            else None
        )
        await server.put(NODE, {"metadata": {"name": "n1"}})
        watch = NodeWatch(api, "n1", on_change=lambda: wanted.observe())
        wanted = NodeMetadata(api, "n1", lambda: watch.view, told.append)
        async with working(watch.run, wanted.run):
            wanted.put(labels=feature, annotations={"gpu-device-plugin/feature-labels": "x"})
            await until(lambda: told)
            wanted.put(labels={"a": "1"})
            await until(lambda: labels(server) == {"a": "1"})
            wanted.put(labels=feature)
            await until(lambda: len(server.seen("PATCH")) >= 3)
            wanted.put(labels={"a": "2"})
            await until(lambda: labels(server) == {"a": "2"})

    assert told == [
        "the node's feature labels cannot be written: 422 a valid label must end with a letter"
    ]


async def patches_until_labelled(*refusals: int) -> int:
    """How many patches it takes until the node has its label, of which the first get these answers."""
    async with running() as (server, api):
        codes = iter(refusals)

        def fault(seen: ApiRequest) -> Any:
            code = next(codes, None) if seen.method == "PATCH" else None
            return None if code is None else status(code, "try again")

        server.fault = fault
        await server.put(NODE, {"metadata": {"name": "n1"}})
        watch = NodeWatch(api, "n1", on_change=lambda: wanted.observe())
        wanted = NodeMetadata(api, "n1", lambda: watch.view)
        wanted.put(labels={"a": "1"})
        async with working(watch.run, wanted.run):
            await until(lambda: labels(server) == {"a": "1"})

        return len(server.seen("PATCH"))


async def test_a_patch_that_is_forbidden_for_a_moment_is_tried_again_at_once() -> None:
    """A server that has just started knows nobody's rights."""
    assert await patches_until_labelled(403, 403, 403) == 4


async def test_a_conflict_is_tried_again() -> None:
    """409 without a reason in our wish is a race with another writer."""
    assert await patches_until_labelled(409, 409, 500, 503) == 5


async def test_a_pods_annotations_carry_its_uid_and_wait_for_the_watch() -> None:
    """The wish comes first, the pod's event later; then one PATCH with a precondition."""
    async with running() as (server, api):
        watch = PodWatch(api, "n1", on_change=lambda p: wanted.observe(p.ref))
        wanted = PodAnnotations(api, watch.watched)
        wanted.put(PodRef("ns", "p", "u1"), {"assigned": "true"})
        async with working(watch.run, wanted.run):
            await until(lambda: watch.is_synced)
            assert not server.seen("PATCH")
            await server.put(POD, pod("u1", theirs="x"))
            await until(lambda: annotations(server) == {"theirs": "x", "assigned": "true"})

        assert [p.body["metadata"]["uid"] for p in server.seen("PATCH")] == ["u1"]


async def test_another_pod_of_the_same_name_is_never_written() -> None:
    """Neither when the watch knows, nor when only the server does; and it gets its own all the same."""
    async with running() as (server, api):
        await server.put(POD, pod("u2"))
        watch = PodWatch(api, "n1", on_change=lambda p: wanted.observe(p.ref))
        wanted = PodAnnotations(api, watch.watched)
        async with working(watch.run, wanted.run):
            await until(lambda: watch.pods)
            wanted.put(PodRef("ns", "p", "u0"), {"assigned": "no"})
            wanted.put(PodRef("ns", "p", "u2"), {"assigned": "yes"})
            wanted.put(PodRef("ns", "p", "u1"), {"assigned": "true"})
            await until(lambda: annotations(server) == {"assigned": "yes"})

            # The server has a newer pod than the watch has told us of.
            server.objects[POD] = pod("u3")
            wanted.put(PodRef("ns", "p", "u2"), {"assigned": "no"})
            await until(lambda: any(s.body for s in server.seen("PATCH")[1:]))
            await until(lambda: not wanted._queue._work)

        assert annotations(server) == {}


async def test_a_mirror_pod_is_written_under_the_apis_uid() -> None:
    """The kubelet's uid names the wish, the API's uid guards the PATCH."""
    async with running() as (server, api):
        mirror = pod("api-uid")
        mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
        await server.put(POD, mirror)
        watch = PodWatch(api, "n1", on_change=lambda p: wanted.observe(p.ref))
        wanted = PodAnnotations(api, watch.watched)
        wanted.put(PodRef("ns", "p", "hash"), {"assigned": "true"})
        async with working(watch.run, wanted.run):
            await until(lambda: annotations(server).get("assigned") == "true")


async def test_a_pod_that_is_gone_ends_its_wish() -> None:
    """Nothing is kept for pods that were deleted before or during the write."""
    async with running() as (server, api):
        await server.put(POD, pod("u1"))
        watch = PodWatch(
            api,
            "n1",
            on_change=lambda p: wanted.observe(p.ref),
            on_gone=lambda ref: wanted.forget(ref),
        )
        wanted = PodAnnotations(api, watch.watched)
        async with working(watch.run, wanted.run):
            await until(lambda: watch.pods)
            server.objects.pop(POD)  # the server answers 404 before the watch tells
            wanted.put(PodRef("ns", "p", "u1"), {"assigned": "true"})
            await until(lambda: not wanted._wanted and not wanted._queue._work)


async def test_wishes_for_pods_that_never_appear_do_not_pile_up() -> None:
    """Grants may outlive their pods; the oldest wish goes first."""
    async with running(is_up=False) as (_, api):
        wanted = PodAnnotations(api, lambda _namespace, _name: None)
        for number in range(1100):
            wanted.put(PodRef("ns", f"p{number}", "u"), {"assigned": "true"})

        assert len(wanted._wanted) == len(wanted._queue._work) == 1024
        assert PodRef("ns", "p1099", "u") in wanted._wanted
