"""What the API server asks the webhook about a pod, and what a patch makes of the pod."""

import base64
import json
from typing import Any

Json = dict[str, Any]


def review(pod: Json, **request: Any) -> Json:
    """The question before a pod is stored."""
    asked = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "ns",
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def applied(pod: Json, answer: Json) -> Json:
    """The pod as the API server stores it; only `add` to an object's key is understood."""
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True), response
    found: Json = json.loads(json.dumps(pod))
    if "patch" not in response:
        return found
    assert response["patchType"] == "JSONPatch"
    for step in json.loads(base64.b64decode(response["patch"])):
        assert step["op"] == "add"
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        ]
        target: Any = found
        for parent in parents:
            target = target[int(parent) if isinstance(target, list) else parent]
        target[last] = step["value"]
    return found
