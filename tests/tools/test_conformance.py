"""The combinations of docs/conformance.md: every pair of values stands in a row."""

from itertools import combinations, product

from tools.conformance import PAGE, Row, count_runs, rows


def test_every_pair_of_versions_stands_in_a_row() -> None:
    found = rows(PAGE.read_text())
    assert [row.number for row in found] == [str(n) for n in range(1, 14)]
    for one, other in combinations(Row._fields[1:-1], 2):
        pairs = {(getattr(row, one), getattr(row, other)) for row in found}
        ones, others = zip(*pairs, strict=True)
        assert pairs == set(product(set(ones), set(others)))


def test_the_page_begins_with_how_many_rows_ran() -> None:
    page = PAGE.read_text()
    assert count_runs(page) == page
    assert count_runs(page.replace("not run: no run yet", "today: 1 passed")) != page


def test_a_row_is_written_as_it_was_read() -> None:
    page = PAGE.read_text()
    assert all(f"\n{row}\n" in page for row in rows(page))
