"""Binding a pod to a node."""

from collections.abc import Callable, Mapping

from gpu_device_plugin.cluster.api import ApiServer, Request
from gpu_device_plugin.cluster.cluster_watch import ClusterPod
from gpu_device_plugin.cluster.pods import pod_path
from gpu_device_plugin.errors import AccessError, ClusterError, GaveUpError, ThrottledError


class NotBoundError(ClusterError):
    """The API server did not begin with the binding: the pod is not bound by it."""


async def bind_pod(
    api: ApiServer,
    pod: ClusterPod,
    node: str,
    annotations: Mapping[str, str],
    seconds: Callable[[], float],
) -> str:
    """Bind a pod to a node and annotate it, in one atomic request that takes `seconds` at most.

    Returns:
        Why the API server refused, or "" if the pod is bound.

    Raises:
        NotBoundError: It is throttled, the server does not know us, or `seconds` says so, which is
            asked again directly before it is sent.
        ClusterError: No answer, or 5xx of a failure half way: the pod may be bound or not.
    """
    ref = pod.request.ref
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": ref.uid,
            "resourceVersion": pod.resource_version,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    request = Request("POST", pod_path(ref) + "/binding", body=body, check=seconds)
    try:
        answer = await api.call(request, deadline_seconds=seconds())
    except GaveUpError:
        raise
    except (ThrottledError, AccessError) as error:
        raise NotBoundError(str(error)) from error
    if answer.status >= 500:
        raise ClusterError(f"binding of {ref}: {answer.text}")
    return "" if answer.is_success else answer.text
