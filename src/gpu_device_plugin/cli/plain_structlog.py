"""structlog without rich, and to stderr: imported before anything that logs."""

import sys

# structlog imports rich where it finds it, for tracebacks in colour: a quarter of a second and
# 10 MiB for every agent, which logs JSON. Commands that draw import rich themselves, later.
_has_rich = sys.modules.get("rich") is not None
if not _has_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None: "import rich" fails
import structlog  # noqa: E402

if not _has_rich:
    del sys.modules["rich"]
# Nothing is kept: tests run programs within one process, and close what was stderr then.
structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
