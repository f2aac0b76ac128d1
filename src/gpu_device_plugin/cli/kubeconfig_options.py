"""The options of kubectl that commands share: which cluster, what of it, in which form."""

import asyncio
import dataclasses
import datetime
import functools
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from gpu_device_plugin.cli.program import EXIT_FAILED
from gpu_device_plugin.errors import ConfigError, GpuPluginError, clip

# What reaches the API server is imported when it is used, so that help comes at once.
if TYPE_CHECKING:
    from gpu_device_plugin.cli.overview_screen import OverviewScreen
    from gpu_device_plugin.kubernetes.client.api import ApiServer

_Value = TypeVar("_Value")


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_PART = r"(\d{1,6}(?:\.\d{1,6})?)(ms|[smh])"


class Seconds(click.ParamType[float]):
    """A time as kubectl takes it, for instance 500ms, 5s or 1m30s; a bare number is in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = f"{value}s" if re.fullmatch(r"\d{1,6}", str(value)) else str(value)
        if re.fullmatch(rf"({_PART})+", text) is None:
            wanted = "wanted a time such as 500ms, 5s or 1m30s"
            self.fail(f"{clip(text)!r} is not valid: {wanted}", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))


def _suggest_context(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    from gpu_device_plugin.kubernetes.client.kubeconfig import context_names

    try:
        names = context_names(KubeconfigChoice.taken_from(dict(ctx.params)).files())
    except GpuPluginError:
        return []
    return [name for name in names if name.startswith(begun)]


_OPTIONS = (
    click.option(
        "--kubeconfig",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="Default: the files of KUBECONFIG, else ~/.kube/config, else the pod's service account.",
    ),
    click.option(
        "--context",
        metavar="NAME",
        default="",
        shell_complete=_suggest_context,
        help="Default: the kubeconfig's current context.",
    ),
    click.option("--as", "acting_as", metavar="USER", default="", help="Impersonate this user."),
    click.option(
        "--request-timeout",
        "request_seconds",
        metavar="TIME",
        type=Seconds(),
        default="0",
        help="Timeout of each request to the API server, such as 5s; 0 keeps the usual timeouts.",
    ),
)


def kubeconfig_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose the cluster, as its argument `cluster`."""

    @functools.wraps(command)
    def with_cluster(*args: Any, **others: Any) -> Any:
        return command(*args, cluster=KubeconfigChoice.taken_from(others), **others)

    for option in reversed(_OPTIONS):
        with_cluster = option(with_cluster)
    return with_cluster


@dataclass(frozen=True, slots=True)
class KubeconfigChoice:
    """The values of these options."""

    kubeconfig: Path | None = None
    context: str = ""
    acting_as: str = ""
    request_seconds: float = 0

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Self:
        given = {each.name: options.pop(each.name, None) for each in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in given.items() if value})

    def api(self) -> "ApiServer":
        from gpu_device_plugin.kubernetes.client.api import ApiServer
        from gpu_device_plugin.kubernetes.client.kubeconfig import read_context

        files = self.files()
        if files:
            read_context(files, self.context)
        return ApiServer.reached_by(
            files, self.context, self.acting_as, request_seconds=self.request_seconds
        )

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
        from gpu_device_plugin.kubernetes.client.kubeconfig import read_context

        files = self.files()
        return (read_context(files, self.context).namespace if files else "") or "default"

    def files(self) -> tuple[Path, ...]:
        from gpu_device_plugin.kubernetes.client.kubeconfig import usual_files

        return usual_files(self.kubeconfig, os.environ, Path.home())


@dataclass(frozen=True, slots=True)
class VerbResult:
    """What a verb found.

    Attributes:
        value: For programs: the facts of the text, in its order, as plain values.
        draw: Draws the text.
        names: What `-o name` prints.
        is_good: Whether the exit code is 0.
    """

    value: object
    draw: "Callable[[OverviewScreen], None]" = field(compare=False)
    names: Sequence[str] = ()
    is_good: bool = True


