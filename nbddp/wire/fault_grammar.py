"""Reads the text of ``%%ddp --fault`` and of `nbddp.faults.inject`.

Runs in: the notebook, or the rank for `nbddp.faults.inject`. Pure, and strict: what it cannot read
is an error that says what is legal.
"""

import builtins
import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, get_args

from nbddp.errors import BadOptionError
from nbddp.wire.fault_types import ANY_OPERATION, RANDOM_ACTS, Act, Fault, Moment
from nbddp.wire.rank_set import RankSet

#: The operations of traced groups, by the names that cards and tables have for them.
OPERATIONS: Final = frozenset((
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "all_reduce", "all_reduce_coalesced", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "scatter", "send",
))  # fmt: skip
#: Operations that send nothing of the calling rank.
_WITHOUT_DATA: Final = ("barrier", "monitored_barrier", "recv")
#: Exceptions of torch that may be raised, beside those of Python.
TORCH_ERRORS: Final = ("OutOfMemoryError", "DistBackendError", "DistNetworkError")
#: Faults of a cell.
MAX_FAULTS: Final = 100
_LONGEST_S = 3600.0
_UNITS_S: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0}
_UNITS_BYTES: Final = {"kb": 1e3, "mb": 1e6, "gb": 1e9}

EXAMPLES: Final[dict[str, str]] = {
    "delay": "rank 2: delay 2 s before all_reduce #3",
    "raise": "rank 1: raise OSError at step 5",
    "kill": "rank 3: kill at line 12",
    "stop": "rank 0: stop 3 s before the next barrier",
    "skip": "rank 2: skip the next barrier",
    "flip": "rank 1: flip a bit in the next all_reduce",
    "nan": "nan in rank 0's gradient",
    "link": "link 0-1: 10 MB/s, 20 ms",
    "store": "store: slow 100 ms",
    "random": "random: seed=7, rate=0.01",
}
#: The legal moments.
_MOMENTS = "before all_reduce #3, before the next barrier, at line 12, at step 5"
_NUMBER = r"(\d+(?:\.\d+)?)"


