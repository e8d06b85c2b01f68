"""A sink that keeps the page as a front end would show it."""

from collections.abc import Mapping
from typing import Any

from nbddp.notebook.output import Live
from nbddp.wire.messages import Stream


class PageSink:
    """The page of a reader: texts joined, displays updated in place."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.messages = 0
        self.sent_bytes = 0
        self._at: dict[str, int] = {}

    def text(self, stream: Stream, text: str) -> None:
        self._count(text)
        last = self.outputs[-1] if self.outputs else {}
        if last.get("stream") == stream:
            last["text"] += text
        else:
            self.outputs.append({"stream": stream, "text": text})

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any],
        display_id: str | None,
        update: bool,
    ) -> None:
        self._count(*map(str, data.values()))
        if update:
            if display_id in self._at:
                self.outputs[self._at[display_id]] = dict(data)
            return
        if display_id is not None:
            self._at[display_id] = len(self.outputs)
        self.outputs.append(dict(data))

    def clear(self) -> None:
        self.outputs, self._at = [], {}

    def live(self, live: Live) -> None:
        self._count(*live.status, *live.open_lines, live.strip)

    @property
    def plain(self) -> str:
        """All of it as text."""
        return "\n".join(
            each["text"].removesuffix("\n") if "stream" in each else each.get("text/plain", "")
            for each in self.outputs
        )

    @property
    def html(self) -> str:
        """All displays."""
        return "\n".join(each.get("text/html", "") for each in self.outputs)

    def _count(self, *parts: str) -> None:
        self.messages += 1
        self.sent_bytes += sum(map(len, parts))
