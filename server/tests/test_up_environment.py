"""The environment that `lookupdb up` passes to its child processes."""

from lookupdb.up.child import BUILDER_VARIABLES, SERVER_VARIABLES, child_environment

GIVEN = {
    "PATH": "/bin",
    "AWS_ACCESS_KEY_ID": "id",
    "LOOKUPDB_LOG_FORMAT": "json",
    "LOOKUPDB_PORT": "8081",
    "LOOKUPDB_GENERATION": "g9",
    "LOOKUPDB_NATIVE": "0",
    "LOOKUPDB_PASSWORD": "secret",
    "LOOKUPDB_SCRATCH": "/scratch",
}


def test_a_server_is_not_told_what_was_meant_for_up_or_get() -> None:
    assert child_environment(SERVER_VARIABLES, GIVEN).keys() == {
        "PATH",
        "AWS_ACCESS_KEY_ID",
        "LOOKUPDB_LOG_FORMAT",
        "LOOKUPDB_NATIVE",
        "LOOKUPDB_PASSWORD",
    }


def test_a_builder_is_told_how_to_build_and_not_what() -> None:
    assert child_environment(BUILDER_VARIABLES, GIVEN).keys() == {
        "PATH",
        "AWS_ACCESS_KEY_ID",
        "LOOKUPDB_LOG_FORMAT",
        "LOOKUPDB_NATIVE",
        "LOOKUPDB_SCRATCH",
    }
