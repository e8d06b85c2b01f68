"""One example of each message, made from its own type annotations."""

import dataclasses
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from nbddp.wire import messages
from nbddp.wire.messages import Message

#: Every type of message, by name.
TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - a line per kind
    """Anything that a field with this annotation may hold."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        meta = args[1]
        return st.integers(meta.ge or 0, meta.le or 2**63 - 1)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(arg) for arg in args])
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is list:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return messages_of(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        hints = typing.get_type_hints(annotation)
        return st.builds(annotation, **{name: values_of(kind) for name, kind in hints.items()})
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Any: _json,
        type(None): st.none(),
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=20),
        bytes: st.binary(max_size=20),
    }
    return simple[annotation]


def messages_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message of one type."""
    hints = typing.get_type_hints(kind, vars(messages), include_extras=True)
    return st.builds(kind, **{field: values_of(hints[field]) for field in kind.__struct_fields__})


def plain_example(kind: type[Any]) -> Any:
    """Always the same message of a type: each field holds something of its own."""
    hints = typing.get_type_hints(kind, vars(messages), include_extras=True)
    return kind(
        **{name: _plain(hints[name], name) for name in kind.__struct_fields__},
    )


def _plain(annotation: Any, name: str) -> Any:  # noqa: PLR0911 - as above
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return len(name)
    if origin is Literal:
        return args[0]
    if origin in (Union, types.UnionType):
        return _plain(args[0], name)
    if origin is tuple:
        return (_plain(args[0], name),)
    if origin is list:
        return [_plain(args[0], name)]
    if origin is dict:
        return {"text/plain": _plain(args[1], name)}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return plain_example(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        kinds = typing.get_type_hints(annotation)
        return annotation(**{field: _plain(kind, field) for field, kind in kinds.items()})
    simple = {
        Any: name,
        bool: True,
        int: len(name),
        float: len(name) / 2,
        str: name,
        bytes: name.encode(),
    }
    return simple[annotation]
