"""Every test starts from the same random numbers, and small tensors are not worth a second thread."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

torch.set_num_threads(1)
with suppress(ImportError):  # tests/timm runs without the lab
    from quarterturn_lab.runs.environment import WITHOUT_AMX, bf16_fault

    if bf16_fault():  # oneDNN asks for it at its first product
        os.environ.setdefault(*WITHOUT_AMX)
        bf16_fault.cache_clear()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of the lab's tests go into a folder of their own."""
    before = os.environ.get("QUARTERTURN_CACHE")
    os.environ["QUARTERTURN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["QUARTERTURN_CACHE"]
    else:
        os.environ["QUARTERTURN_CACHE"] = before
