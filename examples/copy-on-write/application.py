"""The service that is measured: a typical Flask application that recommends products.

COW_WAY says how it holds the records (``ways``), COW_FOLDER where their files are.
"""

from __future__ import annotations

import os
from pathlib import Path

import flask

from ways import WAYS

application = flask.Flask(__name__)
records = WAYS[os.environ["COW_WAY"]].hold(Path(os.environ["COW_FOLDER"]))


@application.get("/process")
def show_process() -> dict[str, int]:
    """Return the worker that answers."""
    return {"pid": os.getpid(), "records": len(records)}


@application.post("/recommendations")
def recommend() -> dict[str, list[str]]:
    """Return the products recommended to each known customer, without those that are sold out."""
    question = flask.request.get_json()
    sold_out = set(question["soldOut"])
    return {
        customer: [product for product in products if product not in sold_out]
        for customer in question["customers"]
        if (products := records.get(customer)) is not None
    }
