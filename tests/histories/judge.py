"""What may be true of a node, whatever happens to it: at any time, in a quiet moment, and some minutes later."""

from tests.histories.always import problems
from tests.histories.node import Node
from tests.histories.published import untruths
from tests.histories.quiet import disagreements, leftovers


class ViolationError(AssertionError):
    """Something is so that must never be."""


def check_always(node: Node) -> None:
    """What holds at any time.

    Raises:
        ViolationError: It does not.
    """
    for problem in problems(node):
        raise ViolationError(problem)


def check_quiet(node: Node) -> None:
    """What holds a minute after the last thing that happened: what is published as well.

    Raises:
        ViolationError: It does not.
    """
    check_always(node)
    node.explored["quiet moments"] += 1
    for problem in disagreements(node):
        raise ViolationError(f"a minute after everything was quiet: {problem}")
    for problem in untruths(node):
        raise ViolationError(f"told a minute after everything was quiet: {problem}")


def check_settled(node: Node) -> None:
    """What holds some minutes later: nothing is left of pods that are gone.

    Raises:
        ViolationError: It does not.
    """
    check_quiet(node)
    for problem in leftovers(node):
        raise ViolationError(f"minutes after everything was quiet: {problem}")
