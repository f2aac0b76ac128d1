"""A person's kubeconfig is found and merged as kubectl does it."""

import os
import re
from pathlib import Path

import pytest
from tools.harness.api_server import kubeconfig

from gpu_device_plugin.errors import AccessError
from gpu_device_plugin.kubernetes.client.kubeconfig import read_context, usual_files


def test_the_flag_comes_before_the_variable_and_the_variable_before_the_home(
    tmp_path: Path,
) -> None:
    """A variable may name several files, and those that are missing do not count."""
    (tmp_path / ".kube").mkdir()
    usual = kubeconfig(tmp_path / ".kube" / "config", "http://usual", {})
    first = kubeconfig(tmp_path / "first", "http://first", {})
    several = {"KUBECONFIG": os.pathsep.join([str(tmp_path / "gone"), str(first)])}

    assert usual_files(tmp_path / "given", several, tmp_path) == (tmp_path / "given",)
    assert usual_files(None, several, tmp_path) == (first,)
    assert usual_files(None, {}, tmp_path) == (usual,)


def test_without_a_file_a_pod_uses_its_service_account_and_a_person_is_told(tmp_path: Path) -> None:
    """The error names what was tried."""
    assert usual_files(None, {"KUBERNETES_SERVICE_HOST": "::1"}, tmp_path) == ()
    with pytest.raises(AccessError, match=rf"{tmp_path}/\.kube/config is not there; name one"):
        usual_files(None, {}, tmp_path)


def test_several_files_count_as_one(tmp_path: Path) -> None:
    """The first that has a name decides; paths are relative to the file that has them."""
    (tmp_path / "a").mkdir()
    first = tmp_path / "a" / "config"
    first.write_text(
        "current-context: far\n"
        "contexts: [{name: far, context: {cluster: c, user: u, namespace: team}}]\n"
        "users: [{name: u, user: {client-key: key.pem}}]\n"
    )
    (tmp_path / "a" / "key.pem").write_text("key")
    second = kubeconfig(tmp_path / "second", "http://second", {"token": "not this one"})

    found = read_context([first, second])

    assert found.cluster.values["server"] == "http://second"
    assert found.user.content("client-key") == b"key"
    assert found.namespace == "team"
    assert read_context([first, second], "here").user.content("client-key") == b"key"
    with pytest.raises(AccessError, match="no context is called 'x'"):
        read_context([first, second], "x")


def test_a_broken_file_of_several_is_named_with_its_line(tmp_path: Path) -> None:
    """The others are whole."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("current-context: a\n", encoding="utf-8")
    bad.write_text("apiVersion: v1\nusers: [1\nclusters: 2\n", encoding="utf-8")

    with pytest.raises(AccessError, match=rf"^kubeconfig {re.escape(str(bad))}, line 3: while"):
        read_context([good, bad])
