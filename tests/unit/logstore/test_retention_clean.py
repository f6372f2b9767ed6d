"""Retention of a directory: `store clean` and `store forecast`, as an operator calls them."""

from __future__ import annotations

import json

import pytest

from stratamq.cli.main import main
from stratamq.config import RetentionConfig
from stratamq.errors import StoreLocked
from stratamq.files.durable import ConfigFile
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.logstore.retention_forecast import Rate, forecast, rate_of
from stratamq.logstore.retention_losses import delivery_offsets, read_offsets
from stratamq.logstore.retention_values import LogFile, Moment
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import bodies, message, open_store, put

HOUR = 3_600_000
NOW = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path):
    """A stopped store of forty messages in old files, of which one group has read five."""
    path = tmp_path / "s"
    clock = ManualClock()
    store = open_store(path, clock=clock)
    for number in range(40):
        put(store, message(b"x" * 900 + str(number).encode(), KEYS=f"k{number}"))
        clock.advance(1_000)
    store.close()
    table = {"T@slow": {0: 5}, "T@fast": {0: 40}, "no separator": {0: 1}}
    ConfigFile(str(path / "config" / "consumerOffset.json")).store({"offsetTable": table})
    return path


def log_names(directory) -> list[str]:
    return sorted(path.name for path in (directory / "commitlog").iterdir())


