"""Every test starts from the same random numbers, and small tensors are not worth a second thread."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
