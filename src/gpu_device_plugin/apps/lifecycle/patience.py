"""Which failures of the API server the hooks of uninstalling wait out, and for how long."""

import time
from collections.abc import Callable

from gpu_device_plugin.errors import AccessError, ClusterError, WrongServerError

DENIALS = 3
SILENT_SECONDS = 60.0


class Patience:
    """Decides after each failure whether to try again.

    Never where the server's name is unknown or its certificate not trusted. `DENIALS` times where we
    may not, because a right that was granted a moment ago takes effect a moment later. For
    `SILENT_SECONDS` where the server has never answered, long enough for one that restarts. As
    long as the caller likes where it did answer.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        silent_seconds: float = SILENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        self._tell = tell
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._began = clock()
        self._denials = 0
        self._has_answered = False

    def answered(self) -> None:
        """The API server served us."""
        self.trouble = ""
        self._denials = 0
        self._has_answered = True

    def failed(self, error: ClusterError) -> None:
        """Return if trying again makes sense, after saying so once.

        Raises:
            ClusterError: It does not.
        """
        if isinstance(error, WrongServerError):
            raise error
        if isinstance(error, AccessError):
            self._denials += 1
            if self._denials >= DENIALS:
                raise error
            return
        silent = self._clock() - self._began
        if not self._has_answered and silent >= self._silent_seconds:
            raise ClusterError(f"gave up after {silent:.0f} s: {error}") from error
        if str(error) != self.trouble:
            bound = "" if self._has_answered else f" for {self._silent_seconds:g} s"
            self._tell(f"the API server does not answer properly, trying again{bound}: {error}")
        self.trouble = str(error)
