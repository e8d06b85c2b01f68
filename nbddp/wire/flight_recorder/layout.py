"""The layout of the shared memory of records; see `nbddp.wire.flight_recorder.writer`.

Runs in: agent, rank. All sizes and positions are in 64-bit words, unless the name says bytes.
"""

import struct
import zlib
from typing import Final

import msgspec

from nbddp.wire.flight_recorder.schema import OperationState

#: Number of records that are kept for each rank.
RING_LENGTH: Final = 1024
RECORD_WORDS: Final = 20
HEAD_WORDS: Final = 16
WAIT_WORDS: Final = 4
#: Number of threads of a rank whose waits are recorded.
MAX_THREADS: Final = 24
WAITS_AT: Final = HEAD_WORDS
RING_AT: Final = WAITS_AT + MAX_THREADS * WAIT_WORDS
TEXT_AT: Final = RING_AT + RING_LENGTH * RECORD_WORDS
TEXT_BYTES: Final = 1 << 20
REGION_WORDS: Final = TEXT_AT + TEXT_BYTES // 8
LARGEST_TEXT: Final = 1 << 14
#: The largest number of texts that a process caches. A loop has some dozens; each cell adds some.
MAX_TEXTS: Final = 2 * RING_LENGTH

#: The board: for each of these groups and positions, a key and a fingerprint of each local rank.
BOARD_GROUPS: Final = 64
BOARD_SLOTS: Final = 64

# words of the head; the last ones change with each operation and lie directly before the wait of
# the main thread, so that one write covers both
# ANSWERED: the last expression whose value was sent; CALLED: the last collective of an expression;
# LINE, LINE_AT: a line of the user's code that the main thread was at, and when
PID, TEXT_HEAD, ANSWERED, CALLED, LINE, LINE_AT = range(6)
TOUCHED, OPEN, RECORDS = range(HEAD_WORDS - 3, HEAD_WORDS)

# words of a wait
WAIT_SINCE, WAIT_RECORD, WAIT_THREAD = range(3)

# words of a record
(
    ID,
    SIGNATURE,
    SITE,
    GROUP,
    RUN,
    SEQ,
    P2P_SEQ,
    PEER,
    TAG,
    FLAGS,
    THREAD,
    TIMEOUT_MS,
    CREATED,
    STATE,
    COMPLETED,
    WAITED,
    FAILURE,
    LOOPS,
    OUTER,
    INNER,
) = range(20)
STATES: Final[tuple[OperationState, ...]] = ("scheduled", "completed", "failed")
#: Flags; ``TAKEN``: torch has accepted the operation, which continues while its caller continues.
ASYNC: Final = 1
TAKEN: Final = 2

#: Words that are written at once, in this order: a reader trusts a record only if its id is the
#: same before and after the read, and reads only records up to the newest of the head.
RECORD = struct.Struct("20q")
END = struct.Struct("3q")  # state, completed, waited
HEAD = struct.Struct("2q")  # open, records
WAIT = struct.Struct("2q")  # since, record
HEAD_AND_WAIT = struct.Struct("4q")


def call_code(question: int, pg_id: str, number: int) -> int:
    """Return a number for a collective that the expression of a query calls, never 0.

    A refused call gives its number back, so that the next query may use the number again.
    """
    return 1 + zlib.crc32(f"{question}/{pg_id}/{number}".encode())


class Loops(msgspec.Struct, frozen=True):
    """The variables of the loops in which an operation was issued, the outermost first."""

    names: tuple[str, ...]  #: one, whose value is `INNER`, or two, with `OUTER` for the first


class Text(msgspec.Struct, frozen=True):
    """A text without a structure of its own: a run id."""

    text: str
