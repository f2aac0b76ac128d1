"""The promise: what people read is in plain words and short sentences."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_docs import PAGES, ROOT

BANNED = re.compile(
    r"\b(anew|whoever|whomever|by turns|learnt|ours(?!\()|thereof|whereof|herein|hereby|therein"
    r"|for want of|tells of one|could tell of|is from before|refused at (?:its|their) start"
    r"|names no (?:policy|mode|placement|settings|memory enforcer|allocation API)"
    r"|(?:is|are) (?:now )?said|of \w+ it says|simply|obviously|in order to|utili[sz]e)\b|\b(?:e\.g|i\.e)\.",
    re.IGNORECASE,
)
TERMS = {
    r"node agent|agent daemon": "agent",
    r"fractional GPU|GPU partition|GPU fraction": "slice",
    r"GPU cards?|graphics cards?": "card",
    r"k8s|kubernetes(?! #)": "Kubernetes",
    r"Kubelet": "kubelet",
    r"[Dd]aemon ?sets?|Daemonsets?": "DaemonSet",
    r"[Cc]onfig ?maps?": "ConfigMap",
    r"name space": "namespace",
    r"time ?slicing": "time-slicing",
    r"NVidia|Nvidia": "NVIDIA",
}
"""Another word for a thing -> the one of docs/glossary.md, Kubernetes or NVIDIA."""
LONGEST = 35
"""Words of a sentence, whatever stands in it between colons and semicolons."""
CHART = ROOT / "charts" / "gpu-device-plugin"


def descriptions(schema: object) -> Iterator[str]:
    """What a schema says of its values."""
    if isinstance(schema, dict):
        if isinstance(text := schema.get("description"), str):
            yield text
        for each in schema.values():
            yield from descriptions(each)


def said_by(path: Path) -> Iterator[str]:
    """Texts of a module that are shown: help, errors, Events, log lines; docstrings are for developers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def comments(path: Path) -> str:
    """Of a file of the chart."""
    return "\n".join(re.findall(r"#(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def sentences(text: str) -> Iterator[str]:
    """Of a page; code, tables, headings, quotes and the addresses of links are no sentences."""
    text = re.sub(
        r"```.*?```|<!--.*?-->|^\[[\w-]+\]: \S+$", "", text, flags=re.DOTALL | re.MULTILINE
    )
    lines = [
        line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<", ">"))
    ]
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", "\n".join(lines)))
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", plain):
        yield from re.split(r"(?<=[.!?])\s+| · ", " ".join(paragraph.split()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_in_plain_words_and_short_sentences(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    quoted = re.sub(r"\"[^\"\n]*\"|`[^`\n]*`", "", text)  # ACK's literal texts, names

    assert [found[0] for found in BANNED.finditer(quoted)] == []
    assert [each for each in sentences(text) if len(each.split()) > LONGEST] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_one_word_for_one_thing(path: Path) -> None:
    text = " ".join(sentences(path.read_text(encoding="utf-8")))

    found = {
        word: term
        for words, term in TERMS.items()
        for word in re.findall(rf"\b(?:{words})\b(?![/.-]\w)", text)
    }
    assert found == {}


def test_programs_and_chart_speak_in_plain_words() -> None:
    """Help, refusals, Events, log lines; values and comments of the chart."""
    texts = {
        **{
            path: list(said_by(path)) for path in (ROOT / "src" / "gpu_device_plugin").rglob("*.py")
        },
        **{path: [comments(path)] for path in CHART.rglob("*") if path.suffix in {".yaml", ".tpl"}},
    }
    texts[CHART] = list(descriptions(json.loads((CHART / "values.schema.json").read_text())))
    found = [
        (path.name, word[0])
        for path, said in texts.items()
        for text in said
        for word in BANNED.finditer(text)
    ]

    assert len(texts) > 200
    assert found == []


def test_no_program_sends_a_reader_to_a_file_that_only_the_repository_has() -> None:
    """Who reads an Event, `why` or what helm prints has the program, and `kubectl gpu explain` in it."""
    said = {
        path: list(said_by(path)) for path in (ROOT / "src" / "gpu_device_plugin").rglob("*.py")
    }
    for path in (CHART / "templates").rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        refusals = re.findall(r'\bfail \(?(?:printf )?"([^"]*)"', text)
        said[path] = [text] if path.name == "NOTES.txt" else refusals
    assert len(said[CHART / "templates" / "_checks.tpl"]) > 30
    elsewhere = re.compile(r"\b(?:docs|samples)/\S")
    found = [
        (p.name, text) for p, texts in said.items() for text in texts if elsewhere.search(text)
    ]

    assert found == []
