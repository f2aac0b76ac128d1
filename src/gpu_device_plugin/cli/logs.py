"""The form of log lines: one line per event, on stderr."""

import logging
import sys

import structlog

from gpu_device_plugin.config.sources import LogFormat


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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
