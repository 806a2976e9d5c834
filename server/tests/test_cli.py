"""The command line as a whole: verbs, help, exit codes, and what each verb loads."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import click.shell_completion
import orjson
import pytest
from click.testing import CliRunner
from support.command_line import run_here
from support.up_stack import write_dataset

import lookupdb.cli as lookupdb_cli
from lookupdb import __version__, native
from lookupdb.cli import ELSEWHERE, ENTRY_POINT_GROUP, VERBS, cli
from lookupdb.cli.options import Size
from lookupdb.errors import Unavailable


def lookupdb(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program in this process."""
    run = run_here(*words)
    return subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())


def lookupdb_elsewhere(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own, which chooses its kernels."""
    command = [sys.executable, "-m", "lookupdb", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_every_option(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, f"lookupdb {verb} {option.opts[0]} has no help"


OWN_VARIABLES = {("load", "--rate"): "LOOKUPDB_LOAD_RATE"}
"""Options whose usual variable means something else to other commands."""


def test_every_option_has_a_variable_of_its_name() -> None:
    """Exceptions are the options that only shape one result, which the program's --help names, and the commands that
    `kubectl lookupdb` has too."""
    without = {"--json", "--verify", "--exit-code"}
    assert cli.help
    assert all(name in cli.help for name in (*without, *OWN_VARIABLES.values()))
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        if ".plugin." in ELSEWHERE.get(verb, ("", ""))[0]:
            continue
        for option in command.params:
            if isinstance(option, click.Option) and not without.intersection(option.opts):
                names = {"LOOKUPDB_" + name.removeprefix("--").replace("-", "_").upper() for name in option.opts}
                names |= {OWN_VARIABLES.get((verb, name), "") for name in option.opts}
                assert option.envvar in names, f"lookupdb {verb}: {option.opts} and {option.envvar}"
                assert option.show_envvar, f"lookupdb {verb} --help does not name {option.envvar}"


def test_a_variable_means_the_same_to_every_command() -> None:
    """Otherwise a variable that is set for one command would change another."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for verb, option in _list_options(cli, ""):
        name = type(option.type).__name__
        kind = "number" if name in ("IntRange", "FloatRange") else name
        kinds.setdefault(str(option.envvar), {}).setdefault(kind, []).append(f"{verb} {option.opts[0]}")
    assert len(kinds["LOOKUPDB_STORE"]["StringParamType"]) > 5
    assert [where for of_kind in kinds.values() if len(of_kind) > 1 for where in of_kind.items()] == []


def test_the_rates_of_a_fetch_and_of_a_load_are_two_variables() -> None:
    words = ["load", "http://127.0.0.1:1", "--keys", "-"]
    run = CliRunner().invoke(cli, words, env={"LOOKUPDB_RATE": "256MiB"})
    assert isinstance(run.exception, Unavailable), "it has come to the router, which is not there"
    run = CliRunner().invoke(cli, words, env={"LOOKUPDB_LOAD_RATE": "5000"})
    assert "--beyond-default-bounds" in str(run.exception)


def _list_options(command: click.Command, verb: str) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of ``command`` and its subcommands that have a variable."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from _list_options(found, f"{verb} {name}".strip())
    for option in command.params:
        if isinstance(option, click.Option) and option.envvar:
            yield verb, option


def test_a_size_is_a_number_with_or_without_a_unit() -> None:
    texts = {"1048576": 1 << 20, "1GiB": 1 << 30, "512Mi": 512 << 20, "2G": 2 * 10**9, " 1.5 kb": 1500}
    assert {text: Size().convert(text, None, None) for text in texts} == texts


@pytest.mark.parametrize("text", ["0", "0GiB", "-1", "1XiB", "much", ""])
def test_what_is_no_size_is_reported_with_what_was_expected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size; write it as 1GiB, 512MiB or a number of bytes"):
        Size().convert(text, None, None)


def test_a_variable_that_is_no_number_is_reported_with_what_was_expected() -> None:
    run = CliRunner().invoke(cli, ["up", "-f", "x.yaml"], env={"LOOKUPDB_PORT": "abc"})
    assert run.exit_code == 2
    assert "(env var: 'LOOKUPDB_PORT'): 'abc' is not a valid integer." in run.output


@pytest.mark.parametrize("flag", ["-f", "--file"])
def test_one_manifest_is_built_at_a_time(flag: str) -> None:
    run = CliRunner().invoke(cli, ["build", "-f", "a.yaml", flag, "b.yaml"])
    assert run.exit_code == 2
    sentence = "--file/-f takes one manifest, found 'a.yaml' and 'b.yaml'; give each LookupDataset a run of its own."
    assert sentence in " ".join(run.output.split())


def test_words_are_completed_behind_a_second_manifest() -> None:
    """Only running the command reports the second manifest."""
    completion = click.shell_completion.ShellComplete(cli, {}, "lookupdb", "_LOOKUPDB_COMPLETE")
    found = completion.get_completions(["up", "-f", "a.yaml", "-f", "b.yaml"], "--wa")
    assert [item.value for item in found] == ["--watch", "--watch-seconds"]


def test_a_full_disk_behind_standard_output_is_reported_in_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "lookupdb", "get", "--help"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 6
    assert run.stderr == (
        "error: standard output cannot be written: No space left on device\n"
        "  the output is incomplete: free some disk space\n"
    )


def test_a_path_that_is_no_utf8_is_reported_in_a_sentence(tmp_path: Path) -> None:
    run = lookupdb("build", "--json", "-f", os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.yaml"))
    assert run.returncode == 2
    assert "a\\udcff.yaml cannot be read: No such file or directory" in orjson.loads(run.stdout)["message"]
    assert run.stderr.startswith("error: "), run.stderr


def run_closed(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The program with a standard stream closed, as by ``>&-`` of a shell."""
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-m", "lookupdb", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_build_with_standard_output_closed_builds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_dataset(tmp_path)
    words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", str(store), "--progress", "none"]
    run = run_closed(">&-", *words)
    assert (run.returncode, run.stderr) == (0, "")
    assert len(list(store.rglob("g1/manifest.json"))) == 1


def test_a_verb_with_standard_input_closed_reads_nothing() -> None:
    run = run_closed("<&-", "token", "--hash")
    assert run.returncode == 2
    assert run.stderr.startswith("error: "), run.stderr
    run = run_closed("<&-", "get", "http://127.0.0.1:1", "-")
    assert (run.returncode, run.stderr) == (0, "")


def test_an_error_with_standard_error_closed_is_not_a_result() -> None:
    run = run_closed("2>&-", "build", "--json", "-f", "none.yaml")
    assert run.returncode == 2
    assert run.stdout.count("\n") == 1
    assert run.stdout.startswith('{"outcome":"failed"')


def test_a_manifest_that_is_given_counts_before_that_of_the_variable() -> None:
    run = CliRunner().invoke(cli, ["up", "-f", "a.yaml"], env={"LOOKUPDB_FILE": "b.yaml"})
    assert str(run.exception).startswith("a.yaml cannot be read")
    run = CliRunner().invoke(cli, ["up"], env={"LOOKUPDB_FILE": "b.yaml"})
    assert str(run.exception).startswith("b.yaml cannot be read")


INTERRUPTED_IMPORT = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
runpy.run_module("lookupdb", run_name="__main__")
"""


def test_ctrl_c_while_it_loads_its_libraries_ends_it_quietly() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["lookupdb"] == "lookupdb.__main__:main", "it begins there when it is installed, too"


def test_help_lists_every_verb_without_loading_any() -> None:
    run = CliRunner().invoke(cli, ["--help"])
    assert run.exit_code == 0
    assert all(f"  {verb} " in run.output for verb in VERBS)


@pytest.mark.parametrize("value", ["", "0"])
def test_the_version_comes_with_the_kernels_that_are_used(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(native.VARIABLE, value)
    run = lookupdb_elsewhere("--version")
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"lookupdb, version {__version__} ({native.describe()})\n"


def test_a_wrong_choice_of_kernels_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "no")
    run = lookupdb_elsewhere("--version")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("error: LOOKUPDB_NATIVE: expected 0 or 1, found 'no'\n")


def test_a_verb_of_another_package_is_found_by_its_entry_point_and_loaded_only_when_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = {
        "operator": EntryPoint("operator", "lookupdb_operator.command:command", ENTRY_POINT_GROUP),
        "louder": EntryPoint("louder", "click:echo", ENTRY_POINT_GROUP),
    }
    monkeypatch.setattr(lookupdb_cli, "other_verbs", lambda: points)
    run = CliRunner().invoke(cli, ["--help"])
    assert re.search("  operator +Run the Kubernetes operator[.]", run.output)
    assert re.search("  louder +Of click[.]", run.output)
    assert cli.get_command(click.Context(cli), "louder") is click.echo
    with pytest.raises(click.UsageError, match="Did you mean 'operator'"):
        cli.get_command(click.Context(cli), "opertor")


def test_no_other_package_displaces_a_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [EntryPoint("build", "click:echo", group)])
    assert lookupdb_cli.other_verbs.__wrapped__() == {}


def test_a_mistyped_verb_gets_the_near_one() -> None:
    run = lookupdb("bild")
    assert (run.returncode, "Did you mean 'build'?" in run.stderr) == (2, True)


def test_an_error_is_a_sentence_with_its_exit_code_and_no_traceback(tmp_path: Path) -> None:
    run = lookupdb("build", "-f", str(tmp_path / "none.yaml"))
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {tmp_path}/none.yaml cannot be read: No such file or directory")
    assert "Traceback" not in run.stderr


def test_an_interrupted_command_says_so(tmp_path: Path) -> None:
    fifo = tmp_path / "manifest.yaml"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "lookupdb", "build", "-f", str(fifo)]
    # Opening the pipe waits for the command to open it, which then waits for what we never write.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with fifo.open("w"), contextlib.suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            process.wait(timeout=5)  # Python notices a signal only when its present step ends
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.strip()) == (130, "interrupted")
