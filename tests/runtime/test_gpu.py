"""A bundle for a GPU on a fake one: how many pages it gets, who is turned away and why, that serving makes nothing."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts import reader
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, CapacityError, DeviceError, TandemError, UsageError
from tandem.keys import TARGET_KINDS, Kind, context_classes
from tandem.runtime import gpu as door
from tandem.runtime import loading
from tandem.runtime.delivery import End, Event
from tandem.runtime.executor.cuda.image import CODE_BYTES
from tandem.runtime.gpu import Room, open_image, pages_that_fit
from tandem.runtime.loading import LoadOptions, lane_pages, load
from tandem.runtime.request import FinishReason
from tests.copier import copier
from tests.fake_device import Node
from tests.runtime.executor.cuda.echo import Gone, Gpu
from tests.runtime.executor.cuda.sample import CUBINS, GEOMETRY, LAYOUT, SCRATCH_BYTES, WEIGHT_BYTES, image, program
from tests.service import PATIENCE, TEMPLATE, byte_tokenizer

GIB = 1 << 30
FIXED = WEIGHT_BYTES + LAYOUT.nbytes + SCRATCH_BYTES + CODE_BYTES
LANE = lane_pages(GEOMETRY, GEOMETRY.context_length)


@given(
    st.integers(1, 100),
    st.integers(0, 100),
    st.floats(0.01, 1.0),
    st.integers(0, 50),
    st.integers(1, 30),
    st.integers(),
)
def test_pages_take_no_more_than_is_free_and_allowed(
    total: int, taken: int, share: float, fixed: int, page: int, seed: int
) -> None:
    room = Room(total * GIB, max(0, total - taken) * GIB, share)
    least = 1 + seed % 3
    try:
        pages = pages_that_fit({"weights": fixed * GIB}, room, page * GIB, (least, least + 4))
    except (BundleMismatch, CapacityError):
        pages = None
    fitting = [
        n for n in range(least, least + 5) if fixed + n * page <= min(total - taken, int(total * GIB * share) / GIB)
    ]
    assert pages == (fitting[-1] if fitting else None)


def test_too_little_memory_says_how_much_is_needed_and_for_what() -> None:
    sizes = {"weights": 50 * GIB, "scratch": GIB}
    with pytest.raises(BundleMismatch) as caught:
        pages_that_fit(sizes, Room(40 * GIB, 40 * GIB), GIB // 2, (8, 16))
    assert str(caught.value).startswith(
        "55.00 GiB of GPU memory are needed (weights 50.00 GiB, scratch 1.00 GiB, the KV of one context (8 pages) 4.00 "
        "GiB) and 36.00 GiB are allowed, 0.9 of this GPU's 40.00 GiB; ask for a shorter --max-model-len"
    )
    with pytest.raises(CapacityError, match=r"55\.00 GiB .* and 20\.00 GiB of 80\.00 GiB are free; end what else runs"):
        pages_that_fit(sizes, Room(80 * GIB, 20 * GIB), GIB // 2, (8, 16))


class Counting(Gpu):
    """Each token is followed by the next number, whatever the pass."""

    def echo(self, nodes: list[Node]) -> None:
        super().echo(nodes)
        io = self.io()
        for output, row in enumerate(io["output_row"][: io["counts"][1]]):
            io["argmax"][output] = (io["token"][row] + 1) % GEOMETRY.vocab_size


def entries() -> list[tuple[Any, Any]]:
    """As a bundle gives them: three row counts a class, steps and chains sharing their programs."""
    steps = [(bound, rows) for bound in context_classes(GEOMETRY.context_length) for rows in (1, 4, 32)]
    made = [(kind, *step, program(i)) for i, step in enumerate(steps) for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN)]
    made += [(Kind.VERIFY_TREE, *step, program(50 + i, kind=Kind.VERIFY_TREE)) for i, step in enumerate(steps)]
    made += [(Kind.EXTEND, 0, 128, program(98)), (Kind.COMMIT, 0, 32, program(99, kind=Kind.COMMIT))]
    return [(SimpleNamespace(kind=k, context_class=bound, rows=rows), each) for k, bound, rows, each in made]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    made = Counting()
    monkeypatch.setattr(door, "Driver", lambda: Driver(made))
    yield made
    assert (made.faults, made.left()) == ([], {})


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    image(tmp_path)  # its weights
    facts = SimpleNamespace(chat_template=TEMPLATE, bos_token=None, eos_token=None, stop_ids=())
    opened = SimpleNamespace(
        path=tmp_path,
        manifest=SimpleNamespace(name="tiny", content_id="ab" * 32, tokenizer=facts),
        geometry=GEOMETRY,
        tokenizer_path=tmp_path / "tokenizer.json",
        prices={},
        json=lambda name: {},
        on_gpu=True,
        gpu=SimpleNamespace(index=0),
        weights=None,
        library_path=copier(),
        programs=entries,
        cubin=CUBINS.__getitem__,
        fit=lambda: SimpleNamespace(reasons=()),
        require_native=lambda: None,
    )
    monkeypatch.setattr(reader, "open_bundle", lambda path, **options: opened)
    return opened


def test_a_loaded_bundle_answers_and_makes_nothing_once_it_is_ready(
    gpu: Counting, bundle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    plain = door.open_image

    def remembered(*arguments: Any, **options: Any) -> Any:
        opened.append(plain(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(door, "open_image", remembered)
    service = load(Path("x"))
    try:
        opened[0].finish()
        gpu.sealed, launched = True, gpu.counts["cuGraphLaunch"]
        events: queue.Queue[Event] = queue.Queue()
        for _ in range(2):  # the second prompt is in the drafter's reach
            service.submit(service.request(tuple(range(20)) * 4, max_tokens=30), [], events.put)
        ends = list[End]()
        while len(ends) < 2:
            if isinstance(event := events.get(timeout=PATIENCE), End):
                ends.append(event)
        assert [end.stats.completion_tokens for end in ends] == [30, 30]
        assert gpu.counts["cuGraphLaunch"] > launched and opened[0].ready
        assert opened[0].num_pages == 2 * LANE
    finally:
        gpu.sealed = False
        service.worker.stop()


def test_pages_shrink_to_what_is_left(gpu: Counting, bundle: SimpleNamespace) -> None:
    gpu.total = int((FIXED + (LANE + 3.5) * GEOMETRY.page_bytes) / 0.9)
    executor = loading._serving_executor(bundle, LoadOptions(), GEOMETRY.context_length, 2)  # type: ignore[arg-type]
    executor.close()
    assert executor.num_pages == LANE + 3
    more = LoadOptions(gpu_memory_utilization=1.0)
    executor = loading._serving_executor(bundle, more, GEOMETRY.context_length, 2)  # type: ignore[arg-type]
    executor.close()
    assert executor.num_pages == 2 * LANE


def turned_away(gpu: Counting, error: type[TandemError], words: str, options: LoadOptions | None = None) -> None:
    with pytest.raises(error, match=words) as caught:
        load(Path("x"), options)
    assert len(str(caught.value).splitlines()) == 1
    assert gpu.counts["cuGraphLaunch"] == gpu.counts["cuMemAlloc_v2"] == 0


def test_a_gpu_that_is_too_small(gpu: Counting, bundle: SimpleNamespace) -> None:
    gpu.total = CODE_BYTES
    turned_away(gpu, BundleMismatch, "GiB of GPU memory are needed .* ask for a shorter --max-model-len")


def test_no_gpu_at_all(gpu: Counting, bundle: SimpleNamespace) -> None:
    gpu.devices = 0
    turned_away(gpu, DeviceError, "no GPU is visible")


def test_a_second_server_on_one_gpu(gpu: Counting, bundle: SimpleNamespace, tmp_path: Path) -> None:
    gpu.total = FIXED + LANE * GEOMETRY.page_bytes
    first = open_image(image(tmp_path), pages=(LANE, 2 * LANE), utilization=1, driver=Driver(gpu))
    with pytest.raises(CapacityError, match=r"are free; end what else runs on this GPU"):
        load(Path("x"), LoadOptions(gpu_memory_utilization=1))
    first.close()


def test_options_of_the_other_device(gpu: Counting, bundle: SimpleNamespace) -> None:
    turned_away(gpu, UsageError, "--threads is for bundles of a CPU", LoadOptions(threads=2))
    bundle.on_gpu = False
    turned_away(
        gpu, UsageError, "--gpu-memory-utilization is for bundles of a GPU", LoadOptions(gpu_memory_utilization=1)
    )
    assert gpu.calls == []


def test_a_refused_bundle_asks_nothing_of_the_gpu(gpu: Counting, bundle: SimpleNamespace) -> None:
    def refuse() -> None:
        raise BundleMismatch("not for this machine: a driver that speaks CUDA 13.0 or later wanted, CUDA 12.4 found")

    bundle.require_native = refuse
    turned_away(gpu, BundleMismatch, "CUDA 12.4 found")
    assert gpu.calls == []


def test_entries_that_leave_a_pass_out(gpu: Counting, bundle: SimpleNamespace) -> None:
    whole = entries()
    for kind in TARGET_KINDS:
        bundle.programs = lambda kind=kind: [pair for pair in whole if pair[0].kind is not kind]
        turned_away(gpu, BundleMismatch, f"no {kind} entry takes ")
    bundle.programs = lambda: [pair for pair in whole if pair[0].context_class != 3000]
    turned_away(gpu, BundleMismatch, "no verify-chain entry takes 32 rows at 3000 tokens, the longest ends at 2048")
    assert gpu.calls == []


def test_prices_of_another_shape(gpu: Counting, bundle: SimpleNamespace) -> None:
    bundle.prices = {"1024": {"extend": [1.0, 2.0]}}
    turned_away(gpu, BundleCorrupt, r"prices: '1024.extend' is \[1.0, 2.0\], not an object")
    assert gpu.calls == []


def test_an_oracle_of_another_shape_leaves_nothing(gpu: Counting, bundle: SimpleNamespace) -> None:
    bundle.json = lambda name: {"load": 5}
    with pytest.raises(BundleCorrupt, match=r"oracle.json: Expected `array`, got `int`"):
        load(Path("x"))
    assert gpu.counts["cuGraphLaunch"] == 0


def test_a_gpu_that_goes_while_it_serves(bundle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end with an error, later ones are turned away, and nothing waits for it."""
    gone = Gone()
    monkeypatch.setattr(door, "Driver", lambda: Driver(gone))
    service = load(Path("x"))
    gone.gone_at = 0
    events: queue.Queue[Event] = queue.Queue()
    service.submit(service.request((1, 2, 3), max_tokens=30), [], events.put)
    while not isinstance(event := events.get(timeout=PATIENCE), End):
        pass
    assert event.reason is FinishReason.ERROR and "a pass failed (cu" in str(event.error)
    assert service.worker.drain(PATIENCE) and not service.worker.healthy
    with pytest.raises(CapacityError, match="out of service after a failed pass"):
        service.submit(service.request((1, 2, 3), max_tokens=30), [], events.put)
    service.worker.stop()


def test_a_graph_that_fails_beside_leaves_nothing(gpu: Counting, tmp_path: Path) -> None:
    plain = open_image(image(tmp_path), pages=(1, LANE), driver=Driver(gpu))
    plain.finish()
    num_graphs = gpu.counts["cuGraphInstantiateWithFlags"]
    plain.close()

    class LastFails(Gpu):
        def _cuGraphInstantiateWithFlags(self, *arguments: Any) -> int | None:
            full = self.counts["cuGraphInstantiateWithFlags"] == num_graphs
            return 2 if full else super()._cuGraphInstantiateWithFlags(*arguments)

    broken = LastFails()
    with pytest.raises(DeviceError):
        opened = open_image(image(tmp_path), pages=(1, LANE), driver=Driver(broken))
        try:
            opened.finish()
        finally:
            opened.close()
    assert (broken.faults, broken.left()) == ([], {})
