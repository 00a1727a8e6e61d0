"""Where tensors live, as users name it."""

import torch

from prvr.manifests.errors import ConfigurationError


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one, else the CPU; ``cpu``, ``cuda`` and ``cuda:N`` are themselves.

    Raises:
        ConfigurationError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"--device {name!r}: auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device cuda: no GPU can be used here")
    return device
