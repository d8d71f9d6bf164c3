"""Plain decoding: each profile against peers at the same bits, and against the mere reading of its weights."""

from __future__ import annotations

from bandwidth import BandwidthError, Reader
from bundles import step_bytes
from figure import Figure, Line
from figures.context import Context
from sides.process import Side, disturbance
from sides.roster import LLAMA, ONNXRUNTIME, OPENVINO, TRANSFORMERS, Peer
from spread import Goal, Spread

PEERS = [TRANSFORMERS, *LLAMA, ONNXRUNTIME, *OPENVINO]
GOALS = {TRANSFORMERS: Goal(2.5, 3.0), ONNXRUNTIME: Goal(0.9, 1.1)} | dict.fromkeys(LLAMA, Goal(1.0, 1.2))
SHARES = {"bf16": Goal(65, 80), "int8": Goal(50, 65), "int4": Goal(35, 50)}


def measure(context: Context, profile: str) -> Figure:
    """Every side goes on with the same chat prompt, past the end of its answer, in turn with the bandwidth reader."""
    figure = Figure(f"decode-{profile}", f"plain decoding of {context.tokens} tokens, {profile} and peers at its bits")
    prompt, read = context.prompts.chats()[0], list[float]()
    with context.sides(profile, [peer for peer in PEERS if peer.bits == profile]) as (ours, theirs, absent):
        sides, figure.absent = [ours, *theirs.values()], absent
        try:
            with Reader(context.roster.threads) as reader:

                def play() -> None:
                    read.append(reader.gigabytes())
                    for side in sides:
                        side.run(prompt.ids, context.tokens)

                def forget() -> None:
                    read.clear()
                    for side in sides:
                        side.runs.clear()

                context.turns(figure.name, play, forget)
        except BandwidthError as error:
            figure.absent.append(str(error))
            return figure
        figure.lines = lines(ours, theirs, Spread.of(read), step_bytes(context.roster.bundles[profile]), profile)
        figure.disturbed = disturbance(sides)
    return figure


def lines(ours: Side, theirs: dict[Peer, Side], read: Spread, weight_bytes: int, profile: str) -> list[Line]:
    rate = rates(ours)
    found = [Line(ours.name, rate, "tok/s")]
    found += [Line(peer.name, rates(side), "tok/s") for peer, side in theirs.items()]
    found.append(Line("memory reads", read, "GB/s"))
    share = rate.times(weight_bytes / 1e9).over(read).times(100)
    note = f"{weight_bytes / 1e6:.1f} MB a step"
    found.append(Line("weight bytes over read bandwidth", share, "%", SHARES[profile], note))
    found += [Line(f"over {peer.name}", rate.over(rates(side)), "x", GOALS.get(peer)) for peer, side in theirs.items()]
    return found


def rates(side: Side) -> Spread:
    """Tokens a second of a side's runs."""
    return Spread.of(run.rate for run in side.runs)
