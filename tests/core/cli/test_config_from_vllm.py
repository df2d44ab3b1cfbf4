"""``enginebay config from-vllm``: the file on stdout, remarks on stderr, and a check that it can be started from."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from enginebay.cli import group, main
from enginebay.interfaces import Kind
from enginebay.plugins import PluginHost
from support.fake_engines import Installed


@pytest.mark.parametrize("dashes", [["--"], []], ids=["with --", "without"])
def test_a_command_line_becomes_a_file(dashes: list[str]) -> None:
    line = "vllm serve m --max-model-len 4k -tp 1 -O3 --distributed-executor-backend pigeon"
    installed = ", ".join(sorted(one.name for one in PluginHost().installed(Kind.EXECUTOR)))
    result = CliRunner().invoke(group, ["config", "from-vllm", *dashes, *line.split()])
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "# What a vLLM command line comes to. Look at it with:  enginebay check --config engine.toml\n"
        "\n"
        "[model]\n"
        'path = "m"            # MODEL\n'
        "max_model_len = 4000  # --max-model-len\n"
        "\n"
        "[parallel]\n"
        "tensor_parallel_size = 1  # -tp\n"
        "\n"
        "[executor]\n"
        f'use = "pigeon"  # --distributed-executor-backend; not installed; installed: {installed}\n'
        "\n"
        "# Left out:\n"
        "# -O3: how a runner computes is its own options, under [runner.options]: enginebay describe runner NAME\n"
    )
    assert result.stderr == (
        "warning: executor 'pigeon' is not installed: what is, says enginebay plugins\n"
        "left out, for the reasons at the end of the file: -O3\n"
    )


def test_an_unknown_flag_ends_with_2_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "from-vllm", "--", "m", "--max-num-sequences", "4"])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        (
            "enginebay: --max-num-sequences: no flag of `vllm serve` that enginebay knows. "
            "Did you mean '--max-num-seqs'?\n"
        ),
    )


def test_nothing_to_translate_is_a_usage_error() -> None:
    result = CliRunner().invoke(group, ["config", "from-vllm"])
    assert result.exit_code == 2
    assert "Missing argument '-- FLAGS'" in result.stderr


def test_what_was_printed_is_what_check_reads(fake: Installed, tmp_path: Path) -> None:
    line = f"vllm serve {fake.model} --max-num-seqs 3 --block-size 32 --gpu-memory-utilization 0.5 --port 1"
    printed = CliRunner().invoke(group, ["config", "from-vllm", "--", *line.split()])
    file = tmp_path / "engine.toml"
    file.write_text(printed.stdout)
    checked = CliRunner().invoke(group, ["check", "--config", str(file)])
    assert checked.exit_code == 0, checked.output
    rows = [line.split(maxsplit=2) for line in checked.stdout.splitlines()]
    assert ["max_num_seqs", "3", str(file)] in rows
    assert ["block_size", "32", str(file)] in rows
