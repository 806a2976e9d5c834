"""Who may build and roll out: of many datasets some at a time."""
