"""YAML or JSON as operators and tenants write it: bounded, and no key stands twice."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpu_device_plugin.errors import ConfigError, clip

_MOST_NODES, _MOST_DIGITS = 10_000, 64


class _Loader(yaml.SafeLoader):
    """YAML with strings as keys; a key that occurs twice is an error, because either could count.

    An alias costs a few letters and stands for all that its anchor has. So nodes count once for each
    place that they are at in the end.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The node, or an error where it would be too many."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._sizes[node] = 1 + sum(self._sizes[part] for part in _parts(node))
        elif node not in self._sizes:
            raise yaml.YAMLError("an alias stands within what it is an alias of")
        if node.tag.endswith((":int", ":float")) and len(node.value) > _MOST_DIGITS:
            raise yaml.YAMLError(f"a number of {len(node.value)} characters{node.start_mark}")
        if max(self._sizes[node], len(self._sizes)) > _MOST_NODES:
            raise yaml.YAMLError(f"more than {_MOST_NODES} values, with what aliases stand for")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        """The mapping, or an error that names the second key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is a {key.id}{key.start_mark}")
            if key.value in seen:
                raise yaml.YAMLError(f"key {clip(key.value)!r} stands twice, again{key.start_mark}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _parts(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return itertools.chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def parse_yaml(text: str) -> Any:
    """What a YAML or JSON text says; ConfigError where it is neither, or a key stands twice."""
    # YAML has no tabs between tokens, JSON has; inside a text JSON writes them as \t.
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    try:
        return yaml.load(text.replace("\t", " ") if is_json else text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}") from error
    # What PyYAML lets through where a value does not suit its tag, as in `!!int` with nothing behind it.
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {type(error).__name__}: {error}") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys and values of a YAML or JSON file, none of an empty one; ConfigError for another."""
    return yaml_object(file, read_text(file))


def read_text(file: Path) -> str:
    """What is in a file; ConfigError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8: {error}") from error


def yaml_object(file: Path, text: str) -> dict[str, Any]:
    """The keys and values of the text of a file, as in `read_yaml`."""
    try:
        content = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file}: wanted keys and values at the top level, not a {type(content).__name__}"
        )
    return content
