"""A result as a page and as a drawing: well-formed, with its series and numbers; and where it can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.command_line import run_here
from support.load_results import make_result
from support.ports import free_port

from lookupdb.load.plan import Tally
from lookupdb.load.report import render_report
from lookupdb.load.result import Recording, format_microseconds

SVG = "{http://www.w3.org/2000/svg}"
FORMS = pytest.mark.parametrize("is_page", [True, False], ids=["html", "svg"])


def _series(root: ElementTree.Element, chart: str) -> list[list[tuple[str, str]]]:
    """The points of each line of ``chart``, as pygal describes them."""
    (drawing,) = [element for element in root.iter(f"{SVG}svg") if element.get("id") == chart]
    (overlay,) = [element for element in drawing.iter(f"{SVG}g") if element.get("class") == "plot overlay"]
    series = []
    for group in overlay:
        described = [text.text or "" for text in group.iter(f"{SVG}desc") if text.get("class") == "value"]
        series.append([(x, y) for x, _, y in (text.partition(": ") for text in described)])
    return series


def _paths(root: ElementTree.Element, chart: str) -> list[list[float]]:
    """The numbers of each line of ``chart``."""
    (drawing,) = [element for element in root.iter(f"{SVG}svg") if element.get("id") == chart]
    lines = [path.attrib["d"] for path in drawing.iter(f"{SVG}path") if path.get("class") == "line reactive nofill"]
    return [[float(number) for number in line.replace("M", "").replace("L", "").split()] for line in lines]


@FORMS
def test_a_report_is_well_formed_and_has_its_plots(is_page: bool) -> None:
    document = make_result("p99>20ms")
    text = render_report(document, is_page=is_page)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("html" if is_page else "svg")
    assert "p75 –, p90 –" in "".join(root.itertext())
    written = "".join(root.itertext())
    for words in ("800", "unavailable: Deadline", "broken connection: reset", "g2", "p99>20ms", "99 %"):
        assert words in written
    assert "\x1b" not in text
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://a:80", ""), "nothing is fetched"
    assert "<script" not in text


@FORMS
def test_its_series_have_the_numbers_of_the_result(is_page: bool) -> None:
    document = make_result()
    points = document["points"]
    root = ElementTree.fromstring(render_report(document, is_page=is_page))
    (curve,) = _series(root, "percentiles")
    assert [y for _, y in curve] == [format_microseconds(value) for _, value in document["latency"]["curve"]]
    assert float(curve[-1][0].removesuffix(" %")) == pytest.approx(document["latency"]["curve"][-1][0], abs=1e-3)
    p50, p99, highest, cutover = _series(root, "latencies")
    seconds = [f"{point['begin'] + 0.5:g}" for point in points]
    assert p50 == list(zip(seconds, [format_microseconds(point["p50"]) for point in points], strict=True))
    assert highest == list(zip(seconds, [format_microseconds(point["max"]) for point in points], strict=True))
    assert (p99, cutover) == ([], []), "there is no p99 to draw, and a cutover has no value"
    assert _series(root, "rates") == [
        [(second, "112/s") for second in seconds],
        [(second, "80/s") for second in seconds],
        [(second, "32/s") for second in seconds[:-1]] + [(seconds[-1], "35/s")],
        [],
    ]


@FORMS
def test_lines_lie_within_their_charts_and_where_their_values_are(is_page: bool) -> None:
    root = ElementTree.fromstring(render_report(make_result(), is_page=is_page))
    percentiles, latencies, rates = (_paths(root, name) for name in ("percentiles", "latencies", "rates"))
    assert [len(lines) for lines in (percentiles, latencies, rates)] == [1, 3, 4], "no p99, but a cutover"
    for line in percentiles + latencies + rates:
        assert line[::2] == sorted(line[::2])
        assert all(0 <= x <= 860 for x in line[::2])
        assert all(0 <= y <= 320 for y in line[1::2])
    heights = percentiles[0][1::2]
    assert heights == sorted(heights, reverse=True), "latencies grow with percentiles"
    p50, highest, cutover = latencies
    assert all(low > high for low, high in zip(p50[1::2], highest[1::2], strict=True))
    assert p50[8] < cutover[0] == cutover[2] < p50[10], "g2 answers first at 5 s, between the fifth point and the sixth"


def test_a_line_ends_where_no_answer_was_and_goes_on_after_it() -> None:
    document = make_result()
    document["points"][4]["max"] = None
    root = ElementTree.fromstring(render_report(document, is_page=True))
    assert len(_series(root, "latencies")[2]) == 9
    (drawing,) = [element for element in root.iter(f"{SVG}svg") if element.get("id") == "latencies"]
    (line,) = [group for group in drawing.iter(f"{SVG}g") if group.get("class") == "series serie-2 color-2"][:1]
    assert len([*line.iter(f"{SVG}path")]) == 2


def test_rows_of_a_drawing_end_within_it() -> None:
    document = make_result("p99>20ms")
    document["requests"]["broken"] = {"an answer that is " + "larger " * 20: 1}
    root = ElementTree.fromstring(render_report(document, is_page=False))
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    rows = [text for text in root.findall(f"{SVG}text")[1:] if text.text]
    assert all(float(row.attrib["x"]) + 6.5 * len(row.text or "") <= width for row in rows)
    assert all(float(row.attrib["y"]) < height for row in rows)
    assert len({(row.attrib["x"], row.attrib["y"]) for row in rows}) == len(rows), "none is over another"
    texts = " ".join(row.text or "" for row in rows if float(row.attrib["x"]) > 100)
    assert "other failures as slower than any answer. – means that too few were answered" in texts
    assert f"broken connection: an answer that is {'larger ' * 20}" in texts


def test_a_report_of_nothing_is_a_report() -> None:
    document = make_result(recording=Recording(10, 2))
    for is_page in (True, False):
        written = "".join(ElementTree.fromstring(render_report(document, is_page=is_page)).itertext())
        assert "nothing was measured" in written
        assert "p50 –, p75 –" in written
        assert "0 µs" not in written
    recording = Recording(1, 1)
    recording.take(0, 0, Tally(scheduled=1, answered=1, latencies=[300], lags=[1]))
    recording.finish()
    root = ElementTree.fromstring(render_report(make_result(recording=recording), is_page=False))
    assert [len(line) for name in ("latencies", "rates") for line in _series(root, name)] == [1] * 6, "a dot is no line"


def test_without_its_library_a_report_is_refused_before_the_load_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "pygal.py").write_text("raise ModuleNotFoundError(name='pygal')")
    nowhere, report = f"http://127.0.0.1:{free_port()}", str(tmp_path / "load.svg")

    def load(*words: str) -> subprocess.CompletedProcess[Any]:
        command = [sys.executable, "-m", "lookupdb", "load", nowhere, "--keys", "-", *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, env=environment, input="a", capture_output=True, text=True, check=False)

    refused = load("--report", report)
    assert refused.returncode == 2, "4, if the router had been asked"
    assert "--report needs pygal, which is not installed" in refused.stderr
    assert "pip install pygal" in refused.stderr
    assert load().returncode == 4


@pytest.mark.parametrize("name", ["load.json", "load.svg"])
def test_where_results_cannot_be_written_is_said_before_the_load(tmp_path: Path, name: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "not there" / name
    ended = run_here("load", nowhere, "--keys", "-", "--report", str(file))
    assert ended.returncode == 2, "4, if the router had been asked"
    assert f"{file} cannot be written: there is no folder {file.parent}" in ended.stderr.decode()
