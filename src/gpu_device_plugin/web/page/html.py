"""Templates, the script and the stylesheet; every value is escaped unless it is a template's own."""

import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_HERE = Path(__file__).resolve().parent
_STATIC = {"page.js": "text/javascript", "page.css": "text/css"}


class Html:
    """What the page consists of, read once.

    Attributes:
        static: Name -> content and type of the files that the page refers to.
        version: Changes with them, so that browsers may keep them.
    """

    def __init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.static = {
            name: ((_HERE / "static" / name).read_bytes(), kind) for name, kind in _STATIC.items()
        }
        contents = b"".join(content for content, _ in self.static.values())
        self.version = hashlib.sha256(contents).hexdigest()[:12]

    def render(self, template: str, **values: object) -> str:
        """A template of this directory, filled in."""
        text: str = self._templates.get_template(template + ".html").render(values)
        return text

    def own(self, html: str) -> Markup:
        """What `render` has made before, to be put into another template as it is."""
        return Markup(html)  # noqa: S704 a template has made it
