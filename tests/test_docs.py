"""The promise: what the documentation names is what the program has, and nothing is left out."""

import ast
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click import Command, Context, Group
from prometheus_client.parser import text_string_to_metric_families
from tests.chart.rendering import rights
from tests.reasons import raised_reasons
from tools.bench.report import in_short

from gpu_device_plugin.agent.run_agent import EXIT_FOR_REINJECTION
from gpu_device_plugin.cli.main import cli
from gpu_device_plugin.cli.overview import gpu
from gpu_device_plugin.cli.program import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNKNOWN, EXIT_USAGE
from gpu_device_plugin.cli.simulate import simulate
from gpu_device_plugin.disk.failpoints import POINTS
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.demands import demand
from gpu_device_plugin.domain.fractions.units import Resource, resources_of
from gpu_device_plugin.domain.grants.grant import Demand, Enforcers
from gpu_device_plugin.domain.node.modes import NodeMode, is_whole
from gpu_device_plugin.domain.node.state import NodeTerms, UnitCount
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.page.access import NEEDED
from gpu_device_plugin.page.rows import COLOURS
from gpu_device_plugin.settings.agent_settings import Settings, load_settings
from gpu_device_plugin.settings.controller_settings import ControllerSettings
from gpu_device_plugin.settings.setting import settings_of
from gpu_device_plugin.web.metrics.agent_metrics import (
    AgentMetrics,
    CardSample,
    SliceSample,
    Snapshot,
)
from tools import contract_page, metadata_page, settings_page, words_file

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for place in (
        "",
        "docs",
        "docs/adr",
        "docs/operations",
        "docs/tasks",
        "samples",
        "charts/gpu-device-plugin",
    )
    for path in (ROOT / place).glob("*.md")
)


def page(name: str) -> str:
    """The text of one page."""
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str, columns: int) -> list[list[str]]:
    """The rows of all tables of so many columns; heads and rules are left out."""
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    heads = [index - 1 for index, row in enumerate(cells) if set("".join(row)) <= set("-")]
    left_out = {*heads, *(head + 1 for head in heads)}
    kept = [row for index, row in enumerate(cells) if index not in left_out]
    return [row for row in kept if len(row) == columns]


