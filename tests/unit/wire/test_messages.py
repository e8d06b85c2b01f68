"""The encoding of messages: each is read as it was written, and everything else is refused."""

import inspect
import json
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbddp.errors import BadMessageError
from nbddp.wire import codec, messages
from nbddp.wire.message_types import ErrorInfo, MessageBase
from nbddp.wire.messages import AgentRequest, Event, RankRequest, RunFinished, ValueDescribed
from nbddp.wire.values.value_questions import Blocks, TensorBlocks
from tests.support.examples import TYPES, messages_of, plain_example
from tests.support.random_examples import examples

GOLDEN = Path(__file__).parents[2] / "wire" / f"golden_{messages.PROTOCOL_VERSION}.json"

any_message = st.sampled_from(sorted(TYPES)).flatmap(lambda name: messages_of(TYPES[name]))


DECODERS: list[Callable[[bytes], Any]] = [
    codec.decode_agent_request,
    codec.decode_rank_request,
    codec.decode_event,
]


def decoder_of(kind: type[Any]) -> Callable[[bytes], Any]:
    """The decoder of the receiver of a message."""
    if kind in get_args(AgentRequest):
        return codec.decode_agent_request
    return codec.decode_rank_request if kind in get_args(RankRequest) else codec.decode_event


# --- completeness --------------------------------------------------------------------------------


def test_every_message_is_in_exactly_one_union():
    unions = [set(get_args(union)) for union in (AgentRequest, RankRequest, Event)]
    declared = {
        kind
        for _, kind in inspect.getmembers(messages, inspect.isclass)
        if issubclass(kind, MessageBase)
    }
    assert set().union(*unions) == declared
    assert sum(map(len, unions)) == len(declared)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_messages_are_immutable_strict_and_documented(name: str):
    kind = TYPES[name]
    config = kind.__struct_config__
    assert (config.frozen, config.forbid_unknown_fields, config.tag) == (True, True, name)
    assert kind.__doc__


# --- round trip ----------------------------------------------------------------------------------


@given(any_message)
@examples(300)
def test_every_message_survives_a_round_trip(message: Any):
    payload = codec.encode(message)
    assert decoder_of(type(message))(payload) == message
    assert codec.peek_type(payload) == type(message).__name__


@given(st.lists(st.integers(0, 2**31)).map(tuple))
def test_ranks(ranks: tuple[int, ...]):
    assert codec.decode_ranks(codec.encode_ranks(ranks)) == ranks


def test_no_receiver_reads_what_is_for_another():
    for kind in TYPES.values():
        payload = codec.encode(plain_example(kind))
        for reader in DECODERS:
            if reader is not decoder_of(kind):
                with pytest.raises(BadMessageError, match="not a valid message"):
                    reader(payload)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_text_that_utf8_cannot_hold_is_escaped(name: str):
    kind = TYPES[name]
    example = plain_example(kind)
    free = [
        name
        for name, hint in typing.get_type_hints(kind).items()
        if type(getattr(example, name)) is str and typing.get_origin(hint) is not typing.Literal
    ]
    broken = msgspec.structs.replace(example, **dict.fromkeys(free, "a\udc80b"))
    escaped = msgspec.structs.replace(example, **dict.fromkeys(free, r"a\udc80b"))
    assert decoder_of(kind)(codec.encode(broken)) == escaped


def test_nested_text_is_escaped_too():
    error = ErrorInfo(ename="E", evalue="\ud800", traceback=["\ud800 1", "2"])
    finished = RunFinished(run_id="r", rank=0, elapsed_s=1.0, error=error)
    found = codec.decode_event(codec.encode(finished))
    assert isinstance(found, RunFinished)
    assert found.error == ErrorInfo(ename="E", evalue=r"\ud800", traceback=[r"\ud800 1", "2"])


def test_bytes_beside_such_text_stay_what_they_are():
    answer = TensorBlocks({"['\ud800']": Blocks((b"\xff\x00",), None)})
    told = ValueDescribed(request_id="v", rank=0, answer=answer)
    found = codec.decode_event(codec.encode(told))
    assert isinstance(found, ValueDescribed)
    assert found.answer == TensorBlocks({r"['\ud800']": Blocks((b"\xff\x00",), None)})