_SECONDS_BETWEEN, _COMPLETION_SECONDS = 2.0, 2.0
_Read = Callable[["ApiServer"], Awaitable[VerbResult]]
_Follow = Callable[["ApiServer", Callable[[Any, str], None]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The options that verbs share: the cluster, what of it is shown, and how.

    `namespace` is "" for the usual one of the verb; `labels` selects nodes or pods, "" all.
    """

    cluster: KubeconfigChoice
    output: str | None = None
    namespace: str = ""
    labels: str = ""
    is_watched: bool = False

    @property
    def is_wide(self) -> bool:
        return self.output == "wide"

    @property
    def scope(self) -> str:
        labelled = " with these labels" if self.labels else ""
        return (f" of namespace {self.namespace}" if self.namespace else "") + labelled

    def show(self, read: _Read, follow: _Follow | None = None) -> None:
        """Print the answer, or with `--watch` each new one: from `follow`, by default asked again."""
        found = self.cluster.ask(read)
        if self.is_watched:
            follow = follow or functools.partial(ask_again, read)
            self.cluster.ask(lambda api: self._watch(api, found, follow))
        elif self.output in ("json", "yaml"):
            _echo_plain(found.value, is_yaml=self.output == "yaml")
        elif self.output == "name":
            click.echo("".join(f"{name}\n" for name in dict.fromkeys(found.names)), nl=False)
        else:
            from rich.console import Console

            from gpu_device_plugin.cli.overview_screen import OverviewScreen

            found.draw(OverviewScreen(Console(highlight=False)))
        if not found.is_good:
            sys.exit(EXIT_FAILED)

    async def _watch(self, api: "ApiServer", first: VerbResult, follow: _Follow) -> None:
        import logging

        import structlog
        from rich.console import Console

        from gpu_device_plugin.cli.overview_screen import WatchScreen

        # What the log would say of the API server is on the screen.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        with WatchScreen(Console(highlight=False), is_wide=self.is_wide).drawing() as draw:
            draw(first, "")
            await follow(api, draw)


async def ask_again(
    read: _Read,
    api: "ApiServer",
    draw: Callable[[VerbResult, str], None],
    every_seconds: float = _SECONDS_BETWEEN,
) -> None:
    """Draw each new answer until cancelled; while there is none the last one, and since when it is old."""
    from gpu_device_plugin.cli.overview_screen import stale_text

    found, clock = await read(api), asyncio.get_running_loop().time
    last = clock()
    while True:
        trouble = ""
        try:
            found, last = await read(api), clock()
        except GpuPluginError as error:
            trouble = str(error)
        now = datetime.datetime.now().astimezone()
        draw(found, stale_text(trouble, clock() - last, now))
        await asyncio.sleep(every_seconds)


def suggest(path: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completion by names of a list of the API server; none where it does not answer at once."""

    def names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
        from gpu_device_plugin.kubernetes.objects.survey import Survey

        options = {**ctx.params, "request_seconds": _COMPLETION_SECONDS}
        cluster = KubeconfigChoice.taken_from(options)
        before, slash, _name = begun.rpartition("/")
        try:
            namespace = before or options.get("namespace") or cluster.namespace()
            where = path.format(namespace=namespace)
            found = cluster.ask(lambda api: Survey(api).names(where))
        except GpuPluginError:
            return []
        whole = (before + slash + name for name in sorted(found))
        given = ctx.params[param.name or ""] if param.nargs < 0 else ()
        return [name for name in whole if name.startswith(begun) and name not in given]

    return names


_FORMATS = ("json", "yaml", "wide", "name")


def _list_options(of: str, formats: Sequence[str], usual: str) -> dict[str, Callable[..., Any]]:
    return {
        "-n": click.option(
            "-n",
            "--namespace",
            metavar="NAMESPACE",
            default="",
            shell_complete=suggest("/api/v1/namespaces"),
            help=f"Namespace of the pods; by default {usual}.",
        ),
        "-A": click.option(
            "-A", "--all-namespaces", is_flag=True, help="All namespaces (the default)."
        ),
        "-l": click.option(
            "-l",
            "--selector",
            "labels",
            metavar="LABELS",
            default="",
            help=f"Only {of} with these labels, in kubectl's syntax.",
        ),
        "-o": click.option(
            "-o", "--output", type=click.Choice(formats), help="Output format; the default is text."
        ),
        "-w": click.option(
            "-w",
            "--watch",
            "is_watched",
            is_flag=True,
            help="Redraw after every change, until Ctrl-C.",
        ),
    }


def listing(
    options: str, of: str = "", formats: Sequence[str] = _FORMATS, usual: str = "all"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these of the shared options, and those of the cluster, as its argument `listing`.

    `of` is what `-l` selects; `usual` is the namespace without `-n`.
    """
    known = _list_options(of, formats, usual)

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, cluster: KubeconfigChoice, **others: Any) -> None:
            if others.pop("all_namespaces", False) and others["namespace"]:
                raise ConfigError("give either --namespace or --all-namespaces")
            given = {
                f.name: others.pop(f.name) for f in dataclasses.fields(Listing) if f.name in others
            }
            made = Listing(cluster, **given)
            if made.is_watched and made.output not in (None, "wide"):
                text = f"--watch draws on a terminal; it does not go with -o {made.output}"
                raise ConfigError(text)
            command(*args, listing=made, **others)

        made = kubeconfig_options(run)
        for name in reversed(options.split()):
            made = known[name](made)
        return made

    return with_options


def _echo_plain(value: object, *, is_yaml: bool) -> None:
    text = json.dumps(value, indent=2)
    if is_yaml:
        import yaml

        text = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip()
    click.echo(text)
