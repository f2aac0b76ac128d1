"""`kubectl gpu` and `kubectl inspect cgpu`: the whole cluster, from one's own machine.

They need a kubeconfig and nothing else: what they show stands in annotations of nodes and pods, in
Events, and (for `top`) behind the API server's proxy.
"""

import gpu_device_plugin.cli.plain_structlog  # noqa: F401  # first

# isort: split
import dataclasses
import datetime
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_device_plugin import __version__
from gpu_device_plugin.cli.kubeconfig_options import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.page import page
from gpu_device_plugin.cli.program import EXIT_FAILED, run_program
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import ConfigError, NotKnownError

# What reads and draws is imported when it is used, so that help comes at once.
if TYPE_CHECKING:
    from gpu_device_plugin.cli.overview_screen import OverviewScreen
    from gpu_device_plugin.domain.node.pods import PodRef
    from gpu_device_plugin.kubernetes.client.api import ApiServer
    from gpu_device_plugin.overview.node_cards import CardView, ClusterCards

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TYPES = frozenset({"pod", "pods", "po"})


def parse_pod(
    pod: str, namespace: str | None = None, usual: Callable[[], str] | None = None
) -> tuple[str, str]:
    """Namespace and name of `NAMESPACE/POD`, or of `POD` beside `--namespace`.

    `usual` gives the namespace where neither names one; without it one of them has to.
    """
    before, slash, name = pod.rpartition("/")
    is_whole = slash or usual is not None
    if not name or "/" in before or (slash and not before) or not is_whole:
        form = "NAMESPACE/POD" if usual is None else "[NAMESPACE/]POD"
        raise ConfigError(f"{pod!r} is not {form}; for instance default/cuda-sample")
    if before and namespace not in (None, before):
        raise ConfigError(f"{pod} and --namespace {namespace} name different namespaces")
    found = before or namespace or (usual() if usual else ""), name
    for each in found:
        if _NAME.fullmatch(each) is None:
            raise ConfigError(f"{each!r} is no name that a namespace or a pod can have")
    return found


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _output(*formats: str) -> Callable[[_Command], _Command]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        help="Output format instead of the default text.",
    )


def _screen() -> "OverviewScreen":
    from rich.console import Console

    from gpu_device_plugin.cli.overview_screen import OverviewScreen

    return OverviewScreen(Console(highlight=False))


def _choose_nodes(found: "ClusterCards", names: Collection[str]) -> "ClusterCards":
    """The nodes of these names; all where none is given."""
    known = sorted([*(node.name for node in found.nodes), *(name for name, _ in found.unreadable)])
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise NotKnownError(f"no node {unknown[0]} publishes cards; nodes that do: {listed}")
    return found.only(names)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kubectl gpu")
def gpu() -> None:
    """The cluster's shared GPUs: who holds what, what is free, and what is wrong.

    Reads only. Exit codes: 0 done, 1 failed (`doctor`: found a problem), 2 wrong usage, 3 there is
    no such pod, or no such node with cards.
    """


@gpu.command("map")
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@_output("json", "wide")
@click.option("-w", "--watch", is_flag=True, help="Draw again with every change, until Ctrl-C.")
@kubeconfig_options
def card_map(
    nodes: Sequence[str], output: str | None, *, watch: bool, cluster: KubeconfigChoice
) -> None:
    """Show nodes and cards as bars, with the pods that hold them.

    A letter of a bar is a pod (with whole cards and replicas an equal part each), `.` is free, `?` is asked for by a pod that has no card yet, `x` is
    out of service.
    """
    from gpu_device_plugin.overview.questions import read_cluster

    if watch and output == "json":
        raise ConfigError("--watch draws on a terminal; it does not go with -o json")
    screen = _screen()
    is_wide = output == "wide"
    found = _choose_nodes(cluster.ask(read_cluster).cards, nodes)
    if not watch:
        if output == "json":
            _echo_json(json_cards(found))
        else:
            screen.cards(found, is_wide=is_wide)
        return

    cluster.ask(lambda api: _watch(api, found, nodes, is_wide=is_wide))


async def _watch(
    api: "ApiServer", first: "ClusterCards", nodes: Collection[str], *, is_wide: bool
) -> None:
    """Draw the nodes of these names (all where none is given) until cancelled, and `first` before."""
    import logging

    import structlog
    from rich.console import Console

    from gpu_device_plugin.cli.overview_screen import WatchScreen, stale_text
    from gpu_device_plugin.overview.questions import FollowedCards, follow_cards

    # What the log would say of the API server is on the screen.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with WatchScreen(Console(highlight=False), is_wide=is_wide).drawing() as draw:

        def tell(found: FollowedCards) -> None:
            now = datetime.datetime.now().astimezone()
            stale = stale_text(found.trouble, found.trouble_seconds, now)
            draw(first if found.cards is None else found.cards.only(nodes), stale)

        draw(first, "")
        await follow_cards(api, tell)


@gpu.command()
@click.option(
    "--prometheus",
    metavar="URL|NAMESPACE/SERVICE:PORT",
    help="Ask this Prometheus instead of each agent.",
)
@kubeconfig_options
def top(prometheus: str | None, cluster: KubeconfigChoice) -> None:
    """Show what slices use of what they may.

    Asks the agents' metrics endpoints through the API server's proxy, which needs the right `get`
    on `pods/proxy` (with --prometheus: on `services/proxy`).
    """
    from gpu_device_plugin.overview.questions import read_uses

    uses, silent = cluster.ask(lambda api: read_uses(api, prometheus))
    _screen().uses(uses, silent)
    if silent and not uses:
        sys.exit(EXIT_FAILED)


