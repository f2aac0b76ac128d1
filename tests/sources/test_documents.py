"""The data of the source documents is whole: each step runs somewhere or says why not."""

import re

import pytest
import yaml
from tests.sources.documents import FIELDS, NAMES, ROOT, Step, load, walk

STEPS = {f"{name}: {step.name}": step for name in NAMES for step in load(name).steps}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_runs_or_says_why_not_and_what_it_names_is_there(step: Step) -> None:
    """Also: damage that is undone is in the text, a sample is the manifest, a mask hides one field."""
    assert step.runs or step.differs
    for test in set(step.runs) - {"here", "cluster"}:
        path, _, function = test.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE)
    assert step.meaning is not None
    assert set(step.masks.values()) <= FIELDS.keys()
    assert step.bare_lines() == []
    if step.sample:
        assert yaml.safe_load((ROOT / step.sample).read_text()) == step.data


def test_a_step_name_is_unique_in_its_document() -> None:
    assert len(STEPS) == sum(len(load(name).steps) for name in NAMES)


def test_a_mask_lets_one_field_vary_and_no_line() -> None:
    """What else differs, also between the words of a mask, is found."""
    step = Step("s", text="NAME AGE\ncuda-m**** 15s\n", masks={r"m\*{4}": "word", "15s": "word"})
    assert step.shows("NAME   AGE\ncuda-xyz   3m\n")
    assert not step.shows("NAME   AGE\ncuda-xyz   3m\ncuda-abc 3m\n")
    assert not step.shows("NAME   AGE\n")
    assert not step.shows("NAMES   AGE\ncuda-xyz   3m\n")
    hidden = Step("s", text="NAME\ncuda-m****\n", masks={r"cuda-m\*{4}": "word", "none": "word"})
    assert hidden.bare_lines() == ["none", "cuda-m****"]


def test_a_walk_takes_every_step_in_order() -> None:
    """A step left out or taken too early fails the test that walks."""
    with pytest.raises(AssertionError), walk("unit", "here") as step:
        step("modes")
    with pytest.raises(AssertionError), walk("unit", "here") as step:
        step("pods that are there")
