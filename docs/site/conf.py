"""The docs as a site (`make docs`): every Markdown page of the repository, by Sphinx."""

project = "gpu-device-plugin"
extensions = ["myst_parser"]
root_doc = "docs/site/index"
include_patterns = ["docs/**.md", "*.md", "charts/gpu-device-plugin/README.md", "samples/*.md", "src/**/README.md"]
myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["html_image"]  # else the site lacks the files of <img>
html_theme = "furo"
html_title = project
html_copy_source = False
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # Mermaid: a drawing on code hosts, text here
