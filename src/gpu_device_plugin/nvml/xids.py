"""The table of XIDs: the packaged one, with rows replaced or added by the operator.

What an XID does to its card or instance is decided in domain/cards/health.
"""

from importlib import resources
from pathlib import Path

import msgspec
import yaml

from gpu_device_plugin.domain.cards.health_values import (
    NO_XID,
    HealthRules,
    Recovery,
    XidAction,
    XidChoice,
    XidRule,
)
from gpu_device_plugin.errors import ConfigError


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row without its code."""

    name: str
    action: XidAction
    recovery: Recovery = Recovery.RESET


class _CodedRow(_Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row."""

    code: int


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file."""

    xids: tuple[_CodedRow, ...] = ()
    default: _Row | None = None


def health_rules(
    recovery_seconds: float,
    operator_file: Path | None = None,
    disabled: XidChoice = NO_XID,
    enabled: XidChoice = NO_XID,
) -> HealthRules:
    """The rules for the health of cards; rows of the operator's file replace those of xids.yaml.

    `recovery_seconds` is how long probes must be clean. `enabled` wins over `disabled`.

    ConfigError: The file cannot be read, or a key in it is unknown or wrong.
    """
    packaged = resources.files("gpu_device_plugin.nvml") / "xids.yaml"
    tables = [_parse(packaged.read_text(encoding="utf-8"), "xids.yaml")]
    if operator_file is not None:
        try:
            text = operator_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"XID table {operator_file}: cannot be read: {reason}") from error
        tables.append(_parse(text, str(operator_file)))
    rows = {row.code: _rule(row.code, row) for table in tables for row in table.xids}
    default = next(table.default for table in reversed(tables) if table.default is not None)
    return HealthRules(
        rows, _rule(0, default), recovery_seconds, disabled=disabled, enabled=enabled
    )


def _parse(text: str, name: str) -> Table:
    try:
        plain = yaml.safe_load(text)
        table = msgspec.convert({} if plain is None else plain, Table)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"XID table {name}: {error}") from error
    codes = [row.code for row in table.xids]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise ConfigError(f"XID table {name}: code {twice[0]} occurs twice")
    return table


def _rule(code: int, row: _Row) -> XidRule:
    return XidRule(code, row.name, row.action, row.recovery)
