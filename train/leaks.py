"""Videos of the reported split that are trained on under another name: no score on that split means anything then."""

import hashlib
from collections.abc import Iterator

from prvr.datasets.stream import ShardReader
from prvr.manifests.progress import progress


def same_videos(train: ShardReader, reported: ShardReader) -> list[tuple[str, str]]:
    """Pairs of ids, of ``train`` and of ``reported``, whose features are the same byte for byte though the ids differ.

    Reads each sample of both once. Raises CorruptData where bytes are not those that were written.
    """
    known = {digest: video_id for video_id, digest in _digests(train, "looking for leaks in train")}
    found = _digests(reported, f"looking for leaks in {reported.index.split}")
    pairs = ((known[digest], video_id) for video_id, digest in found if digest in known)
    return [(one, other) for one, other in pairs if one != other]


def _digests(reader: ShardReader, what: str) -> Iterator[tuple[str, bytes]]:
    """Of the pooled clips: as many rows for every video, and as telling as its frames."""
    samples = reader.lent(range(len(reader)))
    for sample in progress(samples, what, len(reader)):
        yield sample.video.video_id, hashlib.blake2b(sample.clips.tobytes(), digest_size=16).digest()
