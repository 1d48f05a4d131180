from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of encoded data that belongs to the test run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BABN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
