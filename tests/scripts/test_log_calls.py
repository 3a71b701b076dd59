"""Events are found in sources, however their names reach the log call."""

from __future__ import annotations

from pathlib import Path

import pytest

from refdocs.log_calls import Unclear, events_in, events_of

HEAD = 'from .log import get_logger\nlog = get_logger("rmq.x")\n'


def found(body: str, **others: str) -> list[tuple[str, str, list[str]]]:
    """Return name, level and keys of the events of a module, next to others of its package."""
    modules = {"x/module.py": HEAD + body, **{f"x/{name}.py": text for name, text in others.items()}}
    return [(name, level, keys) for name, level, _, keys in events_in(modules)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('log.info("a.b", group=1, queue=2)', [("a.b", "info", ["group", "queue"])]),
        ('log.exception("a.b")', [("a.b", "error", ["exception"])]),
        ('log.error("a.b", exc_info=error)', [("a.b", "error", ["exception"])]),
        ('log.critical("a.b")', [("a.b", "critical", [])]),
        ('log.warning("a.b" if full else "a.c", n=1)', [("a.b", "warning", ["n"]), ("a.c", "warning", ["n"])]),
        ('def f():\n    told = {"queue": 1, "count": 2}\n    log.info("a.b", **told, at=3)',
         [("a.b", "info", ["queue", "count", "at"])]),
        ("catalog.info('a.b'); log.close('a.b')", []),
    ],
)  # fmt: skip
def test_a_call_of_the_log_is_an_event_with_its_level_and_keys(body: str, expected: list[object]) -> None:
    assert found(body) == expected


def test_an_event_name_passed_as_an_argument_is_found_at_the_calls() -> None:
    body = "class A:\n    def _warn(self, queue, event):\n        log.warning(event, queue=queue)\n"

    calls = 'self._warn(1, "a.b")\nself._warn(2, event="a.c")\nself._warn(3, "a.b")'

    assert found(body, other=calls) == [("a.b", "warning", ["queue"]), ("a.c", "warning", ["queue"])]


def test_an_event_name_paired_with_its_advice_is_found_where_the_pair_is_made() -> None:
    body = "def warn(event, advice):\n    log.warning(event, advice=advice)\nwarn(*judged)\n"

    assert found(body, other='x = ("listener.odd", text)\ny = ("no event", 1)') == [
        ("listener.odd", "warning", ["advice"])
    ]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("log.info(name)", "x/module.py:3: which event name is"),
        ("def f(name):\n    log.info(name)", "x/module.py:4: nobody calls f"),
        ("def f(name):\n    log.info(name)\nf(other)", "which event other is"),
        ('def f(told):\n    log.info("a.b", **told)', "the keys in told"),
        ('log.info("a.b", **told)', "the keys in told"),
        ('self._log.info("a.b")', "what logs must be called log, not self._log"),
        ('logging.getLogger("x").error("a.b")', "what logs must be called log"),
    ],
)
def test_an_event_that_the_source_does_not_show_is_an_error_with_its_place(body: str, complaint: str) -> None:
    with pytest.raises(Unclear, match=complaint):
        found(body)


def test_an_event_logged_in_several_places_has_the_levels_loggers_and_keys_of_all(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.py").write_text(HEAD + 'log.info("a.b", one=1, two=2)\n')
    (tmp_path / "x" / "b.py").write_text('log = get_logger(__name__)\nlog.error("a.b", two=2, three=3)\n')

    (event,) = events_of(tmp_path, {"x": ["x"]})

    assert (event.component, event.name) == ("x", "a.b")
    assert (event.levels, event.loggers) == (["info", "error"], ["rmq.x", "rmq.x.b"])
    assert event.keys == ["one", "two", "three"]
