"""From a bundle's path to a running service: open, check, map, restore, start. No HTTP and no model in sight.

Knows nothing of what the bundle's programs compute.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tandem.device import this_machine
from tandem.errors import BundleCorrupt, DeviceError, UsageError
from tandem.keys import MAX_TREE_ROWS
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.drafters.shelf_options import ShelfOptions, Shelves
from tandem.runtime.grammar.compiler import Grammars
from tandem.runtime.heap import trim
from tandem.runtime.reading.formats import Format, format_of, thinks
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.service import Service

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.artifacts.io import Geometry
    from tandem.artifacts.reader import Bundle
    from tandem.runtime.engine import Engine
    from tandem.runtime.executor.base import Executor
    from tandem.runtime.thinking.model import ThinkingModel

log = logging.getLogger("tandem.runtime")

CPU_LANES, GPU_LANES = 4, 8
"""Requests answered at once where nobody says how many. On a GPU eight rows cost hardly more than one."""
MAX_KV_SHARE = 0.5
"""Share of this machine's memory that the KV pool may take when every lane has a full context."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a user may choose at load. None stands for one thread a core, the lanes above and the bundle's own values.

    `router` and `learn_cost` are those of `Engine`. `threads` is for CPUs; `gpu_memory_utilization`, the share of a
    GPU's memory that may be taken, for GPUs. Both parsers say how answers hold tool calls and thoughts; "auto" goes by
    the chat template. `think_budget`, `think_closing` and `conductor` are for models that think; `runtime.thinking`
    says what they do. `shelves` are what the lookup searches beside the request's own text.
    """

    drafter: Literal["auto", "block", "mtp", "lookup", "none"] = "auto"
    router: str = "staircut"
    learn_cost: bool = True
    threads: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_queue: int = 64
    request_timeout: float | None = None
    trust_native: bool = False
    trust_keys: tuple[Path, ...] = ()
    served_model_name: str | None = None
    gpu_memory_utilization: float | None = None
    think_budget: int | None = None
    think_closing: str | None = None
    conductor: Literal["raw", "on"] = "raw"
    relaxation: Relaxation | None = None
    shelves: ShelfOptions = field(default_factory=ShelfOptions)
    tool_call_parser: Literal["auto", "hermes", "qwen-xml", "llama"] = "auto"
    reasoning_parser: Literal["auto", "think", "none"] = "auto"


def load(path: Path, options: LoadOptions | None = None) -> Service:
    """Open the bundle at `path` and start its engine; `service.worker.stop()` ends it.

    Raises BundleError for a bundle that cannot be served here, UsageError for options it cannot honour.
    """
    from tandem.artifacts.reader import open_bundle
    from tandem.prices import read_table
    from tandem.runtime.drafters.base import require_model
    from tandem.runtime.router.choice import check_name
    from tandem.runtime.worker import Worker

    options = options or LoadOptions()
    check_name(options.router)
    bundle = open_bundle(path, trust_native=options.trust_native, trust_keys=options.trust_keys)
    manifest, geometry = bundle.manifest, bundle.geometry
    context_length = options.max_model_len or geometry.context_length
    if context_length > geometry.context_length:
        raise UsageError(f"--max-model-len is {context_length}; this bundle holds {geometry.context_length} tokens")
    num_lanes = options.max_num_seqs or min(GPU_LANES if bundle.on_gpu else CPU_LANES, geometry.max_lanes)
    if num_lanes > geometry.max_lanes:
        raise UsageError(f"--max-num-seqs is {num_lanes}; this bundle serves at most {geometry.max_lanes} at once")
    require_model(options.drafter, geometry)
    read_table(bundle.prices)  # a wrong one is told before anything is loaded
    shelves = _shelves(bundle, options)
    executor = None
    try:
        executor = _serving_executor(bundle, options, context_length, num_lanes)
        tokenizer = read_tokenizer(bundle.tokenizer_path)  # while weights are on their way to a GPU
        engine = _engine(bundle, executor, options, num_lanes, shelves)
        thinking = _thinking(manifest.tokenizer.chat_template, tokenizer, options, engine)
    except BaseException:
        for close in shelves.closing:
            close()
        with contextlib.suppress(DeviceError):  # of a GPU that is gone; why it went matters more
            if executor is not None:
                executor.close()
        raise
    trim()
    worker = Worker(engine, shelves.closing)
    worker.start()
    facts, tools, thoughts = manifest.tokenizer, options.tool_call_parser, options.reasoning_parser
    return Service(
        model=options.served_model_name or manifest.name,
        bundle_id=manifest.content_id,
        created=int(time.time()),
        tokenizer=tokenizer,
        context_length=min(context_length, engine.context_length),
        stop_ids=frozenset(facts.stop_ids),
        chat=ChatTemplate(facts.chat_template, {"bos_token": facts.bos_token, "eos_token": facts.eos_token}),
        worker=worker,
        thinking=thinking,
        call_format=format_of(facts.chat_template) if tools == "auto" else Format(tools),
        thinks=thinks(facts.chat_template) if thoughts == "auto" else thoughts == "think",
        grammars=Grammars(tokenizer, geometry.vocab_size, facts.stop_ids),
        relaxation=options.relaxation,
    )


def _thinking(template: str | None, tokenizer: Tokenizer, options: LoadOptions, engine: Engine) -> ThinkingModel | None:
    """How the model thinks, None if it does not; then a warning for options that are of no use."""
    from tandem.runtime.thinking.model import thinking_model

    budget, closing, conductor = options.think_budget, options.think_closing, options.conductor == "on"
    if thinks(template) or options.reasoning_parser == "think":
        closed = engine.meter.thoughts_closed.add
        return thinking_model(
            template or "", tokenizer, closing=closing, budget=budget, conductor=conductor, closed=closed
        )
    flags = {"--think-budget": budget is not None, "--think-closing": closing is not None, "--conductor": conductor}
    if idle := " and ".join(flag for flag, given in flags.items() if given):
        log.warning("%s: of no use here, the chat template of this bundle knows no <think>; leave it out", idle)
    return None


def _shelves(bundle: Bundle, options: LoadOptions) -> Shelves:
    """What is looked up in beside requests. UsageError where nothing is looked up; errors as `open_shelves`."""
    if not (asked := options.shelves.flags):
        return Shelves()
    if options.drafter not in ("auto", "lookup"):
        raise UsageError(f"{asked} is for the lookup, and --drafter {options.drafter} looks nothing up; leave it out")
    from tandem.artifacts.layout import TOKENIZER
    from tandem.runtime.drafters.shelves import open_shelves

    tokenizer = next(file.sha256 for file in bundle.manifest.files if file.path == TOKENIZER)
    return open_shelves(options.shelves, tokenizer, bundle.geometry.vocab_size)


def _engine(bundle: Bundle, executor: Executor, options: LoadOptions, num_lanes: int, shelves: Shelves) -> Engine:
    """An engine at this machine's prices, with drafts if no bit differs here."""
    from tandem.prices import PriceModel
    from tandem.runtime.checks.probe import holds
    from tandem.runtime.drafters.base import MODELS
    from tandem.runtime.drafters.lookup import lookup_drafters
    from tandem.runtime.engine import Engine

    exact, prices = examine(bundle, executor)
    if options.relaxation is not None:
        log.warning(
            "ACCEPT RULES ARE RELAXED (%s): drafted tokens that are not the model's own are accepted, so texts are no "
            "longer the model's; for measurements only",
            options.relaxation,
        )
    lookup = lookup_drafters(**shelves.lookup)
    return Engine(
        executor,
        drafters=lookup if exact and options.drafter in ("auto", "lookup") else None,
        models=exact and options.drafter in ("auto", *MODELS) and holds(bundle, executor),
        prices=PriceModel(prices, live=options.learn_cost),
        router=options.router,
        learn_cost=options.learn_cost,
        max_lanes=num_lanes,
        max_queue=options.max_queue,
        request_timeout=options.request_timeout or math.inf,
        relaxation=options.relaxation,
    )


