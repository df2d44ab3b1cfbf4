"""What is read from the peers' workloads, what it must and may reach, and the JSON line of each figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

BEST = "best"
"""Stands for the fastest peer of the same run that gives the reference's answers."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """``peer``'s median times ``factor``; without a peer, ``factor`` in the figure's own unit."""

    level: Literal["must", "aim"]
    factor: float
    peer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a workload: ``key`` in the line that a run prints."""

    workload: str
    key: str
    name: str
    unit: str
    more_is_better: bool = False
    bounds: tuple[Bound, ...] = ()

    def text(self, bound: Bound) -> str:
        """The bound in words."""
        sign = ">=" if self.more_is_better else "<="
        return (
            f"{sign} {bound.factor:g} {self.unit}" if bound.peer is None else f"{sign} {bound.peer} x {bound.factor:g}"
        )

    def holds(self, bound: Bound, ours: float, peer: float | None) -> bool | None:
        """Whether it is kept; None when its peer was not measured."""
        if bound.peer is not None and peer is None:
            return None
        limit = bound.factor * (1.0 if peer is None else peer)
        return ours >= limit if self.more_is_better else ours <= limit


def _must(factor: float, peer: str | None = None) -> Bound:
    return Bound(level="must", factor=factor, peer=peer)


def _aim(factor: float, peer: str | None = None) -> Bound:
    return Bound(level="aim", factor=factor, peer=peer)


FIGURES = (
    Figure(workload="W1", key="ttft_s", name="time to first token", unit="s", bounds=(_must(1.2, BEST),)),
    Figure(
        workload="W1",
        key="itl_ms",
        name="inter-token latency",
        unit="ms",
        bounds=(_must(1.0, "openvino"), _aim(1.0, "llamacpp")),
    ),
    Figure(workload="W1", key="decode_tok_s", name="decode", unit="tokens/s", more_is_better=True),
    Figure(
        workload="W2",
        key="out_tok_s",
        name="output of 64 requests",
        unit="tokens/s",
        more_is_better=True,
        bounds=(_must(1.0, "openvino"), _aim(1.15, BEST)),
    ),
    Figure(
        workload="W3",
        key="prompt_tok_s",
        name="prompts of 512",
        unit="tokens/s",
        more_is_better=True,
        bounds=(_must(1.0, "openvino"), _aim(1.08, BEST)),
    ),
    Figure(
        workload="W4",
        key="total_s",
        name="64 requests with a shared prefix",
        unit="s",
        bounds=(_must(1.0, "vllm"), _aim(0.75, BEST)),
    ),
    Figure(
        workload="W5",
        key="first_token_s",
        name="new process to first token",
        unit="s",
        bounds=(_must(0.35, "vllm"), _aim(1.0, "transformers")),
    ),
    Figure(workload="W5", key="peak_rss_mb", name="peak resident memory", unit="MB", bounds=(_must(1000.0),)),
)


def agreement(ids: Sequence[int], reference: Sequence[int]) -> int:
    """How many first ids are equal."""
    for place, (one, other) in enumerate(zip(ids, reference, strict=False)):
        if one != other:
            return place
    return min(len(ids), len(reference))


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def best(figure: Figure, peers: Mapping[str, Sequence[float]], eligible: Collection[str]) -> str | None:
    """The name of the fastest peer among the eligible; None when none of them was measured."""
    medians = {name: median(values) for name, values in peers.items() if name in eligible}
    if not medians:
        return None
    return (max if figure.more_is_better else min)(medians, key=lambda name: medians[name])


def lines(
    figure: Figure, ours: Sequence[float], peers: Mapping[str, Sequence[float]], eligible: Collection[str]
) -> list[dict[str, object]]:
    """One line per peer, with the bounds that are about it; a last one for bounds that are about none of these.

    ``ours`` and the values of ``peers`` are one figure per run; ratios are of medians.
    """
    own, first = median(ours), best(figure, peers, eligible)
    left = list(figure.bounds)
    told: list[dict[str, object]] = []
    base: dict[str, object] = {"figure": f"{figure.workload} {figure.name}", "ours": rounded(own)}
    spread = {"ours_spread": [rounded(min(ours)), rounded(max(ours))]}
    for name, values in peers.items():
        other = median(values)
        line = {**base, "peer": rounded(other), "ratio": rounded(own / other), "unit": figure.unit, "against": name}
        line |= {**spread, "peer_spread": [rounded(min(values)), rounded(max(values))], "best": name == first}
        about = [bound for bound in left if bound.peer == name or (bound.peer == BEST and name == first)]
        left = [bound for bound in left if bound not in about]
        for bound in about:
            line |= {bound.level: figure.text(bound), f"{bound.level}_holds": figure.holds(bound, own, other)}
        told.append(line)
    if left or not told:
        line = {**base, "peer": None, "ratio": None, "unit": figure.unit, **spread}
        for bound in left:
            line |= {bound.level: figure.text(bound), f"{bound.level}_holds": figure.holds(bound, own, None)}
        told.append(line)
    return told
