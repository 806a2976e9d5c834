"""The benchmarks' report: what was measured apart outlives the next run."""

from benchmarks import report


def test_what_was_measured_apart_is_kept() -> None:
    apart = "\n## Measured apart\n\n### Allocator\n\n| a | b |\n"
    assert report.apart("# Benchmarks\n\n## Versions\n\n| c | d |\n" + apart) == apart


def test_a_report_without_such_a_part_leaves_nothing() -> None:
    assert report.apart("# Benchmarks\n\n## Versions\n") == ""
