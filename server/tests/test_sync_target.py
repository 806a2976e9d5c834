"""Which generation is to be current, by whom, and what may follow what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.generations import manifest

from lookupdb.errors import UsageError
from lookupdb.manifest import Announcement, Manifest, ShardFile, Totals
from lookupdb.store import StoreAddress
from lookupdb.sync.feeds import (
    Subscription,
    SyncTarget,
    diagnose_manifest,
    diagnose_succession,
    have_same_content,
    parse_moment,
    target_by_announcement,
)

A = "10.0.0.1:7000"
LATER = "2026-11-20T02:04:01Z"


def target(
    generation: str = "g1", version: int | None = 1, uid: str = "3f2b9c1e", moment: str = "2026-11-20T02:04:00Z"
) -> SyncTarget:
    return SyncTarget(uid, generation, "announcement", version, parse_moment(moment))


def a_manifest(generation: str = "g1", sha256: str = "aa", file: str = "shard-00000-of-00001.lmdb") -> Manifest:
    return manifest(generation, (ShardFile(file, 1, 1, sha256),), Totals(1, 1, 1, 1, 1))


class TestOrigin:
    def test_an_announcement_names_one_its_version_and_when(self) -> None:
        announcement = Announcement("team", "people", "3f2b9c1e-77aa", "g12", 17, "2026-11-20T02:04:00Z")
        assert target_by_announcement(announcement) == target("g12", 17)
        assert target_by_announcement(replace(announcement, announced_at=LATER)) != target("g12", 17)


class TestSuccession:
    @pytest.mark.parametrize(
        ("new", "standing"),
        [
            (target(), None),
            (target("g2", 2), target("g1", 1)),
            (target("g1", 3), target("g2", 2)),
            (target("g1", 1), target("g1", 1)),
            (target("g1", 1, uid="77aa0b1c"), target("g9", 9)),
            (target("g1", None), target("g2", 2)),
            (target("g1", 1), target("g2", None)),
            (target("g1", 1, moment=LATER), target("g2", 2)),
            (target("g1", 2, moment=LATER), target("g2", 2)),
        ],
        ids=[
            *("the first", "newer", "rollback", "the same", "made again", "no more announced", "announced"),
            *("a store that was filled again", "of the same version"),
        ],
    )
    def test_may_be(self, new: SyncTarget, standing: SyncTarget | None) -> None:
        assert diagnose_succession(new, standing) is None

    @pytest.mark.parametrize("moment", ["2026-11-20T02:04:00Z", "2026-11-20T03:03:59+01:00"])
    def test_an_older_version_is_refused(self, moment: str) -> None:
        assert diagnose_succession(target("g3", 1, moment=moment), target("g2", 2)) == (
            "version 1 is older than version 2, which is in effect"
        )

    def test_a_version_names_one_generation(self) -> None:
        refusal = diagnose_succession(target("g3", 2), target("g2", 2))
        assert refusal == "version 2 names g3, but named g2 before: a change needs a greater version"


class TestManifest:
    ADDRESS = StoreAddress("c1", "default", "things", "local")

    def test_must_be_of_the_dataset_and_its_uid(self) -> None:
        assert diagnose_manifest(a_manifest(), self.ADDRESS, target(uid="local")) is None
        assert diagnose_manifest(a_manifest(), self.ADDRESS, target()) == (
            "the manifest of g1 belongs to default/things (local), expected default/things (3f2b9c1e)"
        )
        other = StoreAddress("c1", "default", "people", "local")
        assert diagnose_manifest(a_manifest(), other, target(uid="local")) is not None

    def test_files_may_be_called_otherwise_and_have_the_same_content(self) -> None:
        named = a_manifest(file="shard-00000-of-00001-3f2b9c1e77aa.lmdb")
        assert have_same_content(a_manifest(), named)
        assert not have_same_content(a_manifest(), a_manifest(sha256="bb"))
        assert not have_same_content(a_manifest(), a_manifest("g2"))


class TestSubscription:
    @pytest.mark.parametrize(
        ("text", "subscription"),
        [
            ("people", Subscription("default", "people")),
            ("team/people", Subscription("team", "people")),
            ("team/people@3f2b9c1e", Subscription("team", "people", "3f2b9c1e")),
            ("team/people@3f2b9c1e-77aa-4bcd", Subscription("team", "people", "3f2b9c1e")),
        ],
    )
    def test_names_a_dataset(self, text: str, subscription: Subscription) -> None:
        assert Subscription.parse(text) == subscription

    def test_anything_else_is_refused(self) -> None:
        for text in ("", "/people", "a/b/c", "team/", "People", "people@", "../people", "people@../x"):
            with pytest.raises(UsageError, match="is not a dataset"):
                Subscription.parse(text)
