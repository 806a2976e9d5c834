"""Run ``lookupdb``: the entry point of ``python -m lookupdb`` and of the installed program."""


def main() -> None:
    """Run the command line. Ctrl-C during imports ends it in the same way as later."""
    try:
        from lookupdb import cli
    except KeyboardInterrupt:
        from lookupdb.process.launch import end_interrupted

        end_interrupted()
    cli.main()


if __name__ == "__main__":
    main()
