"""What a person can do when a gate has refused a generation, as commands to paste; who serves it when it may pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from lookupdb.build.build_report import GenerationRefused
from lookupdb.cli.addressing import DEFAULT_STORE
from lookupdb.local.run_state import read_state, state_file
from lookupdb.manifest import Manifest, generation_number
from lookupdb.spec import LOCAL, DatasetSpec
from lookupdb.wording import format_command


@contextmanager
def show_ways_out(file: Path, store_url: str, cluster_id: str) -> Iterator[None]:
    """Give a GenerationRefused of the block the commands that look at the generation, and that let it pass."""
    try:
        yield
    except GenerationRefused as error:
        if error.manifest is not None:
            commands = _local_commands if cluster_id == LOCAL else _cluster_commands
            lines = "".join(f"\n    {command}" for command in commands(error.manifest, file, store_url))
            error.hint = f"{error.hint}:{lines}"
        raise


def _local_commands(refused: Manifest, file: Path, store_url: str) -> Iterator[str]:
    assert refused.refused is not None
    is_default = Path(store_url).absolute() == Path(DEFAULT_STORE).absolute()
    store = [] if is_default else ["--store", store_url]
    dataset = ["--dataset", f"{refused.namespace}/{refused.name}", *store]
    look = ["diff", refused.refused.active] if refused.refused.active else ["inspect"]
    yield format_command(*look, refused.generation, *dataset)
    yield format_command("build", "-f", str(file), *store, "--override-gates", refused.generation)


def _cluster_commands(refused: Manifest, _file: Path, _store_url: str) -> Iterator[str]:
    assert refused.refused is not None
    dataset = f"{refused.name} -n {refused.namespace}"
    if refused.refused.active:
        yield f"kubectl lookupdb diff {dataset} {refused.refused.active} {refused.generation}"
    yield f"kubectl annotate lds {dataset} lookupdb.dev/override-gates={refused.generation} --overwrite"


def say_who_serves(generation: str, spec: DatasetSpec, store_url: str) -> None:
    """Say on standard error what a `lookupdb up` that runs on this store makes of ``generation``, which passes now."""
    data = Path(store_url).absolute().parent
    state = read_state(state_file(data, spec.namespace, spec.name)) if Path(store_url).name == "store" else None
    if state is None or "watch" not in state:  # none, or one of an older version
        return
    if generation_number(generation) <= generation_number(state["generation"]):
        return
    process = f"the `lookupdb up` of {spec.name} (process {state['pid']})"
    if state["watch"]:
        click.echo(f"{process} cuts over to {generation} when it looks next", err=True)
        return
    active = state["generation"]
    click.echo(f"{process} has no --watch, and goes on with {active}: stop it and start it again", err=True)
