"""Every name that we stand in for leads to us; and how the real driver answers the same questions."""

from tools.bench.rows import Row, shown
from tools.gpu.memory import limit_bytes
from tools.gpu.place import Place, Told

METHOD = """\
Whether every way to a function of the driver leads through the library in a slice.

Each name of symbols.def is looked up with dlsym in libcuda.so.1 and with cuGetProcAddress, by base name, CUDA version and kind of
stream. Without the library both must be one pointer, by which the library finds its stand-in. In a slice everything that the driver has
must lie in the library."""


def measure(place: Place) -> list[Row]:
    """Without the library, then with it."""
    inside = place.inside("names", memory_bytes=limit_bytes(place))
    native = _by_name(place.tell(place.base, "names"))
    ours = _by_name(place.tell(inside, "names"))
    apart = [n for n, told in native.items() if _is_both(told) and not told["same"]]
    missed = [n for n, told in ours.items() if not _is_routed(native[n], told)]
    symbols_only = [n for n, told in native.items() if told["symbol"] and not told["address"]]
    absent = [n for n, told in native.items() if not told["symbol"] and not told["address"]]
    return [
        _none("names whose two pointers differ in the driver", apart, len(native)),
        _none("names that do not lead to the library in a slice", missed, len(native)),
        shown("names only dlsym finds", _list(symbols_only)),
        shown("names this driver lacks", _list(absent)),
    ]


def _by_name(told: Told) -> dict[str, Told]:
    return {found["name"]: found for found in told["names"]}


def _is_both(told: Told) -> bool:
    return bool(told["symbol"] and told["address"])


def _is_routed(native: Told, ours: Told) -> bool:
    """What the driver has is routed to the library; what it lacks stays missing."""
    return all(bool(native[way]) == bool(ours[f"{way}_ours"]) for way in ("symbol", "address"))


def _none(what: str, names: list[str], count: int) -> Row:
    return Row(what, "0", f"{len(names)} of {count}: {_list(names)}", not names)


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
