"""The pictures of dashboards, drawn from the answers of a small Prometheus."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import click
import pytest
from charts.dashboards.queries import find_panels
from docs_tools.dashboard_pictures import DASHBOARDS, Source, draw_dashboard
from docs_tools.panel_units import find_marks, format_value

END: Final = 1_800_000_000
LABELS: Final = {"namespace": "default", "dataset": "airports", "generation": "g7", "le": "0.001", "code": "<b>"}


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = parse_qs(url.query)
            if asked["query"] == ["broken("]:
                answer: Any = {"status": "error", "error": "parse error"}
            elif url.path == "/api/v1/query":
                answer = {"status": "success", "data": {"result": [{"metric": LABELS, "value": [END, "1"]}]}}
            else:
                start, end, step = (float(asked[name][0]) for name in ("start", "end", "step"))
                moments = [start + step * number for number in range(int((end - start) / step) + 1)]
                values = [[moment, "NaN" if moment == start else "1"] for moment in moments]
                answer = {"status": "success", "data": {"result": [{"metric": LABELS, "values": values}]}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["fleet", "dataset"])
def test_a_picture_has_every_panel_with_its_data(prometheus: str, name: str) -> None:
    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))
    source = Source(prometheus, start=END - 600, end=END, points=20)
    variables = {"namespace": "default", "dataset": "airports", "__rate_interval": "1m"}
    picture = ElementTree.fromstring(draw_dashboard(dashboard, source, variables))
    texts = ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [panel["title"] for panel in find_panels(dashboard) if panel["title"] not in texts] == []
    assert "no data" not in texts
    assert "g7" in texts
    if name == "dataset":
        assert "<b>" in texts, "the value of a label is text"
        assert "not true" not in texts


def test_an_error_of_prometheus_names_the_query(prometheus: str) -> None:
    with pytest.raises(click.ClickException, match=re.escape("broken(: parse error")):
        Source(prometheus, start=0, end=1, points=1).read("broken(")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000123, "s", "123 µs"),
        (0.0025, "s", "2.5 ms"),
        (90, "s", "1.5 min"),
        (0, "s", "0 s"),
        (3 * 86400, "s", "3 d"),
        (1536, "bytes", "1.5 KiB"),
        (0.0005, "percentunit", "0.05%"),
        (28123, "short", "28.1k"),
        (150, "short", "150"),
        (1200, "reqps", "1.2k req/s"),
        (math.nan, "short", "–"),
    ],
)
def test_a_value_is_written_in_its_unit(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize(
    ("top", "unit", "marks"),
    [
        (7, "short", [0, 2, 4, 6, 8]),
        (0.0018, "s", [0, 0.0005, 0.001, 0.0015, 0.002]),
        (200, "s", [0, 60, 120, 180, 240]),
        (1, "percentunit", [0, 0.5, 1]),
        (5000, "bytes", [0, 2048, 4096, 6144]),
        (0.0002, "short", [0, 0.00005, 0.0001, 0.00015, 0.0002]),
    ],
)
def test_an_axis_has_round_marks(top: float, unit: str, marks: list[float]) -> None:
    assert find_marks(top, unit) == pytest.approx(marks)
