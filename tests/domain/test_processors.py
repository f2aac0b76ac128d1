"""A node has free what its pods do not request, whatever comes in which order."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.fractions.processors import PLENTY_CPU_MILLI, Processors

_NODES = st.sampled_from(["n1", "n2"])
_UIDS = st.sampled_from(["a", "b", "c"])
_MILLI = st.integers(0, 3000)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), _UIDS, st.one_of(st.just(""), _NODES), _MILLI),
            st.tuples(st.just("drop"), _UIDS),
            st.tuples(st.just("keep"), st.sets(_UIDS)),
            st.tuples(st.just("node"), _NODES, st.one_of(st.none(), _MILLI)),
        ),
        max_size=30,
    )
)
def test_what_is_free_is_what_is_there_less_what_is_requested(history: list[tuple]) -> None:  # type: ignore[type-arg]
    """And anyone who asked to be called knows every change."""
    seen: dict[str, int] = {"n1": PLENTY_CPU_MILLI, "n2": PLENTY_CPU_MILLI}

    def note(name: str) -> None:
        seen[name] = kept.free(name)

    kept = Processors(note)
    there: dict[str, int] = {}
    pods: dict[str, tuple[str, int]] = {}
    for what, *args in history:
        if what == "put":
            kept.put(*args)
            pods[args[0]] = (args[1], args[2])
        elif what == "drop":
            kept.drop(args[0])
            pods.pop(args[0], None)
        elif what == "keep":
            kept.keep(args[0])
            pods = {uid: pod for uid, pod in pods.items() if uid in args[0]}
        else:
            kept.node_changed(*args)
            there.pop(args[0], None)
            if args[1] is not None:
                there[args[0]] = args[1]
        for name in ("n1", "n2"):
            taken = sum(milli for on, milli in pods.values() if on == name)
            free = max(0, there[name] - taken) if name in there else PLENTY_CPU_MILLI
            assert kept.free(name) == seen[name] == free
