"""The sampling options that ``generate`` and ``chat`` share, and the engine that both start."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from enginebay.cli._trace_file import with_trace
from enginebay.messages import SamplingParams

if TYPE_CHECKING:
    from enginebay.engine import LLM

_MOST = 2**31 - 1

F = TypeVar("F", bound=Callable[..., Any])


def sampling_options(function: F) -> F:
    """Add the options of ``sampling_params``."""
    options = [
        click.option(
            "--max-tokens",
            type=click.IntRange(1, _MOST),
            default=256,
            show_default=True,
            help="Most tokens of an answer.",
        ),
        click.option(
            "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy."
        ),
        click.option(
            "--top-k", type=click.IntRange(0, _MOST), default=0, help="Draw from the K likeliest tokens; 0: all."
        ),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            help="Draw from the likeliest of this mass; 1: all.",
        ),
        click.option("--seed", type=int, help="Make the draws repeatable."),
        click.option("--stop", multiple=True, help="End the answer before this text. Repeatable."),
        click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end, up to --max-tokens."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def sampling_params(
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: Sequence[str],
    ignore_eos: bool,
) -> SamplingParams:
    """The parameters that the options say; the engine checks them."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop),
        ignore_eos=ignore_eos,
    )


@contextlib.contextmanager
def engine(config: Path | None, sets: Sequence[str], trace: Path | None = None) -> Iterator[LLM]:
    """A running engine, closed at the end; while it loads, a terminal shows so on stderr."""
    from enginebay.engine import LLM

    if trace is not None:
        sets = with_trace(trace, config, sets)
    with contextlib.ExitStack() as stack:
        if sys.stderr.isatty():
            from rich.console import Console

            with Console(stderr=True).status("loading the model"):
                llm = stack.enter_context(LLM(config, sets=sets))
        else:
            llm = stack.enter_context(LLM(config, sets=sets))
        yield llm
