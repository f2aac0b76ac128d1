"""`kubectl gpu` and `kubectl inspect cgpu`: the whole cluster, from one's own machine.

They need a kubeconfig and nothing else: what they show stands in annotations of nodes and pods, in
Events, and (for `top`) behind the API server's proxy.
"""

import gpu_device_plugin.cli.plain_structlog  # noqa: F401  # first

# isort: split
import datetime
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from gpu_device_plugin import __version__
from gpu_device_plugin.cli.kubeconfig_options import (
    KubeconfigChoice,
    Listing,
    VerbResult,
    kubeconfig_options,
    listing,
    suggest,
)
from gpu_device_plugin.cli.page import page, team_label_option
from gpu_device_plugin.cli.pod_argument import PODS, parse_pod
from gpu_device_plugin.cli.pod_resize import resize
from gpu_device_plugin.cli.program import Number, run_program
from gpu_device_plugin.domain.wording import NODE_STATES, count_noun, few
from gpu_device_plugin.errors import NotKnownError, clip

# What reads and draws is imported when it is used, so that help comes at once.
if TYPE_CHECKING:
    from gpu_device_plugin.domain.node.pods import PodRef
    from gpu_device_plugin.kubernetes.client.api import ApiServer
    from gpu_device_plugin.overview.node_cards import CardView, ClusterCards, NodeCards
    from gpu_device_plugin.overview.questions import FollowedCards

_NODES = suggest("/api/v1/nodes")
_TYPES = frozenset({"pod", "pods", "po"})


def _choose_nodes(
    found: "ClusterCards",
    names: Collection[str],
    namespace: str = "",
    labelled: Collection[tuple[str, str]] | None = None,
) -> "ClusterCards":
    """The nodes of these names that hold something of the namespace; all where none is given."""
    names = [name.removeprefix("node/") for name in names]
    known = sorted(found.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = few(known) or "none"
        raise NotKnownError(f"no node {unknown[0]} publishes cards; nodes that do: {listed}")
    wanted = [n for n in names or known if labelled is None or ("", n) in labelled]
    return found.only(wanted, namespace)


async def _read_nodes(
    api: "ApiServer", listing: Listing, names: Collection[str] = ()
) -> "ClusterCards":
    from gpu_device_plugin.overview.questions import read_cluster, select_by_labels

    labelled = await select_by_labels(api, "/api/v1/nodes", listing.labels)
    return _choose_nodes((await read_cluster(api)).cards, names, listing.namespace, labelled)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="kubectl gpu %(version)s")
def gpu() -> None:
    """The cluster's shared GPUs: who holds what, what is free, and what is wrong.

    Only `resize` changes anything. Exit codes: 0 done, 1 failed (`doctor`: found a problem), 2 wrong
    usage, 3 there is no such pod, or no such node with cards.
    """


@gpu.command("map")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=_NODES)
@click.option("--state", type=click.Choice(NODE_STATES), help="Only nodes in this state.")
@listing("-n -A -l -o -w", "nodes")
def card_map(nodes: Sequence[str], state: str | None, listing: Listing) -> None:
    """Show cards as bars, with the pods on them.

    In a bar each letter is a pod, `.` is free, `?` is requested by a pod that has no card yet, and
    `x` is unhealthy. Pods that share a whole card or its replicas get equal parts of the bar.
    With -n only nodes are shown on which a pod of that namespace holds or waits for something.
    """
    from gpu_device_plugin.overview.questions import follow_cards

    async def read(api: "ApiServer") -> VerbResult:
        found = (await _read_nodes(api, listing, nodes)).in_state(state)
        return VerbResult(
            json_cards(found),
            lambda screen: screen.cards(found, is_wide=listing.is_wide),
            [f"node/{name}" for name in found.names],
        )

    async def follow(api: "ApiServer", draw: Callable[[Any, str], None]) -> None:
        from gpu_device_plugin.cli.overview_screen import stale_text

        found = await _read_nodes(api, listing, nodes)
        names, shown = set(found.names) if listing.labels or nodes else None, found.in_state(state)

        def tell(found: "FollowedCards") -> None:
            nonlocal shown
            if found.cards is not None:
                shown = found.cards.only(names, listing.namespace).in_state(state)
            now = datetime.datetime.now().astimezone()
            draw(shown, stale_text(found.trouble, found.trouble_seconds, now))

        await follow_cards(api, tell)

    listing.show(read, follow)


