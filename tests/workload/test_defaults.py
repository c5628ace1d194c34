"""`defaults`: how queries are kept that do not say so themselves."""

from __future__ import annotations

from impctl.workload.models import JoinStrategy, Lineage, Policy, StateKept
from tests.workload.conftest import Load, Problems

HEAD = "version: 1\ntables: {t: {path: a}}\n"


def test_queries_have_what_they_do_not_say(load: Load) -> None:
    queries = load(
        f"{HEAD}defaults: {{answer: true, policy: strict, buffer: 7}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, answer: false, policy: full, buffer: all}\n"
        "  c: {sql: SELECT 1, sketch: none}\n"
        "  d: {sql: SELECT 1, lineage: witness}\n"
    ).queries
    assert [query.answer for query in queries.values()] == [True, False, False, False]
    assert [query.policy for query in queries.values()] == [
        Policy.STRICT,
        Policy.FULL,
        Policy.STRICT,
        Policy.STRICT,
    ]
    assert [query.buffer for query in queries.values()] == [7, "all", 7, 7]
    assert queries["d"].lineage is Lineage.WITNESS


def test_what_is_wrong_is_told_once(problems: Problems) -> None:
    result = problems(
        f"{HEAD}defaults: {{answer: maybe, policy: hasty, sql: x}}\n"
        "queries: {a: {sql: SELECT 1}, b: {sql: SELECT 1}}\n"
    )
    assert len(result) == 3
    assert all("`defaults" in problem for problem in result)


def test_an_answer_asked_for_twice_over_is_an_error(problems: Problems) -> None:
    result = problems(f"{HEAD}queries: {{a: {{sql: SELECT 1, answer: true, sketch: none}}}}\n")
    assert len(result) == 1
    assert "sketch: none" in result[0]


def test_what_is_kept_is_said_once(load: Load, problems: Problems) -> None:
    """`join` says it too: `state` of the query beside it is an error, a default gives way."""
    queries = load(
        f"{HEAD}defaults: {{state: least}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, state: keep, join: auto}\n"
        "  c: {sql: SELECT 1, join: index}\n"
    ).queries
    assert [query.state for query in queries.values()] == [StateKept.LEAST, StateKept.KEEP, None]
    assert queries["c"].join is JoinStrategy.INDEX
    for rest in ("join: files", "join: tree"):
        (told,) = problems(f"{HEAD}queries: {{a: {{sql: SELECT 1, state: keep, {rest}}}}}\n")
        assert f"cannot be combined with `{rest}`" in told
    (told,) = problems(
        f"{HEAD}defaults: {{join: index}}\nqueries: {{a: {{sql: SELECT 1, state: keep}}}}\n"
    )
    assert "cannot be combined with `join: index`" in told
    (told,) = problems(f"{HEAD}queries: {{a: {{sql: SELECT 1, state: most}}}}\n")
    assert "`queries.a.state`" in told
