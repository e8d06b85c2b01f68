"""Text that a rank has printed and that is not passed on: its size, and its end.

Runs in: the agent, and the notebook's process. Pure.
"""

#: The last line of a long output is mostly its result.
_END_CHARS = 4096


class LeftOutText:
    r"""The text of one stream that was left out since the last text that was passed on.

    Example:
        >>> left_out = LeftOutText()
        >>> left_out.add("step 1\n" * 10_000)
        >>> left_out.add("loss 0.1\n")
        >>> size, end = left_out.take_with_end()
        >>> size + len(end), end[-16:]
        (70009, 'step 1\nloss 0.1\n')
    """

    __slots__ = ("_end", "_is_end_cut", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._end = ""
        self._is_end_cut = False

    def __bool__(self) -> bool:
        return self._size > 0

    def add(self, text: str, *, lost_before: int = 0) -> None:
        """Add the next text.

        Args:
            text: the text.
            lost_before: size in bytes of the text just before it, which is not known any more.
        """
        self._size += lost_before + _size(text)
        if lost_before:
            self._end, self._is_end_cut = "", False
        end = self._end + text[-_END_CHARS:]
        self._is_end_cut |= len(end) > _END_CHARS or len(text) > _END_CHARS
        self._end = end[-_END_CHARS:]

    def take(self) -> int:
        """Return the size of all of it, in bytes of UTF-8, and begin again with none."""
        size, self._size = self._size, 0
        self._end, self._is_end_cut = "", False
        return size

    def take_with_end(self) -> tuple[int, str]:
        """Return the size of what comes before its last lines, and these; begin again with none."""
        end = self._end
        if self._is_end_cut:
            end = end.partition("\n")[2] or end
        return self.take() - _size(end), end


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
