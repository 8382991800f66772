"""What is computed from slices, and how it is drawn."""

import json
from functools import partial
from pathlib import Path

import pytest

from apps.bench import load, report
from apps.bench.rows import Comparison, Report, Row, Slice


def test_rates_and_their_ratio_are_medians_of_the_rounds() -> None:
    ours = [Slice(units=units, seconds=1.0) for units in (10, 40, 30)]
    baseline = [Slice(units=units, seconds=1.0) for units in (100, 100, 50)]

    row = Row.of_rates(Comparison(ours=ours, baseline=baseline), case="a", unit="posts/s")

    assert (row.ours, row.baseline, row.ratio) == (30, 100, 0.4)


def test_a_latency_is_the_median_of_its_operations_in_milliseconds() -> None:
    ours = Slice(units=3, seconds=1.0, latencies=(0.001, 0.002, 0.100))

    row = Row.of_latencies(Comparison(ours=[ours]), case="a")

    assert (row.unit, row.ours, row.p50) == ("ms", 2.0, 2.0)
    assert row.p99 is not None
    assert row.p99 > 90


def test_cpu_is_told_of_one_unit() -> None:
    ours = [Slice(units=100, seconds=1.0, cpu=0.5), Slice(units=100, seconds=1.0, cpu=0.1)]

    assert Row.of_rates(Comparison(ours=ours), case="a", unit="posts/s").cpu_us == 3000


def test_each_object_carries_the_machine_that_it_is_true_of() -> None:
    told = Report(machine={"cores": 2}, rows=[Row(case="a", unit="ms", ours=1.0)])

    (one,) = json.loads(report.as_json(told))

    assert one["machine"] == {"cores": 2}


def test_each_unit_has_a_chart_of_ours_beside_the_baseline(tmp_path: Path) -> None:
    rows = [
        Row(suite="inbox", case="post <one>", unit="posts/s", ours=5.0, baseline=10.0),
        Row(suite="inbox", case="read", unit="ms", ours=1.0),
    ]

    drawn = report.plot(Report(machine={}, rows=rows), tmp_path)

    assert [path.name for path in drawn] == ["inbox-ms.svg", "inbox-posts-per-s.svg"]
    assert all("<svg" in path.read_text() for path in drawn)


@pytest.mark.parametrize("suite", ["nope", "__init__"])
def test_an_unknown_suite_is_refused_by_name(suite: str) -> None:
    from django.core.management import CommandError, call_command  # noqa: PLC0415

    with pytest.raises(CommandError, match=suite):
        call_command("bench", suite)


def test_ours_is_measured_once_a_round_beside_every_baseline() -> None:
    turns: list[str] = []

    def slice_of(name: str) -> Slice:
        turns.append(name)
        return Slice(units=len(turns), seconds=1.0)

    compared = load.beside_each(
        partial(slice_of, "ours"), [partial(slice_of, "one"), partial(slice_of, "other")], rounds=2
    )

    assert turns == ["ours", "one", "other"] * 2
    assert [[slice_.units for slice_ in one.baseline] for one in compared] == [[2, 5], [3, 6]]
    assert compared[0].ours == compared[1].ours
