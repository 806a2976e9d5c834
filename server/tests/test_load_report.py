"""A result as a page and as a drawing: well-formed, nothing cut off; and where it can be written."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.command_line import run_here
from support.load_results import make_result
from support.ports import free_port

from lookupdb.load.plots import render_report
from lookupdb.load.recording import Recording
from lookupdb.load.tally import Tally

SVG = "{http://www.w3.org/2000/svg}"


def test_rows_of_a_drawing_end_within_it() -> None:
    document = make_result("p99>20ms")
    document["requests"]["broken"] = {"an answer that is " + "larger " * 6: 1}
    root = ElementTree.fromstring(render_report(document, is_page=False))
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    rows = [text for text in root.findall(f"{SVG}text")[1:] if text.text]
    assert all(float(row.attrib["x"]) + 6.5 * len(row.text or "") <= width for row in rows)
    assert all(float(row.attrib["y"]) < height for row in rows)
    assert len({(row.attrib["x"], row.attrib["y"]) for row in rows}) == len(rows), "none is over another"
    names, texts = (
        " ".join(row.text or "" for row in rows if (float(row.attrib["x"]) < 200) is is_name)
        for is_name in (True, False)
    )
    assert "not sent with the time waited in vain; – is where too few were answered" in texts
    assert "broken connection: an answer that is larger larger" in names


def _polylines(root: ElementTree.Element, chart: str) -> list[list[tuple[float, float]]]:
    (group,) = [group for group in root.iter(f"{SVG}g") if group.get("id") == chart]
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]
        for line in group.iter(f"{SVG}polyline")
    ]


@pytest.mark.parametrize("is_page", [True, False], ids=["html", "svg"])
def test_a_report_is_well_formed_and_has_its_plots(is_page: bool) -> None:
    text = render_report(make_result("p99>20ms"), is_page=is_page)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("html" if is_page else "svg")
    percentiles, latencies, rates = (_polylines(root, name) for name in ("percentiles", "latencies", "rates"))
    assert [len(lines) for lines in (percentiles, latencies, rates)] == [1, 2, 3], "there is no p99 to draw"
    assert all(len(line) == 10 for line in latencies + rates)
    assert "p75 –, p90 –" in "".join(root.itertext())
    for line in percentiles + latencies + rates:
        assert [x for x, _ in line] == sorted(x for x, _ in line)
        assert all(0 <= x <= 860 and 0 <= y <= 300 for x, y in line)
    heights = [y for _, y in percentiles[0]]
    assert heights == sorted(heights, reverse=True), "latencies grow with percentiles"
    assert all(low[1] >= high[1] for low, high in zip(*latencies, strict=True))
    written = "".join(root.itertext())
    for words in ("800", "unavailable: Deadline", "broken connection: reset", "g2", "p99>20ms", "99 %"):
        assert words in written
    assert "\x1b" not in text
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://a:80", ""), "nothing is fetched"
    assert "<script" not in text


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
    assert len([*root.iter(f"{SVG}circle")]) == 6, "one point is no line"


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_where_results_cannot_be_written_is_said_before_the_load(tmp_path: Path, option: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    file = tmp_path / "not there" / "load.svg"
    ended = run_here("load", nowhere, "--keys", "-", option, str(file))
    assert ended.returncode == 2, "4, if the router had been asked"
    assert f"{file} cannot be written: there is no folder {file.parent}" in ended.stderr.decode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_is_not_writable_is_said_before_the_load(tmp_path: Path) -> None:
    (tmp_path / "load.svg").touch(0o400)
    (tmp_path / "folder").mkdir(0o500)
    for name, told in (("load.svg", "load.svg is not writable"), ("folder/load.svg", "folder is not writable")):
        ended = run_here("load", f"http://127.0.0.1:{free_port()}", "--keys", "-", "--report", str(tmp_path / name))
        assert ended.returncode == 2, ended.stderr
        assert told in ended.stderr.decode()
