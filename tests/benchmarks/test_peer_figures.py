"""What the benchmarks say of their numbers: medians, ratios, who is the best, which bounds hold; tables and plots."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET

import pytest

from benchmarks.peer_figures import FIGURES, Figure, agreement, lines
from benchmarks.quiet import NotQuiet, wait_for_quiet
from benchmarks.size_plot import plot, table


def _figure(workload: str, key: str) -> Figure:
    [found] = [one for one in FIGURES if (one.workload, one.key) == (workload, key)]
    return found


def test_a_line_is_the_ratio_of_medians_with_the_bound_that_is_about_its_peer() -> None:
    [openvino, llamacpp] = lines(
        _figure("W1", "itl_ms"),
        [10.0, 90.0, 11.0],
        {"openvino": [22.0, 20.0, 24.0], "llamacpp": [10.0, 9.0, 10.0]},
        {"openvino"},
    )
    assert openvino == {
        "figure": "W1 inter-token latency",
        "ours": 11.0,
        "peer": 22.0,
        "ratio": 0.5,
        "unit": "ms",
        "against": "openvino",
        "ours_spread": [10.0, 90.0],
        "peer_spread": [20.0, 24.0],
        "best": True,
        "must": "<= openvino x 1",
        "must_holds": True,
    }
    assert (llamacpp["aim"], llamacpp["aim_holds"], llamacpp["best"]) == ("<= llamacpp x 1", False, False)


def test_the_best_is_the_fastest_peer_that_gives_the_right_answers() -> None:
    figure, peers = _figure("W2", "out_tok_s"), {"openvino": [500.0], "vllm": [400.0], "wrong": [900.0]}
    told = {line["against"]: line for line in lines(figure, [510.0], peers, {"openvino", "vllm"})}
    assert [name for name, line in told.items() if line["best"]] == ["openvino"]
    assert (told["openvino"]["must_holds"], told["openvino"]["aim_holds"]) == (True, False)
    assert "aim" not in told["wrong"]


def test_a_bound_whose_peer_was_not_measured_is_told_and_left_open() -> None:
    [alone] = lines(_figure("W4", "total_s"), [4.0], {}, set())
    assert alone["peer"] is None
    assert (alone["must"], alone["must_holds"]) == ("<= vllm x 1", None)
    assert (alone["aim"], alone["aim_holds"]) == ("<= best x 0.75", None)


@pytest.mark.parametrize(("megabytes", "holds"), [(999.0, True), (1001.0, False)])
def test_a_bound_without_a_peer_is_in_the_figures_own_unit(megabytes: float, holds: bool) -> None:
    *_, alone = lines(_figure("W5", "peak_rss_mb"), [megabytes], {"vllm": [5000.0]}, {"vllm"})
    assert (alone["must"], alone["must_holds"]) == ("<= 1000 MB", holds)


def test_agreement_ends_at_the_first_other_id() -> None:
    assert agreement([1, 2, 3], [1, 2, 4]) == 2
    assert agreement([1, 2], [1, 2, 4]) == 2
    assert agreement([], [1]) == 0


def test_a_busy_machine_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 2.0, 2.0))
    with pytest.raises(NotQuiet, match=r"load 2\.00 after 0 s, and a measurement needs less than 0\.3"):
        wait_for_quiet(0.3, 0.0)


SPEEDS = {(1, 128): 50.0, (2, 128): 98.0, (4, 128): 1180.0, (1, 4096): 30.0, (2, 4096): 55.5}


def test_the_table_has_a_dash_for_what_was_not_measured() -> None:
    assert table(SPEEDS) == (
        "| batch | 128 | 4096 |\n| ---: | ---: | ---: |\n| 1 | 50 | 30 |\n| 2 | 98 | 56 |\n| 4 | 1,180 | - |\n"
    )


def test_the_plot_has_every_speed_inside_its_frame() -> None:
    root = ET.fromstring(plot(SPEEDS, "speed <of> it"))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    circles = [(float(one.get("cx", "-1")), float(one.get("cy", "-1"))) for one in root.iter() if "circle" in one.tag]
    assert len(circles) == len(SPEEDS)
    assert all(0 < x < width and 0 < y < height for x, y in circles)
    assert "speed <of> it" in {one.text for one in root.iter()}


def test_one_speed_is_a_plot_as_well() -> None:
    assert "<circle" in plot({(8, 512): 0.4}, "slow")
