"""Builds: whether one begins, its number, and its outcome."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_support.plan_samples import applied, broken, condition, deleted, says, serving, trouble
from operator_support.plan_world import NEVER, World

from lookupdb_operator.model import BuildResult, Trouble
from lookupdb_operator.plan import objects, planner


def test_the_first_pass_claims_g1_and_makes_all_that_needs_no_generation() -> None:
    planned = World().look()
    assert planned.status.build is not None
    assert (planned.status.build.generation, planned.status.last_generation) == ("g1", 1)
    assert applied(planned) >= {
        "Secret/airports-store-uid-1",
        "ConfigMap/airports-g1-build",
        "Job/airports-g1-build",
        "Deployment/airports-router",
        "Service/airports-router",
        "NetworkPolicy/airports-shard",
    }
    assert not any("StatefulSet" in one for one in applied(planned))
    assert planned.status.endpoint == "http://airports-router.default.svc"
    assert planned.status.operator == "lookupdb/lookupdb"


def test_the_endpoint_has_the_services_port_also_while_the_spec_cannot_be_used() -> None:
    world = serving(router={"service": {"port": 8000}})
    assert world.look().status.endpoint == "http://airports-router.default.svc:8000"
    broken_spec = replace(world.dataset, parsed=None, problem="why", spec={}, status=world.status)
    assert planner.find_endpoint(broken_spec) == "http://airports-router.default.svc:8000"


def test_another_type_of_the_routers_service_is_one_write_and_nothing_that_serves_is_touched() -> None:
    world = serving()
    world.edit(router={"service": {"type": "LoadBalancer"}})
    planned = world.look()
    assert applied(planned) == {"Service/airports-router"}
    assert deleted(planned) == set()


@pytest.mark.parametrize("outcome", ["built", "adopted"])
def test_a_whole_generation_is_remembered_and_its_build_tidied_away(outcome: Any) -> None:
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    world.reconcile()
    pod = next(pod for pod in world.pods.values() if pod.component == "builder")
    pod.result = BuildResult(outcome, "g1", "f1", 28000, 4096, 2048, "2026-01-01T12:00:01Z")
    planned = world.look()
    (generation,) = planned.status.generations
    assert (generation.generation, generation.fingerprint, generation.records, generation.bytes) == (
        "g1",
        "f1",
        28000,
        4096,
    )
    assert (generation.shards, generation.largest_shard_bytes, generation.value_format) == (2, 2048, "json")
    assert planned.status.build is None
    assert deleted(planned) == {"Job/airports-g1-build", "ConfigMap/airports-g1-build"}
    assert planned.status.last_rollout == 1, "its rollout begins in the same pass"


def _reverted_after_a_refresh(annotation: str) -> World:
    """g1 is of the spec that is desired again; monday was answered with g2, of another one."""
    world = serving()
    world.edit(source={"url": "s3://data/v2.csv"})
    world.annotate("monday")
    world.settle()
    world.annotate(annotation)
    world.edit(source={"url": "s3://data/v1.csv"})
    return world


class TestRefresh:
    @pytest.mark.parametrize("reason", ["CorruptFile", "GenerationMissing"])
    def test_builds_what_servers_cannot_have_from_the_store_though_the_source_is_the_same(self, reason: str) -> None:
        world = serving()
        next(pod for pod in world.pods.values() if pod.component == "shard").trouble = trouble(reason)
        world.annotate("monday")
        planned = world.look()
        assert planned.status.build is not None
        assert planned.status.build.unless_fingerprint == ""

    @pytest.mark.parametrize("reason", ["CorruptFile", "GenerationMissing"])
    def test_is_asked_for_when_servers_cannot_have_from_the_store_what_was_built(self, reason: str) -> None:
        world = serving()
        pod = next(pod for pod in world.pods.values() if pod.component == "shard")
        pod.ready, pod.trouble = False, trouble(reason, "the store holds no g1")
        planned = world.look()
        assert says(planned)["Built"] == f"False {reason}"
        assert "the store holds no g1" in condition(planned, "Built").message
        assert "lookupdb.dev/refresh" in condition(planned, "Built").message

    def test_a_new_annotation_builds_again_from_the_same_spec(self) -> None:
        world = serving()
        world.annotate("monday")
        planned = world.look()
        assert planned.status.build is not None
        assert (planned.status.build.generation, planned.status.build.refresh) == ("g2", "monday")
        assert planned.status.build.unless_fingerprint == world.status.generations[0].fingerprint
        assert planned.status.build.active == "g1"

    def test_of_an_unchanged_source_answers_it_and_changes_nothing_else(self) -> None:
        world = serving()
        world.annotate("monday")
        world.settle()
        assert world.status.refreshed == "monday"
        assert [one.generation for one in world.status.generations] == ["g1"]
        assert world.status.last_rollout == 1

    def test_of_a_changed_source_rolls_out_what_it_built(self) -> None:
        world = serving()
        world.content_of_source = lambda url: f"{url} of another day".ljust(64)
        world.annotate("monday")
        world.settle()
        assert (world.status.generation, world.status.refreshed) == ("g2", "monday")

    def test_answered_with_another_specs_generation_is_not_answered_for_this_one(self) -> None:
        world = serving()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.annotate("monday")
        world.settle()
        world.edit(source={"url": "s3://data/v1.csv"})
        world.content_of_source = lambda url: f"{url} of monday".ljust(64)
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g3", 3), "g1 is of before monday"

    @pytest.mark.parametrize("annotation", ["monday", ""], ids=["stays", "is taken away"])
    def test_a_reverted_spec_serves_nothing_older_than_what_was_answered_while_the_annotation(
        self, annotation: str
    ) -> None:
        world = _reverted_after_a_refresh(annotation)
        world.content_of_source = lambda url: f"{url} of monday".ljust(64)
        planned = world.reconcile()
        assert planned.status.build is not None
        assert (planned.status.build.generation, planned.status.build.unless_fingerprint) == (
            "g3",
            planned.status.generations[0].fingerprint,
        )
        assert (planned.status.last_rollout, planned.status.generation) == (2, "g2"), "g1 was read before monday"
        assert says(planned)["Built"] == "False Building"
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g3", 3)

    def test_a_reverted_spec_whose_source_is_as_it_was_goes_back_to_the_same_generation(self) -> None:
        world = _reverted_after_a_refresh("monday")
        world.settle()
        (generation, _) = world.status.generations
        assert (world.status.generation, generation.verified_by, world.status.refreshed_by) == ("g1", 3, 2)

    def test_a_value_that_comes_back_is_another_refresh(self) -> None:
        world = serving()
        world.annotate("a")
        world.settle()
        world.edit(source={"url": "s3://data/v2.csv"})
        for refresh in ("b", "a"):
            world.annotate(refresh)
            world.settle()
        world.edit(source={"url": "s3://data/v1.csv"})
        assert world.look().status.build is not None, "g1 answered the first a, not the second"

    def test_taken_away_asks_for_nothing(self) -> None:
        world = serving()
        world.annotate("monday")
        world.settle()
        world.annotate("")
        assert (world.look().apply, world.look().status.build) == ((), None)

    def test_another_one_meanwhile_waits_for_the_build_under_way(self) -> None:
        world = serving()
        world.takes.build = NEVER
        world.annotate("monday")
        world.reconcile()
        world.annotate("tuesday")
        planned = world.reconcile()
        assert planned.status.build is not None
        assert (planned.status.build.generation, planned.status.build.refresh) == ("g2", "monday")
        world.takes.build = 1
        world.settle()
        assert world.status.refreshed == "tuesday"


class TestJobs:
    def test_that_vanished_without_a_word_run_again_under_their_number(self) -> None:
        world = World()
        world.reconcile()
        del world.things["Job", "airports-g1-build"]
        planned = world.look()
        assert "Job/airports-g1-build" in applied(planned)
        assert planned.status.last_generation == 1

    def test_that_succeeded_but_whose_pod_is_gone_are_deleted_and_run_again_under_their_number(self) -> None:
        world = World()
        world.reconcile()
        job = world.things["Job", "airports-g1-build"]
        job.manifest = {**job.manifest, "state": "Succeeded"}
        first = world.reconcile()
        assert (deleted(first), applied(first) & {"Job/airports-g1-build"}) == ({"Job/airports-g1-build"}, set())
        assert "Job/airports-g1-build" in applied(world.look())
        world.settle()
        assert world.status.generation == "g1"

    def test_are_not_written_again_while_they_exist(self) -> None:
        world = World()
        world.takes.build = NEVER
        world.reconcile()
        assert world.look().apply == ()

    def test_that_have_ended_before_their_pod_was_seen_to_end_are_waited_with(self) -> None:
        for state in ("Succeeded", "Failed"):
            world = World()
            world.reconcile()
            world.step()
            job = world.things["Job", "airports-g1-build"]
            job.manifest = {**job.manifest, "state": state}
            planned = world.look()
            assert planned.status.build is not None
            assert (planned.status.failure, planned.delete) == (None, ())

    def test_a_pods_result_counts_before_its_job_has_ended(self) -> None:
        world = World()
        world.takes.build = NEVER
        world.reconcile()
        world.step()
        next(pod for pod in world.pods.values() if pod.component == "builder").result = broken()
        assert world.look().status.failure is not None

    def test_of_numbers_that_are_past_are_deleted(self) -> None:
        world = serving()
        observed = world.observe()
        build = World()
        build.reconcile()
        job = build.observe().jobs[0]
        planned = world.planner(replace(observed, jobs=(replace(job, generation="g1"),)), world.config, world.now)
        assert planned.delete == (job.ref,)


def _running(**spec: Any) -> World:
    """A first build whose pod runs."""
    world = World()
    world.edit(**spec)
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    return world


UNRELATED = [
    pytest.param({"build": {"deadlineSeconds": 7200}}, id="another deadline"),
    pytest.param({"gates": {"minRecords": 5}}, id="another gate"),
    pytest.param({"scheduling": {"nodeSelector": {"disk": "fast"}}}, id="another node selector"),
    pytest.param({"build": {"resources": {"limits": {"memory": "4Gi"}}}}, id="more memory"),
    pytest.param({"image": "lookupdb:2"}, id="another image"),
]


class TestABuildThatRuns:
    @pytest.mark.parametrize("change", UNRELATED)
    def test_goes_on_whatever_changes_but_what_is_built(self, change: dict[str, Any]) -> None:
        world = _running()
        world.edit(**change)
        planned = world.reconcile()
        assert planned.status.build is not None
        assert (planned.status.build.generation, deleted(planned)) == ("g1", set())
        assert not {"Job/airports-g1-build", "ConfigMap/airports-g1-build"} & applied(planned)
        world.takes.build = 1
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g1", 1)

    def test_goes_on_through_an_upgrade_of_the_chart(self) -> None:
        world = _running()
        world.config = replace(world.config, image="lookupdb:2")
        world.takes.build = 1
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g1", 1)

    def test_is_superseded_by_another_content(self) -> None:
        world = _running()
        world.edit(source={"url": "s3://data/v2.csv"})
        planned = world.look()
        assert planned.status.build is not None
        assert planned.status.build.generation == "g2"
        assert deleted(planned) == {"Job/airports-g1-build", "ConfigMap/airports-g1-build"}

    @pytest.mark.parametrize("reason", ["ImagePullFailed", "Unschedulable", "SecretMissing"])
    def test_and_does_not_get_on_begins_again_with_a_changed_spec_at_once(self, reason: str) -> None:
        world = _running()
        next(iter(pod for pod in world.pods.values() if pod.component == "builder")).trouble = trouble(reason)
        world.reconcile()
        world.edit(image="lookupdb:right")
        planned = world.look()
        assert planned.status.build is not None
        assert planned.status.build.generation == "g2"
        assert "Job/airports-g1-build" in deleted(planned)

    def test_and_was_never_made_begins_again_with_a_changed_spec(self) -> None:
        """The build was claimed, and the operator ended before it created the Job."""
        world = World()
        world.carry_out(world.look(), world.dataset, steps=0)
        world.edit(gates={"minRecords": 5})
        world.settle()
        assert (world.status.generation, world.status.last_generation) == ("g2", 2)


class TestAFailedJob:
    def test_stays_until_the_next_attempt_begins(self) -> None:
        world = World()
        world.fails = lambda spec: broken()
        world.settle(until=lambda: world.status.failure is not None)
        world.reconcile()
        kept = {("Job", "airports-g1-build"), ("ConfigMap", "airports-g1-build")}
        assert kept <= world.things.keys()
        assert any(pod.component == "builder" for pod in world.pods.values())
        assert world.look().delete == ()
        world.now += timedelta(seconds=31)
        planned = world.look()
        assert planned.status.last_generation == 2
        assert deleted(planned) == {"Job/airports-g1-build", "ConfigMap/airports-g1-build"}

    def test_goes_when_what_it_built_is_not_asked_for_any_more(self) -> None:
        world = serving()
        world.fails = lambda spec: broken()
        world.edit(source={"url": "s3://data/v2.csv"})
        world.settle(until=lambda: world.status.failure is not None)
        world.edit(source={"url": "s3://data/v1.csv"})
        assert deleted(world.look()) == {"Job/airports-g2-build", "ConfigMap/airports-g2-build"}


WAITING = [
    pytest.param("ImagePullFailed", id="its image cannot be pulled"),
    pytest.param("SecretMissing", id="a Secret is missing"),
    pytest.param("VolumeMissing", id="its volume is missing"),
    pytest.param("Unschedulable", id="no node has room"),
]


@pytest.mark.parametrize("reason", WAITING)
def test_a_build_goes_on_and_a_condition_tells_while(reason: str) -> None:
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    world.step()
    builder = next(pod for pod in world.pods.values() if pod.component == "builder")
    builder.trouble = trouble(reason, "the very words of Kubernetes")
    planned = world.reconcile()
    assert planned.status.build is not None
    assert "Job/airports-g1-build" not in deleted(planned)
    assert says(planned) | {"Ready": ""} == {
        "Ready": "",
        "Built": f"False {reason}",
        "RolledOut": "False WaitingForBuild",
        "Degraded": f"True {reason}",
    }
    assert "the very words of Kubernetes" in condition(planned, "Built").message
    builder.trouble = None
    assert says(world.look())["Degraded"] == "False Healthy"


def test_a_quota_that_keeps_the_pod_out_is_reported_though_there_is_no_pod() -> None:
    world = World()
    world.reconcile()
    job = world.things["Job", "airports-g1-build"]
    job.manifest = {**job.manifest, "failure": Trouble("QuotaExceeded", "exceeded quota: small")}
    planned = world.look()
    assert says(planned)["Built"] == "False QuotaExceeded"
    assert planned.status.build is not None


def test_the_stores_secret_is_written_again_when_its_content_changes_and_when_pods_lack_it() -> None:
    world = serving()
    world.store = replace(world.store, digest="d2")
    assert applied(world.reconcile()) == {"Secret/airports-store-uid-1"}
    assert world.look().apply == ()
    world.takes.build = NEVER
    world.edit(source={"url": "s3://data/v2.csv"})
    assert "Secret/airports-store-uid-1" in applied(world.reconcile())
    world.step()
    world.reconcile()
    next(pod for pod in world.pods.values() if pod.component == "builder").trouble = trouble("SecretMissing")
    planned = world.reconcile()
    assert "Secret/airports-store-uid-1" not in applied(planned)
    assert planned.next_look_in is not None
    world.now += timedelta(seconds=planned.next_look_in)
    assert "Secret/airports-store-uid-1" in applied(world.reconcile())
    assert "Secret/airports-store-uid-1" not in applied(world.reconcile())


def test_without_credentials_of_the_store_no_secret_is_written_and_a_condition_tells() -> None:
    world = World()
    world.store = replace(world.store, digest="", problem="the Secret lookupdb/store does not exist")
    planned = world.look()
    assert "Secret/airports-store-uid-1" not in applied(planned)
    assert says(planned)["Degraded"] == "True StoreCredentialsMissing"
    assert "lookupdb/store" in condition(planned, "Degraded").message


def test_a_build_that_is_begun_is_looked_at_again_though_nothing_happens_to_its_job() -> None:
    planned = World().reconcile()
    assert "Job/airports-g1-build" in applied(planned)
    assert planned.next_look_in == objects.SILENT_RECHECK_SECONDS


def test_a_build_that_does_not_get_on_and_does_not_say_why_is_looked_at_again_soon() -> None:
    """Events say why no pod comes, or why one cannot mount its volume, and nobody watches those."""
    world = World()
    world.takes.build = NEVER
    world.reconcile()
    planned = world.look()
    assert planned.apply == ()
    assert planned.next_look_in is not None
    assert planned.next_look_in <= 10
