"""Where tensors live, as users name it."""

import torch

from prvr.manifests.errors import ConfigurationError


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one, else the CPU; other names are torch's.

    Raises:
        ConfigurationError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"--device {name!r}: auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device cuda: no GPU can be used here")
    return device
