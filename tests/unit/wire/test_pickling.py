"""Values are pickled and built again: every tensor, memory that tensors share, leases of memory."""

import collections
import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
import torch

from nbddp.errors import TransferError
from nbddp.wire.values import tensors
from nbddp.wire.values.pickling import decode_value, encode_value, pack, unpack
from nbddp.wire.values.shared_memory import Arena, SegmentUnreachableError, is_supported
from tests.support.pickled_values import DTYPES, assert_equal, never

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


# --- tensors -----------------------------------------------------------------------------------


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


def test_a_received_value_is_writable_and_independent(round_trip: Any):
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
