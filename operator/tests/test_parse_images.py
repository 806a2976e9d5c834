"""Jobs that push images, and the servers that mount them, from JSON as Kubernetes 1.34 writes it."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.bodies import condition, job, meta

from lookupdb_operator import names
from lookupdb_operator.cluster.workloads import parse_push
from lookupdb_operator.plan import reasons


class TestPush:
    def body(self, *conditions: dict[str, Any]) -> dict[str, Any]:
        body = job(list(conditions))
        body["metadata"] = meta(
            name="airports-r34-push",
            labels=names.labels("airports", "ds-1", names.PUSHER) | {names.GENERATION: "g3", names.ROLLOUT: "r34"},
            annotations={names.DIGEST: "0123456789abcdef", names.FIELDS: "of other fields"},
        )
        return body

    def test_is_of_its_rollout_by_its_name_and_no_build(self) -> None:
        parsed = parse_push(self.body())
        assert (parsed.ref.kind, parsed.rollout, parsed.generation, parsed.push_state) == (
            "Job",
            "r34",
            "g3",
            "Running",
        )
        assert parsed.changed == "", "a Job cannot be put right"

    @pytest.mark.parametrize(
        ("found", "state"),
        [
            (condition("Complete", ""), "Succeeded"),
            (condition("Failed", ""), "Failed"),
            (condition("Complete", "", "False"), "Running"),
        ],
    )
    def test_says_how_it_has_ended_and_no_moment_of_another_clock(self, found: dict[str, Any], state: str) -> None:
        parsed = []
        for moment in ("2030-01-02T00:00:00Z", "2020-01-02T00:00:00Z"):
            body = self.body({**found, "lastTransitionTime": moment})
            body["status"]["completionTime"] = body["metadata"]["creationTimestamp"] = moment
            parsed.append(parse_push(body))
        assert parsed[0] == parsed[1]
        assert parsed[0].push_state == state

    def test_that_was_failed_for_good_says_why(self) -> None:
        failed = condition("Failed", "DeadlineExceeded")
        failed["message"] = "Job was active longer than specified deadline\n"
        parsed = parse_push(self.body(failed))
        assert parsed.trouble is not None
        assert parsed.trouble.reason == reasons.PUSH_FAILED
        assert "(DeadlineExceeded: Job was active longer than specified deadline)" in parsed.trouble.message
        assert "activeDeadlineSeconds" in parsed.trouble.message

    def test_that_somebody_has_suspended_says_so(self) -> None:
        body = self.body(condition("Suspended", "JobSuspended"))
        body["spec"]["suspend"] = True
        parsed = parse_push(body)
        assert parsed.push_state == "Running"
        assert parsed.trouble is not None
        assert "Job airports-r34-push, which pushes the images of its rollout, is suspended" in parsed.trouble.message
        body["spec"]["suspend"] = False
        assert parse_push(body).trouble is None

    @pytest.mark.parametrize("found", [[], [condition("Complete", "")], [condition("Failed", "", "False")]])
    def test_that_was_not_failed_has_no_trouble(self, found: list[dict[str, Any]]) -> None:
        parsed = parse_push(self.body(*found))
        assert (parsed.push_state == "Failed", parsed.trouble) == (False, None)
