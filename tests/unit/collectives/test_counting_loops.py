"""Loops whose variable says in which iteration a rank is."""

import ast
import linecache
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nbddp.rank.collectives.recording import counting_loops
from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.rank.collectives.recording.counting_loops import CountingLoops, local_integer
from nbddp.wire.flight_recorder import NodeMemory, Writer

FILE = "<loops of a test>"


@pytest.fixture
def around() -> Iterator[Callable[[str], tuple[str, ...]]]:
    """The variables around the line that calls ``here``."""

    def find(code: str) -> tuple[str, ...]:
        lines = textwrap.dedent(code).strip().splitlines(keepends=True)
        linecache.cache[FILE] = (0, None, lines, FILE)
        (number,) = (number for number, line in enumerate(lines, 1) if "here" in line)
        return loops.around(FILE, number)

    loops = CountingLoops()
    yield find
    linecache.cache.pop(FILE, None)


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("for step in range(4)", ("step",)),
        ("for step in range(1, n)", ("step",)),
        ("for step in range(-1, n, 2)", ("step",)),
        ("for i, batch in enumerate(loader)", ("i",)),
        ("for i, (x, y) in enumerate(loader, 1)", ("i",)),
        ("for i, (x, y) in enumerate(loader, start=1)", ("i",)),
        ("for step in tqdm(range(4), disable=rank > 0)", ("step",)),
        ("for step in tqdm.trange(4)", ("step",)),
        ("for i, batch in tqdm.notebook.tqdm(enumerate(loader))", ("i",)),
        # Ranks may begin at different numbers.
        ("for step in range(rank, 8)", ()),
        ("for step in range(0, 8, world_size)", ()),
        ("for i, batch in enumerate(loader, rank)", ()),
        ("for i, batch in enumerate(loader, start=rank)", ()),
        # Their values are data.
        ("for x in loader", ()),
        ("for pair in enumerate(loader)", ()),
        ("for i, x in zip(range(4), loader)", ()),
        ("for x.y in range(4)", ()),
        ("while step < 4", ()),
        ("if step in range(4)", ()),
    ],
)
def test_loops_that_count(
    around: Callable[[str], tuple[str, ...]], header: str, names: tuple[str, ...]
):
    assert around(f"{header}:\n    here()") == names


def test_the_innermost_loop_is_the_first(around: Callable[[str], tuple[str, ...]]):
    code = """
        for epoch in range(2):
            for i, batch in enumerate(loader):
                if batch:
                    here()
            for other in range(3):
                pass
        """
    assert around(code) == ("i", "epoch")


def test_a_variable_that_the_loop_changes_does_not_count(
    around: Callable[[str], tuple[str, ...]],
):
    assert around("for i in range(4):\n    i += 1\n    here()") == ()
    assert around("for i in range(4):\n    for i in range(2):\n        here()") == ("i",)


@pytest.mark.parametrize(
    "body",
    [
        "    here()\n    break",
        "    try:\n        here()\n        break\n    except E:\n        pass",
        "    try:\n        here()\n    except E:\n        pass\n    else:\n        break",
        "    try:\n        return here()\n    except E:\n        pass",
    ],
)
def test_attempts_do_not_count(around: Callable[[str], tuple[str, ...]], body: str):
    assert around(f"for attempt in range(3):\n{body}") == ()
    assert around("for step in range(3):\n    here()\n    if late:\n        break") == ("step",)


def test_a_function_has_loops_of_its_own(around: Callable[[str], tuple[str, ...]]):
    code = """
        for step in range(4):
            def train():
                for i in range(3):
                    here()
        """
    assert around(code) == ("i",)


def test_the_end_of_a_loop_is_outside(around: Callable[[str], tuple[str, ...]]):
    assert around("for i in range(4):\n    pass\nelse:\n    here()") == ()
    assert around("for i in range(4):\n    pass\nhere()") == ()


def test_code_with_an_error_has_no_loops(around: Callable[[str], tuple[str, ...]]):
    assert around("for i in range(4):\n    here(") == ()


def test_a_file_that_changes_is_read_again(around: Callable[[str], tuple[str, ...]]):
    assert around("for i in range(4):\n    here()") == ("i",)
    assert around("for k in range(4):\n    here()") == ("k",)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are parsed."""
    texts: list[str] = []

    def parse(text: str) -> ast.Module:
        texts.append(text)
        return ast.parse(text)

    noting = types.SimpleNamespace(**{**vars(ast), "parse": parse})
    monkeypatch.setattr(counting_loops, "ast", noting)
    return texts


def test_a_function_of_an_earlier_cell_is_not_parsed_again_in_each_cell(parsed: list[str]):
    lines = ["def f():\n", "    for i in range(1):\n", "        yield\n"]
    linecache.cache[FILE] = (0, None, lines, FILE)
    variables: dict[str, Any] = {}
    exec(compile("".join(lines), FILE, "exec"), variables)
    frame = variables["f"]().gi_frame
    sites = Sites(lambda file: 7 * (file == FILE), Writer(NodeMemory.create(1), 0), ())
    for _ in range(3):
        sites.forget()
        sites.loop_variables(frame)
    assert len(parsed) == 1
    linecache.cache.pop(FILE)


def test_code_without_a_loop_is_not_parsed(
    around: Callable[[str], tuple[str, ...]], parsed: list[str]
):
    assert around("here()") == ()
    assert not parsed


def test_few_files_keep_their_loops(parsed: list[str]):
    loops = CountingLoops()
    names = [f"<cell {number} of a test>" for number in range(100)]
    for name in names:
        linecache.cache[name] = (0, None, ["for i in range(1):\n", "    pass\n"], name)
        assert loops.around(name, 2) == ("i",)
    assert loops.around(names[-1], 2) == ("i",)
    assert len(parsed) == 100
    assert loops.around(names[0], 2) == ("i",)
    assert len(parsed) == 101
    for name in names:
        linecache.cache.pop(name)


# --- values --------------------------------------------------------------------------------------


class Tensor:
    pass


def caller() -> types.FrameType:
    return sys._getframe(2)


def value_of(name: str) -> int | None:
    return local_integer(caller(), name)


def test_only_small_integers_are_values():
    step, flag, large, tensor = 3, True, 1 << 80, Tensor()
    assert value_of("step") == step
    assert [value_of(name) for name in ("flag", "large", "tensor", "missing")] == [None] * 4
    assert [flag, large, tensor]  # they are locals


def test_variables_of_the_module_stay():
    namespace: dict[str, Any] = {"value_of": value_of}
    exec("step = 3\nfound = value_of('step')", namespace)
    assert (namespace["found"], namespace["step"]) == (3, 3)


def test_a_function_frees_its_tensors_as_early_as_before():
    tensor = Tensor()
    living = weakref.ref(tensor)
    step = 3
    assert value_of("step") == step
    del tensor
    assert living() is None


def test_a_dictionary_of_locals_that_the_user_has_is_not_emptied():
    step = 3
    variables = locals()
    assert value_of("step") == step
    assert variables["step"] == step
