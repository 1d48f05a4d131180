"""Values and files that nobody wants, and what may come of them."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from babn.errors import BabnError


def fuzzed(test: Any = None, *, cost: int = 1) -> Any:
    """A test of few examples, the same ones each time, unless `--hypothesis-profile=slow`.

    Args:
        test: The test.
        cost: How many times fewer examples a test has whose examples take long.
    """
    if test is None:
        return lambda test: fuzzed(test, cost=cost)
    many = settings.default is not None and settings.default.max_examples > 100
    chosen = settings(
        max_examples=max(5, (settings.default.max_examples if many else 25) // cost),
        deadline=None,
        derandomize=not many,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return chosen(test)


numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**30, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.5, 1e-300, 1e300, -1.0]),
)
texts = st.one_of(
    st.sampled_from(["", " ", "mrpc", "small", "belief", "nan", "\x00", "a/b", "../..", "ä" * 300]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
simple = st.one_of(numbers, texts, st.booleans())
values = st.one_of(
    simple,
    st.lists(simple, max_size=3),
    st.dictionaries(texts, simple, max_size=3),
)


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value).replace("e+", "e")
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)} = {toml(v)}' for k, v in value.items())}}}"
    return str(value) if isinstance(value, int) else _text(value)


def _text(value: str) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f")


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """A file of which something is cut out, put in, doubled or changed."""
    place = st.integers(0, max(len(content), 1))
    junk = st.sampled_from(
        [
            *(b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b"\r\n", b"\t", b'"', b"[" * 3000),
            *(b"{", b"\xef\xbb\xbf", b"null", b"NaN", b"-1", b"x" * 100_000, b"9" * 5000),
            *(b'"\\ud800"', b"\x1a", b"\xe2\x80\xa8", b"true", b"1e999"),
        ]
    )
    changed = st.builds(
        lambda a, b, new: content[: min(a, b)] + new + content[max(a, b) :], place, place, junk
    )
    inserted = st.builds(lambda at, new: content[:at] + new + content[at:], place, junk)
    whole = st.sampled_from(
        [
            *(b"", b"\n", b"[]", b"{}", b"\n" + content, content + b"\n\n", content * 2),
            *(b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n")),
            content.decode(errors="replace").encode("utf-16"),
        ]
    )
    return st.one_of(changed, inserted, whole, st.binary(max_size=30))


def result_or_error(work: Callable[[], Any], *named: str) -> Any:
    """What work gives, or `None` if it ends with one of babn's errors that names what is wrong."""
    try:
        with as_installed():
            return work()
    except (BabnError, OSError) as error:
        assert str(error).strip() and all(name in str(error) for name in named), repr(error)
        return None


@contextmanager
def as_installed() -> Iterator[None]:
    """Without the type checks of the test run, which would come before babn's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
