"""The console in a headless Chromium: its tests use this, and `make console-pictures` draws its pictures."""

from __future__ import annotations

import argparse
import csv
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

REPOSITORY: Final = Path(__file__).parents[1]
PICTURES: Final = REPOSITORY / "docs" / "pictures"
MAX_BYTES: Final = 200_000
"""The largest picture."""
START_SECONDS: Final = 120.0
_FLAGS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",  # which root cannot have; the pages are ours
)
_URL: Final = re.compile(r"(http://\S+/)  # the console")
_MANIFEST: Final = """apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: people}
spec:
  source: {url: people.csv}
  key: {columns: [id]}
  shards: 6
  replicas: 2
  rollout: {promotion: Manual}
"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open Debian's Chromium. If it is absent, end the program and say what to install."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("the console's tests and pictures need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def running_up(folder: Path, *manifests: str) -> Iterator[str]:
    """Run `lookupdb up` in ``folder`` until the block ends. Yields the URL of its console."""
    files = [word for manifest in manifests for word in ("-f", manifest)]
    flags = ["--port", "0", "--watch", "--watch-seconds", "0.5", "--max-servers", "40"]
    output = folder / "up.log"
    with output.open("w") as log:
        command = [sys.executable, "-m", "lookupdb", "up", *files, *flags]
        up = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        ends_at = time.monotonic() + START_SECONDS
        while output.read_text().count("Shard servers and admin ports") < len(manifests):
            if up.poll() is not None or time.monotonic() > ends_at:
                sys.exit(f"`lookupdb up` does not serve:\n{output.read_text()}")
            time.sleep(0.1)
        found = _URL.search(output.read_text())
        assert found is not None
        yield found[1]
    finally:
        up.terminate()
        up.wait(60)


def write_people(path: Path, seed: int, count: int) -> None:
    """Write a source of people, some of whom change with ``seed``."""
    choice = random.Random(1)  # noqa: S311 - no secret
    moved = random.Random(seed)  # noqa: S311
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "name", "city"))
        for number in range(count + seed):
            first = choice.choice(("Ada", "Barbara", "Edsger", "Grace", "Alan"))
            last = choice.choice(("Okafor", "Lindqvist", "Tanaka", "Moreau", "Silva"))
            city = choice.choice(("Lagos", "Oslo", "Kyoto", "Lyon", "Recife"))
            writer.writerow((f"p{number}", f"{first} {last}", "Turin" if moved.random() < 0.001 * seed else city))
    new.replace(path)


def _draw(page: Page, url: str, path: Path, height: int) -> None:
    page.set_viewport_size({"width": 1180, "height": height})
    page.goto(url)
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{path.name} has {size:,} bytes, the limit is {MAX_BYTES:,}")
    print(f"{path.relative_to(REPOSITORY)}: {size:,} bytes")


def main() -> None:
    """Draw the pictures: `lookupdb up` with two datasets, under load for ``--seconds``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=90.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="lookupdb-screens-") as name:
        folder = Path(name)
        shutil.copy(REPOSITORY / "examples" / "airports.yaml", folder)
        (folder / "people.yaml").write_text(_MANIFEST)
        write_people(folder / "people.csv", 0, 200_000)
        (folder / "keys").write_text("".join(f"p{number}\n" for number in range(20_000)))
        loads = (("airports", "--ramp", f"20:160:{seconds * 1.5:.0f}"), ("people", "--keys", "keys", "--rate", "70"))
        with open_browser() as browser, running_up(folder, "airports.yaml", "people.yaml") as url:
            more = ("--duration", f"{seconds * 2:.0f}", "--beyond-default-bounds")
            senders = [
                subprocess.Popen(
                    [sys.executable, "-m", "lookupdb", "load", *load, *more],
                    cwd=folder,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for load in loads
            ]
            try:
                time.sleep(seconds / 2)
                write_people(folder / "people.csv", 1, 200_000)
                time.sleep(seconds / 2)
                page = browser.new_page(color_scheme="light")
                _draw(page, url, PICTURES / "console-fleet.png", 460)
                _draw(page, f"{url}datasets/default/people", PICTURES / "console-dataset.png", 1180)
            finally:
                for sender in senders:
                    sender.terminate()
                    sender.wait(60)


if __name__ == "__main__":
    main()
