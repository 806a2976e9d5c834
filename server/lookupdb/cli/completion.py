"""`lookupdb completion`, and `kubectl-lookupdb completion`: the completion scripts of shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


def find_variable(program: str) -> str:
    """Return the environment variable by which click recognises a request for completion."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell: commands, options, datasets and generations.

    \b
        source <(lookupdb completion bash)
        kubectl-lookupdb completion fish > ~/.config/fish/completions/kubectl-lookupdb.fish

    `kubectl lookupdb` is completed by kubectl's own completion, from kubectl 1.26 on: it runs
    kubectl_complete-lookupdb, which is installed beside kubectl-lookupdb and must be on PATH, too.
    """
    kind, root = get_completion_class(shell), context.find_root().command
    assert kind is not None, "click knows all three"
    program = root.name or "lookupdb"
    click.echo(kind(root, {}, program, find_variable(program)).source())
