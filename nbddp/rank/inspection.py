"""Completion and inspection by the living names of a rank.

Runs in: the rank process, thread ``nbddp-side``.
"""

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor

from nbddp.rank.shell import RankShell
from nbddp.wire.messages import Complete, Completed, Inspect, Inspected


def answer(shell: RankShell, question: Complete | Inspect) -> Completed | Inspected:
    """What IPython says."""
    if isinstance(question, Complete):
        return _complete(shell, question)
    return _inspect(shell, question)


def _complete(shell: RankShell, question: Complete) -> Completed:
    with provisionalcompleter():
        code = question.code
        found = list(rectify_completions(code, shell.Completer.completions(code, question.cursor)))
    return Completed(
        number=question.number,
        rank=shell.rank,
        matches=tuple(match.text for match in found),
        start=found[0].start if found else question.cursor,
        end=found[0].end if found else question.cursor,
        metadata={},
    )


def _inspect(shell: RankShell, question: Inspect) -> Inspected:

    name = token_at_cursor(question.code, question.cursor)
    try:
        data = shell.object_inspect_mime(name, detail_level=question.detail_level)
    except KeyError:
        data = {}
    return Inspected(
        number=question.number, rank=shell.rank, found=bool(data), data=data, metadata={}
    )
