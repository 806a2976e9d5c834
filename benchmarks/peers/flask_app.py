"""A typical service that lookupdb replaces: it answers from a dict with the file's content."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import flask
import orjson


def load(path: Path) -> dict[str, list[str]]:
    """Customer → product ids."""
    with path.open("rb") as file:
        return {record["customer"]: record["products"] for record in map(orjson.loads, file)}


app = flask.Flask(__name__)
recommendations = load(Path(os.environ["BENCH_SOURCE"]))
print("dataset is loaded", file=sys.stderr, flush=True)


@app.get("/lookup/<customer>")
def lookup(customer: str) -> flask.Response:
    """One customer's products, or 404."""
    products = recommendations.get(customer)
    if products is None:
        flask.abort(404)
    return flask.jsonify(products)


@app.post("/lookup")
def lookup_many() -> flask.Response:
    """The products of many customers."""
    keys = flask.request.get_json()["keys"]
    found = {key: recommendations[key] for key in keys if key in recommendations}
    return flask.jsonify(found=found, missing=[key for key in keys if key not in found])
