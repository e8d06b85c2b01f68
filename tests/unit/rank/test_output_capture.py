"""An Output widget of a rank captures the output of its block."""

import sys
import threading
from typing import Any, TextIO

import pytest

from nbddp.rank.cells import output_capture
from nbddp.rank.cells.output_capture import Captured
from nbddp.wire.message_types import ErrorInfo


class Widget:
    """Stands in for `ipywidgets.Output`."""

    outputs: tuple[dict[str, Any], ...] = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> bool | None: ...


def fail(error: BaseException) -> None:
    raise error


def say(text: str, file: TextIO | None = None) -> None:
    """Writes as `print` does."""
    (sys.stdout if file is None else file).write(f"{text}\n")


@pytest.fixture
def widget_class() -> type[Widget]:
    """A fresh one, taught to capture."""

    class Own(Widget):
        pass

    def show(error: Any) -> None:
        target = output_capture.current()
        assert target is not None
        target.error(ErrorInfo(ename=error[0].__name__, evalue=str(error[1]), traceback=[]))

    output_capture.install(Own, lambda: True, show)
    return Own


def sent() -> tuple[list[tuple[dict[str, Any], ...]], Captured]:
    found: list[tuple[dict[str, Any], ...]] = []
    return found, Captured(found.append)


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def display(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}


def test_text_of_one_stream_is_one_output():
    found, captured = sent()
    captured.text("stdout", "a")
    captured.text("stdout", "b\n")
    captured.text("stderr", "c\n")
    captured.flush()
    assert found[-1] == (stream("ab\n"), stream("c\n", "stderr"))


def test_a_lot_of_text_keeps_its_end():
    found, captured = sent()
    for n in range(300):
        captured.text("stdout", f"{n:04}" + "x" * 996)
    captured.flush()
    (output,) = found[-1]
    assert len(output["text"]) == 100_000
    assert output["text"].startswith("0200")


def test_a_display_is_updated_in_its_place():
    found, captured = sent()
    captured.display({"text/plain": "1"}, {}, "mine", False)
    captured.text("stdout", "between")
    captured.display({"text/plain": "2"}, {}, "mine", True)
    captured.display({"text/plain": "3"}, {}, "other", True)
    assert found[-1] == (display("2"), stream("between"))


def test_clearing_waits_if_it_is_asked_to():
    found, captured = sent()
    captured.text("stdout", "old")
    captured.clear(wait=True)
    captured.flush()
    assert found[-1] == (stream("old"),)
    captured.display({"text/plain": "new"}, {}, None, False)
    assert found[-1] == (display("new"),)
    captured.clear(wait=False)
    assert not found[-1]


def test_print_goes_into_the_widget_and_afterwards_where_it_went_before(
    widget_class: type[Widget], capsys: pytest.CaptureFixture[str]
):
    before = sys.stdout
    outer, inner = widget_class(), widget_class()
    with outer:
        say("outer")
        with inner:
            say("inner")
        say("outer again", sys.stderr)
    say("outside")
    assert outer.outputs == (stream("outer\n"), stream("outer again\n", "stderr"))
    assert inner.outputs == (stream("inner\n"),)
    assert sys.stdout is before
    assert capsys.readouterr().out == "outside\n"


def test_output_of_other_threads_is_not_captured(
    widget_class: type[Widget], capsys: pytest.CaptureFixture[str]
):
    widget = widget_class()
    with widget:
        thread = threading.Thread(target=say, args=("from a thread",))
        thread.start()
        thread.join()
        say("captured")
    assert widget.outputs == (stream("captured\n"),)
    assert capsys.readouterr().out == "from a thread\n"


def test_an_exception_ends_up_in_the_widget_the_stop_button_does_not(widget_class: type[Widget]):
    widget = widget_class()
    with widget:
        fail(ValueError("bad"))
    assert widget.outputs[0]["ename"] == "ValueError"
    with pytest.raises(KeyboardInterrupt), widget:
        fail(KeyboardInterrupt())
    assert output_capture.current() is None


def test_nothing_is_captured_without_a_front_end(capsys: pytest.CaptureFixture[str]):
    class Own(Widget):
        pass

    output_capture.install(Own, lambda: False, lambda _: None)
    widget = Own()
    with widget:
        say("seen")
    assert widget.outputs == ()
    assert capsys.readouterr().out == "seen\n"
