"""The benchmarks' generators: the same arguments give the same bytes, in the shape that the examples name."""

import csv
import json
import uuid
from pathlib import Path

import pytest
from benchmarks import generators

from lookupdb.dataset import spec

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("kind", generators.KINDS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(kind: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generators.write(kind, 300, tmp_path / name, seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_recommendations_are_ten_different_products_of_the_pool_for_every_customer() -> None:
    rows = [json.loads(line) for line in b"".join(generators.KINDS["recommendations"](5_100, 1)).splitlines()]
    assert len({row["customer"] for row in rows}) == 5_100
    assert {len(set(row["products"])) for row in rows} == {10}
    products = {product for row in rows for product in row["products"]}
    assert len(products) <= 10_000
    assert all(uuid.UUID(product).version == 4 for product in products)


def test_persons_have_unique_addresses_in_mixed_case_and_managers_who_are_persons_of_their_tenant() -> None:
    text = b"".join(generators.KINDS["persondb"](10_050, 1)).decode()
    rows = list(csv.DictReader(text.splitlines()))
    tenants = {row["email"]: row["tenant"] for row in rows}
    assert len({email.lower() for email in tenants}) == 10_050
    assert any(email.isupper() for email in tenants)
    assert any(email.islower() for email in tenants)
    assert all(tenants[row["manager"]] == row["tenant"] for row in rows if row["manager"])
    assert any("," in row["department"] for row in rows)


@pytest.mark.parametrize("name", ["recommendations", "persondb"])
def test_the_examples_are_valid_manifests(name: str) -> None:
    assert spec.read_manifest(EXAMPLES / f"{name}.yaml").name == name
