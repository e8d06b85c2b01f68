"""Encodes messages as bytes, and decodes them.

Runs in: every process. Decoding builds plain structs and cannot run code; bytes that are not a
valid message raise `BadMessageError`.
"""

from typing import Any, Final, TypeVar

import msgspec

from nbddp.errors import BadMessageError, TooLargeError
from nbddp.wire.messages import AgentRequest, Event, Message, Rank, RankRequest

#: Longest frame, in bytes: a receiver of a longer one closes the connection before it allocates
#: memory. Values are cut into smaller frames; no front end can show a display of this size.
MAX_FRAME_BYTES: Final = 512 * 1024 * 1024


class Tag(msgspec.Struct, frozen=True):
    """The fields that route a message; all other fields are skipped without being built."""

    type: str
    rank: int | None = None  #: the rank that the message is about; None: no rank
    sync: int = 0  #: see `InOrder`
    request_id: str = ""  #: the request about values that the message answers


def _refuse_extension(code: int, data: memoryview) -> object:
    raise ValueError(f"extension {code} of MessagePack")


_encoder = msgspec.msgpack.Encoder()
_agent_request_decoder: msgspec.msgpack.Decoder[AgentRequest] = msgspec.msgpack.Decoder(
    AgentRequest, ext_hook=_refuse_extension
)
_rank_request_decoder: msgspec.msgpack.Decoder[RankRequest] = msgspec.msgpack.Decoder(
    RankRequest, ext_hook=_refuse_extension
)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(
    Event, ext_hook=_refuse_extension
)
_ranks_decoder: msgspec.msgpack.Decoder[tuple[Rank, ...]] = msgspec.msgpack.Decoder(
    tuple[Rank, ...]
)
_tag_decoder: msgspec.msgpack.Decoder[Tag] = msgspec.msgpack.Decoder(Tag)
_batch_decoder: msgspec.msgpack.Decoder[list[bytes]] = msgspec.msgpack.Decoder(list[bytes])


def encode(message: Message) -> bytes:
    """Encode one message as MessagePack.

    Text that UTF-8 cannot hold (half of a surrogate pair, as in file names) is escaped.

    Raises:
        TypeError, OverflowError, RecursionError: a field of type Any holds a value that JSON does
            not have.
        TooLargeError: the message does not fit into a frame.
    """
    try:
        payload = _encoder.encode(message)
    except UnicodeEncodeError:
        payload = _encoder.encode(_escaped(msgspec.to_builtins(message, builtin_types=(bytes,))))
    check_size(type(message).__name__, len(payload))
    return payload


def check_size(name: str, size_bytes: int) -> None:
    """Raise `TooLargeError` if the other end would not read a frame of this size."""
    if size_bytes > MAX_FRAME_BYTES:
        raise TooLargeError(
            f"{name} of {size_bytes / 2**20:,.0f} MiB is not sent: the limit is "
            f"{MAX_FRAME_BYTES / 2**20:,.0f} MiB. Write it to a file, and show the file's name"
        )


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value


def encode_ranks(ranks: tuple[int, ...]) -> bytes:
    """Encode the frame with the target ranks of a request."""
    return _encoder.encode(ranks)


def decode_agent_request(payload: bytes) -> AgentRequest:
    """Decode a request for an agent. Raises `BadMessageError`."""
    return _decode(_agent_request_decoder, payload)


def decode_rank_request(payload: bytes) -> RankRequest:
    """Decode a request for a rank. Raises `BadMessageError`."""
    return _decode(_rank_request_decoder, payload)


def decode_event(payload: bytes) -> Event:
    """Decode an event. Raises `BadMessageError`."""
    return _decode(_event_decoder, payload)


def decode_ranks(payload: bytes) -> tuple[int, ...]:
    """Decode the frame with the target ranks of a request. Raises `BadMessageError`."""
    return _decode(_ranks_decoder, payload)


def encode_batch(payloads: list[bytes]) -> bytes:
    """Put encoded messages, in order, into one frame."""
    return _encoder.encode(payloads)


def decode_batch(frame: bytes) -> list[bytes]:
    """Return the messages of a frame of `encode_batch`, still encoded. Raises `BadMessageError`."""
    return _decode(_batch_decoder, frame)


def peek_type(payload: bytes) -> str:
    """Return the class name of an encoded message, without building it.

    Raises:
        BadMessageError: the payload is not a message.
    """
    return peek(payload).type


def peek(payload: bytes) -> Tag:
    """Return the tag of an encoded message, without building it. Raises `BadMessageError`."""
    return _decode(_tag_decoder, payload)


_T = TypeVar("_T")


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", payload: bytes) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadMessageError(f"not a valid message: {error}") from None
