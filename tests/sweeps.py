"""Cases of one promise: the first of them runs in `make test`, all of them in `make check`."""

from collections.abc import Iterable
from typing import Any

import pytest


def sweep(names: str, cases: Iterable[Any]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize`, with every case but the first marked `long`.

    Of several sweeps over one test `make test` runs the case that is the first of each.
    """
    first, *others = cases
    return pytest.mark.parametrize(names, [first, *(_long(names, case) for case in others)])


def _long(names: str, case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=pytest.mark.long, id=case.id)
    return pytest.param(*(case if "," in names else (case,)), marks=pytest.mark.long)
