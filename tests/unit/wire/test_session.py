"""Numbered messages: whatever gets lost between two ends, each message comes once, in order."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.errors import BadMessageError
from nbddp.wire.channels.clock_offset import ClockOffset
from nbddp.wire.channels.session import Session, begins_session


class Line:
    """Two sessions, and what is on its way between them."""

    def __init__(self) -> None:
        self.there: deque[list[bytes]] = deque()
        self.back: deque[list[bytes]] = deque()
        self.one = Session(lambda frames: self.there.append([bytes(f) for f in frames]))
        self.other = Session(lambda frames: self.back.append([bytes(f) for f in frames]))
        self.seen_by_one: list[list[bytes]] = []
        self.seen_by_other: list[list[bytes]] = []

    def move(self) -> None:
        """Delivers one frame list in each direction."""
        for way, end, seen in (
            (self.there, self.other, self.seen_by_other),
            (self.back, self.one, self.seen_by_one),
        ):
            if way:
                payload = end.receive(way.popleft(), 0)
                if payload is not None:
                    seen.append(payload)

    def settle(self) -> None:
        """Delivers everything."""
        while self.there or self.back:
            self.move()

    def reconnect(self, lost_there: int, lost_back: int) -> None:
        """The connection ends; the last frame lists that were sent do not arrive."""
        for way, count in ((self.there, lost_there), (self.back, lost_back)):
            for _ in range(min(count, len(way))):
                way.pop()
        self.one.resume()


STEPS = st.lists(
    st.one_of(
        st.just("one"),
        st.just("other"),
        st.just("move"),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_message_comes_once_and_in_order(steps: list[str | tuple[int, int]]):
    line = Line()
    sent_there: list[list[bytes]] = []
    sent_back: list[list[bytes]] = []
    for number, step in enumerate(steps):
        message = [str(number).encode()]
        if step == "one":
            line.one.send(message)
            sent_there.append(message)
        elif step == "other":
            line.other.send(message)
            sent_back.append(message)
        elif step == "move":
            line.move()
        elif isinstance(step, tuple):
            line.reconnect(*step)
    line.reconnect(0, 0)
    line.settle()
    assert line.seen_by_other == sent_there
    assert line.seen_by_one == sent_back
    line.one.ping(0)
    line.other.ping(0)
    line.settle()
    assert (line.one.kept_bytes, line.other.kept_bytes) == (0, 0)


def test_what_is_not_acknowledged_is_kept_and_counted():
    line = Line()
    line.one.send([b"12345", b"67"])
    assert line.one.kept_bytes == 7
    line.settle()
    assert line.one.kept_bytes == 7
    line.other.send([b""])  # carries what was seen
    line.settle()
    assert line.one.kept_bytes == 0


def test_many_messages_in_one_direction_are_acknowledged():
    line = Line()
    for _ in range(200):
        line.one.send([b"x"])
    line.settle()
    assert 0 < line.one.kept_bytes < 64


def test_a_refused_session_says_so():
    line = Line()
    line.other.refuse()
    line.settle()
    assert line.one.is_refused


def test_an_end_that_has_forgotten_the_session_is_no_end_of_it():
    line = Line()
    line.one.send([b"a"])
    line.settle()
    line.other.ping(0)  # says that "a" was seen; no message has come back
    line.settle()
    line.other = Session(lambda frames: line.back.append([bytes(f) for f in frames]))
    line.one.resume()
    assert begins_session(line.there[0])
    line.settle()
    assert line.one.is_refused


@pytest.mark.parametrize(
    "frames",
    [[], [b""], [b"m"], [b"z" + bytes(16)], [b"p" + bytes(16)], [b"p" + bytes(16), b"short"]],
)
def test_other_frames_are_refused(frames: list[bytes]):
    with pytest.raises(BadMessageError):
        Session(lambda _: None).receive(frames, 0)


def test_a_session_begins_with_its_first_message_or_a_resume():
    line = Line()
    line.one.resume()
    line.one.send([b"a"])
    line.one.send([b"b"])
    assert [begins_session(frames) for frames in line.there] == [True, True, False]


def test_the_clock_is_that_of_the_shortest_round_trip():
    clock = ClockOffset()
    assert (clock.is_known, clock.offset_ns, clock.error_ns) == (False, 0, 0)
    clock.add(sent_ns=0, there_ns=9_000, received_ns=10_000)
    clock.add(sent_ns=20_000, there_ns=24_100, received_ns=20_200)
    assert (clock.offset_ns, clock.error_ns) == (4_000, 100)


def test_pings_measure_the_clock_of_the_other_end():
    line = Line()
    line.one.ping(1_000)
    line.other.receive(line.there.popleft(), 501_500)
    line.one.receive(line.back.popleft(), 2_000)
    assert line.one.clock.offset_ns == 500_000


def test_the_oldest_ping_without_an_answer_is_known():
    line = Line()
    line.one.ping(1_000)
    line.there.clear()  # it is lost with the connection
    line.one.ping(2_000)
    line.one.ping(3_000)
    seen = [line.one.unanswered_ns]
    for _ in range(2):
        line.move()
        seen.append(line.one.unanswered_ns)
    assert seen == [1_000, 3_000, None]
