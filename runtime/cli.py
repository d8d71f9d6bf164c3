"""`tandem-run`: serve a bundle, answer one prompt, or chat. Declares the flags and picks the road.

Imports what a road needs only when it is taken, so that --help is quick and one prompt needs no HTTP.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tandem import __version__
from tandem.command import examples, run_command
from tandem.errors import UsageError
from tandem.runtime.api_key import VARIABLES, api_key
from tandem.runtime.drafters.flags import shelf_flags, shelf_options

if TYPE_CHECKING:
    from tandem.runtime.loading import LoadOptions
    from tandem.runtime.relaxed import Relaxation
    from tandem.runtime.terminal import Wishes

SHARE = click.FloatRange(0, 1)
POSITIVE = click.IntRange(1)
TERMINAL_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "json_schema")
SERVING_FLAGS = (
    *("host", "port", "served_model_name", "api_key", "api_key_file", "max_num_seqs", "max_queue", "request_timeout"),
    *("tool_call_parser", "reasoning_parser"),
)

LONE = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Libraries would start a thread a core for work they never get here; what the user has set stays."""


def _sendable(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Text that HTTP can carry; arguments and variables may hold any bytes."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter("it is not valid UTF-8 text") from error
    return value


EXAMPLES = examples(
    "tandem-run BUNDLE                         # at http://127.0.0.1:8000/v1",
    "tandem-run BUNDLE --prompt 'What is a tandem?'",
    "tandem-run BUNDLE --chat --threads 4      # for a CPU's bundle",
    "CUDA_VISIBLE_DEVICES=1 tandem-run BUNDLE  # on the second GPU",
    "tandem-run BUNDLE --gpu-memory-utilization 0.5 --max-model-len 8192",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, epilog=EXAMPLES)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT", help="Answer one prompt on stdout and exit.")
@click.option(
    "--chat", is_flag=True, help="Chat on this terminal; Ctrl-C stops an answer, Ctrl-D ends, /help says more."
)
@click.option("--raw", is_flag=True, help="Give --prompt to the model as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer to --prompt as a JSON object with its counts.")
@click.option("--max-tokens", type=POSITIVE, help="Longest answer of --prompt and --chat.  [default: rest of context]")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--top-k", type=click.IntRange(0), default=0, help="0 is off.")
@click.option("--min-p", type=SHARE, default=0.0)
@click.option("--seed", type=int, help="Same seed, same text.  [default: fresh noise]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated.")
@click.option(
    "--json-schema",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Answer in JSON that the schema in this file accepts.",
)
@click.option(
    "--drafter",
    type=click.Choice(["auto", "block", "mtp", "lookup", "none"]),
    default="auto",
    help="What guesses: the bundle's own model (block or mtp), lookup in texts, or auto: both. Never changes text.",
)
@shelf_flags
@click.option(
    "--router",
    default="staircut",
    metavar="NAME",
    help="Who decides how much of a draft is verified: staircut, by prices; for measurements length, budget or "
    "fixed:ROWS. Never changes the text.",
)
@click.option("--no-learn-cost", is_flag=True, help="Prices stay the bundle's, whatever passes take. For measurements.")
@click.option("--think-budget", type=click.IntRange(0), help="Most tokens of a block of thoughts.  [default: no bound]")
@click.option(
    "--think-closing",
    metavar="TEXT",
    callback=_sendable,
    help="What closes thoughts whose budget is spent, up to </think>.  [default: the model's kind has one]",
)
@click.option(
    "--conductor",
    type=click.Choice(["raw", "on"]),
    default="raw",
    help="on: thoughts that go in circles are closed too.",
)
@click.option(
    "--relax-tau",
    type=click.FloatRange(0),
    metavar="T",
    help="For measurements: greedy texts take drafted tokens with logits within T of the largest. CHANGES TEXTS.",
)
@click.option(
    "--relax-rank",
    type=click.IntRange(2),
    metavar="R",
    help="... and among the R largest. Either flag alone asks for nothing else. CHANGES TEXTS.",
)
@click.option("--threads", type=POSITIVE, help="On a CPU: threads of a pass.  [default: one a core]")
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of a GPU's memory that this server may take; CUDA_VISIBLE_DEVICES picks the GPU.  [default: 0.9]",
)
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 picks a free one.")
@click.option(
    "--served-model-name",
    metavar="NAME",
    callback=_sendable,
    help="The model's name to clients.  [default: the bundle's]",
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar=VARIABLES,
    callback=_sendable,
    help="Ask clients for this key; the variable TANDEM_API_KEY keeps it out of ps.",
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="... or for the one in a file."
)
@click.option("--max-num-seqs", type=POSITIVE, help="Requests answered at once.  [default: 4 on a CPU, 8 on a GPU]")
@click.option("--max-model-len", type=click.IntRange(2), help="Most tokens of prompt and answer.  [default: bundle's]")
@click.option("--max-queue", type=click.IntRange(0), default=64, help="Requests that may wait; more get a 429.")
@click.option(
    "--request-timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="An answer that takes longer ends there.  [default: none does]",
)
@click.option(
    "--tool-call-parser",
    type=click.Choice(["auto", "hermes", "qwen-xml", "llama"]),
    default="auto",
    help="How the model writes tool calls; auto: as its chat template does.",
)
@click.option(
    "--reasoning-parser",
    type=click.Choice(["auto", "think", "none"]),
    default="auto",
    help="Part <think> blocks from answers; auto: if the chat template knows them.",
)
@click.option("--trust-native", is_flag=True, help="Load the bundle's native code even if it was built elsewhere.")
@click.option(
    "--trust-key",
    "trust_keys",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="... or only if this public key signed the bundle; may be repeated. ~/.config/tandem/trusted-keys/*.pem too.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")
