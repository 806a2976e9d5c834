"""The reference: everything in it is described, and the site can be built."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml
from docs_tools import drawing, product, reference, site

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]


UNDESCRIBED = (
    ("CRD", "description: The source of the records.", "", "spec.source"),
    ("VALUES", "# Its cron schedule, in UTC.", "", "chart value sweep.schedule"),
    ("OPENAPI", "summary: The value of one key.", "", "GET /v1/lookup/{key}"),
    ("RESP_TEXTS", "[GETRANGE]", "[NOTHING]", "command GETRANGE"),
    ("REASON_ADVICE", "CrashLooping =", "NoReason =", "NoReason of reason_advice.toml"),
)


def test_what_is_not_described_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for attribute, old, new, _ in UNDESCRIBED:
        text = getattr(product, attribute).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / attribute).write_text(text.replace(old, new, 1), encoding="utf-8")
        monkeypatch.setattr(product, attribute, tmp_path / attribute)
    found = reference.find_undescribed()
    monkeypatch.undo()
    reference.page.cache_clear()
    for *_, missing in UNDESCRIBED:
        assert [what for what in found if what.startswith(missing)], missing


def test_everything_is_described() -> None:
    assert reference.find_undescribed() == []


def test_each_page_has_what_it_is_about() -> None:
    pages = reference.pages()
    assert "| `refresh.schedule` |" in pages["reference/dataset.md"] or "`schedule`" in pages["reference/dataset.md"]
    for verb in product.verbs():
        assert f"\n## lookupdb {verb}\n" in pages["reference/commands.md"]
    for verb in product.kubectl_cli.commands:
        assert f"\n## kubectl lookupdb {verb}\n" in pages["reference/kubectl-commands.md"]
    for value in ("operator.maxConcurrentBuilds", "store.embedded.persistence.size", "clusterId"):
        assert f"| `{value}` |" in pages["reference/chart.md"]
    for name in ("lookupdb_shard_container_anon_bytes", "lookupdb_sync_behind", "lookupdb_gateway_ready"):
        assert f"| `{name}` | gauge |" in pages["reference/metrics.md"]


def test_a_command_line_option_is_told_with_its_default_and_its_variable() -> None:
    (row,) = re.findall(r"^\| `--max-keys.*$", reference.page("reference/commands.md"), re.MULTILINE)[:1]
    assert "LOOKUPDB_MAX_KEYS" in row
    assert "1000" in row


def _rewritten(path: str, markdown: str) -> str:
    page = cast("Page", SimpleNamespace(file=SimpleNamespace(src_uri=path)))
    return site.on_page_markdown(markdown, page, cast("Any", None), cast("Any", None))


@pytest.mark.parametrize(("page", "meta"), [("decisions/cold-data.md", {"search": {"boost": 0.3}}), ("index.md", {})])
def test_a_search_lists_pages_for_users_first(page: str, meta: dict[str, Any]) -> None:
    found = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
    site.on_page_markdown("text", cast("Any", found), cast("Any", None), cast("Any", None))
    assert found.meta == meta


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "docs/how-to/gates.md#a-closed-gate", "how-to/gates.md#a-closed-gate"),
        ("index.md", "crds/lookupdatasets.lookupdb.dev.yaml", "files/crds/lookupdatasets.lookupdb.dev.yaml"),
        ("how-to/gates.md", "../../SECURITY.md#who-is-trusted", "../operations/security.md#who-is-trusted"),
        ("how-to/gates.md", "client.md", "client.md"),
        ("operations/security.md", "docs/operations/teams.md", "teams.md"),
        ("how-to/gates.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("how-to/gates.md", "#here", "#here"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, link: str, expected: str) -> None:
    assert _rewritten(page, f"[x]({link})") == f"[x]({expected})"


def test_blocks_keep_their_text_and_lose_the_names_of_programs() -> None:
    text = "```python first\n[a](b.md)\n```\n```text people.csv\nid\n```\n```yaml\n```\n"
    expected = '```python\n[a](b.md)\n```\n```text title="people.csv"\nid\n```\n```yaml\n```\n'
    assert _rewritten("index.md", text) == expected


def test_the_site_lists_every_page() -> None:
    class Loader(yaml.SafeLoader):
        """Ignores Python's names in mkdocs.yml."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = re.findall(r"[\w/-]+\.md", str(config["nav"]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages = {path for path in pages if not path.startswith("decisions/")} | {"decisions/README.md"}
    assert sorted(listed) == sorted({*pages, *reference.pages(), *site.PAGES.values()})


PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.dot"))


@pytest.mark.parametrize("source", PICTURES, ids=lambda path: path.stem)
def test_each_picture_is_drawn_from_its_text(source: Path) -> None:
    assert source.with_suffix(".svg").read_text(encoding="utf-8").startswith(drawing.mark_of(source)), "make pictures"
    assert any(f"{source.stem}.svg)" in page.read_text() for page in (ROOT / "docs").rglob("*.md"))


def test_there_are_pictures_of_the_architecture_a_lookup_and_the_cutover() -> None:
    assert [source.stem for source in PICTURES] == ["architecture", "cutover", "lookup"]
