"""Text of others, without what a terminal would obey or a parser would drown in.

Messages of containers, Events and annotations reach an administrator's terminal. An escape sequence
in them could clear the screen, write to the clipboard or hide a line.
"""

import re
from typing import TypeVar

import msgspec

_Value = TypeVar("_Value")
# C0 without tab and line feed; DEL; C1; what changes the direction of text.
_ESCAPED = re.compile(
    rb"\\u(?:00(?:(0[0-8b-fB-F]|1[0-9a-fA-F])|7[fF]|[89][0-9a-fA-F])"
    rb"|061[cC]|20(?:0[eEfF]|2[a-eA-E]|6[6-9]))"
)
_SHORT = re.compile(rb"(?<!\\)((?:\\\\)*)\\(?:[bf]|r(?!\\n))")
_WIDE = re.compile("[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# A carriage return that ends no line hides what stands before it; raw it is white space of JSON too.
_PLAIN = bytes(63 if c in (*range(9), 11, 12, *range(14, 32), 127) else c for c in range(256))
_PLAIN = _PLAIN.replace(b"\r", b" ")


def without_controls(body: bytes) -> bytes:
    r"""The same JSON or UTF-8 text with a visible sign in place of each control character.

    What is no UTF-8 becomes such a sign too. An escape of JSON keeps its backslashes, so JSON inside
    a JSON string stays what it was.

    >>> without_controls(rb'{"message": "\u001b[2J", "inner": "{\"model\": \"\\u009b\"}"}')
    b'{"message": "\\u241b[2J", "inner": "{\\"model\\": \\"\\\\ufffd\\"}"}'
    >>> without_controls("left \x1b[2J \u202eright".encode()).decode()
    'left ?[2J \ufffdright'
    >>> without_controls(rb'{"message": "hidden\r", "lines": "a\r\nb"}')
    b'{"message": "hidden?", "lines": "a\\r\\nb"}'
    """
    body = _ESCAPED.sub(_sign, body).translate(_PLAIN)
    if rb"\b" in body or rb"\f" in body or rb"\r" in body:
        body = _SHORT.sub(rb"\1?", body)
    if body.isascii():
        return body
    return _WIDE.sub("\ufffd", body.decode("utf-8", "replace")).encode()


def _sign(found: re.Match[bytes]) -> bytes:
    return rb"\u24" + found[1] if found[1] else rb"\ufffd"


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_DEPTH = 64
"""No field that we read is as deep; what a claim's parameters nest is anybody's choice."""


def decode(decoder: msgspec.json.Decoder[_Value], body: bytes | msgspec.Raw) -> _Value:
    """The value of a JSON text, however deep what we do not read in it is nested.

    Raises:
        msgspec.MsgspecError: It is none of the decoder's type.
    """
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(_shallow(bytes(body)))


def _shallow(body: bytes) -> bytes:
    """The same with null in place of what is nested deeper than `_DEPTH`, in one pass.

    >>> _shallow(b'{"a":' * 70 + b'[1,"}"]' + b"}" * 70) == b'{"a":' * 64 + b"null" + b"}" * 64
    True
    """
    kept, begin, depth = [], 0, 0
    for token in _TOKEN.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == _DEPTH + 1:
                kept += [body[begin : token.start()], b"null"]
        elif token[0] in b"]}":
            if depth == _DEPTH + 1:
                begin = token.end()
            depth -= 1
    if depth:
        raise msgspec.DecodeError("brackets do not match")
    return b"".join([*kept, body[begin:]])
