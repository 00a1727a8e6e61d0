"""The features that the authors of TVR release: a folder ``tvr_feature_release`` of HDF5 files, a data set a video or query.

Below it ``video_feature/<feature>.h5`` has the videos, a row for each 1.5 s, and ``bert_feature/query_only`` and
``bert_feature/sub_query`` have the queries, under their ``desc_id``. Captions come with TVR's annotations: a split folder.

Source: Lei et al., ECCV 2020: the data sets and training scripts of the released code.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from prvr.datasets.foreign import Array, Contents, hdf5
from prvr.manifests.errors import ConfigurationError

TITLE = "TVR release"
_CLIP = re.compile(r"tvr_.+_cl-(\d+(?:\.\d+)?)\.h5")


def recognise(path: Path) -> bool:
    """An HDF5 file that is named after a clip length, ``tvr_…_cl-1.5.h5``."""
    return _CLIP.fullmatch(path.name) is not None and hdf5.recognise(path)


def places(root: Path) -> dict[str, Path]:
    """Files of ``video_feature``."""
    return {path.stem: path for path in sorted((root / "video_feature").glob("*.h5")) if recognise(path)}


def place(root: Path, feature: str) -> Path:
    """``video_feature/<feature>.h5``."""
    return root / "video_feature" / f"{feature}.h5"


def words(root: Path, feature: str) -> Path:
    """RoBERTa's words of the queries, tuned on queries alone. Those tuned on subtitles too lie in ``sub_query`` beside it."""
    return root / "bert_feature" / "query_only" / "tvr_query_pretrained_w_query.h5"


@contextmanager
def read(path: Path) -> Iterator[Contents]:
    """One entry a video, and how long a row is, which the file's name says.

    Raises:
        CorruptData: not HDF5, or cut short.
    """
    length = _CLIP.fullmatch(path.name)
    with hdf5.read(path) as contents:
        yield replace(contents, seconds_a_row=float(length[1]) if length else None)


def write(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Not written: its words go by TVR's own ids of queries, and its readers bring TVR's own captions.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(f"{TITLE} is read, not written; prvr-export hdf5 writes a data set a video too")
