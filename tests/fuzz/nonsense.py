"""Frames that no honest process sends: nonsense of the right type, and damaged bytes.

Everything comes from one `random.Random`, so that a seed gives the same frames again.
"""

import functools
import random
import struct
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from nbddp.wire import messages
from nbddp.wire.messages import AgentEvent, AgentRequest, RankEvent, RankRequest

RANK_EVENTS: tuple[type[Any], ...] = get_args(RankEvent)
AGENT_EVENTS: tuple[type[Any], ...] = get_args(AgentEvent)
REQUESTS: tuple[type[Any], ...] = (*get_args(AgentRequest), *get_args(RankRequest))

_INTEGERS = (-1, 0, 1, 2, 7, -(2**31), 2**31, 2**53, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "",
    "0",
    "\x00",
    "\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "/proc/self/mem",
    "\u202e\u2066",
    "%s%n{0}",
    "a\r\n" * 50,
    "KeyboardInterrupt",
    "NaN",
)
#: Encoded values that often cause errors: lengths without content, extensions, no UTF-8.
_PIECES = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xdc\xff\xff",
    b"\xd4\x05\x00",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\xd7\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x81\x91\x01\x02",
    b"\x81\x81\xa1a\x01\x02",
    b"\x81\xd4\x05\x00\x01",
    b"\x82\xa1a\x01\xa1a\x02",
    b"\xa3\xff\xfe\xfd",
    b"\xc1",
    b"\xcf" + b"\xff" * 8,
    b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93",
    b"cos\nsystem\n(S'true'\ntR.",
)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    found = typing.get_type_hints(kind, vars(messages), include_extras=True)
    return {name: found[name] for name in kind.__struct_fields__}


class Nonsense:
    """Makes messages and frames.

    Args:
        rng: where chance comes from.
        ranks: of the pool, which are named more often than others.
        texts: words that mean something at the moment, such as the id of the cell that runs.
    """

    def __init__(self, rng: random.Random, ranks: int, texts: tuple[str, ...] = ("r",)) -> None:
        self._rng = rng
        self._ranks = ranks
        self.texts = texts
        self.numbers: tuple[int, ...] = ()  #: of questions that are open

    def message(self, kind: Any, **fields: Any) -> Any:
        """A message of this type with senseless fields, but for those given."""
        return kind(
            **{
                name: fields[name] if name in fields else self._value(hint, name)
                for name, hint in _hints(kind).items()
            }
        )

    def _value(self, annotation: Any, name: str) -> Any:  # noqa: PLR0911, PLR0912 - a line per kind
        rng = self._rng
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is typing.Annotated:
            low, high = args[1].ge or 0, args[1].le or 2**63 - 1
            if name == "rank" or rng.random() < 0.7:
                return min(rng.randrange(self._ranks + 1), high)
            return rng.choice((low, high, min(high, 2**31)))
        if origin is Literal:
            return rng.choice(args)
        if origin in (Union, types.UnionType):
            return self._value(rng.choice(args), name)
        if origin in (tuple, list):
            is_plain = get_origin(args[0]) is None and args[0] in (int, str)
            count = rng.choice((0, 0, 1, 1, 2, 3))
            if is_plain and rng.random() < 0.01:
                count = 5000
            return origin([self._value(args[0], name) for _ in range(count)])
        if origin is dict:
            return {self._text(): self._value(args[1], name) for _ in range(rng.randrange(3))}
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            return self.message(annotation)
        if annotation is int:
            if self.numbers and name == "number" and rng.random() < 0.9:
                return rng.choice(self.numbers)
            return rng.choice(_INTEGERS) if rng.random() < 0.4 else rng.randrange(self._ranks + 1)
        if annotation is float:
            return rng.choice(_FLOATS)
        if annotation is str:
            return self._text()
        if annotation is bool:
            return rng.random() < 0.5
        return None if annotation is type(None) else self._anything(3)

    def _text(self) -> str:
        rng = self._rng
        if rng.random() < 0.4:
            return rng.choice(self.texts)
        if rng.random() < 0.001:
            return "x" * 3_000_000
        return rng.choice(_TEXTS)

    def _anything(self, depth: int) -> Any:
        rng = self._rng
        made = rng.randrange(7 if depth else 5)
        if made == 0:
            return None
        if made == 1:
            return rng.choice(_INTEGERS)
        if made == 2:
            return rng.choice(_FLOATS)
        if made in (3, 4):
            return self._text()
        if made == 5:
            return [self._anything(depth - 1) for _ in range(rng.randrange(4))]
        return {self._text(): self._anything(depth - 1) for _ in range(rng.randrange(4))}

    def torn(self, payload: bytes) -> bytes:  # noqa: PLR0911 - a line per accident
        """``payload`` after random damage."""
        rng = self._rng
        at = rng.randrange(len(payload) + 1)
        match rng.randrange(9):
            case 0:
                return payload[:at]
            case 1:
                return payload + rng.randbytes(rng.randrange(1, 9))
            case 2:  # one byte is another
                at = min(at, len(payload) - 1)
                return payload[:at] + rng.randbytes(1) + payload[at + 1 :]
            case 3:
                return payload[:at] + rng.choice(_PIECES) + payload[at + rng.randrange(4) :]
            case 4:  # a part is there twice
                end = rng.randrange(at, len(payload) + 1)
                return payload[:end] + payload[at:end] + payload[end:]
            case 5:
                depth = rng.choice((50, 500, 1500, 100_000))
                return payload[:at] + rng.choice((b"\x91", b"\x81\xa1a")) * depth + payload[at:]
            case 6:  # a length is another
                size = struct.pack(">I", rng.choice((0, 1, 2**16, 2**31, 2**32 - 1)))
                return payload[:at] + rng.choice((b"\xdd", b"\xdf", b"\xdb")) + size + payload[at:]
            case 7:
                return rng.randbytes(rng.randrange(200))
            case _:  # some bytes are others
                found = bytearray(payload)
                for _ in range(rng.randrange(1, 6)):
                    found[rng.randrange(len(found))] = rng.randrange(256)
                return bytes(found)
