"""Which cluster a command speaks to: kubectl's flags and rules."""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

# What reaches the API server is imported when it is used, so that help comes at once.
if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.client.api import ApiServer

_Value = TypeVar("_Value")


def kubeconfig_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose the cluster, as its argument `cluster`."""

    @functools.wraps(command)
    def with_cluster(*args: Any, kubeconfig: Path | None, context: str, **others: Any) -> Any:
        return command(*args, cluster=KubeconfigChoice(kubeconfig, context), **others)

    with_context = click.option(
        "--context", metavar="NAME", default="", help="Default: the kubeconfig's current context."
    )(with_cluster)
    return click.option(
        "--kubeconfig",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="Default: the files of KUBECONFIG, else ~/.kube/config, else the pod's service account.",
    )(with_context)


@dataclass(frozen=True, slots=True)
class KubeconfigChoice:
    """The values of these options."""

    kubeconfig: Path | None = None
    context: str = ""

    def api(self) -> "ApiServer":
        """The API server."""
        from gpu_device_plugin.kubernetes.client.api import ApiServer
        from gpu_device_plugin.kubernetes.client.kubeconfig import read_context

        files = self._files()
        if files:
            read_context(files, self.context)
        return ApiServer.reached_by(files, self.context)

    def ask(self, question: "Callable[[ApiServer], Awaitable[_Value]]") -> "_Value":
        """The answer to a question about the cluster; as `api`, it raises AccessError."""

        async def ask() -> _Value:
            api = self.api()
            try:
                return await question(api)
            finally:
                await api.close()

        return asyncio.run(ask())

    def namespace(self) -> str:
        """The namespace of the context."""
        from gpu_device_plugin.kubernetes.client.kubeconfig import read_context

        files = self._files()
        return (read_context(files, self.context).namespace if files else "") or "default"

    def _files(self) -> tuple[Path, ...]:
        from gpu_device_plugin.kubernetes.client.kubeconfig import usual_files

        return usual_files(self.kubeconfig, os.environ, Path.home())