def words(text: str) -> set[str]:
    """Everything that stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def told_reasons() -> set[str]:
    """Every word in the first column of a table that has reasons there."""
    text = page("docs/troubleshooting.md").partition("## Refusals")[2] + page(
        "docs/operations/events.md"
    )
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    found = {word for cell in cells for word in words(cell)}
    return {word for word in found if re.fullmatch(r"[A-Z][A-Za-z]+[a-z][A-Za-z]*", word)}


def test_every_reason_that_is_raised_is_explained() -> None:
    """A refusal or an Event that nobody documented cannot be acted on."""
    raised = raised_reasons()
    assert {"NoRoom", "TooManyPods", "BadPercentage", "XID", "Lost", "ModeNotServedYet"} <= raised
    text = page("docs/troubleshooting.md").partition("## All words")[0] + page(
        "docs/operations/events.md"
    )
    known = words(text) | {word.partition("<")[0] for word in words(text)}
    ends = {word.removeprefix("…") for word in words(text) if word.startswith("…")}

    assert raised - known - ends == set()


def test_no_reason_is_explained_that_nobody_raises() -> None:
    """A table of words that are gone leads astray."""
    assert told_reasons()
    assert told_reasons() - raised_reasons() == set()


def test_every_reason_stands_among_all_words_with_the_place_that_explains_it() -> None:
    """Anyone who has one word and no context finds it on one page."""
    listed = page("docs/troubleshooting.md").partition("## All words")[2]
    links = re.findall(r"\[`([^`]+)`\]\(([\w./]*)#([\w-]+)\)", listed)
    assert {word.partition("<")[0].removeprefix("…") for word, _, _ in links} == raised_reasons()
    assert [word.lower() for word, _, _ in links if word[0] != "…"] == sorted(
        word.lower() for word, _, _ in links if word[0] != "…"
    )
    for word, file, anchor in links:
        assert word in words(section(page(f"docs/{file or 'troubleshooting.md'}"), anchor)), word


def section(text: str, anchor: str) -> str:
    """What stands below the heading of that anchor, down to the next heading of any level."""
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    (found,) = [
        body for head, body in zip(parts[1::2], parts[2::2], strict=True) if slug(head) == anchor
    ]
    return found


def test_every_rule_at_submission_has_its_text_and_cure_on_the_page() -> None:
    """The words are those that the API server says."""
    told = {
        row[0].strip("`"): row[1].split("; ")
        for row in rows(section(page("docs/troubleshooting.md"), "refused-at-submission"), 3)
    }
    rules = yaml.safe_load(page("charts/gpu-device-plugin/rules.yaml"))
    said: dict[str, str] = {}
    for group in rules:
        for rule in rules[group]:
            literals = re.findall(r"'((?:[^'\\]|\\.)*)'", rule["text"])
            said[f"{group}.{rule['key']}"] = said.get(f"{group}.{rule['key']}", "") + "".join(
                literals
            )

    assert told.keys() == said.keys()
    for key, phrases in told.items():
        assert [phrase for phrase in phrases if phrase not in said[key]] == [], key


@pytest.mark.parametrize("kind", [Settings, ControllerSettings])
def test_variable_and_key_of_a_setting_follow_from_its_flag(kind: type) -> None:
    """The page says so, and names other variables only."""
    for each in settings_of(kind):
        name = each.flag.removeprefix("--").replace("-", "_")
        assert (each.variables[0], each.key) == (f"GPU_DEVICE_PLUGIN_{name.upper()}", name)


def test_every_reason_of_the_controller_is_in_the_words_of_its_program() -> None:
    """People search for what kube-scheduler shows."""
    table = page("docs/controller.md").partition("Every other node gets a reason:")[2]
    told = re.findall(r"^\| (`.+`) \| ", table.partition("\n\n**Bind**")[0], re.MULTILINE)
    sources = [ROOT / "src/gpu_device_plugin" / each for each in ("controller", "domain/fractions")]
    program = "".join(path.read_text() for each in sources for path in each.glob("*.py"))
    assert len(told) == 9
    texts = [text for row in told for text in re.findall("`([^`]+)`", row)]
    parts = [re.split(r": the emptiest.*|…|REASON|fits, but NODE ", text) for text in texts]
    assert [part for each in parts for part in each if part.strip("[]") not in program] == []


def test_no_message_of_the_charts_policies_names_a_file_that_its_reader_may_lack() -> None:
    templates = (ROOT / "charts/gpu-device-plugin/templates").glob("*.*")
    text = "\n".join(path.read_text() for path in templates)
    assert re.findall(r"'[^'\n]*docs/[^'\n]*'", text) == []


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    """The page is as `python -m tools.settings_page` writes it."""
    assert page("docs/settings.md") == settings_page.text()


def test_the_example_of_a_settings_file_is_read() -> None:
    """A file copied from the page works."""
    (example,) = re.findall(r"```yaml\n(.*?)```", page("docs/settings.md"), re.DOTALL)
    keys = set(yaml.safe_load(example))

    assert keys
    assert keys <= {each.key for each in settings_of(Settings)}


def test_the_example_of_a_settings_file_is_valid(tmp_path: Path) -> None:
    """Its values as well as its keys."""
    (example,) = re.findall(r"```yaml\n(.*?)```", page("docs/settings.md"), re.DOTALL)
    file = tmp_path / "settings.yaml"
    file.write_text(example, encoding="utf-8")

    assert load_settings({"node_name": "n"}, {}, file).mode is NodeMode.CGPU


def whole_slice() -> SliceSample:
    """A slice of which everything is known, so that every series has a sample."""
    values: dict[str, Any] = {
        field.name: field.name if field.type is str else 1 for field in fields(SliceSample)
    }
    return SliceSample(**values | {"enforcers": Enforcers()})


def test_every_label_and_annotation_of_the_code_stands_on_its_page() -> None:
    """The page is as `python -m tools.metadata_page` writes it."""
    named = {
        node.value.value
        for path in (ROOT / "src" / "gpu_device_plugin").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if re.search(r"(LABEL|ANNOTATION|_KEY)$", getattr(node.targets[0], "id", ""))
        if re.search(r"[a-z][./][a-z]", str(node.value.value))
    }
    told = {word for row in rows(page("docs/labels.md"), 5) for word in words(row[0])}

    assert {"ack.node.gpu.schedule", "gpu-device-plugin/holdings"} <= named
    assert named - told == set()
    assert page("docs/labels.md") == metadata_page.text()


OTHERS_FLAGS = r"""--(set|set-string|values|reset-then-reuse-values|no-hooks|build-arg|secret|help|minutes|simulated|
require-hashes|probe|previous|root-dir|kube-api-qps|admission-control-config-file|terminated-pod-gc-threshold|
gpu-memory-utilization|mem-fraction-static|emulated-version|kube-version)"""
"""Flags of helm, docker, kubectl, Kubernetes, tests and tools that pages name."""


def flags_of(command: Command) -> set[str]:
    """The flags of a command and of those below it."""
    context = Context(command)
    found = {flag for parameter in command.params for flag in parameter.opts}
    if isinstance(command, Group):
        below = (command.get_command(context, name) for name in command.list_commands(context))
        found = found.union(*(flags_of(each) for each in below if each))
    return found


def test_every_flag_that_a_page_names_is_one_of_a_program() -> None:
    """A flag that was renamed takes its mentions along."""
    texts = (path.read_text("utf-8") for path in PAGES if path.name != "CHANGELOG.md")
    first = (re.match(r"--[a-z][a-z-]+", word) for text in texts for word in words(text))
    named = {found[0] for found in first if found}
    others = {flag for flag in named if re.fullmatch(OTHERS_FLAGS.replace("\n", ""), flag)}

    assert "--isolation" in named
    assert named - flags_of(cli) - flags_of(gpu) - others == set()


def test_every_error_of_the_settings_is_in_the_words_of_the_page(tmp_path: Path) -> None:
    """Those of the file and of values; the words of flags are click's."""
    told = section(page("docs/settings.md"), "what-is-an-error")
    file = tmp_path / "settings.yaml"
    wrong: list[tuple[dict[str, Any], dict[str, str], str]] = [
        ({"node_name": "n"}, {}, "mod: cgpu"),
        ({"node_name": "n"}, {"GPU_DEVICE_PLUGIN_MODE": "gpu"}, "{}"),
        ({"node_name": "n", "recovery_seconds": "0"}, {}, "{}"),
        ({"node_name": "n", "standalone": True, "kubeconfig": "/k"}, {}, "{}"),
        ({}, {}, "{}"),
        ({"node_name": "n", "state_dir": "state"}, {}, "{}"),
    ]
    for flags, variables, text in wrong:
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as error:
            load_settings(flags, variables, file)
        said = str(error.value).removeprefix(f"{tmp_path}/")

        assert said.split(" core_mem")[0] in told, said


