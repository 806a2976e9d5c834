"""`lookupdb up` reports the fields that work only in a cluster, and serves without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.up_stack import PATIENT, build_people, write_dataset
from support.up_watch import watching

TOKENS = "auth: {tokens: {secretName: clients}}"
LEFT_OUT = f"{PATIENT.replace('router: {', f'router: {{{TOKENS}, ')}  store: {{url: 's3://team/lookups'}}\n"


async def test_it_says_once_what_it_leaves_out_and_serves(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    build_people(tmp_path)
    async with watching(tmp_path, LEFT_OUT) as watch:
        assert await asyncio.to_thread(watch.title) == "Countess"
        await watch.says("people: spec.store applies only in a cluster: ")
        await watch.says("people: spec.router.auth applies only in a cluster: ")
        assert watch.generations() == ["g1"], "they change no generation, and the store is the folder"
        (tmp_path / "people.yaml").write_text(f"{LEFT_OUT}  adopt: {{uid: 3f2b9c1e}}\n")
        await watch.says("people: spec.adopt applies only in a cluster: ")
        assert watch.output.count("spec.store applies") == 1
        assert watch.output.count("spec.router.auth applies") == 1