@gpu.command()
@click.option(
    "--prometheus",
    metavar="URL|NAMESPACE/SERVICE:PORT",
    help="Ask this Prometheus instead of each agent.",
)
@listing("-n -A -l -o -w", "pods")
def top(prometheus: str | None, listing: Listing) -> None:
    """Show how much of its limits each slice uses.

    Reads the agents' metrics through the API server's proxy. This needs the right `get` on
    `pods/proxy` (with --prometheus: on `services/proxy`).
    """
    from gpu_device_plugin.overview.questions import read_uses, select_by_labels

    async def read(api: "ApiServer") -> VerbResult:
        chosen = await select_by_labels(api, "/api/v1/pods", listing.labels)
        every, silent = await read_uses(api, prometheus)
        uses = [
            use
            for use in every
            if listing.namespace in ("", use.namespace)
            and (chosen is None or (use.namespace, use.pod) in chosen)
        ]
        value = {"slices": list(map(asdict, uses)), "no_figures": list(silent)}
        names = [f"{use.namespace}/{use.pod}" for use in uses]
        return VerbResult(
            value,
            lambda screen: screen.uses(uses, silent, listing.scope),
            names,
            is_good=bool(every) or not silent,
        )

    listing.show(read)


@gpu.command()
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=PODS)
@listing("-n -o -w", formats=("json", "yaml", "wide"), usual="that of the context")
def why(pod: str, listing: Listing) -> None:
    """Explain why a pod is pending or was refused.

    It shows first what to do, then a line for each kind of node: whether the pod fits, and what
    would fit. `-o wide` shows each node with its cards; of a pod that runs, `why` shows what it holds.
    """
    from gpu_device_plugin.overview.questions import read_story

    where, name = parse_pod(pod, listing.namespace or None, listing.cluster.namespace)

    async def read(api: "ApiServer") -> VerbResult:
        found = await read_story(api, where, name)
        if found is None:
            # As `kubectl get -o name` names pods, the type was taken for the namespace.
            hint = "; it is NAMESPACE/POD, or -n NAMESPACE POD" if where in _TYPES else ""
            raise NotKnownError(f"no pod {where}/{name}, and no Event about one{hint}")
        found = replace(found, nodes=tuple(sorted(found.nodes, key=lambda each: not each.is_fit)))
        return VerbResult(
            asdict(found), lambda screen: screen.story(found, is_wide=listing.is_wide)
        )

    listing.show(read)


@gpu.command()
@listing("-o", formats=("json", "yaml"))
def doctor(listing: Listing) -> None:
    """Look for problems, and name their cures.

    It finds agents that are missing or not ready, versions that differ, unhealthy cards,
    other device plugins, missing policies and RuntimeClasses, and faults that agents reported as
    Events. Without the right to list something it names what it could not examine.
    """
    from gpu_device_plugin.overview.questions import read_findings

    async def read(api: "ApiServer") -> VerbResult:
        found, reading = await read_findings(api, __version__)
        agents = sum(pod.agent is not None for pod in reading.pods)
        nodes = count_noun(len(reading.cards.nodes), "node")
        examined = f"{count_noun(agents, 'agent')}, {nodes} with cards"
        is_good = all(finding.level != "problem" for finding in found)
        value = {"findings": list(map(asdict, found)), "examined": examined}
        return VerbResult(value, lambda screen: screen.findings(found, examined), is_good=is_good)

    listing.show(read)


@gpu.command()
@click.argument("units", type=Number(1, 100_000))
@click.argument("percent", type=Number(0, 100), default=0)
@click.option(
    "--cards",
    type=Number(1, 36),
    default=1,
    help="Divide each pod's units equally over this many cards.",
)
@listing("-l -o", "nodes")
def capacity(units: int, percent: int, cards: int, listing: Listing) -> None:
    """Show how many more pods of one size fit.

    Each pod asks for UNITS of memory and PERCENT of compute, a multiple of 5. A node that is
    cordoned or not ready takes none. Only cards are counted, not CPU, memory or taints of the
    nodes. `-o name` names only nodes that take at least one.
    """
    from gpu_device_plugin.overview.capacity import capacities, one_more

    pod = one_more(units, percent, cards)

    async def read(api: "ApiServer") -> VerbResult:
        shown = await _read_nodes(api, listing)
        found = capacities(shown, pod)
        over = f" over {cards} cards" if cards > 1 else ""
        compute = f" and {percent} %" if percent else ""
        asked = f"{count_noun(units, 'unit')}{compute}{over}"
        value = {
            "nodes": list(map(asdict, found)),
            "asked": asked,
            "pods": sum(each.pods for each in found),
        }
        names = [f"node/{each.node}" for each in found if each.pods]
        return VerbResult(value, lambda screen: screen.capacity(found, asked, shown.summary), names)

    listing.show(read)


