"""examples/copy-on-write, with few records: it measures what docs/concepts/memory.md says, and nothing stays.

Its service is gunicorn if that is installed (`make .venv/.bench`), else a stand-in that also forks workers.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.process_table import descendants, is_running
from support.waiting import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "copy-on-write"
PAGE = ROOT / "docs" / "concepts" / "memory.md"
STAND_INS = Path(__file__).parent / "support" / "stand_ins"
SVG = "{http://www.w3.org/2000/svg}"
RECORDS = 20_000
WORKERS = 4
COMMANDS = ("workers", "objects", "writes", "reload", "arenas", "pressure")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the commands keep their records for each other."""
    return tmp_path_factory.mktemp("records")


def environment(**changes: str) -> dict[str, str]:
    path = [] if importlib.util.find_spec("gunicorn") else [str(STAND_INS)]
    return {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path), **changes}


def run(*words: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [str(EXAMPLE / "run"), *map(str, words)]
    return subprocess.run(command, env=environment(**changes), capture_output=True, text=True, timeout=200, check=False)


def run_table(topic: str, folder: Path) -> dict[str, list[float]]:
    """Return the printed table: name of a row → its numbers, in MB if they have a unit."""
    done = run(topic, "--records", str(RECORDS), "--folder", folder)
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in done.stdout.splitlines() if line.startswith("| ")]
    return {name: [float(cell.removesuffix(" MB").replace(",", "")) for cell in cells] for name, *cells in rows[2:]}


@pytest.fixture(scope="module")
def report(folder: Path) -> tuple[dict[str, Any], str, str]:
    """Run two ways; return the samples, the plot, and the output."""
    out = folder / "out"
    ways = "dict,lookupdb"
    done = run("--records", str(RECORDS), "--seconds", "2", "--ways", ways, "--folder", folder, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "samples.json").read_text()), (out / "memory.svg").read_text(), done.stdout


def growth(way: dict[str, Any]) -> float:
    """By how many bytes a worker's private memory grew, on average."""
    first, last = (sum(way["samples"][number]["private"]) for number in (0, -1))
    return float(last - first) / WORKERS


def test_every_sample_has_all_workers_and_lookups_only_grow(report: tuple[dict[str, Any], str, str]) -> None:
    ways = report[0]["ways"]
    assert list(ways) == ["dict", "lookupdb"]
    for way in ways.values():
        assert len(way["samples"]) >= 3
        for sample in way["samples"]:
            assert len(sample["private"]) == len(sample["shared"]) == WORKERS
            assert min(sample["private"]) > 1_000_000
            assert sample["anonymous"] > 0
        lookups = [sample["lookups"] for sample in way["samples"]]
        assert lookups == sorted(lookups)
        assert lookups[0] == 0 < lookups[-1]


def test_a_dict_is_copied_by_reading_and_lookupdb_is_not(report: tuple[dict[str, Any], str, str]) -> None:
    ways = report[0]["ways"]
    lookups = ways["dict"]["samples"][-1]["lookups"]
    # Each record that was read has some 1,000 bytes in pages that it shares with three or so others.
    copied = 1_000 * RECORDS * (1 - math.exp(-3 * lookups / WORKERS / RECORDS))
    assert growth(ways["dict"]) > copied / 2
    # The memory that every worker needs to answer, and files that only one worker has mapped yet.
    assert growth(ways["lookupdb"]) < 4_000_000
    last = ways["lookupdb"]["samples"][-1]
    assert last["file"] > 1_000_000, "its files are mapped"


def test_the_plot_is_well_formed_and_names_what_it_shows(report: tuple[dict[str, Any], str, str]) -> None:
    found = ElementTree.fromstring(report[1])
    lines = found.findall(f"{SVG}polyline")
    texts = [text.text or "" for text in found.iter(f"{SVG}text")]
    titles = [way["title"] for way in report[0]["ways"].values()]
    assert [line.findtext(f"{SVG}title") for line in lines] == titles
    assert set(titles) < set(texts)
    assert [text for text in texts if text.endswith(", MB")] == [
        "Private memory of the 4 workers together, MB",
        "All processes at the end, MB",
    ]
    assert "seconds of requests" in texts
    places = [tuple(map(float, point.split(","))) for line in lines for point in line.attrib["points"].split()]
    assert all(0 <= x <= 1040 and 0 <= y <= 470 for x, y in places)


def test_the_table_has_a_row_for_each_way(report: tuple[dict[str, Any], str, str]) -> None:
    rows = report[2].splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [way["title"] for way in report[0]["ways"].values()]
    assert all(re.search(r"\| [\d.,]+ MB \|", row) for row in rows)