@gpu.command()
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", help="Default: the namespace of the context.")
@kubeconfig_options
def why(pod: str, namespace: str | None, cluster: KubeconfigChoice) -> None:
    """Show why a pod is pending, was refused, or runs where it does.

    For each node and card: what is free, what is missing, and what would fit.
    """
    from gpu_device_plugin.overview.questions import read_story

    where, name = parse_pod(pod, namespace, cluster.namespace)
    found = cluster.ask(lambda api: read_story(api, where, name))
    if found is None:
        # As `kubectl get -o name` names pods, the type was taken for the namespace.
        hint = "; it is NAMESPACE/POD, or -n NAMESPACE POD" if where in _TYPES else ""
        raise NotKnownError(f"no pod {where}/{name}, and no Event tells of one{hint}")
    _screen().story(found)


@gpu.command()
@_output("json")
@kubeconfig_options
def doctor(output: str | None, cluster: KubeconfigChoice) -> None:
    """Look for what is wrong with the installation, and name the cure of each.

    Agents that are missing or not ready, versions that differ, cards out of service, other device
    plugins, missing policies or RuntimeClasses, and what the agents reported as Events.
    """
    from gpu_device_plugin.overview.questions import read_findings

    found, reading = cluster.ask(lambda api: read_findings(api, __version__))
    if output == "json":
        _echo_json([dataclasses.asdict(finding) for finding in found])
    else:
        agents = sum(pod.agent is not None for pod in reading.pods)
        nodes = count_noun(len(reading.cards.nodes), "node")
        examined = f"{count_noun(agents, 'agent')}, {nodes} with cards"
        _screen().findings(found, examined)
    if any(finding.level == "problem" for finding in found):
        sys.exit(EXIT_FAILED)


@gpu.command()
@click.argument("units", type=click.IntRange(1, 100_000))
@click.argument("percent", type=click.IntRange(0, 100), default=0)
@click.option(
    "--cards",
    type=click.IntRange(1, 36),
    default=1,
    help="Divide each pod's units equally over this many cards.",
)
@_output("json")
@kubeconfig_options
def capacity(
    units: int, percent: int, cards: int, output: str | None, cluster: KubeconfigChoice
) -> None:
    """Show how many more pods of UNITS of memory and PERCENT of compute fit, and where.

    A node that is cordoned or not ready takes none. Looks at the cards only, not at CPU, memory
    or taints of the nodes.
    """
    from gpu_device_plugin.overview.capacity import capacities
    from gpu_device_plugin.overview.questions import read_cluster

    reading = cluster.ask(read_cluster)
    facts = {node.metadata.name: node for node in reading.nodes}
    found = capacities(reading.cards.nodes, facts, units, percent, cards)
    if output == "json":
        _echo_json([dataclasses.asdict(each) for each in found])
        return
    over = f" over {cards} cards" if cards > 1 else ""
    _screen().capacity(found, f"{count_noun(units, 'unit')} and {percent} %{over}")


gpu.add_command(page)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("node", default="")
@click.option("-d", "--details", is_flag=True, help="One table for each node, with its pods.")
@kubeconfig_options
def inspect_cgpu(node: str, *, details: bool, cluster: KubeconfigChoice) -> None:
    """Show the allocated GPU memory of the cluster, or of NODE, as ACK's tool of this name does."""
    from gpu_device_plugin.overview import inspection
    from gpu_device_plugin.overview.questions import read_cluster

    reading = cluster.ask(read_cluster)
    nodes = _choose_nodes(reading.cards, [node] if node else []).nodes
    table = inspection.details if details else inspection.summary
    click.echo(table([each for each in nodes if each.units], reading.addresses), nl=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """`kubectl gpu`."""
    run_program(gpu, "kubectl gpu", arguments)


def main_inspect(arguments: Sequence[str] | None = None) -> None:
    """`kubectl inspect cgpu`."""
    run_program(inspect_cgpu, "kubectl inspect cgpu", arguments)


def complete(arguments: Sequence[str] | None = None) -> None:
    """`kubectl_complete-gpu`: kubectl's completion asks it; the last word may be unfinished."""
    from click.shell_completion import ShellComplete

    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    found = ShellComplete(gpu, {}, "kubectl gpu", "").get_completions(words[:-1], words[-1])
    for item in found:
        click.echo(f"{item.value}\t{item.help}" if item.help else str(item.value))
    click.echo(":4")  # no names of files


def _echo_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def json_cards(found: "ClusterCards") -> dict[str, object]:
    """Every node with its cards and who holds them, as plain values."""
    nodes = [
        {
            "name": node.name,
            "mode": node.mode,
            "unit_mib": node.unit_mib,
            "cards": [_json_card(card) for card in node.cards],
            "waiting": [_json_pod(pod) | {"units": units} for pod, units in node.waiting],
            "instances": [{"uuid": uuid} | _json_pod(pod) for uuid, pod in node.instances],
        }
        for node in found.nodes
    ]
    unreadable = [{"name": name, "error": error} for name, error in found.unreadable]
    return {"nodes": nodes, "unreadable": unreadable}


def _json_card(card: "CardView") -> dict[str, object]:
    plain = dataclasses.asdict(card)
    plain["holders"] = [
        _json_pod(holder.pod)
        | {name: getattr(holder, name) for name in ("units", "percent", "is_granted", "enforcers")}
        for holder in card.holders
    ]
    plain["pods"] = list(map(_json_pod, card.pods))
    return plain


def _json_pod(pod: "PodRef") -> dict[str, object]:
    return {"namespace": pod.namespace, "name": pod.name}
