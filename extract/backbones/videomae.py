"""VideoMAE window features: Tong et al., VideoMAE: Masked Autoencoders are Data-Efficient Learners for Self-Supervised Video
Pre-Training, NeurIPS 2022 (arXiv 2203.12602), by transformers' own model.

The tap is the mean of the last hidden states over all patches, which the classifier of fine-tuned weights reads (after a
normalisation of its own). The weights fix the number of pictures in a window: 16.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import VideoMAEConfig, VideoMAEImageProcessor, VideoMAEModel

from prvr.extract.backbones._transformers import Pictures, load_model, load_processor
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError


@dataclass(frozen=True)
class VideoOptions:
    """None: pictures are prepared as the weights' preprocessor file says."""


def load_video(weights: Weights, options: VideoOptions, device: torch.device) -> Pictures:
    """The encoder; raises ConfigurationError for a folder of something else."""
    model = load_model(VideoMAEModel, weights, VideoMAEConfig)
    length = int(model.config.num_frames)

    def rows(windows: Tensor) -> Tensor:
        found = windows.shape[1] if windows.ndim == 5 else 1
        if found != length:
            raise ConfigurationError(f"windows of {found} pictures: these weights read {length}; set window.length")
        states: Tensor = model(pixel_values=windows).last_hidden_state
        return states.mean(dim=1)

    return Pictures(
        model,
        load_processor(VideoMAEImageProcessor, weights),
        rows,
        dim=int(model.config.hidden_size),
        sha256=weights.sha256(model.state_dict()),
        device=device,
    )
