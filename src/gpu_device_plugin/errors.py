"""Every error this project raises on purpose, classed by what the caller does next.

* GpuPluginError
  + ConfigError              the operator's settings are wrong            -> exit 2
  + LayoutError              the cards, as they are, cannot serve them    -> wait for others
  + StateError               one of our files on disk is damaged          -> set aside, rebuild
  + NotKnownError            a person asked for what is not there         -> exit 3
  + RefusalError             a pod cannot have what it asks for           -> the kubelet rejects the pod
    - RequestError           it asks for something that is never valid
    - DoesNotFitError        valid, but no card has room now
    - UnknownPodError        the agent cannot tell which pod is asking
    - NodeError              the node cannot serve anyone now
  + EdgeError                something outside us failed                  -> retry
    - NvmlError
    - KubeletError
    - ClusterError
      . ThrottledError       the API server asks to come later
        - GaveUpError        it had begun: the call may have been carried out
      . NotSentError         there was no connection
      . AccessError          no kubeconfig, or it is not allowed        -> do not retry
        - WrongServerError   its server has no address, or is not trusted
    - StorageError
      . NoRoomError          the run directory is full

What a tenant wrote may stand in a text, and a text goes into logs, Events, pod statuses and `why`. So
the length of both is bounded here: of a value where it enters a text (`clip`), and of every text.
"""

from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:  # the NVML child starts with few modules
    from typing import Self

LONGEST_VALUE = 64
LONGEST_TEXT_BYTES = 1024


class GpuPluginError(Exception):
    """Base of every error that this project raises on purpose; its text has at most 1 KiB."""

    def __init__(self, text: str = "") -> None:
        super().__init__(shorten(text))


def clip(value: str) -> str:
    """A value that somebody wrote freely, as a text may repeat it: at most 64 characters.

    What a terminal would obey is shown as an escape. Names that Kubernetes bounds need none of it.
    """
    part = value[: LONGEST_VALUE + 1]
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in part)
    return shown if len(shown) <= LONGEST_VALUE else shown[: LONGEST_VALUE - 1] + "…"


def shorten(text: str) -> str:
    """A whole text: at most 1024 bytes of UTF-8, with an ellipsis where something was cut."""
    encoded = text[: LONGEST_TEXT_BYTES + 1].encode("utf-8", "replace")
    if len(encoded) <= LONGEST_TEXT_BYTES:
        return text
    return encoded[: LONGEST_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


class ConfigError(GpuPluginError):
    """A setting is unknown, malformed or impossible; the text names its key."""


class LayoutError(GpuPluginError):
    """The node's cards, as they are now, cannot serve NVIDIA's configuration; in NVIDIA's words."""


class StateError(GpuPluginError):
    """One of our files is truncated, altered or foreign."""


class NotKnownError(GpuPluginError):
    """A person asked for a pod or a card that is not there."""


class RefusalError(GpuPluginError):
    """A pod is refused; the text reaches `kubectl describe`.

    Attributes:
        reason: One CamelCase word for Events, metrics and the table of refusals in the docs.
    """

    def __init__(self, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.reason = reason

    def in_words(self, text: str) -> "Self":
        """The same refusal with another text."""
        found = type(self)(text, reason=self.reason)
        vars(found).update(vars(self))
        return found


class RequestError(RefusalError):
    """The pod asks for something that a node in this mode never gives.

    Attributes:
        rule: The text without pod and node, where a rule of fractions refuses.
    """

    def __init__(self, text: str, *, reason: str, rule: str = "") -> None:
        super().__init__(text, reason=reason)
        self.rule = rule


class DoesNotFitError(RefusalError):
    """A valid request for which no card has room now.

    Attributes:
        rooms: One line a card: what it has; for people.
    """

    def __init__(self, text: str, *, reason: str, rooms: tuple[str, ...] = ()) -> None:
        super().__init__(text, reason=reason)
        self.rooms = rooms


class UnknownPodError(RefusalError):
    """The call does not name the pod, and it is not certain which one it is."""


class NodeError(RefusalError):
    """The node itself cannot serve anyone now, for instance because its disk is full."""


class EdgeError(GpuPluginError):
    """Something outside this program failed; trying again may help."""


class NvmlError(EdgeError):
    """The NVIDIA management library, or the process that speaks to it."""


class KubeletError(EdgeError):
    """The kubelet's sockets or its checkpoint."""


class ClusterError(EdgeError):
    """The Kubernetes API."""


class ThrottledError(ClusterError):
    """The Kubernetes API serves, but asks this kind of call to come later."""


class GaveUpError(ThrottledError):
    """The Kubernetes API began with a call and failed; it may have been carried out."""


class NotSentError(ClusterError):
    """There was no connection to the API server, so it has begun with nothing."""


class TooLongError(ClusterError):
    """An answer of the API server is longer than was asked for."""


class AccessError(ClusterError):
    """There is no usable kubeconfig, or the Kubernetes API does not let us do this."""


class WrongServerError(AccessError):
    """The kubeconfig's server has a name that nobody knows, or a certificate that is not trusted."""


class StorageError(EdgeError):
    """The node's file system.

    Attributes:
        reason: Of a refusal for this cause.
    """

    reason: str = "StateNotWritable"


@contextmanager
def storage_errors(done: str, path: object = None) -> Iterator[None]:
    """What the file system refuses within, as a StorageError: `<path>: cannot be <done>: <why>`.

    Without `path` it is the one that the system's error names.
    """
    try:
        yield
    except OSError as error:
        where = path or error.filename
        raise StorageError(f"{where}: cannot be {done}: {error.strerror}") from error


class NoRoomError(StorageError):
    """The run directory has no room for the files of one more slice."""

    reason: str = "RunDirectoryFull"
