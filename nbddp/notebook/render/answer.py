"""The answer of a verb: a few lines, of which one says what to do next, and details one click away.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nbddp.line_breaks import with_line_breaks
from nbddp.notebook.render.html import SUMMARY_STYLE, escape

_STYLE = "padding-left:8px;line-height:1.5;overflow-wrap:break-word"
#: Words with which a step begins: the eye finds it.
_STEPS = ("Next: ", "Then: ")


@dataclass(frozen=True)
class Answer:
    """Sentences, most important first."""

    lines: Sequence[str]
    details: Sequence[str] = ()  #: folded in a notebook
    summary: str = ""  #: names the details

    def text(self) -> str:
        """The lines for a terminal, without the details."""
        return "\n".join(map(with_line_breaks, self.lines))

    def bundle(self) -> dict[str, str]:
        """The answer as a MIME bundle."""
        parts = []
        if self.details:  # above: after Shift+Enter a notebook shows the end of an output
            body = "".join(f"<div>{escape(line)}</div>" for line in self.details)
            summary = f'<summary style="{SUMMARY_STYLE}">{escape(self.summary)}</summary>'
            parts.append(f"<details>{summary}{body}</details>")
        parts += [f"<div>{_with_bold_step(line)}</div>" for line in self.lines]
        return {
            "text/plain": self.text(),
            "text/html": f'<div style="{_STYLE}">{"".join(parts)}</div>',
        }


def _with_bold_step(line: str) -> str:
    for step in _STEPS:
        front, marker, rest = line.partition(step)
        if marker:
            return f"{escape(front)}<b>{step.rstrip()}</b> {escape(rest)}"
    return escape(line)
