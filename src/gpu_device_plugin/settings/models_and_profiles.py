"""What an operator says of models and drivers: a catalogue, and the rules of the profile.

The catalogue has the packaged series, changed by the operator. The profile is the key `selectors`
of the ConfigMap `kube-system/acs-profile`.
"""

from collections.abc import Mapping
from importlib import resources

import msgspec

from gpu_device_plugin.domain.models.label_selector import LabelSelector
from gpu_device_plugin.domain.models.model_catalogue import Catalogue, Series
from gpu_device_plugin.domain.models.profile_rules import ProfileRule, check_rules
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.bounded_yaml import parse_yaml


class _Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A series without its name."""

    names: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    default: str = ""


def load_catalogue(operator_text: str = "") -> Catalogue:
    """The packaged series, and the operator's over them.

    Args:
        operator_text: YAML of the same form as model_drivers.yaml; a series in it replaces the
            packaged one of that name, and `null` removes it.

    ConfigError: The text is no such YAML, or what it says is impossible.
    """
    packaged = resources.files("gpu_device_plugin.settings") / "model_drivers.yaml"
    series = dict(_parse(packaged.read_text(encoding="utf-8")))
    series.update(_parse(operator_text))
    return Catalogue(
        {
            name: Series(name, each.names, each.drivers, each.default)
            for name, each in series.items()
            if each is not None
        }
    )


def _parse(text: str) -> Mapping[str, _Series | None]:
    try:
        plain = parse_yaml(text)
        return msgspec.convert({} if plain is None else plain, dict[str, _Series | None])
    except (ConfigError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"catalogue: {error}") from error


class _Effect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: str
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    effect: _Effect = _Effect()


_rules = msgspec.json.Decoder(tuple[_Rule, ...])


def parse_profile(text: str) -> tuple[ProfileRule, ...]:
    """The rules of `selectors`, in order; ConfigError, which names the place, where one is wrong."""
    if not text.strip():
        return ()
    try:
        found = _rules.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"selectors: {error}") from error
    rules = tuple(
        ProfileRule(
            rule.name,
            rule.namespace_selector,
            rule.object_selector,
            rule.effect.labels,
            rule.effect.annotations,
        )
        for rule in found
    )
    check_rules(rules)
    return rules