@gpu.command()
@team_label_option
@listing("-n -A -l -o", "pods")
def totals(team_label: str, listing: Listing) -> None:
    """Show what each namespace or team holds.

    The one that holds most comes first.
    """
    from gpu_device_plugin.overview import totals as held_totals
    from gpu_device_plugin.overview.questions import read_cluster, select_by_labels

    async def read(api: "ApiServer") -> VerbResult:
        chosen = await select_by_labels(api, "/api/v1/pods", listing.labels)
        reading = await read_cluster(api)
        labels = {pod.metadata.uid: pod.metadata.labels for pod in reading.pods}

        def group_of(pod: "PodRef") -> str:
            is_chosen = chosen is None or pod.key in chosen
            if not is_chosen or listing.namespace not in ("", pod.namespace):
                return ""  # not shown
            if team_label:
                return held_totals.team_of(labels.get(pod.uid), team_label)
            return pod.namespace

        held = [held_totals.held_on(node, group_of) for node in reading.cards.nodes]
        found = {name: each for name, each in held_totals.totals(held).items() if name}
        value = [{"name": n, **asdict(t), "pods": len(t.pods)} for n, t in found.items()]
        group = "team" if team_label else "namespace"
        names = [f"{group}/{name}" for name in found]
        return VerbResult(
            {"totals": value}, lambda screen: screen.totals(found, group, listing.scope), names
        )

    listing.show(read)


@gpu.command("explain")
@click.argument("word")
def explain_word(word: str) -> None:
    """Say what a word means, and what to do.

    WORD is a reason of a refusal, of an Event or of a fault, an XID, or an alert: NoRoom, CardsExposed, XID79, GpuCardOut.
    """
    from gpu_device_plugin.overview.explanation import explain, near

    found = explain(word)
    if not found:
        like = f"; like it are: {', '.join(names)}" if (names := near(word)) else ""
        raise NotKnownError(f"{clip(word)} is no word of this plugin{like}")
    for each in found:
        click.echo(f"{each.word}: {each.met}\n  means   {each.meaning}")
        if each.cure:
            click.echo(f"  ->      {each.cure}")


@gpu.command()
def version() -> None:
    """Print the version of this program.

    `doctor` compares it with the agents' version.
    """
    click.echo(f"kubectl gpu {__version__}")


gpu.add_command(page)
gpu.add_command(resize)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("node", default="", shell_complete=_NODES)
@click.option("-d", "--details", is_flag=True, help="One table for each node, with its pods.")
@kubeconfig_options
def inspect_cgpu(node: str, *, details: bool, cluster: KubeconfigChoice) -> None:
    """Show the allocated GPU memory of the cluster, or of NODE, as ACK's tool of this name does."""
    from gpu_device_plugin.overview import inspection
    from gpu_device_plugin.overview.questions import read_cluster

    reading = cluster.ask(read_cluster)
    found = _choose_nodes(reading.cards, [node] if node else [])
    table = inspection.details if details else inspection.summary
    addresses = {node.metadata.name: node.address for node in reading.nodes}
    shared = [each for each in found.nodes if each.units and each.has_memory]
    click.echo(table(shared, addresses), nl=False)
    if found.unreadable:
        click.echo(f"left out, as their cards cannot be read: {few(found.unreadable)}", err=True)


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
    is_path = any(item.type == "file" for item in found)
    for item in () if is_path else found:
        click.echo(f"{item.value}\t{item.help}" if item.help else str(item.value))
    click.echo(":0" if is_path else ":4")  # whether the shell completes names of files


def json_cards(found: "ClusterCards") -> dict[str, object]:
    """Every node with its cards and who holds them, as plain values."""
    nodes = [
        {
            "name": node.name,
            "mode": node.mode,
            "unit_mib": node.unit_mib,
            "marks": list(node.marks),
            "cards": [_json_card(node, card) for card in node.cards],
            "waiting": [_json_pod(pod) | {"units": units} for pod, units in node.waiting.items()],
            "instances": [
                {**each} | {"pods": list(map(_json_pod, pods))}
                for each, pods in node.told_instances
            ],
        }
        for node in found.nodes
    ]
    unreadable = [{"name": name, "error": error} for name, error in found.unreadable.items()]
    return {"nodes": nodes, "unreadable": unreadable, "summary": found.summary}


def _json_card(node: "NodeCards", card: "CardView") -> dict[str, object]:
    device = node.offer.devices.get(card.uuid)
    plain = asdict(card) | {"replicas": device.replicas if device else 1}
    plain["holders"] = [
        _json_pod(holder.pod)
        | {name: getattr(holder, name) for name in ("units", "percent", "is_granted", "enforcers")}
        for holder in card.holders
    ]
    plain["pods"] = list(map(_json_pod, card.pods))
    return plain


def _json_pod(pod: "PodRef") -> dict[str, object]:
    return {"namespace": pod.namespace, "name": pod.name}
