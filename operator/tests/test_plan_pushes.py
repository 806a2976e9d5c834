"""Delivery by image: a rollout pushes the images of its generation before its servers are created. Whatever happens to
the push, what serves stays, and nothing is built for it."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest
from operator_support.plan_objects import is_push
from operator_support.plan_samples import condition, deleted, serving
from operator_support.plan_world import NEVER, World

from lookupdb_operator import names
from lookupdb_operator.model import ObjectRef, Trouble, add_seconds, parse_moment
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.rollouts import BELIEVED_SECONDS

pytestmark = pytest.mark.long  # whole lives

IMAGE: dict[str, Any] = {"serving": {"delivery": {"type": "Image", "image": {"repository": "r.example/lookups"}}}}
FETCH: dict[str, Any] = {"serving": {"delivery": {"type": "Fetch"}}}
DENIED = Trouble(reasons.REGISTRY_DENIED, "the registry refuses")
ENDED = Trouble(reasons.PUSH_FAILED, "the Job was ended for good")


def sets(world: World, rollout: str) -> set[str]:
    return {name for kind, name in world.things if kind == "StatefulSet" and names.read_rollout(name) == rollout}


def pushes(world: World) -> list[str]:
    return [name for (_, name), thing in world.things.items() if is_push(thing)]


def pushing() -> World:
    """The present data was fetched; the images are about to be pushed, for any time."""
    world = serving()
    world.takes.build = NEVER
    world.edit(**IMAGE)
    world.settle(until=lambda: bool(pushes(world)))
    world.step()
    return world


def test_servers_are_made_when_their_images_are_pushed() -> None:
    world = pushing()
    planned = world.reconcile()
    assert sets(world, "r2") == set()
    assert ("Service", "airports-r2") in world.things
    rolled_out = condition(planned, "RolledOut")
    assert "Its images are pushed to r.example/lookups first." in rolled_out.message
    world.takes.build = 1
    world.settle()
    assert sets(world, "r2") == {"airports-r2-s0", "airports-r2-s1"}
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]
    assert world.status.last_generation == 1, "another delivery builds nothing"


def test_every_rollout_pushes_its_own_generation_and_its_push_goes_with_it() -> None:
    world = serving()
    world.edit(**IMAGE)
    world.settle()
    assert pushes(world) == ["airports-r2-push"]
    world.edit(source={"url": "s3://data/v2.csv"})
    world.settle()
    assert (world.status.generation, pushes(world)) == ("g2", ["airports-r3-push"])
    world.edit(**FETCH)
    world.settle()
    assert (world.status.last_generation, pushes(world)) == (2, [])


def test_a_push_that_fails_is_reported_and_what_serves_goes_on() -> None:
    world = serving()
    world.fails_to_push = DENIED
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    planned = world.reconcile()
    assert condition(planned, "RolledOut").reason == condition(planned, "Degraded").reason == "RegistryDenied"
    assert condition(planned, "Ready").status == "True"
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r1", "r2"]
    assert sets(world, "r1") == {"airports-r1-s0", "airports-r1-s1"}
    world.fails_to_push = None
    world.settle()
    assert world.status.last_generation == 1


def failing(clock_error: timedelta = timedelta()) -> World:
    """The present data was fetched; the Job that pushes has failed for good once."""
    world = serving()
    world.clock_error = clock_error
    world.fails_push_jobs = ENDED
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    return world


def push_uids(world: World, seconds: int, step: int = 1) -> dict[str, float]:
    """Return the push Jobs within so many seconds, and the second in which each was created."""
    made: dict[str, float] = {}
    for second in range(0, seconds, step):
        world.reconcile()
        made |= {thing.uid: second for thing in world.things.values() if is_push(thing) and thing.uid not in made}
        world.step(step)
    return made


def pauses_between(made: dict[str, float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(made.values())]


def test_a_job_that_somebody_fails_for_good_is_reported_and_what_serves_goes_on() -> None:
    world = failing()
    planned = world.reconcile()
    assert condition(planned, "RolledOut").reason == condition(planned, "Degraded").reason == "PushFailed"
    message = condition(planned, "RolledOut").message
    assert "Its images are pushed to r.example/lookups first; the next attempt is at 20" in message
    assert "the Job was ended for good" in message
    assert condition(planned, "Ready").status == "True"
    assert sets(world, "r1") == {"airports-r1-s0", "airports-r1-s1"}
    assert sets(world, "r2") == set()


def test_what_its_pod_says_comes_before_that_its_job_was_failed() -> None:
    world = serving()
    world.fails_push_jobs, world.fails_to_push = ENDED, DENIED
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    assert condition(world.reconcile(), "RolledOut").reason == "RegistryDenied"


def test_a_job_that_somebody_fails_for_good_is_made_again_ever_more_seldom() -> None:
    world = failing()
    assert world.look().next_look_in is not None
    pauses = pauses_between(push_uids(world, 900))
    assert 4 <= len(pauses) <= 6, pauses
    assert pauses[0] >= 30
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses[1:])), pauses
    world.fails_push_jobs = None
    world.settle(2000)
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]
    assert world.status.last_generation == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_job_that_somebody_fails_for_good_is_made_again_by_the_clock_of_the_operator_alone(hours: int) -> None:
    """The clock of the API server, which dates the failure, may show anything."""
    expected = pauses_between(push_uids(failing(), 500, 5))
    assert pauses_between(push_uids(failing(timedelta(hours=hours)), 500, 5)) == expected != []


def test_a_job_that_somebody_fails_for_good_is_made_again_as_seldom_by_an_operator_that_starts_again() -> None:
    world = failing()
    before = pauses_between(push_uids(world, 300, 5))
    world.start_operator()
    assert pauses_between(push_uids(world, 600, 5))[0] > before[-1]


def test_a_job_that_somebody_fails_for_good_is_asked_for_at_least_each_half_an_hour() -> None:
    world = failing()
    pauses = pauses_between(push_uids(world, 4 * 3600, 20))
    assert len(pauses) > 8
    assert max(pauses) == pytest.approx(1800, abs=60)


def test_a_clock_that_is_set_back_keeps_no_push_waiting() -> None:
    world = failing()
    world.reconcile()
    world.clock_error = -timedelta(hours=5)
    assert len(push_uids(world, 60)) == 2


def test_a_push_that_an_api_server_refuses_is_reported_as_that_of_its_rollout() -> None:
    world = serving()
    world.refuses = lambda manifest: "denied by a policy" if manifest["metadata"]["name"] == "airports-r2-push" else ""
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    planned = world.look()
    rolled_out = condition(planned, "RolledOut")
    assert rolled_out.reason == "ApplyRefused"
    assert "Job airports-r2-push cannot be written: denied by a policy" in rolled_out.message
    assert condition(planned, "Ready").status == "True"


def test_a_set_that_is_fetched_is_not_refused_for_image_volumes() -> None:
    world = serving()
    world.refuses = lambda manifest: "must specify a volume type" if "-r2-" in str(manifest["metadata"]["name"]) else ""
    world.edit(serving={"pod": {"labels": {"team": "x"}}})
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    assert condition(world.look(), "Degraded").reason == "ApplyRefused"


def test_a_corrected_delivery_does_not_wait_for_the_push_that_fails() -> None:
    world = serving()
    world.fails_to_push = DENIED
    world.edit(**IMAGE)
    world.settle(until=lambda: bool(pushes(world)))
    world.edit(**FETCH)
    planned = world.look()
    assert "Job/airports-r2-push" in deleted(planned)
    world.settle()
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r1"], "what serves is of that template"


def test_a_job_that_somebody_removes_is_made_again_and_no_server_is_touched() -> None:
    world = serving()
    world.edit(**IMAGE)
    world.settle()
    job = world.things["Job", "airports-r2-push"]
    before = {name: thing.uid for (kind, name), thing in world.things.items() if kind == "StatefulSet"}
    world.delete(ObjectRef("Job", "airports-r2-push", job.uid))
    world.takes.build = NEVER
    planned = world.reconcile()
    assert deleted(planned) == set()
    assert pushes(world) == ["airports-r2-push"]
    assert {name: thing.uid for (kind, name), thing in world.things.items() if kind == "StatefulSet"} == before
    assert condition(world.look(), "Ready").status == "True"


def test_servers_that_are_lost_with_the_job_of_what_serves_do_not_wait_for_another_push() -> None:
    world = serving()
    world.edit(**IMAGE)
    world.settle()
    world.takes.build = NEVER
    (lost, *_) = sorted(sets(world, "r2"))
    del world.things["StatefulSet", lost]
    del world.things["Job", "airports-r2-push"]
    assert ("StatefulSet", lost) in {(one["kind"], one["metadata"]["name"]) for one in world.look().apply}


def test_of_a_rollout_that_serves_some_shards_no_lost_server_waits_for_another_push() -> None:
    """All images of a rollout are pushed before the first of its servers is created."""
    world = serving()
    world.edit(shards=4)
    world.settle()
    world.edit(**IMAGE, rollout={"strategy": "PerShard"})
    world.settle(300, until=lambda: world.status.table is not None and bool(world.status.table.parts))
    assert world.status.table is not None
    world.takes.build = NEVER
    (lost, *_) = sorted(sets(world, world.status.table.rollout))
    del world.things["StatefulSet", lost]
    (push,) = pushes(world)
    del world.things["Job", push]
    assert ("StatefulSet", lost) in {(one["kind"], one["metadata"]["name"]) for one in world.look().apply}


class TestAnImageThatIsGone:
    """The registry has lost an image that a restarted server needs."""

    GONE = Trouble(reasons.IMAGE_NOT_FOUND, "is not in its registry")

    def lacking(self) -> World:
        world = serving()
        world.edit(**IMAGE)
        world.settle()
        self.lose(world)
        return world

    def lose(self, world: World) -> None:
        servers = (pod for pod in world.pods.values() if pod.component == names.SHARDS)
        pod = next(pod for pod in servers if pod.labels[names.ROLLOUT] == "r2")
        pod.trouble, pod.ready = self.GONE, False

    def find(self, world: World) -> None:
        for pod in world.pods.values():
            pod.trouble = None if pod.trouble == self.GONE else pod.trouble

    def test_is_pushed_again(self) -> None:
        world = self.lacking()
        before = world.things["Job", "airports-r2-push"].uid
        world.step(BELIEVED_SECONDS)
        planned = world.look()
        assert deleted(planned) == {"Job/airports-r2-push"}
        assert "the next push" not in condition(planned, "Degraded").message
        world.settle(
            60, until=lambda: before not in {thing.uid for thing in world.things.values()} and bool(pushes(world))
        )
        assert sets(world, "r2") == {"airports-r2-s0", "airports-r2-s1"}, "no server is touched"
        assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]
        assert world.status.last_generation == 1, "nothing is built"

    def test_is_not_pushed_again_before_kubelets_have_looked(self) -> None:
        world = self.lacking()
        planned = world.look()
        assert deleted(planned) == set()
        assert planned.next_look_in is not None
        assert 0 < planned.next_look_in <= BELIEVED_SECONDS

    def test_is_not_pushed_again_while_it_is_pushed(self) -> None:
        world = self.lacking()
        world.takes.build = NEVER
        world.step(BELIEVED_SECONDS)
        world.reconcile()
        world.step()
        world.reconcile()
        assert pushes(world) == ["airports-r2-push"]
        world.step(BELIEVED_SECONDS)
        assert deleted(world.look()) == set()

    def test_is_not_taken_for_pushed_again_where_its_job_would_not_be_made_again(self) -> None:
        """The spec has another pod template by now, and its rollout makes no progress."""
        world = self.lacking()
        world.takes.build = NEVER
        world.edit(serving={"delivery": {"type": "Image", "image": {"repository": "other.example/lookups"}}})
        for _ in range(4):
            world.step(BELIEVED_SECONDS / 2)
            assert "Job/airports-r2-push" not in deleted(world.look())
            world.reconcile()

    def test_is_reported_with_when_it_is_pushed_again(self) -> None:
        world = self.lacking()
        message = condition(world.look(), "Degraded").message
        assert message.count("is not in its registry") == 1
        assert f"; the next push is at {add_seconds(self.pushed_at(world), BELIEVED_SECONDS)}." in message

    def test_is_reported_of_servers_that_start_too(self) -> None:
        world = pushing()
        world.takes.build, world.takes.start = 1, NEVER
        world.settle(until=lambda: any(pod.rollout == "r2" for pod in world.observe().pods if pod.shard >= 0))
        world.step(5)
        self.lose(world)
        planned = world.reconcile()
        next_push = add_seconds(self.pushed_at(world), BELIEVED_SECONDS)
        for kind in ("RolledOut", "Degraded"):
            assert condition(planned, kind).reason == reasons.IMAGE_NOT_FOUND
            assert f"; the next push is at {next_push}." in condition(planned, kind).message

    def test_is_reported_without_a_push_that_does_not_come(self) -> None:
        """The spec has another pod template by now."""
        world = self.lacking()
        world.takes.build = NEVER
        world.edit(serving={"delivery": {"type": "Image", "image": {"repository": "other.example/lookups"}}})
        message = condition(world.look(), "Degraded").message
        assert "is not in its registry" in message
        assert "the next push" not in message

    def pushed_at(self, world: World) -> datetime:
        push = world.status.rollouts[-1].push
        assert push is not None
        return parse_moment(push.finished_at)

    def test_and_that_no_push_brings_back_is_pushed_ever_more_seldom(self) -> None:
        pauses = pauses_between(push_uids(self.lacking(), 4 * 3600, 10))
        assert pauses == pytest.approx([BELIEVED_SECONDS, BELIEVED_SECONDS, 720, 1440, *[1800] * 6], abs=40)

    @pytest.mark.parametrize("hours", [-1, 1])
    def test_is_pushed_again_by_the_clock_of_the_operator_alone(self, hours: int) -> None:
        world = serving()
        world.clock_error = timedelta(hours=hours)
        world.edit(**IMAGE)
        world.settle()
        self.lose(world)
        pauses = pauses_between(push_uids(world, 2000, 10))
        assert pauses == pytest.approx([BELIEVED_SECONDS, BELIEVED_SECONDS, 720], abs=40)

    def test_that_was_pulled_at_last_is_pushed_as_soon_as_at_first_when_it_is_lost_again(self) -> None:
        world = self.lacking()
        push_uids(world, 2 * 3600, 20)
        self.find(world)
        world.settle(2000)
        world.step(BELIEVED_SECONDS)
        self.lose(world)
        pauses = pauses_between(push_uids(world, 2000, 10))
        assert pauses == pytest.approx([BELIEVED_SECONDS, 720], abs=40)

    def test_whose_servers_are_all_lost_for_a_moment_is_pushed_as_seldom_as_before(self) -> None:
        world = self.lacking()
        push_uids(world, 2 * 3600, 20)
        before = world.status.rollouts[-1].push
        for name in sets(world, "r2"):
            del world.things["StatefulSet", name]
        world.pods.clear()
        world.reconcile()
        assert before is not None
        assert before.count > 2
        assert world.status.rollouts[-1].push == before

    def test_is_not_taken_for_pushed_again_in_a_cluster_that_has_image_volumes_no_more(self) -> None:
        world = self.lacking()
        world.step(BELIEVED_SECONDS)
        world.has_image_volumes = False
        assert deleted(world.look()) == set()

    def test_of_another_pod_template_is_pushed_as_soon_as_at_first(self) -> None:
        world = self.lacking()
        push_uids(world, 2 * 3600, 20)
        world.edit(serving={"delivery": {"type": "Image", "image": {"repository": "other.example/lookups"}}})
        world.settle(2000)
        assert [rollout.push.count for rollout in world.status.rollouts if rollout.push is not None] == [0]

    def test_whose_push_somebody_fails_for_good_meanwhile_is_pushed_no_more_often(self) -> None:
        world = self.lacking()
        push_uids(world, 3600, 20)
        world.fails_push_jobs = ENDED
        push_uids(world, 3600, 20)
        world.fails_push_jobs = None
        pauses = pauses_between(push_uids(world, 3 * 3600, 20))
        assert pauses[-1] == pytest.approx(1800, abs=60)


def test_images_that_nobody_misses_are_not_pushed_again() -> None:
    world = serving()
    world.edit(**IMAGE)
    world.settle()
    world.step(10 * BELIEVED_SECONDS)
    assert deleted(world.look()) == set()


def test_a_cluster_without_image_volumes_is_reported_and_what_serves_goes_on() -> None:
    world = serving()
    world.has_image_volumes = False
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    for _ in range(5):
        world.step()
        planned = world.reconcile()
    assert condition(planned, "Degraded").reason == condition(planned, "RolledOut").reason == "ImageVolumesMissing"
    assert "spec.serving.delivery" in condition(planned, "Degraded").message
    assert condition(planned, "Ready").status == "True"
    assert not pushes(world)
    world.edit(**FETCH)
    world.settle()
    assert (world.status.last_generation, [rollout.rollout for rollout in world.status.rollouts]) == (1, ["r1"])


def test_a_cluster_that_gets_image_volumes_goes_on_by_itself() -> None:
    world = serving()
    world.has_image_volumes = False
    world.edit(**IMAGE)
    world.settle(until=lambda: world.status.condition("Degraded").status == "True")  # type: ignore[union-attr]
    assert world.look().next_look_in is not None
    world.has_image_volumes = True
    world.settle()
    assert [rollout.rollout for rollout in world.status.rollouts] == ["r2"]


def test_what_serves_from_images_goes_on_when_the_cluster_has_them_no_more() -> None:
    world = serving()
    world.edit(**IMAGE)
    world.settle()
    world.has_image_volumes = False
    world.settle()
    assert sets(world, "r2") == {"airports-r2-s0", "airports-r2-s1"}
