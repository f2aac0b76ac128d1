"""The catalogue of models and drivers: the packaged one, with series changed by the operator."""

from collections.abc import Mapping
from importlib import resources

import msgspec

from gpu_device_plugin.config.sources import parse_yaml
from gpu_device_plugin.domain.models.catalogue import Catalogue, Series
from gpu_device_plugin.errors import ConfigError


class _Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A series without its name."""

    names: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    default: str = ""


def load_catalogue(operator_text: str = "") -> Catalogue:
    """The packaged series, and the operator's over them.

    Args:
        operator_text: YAML of the same form as catalogue.yaml; a series in it replaces the
            packaged one of that name, and `null` removes it.

    Raises:
        ConfigError: The text is no such YAML, or what it says is impossible.
    """
    packaged = resources.files("gpu_device_plugin.config") / "catalogue.yaml"
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
