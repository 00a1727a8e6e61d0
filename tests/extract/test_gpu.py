"""Extraction on a GPU: the same operator, features that agree with the CPU's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from prvr.datasets.store import FeatureStore
from prvr.extract import decoders, recipes
from prvr.extract.backbones import clip
from prvr.extract.decoders import torchcodec
from prvr.extract.job import Job, Plan
from prvr.extract.precision import AGREES, agreement, pick_precision
from prvr.extract.run import extractor
from prvr.extract.sources import VideoFile
from prvr.extract.weights import Weights

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def _extract(video: Path, folder: Path, out: Path, **settings: object) -> FeatureStore:
    recipe = recipes.load("clip", {})
    plan = Plan(recipe, (Weights(str(folder), folder, None),), out / "clip.video.zarr")
    job = Job("video", (plan,), **settings)  # type: ignore[arg-type]
    sources = [VideoFile(f"v{number}", video) for number in range(5)]
    assert [report.status for report in extractor(job).run(sources)] == ["extracted"] * 5
    return FeatureStore.open(plan.store)


@GPU
@pytest.mark.parametrize("precision", ["auto", "float32", "float16", "bfloat16"])
def test_a_gpu_agrees_with_the_cpu(
    precision: str, make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path
) -> None:
    video = make_video(tmp_path / "v.mp4", [100 * n for n in range(60)])
    cpu = _extract(video, clip_folder, tmp_path / "cpu", device="cpu")
    gpu = _extract(video, clip_folder, tmp_path / "gpu", device="cuda", precision=precision)
    for id_ in cpu.ids:
        one, other = torch.tensor(cpu[id_]), torch.tensor(gpu[id_])
        assert torch.cosine_similarity(one, other).min() >= AGREES
        np.testing.assert_array_equal(cpu.times(id_), gpu.times(id_))


@GPU
def test_frames_decoded_on_the_gpu_stay_there(
    make_video: Callable[..., Path], clip_folder: Path, tmp_path: Path
) -> None:
    if not decoders.available("nvdec"):
        pytest.skip("torchcodec is an extra, and not installed here")
    torchcodec.check_libraries()
    from prvr.extract.decode import decode
    from prvr.extract.sampling import Sampling

    video = make_video(tmp_path / "v.mp4", [100 * n for n in range(60)], size=(256, 192))
    (batch,) = decode(video, [Sampling(3.0)], decoder="nvdec")
    assert batch.frames.is_cuda
    cpu = _extract(video, clip_folder, tmp_path / "cpu", device="cpu")
    gpu = _extract(video, clip_folder, tmp_path / "gpu", device="cuda", decoder="nvdec", precision="float32")
    assert torch.cosine_similarity(torch.tensor(cpu["v0"]), torch.tensor(gpu["v0"])).min() >= AGREES


def test_a_cpu_computes_in_float32(clip_folder: Path) -> None:
    backbone = clip.load_video(Weights("w", clip_folder, None), clip.VideoOptions(), torch.device("cpu"))
    assert pick_precision("auto", backbone, None, torch.device("cpu")) == torch.float32
    assert pick_precision("bfloat16", backbone, None, torch.device("cpu")) == torch.bfloat16


def test_agreement_is_measured(clip_folder: Path) -> None:
    # The CPU can compute in bfloat16 too, slowly: the probe is real here as well.
    backbone = clip.load_video(Weights("w", clip_folder, None), clip.VideoOptions(), torch.device("cpu"))
    coarse = agreement(backbone, None, torch.device("cpu"), torch.bfloat16)
    assert 0.99 < coarse < 1 - 1e-7
