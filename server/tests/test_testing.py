"""``lookupdb.testing`` and the plugin of pytest: a test gets a real router of its own records, and nothing stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.waiting import until

from lookupdb import cli as extras
from lookupdb import testing
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.testing import serve


def test_keys_of_several_columns_and_raw_values() -> None:
    with serve({("DE", 1): b"\x00\xff", ("FR", "1"): b""}) as served:
        assert served.client["DE", "1"] == b"\x00\xff"
        assert served.client.get_many([("FR", 1)]).found == {("FR", 1): b""}
        folder = served.path
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="closed"):
        served.client.get("a")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({}, "at least one record"),
        ({"a": 1, ("b", "c"): 2}, "the same number of columns"),
        ({"a": {1, 2}}, "values must be JSON values"),
        ({"a": float("nan")}, "values must be JSON values"),
        ({"a": 1, "b": b"1"}, "values must be JSON values"),
        ({"a": 1, "x" * 600: 2}, "only 1 of 2 records can be served|511"),
    ],
)
def test_records_that_no_dataset_has_are_refused(records: dict[object, object], words: str) -> None:
    with pytest.raises(LookupdbError, match=words), serve(records):
        pass


def test_without_its_extras_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "duckdb" else name)
    with pytest.raises(UsageError, match="serving a dataset needs extras") as raised, serve({"a": b"1"}):
        pass
    assert raised.value.hint == "pip install 'lookupdb[build]'"


def test_a_process_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"(?s)the build of the served dataset ended with 2: .*normalize"
    with pytest.raises(LookupdbError, match=said), serve({"a": 1}, normalize=["upper"]):
        pass
    monkeypatch.setattr(testing, "START_SECONDS", 0.0)
    with pytest.raises(LookupdbError, match="the build of the served dataset takes over 0 s"), serve({"a": 1}):
        pass


def test_a_plugin_serves_a_test_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_airports.py").write_text(
        textwrap.dedent("""
            import socket
            import lookupdb
            from lookupdb.client import Client

            urls = []

            def test_airports(lookupdb_serve):
                records = {"KJFK": {"name": "Kennedy"}, "null": None}
                airports = lookupdb_serve(records, normalize=["casefold"], shards=2)
                urls.append(airports.url)
                assert airports.client["kjfk"] == {"name": "Kennedy"}
                with Client(airports.url) as client:
                    assert client.get_many(["KJFK", "null", "nowhere"]).missing == ["nowhere"]
                with lookupdb.open(airports.path) as mapping:
                    assert mapping["KJFK"] == {"name": "Kennedy"}

            def test_it_has_ended():
                with socket.socket() as connection:
                    assert connection.connect_ex(("127.0.0.1", int(urls[0].rpartition(":")[2]))) != 0
        """)
    )
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # but for the entry point that -p names
    words = ["-q", "-p", "lookupdb", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path)],
        env=alone,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in done.stdout, done


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, pytest; before = {*sys.modules}; import lookupdb.pytest_plugin; print({*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert eval(done.stdout) <= {"lookupdb", "lookupdb.pytest_plugin"}


def test_no_server_outlives_a_killed_test_run() -> None:
    code = """
        import sys, time
        from lookupdb.testing import serve
        with serve({"a": 1}) as served:
            print(served.path.parents[3], flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()

        def servers() -> list[str]:
            found = []
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    if str((entry / "cwd").readlink()).startswith(folder):
                        found.append(entry.name)
                except OSError:
                    continue
            return found

        assert len(servers()) >= 2
        process.send_signal(signal.SIGKILL)
    until(lambda: not servers(), "the servers have ended")
    shutil.rmtree(folder)
