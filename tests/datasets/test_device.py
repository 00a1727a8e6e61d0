"""Names of devices."""

import pytest
import torch

from prvr.datasets.device import pick_device
from prvr.manifests.errors import ConfigurationError


def test_auto_and_names() -> None:
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")
    for name in ("gpu", "mps", "meta"):
        with pytest.raises(ConfigurationError, match="auto, cpu, cuda or cuda:N"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="no GPU"):
        pick_device("cuda:0")