def test_every_exit_code_of_the_programs_stands_in_the_table() -> None:
    """A supervisor or a script decides by it."""
    table = section(page("docs/settings.md"), "exit-codes")
    told = {int(row[0]) for row in rows(table, 3) if row[0].isdecimal()}

    assert told == {
        0,
        EXIT_FAILED,
        EXIT_USAGE,
        EXIT_UNKNOWN,
        EXIT_INTERRUPTED,
        EXIT_FOR_REINJECTION,
    }


def test_the_page_of_the_page_names_the_rights_that_it_asks_for() -> None:
    """Who lacks one of them is turned away."""
    told = " ".join(page("docs/page.md").split()).lower()
    needed = [each.resource for each in NEEDED]

    assert {each.verb for each in NEEDED} == {"list"}
    assert f"may list {', '.join(needed[:-1])} and {needed[-1]} in all namespaces" in told


def test_the_labels_of_nodes_with_cards_are_those_of_the_chart() -> None:
    """An agent starts on a node with one of these labels; where the value counts, the page names it."""
    template = page("charts/gpu-device-plugin/templates/_affinity.tpl")
    found = re.findall(r'"key" "([^"]+)"(?: "values" \(list "([^"]+)"\))?', template)
    labels = {f"{key}={value}" if value else key for key, value in found}
    told = words(section(page("docs/install.md"), "install"))
    short = {label for label in labels if f"…/{label.split('/')[-1]}" in told}

    assert (labels | {"ack.node.gpu.schedule"}) - short - set(told) == set()


