"""The text of faults on purpose: each legal form, its meaning, and what is wrong with others."""

import re

import msgspec
import pytest

from nbddp.errors import BadOptionError
from nbddp.rank.collectives import methods
from nbddp.wire.fault_grammar import EXAMPLES, OPERATIONS, is_error, parse_faults
from nbddp.wire.fault_types import RANDOM_ACTS, Fault, Moment, duration, missed_text

ALL = (0, 1, 2, 3)
NEXT_SUM = Moment("operation", "all_reduce", 1)
THIRD_SUM = Moment("operation", "all_reduce", 3)
NEXT_BARRIER = Moment("operation", "barrier", 1)
ALWAYS = Moment("always")

#: A text, and the fault that it means in a pool of 4 ranks.
LEGAL: dict[str, Fault] = {
    "rank 2: delay 2s before all_reduce #3": Fault(
        act="delay", ranks=(2,), seconds=2.0, moment=THIRD_SUM
    ),
    "rank 2: delay 1.5 min": Fault(act="delay", ranks=(2,), seconds=90.0),
    "rank 2: delay 250ms before all_reduce": Fault(
        act="delay", ranks=(2,), seconds=0.25, moment=NEXT_SUM
    ),
    "rank 1: raise OSError at step 5": Fault(
        act="raise", ranks=(1,), error="OSError", moment=Moment("loop", "step", 5)
    ),
    "rank 1: raise OutOfMemoryError at i = -5": Fault(
        act="raise", ranks=(1,), error="OutOfMemoryError", moment=Moment("loop", "i", -5)
    ),
    "rank 3: kill at line 12": Fault(act="kill", ranks=(3,), moment=Moment("line", number=12)),
    "all ranks: kill": Fault(act="kill", ranks=ALL),
    "rank 0: stop 3s": Fault(act="stop", ranks=(0,), seconds=3.0),
    "rank 0: stop 3 s before the next operation": Fault(
        act="stop", ranks=(0,), seconds=3.0, moment=Moment("operation", "operation", 1)
    ),
    "ranks 0,2-3: skip the next barrier": Fault(act="skip", ranks=(0, 2, 3), moment=NEXT_BARRIER),
    "Rank 1:skip all_reduce #3": Fault(act="skip", ranks=(1,), moment=THIRD_SUM),
    "rank 1: skip dist.barrier": Fault(act="skip", ranks=(1,), moment=NEXT_BARRIER),
    "rank 1: flip a bit in the next all_reduce": Fault(act="flip", ranks=(1,), moment=NEXT_SUM),
    "nan in rank 0's gradient": Fault(act="nan", ranks=(0,), moment=Moment("backward")),
    "nan in ranks 1-2 gradients at step 4": Fault(
        act="nan", ranks=(1, 2), moment=Moment("loop", "step", 4)
    ),
    "nan in all ranks' gradients": Fault(act="nan", ranks=ALL, moment=Moment("backward")),
    "store: slow 100 ms": Fault(act="store", ranks=ALL, seconds=0.1, moment=ALWAYS),
    "link 0-1: 10 MB/s, 20 ms": Fault(
        act="link", ranks=(0, 1), seconds=0.02, bytes_per_s=10e6, moment=ALWAYS
    ),
    "link 3 - 0: 20ms": Fault(act="link", ranks=(0, 3), seconds=0.02, moment=ALWAYS),
    "link 0-1: 2 GB/s": Fault(act="link", ranks=(0, 1), bytes_per_s=2e9, moment=ALWAYS),
    "random:seed=7,rate=0.01": Fault(
        act="random", ranks=ALL, seed=7, rate=0.01, acts=RANDOM_ACTS, moment=ALWAYS
    ),
    "random: rate=1, acts=delay+skip": Fault(
        act="random", ranks=ALL, rate=1.0, acts=("delay", "skip"), moment=ALWAYS
    ),
}