@pytest.mark.parametrize("value", [object(), 2**64, lambda: None])
def test_a_value_that_a_message_cannot_hold_is_an_error_at_the_sender(value: object):
    display = messages.Display(
        run_id=None, rank=0, data={"application/json": value}, metadata={}, transient={}
    )
    with pytest.raises((TypeError, OverflowError)):
        codec.encode(display)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TYPES))
def test_unknown_missing_and_wrong_fields_are_refused(name: str):
    kind = TYPES[name]
    read = decoder_of(kind)
    fields = msgspec.to_builtins(plain_example(kind), builtin_types=(bytes,))
    assert read(msgspec.msgpack.encode(fields)) == plain_example(kind)

    bad = [fields | {"another": 1}, fields | {"type": "Another"}, fields | {"type": 1}]
    bad += [{key: value for key, value in fields.items() if key != "type"}]
    bad += [fields | {field: {"no": "such type"}} for field in kind.__struct_fields__[:1]]
    required = kind.__struct_fields__[: len(kind.__struct_fields__)]
    defaults = dict(zip(reversed(required), reversed(kind.__struct_defaults__), strict=False))
    bad += [
        {key: value for key, value in fields.items() if key != field}
        for field in required
        if defaults.get(field, msgspec.NODEFAULT) is msgspec.NODEFAULT
    ]
    for wrong in bad:
        with pytest.raises(BadMessageError):
            read(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Output", "rank", -1),
        ("Output", "rank", 1.5),
        ("Output", "rank", True),
        ("Output", "stream", "stdlog"),
        ("Output", "text", b"bytes"),
        ("Output", "text", None),
        ("Execute", "code", 3),
        ("StartStore", "port", 65536),
        ("StartStore", "port", -1),
        ("Interrupt", "ranks", [-1]),
        ("Interrupt", "ranks", "0"),
        ("AgentHello", "version", "1"),
    ],
)
def test_wrong_values_are_refused(name: str, field: str, value: object):
    fields = msgspec.to_builtins(plain_example(TYPES[name])) | {field: value}
    with pytest.raises(BadMessageError):
        decoder_of(TYPES[name])(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_truncation_is_refused(name: str):
    payload = codec.encode(plain_example(TYPES[name]))
    for length in range(len(payload)):
        with pytest.raises(BadMessageError):
            decoder_of(TYPES[name])(payload[:length])
    with pytest.raises(BadMessageError):
        decoder_of(TYPES[name])(payload + b"\0")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused_and_never_read_as_a_message(noise: bytes):
    for read in (
        codec.decode_agent_request,
        codec.decode_rank_request,
        codec.decode_event,
        codec.peek_type,
    ):
        with pytest.raises(BadMessageError):
            read(noise)
    try:
        ranks = codec.decode_ranks(noise)
    except BadMessageError:
        return
    assert all(isinstance(rank, int) and rank >= 0 for rank in ranks)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdb\xff\xff\xff\xff",  # a text of 4 GiB that is not there
        b"\xdd\xff\xff\xff\xff",  # a list of 4 G items
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,  # lists in lists in lists
        b"\x81\xa4type\xa2\xff\xff",  # no UTF-8
    ],
)
def test_malicious_sizes_and_depths_are_refused(payload: bytes):
    for read in (codec.decode_event, codec.decode_rank_request, codec.decode_ranks):
        with pytest.raises(BadMessageError):
            read(payload)


def test_a_deeply_nested_display_is_refused():
    fields = msgspec.to_builtins(plain_example(TYPES["Display"])) | {"data": {"x": "MARK"}}
    payload = msgspec.msgpack.encode(fields).replace(b"\xa4MARK", b"\x91" * 100_000 + b"\xc0")
    for read in (codec.decode_event, codec.peek_type):
        with pytest.raises(BadMessageError):
            read(payload)


# --- golden bytes --------------------------------------------------------------------------------


def test_the_bytes_of_this_protocol_version_do_not_change():
    """If this fails on purpose: raise PROTOCOL_VERSION, or, before a release, run the test once
    with NBDDP_TEST_WRITE_GOLDEN=1 and commit the file."""
    found = {name: codec.encode(plain_example(kind)).hex() for name, kind in TYPES.items()}
    if os.environ.get("NBDDP_TEST_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert set(found) == set(golden)
    assert {name for name in found if found[name] != golden[name]} == set()
    for name, text in golden.items():
        assert decoder_of(TYPES[name])(bytes.fromhex(text)) == plain_example(TYPES[name])