def parse_faults(texts: str | Iterable[str], world_size: int) -> tuple[Fault, ...]:
    """Read faults.

    Args:
        texts: one text, or several; each may hold several faults, separated by ``;``.
        world_size: number of ranks of the pool.

    Raises:
        BadOptionError: a fault cannot be read; the message says what is legal.

    >>> [str(fault) for fault in parse_faults("rank 1: kill; store: slow 0.1s", 2)]
    ['rank 1: kill', 'store: slow 100 ms']
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    parts = [part.strip() for text in texts for part in text.split(";") if part.strip()]
    if not parts:
        raise BadOptionError(f"no fault is given; for example '{EXAMPLES['delay']}'")
    if len(parts) > MAX_FAULTS:
        raise BadOptionError(f"{len(parts)} faults are given; legal: at most {MAX_FAULTS}")
    if len(texts) > 1 and any(" " not in text.strip() for text in texts):
        # Without quotes each word comes alone.
        raise BadOptionError(f"a fault stands in quotes; for example --fault '{' '.join(texts)}'")
    return tuple(_parse(part, world_size) for part in parts)


def _parse(text: str, world_size: int) -> Fault:
    reader = _Reader(text, world_size)
    nan = re.fullmatch(r"nan in (.+?)(?:'s|')? gradients?(?: (.+))?", text, re.IGNORECASE)
    if nan is not None:
        return reader.nan(nan[1], nan[2] or "")
    head, colon, body = (part.strip() for part in text.partition(":"))
    if not colon or not body:
        reader.refuse("it is no fault", *EXAMPLES.values())
    words = head.lower().split()
    if words == ["store"]:
        return reader.store(body)
    if words == ["random"]:
        return reader.random(body)
    if words[:1] == ["link"]:
        return reader.link(" ".join(words[1:]), body)
    return reader.of_ranks(head, body)


class _Reader:
    """Reads one fault.

    Args:
        text: of the fault.
        world_size: number of ranks of the pool.
    """

    def __init__(self, text: str, world_size: int) -> None:
        self._text = text
        self._world_size = world_size

    def refuse(self, wrong: str, *examples: str, legal: str = "") -> NoReturn:
        """Raise the error of this fault."""
        said = f"; legal: {legal}" if legal else ""
        shown = " or ".join(repr(each) if "'" in each else f"'{each}'" for each in examples)
        raise BadOptionError(f"fault {self._text!r}: {wrong}{said}; for example {shown}")

    # --- kinds of faults -----------------------------------------------------------------------

    def of_ranks(self, head: str, body: str) -> Fault:
        """``rank 2: delay 2 s before all_reduce #3``."""
        ranks = self._ranks(head, EXAMPLES["delay"])
        act, _, rest = body.partition(" ")
        readers: dict[str, Callable[[tuple[int, ...], str], Fault]] = {
            "delay": lambda ranks, rest: self._lasting("delay", ranks, rest),
            "stop": lambda ranks, rest: self._lasting("stop", ranks, rest),
            "raise": self._raise,
            "kill": lambda ranks, rest: Fault(
                act="kill", ranks=ranks, moment=self._moment(rest, "kill")
            ),
            "skip": lambda ranks, rest: Fault(
                act="skip", ranks=ranks, moment=self._call(rest, "skip")
            ),
            "flip": self._flip,
        }
        reader = readers.get(act.lower())
        if reader is None:
            guess = self._guess(act, readers)
            self.refuse(
                f"{act!r} is no act of a rank{guess}",
                EXAMPLES["delay"],
                EXAMPLES["skip"],
                legal=", ".join(readers),
            )
        return reader(ranks, " ".join(rest.split()))

    def _lasting(self, act: Act, ranks: tuple[int, ...], rest: str) -> Fault:
        match = re.match(rf"{_NUMBER} ?([a-z]+)\b ?", rest)
        if match is None:
            self.refuse(f"{act} needs a duration", EXAMPLES[act], legal="500 ms, 2 s, 1 min")
        seconds = self._seconds(match[1], match[2], EXAMPLES[act])
        moment = self._moment(rest[match.end() :], act)
        return Fault(act=act, ranks=ranks, seconds=seconds, moment=moment)

    def _raise(self, ranks: tuple[int, ...], rest: str) -> Fault:
        name, _, moment = rest.partition(" ")
        if not name:
            self.refuse("raise needs the name of an exception", EXAMPLES["raise"])
        if not is_error(name):
            guess = self._guess(name, [*filter(is_error, dir(builtins)), *TORCH_ERRORS])
            self.refuse(
                f"{name!r} is no exception that can be raised here{guess}",
                EXAMPLES["raise"],
                legal=f"exceptions of Python such as ValueError; {', '.join(TORCH_ERRORS)}",
            )
        return Fault(act="raise", ranks=ranks, error=name, moment=self._moment(moment, "raise"))

    def _flip(self, ranks: tuple[int, ...], rest: str) -> Fault:
        if not rest.startswith("a bit in "):
            self.refuse("it does not say in which operation", EXAMPLES["flip"])
        moment = self._call(rest.removeprefix("a bit in "), "flip")
        if moment.name in _WITHOUT_DATA:
            self.refuse(f"{moment.name} sends no data of the rank", EXAMPLES["flip"])
        return Fault(act="flip", ranks=ranks, moment=moment)

    def nan(self, head: str, rest: str) -> Fault:
        """``nan in rank 0's gradient at step 5``."""
        ranks = self._ranks(head, EXAMPLES["nan"])
        if not rest:
            return Fault(act="nan", ranks=ranks, moment=Moment("backward"))
        moment = self._moment(rest, "nan")
        if moment.when != "loop":
            self.refuse(
                f"{rest!r} is no moment of a gradient",
                f"{EXAMPLES['nan']} at step 5",
                legal="at step 5, or nothing for the next backward",
            )
        return Fault(act="nan", ranks=ranks, moment=moment)

    def store(self, body: str) -> Fault:
        """``store: slow 100 ms``."""
        match = re.fullmatch(rf"slow {_NUMBER} ?([a-z]+)", body)
        if match is None:
            self.refuse(f"{body!r} is nothing that a store does", EXAMPLES["store"])
        seconds = self._seconds(match[1], match[2], EXAMPLES["store"])
        ranks = RankSet.all(self._world_size).ranks
        return Fault(act="store", ranks=ranks, seconds=seconds, moment=Moment("always"))

    def link(self, ends: str, body: str) -> Fault:
        """``link 0-1: 10 MB/s, 20 ms``."""
        example = EXAMPLES["link"]
        match = re.fullmatch(r"(\d+) ?- ?(\d+)", ends)
        if match is None or match[1] == match[2]:
            self.refuse("a link is between two ranks", example)
        ranks = RankSet.parse(f"{match[1]},{match[2]}", self._world_size).ranks
        seconds = bytes_per_s = 0.0
        for part in map(str.strip, body.split(",")):
            rate = re.fullmatch(rf"{_NUMBER} ?([kKmMgG][bB])/s", part)
            latency = re.fullmatch(rf"{_NUMBER} ?([a-z]+)", part)
            if rate is not None and not bytes_per_s and float(rate[1]):
                bytes_per_s = float(rate[1]) * _UNITS_BYTES[rate[2].lower()]
            elif latency is not None and not seconds:
                seconds = self._seconds(latency[1], latency[2], example)
            else:
                legal = "a rate such as 10 MB/s, a latency such as 20 ms, or both"
                self.refuse(f"{part!r} is wrong here", example, legal=legal)
        return Fault(
            act="link", ranks=ranks, seconds=seconds, bytes_per_s=bytes_per_s,
            moment=Moment("always"),
        )  # fmt: skip

    def random(self, body: str) -> Fault:
        """``random: seed=7, rate=0.01, acts=delay+skip``."""
        example = EXAMPLES["random"]
        values: dict[str, Any] = {"seed": 0, "rate": None, "acts": RANDOM_ACTS}
        for part in map(str.strip, body.split(",")):
            name, equals, value = (each.strip() for each in part.partition("="))
            if not equals or name not in values:
                self.refuse(f"{part!r} is wrong here", example, legal="seed=, rate=, acts=")
            if name == "seed" and value.isdecimal():
                values["seed"] = int(value)
            elif name == "rate" and re.fullmatch(_NUMBER, value) and 0 < float(value) <= 1:
                values["rate"] = float(value)
            elif name == "acts" and set(value.split("+")) <= set(RANDOM_ACTS):
                values["acts"] = tuple(value.split("+"))
            else:
                legal = {
                    "seed": "a whole number",
                    "rate": "a chance between 0 and 1, for each operation",
                    "acts": f"some of {', '.join(RANDOM_ACTS)}, joined by +",
                }[name]
                self.refuse(f"{name} is {value!r}", example, legal=legal)
        if values["rate"] is None:
            self.refuse("it has no rate", example)
        return Fault(
            act="random", ranks=RankSet.all(self._world_size).ranks, moment=Moment("always"),
            **values,
        )  # fmt: skip

    # --- parts ---------------------------------------------------------------------------------

    def _ranks(self, head: str, example: str) -> tuple[int, ...]:
        match = re.fullmatch(r"(?:ranks? ([\d, -]+)|(all ranks))", head.strip(), re.IGNORECASE)
        if match is None:
            self.refuse(f"{head!r} names no ranks", example, legal="rank 2, ranks 0,2-3, all ranks")
        return RankSet.parse(match[1] or "all", self._world_size).ranks

    def _seconds(self, number: str, unit: str, example: str) -> float:
        if unit not in _UNITS_S:
            self.refuse(f"{unit!r} is no unit of time", example, legal=", ".join(_UNITS_S))
        seconds = float(number) * _UNITS_S[unit]
        if not 0 < seconds <= _LONGEST_S:
            self.refuse(f"{number} {unit} is out of range", example, legal="above 0, up to 60 min")
        return seconds

    def _moment(self, text: str, act: Act) -> Moment:
        """``before all_reduce #3``, ``at line 12``, ``at step 5``; nothing: the beginning."""
        text = text.strip()
        if not text:
            return Moment()
        word, _, rest = text.partition(" ")
        at = re.fullmatch(r"([^\W\d]\w*) ?=? ?(-?\d+)", rest)
        if word == "before":
            return self._call(rest, act)
        if word != "at" or at is None:
            self.refuse(f"{text!r} is no moment", EXAMPLES[act], legal=_MOMENTS)
        name, number = at[1], int(at[2])
        if name != "line":
            return Moment("loop", name, number)
        if number < 1:
            self.refuse("lines count from 1", EXAMPLES[act])
        return Moment("line", number=number)

    def _call(self, text: str, act: Act) -> Moment:
        """``all_reduce #3``, ``the next barrier``."""
        match = re.fullmatch(r"(?:the )?(next )?(\S+?)(?: ?#(\d+))?", text.strip())
        if match is None or (match[1] and match[3]):
            legal = "all_reduce #3, the next all_reduce, the next operation"
            self.refuse(f"{text!r} names no operation", EXAMPLES[act], legal=legal)
        name, number = match[2].removeprefix("dist."), int(match[3] or 1)
        if name not in OPERATIONS and name != ANY_OPERATION:
            guess = self._guess(name, OPERATIONS)
            legal = f"{ANY_OPERATION}, {', '.join(sorted(OPERATIONS))}"
            self.refuse(f"{name!r} is no operation{guess}", EXAMPLES[act], legal=legal)
        if number < 1:
            self.refuse("calls count from 1", EXAMPLES[act])
        return Moment("operation", name, number)

    @staticmethod
    def _guess(word: str, legal: Iterable[str]) -> str:
        near = difflib.get_close_matches(word, legal, n=1)
        return f" (did you mean {near[0]}?)" if near else ""


def is_error(name: str) -> bool:
    """Whether a fault can raise the exception with this name: it takes one text."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return name in TORCH_ERRORS
    try:
        kind("")
    except TypeError:
        return False
    return True


assert set(EXAMPLES) == set(get_args(Act))  # noqa: S101 - each act has an example
