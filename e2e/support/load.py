"""Load from inside the cluster, and the report of its answers."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any, Self

from e2e.support import pods, wrong_answers
from e2e.support.command import CommandFailed
from e2e.support.kubectl import apply, delete, get, kubectl, raw, run_in, until


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of e2e/inside/load.py."""

    where: str
    """Namespace and pod of the load."""
    answers: int
    keys: int
    failed: int
    mixed: int
    wrong: int
    back: int
    """The number of times that a connection went back to an older generation."""
    samples: tuple[str, ...]
    """The first few faults."""
    generations: dict[str, dict[str, Any]]
    """Generation → ``first`` and ``last`` answer (Unix time), ``answers``, ``versions``."""
    together: dict[str, dict[str, Any]]
    """Names of several generations (``g1, g2``) → ``answers`` and ``versions`` of their common batches."""
    longest: float
    """Seconds of the slowest answer."""
    connections: int
    """The number of connections, all open throughout."""
    now: float
    """The time of the report by the load's clock (Unix time)."""

    @property
    def is_faultless(self) -> bool:
        """True if every answer came and was right."""
        return self.failed == self.mixed == self.wrong == 0

    @property
    def wrong_summary(self) -> str:
        """A sentence about wrong answers; empty if answers were only late or missing."""
        if not (self.mixed or self.wrong):
            return ""
        return f"{self.mixed} mixed and {self.wrong} wrong of {self.answers} answers: {'; '.join(self.samples)}"

    def check(self, *, rollbacks: int = 0, **versions: str) -> None:
        """Assert that every answer came from one of these generations with its version, and that each connection went
        back once per rollback."""
        seen = {name: held["versions"] for name, held in self.generations.items()}
        others = {name: found for name, found in seen.items() if found != [versions.get(name)]}
        wrong_answers.check(not others.keys() & versions.keys(), self.where, f"answered {seen}, expected {versions}")
        assert seen.keys() == versions.keys(), f"answered out of {sorted(seen)}, expected {sorted(versions)}"
        assert self.is_faultless, str(self)
        assert self.back == rollbacks * self.connections, f"{self.back} times back: {self}"

    def cutover_seconds(self, old: str, new: str) -> float:
        """Return the seconds from the first answer of ``new`` to the last of ``old``, over all connections and so all
        routers."""
        return float(self.generations[old]["last"] - self.generations[new]["first"])


class Load:
    """A pod that asks one dataset's router without pause. Its keys must always exist. Values are objects with
    ``version`` (the same for all records of a generation) and optionally ``id`` (the key).

    ``with Load(namespace, url, keys) as load:`` starts it and waits for its first answers; ``stop()`` ends it.
    """

    def __init__(self, namespace: str, url: str, keys: list[str], *, name: str = "e2e-load", **settings: float) -> None:
        """``settings``: singles and batches (numbers of connections), per_second (answers of all), per_shard (1: a
        batch may be of several generations)."""
        self._namespace, self._name = namespace, name
        variables = {f"LOAD_{key.upper()}": str(value) for key, value in settings.items()}
        self._manifests = pods.load(name, url, keys, variables)
        self._stopped = False

    def __enter__(self) -> Self:
        apply(*self._manifests, namespace=self._namespace)
        self.wait_answers(100, seconds=240)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stopped:  # the scenario failed of something else, which may hide a wrong answer
            with contextlib.suppress(CommandFailed):
                self._keep(self.report())
        delete("pod", self._name, self._namespace, "--wait=false")

    def report(self) -> Report:
        """Return the report so far."""
        return self._report(raw(f"/api/v1/namespaces/{self._namespace}/pods/{self._name}:8000/proxy/"))

    def now(self) -> float:
        """Return the time by the load's clock, to compare with its generations' ``first`` and ``last``."""
        asked = time.time()
        report = self.report()
        answered = time.time()
        ahead = report.now - (asked + answered) / 2
        return answered + ahead

    def wait_answers(self, answers: int, *, seconds: float) -> Report:
        """Wait for this many answers, right or wrong."""
        return until(
            lambda: report if (report := self.report()).answers >= answers else None,
            seconds=seconds,
            what=f"{answers} answers to the load of {self._namespace}/{self._name}",
        )

    def wait_generation(self, generation: str, *, seconds: float) -> Report:
        """Wait until ``generation`` has answered."""
        return until(
            lambda: report if generation in (report := self.report()).generations else None,
            seconds=seconds,
            what=f"an answer out of {generation}",
        )

    def stop(self) -> Report:
        """End the load and return the complete report. Wrong answers are recorded, and fail the run."""
        run_in(self._name, self._namespace, "sh", "-c", "kill -TERM 1")
        until(self._ended, seconds=240, what=f"the end of the load of {self._namespace}/{self._name}")
        whole = self._report(kubectl("logs", self._name, "--namespace", self._namespace).strip().splitlines()[-1])
        self._stopped = True
        self._keep(whole)
        return whole

    def _ended(self) -> bool:
        return get("pod", self._name, self._namespace)["status"]["phase"] in ("Succeeded", "Failed")

    def _report(self, document: str) -> Report:
        return read(f"{self._namespace}/{self._name}", document)

    def _keep(self, report: Report) -> None:
        if report.wrong_summary:
            wrong_answers.record(report.where, report.wrong_summary)


def read(where: str, document: str) -> Report:
    """Parse the report of e2e/inside/load.py."""
    members = json.loads(document) | {"where": where}
    members["samples"] = tuple(members["samples"])
    return Report(**{name: members[name] for name in Report.__slots__})