#: A text that is no fault, and what its error says.
BAD: dict[str, str] = {
    "": "no fault is given",
    " ; ;": "no fault is given",
    "kill": "it is no fault",
    "rank 2 kill": "it is no fault",
    "rank 2:": "it is no fault",
    "rank: kill": "'rank' names no ranks; legal: rank 2, ranks 0,2-3, all ranks",
    "node 0: kill": "'node 0' names no ranks",
    "rank 4: kill": "rank 4 is out of range in a pool of 4 ranks",
    "ranks 3-1: kill": "ranks 3-1 are out of range",
    "rank x: kill": "'rank x' names no ranks",
    "rank 2: dealy 2 s": "'dealy' is no act of a rank (did you mean delay?); legal: delay, stop",
    "rank 2: delay": "delay needs a duration; legal: 500 ms, 2 s, 1 min",
    "rank 2: delay 2": "delay needs a duration",
    "rank 2: delay -2 s": "delay needs a duration",
    "rank 2: delay 0 s": "0 s is out of range",
    "rank 2: stop 2 h": "'h' is no unit of time; legal: ms, s, min",
    "rank 2: stop 61 min": "61 min is out of range; legal: above 0, up to 60 min",
    "rank 2: delay 2 s after all_reduce #3": "'after all_reduce #3' is no moment; legal: before",
    "rank 2: delay 2 s before": "'' names no operation",
    "rank 2: delay 2 s before al_reduce": "'al_reduce' is no operation (did you mean all_reduce?)",
    "rank 2: delay 2 s before all_reduce #0": "calls count from 1",
    "rank 2: delay 2 s before all_reduce 3": "names no operation; legal: all_reduce #3",
    "rank 2: skip the next barrier #3": "names no operation",
    "rank 2: skip": "'' names no operation",
    "rank 3: kill at line 0": "lines count from 1",
    "rank 3: kill at line twelve": "'at line twelve' is no moment",
    "rank 3: kill now": "'now' is no moment",
    "rank 1: raise": "raise needs the name of an exception",
    "rank 1: raise OsError": "'OsError' is no exception that can be raised here (did you mean",
    "rank 1: raise KeyboardInterrupt": "'KeyboardInterrupt' is no exception that can be raised",
    "rank 1: raise UnicodeDecodeError": "'UnicodeDecodeError' is no exception that can be raised",
    "rank 1: flip the next all_reduce": "it does not say in which operation",
    "rank 1: flip a bit in the next barrier": "barrier sends no data of the rank",
    "nan in rank 0's gradient at line 5": "'at line 5' is no moment of a gradient; legal: at step",
    "nan in gradient": "it is no fault",
    "nan in my gradient": "'my' names no ranks",
    "store: fail": "'fail' is nothing that a store does",
    "store: slow 100": "'slow 100' is nothing that a store does",
    "link 0: 20 ms": "a link is between two ranks",
    "link 1-1: 20 ms": "a link is between two ranks",
    "link 0-9: 20 ms": "rank 9 is out of range",
    "link 0-1: fast": "'fast' is wrong here; legal: a rate such as 10 MB/s, a latency",
    "link 0-1: 0 MB/s": "'0 MB/s' is wrong here",
    "link 0-1: 10 ms, 20 ms": "'20 ms' is wrong here",
    "random: seed=7": "it has no rate",
    "random: rate=2": "rate is '2'; legal: a chance between 0 and 1",
    "random: rate=0.1, seed=x": "seed is 'x'; legal: a whole number",
    "random: rate=0.1, acts=delay+nan": "acts is 'delay+nan'; legal: some of delay, raise",
    "random: often": "'often' is wrong here; legal: seed=, rate=, acts=",
}


@pytest.mark.parametrize("text", LEGAL)
def test_a_legal_text_is_read(text: str):
    assert parse_faults(text, 4) == (LEGAL[text],)


@pytest.mark.parametrize("text", [*LEGAL, *EXAMPLES.values()])
def test_the_text_of_a_fault_is_read_as_the_same_fault(text: str):
    (fault,) = parse_faults(text, 4)
    assert parse_faults(str(fault), 4) == (fault,)


@pytest.mark.parametrize("text", LEGAL)
def test_a_fault_is_sent_as_it_is(text: str):
    (fault,) = parse_faults(text, 4)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fault), type=Fault) == fault


@pytest.mark.parametrize("text", BAD)
def test_the_error_of_a_bad_text_says_what_is_legal(text: str):
    with pytest.raises(BadOptionError, match=re.escape(BAD[text])) as raised:
        parse_faults(text, 4)
    is_about_rank = "out of range" in str(raised.value)
    assert "for example" in str(raised.value) or (is_about_rank and "legal:" in str(raised.value))


def test_several_faults_are_separated_or_given_apart():
    kill, skip = "rank 1: kill", "rank 2: skip the next barrier"
    expected = [kill, skip]
    for texts in (f"{kill}; {skip};", [kill, skip], [f"{kill};{skip}"]):
        assert [str(fault) for fault in parse_faults(texts, 4)] == expected
    with pytest.raises(BadOptionError, match="101 faults are given"):
        parse_faults([kill] * 101, 4)


def test_words_without_quotes_get_a_hint():
    with pytest.raises(
        BadOptionError, match="a fault stands in quotes; for example --fault 'rank 1: kill'"
    ):
        parse_faults(["rank", "1:", "kill"], 4)


def test_the_operations_are_those_of_traced_groups():
    """Functions that `methods` has made for a name keep it in their closure."""
    made = {
        each.cell_contents for f in methods.COLLECTIVES.values() for each in f.__closure__ or ()
    }
    named = {"all_reduce", "all_reduce_coalesced", "all_to_all_single", "barrier", "broadcast"}
    others = {"monitored_barrier", "reduce", *methods.MESSAGES.values()}
    assert made | named | others == OPERATIONS


def test_only_exceptions_with_one_text_can_be_raised():
    assert is_error("OSError")
    assert is_error("OutOfMemoryError")
    assert not any(map(is_error, ("SystemExit", "ExceptionGroup", "print", "", "nothing")))


def test_a_link_needs_time_for_its_latency_and_its_bytes():
    (fault,) = parse_faults("link 0-1: 10 MB/s, 20 ms", 2)
    assert fault.link_s(0) == pytest.approx(0.02)
    assert fault.link_s(10_000_000) == pytest.approx(1.02)


def test_a_fault_names_an_iteration_as_cards_do():
    assert str(parse_faults("rank 2: kill at i = 2", 4)[0]) == "rank 2: kill at i = 2"
    assert str(parse_faults("rank 2: kill at step = 2", 4)[0]) == "rank 2: kill at step 2"


def test_texts():
    assert [duration(seconds) for seconds in (2.0, 0.1, 1.25)] == ["2 s", "100 ms", "1.25 s"]
    assert missed_text(("rank 1: kill",)) == "1 fault did not strike: rank 1: kill"
    assert missed_text(("a", "b")) == "2 faults did not strike: a; b"
