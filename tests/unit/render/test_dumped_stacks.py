"""A stack that `faulthandler` wrote is shown without the frames of nbddp."""

from nbddp.notebook.render.dumped_stacks import frames, user_lines

_PYTHON = "/usr/lib/python3.11"
_BELOW = (
    f'  File "{_PYTHON}/site-packages/IPython/core/interactiveshell.py", line 3823 in run_code\n'
    '  File "/home/u/nbddp/rank/cells/executor.py", line 225 in _run\n'
    '  File "/home/u/nbddp/rank/server.py", line 126 in serve\n'
    '  File "<string>", line 1 in <module>\n'
)


def test_frames_that_run_the_cell_are_left_out():
    text = (
        "Stack (most recent call first):\n"
        f'  File "{_PYTHON}/site-packages/torch/nn/functional.py", line 10 in relu\n'
        '  File "/home/u/nbddp/rank/collectives/calls.py", line 3 in _all_reduce\n'
        '  File "/home/u/train.py", line 7 in step\n'
        f'  File "{_PYTHON}/threading.py", line 5 in run\n'
        '  File "<ipython-input-3-56>", line 4 in f\n'
        '  File "<ipython-input-12-57>", line 5 in <module>\n' + _BELOW
    )
    assert user_lines(text) == [
        "torch/nn/functional.py, line 10, in relu",
        "train.py, line 7, in step",
        "threading.py, line 5, in run",
        "cell [3], line 4, in f",
        "cell [12], line 5",
    ]
    assert [frame.is_library for frame in frames(text)][:5] == [True, True, False, True, False]


def test_a_rank_without_a_cell():
    text = f'Stack (most recent call first):\n  File "{_PYTHON}/selectors.py", line 468 in select\n'
    assert user_lines(text + _BELOW) == []


def test_an_unknown_stack_format_is_left_to_the_caller():
    assert user_lines("Process 5: python\n\nThread 5 (idle)\n    wait (libtorch.so)\n") is None
    assert user_lines("") is None
    assert user_lines('  File "x.py", line 3 in spin\n') == ["x.py, line 3, in spin"]
