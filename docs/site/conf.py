"""The docs as a site (`make docs`): every Markdown page of the repository, by Sphinx."""  # noqa: INP001 - read by its path

import os
import re
from pathlib import Path

from docutils import nodes
from hunspell import Hunspell
from sphinx.util.logging import getLogger

LOG = getLogger(__name__)
ROOT = Path(__file__).parents[2]
DICTIONARY = Hunspell("en_US")
for each in (ROOT / "docs/site/words.txt").read_text().split():
    word, _, like = each.partition("/")  # recognise/recognize: with the endings of the second
    DICTIONARY.add_with_affix(word, like) if like else DICTIONARY.add(word)
NAVIGATION = {
    "docs/README": {
        "Start": ["Overview </README>", "docs/install", "docs/concepts"],
        "Tasks": [
            *("docs/node-modes", "docs/requests", "samples/README", "docs/tasks/notebooks"),
            "docs/tasks/resize",
            *("docs/tasks/two-models", "docs/tasks/team-quota", "docs/tasks/moving-in"),
            *("docs/tasks/sick-card", "docs/tasks/beside-others"),
            *("docs/tasks/platforms", "docs/tasks/ai-conformance", "docs/controller", "docs/dra"),
            *("docs/nvidia", "docs/models"),
        ],
        "Operations": [
            *("docs/troubleshooting", "docs/kubectl", "docs/page", "docs/operations/requirements"),
            *(f"docs/operations/{name}" for name in ("health", "metrics", "alerts", "restarts")),
            *(f"docs/operations/{name}" for name in ("upgrade", "uninstall", "state")),
            "docs/operations/memory-limits",
        ],
        "Reference": [
            *("docs/labels", "docs/settings"),
            "Chart values </charts/gpu-device-plugin/README>",
            *("docs/operations/events", "docs/accounts", "docs/glossary"),
            *("docs/releases", "CHANGELOG"),
        ],
        "How it works": [
            *("docs/architecture", "docs/isolation", "docs/security", "docs/comparison"),
            "docs/adr/README",
        ],
        "Evidence": [
            *("docs/benchmarks", "docs/contract", "docs/conformance", "docs/isolation-details"),
            "docs/testing",
        ],
        "Development": [
            *("CONTRIBUTING", "docs/simulator", "src/simulator/cuda/README"),
            *("GOVERNANCE", "SUPPORT", "Reporting a fault </SECURITY>"),
        ],
    },
    "docs/adr/README": {
        "": sorted(f"docs/adr/{path.stem}" for path in ROOT.glob("docs/adr/0*.md"))
    },
}
"""A page -> the pages below it in the sidebar, by caption, some with a title of their own."""

project = "gpu-device-plugin"
version = os.environ.get("DOCS_VERSION") or "development"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = [
    "docs/**.md",
    "*.md",
    "charts/gpu-device-plugin/README.md",
    "samples/*.md",
    "src/**/README.md",
]
myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["html_image"]  # else the site lacks the files of <img>
templates_path = ["."]
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
commit = os.environ.get("DOCS_COMMIT", "")  # date and hash
html_title = f"{project} <small>{version} {commit}</small>"
html_short_title = project
html_additional_pages = {"index": "redirect.html"}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "versions.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_context = {
    "this_version": os.environ.get("DOCS_VERSION", ""),
    "versions": ["", *os.environ.get("DOCS_VERSIONS", "").split()],
}
html_copy_source = False
html_show_copyright = False
nitpicky = True


def setup(app):
    """Append to each page of NAVIGATION what stands below it."""

    def append(_app, page, source):
        for caption, below in NAVIGATION.get(page, {}).items():
            entries = "\n".join(name if "<" in name else f"/{name}" for name in below)
            options = f":hidden:\n:caption: {caption}" if caption else ":hidden:"
            source[0] += f"\n\n```{{toctree}}\n{options}\n\n{entries}\n```\n"

    app.connect("source-read", append)
    app.connect("doctree-resolved", _report_unknown_words)


def _report_unknown_words(_app, tree, _page):
    """Warn of each word that is neither in the dictionary nor in words.txt; names with inner capitals are none."""
    for text in tree.findall(nodes.Text):
        if isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.raw | nodes.comment):
            continue
        for word in re.findall(
            r"(?<![\w./-])[A-Za-z]?[a-z]+(?:['\u2019][a-z]+)?(?![\w/]|\.\w)", text.astext()
        ):
            plain = re.sub(r"['\u2019]s$", "", word).replace("\u2019", "'")
            if not DICTIONARY.spell(plain):
                LOG.warning(
                    "unknown word: %s (a name or a term goes into docs/site/words.txt)",
                    word,
                    location=text.parent,
                )