def test_all_ways_hold_the_same_records(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import materials, ways
folder = Path(sys.argv[1])
materials.make(folder, 300, ways.WAYS)
held = [way.hold(folder) for way in ways.WAYS.values()]
for records in held:
    assert len(records) == 300 and records.get("nobody") is None
    assert {key: records[key] for key in held[0]} == held[0]
print(len(held))
"""
    words = [sys.executable, "-c", code, str(tmp_path)]
    path = os.pathsep.join(map(str, (EXAMPLE, ROOT)))
    done = subprocess.run(
        words, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "6\n", done.stderr


def test_objects_take_more_than_the_bytes_that_they_hold(folder: Path) -> None:
    sizes = {name: numbers[0] for name, numbers in run_table("objects", folder).items()}
    assert sizes["resident memory that the dict takes"] > 2 * sizes["the source, JSON lines"]
    assert sizes["lookupdb's files"] < sizes["the source, JSON lines"]


def test_reading_copies_and_looking_for_garbage_does_unless_objects_are_frozen(folder: Path) -> None:
    copied = {name: after - before for name, (before, after) in run_table("writes", folder).items()}
    assert copied["looks through all"] > 10 * copied["json.dumps(products) of all"] > 0
    assert copied["looks through one list of each 100"] < copied["looks through one of each 10"]
    assert copied["looks through one of each 10"] < copied["looks through all"]
    assert copied["gc.collect()"] > 1
    assert copied["gc.collect(), after gc.freeze()"] < 0.5
    assert copied["looks through all, after gc.freeze()"] > 10


def test_a_dict_needs_both_copies_while_it_is_reloaded(folder: Path) -> None:
    rows = run_table("reload", folder)
    before, most, *_ = rows["dict, parsed again"]
    assert most - before > 15
    before, most, *_ = rows["lookupdb.open()"]
    assert most - before < 8


def test_arenas_stay_when_nine_of_ten_records_are_gone(folder: Path) -> None:
    rows = run_table("arenas", folder)
    loaded, deleted, trimmed, *_ = rows["its arenas of 1 MiB"]
    assert loaded > 15
    assert deleted == trimmed == loaded
    loaded, deleted, trimmed, *_ = rows["the C library's (malloc)"]
    assert deleted > 0.9 * loaded
    assert trimmed < deleted - 5


def test_the_kernel_takes_mapped_files_back_and_no_heap(folder: Path) -> None:
    rows = run_table("pressure", folder)
    if re.search(r"^SwapTotal: +0 kB$", Path("/proc/meminfo").read_text(), re.MULTILINE):
        assert rows["dict, loaded before the fork"][1] > RECORDS / 1_000, "1,000 bytes a record stay"
    read, reclaimed, again = rows["lookupdb.open(), before the fork"]
    assert reclaimed < read - 2
    assert again > reclaimed


def test_interrupted_it_ends_what_it_started_and_leaves_no_files(tmp_path: Path) -> None:
    words = ["--records", "2000", "--seconds", "60", "--ways", "dict", "--out", str(tmp_path / "out")]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [str(EXAMPLE / "run"), *words],
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # The master and its workers: nothing that makes the records has so many processes.
        until(lambda: len([*descendants(process.pid)]) == WORKERS + 1, "the service is there")
        started = [*descendants(process.pid)]
    finally:
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == ""
    assert said.splitlines()[-1] == "interrupted: everything that was started has ended"
    assert "Traceback" not in said
    until(lambda: not any(map(is_running, started)), "all processes have ended")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_help_teaches(folder: Path) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "run --records 100000 --seconds 5" in done.stdout
    assert "each, dict, frozen, pickle, shelve, lookupdb" in done.stdout
    assert all(f"run {command}" in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ways", "dict,redis"], "there is no redis; choose from each, dict, frozen"),
        (["--records", "0"], "expected 1 or more, found 0"),
        (["--records", "900000000000"], "of memory, .* are available: ask for fewer --records"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*words, "--folder", tmp_path)
    assert done.returncode != 0
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


def test_without_lookupdb_it_says_what_to_run() -> None:
    done = run("--help", PYTHON="false")
    assert done.returncode == 2
    assert "make .venv/.bench native" in done.stderr


def test_the_page_tells_how_to_measure_all_that_it_says() -> None:
    text = PAGE.read_text()
    assert [command for command in COMMANDS[1:] if f"examples/copy-on-write/run {command}`" not in text] == []
    assert "`examples/copy-on-write/run`" in text
    plots = re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", text)
    assert plots
    for plot in plots:
        assert ElementTree.parse(PAGE.parent / plot).getroot().tag == f"{SVG}svg"
