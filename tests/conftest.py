"""Fixtures that every folder of tests shares."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from numpy.typing import NDArray

_ROOT = Path(__file__).resolve().parents[1]
# The root on sys.path would make our folder `datasets` shadow Hugging Face's package of that name.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _ROOT]

from prvr.datasets.build import build  # noqa: E402
from prvr.datasets.source import StoreSource  # noqa: E402
from prvr.datasets.store import Features, FeatureSpec, FeatureStore  # noqa: E402
from prvr.manifests.split import Query, Split, Video  # noqa: E402

# What the commands under test would read from the environment of whoever runs the tests.
for _name in [name for name in os.environ if name.startswith("PRVR_") and name != "PRVR_SHARED"]:
    del os.environ[_name]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of goldens, annotations and videos, which is not part of the repository."""
    path = Path(os.environ.get("PRVR_SHARED", _ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no {path}: the goldens and sample data are not in the repository; name them with PRVR_SHARED")
    return path


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return _ROOT


type MakeVideo = Callable[..., Path]


@pytest.fixture(scope="session")
def make_video() -> MakeVideo:
    """A function that encodes a video whose frame number can be read from its pixels (``frame_number``)."""
    import av

    def make(
        path: Path,
        times: list[int],
        *,
        rate: int = 10,
        codec: str = "libx264",
        size: tuple[int, int] = (64, 48),
        options: dict[str, str] | None = None,
    ) -> Path:
        """``times``: presentation times in units of 1/(100 · rate) seconds."""
        from fractions import Fraction

        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=rate, options=options or {"crf": "10"})
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            base = stream.codec_context.time_base = Fraction(1, 100 * rate)
            for number, time in enumerate(times):
                picture = np.zeros((size[1], size[0], 3), np.uint8)
                # Eight bars, white where the number has a 1.
                for bit in range(8):
                    if number >> bit & 1:
                        picture[:, bit * size[0] // 8 : (bit + 1) * size[0] // 8] = 255
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = time, base
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return make


@pytest.fixture(scope="session")
def frame_number() -> Callable[[NDArray[np.uint8]], int]:
    """A function that reads the number that ``make_video`` drew into a picture [3, H, W]."""

    def read(picture: NDArray[np.uint8]) -> int:
        bars = np.array_split(picture.mean(axis=(0, 1)), 8)
        return sum(int(bar.mean() > 127) << bit for bit, bar in enumerate(bars))

    return read


@pytest.fixture(scope="session")
def spec() -> Callable[..., FeatureSpec]:
    """A function that makes a feature spec."""

    def make(stream: str = "video", dim: int = 8, **changes: Any) -> FeatureSpec:
        values = {
            "stream": stream,
            "backbone": "made",
            "recipe": "made",
            "recipe_digest": "0" * 64,
            "weights": "random:0",
            "weights_sha256": "1" * 64,
            "dim": dim,
            "dtype": "float32",
            "compute_threads": 1,
            "versions": {},
        }
        return FeatureSpec(**{**values, **changes})

    return make


@dataclass(frozen=True)
class World:
    """A small data set that can be learnt: a split, its feature stores, and shards in ``data``."""

    split: Split
    videos: Path
    words: Path
    data: Path


@pytest.fixture(scope="session")
def make_world(spec: Callable[..., FeatureSpec]) -> Callable[..., World]:
    """A function that makes a ``World`` whose captions tell moments apart: words and frames of a moment share a vector."""

    def make(folder: Path, *, train: int = 12, test: int = 8, dim: int = 8, words: int = 6, seed: int = 0) -> World:
        rng = np.random.default_rng(seed)
        to_words = rng.standard_normal((dim, words)).astype(np.float32)
        video_rows, text_rows, videos = [], [], {}
        for name, count in (("train", train), ("test", test)):
            found = []
            for number in range(count):
                video_id = f"{name}.{number}"
                moments = rng.standard_normal((3, dim)).astype(np.float32)
                steps = np.repeat(moments, rng.integers(3, 7, 3), axis=0)
                steps = (steps + 0.1 * rng.standard_normal(steps.shape)).astype(np.float32)
                times = (np.arange(len(steps)) + 0.5) / 3
                video_rows.append(Features(video_id, "made", steps, times))
                queries = []
                for moment in range(3):
                    query = Query(f"{video_id}#enc#{moment}", f"moment {moment} of {video_id}")
                    rows = np.repeat((moments[moment] @ to_words)[None], 2 + moment, axis=0)
                    text_rows.append(Features(query.query_id, query.fingerprint(), rows, np.arange(len(rows)) * 1.0))
                    queries.append(query)
                found.append(Video(video_id, float(times[-1] + 1 / 6), tuple(queries)))
            videos[name] = tuple(found)
        world = World(Split("made", "published", videos), folder / "v.zarr", folder / "w.zarr", folder / "data")
        FeatureStore.create(world.videos, spec("video", dim)).commit(video_rows)
        FeatureStore.create(world.words, spec("text", words)).commit(text_rows)
        build(world.split, world.data, StoreSource([world.videos], world.words))
        return world

    return make


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, make_world: Callable[..., World]) -> World:
    """One ``World``, to be read from alone."""
    return make_world(tmp_path_factory.mktemp("world"))


type Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """A function that runs a command in this process: its exit code, stdout and stderr."""

    def run(command: click.Command, *arguments: object) -> Result:
        return CliRunner().invoke(command, [str(argument) for argument in arguments])

    return run


CAPTIONS = ["a small red square bounces off the left wall", "a large green circle appears", "two shapes collide"]


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP folder as transformers saves one, with random weights and a real vocabulary."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    folder = tmp_path_factory.mktemp("clip")
    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    letters = sorted({letter for word in words for letter in word})
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    kind = {"tokenizer_class": "CLIPTokenizer", "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
    kind |= {"unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={
            **sizes,
            "projection_dim": 12,
            "vocab_size": len(tokens),
            "max_position_embeddings": 77,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={**sizes, "projection_dim": 12, "image_size": 32, "patch_size": 16},
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa folder as transformers saves one, with random weights and a real vocabulary."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(CAPTIONS, vocab_size=300, special_tokens=special)
    tokenizer.save_model(str(folder))
    RobertaTokenizer.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)
    return folder