def run(capsys, *arguments) -> tuple[int, dict]:
    code = main(["store", *map(str, arguments), "--output", "json", "--quiet"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else {}


def test_a_dry_run_says_what_would_go_and_changes_nothing(directory, capsys):
    before = log_names(directory)
    code, told = run(capsys, "clean", directory, "--dry-run")
    assert code == 0
    assert log_names(directory) == before
    logs = [row for row in told["goes"] if "commitlog" in row["file"]]
    assert [row["file"].rpartition("/")[2] for row in logs] == before[:-1]
    assert all("h ago" in row["reason"] and row["when"] == "now" for row in logs)
    assert [row["when"] for row in told["goes"] if "consumequeue" in row["file"]][:1] == [
        "a minute after the next start"
    ]
    assert [row["cause"] for row in told["stays"]] == ["newest"]
    (lost,) = told["losses"]
    assert (lost["group"], lost["topic"]) == ("slow", "T")
    assert lost["oldest_ms"] == NOW + 5_000
    assert lost["bytes"] > lost["messages"] * 900
    assert told["disk"]["is_live"] is False


def test_as_text_it_is_plain_words(directory, capsys):
    assert main(["store", "clean", str(directory), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "commit-log files stay" in text
    assert "holds the newest messages; it is never deleted" in text
    assert "slow" in text


def test_clean_does_what_the_dry_run_said_and_the_store_opens(directory, capsys):
    _, told = run(capsys, "clean", directory, "--dry-run")
    code, done = run(capsys, "clean", directory, "--yes")
    assert code == 0
    deleted = [row for row in told["goes"] if row["when"] == "now"]
    assert done["deleted"]["files"] == len(deleted)
    assert len(log_names(directory)) == 1
    store = open_store(directory)
    low = store.min_offset("T", 0)
    assert low == 5 + told["losses"][0]["messages"]
    assert bodies(store) == [b"x" * 900 + str(number).encode() for number in range(low, 40)]
    assert len(store.query("T", "k39", 5, 0, 2**62).records) == 1
    store.close()
    _, again = run(capsys, "clean", directory, "--dry-run")
    assert not [row for row in again.get("goes", []) if row["when"] == "now"]


def test_nothing_goes_without_consent(directory, capsys, monkeypatch):
    before = log_names(directory)
    monkeypatch.setattr("click.confirm", _refuse)
    assert main(["store", "clean", str(directory)]) == 130
    assert log_names(directory) == before


def _refuse(*arguments, **options):
    import click

    raise click.Abort


def test_nothing_goes_while_a_broker_holds_the_lock(directory, capsys):
    store = open_store(directory)
    before = log_names(directory)
    assert main(["store", "clean", str(directory), "--yes", "--quiet"]) == StoreLocked.exit_code
    assert "in use" in capsys.readouterr().err
    assert log_names(directory) == before
    code, told = run(capsys, "clean", directory, "--dry-run")
    assert code == 0
    assert told["disk"]["is_live"] is True
    store.close()


def test_what_is_not_expired_stays_unless_the_disk_must_shrink(directory, capsys):
    before = log_names(directory)
    assert run(capsys, "clean", directory, "--yes", "--reserved-hours", "800000")[0] == 0
    assert log_names(directory) == before


def test_settings_of_broker_conf_are_used(directory, capsys, tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=800000\n")
    _, told = run(capsys, "clean", directory, "--dry-run", "--config", conf)
    assert "goes" not in told or not told["goes"]
    conf.write_text("deleteWhen=4 o'clock\n")
    assert main(["store", "clean", str(directory), "--config", str(conf)]) == 2
    assert "such as 04 or 04;16" in capsys.readouterr().err


# --- forecast --------------------------------------------------------------------------------------------------------


def test_a_forecast_of_a_real_store(directory, capsys):
    code, told = run(capsys, "forecast", directory)
    assert code == 0
    assert [row["percent"] for row in told["marks"]] == [75, 85, 90, 99]
    # Forty messages of about 1,000 bytes, a second apart, in files of 4,096 bytes.
    assert told["forecast"]["bytes_an_hour"] == pytest.approx(3_600 * 1_000, rel=0.4)


def growing(count: int) -> list[LogFile]:
    """A file of 100 bytes an hour, the newest one ending now."""
    return [
        LogFile(number * 100, 100, f"log/{number}", NOW - (count - 1 - number) * HOUR, allocated_bytes=100)
        for number in range(count)
    ]


def test_the_rate_is_that_of_the_newest_files():
    assert rate_of(growing(10), 1_000, NOW) == Rate(100, HOUR)
    assert rate_of(growing(1), 100, NOW) == Rate(0, 0)
    assert rate_of([], 0, 0) == Rate(0, 0)


def test_marks_are_reached_when_the_arithmetic_says_so():
    usage = DiskUsage("d", 10_000, 7_000, 3_000)
    made = forecast([], usage, Rate(100, HOUR), Moment(NOW, 0, 12), RetentionConfig(file_reserved_hours=1_000))
    at = {row.percent: row.at_ms for row in made.marks}
    assert at == {75: NOW + 6 * HOUR, 85: NOW + 16 * HOUR, 90: NOW + 21 * HOUR, 99: NOW + 30 * HOUR}


def test_retention_can_hold_the_disk_below_the_marks():
    usage = DiskUsage("d", 100_000, 20_000, 80_000)
    made = forecast([], usage, Rate(100, HOUR), Moment(NOW, 0, 12), RetentionConfig())
    assert [row.at_ms for row in made.marks] == [None] * 4
    # 72 hours of messages, and what comes in the day until the next hour of deletion.
    assert 27 <= made.highest_percent <= 30


def test_a_mark_that_is_passed_already_is_now():
    usage = DiskUsage("d", 100, 80, 20)
    made = forecast([], usage, Rate(0, 0), Moment(NOW, 0, 12), RetentionConfig())
    assert [row.is_now for row in made.marks] == [True, False, False, False]


def test_offsets_that_are_malformed_are_left_out():
    table = {"T@g": {"0": 3, "x": 1, "1": "2"}, "broken": {"0": 1}, "T@h": 7}
    assert read_offsets({"offsetTable": table}) == {("T", "g"): {0: 3}}
    assert read_offsets(None) == {}
    assert delivery_offsets(None) == {}


def test_delayed_messages_that_wait_for_delivery_are_a_loss_too():
    delays = delivery_offsets({"offsetTable": {"1": 12, "18": 5, "x": 1}})
    assert delays == {("SCHEDULE_TOPIC_XXXX", "(delayed delivery)"): {0: 12, 17: 5}}
