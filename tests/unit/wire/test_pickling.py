import collections
import dataclasses
import gc
import os
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbddp.errors import BadMessageError, TransferError
from nbddp.settings import POOL_ID_ENV
from nbddp.wire.message_types import ValueHeader
from nbddp.wire.values import pickling, tensors
from nbddp.wire.values.pickling import Reassembler, decode_value, encode_value, pack, split, unpack
from nbddp.wire.values.shared_memory import Arena, SegmentUnreachableError, is_supported

needs_arena = pytest.mark.skipif(not is_supported(), reason="no memfd on this system")


@pytest.fixture(params=["frames", pytest.param("arena", marks=needs_arena)])
def round_trip(request: pytest.FixtureRequest):
    """Sends a value through frames or an arena and builds it again."""
    arena = Arena() if request.param == "arena" else None

    def send(value: Any) -> Any:
        header, frames = encode_value(value, arena)
        frames = [bytes(frame) for frame in frames]  # as after a socket
        return decode_value(header, frames, arena.release if arena else never)

    yield send
    if arena:
        arena.close()


def never(number: int) -> None:
    pytest.fail(f"write {number} is not in shared memory")


def assert_equal(left: Any, right: Any) -> None:
    """Same types, same values, same places of NaN; through containers."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.requires_grad == right.requires_grad
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    elif dataclasses.is_dataclass(left):
        assert_equal(vars(left), vars(right))
    else:
        assert left == right


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


# --- tensors -----------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (3, 40_000)], ids=str)
def test_every_dtype_and_size_arrives(round_trip: Any, dtype: torch.dtype, shape: tuple[int, ...]):
    size = torch.Size(shape).numel()
    sent = torch.randint(0, 2, (size,)).to(torch.float32).to(dtype).reshape(shape)
    got = round_trip(sent)
    assert (got.dtype, got.shape, got.device) == (dtype, sent.shape, torch.device("cpu"))
    assert got.reshape(-1).view(torch.uint8).equal(sent.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "sent",
    [
        torch.randn(300, 400).t(),
        torch.randn(300, 400)[::2, 3:],
        torch.randn(1, 400).expand(300, 400),
        torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last),
        torch.empty(3, 0, 5).transpose(0, 2),
        torch.randn(20_000, dtype=torch.complex64).conj(),
        torch.randn(20_000, dtype=torch.complex64).conj().imag,
        torch.randn(100_000)[7],
    ],
    ids=["transposed", "strided", "expanded", "channels_last", "empty", "conj", "neg", "view0d"],
)
def test_every_layout_arrives(round_trip: Any, sent: torch.Tensor):
    got = round_trip(sent)
    assert_equal(got, sent)
    assert not got._is_view()
    assert not got.is_conj()
    assert not got.is_neg()


def test_dense_layouts_keep_their_strides_and_are_not_copied():
    for sent in (torch.randn(300, 400).t(), torch.randn(2, 3, 50, 50).permute(0, 2, 3, 1)):
        packed = pack(sent)
        assert unpack(packed.pickle, packed.buffers).stride() == sent.stride()
        sent.fill_(5)
        assert set(bytes(packed.buffers[0])) == set(bytes(torch.tensor(5.0).numpy().data))


def test_a_large_tensor_is_outside_of_the_pickle_stream():
    packed = pack({"x": torch.zeros(100_000), "y": [torch.zeros(2, 50_000, dtype=torch.bfloat16)]})
    assert [buffer.nbytes for buffer in packed.buffers] == [400_000, 200_000]
    assert len(packed.pickle) < 1000


def test_small_buffers_stay_in_the_pickle_stream():
    assert pack([torch.zeros(10), np.zeros(10)] * 100).buffers == []


def test_a_view_sends_only_what_it_shows():
    assert pack(torch.zeros(1_000_000)[10:2000]).total_bytes < 10_000


def test_what_arrives_is_writable_and_its_own(round_trip: Any):
    sent: dict[str, Any] = {"t": torch.ones(50_000), "a": np.ones(50_000), "small": torch.ones(2)}
    got = round_trip(sent)
    got["t"] += 1
    got["a"] += 1
    got["small"] += 1
    assert [float(got[key].sum()) for key in got] == [100_000, 100_000, 4]
    assert [float(sent[key].sum()) for key in sent] == [50_000, 50_000, 2]


def test_a_read_only_array_stays_so(round_trip: Any):
    sent = np.ones(50_000)
    sent.flags.writeable = False
    assert not round_trip(sent).flags.writeable


def test_the_same_tensor_twice_arrives_as_one(round_trip: Any):
    tensor = torch.ones(50_000)
    first, second = round_trip([tensor, tensor])
    assert first is second


SHARED = torch.arange(60_000.0)


@pytest.mark.parametrize(
    ("sent", "total_bytes"),
    [
        ([SHARED, SHARED.view(-1), SHARED.view(200, 300).t()], 240_000),
        ([SHARED, SHARED[100:200], SHARED[::7]], 240_000),
        ([SHARED, SHARED.view(torch.int32)[5:]], 240_000),
        ([SHARED[:40_000], SHARED[20_000:]], 240_000),
        ([SHARED[:20_000], SHARED[:20_000].view(200, 100)], 80_000),
        ([torch.nn.Parameter(SHARED.view(300, 200)), SHARED.view(200, 300)], 240_000),
    ],
    ids=["views", "slices", "dtypes", "overlapping", "equal slices", "tied weights"],
)
def test_tensors_that_share_memory_share_it_again(
    round_trip: Any, sent: list[torch.Tensor], total_bytes: int
):
    assert 0 <= pack(sent).total_bytes - total_bytes < 2000
    got = round_trip(sent)
    assert_equal(got, sent)
    for tensor in got[1:]:
        assert tensor.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()
    before = [tensor.double().sum() for tensor in got]
    with torch.no_grad():
        got[0].fill_(7)
    assert all(t.double().sum() != s for t, s in zip(got, before, strict=True))


def test_views_of_a_huge_tensor_do_not_send_it():
    huge = torch.zeros(1_000_000)
    assert pack([huge[10:20], huge[500:2000], huge[::1000]]).total_bytes < 20_000


def test_a_tensor_without_memory_is_refused():
    tensor = torch.zeros(100_000)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(TransferError, match="has no memory: it was freed"):
        pack([tensor])


@dataclasses.dataclass
class Sample:
    name: str
    image: torch.Tensor
    labels: dict[str, np.ndarray[Any, Any]]


def test_containers_and_own_classes(round_trip: Any):
    sent = collections.OrderedDict(
        sample=Sample("a", torch.randn(3, 200, 200), {"x": np.arange(20_000), "y": np.eye(2)}),
        nested=[(torch.ones(1), {"deep": torch.randn(5, requires_grad=True)}), None, "text"],
        array=np.asfortranarray(np.random.default_rng(0).random((100, 200))),
    )
    assert_equal(round_trip(sent), sent)


def test_parameters_modules_and_optimizers(round_trip: Any):
    model: Any = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.BatchNorm1d(100))
    model[0].weight.tag = {"split": 1}  # as tensor-parallel code does
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 200)).sum().backward()
    optimizer.step()
    got, state = round_trip((model, optimizer.state_dict()))
    assert_equal(dict(got.named_parameters()), dict(model.named_parameters()))
    assert_equal(got.state_dict(), model.state_dict())
    assert_equal(state, optimizer.state_dict())
    assert got[0].weight.tag == {"split": 1}
    torch.optim.SGD(got.parameters()).step()
    got(torch.randn(4, 200)).sum().backward()
    assert got[0].weight.grad is not None


def test_a_result_of_autograd_arrives_as_a_leaf(round_trip: Any):
    got = round_trip(torch.ones(50_000, requires_grad=True) * 2)
    assert got.is_leaf
    assert got.requires_grad


class MyTensor(torch.Tensor):
    pass


def test_unusual_tensors_use_the_pickling_of_torch(round_trip: Any):
    sparse = torch.eye(200).to_sparse()
    assert round_trip(sparse).to_dense().equal(torch.eye(200))
    assert round_trip(torch.empty(3, device="meta")).device.type == "meta"
    own = round_trip(torch.ones(30_000).as_subclass(MyTensor))
    assert type(own) is MyTensor
    assert own.sum() == 30_000


def test_a_tensor_of_an_accelerator_arrives_on_the_cpu_where_cuda_is_not_in_use(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    buffer = bytearray(torch.arange(5.0).numpy().tobytes())
    memory = tensors.rebuild_memory(buffer)
    got = tensors.rebuild_tensor(memory, 0, "float32", (5,), (1,), "cuda:1", True, False, None)
    assert got.device.type == "cpu"
    assert got.tolist() == [0, 1, 2, 3, 4]
    assert got.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_tensor_arrives_on_its_device_where_cuda_is_in_use(round_trip: Any):
    sent = {
        "x": torch.randn(300, 400, device="cuda").t(),
        "p": torch.nn.Parameter(torch.randn(50_000, device="cuda")),
        "sparse": torch.eye(5, device="cuda").to_sparse(),
    }
    got = round_trip(sent)
    assert_equal(got["x"], sent["x"])
    assert_equal(got["p"], sent["p"])
    assert got["sparse"].device == sent["sparse"].device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        assert round_trip(sent)["x"].device.type == "cpu"


# --- properties --------------------------------------------------------------------------------

sizes = st.integers(0, 3000)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | sizes.map(lambda n: np.arange(n, dtype=np.int32))
    | sizes.map(lambda n: torch.arange(n, dtype=torch.float64))
    | st.sampled_from(DTYPES[:4]).map(lambda dtype: torch.ones(1500, 2, dtype=dtype).t())
)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


# A loaded machine is slow; that is no failure.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=nested, chunk_bytes=st.integers(50, 40_000))
def test_any_value_arrives_in_chunks_of_any_size(value: Any, chunk_bytes: int):
    header, frames = encode_value(value)
    reassembler = Reassembler()
    done = None
    for part, parts, pieces in split(header, frames, chunk_bytes):
        assert done is None
        assert sum(memoryview(piece).nbytes for piece in pieces) <= chunk_bytes
        copies = [bytes(piece) for piece in pieces]
        done = reassembler.add("key", header, part, parts, copies)
        assert (done is not None) == (part == parts - 1)
    assert done is not None
    assert_equal(decode_value(header, done, never), value)


# --- leases ------------------------------------------------------------------------------------


@needs_arena
def test_a_value_holds_its_segment_until_its_last_part_dies():
    arena = Arena()
    released: list[int] = []
    header, frames = encode_value({"t": torch.ones(50_000), "a": np.ones(50_000)}, arena)
    assert frames == []
    value = decode_value(header, frames, released.append)
    part = value["a"][10:20]
    view = value["t"][5:]
    del value
    gc.collect()
    assert released == []
    del view
    gc.collect()
    assert released == []
    del part
    gc.collect()
    assert released == [header.segment]
    arena.close()


class BreaksOnArrival:
    def __init__(self) -> None:
        self.tensor = torch.ones(50_000)

    def __setstate__(self, state: object) -> None:
        raise ValueError("not today")


@needs_arena
def test_an_error_on_arrival_holds_no_segment():
    arena = Arena()
    released: list[int] = []
    header, frames = encode_value([torch.ones(50_000), BreaksOnArrival()], arena)
    with pytest.raises(TransferError, match="ValueError: not today") as caught:
        decode_value(header, frames, released.append)
    gc.collect()
    assert released == [header.segment]
    assert caught.value.__context__ is None  # the error lives, the lease does not
    arena.close()


@needs_arena
def test_an_unreachable_segment_is_released_once():
    arena = Arena()
    released: list[int] = []
    header, frames = encode_value(torch.ones(50_000), arena)
    arena.close()
    with pytest.raises(SegmentUnreachableError):
        decode_value(header, frames, released.append)
    assert released == [header.segment]


@needs_arena
def test_small_values_and_declined_ones_are_frames():
    arena = Arena(max_segments=0)
    for value in (torch.ones(5000), torch.ones(50_000)):
        header, frames = encode_value(value, arena)
        assert header.segment == -1
        assert_equal(decode_value(header, frames, never), value)


# --- errors ------------------------------------------------------------------------------------


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
def test_what_cannot_be_pickled_says_why(value: object, words: str):
    with pytest.raises(TransferError, match=words):
        encode_value(value)


def test_a_rank_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch):
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


def test_without_torch_a_tensor_is_refused_in_words():
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


# --- chunks that lie ---------------------------------------------------------------------------

HEADER = ValueHeader(pickle_bytes=10, buffer_bytes=(0, 100))


def test_chunks_of_several_values_may_be_mixed():
    reassembler = Reassembler()
    assert reassembler.add("a", HEADER, 0, 2, [b"p" * 10, b"x" * 40]) is None
    assert reassembler.add("b", HEADER, 0, 2, [b"q" * 10]) is None
    first = reassembler.add("a", HEADER, 1, 2, [b"y" * 60])
    second = reassembler.add("b", HEADER, 1, 2, [b"z" * 100])
    assert first is not None
    assert second is not None
    assert list(map(bytes, first)) == [b"p" * 10, b"", b"x" * 40 + b"y" * 60]
    assert list(map(bytes, second)) == [b"q" * 10, b"", b"z" * 100]


@pytest.mark.parametrize(
    "messages",
    [
        [(HEADER, 0, 1, [b"p" * 10, b"", b"x" * 99])],
        [(HEADER, 0, 1, [b"p" * 10, b"x" * 100])],
        [(HEADER, 0, 2, [b"p" * 11])],
        [(HEADER, 0, 2, [b"p" * 10, b"x" * 101])],
        [(HEADER, 0, 2, [b"p" * 10, b"x" * 100])],
        [(HEADER, 0, 2, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 99])],
        [(HEADER, 0, 2, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 100, b"y"])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 2, 3, [b"x" * 100])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 0, 3, [b"p" * 10])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 100])],
        [
            (HEADER, 0, 2, [b"p" * 10]),
            (ValueHeader(pickle_bytes=10, buffer_bytes=(100,)), 1, 2, [b"x" * 100]),
        ],
        [(HEADER, 1, 2, [b"p" * 10])],
        [(HEADER, 0, 0, [])],
        [(HEADER, 0, -1, [])],
        [(ValueHeader(pickle_bytes=-1, buffer_bytes=()), 0, 2, [])],
        [(ValueHeader(pickle_bytes=10, buffer_bytes=(-5,)), 0, 2, [b"p" * 5])],
        [(ValueHeader(pickle_bytes=10, buffer_bytes=(10**7,)), 0, 9, [b"p" * 5])],
        [(msgspec.structs.replace(HEADER, segment=3), 0, 2, [])],
    ],
)
def test_chunks_that_do_not_fit_are_refused_and_forgotten(
    messages: list[tuple[ValueHeader, int, int, list[bytes]]],
):
    reassembler = Reassembler(max_bytes=1000)
    for message in messages[:-1]:
        assert reassembler.add("key", *message) is None
    with pytest.raises(BadMessageError):
        reassembler.add("key", *messages[-1])
    # The same key can be used again, and no memory is counted for the refused value.
    whole = ValueHeader(pickle_bytes=500, buffer_bytes=(500,))
    assert reassembler.add("key", whole, 0, 2, [b"p" * 500]) is None
    assert reassembler.add("key", whole, 1, 2, [b"x" * 500]) is not None


def test_unfinished_values_are_bounded_together_and_can_be_dropped():
    reassembler = Reassembler(max_bytes=150)
    assert reassembler.add("a", HEADER, 0, 2, [b"p" * 10]) is None
    with pytest.raises(BadMessageError, match="more than 150 bytes"):
        reassembler.add("b", HEADER, 0, 2, [b"p" * 10])
    reassembler.drop("a")
    assert reassembler.add("b", HEADER, 0, 2, [b"p" * 10]) is None


def test_a_value_that_memory_cannot_hold_is_a_transfer_error(monkeypatch: pytest.MonkeyPatch):
    def fail(size: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(pickling, "_new_buffer", fail)
    with pytest.raises(TransferError, match="no memory here"):
        Reassembler().add("key", HEADER, 0, 2, [b"p" * 10])


def test_large_buffers_of_a_reassembled_value_are_writable():
    tensor = torch.arange(1_000_000.0)
    header, frames = encode_value(tensor)
    reassembler, done = Reassembler(), None
    for part, parts, pieces in split(header, frames, 1_000_000):
        done = reassembler.add("key", header, part, parts, pieces)
    assert done is not None
    got = decode_value(header, done, never)
    got += 1
    assert got.equal(torch.arange(1.0, 1_000_001.0))
    assert got.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("frames", [[], [b"p" * 10], [b"p" * 10, b"", b"x" * 99]])
def test_frames_that_do_not_fit_the_header_are_refused(frames: list[bytes]):
    with pytest.raises(BadMessageError):
        decode_value(HEADER, frames, never)
