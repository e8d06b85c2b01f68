"""The nodes on other machines of which nothing is heard, and the sentence about them.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class SilentNode:
    """A node of which nothing is heard."""

    node: int
    host: str
    since: float  #: `time.monotonic` of the last sign of life
    lost_after_s: float  #: after a silence of this length its ranks are given up

    def at(self, now: float, ranks: RankSet) -> "Silence":
        """Return what is to be said about it now, and about these of its ranks."""
        return Silence(self.node, self.host, now - self.since, self.lost_after_s, ranks)


@dataclass(frozen=True)
class BehindNode:
    """A node that is not silent, and has not answered a question for longer than usual.

    After a cut, a node may be heard seconds before it gets what was sent to it: each end pauses
    for itself before it sends again.
    """

    node: int
    host: str
    is_heard: bool  #: something came from there since the oldest question without an answer

    @property
    def text(self) -> str:
        """``node 1 (n2) is heard, but does not answer yet: ...``."""
        return f"node {self.node} ({self.host}) {self.state}"

    @property
    def state(self) -> str:
        """``is heard, but does not answer yet: ...``, with what that perhaps means."""
        if self.is_heard:
            return (
                "is heard, but does not answer yet: perhaps what was sent to it is still on its "
                "way, as TCP pauses after a cut"
            )
        return "does not answer: perhaps the network is cut"


@dataclass(frozen=True)
class Silence:
    """A silent node at one moment."""

    node: int
    host: str
    silent_s: float
    lost_after_s: float
    ranks: RankSet  #: of the node, that are concerned

    @property
    def unheard(self) -> str:
        """``nothing has been heard of node 1 (n2) for 12 s``."""
        return f"nothing has been heard of node {self.node} ({self.host}) for {self.silent_s:.0f} s"


def silent_since_text(silences: Iterable[Silence]) -> str:
    """``node 1 (n2) is silent for 12 s``; several with ``and``."""
    return " and ".join(
        f"node {each.node} ({each.host}) is silent for {each.silent_s:.0f} s" for each in silences
    )


def awaited_text(silences: Iterable[Silence], asked: RankSet, *, needs_all: bool = False) -> str:
    """Say that a question to ranks waits for silent nodes, and what a user can do meanwhile.

    Args:
        silences: the silent nodes of these ranks.
        asked: the ranks that are asked.
        needs_all: no rank can be left out.
    """
    nodes = list(silences)
    it = "it" if len(nodes) == 1 else "them"
    steps = "" if needs_all else steps_beside(nodes, asked)
    this = "This needs all ranks, and waits" if needs_all else "This waits"
    return f"{silence_text(nodes)}. {this} for {it}; the stop button ends the wait{steps}"


def steps_beside(silences: Iterable[Silence], asked: RankSet) -> str:
    """``, and -r 0-1 leaves rank 2 out``; empty: all of the ranks are silent."""
    silent = RankSet.of(rank for each in silences for rank in each.ranks)
    others = asked - silent
    return f", and -r {others} leaves {silent.describe()} out" if others else ""


def silence_text(silences: Iterable[Silence], *, interrupted: bool = False) -> str:
    """Say what is silent since when, and what will happen.

    Args:
        silences: of one or more nodes.
        interrupted: an interrupt is on its way to the ranks.
    """
    nodes = list(silences)
    ranks = RankSet.of(rank for each in nodes for rank in each.ranks)
    they, get, are = ("it", "gets", "is") if len(ranks) == 1 else ("they", "get", "are")
    it, node_is = ("it", "is") if len(nodes) == 1 else ("they", "are")
    given_up = f"{are} given up at {nodes[0].lost_after_s:g} s" if nodes else ""
    future = f"{they} {given_up} unless {it} {node_is} heard again before"
    if interrupted:
        future = f"{they} {get} the interrupt when {it} {node_is} heard again, or {given_up}"
    there = "there" if len(nodes) == 1 else "on their nodes"
    return f"{silent_since_text(nodes)}; {ranks.describe()} may go on {there}: {future}"


def silent_steps(*, waits: str = "wait until the node is heard again or given up") -> str:
    """``wait until ..., or %ddp restart ...``: the next steps beside a silent node."""
    return f"{waits}, or %ddp restart, which gives it up now and ends all ranks"


def late_text(late: RankSet, unheard: RankSet) -> str:
    """Say that ranks have not left a cell; those that are not heard have perhaps done so."""
    silent = RankSet.of(set(late) & set(unheard))
    heard = late - silent
    perhaps = f"{silent.describe()} {silent.verb('is', 'are')} perhaps still in an old cell"
    if not heard:
        return perhaps
    still = f"{heard.describe()} {heard.verb('is', 'are')} still in an old cell"
    return f"{still}, and {silent.describe()} perhaps, too" if silent else still
