from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of encoded data that belongs to the test run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BABN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep on this machine that nothing has happened to."""
    from small_sweeps import finish_sweep, start_sweep

    folder = tmp_path_factory.mktemp("undisturbed")
    finish_sweep(start_sweep(folder))
    return folder