def test_the_page_has_as_many_colours_as_the_docs_say_each_with_letters_that_can_be_read() -> None:
    """A contrast of 4.5 (WCAG AA) of letter and slice."""

    def luminance(colour: str) -> float:
        channels = [int(pair, 16) / 255 for pair in re.findall("..", colour)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    style = page("src/gpu_device_plugin/web/html/static/page.css")
    found = re.findall(r"\.c(\d) { --c: #(\w{6});( --t: #fff;)? }", style)
    assert [int(number) for number, _, _ in found] == list(range(COLOURS))
    assert COLOURS == 8, "docs/page.md says eight"
    for _, colour, is_white in found:
        of_slice, of_letter = luminance(colour) + 0.05, 1.05 if is_white else 0.05
        assert max(of_slice, of_letter) / min(of_slice, of_letter) >= 4.5, colour


def test_every_metric_stands_in_the_table_with_its_labels() -> None:
    """Dashboards are written from that table."""
    metrics = AgentMetrics("1")
    units = UnitCount("r", 1, 0)
    metrics.publish(
        Snapshot(
            cards=(
                CardSample(
                    0,
                    "GPU-0",
                    is_healthy=False,
                    units=(units,),
                    reason="XID79",
                    unexplained_bytes=1,
                    api="dra",
                    enforcer="driver (dmem)",
                ),
            ),
            slices=(whole_slice(),),
            is_api_reachable=True,
            faults=("OtherPlugin",),
        )
    )
    metrics.count("allocations", "r", "granted")
    metrics.count("claims", "granted")
    metrics.count("registrations", "r")
    metrics.count("card_changes", "GPU-0", "XID79")
    metrics.count("slice_repairs", "RegionGrown")
    text = metrics.page("")[0].decode()
    exposed = set()
    for family in text_string_to_metric_families(text):
        if family.name.startswith("gpu_device_plugin_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
            exposed.add(f"`{name}{{{','.join(labels)}}}`" if labels else f"`{name}`")

    told = {
        row[0]
        for row in rows(page("docs/operations/metrics.md"), 2)
        if "gpu_device_plugin_" in row[0]
    }
    assert told == exposed


def test_the_table_of_xids_is_the_one_that_is_used() -> None:
    """Code, name, action and recovery of every row, and of all others."""
    rules = health_rules(30)
    expected = {
        (str(rule.code), rule.name, str(rule.action), str(rule.recovery))
        for rule in rules.xids.values()
    } | {("any other", rules.default.name, str(rules.default.action), str(rules.default.recovery))}
    told = {
        (code, name, action, recovery or "reset")
        for code, name, action, recovery in rows(page("docs/operations/events.md"), 4)
    }

    assert told == expected


def test_the_example_of_an_xid_table_is_read(tmp_path: Path) -> None:
    """Rows over ours, and another rule for all others."""
    blocks = re.findall(r"```yaml\n(.*?)```", page("docs/operations/events.md"), re.DOTALL)
    (example,) = (block for block in blocks if block.startswith("xids:"))
    file = tmp_path / "xids.yaml"
    file.write_text(example, encoding="utf-8")
    rules = health_rules(30, file)

    assert (rules.rule(74).action, rules.rule(999).action) == ("report", "report")
    assert rules.rule(79).action == "fault"


def test_every_mode_stands_in_the_table_with_its_resources() -> None:
    """What a node offers in each mode."""
    told = {
        row[0].strip("`"): words(row[1])
        for row in rows(page("docs/node-modes.md"), 3)
        if row[0].strip("`") in set(NodeMode)
    }

    whole = {"default": "nvidia.com/gpu", "topology": "aliyun.com/gpu", "mig": "nvidia.com/mig-*"}
    assert all(resource in told.pop(mode) for mode, resource in whole.items())
    assert told == {
        str(mode): set(map(str, resources_of(mode))) for mode in NodeMode if not is_whole(mode)
    }


@pytest.mark.parametrize("variant", sorted((ROOT / "tests/golden/edits").glob("*-nvidia.json")))
def test_what_a_container_receives_is_told(variant: Path) -> None:
    """Every variable of the golden answers stands in the table."""
    answer: dict[str, Any] = json.loads(variant.read_text(encoding="utf-8"))
    told = words(page("docs/requests.md"))

    assert answer["envs"].keys() <= told


def test_the_rights_that_the_page_gives_are_those_that_the_tests_run_with() -> None:
    """The end-to-end tests prove that they are enough."""
    from tools.harness.cluster.agent import KUBE_SYSTEM_RULES, RULES

    blocks = re.findall(r"```yaml\n(.*?)```", page("docs/operations/requirements.md"), re.DOTALL)
    (made,) = (yaml.safe_load_all(block) for block in blocks if "ClusterRole" in block)

    for role, rules in zip(made, (RULES, KUBE_SYSTEM_RULES), strict=True):
        assert rights(role) == {
            (g, resource, verb) for g, names, verbs in rules for resource in names for verb in verbs
        }


def test_every_dependency_verb_and_failpoint_stands_in_the_contributors_page() -> None:
    """Each outside package has its reason there."""
    project = tomllib.loads(page("pyproject.toml"))
    groups = project["dependency-groups"]
    needed = [*project["project"]["dependencies"], *groups["build"], *groups["dev"]]
    names = {re.split(r"[><=~;\[ ]", entry)[0] for entry in needed}
    verbs = set(re.findall(r"^([a-z0-9]+):.*##", page("Makefile"), re.MULTILINE))
    told = words(page("CONTRIBUTING.md"))

    assert names - told == set()
    assert {f"make {verb}" for verb in verbs} - told == set()
    assert set(POINTS) - told == set()


def test_every_command_is_told() -> None:
    """Of the program, and of `simulate`."""
    texts = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    simulator = words(page("docs/simulator.md"))
    simulated = {word.split(" ")[0] for word in simulator}

    assert [
        name for name in cli.list_commands(Context(cli)) if f"gpu-device-plugin {name}" not in texts
    ] == []
    assert set(simulate.commands) - simulated == set()


SAMPLES = {
    "first-slice.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(2), 30)),
    "two-cards.yaml": (NodeMode.CGPU, MemoryUnit.GIB, Demand(Units(8), cards=2)),
    "pytorch-training.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(8), 50)),
    "vllm.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(8), 50)),
    "jupyter-notebook.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(3), 20)),
    "growing-notebook.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(2), 30)),
    "sglang.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(8), 50)),
    "kserve.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(8), 50)),
    "kubeflow.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(8), 50)),
    "ray.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(7), 50)),
    "triton.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(4), 25)),
    "ack/cuda-sample.yaml": (NodeMode.CORE_MEM, MemoryUnit.GIB, Demand(Units(2), 30)),
    "ack/binpack.yaml": (NodeMode.SHARE, MemoryUnit.MIB128, Demand(Units(16))),
}
NO_PODS = {
    "node-labels.yaml",
    "team-quota.yaml",
    "acs/acs-profile.yaml",
    "time-slicing/time-slicing.yaml",
}
OF_NVIDIA = {
    "aks/nvidia-single.yaml",
    "aks/nvidia-mixed.yaml",
    "acs/gpu-pod-with-model-and-driver.yaml",
    "time-slicing/test-gpu-pod.yaml",
}
"""Not asking for fractions."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_asks_for_what_its_node_gives(name: str) -> None:
    """No sample is refused on the kind of node that its head names."""
    mode, unit, expected = SAMPLES[name]
    sample, *_ = yaml.safe_load_all(page(f"samples/{name}"))
    spec = sample["spec"]
    match sample["kind"]:
        case "Pod":
            body = sample
        case "InferenceService":  # KServe puts the model's resources into its container
            resources = spec["predictor"]["model"]["resources"]
            body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        case "TrainJob":  # Trainer as well
            resources = spec["trainer"]["resourcesPerNode"]
            body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        case "RayCluster":
            body = spec["workerGroupSpecs"][0]["template"]
        case _:
            body = spec["template"]
    request = pod_request(msgspec.convert({"metadata": {"name": "p"}, **body}, Pod))

    assert demand(request, request.containers[0], NodeTerms("n", mode, unit)) == expected


def test_every_sample_is_tried() -> None:
    """And the one that is no pod carries labels that the agent knows."""
    labels = yaml.safe_load(page("samples/node-labels.yaml"))["metadata"]["labels"]

    assert labels == {"ack.node.gpu.schedule": "core_mem", "ack.node.gpu.placement": "binpack"}
    samples = ROOT / "samples"
    found = {str(path.relative_to(samples)) for path in samples.rglob("*.yaml")}
    assert found == {*SAMPLES, *NO_PODS, *OF_NVIDIA}


def test_the_readme_opens_with_the_request_of_the_sample() -> None:
    """The first YAML of the first page is valid, and asks for the documented slice."""
    first = re.search(r"```yaml\n(.*?)```", page("README.md"), re.DOTALL)
    assert first is not None
    opening = yaml.safe_load(first[1])
    assert opening == yaml.safe_load(page("samples/first-slice.yaml"))
    request = pod_request(msgspec.convert(opening, Pod))
    terms = NodeTerms("n", NodeMode.CORE_MEM, MemoryUnit.GIB)

    assert demand(request, request.containers[0], terms) == Demand(Units(2), 30)
    assert {str(Resource.MEM), str(Resource.CORE)} <= set(re.findall(r"[\w./-]+", first[1]))


def test_the_readme_says_which_kubernetes_was_tested() -> None:
    """The version of `make e2e` is one of them, and each names tests that are there."""
    from tools.harness.cluster.binaries import DEFAULT_KUBERNETES

    told = {row[0]: row[1] for row in rows(section(page("README.md"), "install-it"), 2)}
    versions = {cell: text for cell, text in told.items() if re.fullmatch(r"1\.\d+\.\d+", cell)}
    named = {word for text in versions.values() for word in words(text)}

    assert DEFAULT_KUBERNETES in versions
    assert f"KUBE ?= {DEFAULT_KUBERNETES}" in page("Makefile")
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(path: Path) -> None:
    """Files exist, and so do the headings that are linked to."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        other = (path.parent / name).resolve() if name else path
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(target)

    assert broken == []


def test_the_threat_model_names_every_hostile_test_and_only_tests_that_exist() -> None:
    named = set(re.findall(r"`((?:tests|\.ci)/[\w./-]+)`", page("docs/security.md")))
    hostile = {f"tests/hostile/{each.name}" for each in (ROOT / "tests/hostile").glob("test_*.py")}

    assert hostile <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def contract() -> dict[str, list[str]]:
    """The promise of each requirement, and the tests that prove it."""
    found = rows(page("docs/contract.md"), 4)
    assert len({row[0] for row in found}) == len(found)
    return {row[0]: row[2:] for row in found}


def test_every_requirement_has_its_tests_or_says_why_there_is_none() -> None:
    """The page is as `python -m tools.contract_page` writes it."""
    told = contract()
    assert len(told) > 100
    assert [
        number
        for number, (promise, proof) in told.items()
        if not proof and "Not built, because " not in promise
    ] == []
    assert page("docs/contract.md") == contract_page.text()


def test_explain_knows_what_the_tables_say() -> None:
    """The file is as `python -m tools.words_file` writes it."""
    assert words_file.WORDS.read_text(encoding="utf-8") == words_file.words()


def test_every_test_that_a_page_names_exists() -> None:
    """As `file`, or as `file::test`."""
    named = {
        word
        for path in PAGES
        for word in words(path.read_text())
        if re.match(r"tests/\S+\.py", word)
    }
    missing = []
    for word in named:
        name, _, test = word.partition("::")
        file = ROOT / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if not text or (test and not re.search(rf"^(async )?def {test}\(", text, re.MULTILINE)):
            missing.append(word)

    assert any("::" in word for word in named)
    assert missing == []


def test_every_requirement_that_is_cited_stands_in_the_contract() -> None:
    """In code, tests, chart and pages."""
    told = contract().keys()
    places = [ROOT / name for name in ("src", "tests", "tools", "charts", "samples", "docs")]
    cited = {
        (str(path.relative_to(ROOT)), number)
        for place in places
        for path in place.rglob("*")
        if path.suffix in {".py", ".c", ".h", ".md", ".yaml"}
        for number in re.findall(r"\bR-\d{3}\b", path.read_text(encoding="utf-8"))
    }

    assert {number for _, number in cited}
    assert [each for each in sorted(cited) if each[1] not in told] == []


def test_what_is_said_of_others_has_its_source() -> None:
    """Every reference leads somewhere, and no source is left that nothing refers to."""
    text, _, _ = page("docs/comparison.md").partition("\n[ACK]: ")
    sources = dict(
        re.findall(r"^\[([\w-]+)\]: (https://\S+)$", page("docs/comparison.md"), re.MULTILINE)
    )
    named = set(re.findall(r"\[[^\]]+\]\[([\w-]+)\]", text))
    alone = set(re.findall(r"\[([\w-]+)\](?![\[(:])", text))

    assert sources
    assert named | alone == sources.keys()
    heads = [line for line in text.splitlines() if line.startswith("| | ")]
    assert {head.count("|") for head in heads} == {6}
    assert len(rows(text, 5)) > 20


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {slug(head) for head in heads}


def slug(head: str) -> str:
    """The anchor of one heading."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def test_the_figures_in_short_are_measured_ones() -> None:
    """A row that was renamed would leave a hole in the first section."""
    text = in_short(page("docs/benchmarks.md"))

    assert text in page("docs/benchmarks.md")
    assert "not measured" not in text


def test_a_chapter_of_the_benchmarks_says_what_it_is_for_before_its_table() -> None:
    """In ten lines; how it was measured stands below."""
    chapters = re.split(r"^#{2,3} ", page("docs/benchmarks.md"), flags=re.MULTILINE)
    measured = [each for each in chapters if "\n| what |" in each]

    assert len(measured) > 20
    for chapter in measured:
        title, *lead = filter(None, chapter.partition("\n| what |")[0].splitlines())
        assert 1 <= len(lead) <= 10, title
        assert not any("How it was measured" in line for line in lead), title


def test_what_the_page_of_kubectl_gpu_shows_is_what_it_prints() -> None:
    """Each example is of a golden file; that of replicas and instances is tested by itself."""
    golden = (ROOT / "tests/golden/overview").glob("*.txt")
    printed = {line.rstrip() for path in golden for line in page(str(path)).splitlines()}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page("docs/kubectl.md"), re.DOTALL | re.MULTILINE)
    shown = [block.splitlines() for language, block in blocks if not language]

    assert len(shown) > 4
    others = [line for lines in shown if "gpu-c  default" not in lines[0] for line in lines]
    assert [line for line in others if line not in printed] == []


def test_decisions_are_numbered_without_a_gap_and_have_their_three_parts() -> None:
    """Context, decision, consequence, on one page each."""
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(path.name.split("-")[0]) for path in records]

    assert numbers == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequence",
        ], path.name
        assert len(text.splitlines()) <= 60, path.name
        assert f"({path.name})" in page("docs/adr/README.md")
