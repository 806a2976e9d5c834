"""The number of keys in a batch follows the size of values and the response time."""

from __future__ import annotations

from lookupdb.router.lane import BATCH_BYTES, BATCH_KEYS, FIRST_KEYS, BatchSize, fitting_slice_keys

MIB = 1 << 20


class TestBatchSize:
    def test_small_values_let_it_grow_to_the_most(self) -> None:
        size = BatchSize(0.1)
        assert size.keys == FIRST_KEYS
        for _ in range(4):
            size.measure(size.keys, size.keys * 100, 0.01)
        assert size.keys == BATCH_KEYS

    def test_large_values_shrink_it_at_once_so_that_an_answer_stays_small(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * 100_000, 0.01)
        assert size.keys == BATCH_BYTES // 100_000

    def test_a_value_larger_than_an_answer_should_be_travels_alone(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * MIB, 0.01)
        assert size.keys == 1

    def test_it_grows_back_step_by_step_when_values_are_small_again(self) -> None:
        size = BatchSize(10)
        size.measure(FIRST_KEYS, FIRST_KEYS * MIB, 0.01)
        grown = []
        for _ in range(40):
            size.measure(size.keys, size.keys * 100, 0.01)
            grown.append(size.keys)
        assert grown == sorted(grown)
        assert grown[-1] == BATCH_KEYS

    def test_a_large_answer_that_takes_too_long_has_fewer_keys_the_next_time(self) -> None:
        size = BatchSize(0.1)
        size.measure(100, 100 * 1000, 1.0)
        assert size.keys == 10

    def test_a_small_answer_that_takes_long_does_not(self) -> None:
        size = BatchSize(0.1)
        size.measure(100, 100 * 10, 1.0)
        assert size.keys > FIRST_KEYS

    def test_after_a_stall_it_is_a_quarter(self) -> None:
        size = BatchSize(0.1)
        size.shrink()
        assert size.keys == FIRST_KEYS // 4

    def test_parts_are_cut_by_the_size_of_values(self) -> None:
        assert fitting_slice_keys(0) == fitting_slice_keys(100) == 64
        assert fitting_slice_keys(100_000) == 5
        assert fitting_slice_keys(64 * MIB) == 1
