"""``enginebay generate``: answer a prompt as it comes, or a file of prompts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from enginebay.cli._answers import complain, print_json, print_logprobs, print_text
from enginebay.cli._connect import ANY, connect_options
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli._lines import shown
from enginebay.cli._options import config_options
from enginebay.cli._prompts import Asked, one_prompt, read_prompts
from enginebay.cli._sampling import answer_options, engine, request_options, sampling_options, sampling_params
from enginebay.cli._structured import structured_options, structured_output
from enginebay.cli._style import printable

if TYPE_CHECKING:
    from enginebay.engine import LLM, Completion
    from enginebay.engine.admission.options import BatchOptions, RequestOptions
    from enginebay.messages import SamplingParams


@click.command("generate", cls=GroupedCommand)
@click.argument("prompt", required=False)
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    help="A file of prompts, one a line; or, when its first line begins with {, of JSON lines.",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per answer.")
@sampling_options
@answer_options
@structured_options
@request_options
@connect_options
@click.option("--raw/--chat", "raw", default=None, help="Plain completion; default: the model's chat template, if any.")
@click.option("--system", help="The system message of a conversation.")
@click.option(
    "--stats",
    is_flag=True,
    help="Print tokens per second and time to first token to stderr, from when the engine has the request on.",
)
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
    priority: int,
    tenant: str,
    timeout: float | None,
    connect: str | None,
    keys: Path | None,
    tokenizer: Path | None,
    json_schema: str | None,
    regex: str | None,
    grammar: Path | None,
    choice: tuple[str, ...],
    **sampling: Any,
) -> None:
    """Answer PROMPT ("-": read it from standard input), or each prompt of --file.

    Exit codes: 0, 1 when a request is refused or failed, 2 when config or model are, 3 when the start failed, 4 when a
    worker was lost, 5 when one hangs, 70 on an internal error or when no engine answers, 130 and 143 on a signal.

    A JSON line has "prompt" or "messages", and may have, for itself alone, "priority", "tenant", "timeout" and the
    sampling options by their names with underscores ("max_tokens"), except for the shape of the answer. A file has
    lines of one kind.

    \b
    Examples:
      enginebay generate "What is the capital of France?"
      enginebay generate --file prompts.txt --json > answers.jsonl
      enginebay generate "Name a colour." --n 3 --temperature 1 --seed 7 --logprobs 2
      enginebay generate "Is the sky blue?" --choice yes --choice no
    """
    if connect and "://" not in connect and prompt is None:  # the prompt, right behind --connect
        prompt, connect = connect, ANY
    if file is not None and prompt is not None:
        raise click.UsageError("give a prompt or --file, not both")
    asked = [one_prompt(prompt)] if file is None else read_prompts(file)
    params = sampling_params(structured=structured_output(json_schema, regex, grammar, choice), **sampling)
    each = [msgspec.structs.replace(params, **one.params) for one in asked]
    if any(one.n > 1 and one.temperature == 0 for one in each):
        raise click.UsageError("with --temperature 0 all choices are equal: set it above 0, or --n to 1")
    options: RequestOptions = {"priority": priority, "tenant": tenant, "timeout": timeout}
    with engine(config, sets, trace, connect=connect, keys=keys, tokenizer=tokenizer) as llm:
        plain = _is_plain(llm, raw, system, asked)
        if file is None:
            ok = _one(llm, asked[0], params, options, plain, system, as_json, stats)
        else:
            bar = sys.stderr.isatty() if progress is None else progress
            ok = _many(llm, asked, each, options, plain, system, as_json, stats, bar)
    ctx.exit(0 if ok else 1)


def _is_plain(llm: LLM, raw: bool | None, system: str | None, asked: Sequence[Asked]) -> bool:
    """Whether prompts go to the model as they are. A conversation, or ``--chat``, insists on the template."""
    conversations = any(one.messages is not None for one in asked)
    if raw and (system is not None or conversations):
        raise click.UsageError("--raw takes plain prompts: no --system, and no messages")
    if raw is None and not (system is not None or conversations):
        return not llm.has_chat_template
    return bool(raw)


@contextmanager
def _line_ended(begun: Callable[[], bool]) -> Iterator[None]:
    """What is said of an error stands on a line of its own, not behind the text so far."""
    try:
        yield
    except BaseException:
        if begun():
            click.echo()
        raise


def _one(
    llm: LLM,
    asked: Asked,
    params: SamplingParams,
    options: RequestOptions,
    plain: bool,
    system: str | None,
    as_json: bool,
    stats: bool,
) -> bool:
    """One prompt; a single answer is shown as it comes."""
    first: float | None = None
    conversation = asked.conversation(system)
    live = params.n == 1 and not as_json
    if plain:
        stream = llm.stream(asked.text or "", params, **options)
    else:
        stream = llm.chat_stream(conversation, params, **options)
    begun = time.monotonic()  # the engine has it: making the prompt of it, by the template's process, is not counted
    with stream, shown() as answered, _line_ended(lambda: live and first is not None):
        for output in stream:
            first = time.monotonic() if first is None and output.token_ids else first
            if live:
                answered.text(output.text)
        answer = stream.completion()
    if as_json:
        print_json(conversation[-1]["content"], answer, llm.decode)
    else:
        if live:
            click.echo()
        else:
            print_text(answer)
        print_logprobs(answer, llm.decode)
        complain(answer, shaped=params.structured is not None, timeout=options.get("timeout"))
    if stats:
        _print_stats([answer], time.monotonic() - begun, None if first is None else first - begun)
    return answer.error is None


def _many(
    llm: LLM,
    asked: Sequence[Asked],
    params: Sequence[SamplingParams],
    options: RequestOptions,
    plain: bool,
    system: str | None,
    as_json: bool,
    stats: bool,
    progress: bool,
) -> bool:
    begun = time.monotonic()
    each = cast(
        "BatchOptions", {name: [one.options.get(name, value) for one in asked] for name, value in options.items()}
    )
    if plain:
        texts = [one.text or "" for one in asked]
        answers = llm.generate(texts, params, progress=progress, errors="return", **each)
    else:
        conversations = [one.conversation(system) for one in asked]
        answers = llm.chat(conversations, params, progress=progress, errors="return", **each)
    for one, its, answer in zip(asked, params, answers, strict=True):
        prompt = one.conversation(None)[-1]["content"]
        if as_json:
            print_json(prompt, answer, llm.decode)
        else:
            click.echo(f"> {printable(prompt)}")
            print_text(answer)
            print_logprobs(answer, llm.decode)
            click.echo()
            complain(
                answer, shaped=its.structured is not None, timeout=one.options.get("timeout", options.get("timeout"))
            )
    if stats:
        _print_stats(answers, time.monotonic() - begun, None)
    return all(answer.error is None for answer in answers)


def _print_stats(answers: Sequence[Completion], seconds: float, first: float | None) -> None:
    tokens = sum(len(choice.token_ids) for answer in answers for choice in answer.choices)
    parts = [f"{len(answers)} answers"] if len(answers) != 1 else []
    parts += [f"{tokens} tokens in {seconds:.2f} s", f"{tokens / seconds:.1f} tokens/s"]
    parts += [] if first is None else [f"{first * 1000:.0f} ms to the first token"]
    click.echo(", ".join(parts), err=True)
