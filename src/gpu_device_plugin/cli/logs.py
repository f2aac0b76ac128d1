"""The form of log lines: one line per event, on stderr."""

import logging
import sys
from typing import Any

import structlog

from gpu_device_plugin.errors import shorten
from gpu_device_plugin.settings.setting import LogFormat

_FIRST = ("timestamp", "level", "event")
_MOST_ENTRIES = 64
_LONGEST_TRACE = 16_384


def configure_logs(level: str, log_format: LogFormat) -> None:
    """JSON lines for machines, aligned text for a terminal."""
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if log_format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _short,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _short(
    _logger: object, _method: str, line: structlog.types.EventDict
) -> structlog.types.EventDict:
    """What happened comes first, and no value is longer than a text may be, whatever stands in it."""
    trace = line.pop("exception", None)
    short = {key: _value(line[key]) for key in dict.fromkeys((*_FIRST, *line))}
    return short if trace is None else {**short, "exception": str(trace)[-_LONGEST_TRACE:]}


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        more = len(value) - _MOST_ENTRIES
        shown = [_value(each) for each in value[:_MOST_ENTRIES]]
        return [*shown, f"and {more} more"] if more > 0 else shown
    return shorten(value) if isinstance(value, str) else value