def examine(bundle: Bundle, executor: Executor) -> tuple[bool, dict[str, Any]]:
    """Whether speculation may be on, and the prices to go by here; a warning for each thing that is not as it was.

    Tokens are left in pages of `executor`, so it may not serve yet.
    """
    from tandem.artifacts.fit import Grade
    from tandem.runtime.checks.oracle import sealed
    from tandem.runtime.checks.selfcheck import NAME, self_check

    check = self_check(executor, sealed(bundle).get(NAME))
    if check.held:
        log.info("%s", check)
    else:
        log.warning("%s; speculation is off and answers are plain: compile the bundle again on this machine", check)
    reasons = bundle.fit().reasons
    for grade in (Grade.REBUILD_ADVISED, Grade.STALE_PRICES):
        if found := "; ".join(str(reason) for reason in reasons if reason.grade is grade):
            log.warning("%s: %s", grade, found)
    stale = any(reason.grade is Grade.STALE_PRICES for reason in reasons)
    prices = bundle.prices
    if stale or not prices:
        from tandem.runtime.checks.calibration import calibrated

        prices = calibrated(executor, prices)
    return check.held, prices


def open_executor(
    bundle: Bundle, *, threads: int | None = None, num_pages: int, num_slots: int | None = None
) -> Executor:
    """An executor over `bundle` with a KV pool of `num_pages` and, on a CPU, a team of `threads` (default: one a core).

    On a CPU `num_slots` lanes (default: all) may keep a recurrent state. On a GPU every graph is made when it returns.
    """
    if bundle.on_gpu:
        return _on_gpu(bundle, threads=threads, pages=(num_pages, num_pages))
    from tandem.runtime.executor.cpu import CpuExecutor, Image
    from tandem.runtime.executor.library import Library

    programs = {kind: bundle.program(kind) for kind in bundle.geometry.kinds}
    library = Library(bundle.library_path, threads or this_machine().cores)
    image = Image(bundle.geometry, bundle.weights.data, library, programs, bundle.manifest.content_id)
    return CpuExecutor(image, num_pages=num_pages, num_slots=num_slots)