@click.version_option(__version__)
def run(bundle: Path, prompt: str | None, chat: bool, raw: bool, as_json: bool, verbose: bool, **flags: Any) -> None:
    """Serve BUNDLE as an OpenAI-compatible endpoint, or answer on this terminal."""
    if chat and prompt is not None:
        raise click.UsageError("--prompt and --chat exclude each other")
    if prompt is None and (raw or as_json):
        raise click.UsageError(f"{'--raw' if raw else '--json'} goes with --prompt")
    _refuse_strays(serving=not chat and prompt is None)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    _wake_gpu(bundle)
    if chat or prompt is not None:
        _on_terminal(bundle, prompt, raw, as_json, flags)
    else:
        _on_socket(bundle, flags)


def main() -> None:
    for name, value in LONE.items():
        os.environ.setdefault(name, value)
    gc.disable()  # until `_settle`: what loading makes is there to stay
    sys.exit(run_command(run, "tandem-run"))


def _refuse_strays(*, serving: bool) -> None:
    """UsageError for a flag on the command line that the other road takes: it would do nothing."""
    context = click.get_current_context()
    for name in TERMINAL_FLAGS if serving else SERVING_FLAGS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            road = "--prompt or --chat; a client asks for it in its request" if serving else "serving; leave it out"
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {road}")


def _wake_gpu(bundle: Path) -> None:
    """A bundle with cubins is for a GPU, which gets ready while Python imports the rest."""
    from tandem.artifacts.layout import KERNELS

    if any((bundle / KERNELS).glob("*.cubin")):
        from tandem.gpu import wake

        wake()


def _on_terminal(bundle: Path, prompt: str | None, raw: bool, as_json: bool, flags: dict[str, Any]) -> None:
    from tandem.runtime import terminal
    from tandem.runtime.loading import load

    wishes = _wishes(flags)
    service = load(bundle, _load_options(flags, max_num_seqs=1))
    _settle()
    try:
        if prompt is None:
            terminal.chat(service, wishes)
        else:
            terminal.answer_once(service, prompt, wishes, raw=raw, as_json=as_json)
    finally:
        service.worker.stop()


def _on_socket(bundle: Path, flags: dict[str, Any]) -> None:
    from tandem.runtime.loading import load
    from tandem.runtime.serve import bind, serve

    key = api_key(flags["api_key"], flags["api_key_file"])
    with bind(flags["host"], flags["port"]) as bound:
        service = load(bundle, _load_options(flags, max_num_seqs=flags["max_num_seqs"]))
        _settle()
        serve(service, bound, api_key=key)


def _settle() -> None:
    """From now on the garbage collector looks for what is new, and never again at what was loaded."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


PASSED_ON = """
    drafter router threads gpu_memory_utilization max_model_len max_queue request_timeout served_model_name trust_native
    trust_keys think_budget think_closing conductor tool_call_parser reasoning_parser
"""
"""Flags that are fields of LoadOptions as they are."""


def _load_options(flags: dict[str, Any], *, max_num_seqs: int) -> LoadOptions:
    from tandem.runtime.loading import LoadOptions

    named = {name: flags[name] for name in PASSED_ON.split()}
    return LoadOptions(
        max_num_seqs=max_num_seqs,
        relaxation=_relaxation(flags),
        learn_cost=not flags["no_learn_cost"],
        shelves=shelf_options(flags),
        **named,
    )


def _relaxation(flags: dict[str, Any]) -> Relaxation | None:
    """None unless a flag asks for it."""
    from tandem.runtime.relaxed import Relaxation

    tau, rank = flags["relax_tau"], flags["relax_rank"]
    if tau is None and rank is None:
        return None
    if flags["drafter"] == "none":
        raise click.UsageError("--relax-tau and --relax-rank are about drafted tokens and --drafter none drafts none")
    if tau is not None and not math.isfinite(tau):
        raise click.UsageError(f"--relax-tau is {tau}; it must be finite")
    return Relaxation(tau, rank)


def _wishes(flags: dict[str, Any]) -> Wishes:
    from tandem.runtime.request import Sampling
    from tandem.runtime.terminal import Wishes

    if "" in flags["stop"]:
        raise UsageError("--stop needs a text")
    sampling = Sampling(**{name: flags[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed")})
    return Wishes(flags["max_tokens"], sampling, flags["stop"], _read_schema(flags["json_schema"]))


def _read_schema(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--json-schema {path}: {error}") from error
