"""When a worker counts as stale and as hung: time that the supervisor did not look does not count."""

from __future__ import annotations

from lookupdb.process.supervisor import HUNG_SECONDS, STALE_SECONDS, START_SECONDS, Liveness, LivenessVerdict


def has_begun() -> Liveness:
    """A worker whose first beat was seen at 1 s."""
    liveness = Liveness(beats=7, judged_at=0.0)
    assert liveness.judge(1.0, 8) is LivenessVerdict.ALIVE
    return liveness


def look_every_second(
    liveness: Liveness, start: float, seconds: float, *, waits_for_disk: bool = False
) -> list[LivenessVerdict]:
    return [liveness.judge(start + second, 8, waits_for_disk=waits_for_disk) for second in range(1, int(seconds) + 1)]


def test_silence_is_stale_first_and_hung_later() -> None:
    verdicts = look_every_second(has_begun(), 1.0, HUNG_SECONDS)
    assert verdicts.index(LivenessVerdict.STALE) == STALE_SECONDS - 1
    assert verdicts.index(LivenessVerdict.HUNG) == HUNG_SECONDS - 1


def test_a_beat_ends_the_silence() -> None:
    liveness = has_begun()
    look_every_second(liveness, 1.0, HUNG_SECONDS - 1)
    assert liveness.judge(20.0, 9) is LivenessVerdict.ALIVE
    assert liveness.judge(21.0, 9) is LivenessVerdict.ALIVE


def test_a_look_that_comes_late_counts_as_two_beats_at_most() -> None:
    liveness = has_begun()
    assert liveness.judge(3600.0, 8) is LivenessVerdict.ALIVE
    assert liveness.judge(7200.0, 8) is LivenessVerdict.ALIVE
    assert liveness.judge(10800.0, 8) is LivenessVerdict.STALE


def test_a_worker_that_starts_has_longer() -> None:
    starting = Liveness(beats=7, judged_at=0.0)
    verdicts = [starting.judge(float(second), 7) for second in range(1, int(START_SECONDS) + 1)]
    assert set(verdicts[:-1]) == {LivenessVerdict.ALIVE}
    assert verdicts[-1] is LivenessVerdict.HUNG


def test_a_worker_that_hangs_as_soon_as_it_is_ready_has_no_longer_than_others() -> None:
    starting = Liveness(beats=7, judged_at=0.0)
    starting.begin()
    assert [starting.judge(float(second), 7) for second in range(1, 16)][-1] is LivenessVerdict.HUNG


def test_a_worker_that_waits_for_the_disk_is_stale_and_not_killed() -> None:
    liveness = has_begun()
    assert look_every_second(liveness, 1.0, 100, waits_for_disk=True)[-1] is LivenessVerdict.STALE
    assert look_every_second(liveness, 101.0, HUNG_SECONDS - STALE_SECONDS)[-1] is LivenessVerdict.HUNG
