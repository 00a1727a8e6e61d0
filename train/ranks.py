"""Several processes that train one model, as torchrun starts them: each reads and encodes its share of a step's videos,
and all compare all queries with all videos.

The loss is the same number on every rank, and that of one process with the same batch. A gathered code passes the sum of
the ranks' gradients to the rank that made it, and DistributedDataParallel averages those of parameters: together, the
gradient of that one loss.
"""

import logging
import os
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, distributed
from torch.nn import functional

from prvr.datasets.batch import Batch
from prvr.datasets.device import pick_device
from prvr.train.interface import Gathered, TextCode, VideoCode


@dataclass(frozen=True)
class World:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            distributed.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Of all ranks' tensors of one shape, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values


ALONE = World()


def join(device: str) -> tuple[World, torch.device]:
    """The world that torchrun made this process for, or a world of one, and the device that ``--device`` names here.

    Ranks meet over NCCL on GPUs, one each, and over Gloo on CPUs. Ranks but the first only warn.

    Raises:
        ConfigurationError: no such device here.
    """
    target = pick_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE, target
    if target.type == "cuda":
        target = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(target)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if target.type == "cuda" else "gloo")
    world = World(distributed.get_rank(), size)
    if not world.first:
        logging.getLogger("prvr").setLevel(logging.WARNING)
    return world, target


def evened(batch: Batch, world: World) -> tuple[Batch, Tensor]:
    """This rank's share, padded as the whole batch would be, and the sizes [ranks, 4] of all shares: V, Q, F, W.

    A released model may score a video by the length that it is padded to, and codes of one length can be gathered. A rank
    without a video, or without a query, gets one of zeros, which ``gather`` leaves out: so no model meets an empty batch,
    and every parameter a gradient.
    """
    own = torch.tensor([[*batch.frame_mask.shape, *batch.word_mask.shape]], device=batch.owner.device)
    sizes = torch.cat(_all(own))[:, [0, 2, 1, 3]].cpu()
    frames, words = (int(most) for most in sizes[:, 2:].amax(0))
    videos, queries = (max(1, len(rows)) for rows in (batch.frames, batch.words))
    padded = Batch(
        frames=_padded(batch.frames, videos, frames),
        frame_mask=_padded(batch.frame_mask, videos, frames),
        clips=_padded(batch.clips, videos, batch.clips.shape[1]),
        words=_padded(batch.words, queries, words),
        word_mask=_padded(batch.word_mask, queries, words),
        owner=functional.pad(batch.owner, (0, queries - len(batch.owner))),
    )
    return padded, sizes


def gather(
    batch: Batch, text: TextCode, video: VideoCode, sizes: Tensor, world: World
) -> tuple[TextCode, VideoCode, Gathered]:
    """The codes of all ranks, in the order of ranks, which is that of the whole batch.

    Args:
        batch, sizes: of ``evened``.
        text, video: this rank's.
    """
    videos, queries = sizes[:, 0].tolist(), sizes[:, 1].tolist()
    first = sum(videos[: world.rank])
    owner = _rows(batch.owner + first, queries, world.rank)
    place = min(first, sum(videos) - 1)  # of a rank without a video: any one
    here = slice(place, place + max(1, videos[world.rank]))
    rank = world.rank
    return (
        _code(text, queries, rank),
        _code(video, videos, rank),
        Gathered(owner, here, lambda code: _code(code, videos, rank)),
    )


def _code[Code: (TextCode, VideoCode)](code: Code, counts: list[int], rank: int) -> Code:
    """A code of all ranks' rows; what is not of rows, and the same on all ranks, stays."""
    shared = code.shared if isinstance(code, VideoCode) else frozenset()
    values = {field.name: getattr(code, field.name) for field in fields(code) if field.name not in shared}
    return replace(
        code, **{name: _rows(rows, counts, rank) for name, rows in values.items() if isinstance(rows, Tensor)}
    )


def _rows(own: Tensor, counts: list[int], rank: int) -> Tensor:
    """``counts[r]`` rows of each rank r, one after another; a gradient finds its way back."""
    most = max(counts)
    padded = functional.pad(own[: counts[rank]], (0, 0) * (own.dim() - 1) + (0, most - counts[rank]))
    return torch.cat([part[:count] for part, count in zip(_all(padded), counts, strict=True)])


def _padded(rows: Tensor, count: int, length: int) -> Tensor:
    """[N, L, …] to [count, length, …], with zeros."""
    widths = (0, 0) * (rows.dim() - 2)
    return functional.pad(rows, (*widths, 0, length - rows.shape[1], 0, count - rows.shape[0]))


def _all(own: Tensor) -> tuple[Tensor, ...]:
    """The tensors of all ranks, which are of one shape."""
    if own.is_floating_point():
        from torch.distributed.nn.functional import all_gather

        return tuple(all_gather(own))  # type: ignore[no-untyped-call]
    numbers = own.to(torch.int64 if own.dtype == torch.int64 else torch.uint8).contiguous()
    parts = [torch.empty_like(numbers) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, numbers)
    return tuple(part.to(own.dtype) for part in parts)
