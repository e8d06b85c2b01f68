"""Values that cannot be pickled or built are refused with the reason; torch is loaded on demand."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from nbddp.errors import TransferError
from nbddp.settings import POOL_ID_ENV
from nbddp.wire.values.pickling import encode_value, pack, unpack


def python(script: str, stdin: bytes = b"", **environ: str) -> str:
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=stdin,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **environ},
        timeout=60,
        check=True,
    )
    return done.stdout.decode()


def too_deep() -> list[Any]:
    outer: list[Any] = []
    for _ in range(100_000):
        outer = [outer]
    return outer


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((i for i in "ab"), "type generator cannot be pickled in the notebook: .*generator"),
        ({"f": lambda: 1}, "type dict cannot be pickled in the notebook: .*lambda"),
        (too_deep(), "nested too deeply"),
    ],
    ids=["generator", "lambda", "deep"],
)
def test_a_value_that_cannot_be_pickled_says_why(value: object, words: str):
    with pytest.raises(TransferError, match=words):
        encode_value(value)


def test_an_error_on_a_rank_says_that_it_came_on_the_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(POOL_ID_ENV, "p")
    with pytest.raises(TransferError, match="cannot be pickled on the rank"):
        pack(i for i in "ab")


MAKE_FOO = """
import sys
from nbddp.wire.values.pickling import pack
class Foo: pass
sys.stdout.write(pack(Foo()).pickle.hex())
"""


def test_a_class_of_the_other_side_is_named(monkeypatch: pytest.MonkeyPatch):
    stream = bytes.fromhex(python(MAKE_FOO))
    with pytest.raises(TransferError) as caught:
        unpack(stream, [])
    assert str(caught.value) == (
        "'Foo' is defined on the ranks only: define it in the notebook too, "
        "or convert the value first"
    )
    monkeypatch.setenv(POOL_ID_ENV, "p")
    with pytest.raises(TransferError, match="defined in the notebook only: define it on the rank"):
        unpack(stream, [])


def test_a_missing_module_is_named():
    with pytest.raises(TransferError, match="'no_such_module', which cannot be imported in the"):
        unpack(b"cno_such_module\nthing\n.", [])
    with pytest.raises(TransferError, match=r"needs os\.no_such_name, which does not exist"):
        unpack(b"cos\nno_such_name\n.", [])
    with pytest.raises(TransferError, match="cannot be built in the notebook"):
        unpack(b"nonsense", [])


UNPACK = """
import sys
{before}
from nbddp.errors import TransferError
from nbddp.wire.values.pickling import unpack
assert "torch" not in sys.modules or sys.modules["torch"] is None
try:
    print(type(unpack(sys.stdin.buffer.read(), [])).__name__)
except TransferError as error:
    print(error)
"""


def test_torch_is_imported_when_a_tensor_arrives():
    stream = pack(torch.ones(3)).pickle
    assert python(UNPACK.format(before=""), stream).strip() == "Tensor"


def test_a_tensor_is_refused_with_a_reason_without_torch():
    stream = pack(torch.ones(3)).pickle
    said = python(UNPACK.format(before='sys.modules["torch"] = None'), stream)
    assert "needs the module 'torch', which cannot be imported in the notebook" in said


def test_values_without_tensors_do_not_import_torch():
    script = (
        "import sys\n"
        "from nbddp.wire.values.pickling import decode_value, encode_value\n"
        "header, frames = encode_value({'a': [1, b'x' * 100_000]})\n"
        "assert decode_value(header, frames, print)['a'][0] == 1\n"
        "print('torch' in sys.modules)"
    )
    assert python(script).strip() == "False"
