"""The sampling options that ``generate`` and ``chat`` share, and the engine that both start."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from enginebay.cli._grouped import GroupedOption
from enginebay.cli._trace_file import with_trace
from enginebay.messages import SamplingParams

if TYPE_CHECKING:
    from enginebay.engine import LLM

_MOST = 2**31 - 1

F = TypeVar("F", bound=Callable[..., Any])

_TUPLES = ("stop", "bad_words")


class _Bias(click.ParamType[tuple[int, float]]):
    """``ID=VALUE``."""

    name = "ID=VALUE"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:  # the value is what the command line says
        token_id, _, bias = value.partition("=")
        try:
            return int(token_id), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id, '=' and a number, as in 198=-5", param, ctx)


class _Finite(click.FloatRange):
    """A number in a range; "nan", which every comparison with a bound lets pass, and "inf" are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class _Text(click.ParamType[str]):
    """Text that is not empty."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value or self.fail("it must not be empty", param, ctx)


def _biases(
    ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[int, float], ...]
) -> tuple[tuple[int, float], ...]:
    """Refuse a token that is given twice: one of them would be lost."""
    seen: set[int] = set()
    for token_id, _ in pairs:
        if token_id in seen:
            raise click.BadParameter(f"token {token_id} is given twice", ctx, param)
        seen.add(token_id)
    return pairs


def _options(heading: str, **options: Any) -> list[Callable[[F], F]]:
    """Options under one heading; the keywords are their names as ``SamplingParams`` has them."""
    made = []
    for name, settings in options.items():
        flag = settings.pop("flag", name.replace("_", "-"))
        made.append(click.option(f"--{flag}", name, cls=GroupedOption, heading=heading, **settings))
    return made


def _add(function: F, options: Sequence[Callable[[F], F]]) -> F:
    return functools.reduce(lambda whole, option: option(whole), reversed(options), function)


def options_under(function: F, heading: str, **options: Any) -> F:
    """Add options under one heading; the keywords are the names of the parameters."""
    return _add(function, _options(heading, **options))


def sampling_options(function: F) -> F:
    """Add the options of ``sampling_params`` that say how tokens are drawn and when an answer ends."""
    draws = _options(
        "How tokens are drawn",
        temperature={
            "type": _Finite(min=0),
            "default": 0.0,
            "show_default": True,
            "help": "0 takes the likeliest token; 1 draws as the model says; more draws more wildly.",
        },
        top_k={"type": click.IntRange(0, _MOST), "default": 0, "help": "Draw from the K likeliest tokens; 0: all."},
        top_p={
            "type": _Finite(0, 1, min_open=True),
            "default": 1.0,
            "help": "Draw from the likeliest of this mass; 1: all.",
        },
        min_p={
            "type": _Finite(0, 1),
            "default": 0.0,
            "help": "Draw from tokens that are at least so likely, as a share of the likeliest; 0: all.",
        },
        seed={"type": int, "help": "Make the draws repeatable."},
    )
    penalties = _options(
        "What is discouraged, or never comes",
        repetition_penalty={
            "type": _Finite(0, min_open=True),
            "default": 1.0,
            "help": "Above 1 discourages what the prompt or the answer has already; 1: none.",
        },
        presence_penalty={
            "type": _Finite(-2, 2),
            "default": 0.0,
            "help": "Taken off the score of each token that the answer has.",
        },
        frequency_penalty={
            "type": _Finite(-2, 2),
            "default": 0.0,
            "help": "The same for each time that it came.",
        },
        logit_bias={
            "type": _Bias(),
            "multiple": True,
            "callback": _biases,
            "help": "Add VALUE to the score of token ID. Repeatable.",
        },
        bad_words={
            "flag": "bad-word",
            "type": _Text(),
            "multiple": True,
            "help": "A word that never comes. Repeatable.",
        },
    )
    ends = _options(
        "Length and end",
        max_tokens={
            "type": click.IntRange(1, _MOST),
            "default": 256,
            "show_default": True,
            "help": "Most tokens of an answer.",
        },
        min_tokens={"type": click.IntRange(0, _MOST), "default": 0, "help": "Tokens before the answer may end."},
        stop={"type": _Text(), "multiple": True, "help": "End the answer before this text. Repeatable."},
        ignore_eos={"is_flag": True, "help": "Go on past the model's own end, up to --max-tokens."},
        truncate_prompt_tokens={
            "flag": "truncate-prompt",
            "type": click.IntRange(1, _MOST),
            "metavar": "N",
            "help": "Keep the last N tokens of a longer prompt, instead of refusing it.",
        },
    )
    return _add(function, [*draws, *penalties, *ends])


def answer_options(function: F) -> F:
    """Add the options of ``sampling_params`` that say how many answers come and what is told of them."""
    answers = _options(
        "What is answered",
        n={
            "type": click.IntRange(1, 16),
            "default": 1,
            "help": "So many answers to each prompt; they differ when --temperature is above 0.",
        },
        logprobs={
            "type": click.IntRange(0, 20),
            "metavar": "K",
            "help": "Tell how likely each token was, and the K likeliest in its place: a table, or in --json.",
        },
        prompt_logprobs={"type": click.IntRange(0, 20), "metavar": "K", "help": "The same for the prompt's tokens."},
    )
    return _add(function, answers)


def request_options(function: F) -> F:
    """Add ``--priority``, ``--tenant`` and ``--timeout``."""
    options = _options(
        "How it is scheduled",
        priority={"type": int, "default": 0, "help": "Smaller goes first, where the scheduler looks at it."},
        tenant={"default": "", "help": "Whom it is for, where the scheduler shares fairly."},
        timeout={
            "type": _Finite(0, min_open=True),
            "metavar": "SECONDS",
            "help": "End a request that takes longer, with an error.",
        },
    )
    return _add(function, options)


def sampling_params(**options: Any) -> SamplingParams:
    """The parameters that the options say; the engine checks them."""
    fields: dict[str, Any] = {name: tuple(value) if name in _TUPLES else value for name, value in options.items()}
    return SamplingParams(**{**fields, "logit_bias": dict(fields["logit_bias"])})


@contextlib.contextmanager
def engine(
    config: Path | None,
    sets: Sequence[str],
    trace: Path | None = None,
    *,
    connect: str | None = None,
    keys: Path | None = None,
    tokenizer: Path | None = None,
) -> Iterator[LLM]:
    """A running engine, closed at the end; while it loads, a terminal shows so on stderr.

    ``connect``: the address of one that runs elsewhere, and goes on to; "" for the only one of this user.
    """
    from enginebay.engine import LLM

    if connect is not None:
        if config is not None or sets or trace is not None:
            raise click.UsageError(
                "with --connect the engine has its own config: leave out --config, --set and --trace"
            )
        with LLM.connect(connect or None, keys=keys, tokenizer=tokenizer) as llm:
            yield llm
        return
    if keys is not None or tokenizer is not None:
        raise click.UsageError("--keys and --tokenizer go with --connect")
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