def _serving_executor(bundle: Bundle, options: LoadOptions, context_length: int, num_lanes: int) -> Executor:
    """An executor with pages for `num_lanes` contexts, fewer where memory is short, never less than one context's."""
    share = options.gpu_memory_utilization
    if not bundle.on_gpu:
        if share is not None:
            raise UsageError("--gpu-memory-utilization is for bundles of a GPU and this one is a CPU's; leave it out")
        num_pages = kv_pages(bundle.geometry, context_length, num_lanes)
        return open_executor(bundle, threads=options.threads, num_pages=num_pages, num_slots=num_lanes)
    lane = lane_pages(bundle.geometry, context_length)
    more = {} if share is None else {"utilization": share}
    return _on_gpu(bundle, threads=options.threads, pages=(lane, num_lanes * lane), whole=False, **more)


def _on_gpu(bundle: Bundle, *, threads: int | None, pages: tuple[int, int], **options: Any) -> Executor:
    """As `tandem.runtime.gpu.open_image`. Nothing is asked of the GPU before it is known that its code may run here."""
    if threads is not None:
        raise UsageError("--threads is for bundles of a CPU and this one is a GPU's; leave it out")
    from tandem.artifacts.layout import WEIGHTS
    from tandem.runtime.executor.cuda.image import Image
    from tandem.runtime.executor.cuda.shelf import require_all
    from tandem.runtime.gpu import open_image

    bundle.require_native()
    _ = bundle.weights  # checks the header; the bytes go from the file to the GPU
    entries = bundle.programs()
    programs = [(entry.kind, entry.context_class, entry.rows, program) for entry, program in entries]
    require_all(programs, bundle.geometry)
    cubins = {binary: bundle.cubin(binary) for binary in {k.binary for _, program in entries for k in program.kernels}}
    assert bundle.gpu is not None, "a machine without one is refused"
    index, content = bundle.gpu.index, bundle.manifest.content_id
    image = Image(bundle.geometry, bundle.path / WEIGHTS, programs, cubins, bundle.library_path, index, content)
    return open_image(image, pages=pages, **options)


def lane_pages(geometry: Geometry, context_length: int) -> int:
    """Pages of one lane with a full context and a verify behind it."""
    return -(-(context_length + MAX_TREE_ROWS) // geometry.page_tokens)


def kv_pages(geometry: Geometry, context_length: int, num_lanes: int) -> int:
    """Pages for `num_lanes` full contexts, at least one's; fewer where they and as many states would take over
    MAX_KV_SHARE of memory."""
    lane = lane_pages(geometry, context_length)
    page_bytes = geometry.page_bytes + (geometry.drafter.page_bytes if geometry.drafter else 0)
    affordable = int(MAX_KV_SHARE * this_machine().memory - num_lanes * geometry.state_bytes) // page_bytes
    return max(lane, min(num_lanes * lane, affordable))


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a bundle, after it has encoded and decoded a few words. BundleCorrupt when it cannot."""
    from tokenizers import Tokenizer

    data = path.read_bytes()  # tokenizers' own reader knows no path that is not UTF-8
    try:
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.decode(tokenizer.encode("Hello, world 1!\n").ids)
        return tokenizer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises the bare class, and panics that are no Exception
        raise BundleCorrupt(f"{path}: not a tokenizer ({error}); compile the bundle again") from error
