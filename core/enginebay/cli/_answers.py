"""How answers are printed: as text with tables of log-probabilities, or as one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from enginebay.cli._style import columns, printable
from enginebay.messages import FinishReason

if TYPE_CHECKING:
    from enginebay.engine import Choice, Completion
    from enginebay.messages import TokenLogprob

Decode = Callable[[Sequence[int]], str]
"""The text of tokens."""

_LEAST = -9999.0
"""What stands in JSON, which has no infinity, for a token that cannot come."""


def print_text(answer: Completion) -> None:
    """The texts of all choices; of several, each under its number."""
    for choice in answer.choices:
        number = f"[{choice.index}] " if len(answer.choices) > 1 else ""
        click.echo(f"{number}{printable(choice.text)}")


def print_logprobs(answer: Completion, decode: Decode) -> None:
    """A table per choice that has them, and one of the prompt's."""
    if answer.prompt_logprobs is not None:
        _print_table("the prompt, from its second token on", answer.prompt_logprobs, decode)
    for choice in answer.choices:
        if choice.logprobs is not None:
            number = f" {choice.index}" if len(answer.choices) > 1 else ""
            _print_table(f"the answer{number}", choice.logprobs, decode)


def print_json(prompt: str, answer: Completion, decode: Decode) -> None:
    """One line of ASCII: nothing in it can move a terminal's cursor."""
    first, *others = answer.choices
    line: dict[str, Any] = {"prompt": prompt, **_choice(first, decode), "usage": answer.usage}
    if answer.prompt_logprobs is not None:
        line["prompt_logprobs"] = [entry and _entry(entry, decode) for entry in answer.prompt_logprobs]
    if others:
        line["choices"] = [{"index": choice.index, **_choice(choice, decode)} for choice in answer.choices]
    if answer.error is not None:  # of whichever choice
        line["error"] = answer.error
    click.echo(json.dumps(msgspec.to_builtins(line), allow_nan=False))


def complain(answer: Completion, *, shaped: bool, timeout: float | None = None) -> None:
    """Say on stderr what failed, if anything did: the request, or which of its choices.

    ``timeout``: its seconds, which are what a deadline came of.

    ``shaped``: the answer was to have a shape, so it is also said when it was cut: half a JSON value is none.
    """
    for choice in answer.choices:
        number = f"choice {choice.index}" if len(answer.choices) > 1 else ""
        if choice.error is not None:
            why = f" (--timeout {timeout:g} s)" if timeout is not None and choice.error == "deadline" else ""
            click.echo(f"enginebay: {number or 'the request'} failed: {printable(choice.error)}{why}", err=True)
        elif shaped and choice.finish_reason is FinishReason.LENGTH:
            click.echo(
                f"enginebay: {number or 'the answer'} was cut after {len(choice.token_ids)} tokens, by --max-tokens or "
                "the model's length, and its shape may not be complete",
                err=True,
            )


def _choice(choice: Choice, decode: Decode) -> dict[str, Any]:
    told: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
    }
    if choice.error is not None:
        told["error"] = choice.error
    if choice.logprobs is not None:
        told["logprobs"] = [_entry(entry, decode) for entry in choice.logprobs]
    return told


def _entry(entry: TokenLogprob, decode: Decode) -> dict[str, Any]:
    top = [_token(token_id, logprob, decode) for token_id, logprob in entry.top]
    return {**_token(entry.token_id, entry.logprob, decode), "rank": entry.rank, "top": top}


def _token(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    return {"token_id": token_id, "token": decode([token_id]), "logprob": max(logprob, _LEAST)}


def _print_table(title: str, entries: Sequence[TokenLogprob | None], decode: Decode) -> None:
    rows = [("token", "logprob", "rank", "likeliest")]
    rows += [
        (
            _quoted(entry.token_id, decode),
            f"{entry.logprob:.3f}",
            str(entry.rank),
            "  ".join(f"{_quoted(token_id, decode)} {logprob:.3f}" for token_id, logprob in entry.top),
        )
        for entry in entries
        if entry is not None
    ]
    click.echo(f"\n{title}:")
    for line in columns(rows):
        click.echo(line)


def _quoted(token_id: int, decode: Decode) -> str:
    """The token as one word of a table: quoted, with line ends and the like escaped."""
    return printable(json.dumps(decode([token_id]), ensure_ascii=False)).replace("\t", "\\t")
