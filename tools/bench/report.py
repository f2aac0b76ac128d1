"""docs/benchmarks.md."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.bench.machine import Machine
from tools.bench.rows import Chapter, Row

DOCUMENT = Path("docs/benchmarks.md")
_TITLE = "# Benchmarks\n\nFor operators and reviewers: how fast, small and exact this is.\n"
_METHOD = """\
## Method

`make bench` writes this page, `make gpu` and `make gpu-page` its last sections; do not edit it. The load of a chapter is the machine's load average of a minute before it. Figures are medians unless they say otherwise, quantiles are by
nearest rank, and both figures of a ratio come from one run. Cards are simulated, except in the last sections. The agent is always the real
process, on real sockets; kubelet and API server are stand-ins, except where a chapter names a real cluster.
"""
REAL_CARD, PODS_ON_A_CARD = "real card", "pods on a real card"
_ON_CARDS = (REAL_CARD, PODS_ON_A_CARD)
"""The last sections, which only a machine with a card can measure."""
_MACHINE = re.compile(r"^- Machine.*\n- Python.*$", re.MULTILINE)
_VARIANT = re.compile(
    r", (?P<cap>\d+ %): (?:the card's time|throughput kept|relative error)$"
    r"|^(?P<family>linear|physical|pool|managed): "
    r"|^PyTorch, (?P<allocator>\w+): "
    r"|(?:in|of) the slice of (?P<slice>\d+ %)"
    r"|^processor time per pod, (?P<program>[\w-]+),"
    r"|NVLinks: (?P<links>.+)$"
    r"|in real time at (?P<burst>\d+ %): "
    r"|beside (?P<neighbours>\d+) idle slices"
    r"|API server of (?P<latency>[\d.]+ s): "
    r"|prioritize by (?P<policy>\w+), [\d,]+ names, (?:p99|median)"
)
"""What may differ between rows that stand in one line."""
_IN_SHORT = (
    ("Allocate, p50", "One Allocate takes {}, one flush of the disk included."),
    (
        "a pod's start as a whole, median",
        "A pod's whole start takes {} with NVIDIA's plugin and with this one.",
    ),
    ("exec to first list, median", "An agent that starts again offers its units after {}."),
    ("agent, resident, 109 pods", "The agent of a node with 109 pods uses {} of memory"),
    ("the same, 109 pods", "and, while idle, {} of CPU."),
    (
        "500 pods placed, device plugin, raised limits",
        "Pods placed: {} through the device plugin API",
    ),
    (
        "500 pods placed, claims, raised limits",
        "and {} through claims; [dra.md](dra.md) has faster settings.",
    ),
    (
        "added to a launch, both caps (events with it)",
        "In a container the limits add {} to a launch",
    ),
    ("added to an allocation, p50", "and {} to an allocation, on an H100."),
    (
        "shares of 90 tenants in 45 mixes: largest error",
        "A tenant's share of compute time is off by {} at most, in mixes that the library was tuned on.",
    ),
)
"""Row -> the sentence that says its figure to people who do not audit."""


def write(machine: Machine, measured: Mapping[str, Sequence[str]], order: Sequence[str]) -> None:
    """Put what was measured here into the document; whatever else it says stays.

    Args:
        machine: This one; the document names that of its last whole measurement, and a chapter its own.
        measured: Name of a chapter -> when it was measured, and its text.
        order: All names, as they stand in the document.
    """
    before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    text = before[max(before.find("<!-- "), 0) :]
    kept = kept_section(text)
    for name in order:
        known = section_of(text, name)
        if name in measured and known is not None:
            text = text.replace(_marked(name, known), _marked(name, "\n".join(measured[name])))
        elif known is None:
            missing = f"## {name}\n\nNot measured yet: `python -m tools.bench {name}`.\n"
            section = _marked(name, "\n".join(measured.get(name, [missing])))
            text = text.removesuffix(kept).rstrip("\n") + "\n\n" + section + "\n" + kept
    named = _MACHINE.search(before) if set(order).difference(measured) else None
    lines = named[0] if named else "\n".join(machine.lines())
    head = [_TITLE, in_short(text), _METHOD, lines, "", text.lstrip("\n")]
    DOCUMENT.write_text("\n".join(head), encoding="utf-8")


def in_short(text: str) -> str:
    """The first section: some figures in sentences, and how many targets were missed."""
    cells = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\|.*$", text, re.MULTILINE)
    ]
    measured = {row[0]: row[2] for row in cells if len(row) == 4}
    verdicts = [row[3] for row in cells if len(row) == 4]
    told = "\n".join(said.format(measured.get(row, "(not measured)")) for row, said in _IN_SHORT)
    lines = [f"- {line}" for line in told.replace("\nand", " and").splitlines()]
    lines.insert(
        0, "- Cards are simulated on a machine with two cores, unless a line names an H100."
    )
    missed, met = (verdicts.count(word) for word in ("**missed**", "met"))
    lines.append(f"- Of {missed + met} lines with targets {missed} have a miss; each is marked.")
    return "## In short\n\n" + "\n".join(lines) + "\n"


def kept_section(text: str) -> str:
    """What was measured on cards, with its marks; empty where there is nothing."""
    return _on_cards({name: section_of(text, name) for name in _ON_CARDS})


def with_section(text: str, section: str, name: str = REAL_CARD) -> str:
    """The document with what was measured on a card among its last sections."""
    found = {each: section_of(text, each) for each in _ON_CARDS}
    before = text
    for each, known in found.items():
        before = before.replace(_marked(each, known or ""), "")
    return before.rstrip("\n") + "\n\n" + _on_cards({**found, name: section})


def _on_cards(sections: Mapping[str, str | None]) -> str:
    known = [_marked(name, text) for name, text in sections.items() if text is not None]
    return "\n".join(known)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def _marked(name: str, text: str) -> str:
    begin, end = _marks(name)
    return begin + text + end


def section_of(text: str, name: str) -> str | None:
    """The part of that name, without its marks; None where there is none."""
    begin, end = _marks(name)
    if begin not in text or end not in text:
        return None
    return text[text.index(begin) + len(begin) : text.index(end)]


def chapter_text(chapter: Chapter, *, level: int = 2) -> str:
    """Heading, what the figures are for, table; then how they were measured, for people who audit."""
    lead, _, method = chapter.method.partition("\n\n")
    lines = [f"{'#' * level} {chapter.title}", "", lead, ""]
    lines += ["| what | target | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.target} | {row.measured} | {row.verdict} |"
        for row in folded(chapter.rows)
    ]
    return "\n".join(lines) + (f"\n\n**How it was measured.** {method}\n" if method else "\n")


def folded(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows that differ in one name or number only as one, with all their figures; missed if one of them is."""
    lines: dict[tuple[str, str], list[tuple[str, Row]]] = {}
    for index, row in enumerate(rows):
        found = _VARIANT.search(row.what)
        if found is None or found.lastgroup is None:
            lines[str(index), ""] = [("", row)]
        else:
            begin, end = found.span(found.lastgroup)
            around = row.what[:begin], row.what[end:]
            lines.setdefault(around, []).append((found[found.lastgroup], row))
    for (before, after), same in lines.items():
        if len(same) == 1:
            yield same[0][1]
            continue
        verdicts = [row.is_met for _, row in same]
        figures = [row.measured for _, row in same]
        yield Row(
            f"{before}{', '.join(name for name, _ in same)}{after}",
            "; ".join(dict.fromkeys(row.target for _, row in same)),
            figures[0] if len(set(figures)) == 1 else ", ".join(figures),
            False if False in verdicts else None if None in verdicts else True,
        )
