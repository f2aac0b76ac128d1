"""Examples of a format, and what is like them."""

import struct
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from gpu_device_plugin.disk import region

CORPUS = Path(__file__).parent / "corpus"
_PIECES = (
    [bytes([byte]) for byte in b'\x00\n\x1b"\\{}[]:,&*-019\xff']
    + [b"null", b"true", b"1e999", b"-1", b"9" * 20, b"9" * 5000, b'"' + b"a" * 300 + b'"']
    + [b"[" * 2000, b'{"a":' * 2000, b"\\u0000", b"\\ud800", "\u0663".encode(), b"&a [*a, *a]"]
)


def _region() -> bytes:
    """A region with one card and two slots, without the end that nobody reads."""
    content = bytearray(region.CARDS_OFFSET + region.CARD_BYTES)
    struct.pack_into("<QIIIIII", content, 0, region.MAGIC, 1, region.READY, 1 << 20, 256, 1, 2)
    content[region.CARDS_OFFSET : region.CARDS_OFFSET + 5] = b"GPU-a"
    return bytes(content)


_MADE = {"region": _region}


def examples(target: str) -> Sequence[bytes]:
    """The corpus of a target; what is not text is made here."""
    made = [_MADE[target]()] if target in _MADE else []
    return made + [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """An example with a few places cut out, put in, or taken from another example."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        other = draw(st.sampled_from(seeds))
        cut = draw(st.integers(0, len(other)))
        piece = draw(
            st.sampled_from([*_PIECES, other[cut : cut + 200], content[start:end] * 50, b""])
            | st.binary(max_size=16)
        )
        content = content[:start] + piece + content[end:]
    return content
