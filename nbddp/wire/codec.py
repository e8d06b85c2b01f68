"""Messages as bytes, and back.

Runs in: every process. Decoding builds plain structs and cannot run code; whatever is not a valid
message raises `BadMessageError`.
"""

from typing import Any, TypeVar

import msgspec

from nbddp.errors import BadMessageError
from nbddp.wire.messages import AgentRequest, Event, Message, Rank, RankRequest


class _Tag(msgspec.Struct, frozen=True):
    """The tag of a message; all else is skipped without being built."""

    type: str


_encoder = msgspec.msgpack.Encoder()
_agent_request_decoder: msgspec.msgpack.Decoder[AgentRequest] = msgspec.msgpack.Decoder(
    AgentRequest
)
_rank_request_decoder: msgspec.msgpack.Decoder[RankRequest] = msgspec.msgpack.Decoder(RankRequest)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ranks_decoder: msgspec.msgpack.Decoder[tuple[Rank, ...]] = msgspec.msgpack.Decoder(
    tuple[Rank, ...]
)
_tag_decoder: msgspec.msgpack.Decoder[_Tag] = msgspec.msgpack.Decoder(_Tag)


def encode(message: Message) -> bytes:
    """One message as MessagePack.

    Text that UTF-8 cannot hold (half of a surrogate pair, as in names of files) is escaped.

    Raises:
        TypeError, OverflowError, RecursionError: a field of type Any holds something else than
            what JSON has.
    """
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(_escaped(msgspec.to_builtins(message)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value


def encode_ranks(ranks: tuple[int, ...]) -> bytes:
    """The frame that says which ranks a request is for."""
    return _encoder.encode(ranks)


def decode_agent_request(payload: bytes) -> AgentRequest:
    """Read a request for an agent. Raises `BadMessageError`."""
    return _decode(_agent_request_decoder, payload)


def decode_rank_request(payload: bytes) -> RankRequest:
    """Read a request for a rank. Raises `BadMessageError`."""
    return _decode(_rank_request_decoder, payload)


def decode_event(payload: bytes) -> Event:
    """Read an event. Raises `BadMessageError`."""
    return _decode(_event_decoder, payload)


def decode_ranks(payload: bytes) -> tuple[int, ...]:
    """Read the frame that says which ranks a request is for. Raises `BadMessageError`."""
    return _decode(_ranks_decoder, payload)


def peek_type(payload: bytes) -> str:
    """The class name of an encoded message, without building it. Raises `BadMessageError`."""
    return _decode(_tag_decoder, payload).type


_T = TypeVar("_T")


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", payload: bytes) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessageError(f"not a valid message: {error}") from None
