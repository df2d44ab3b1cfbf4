"""``enginebay generate``: answer a prompt as it comes, or a file of prompts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from enginebay.cli._options import config_options
from enginebay.cli._prompts import Asked, one_prompt, read_prompts
from enginebay.cli._sampling import engine, sampling_options, sampling_params
from enginebay.cli._style import printable

if TYPE_CHECKING:
    from enginebay.engine import LLM, Completion
    from enginebay.messages import SamplingParams


@click.command("generate")
@click.argument("prompt", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path), help="A file of prompts, one a line, or JSON lines.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per answer.")
@sampling_options
@click.option("--raw/--chat", "raw", default=None, help="Plain completion; default: the model's chat template, if any.")
@click.option("--system", help="The system message of a conversation.")
@click.option("--stats", is_flag=True, help="Print tokens per second and time to first token to stderr.")
@click.option("--progress/--no-progress", default=None, help="A bar for --file; default: on a terminal.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the trace to FILE, anew.")
@config_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    prompt: str | None,
    file: Path | None,
    as_json: bool,
    raw: bool | None,
    system: str | None,
    stats: bool,
    progress: bool | None,
    trace: Path | None,
    config: Path | None,
    sets: tuple[str, ...],
    **sampling: Any,
) -> None:
    """Answer PROMPT ("-": read it from standard input), or each prompt of --file.

    \b
    enginebay generate "What is the capital of France?"
    enginebay generate --file prompts.txt --json > answers.jsonl
    """
    if file is not None and prompt is not None:
        raise click.UsageError("give a prompt or --file, not both")
    asked = [one_prompt(prompt)] if file is None else read_prompts(file)
    params = sampling_params(**sampling)
    with engine(config, sets, trace) as llm:
        plain = _is_plain(llm, raw, system, asked)
        if file is None:
            ok = _one(llm, asked[0], params, plain, system, as_json, stats)
        else:
            bar = sys.stderr.isatty() if progress is None else progress
            ok = _many(llm, asked, params, plain, system, as_json, stats, bar)
    ctx.exit(0 if ok else 1)


def _is_plain(llm: LLM, raw: bool | None, system: str | None, asked: Sequence[Asked]) -> bool:
    """Whether prompts go to the model as they are. A conversation, or ``--chat``, insists on the template."""
    conversations = any(one.messages is not None for one in asked)
    if raw and (system is not None or conversations):
        raise click.UsageError("--raw takes plain prompts: no --system, and no messages")
    if raw is None and not (system is not None or conversations):
        return not llm.has_chat_template
    return bool(raw)


def _one(
    llm: LLM, asked: Asked, params: SamplingParams, plain: bool, system: str | None, as_json: bool, stats: bool
) -> bool:
    begun = time.monotonic()
    first: float | None = None
    conversation = asked.conversation(system)
    stream = llm.stream(asked.text or "", params) if plain else llm.chat_stream(conversation, params)
    texts: list[str] = []
    token_ids: list[int] = []
    with stream:
        for output in stream:
            first = time.monotonic() if first is None and output.token_ids else first
            texts.append(output.text)
            token_ids += output.token_ids
            if not as_json:
                click.echo(printable(output.text), nl=False)
                sys.stdout.flush()
    if as_json:
        answer = {
            "prompt": conversation[-1]["content"],
            "text": "".join(texts),
            "token_ids": token_ids,
            "finish_reason": output.finish_reason,
            "usage": output.usage,
        }
        _print_json(answer, output.error)
    else:
        click.echo()
        _complain(output.error)
    if stats:
        _print_stats(1, len(token_ids), time.monotonic() - begun, None if first is None else first - begun)
    return output.error is None


def _many(
    llm: LLM,
    asked: Sequence[Asked],
    params: SamplingParams,
    plain: bool,
    system: str | None,
    as_json: bool,
    stats: bool,
    progress: bool,
) -> bool:
    begun = time.monotonic()
    answers: list[Completion]
    if plain:
        answers = llm.generate([one.text or "" for one in asked], params, progress=progress, errors="return")
    else:
        conversations = [one.conversation(system) for one in asked]
        answers = llm.chat(conversations, params, progress=progress, errors="return")
    for one, answer in zip(asked, answers, strict=True):
        prompt = one.conversation(None)[-1]["content"]
        if as_json:
            line = {
                "prompt": prompt,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "usage": answer.usage,
            }
            _print_json(line, answer.error)
        else:
            click.echo(f"> {printable(prompt)}\n{printable(answer.text)}\n")
            _complain(answer.error)
    if stats:
        tokens = sum(len(answer.token_ids) for answer in answers)
        _print_stats(len(answers), tokens, time.monotonic() - begun, None)
    return all(answer.error is None for answer in answers)


def _print_json(answer: dict[str, Any], error: str | None) -> None:
    """One line of ASCII: nothing in it can move a terminal's cursor."""
    if error is not None:
        answer["error"] = error
    click.echo(json.dumps(msgspec.to_builtins(answer)))


def _complain(error: str | None) -> None:
    if error is not None:
        click.echo(f"enginebay: the request failed: {printable(error)}", err=True)


def _print_stats(answers: int, tokens: int, seconds: float, first: float | None) -> None:
    parts = [f"{answers} answers"] if answers != 1 else []
    parts += [f"{tokens} tokens in {seconds:.2f} s", f"{tokens / seconds:.1f} tokens/s"]
    parts += [] if first is None else [f"{first * 1000:.0f} ms to the first token"]
    click.echo(", ".join(parts), err=True)
