"""Shards without an index: whatever WebDataset opens (``pipe:``, ``http:``, ``gs:``, braces) or fsspec (``s3:``, ``memory:``, …).

Members are our ``.safetensors`` and ``.json`` alone, read as data; a member of another kind is refused by name, and nothing is
unpickled, as WebDataset's own ``decode()`` would. What can be told without an index is an error: a tar without its end of
archive, a damaged tar header, a command that fails, a sample without one of its files, or under another video's key. What cannot
be told: a shard that the pattern leaves out, a tar that ends well but was written short, and values that changed inside a
member. Where an epoch must be whole, or be resumed, or be shared among ranks, read by an index: ``stream``.
"""

import itertools
import random
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self
from urllib.parse import urlparse

from prvr.datasets.batch import Batch
from prvr.datasets.prefetch import AHEAD_BYTES, prefetched
from prvr.datasets.remote import file_system
from prvr.datasets.sample import Sample, decode, key_of
from prvr.datasets.stream import Collate
from prvr.manifests.errors import CorruptData, MissingInput, PrvrError

_KINDS = {"safetensors", "json"}
_BLOCK = 1 << 20


def samples(pattern: str, *, seed: int = 0, epoch: int = 0, shuffle: int = 0) -> Iterator[Sample]:
    """The samples of all tars of a pattern.

    Args:
        pattern: braces are expanded, ``::`` stands between several, as WebDataset has it. ``pipe:`` runs a shell command.
        shuffle: how many videos are held and mixed, after the tars were put in another order for each (seed, epoch); 0 leaves
            all as it lies.

    Raises:
        MissingInput: a local tar that is absent; no package for the URL's protocol.
        CorruptData: a tar that is cut, or is not of prvr; a stream that breaks off.
    """
    from webdataset.filters import shuffle as mixed
    from webdataset.shardlists import expand_urls

    urls = expand_urls(pattern)
    if not shuffle:
        return _samples(urls)
    rng = random.Random(f"{seed} {epoch}")
    rng.shuffle(urls)
    found: Iterator[Sample] = mixed(shuffle, initial=shuffle, rng=rng)(_samples(urls))
    return found


def batches(samples: Iterable[Sample], size: int, collate: Collate, *, ahead: int = AHEAD_BYTES) -> Iterator[Batch]:
    """Batches of ``size`` videos, the last of what is left, made ahead as ``stream`` does."""
    return prefetched((collate(several) for several in itertools.batched(samples, size)), ahead)


def _samples(urls: Sequence[str]) -> Iterator[Sample]:
    from webdataset.tariterators import group_by_keys

    for url in urls:
        try:
            yield from map(_decoded, group_by_keys(_members(url)))
        except PrvrError:
            raise
        except FileNotFoundError as error:
            raise MissingInput(f"{url}: {error.strerror or 'no such file'}") from None
        except (ValueError, tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise CorruptData(f"{url}: cannot be read to its end ({error})") from error


def _decoded(grouped: Mapping[str, Any]) -> Sample:
    where = f"{grouped['__url__']}: {grouped['__key__']}"
    for kind in _KINDS - grouped.keys():
        raise CorruptData(f"{where} has no .{kind}")
    try:
        sample = decode(grouped["safetensors"], grouped["json"])
    except CorruptData as error:
        raise CorruptData(f"{where} is {error}") from None
    if key_of(sample.video.video_id) != grouped["__key__"].rpartition("/")[2]:
        raise CorruptData(f"{where} is of video {sample.video.video_id!r}, whose key is another")
    return sample


def _members(url: str) -> Iterator[dict[str, Any]]:
    """The files of one tar, as WebDataset hands them on."""
    from webdataset.tariterators import base_plus_ext

    with _opened(url) as stream, tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Member) as tar:
        for member in tar:
            if member.isdir():
                continue
            _, kind = base_plus_ext(member.name)
            content = tar.extractfile(member) if member.isreg() and kind in _KINDS else None
            if content is None:
                raise CorruptData(
                    f"{url}: {member.name!r} is no .safetensors or .json file; shards of prvr hold nothing else"
                )
            yield {"fname": member.name, "data": content.read(), "__url__": url}


class _Member(tarfile.TarInfo):
    """A tar ends where its end of archive stands, and nowhere else; for tarfile it also ends at what is no header."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """The next member; raises EOFHeaderError at the end, ReadError elsewhere."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"cut or damaged before its end of archive: {error}") from None


@contextmanager
def _opened(url: str) -> Iterator[BinaryIO]:
    """A stream that is read to its end, so that a command's failure is seen; one that is left early may end as it will."""
    stream = _open(url)
    try:
        yield stream
        while stream.read(_BLOCK):
            pass
    except BaseException:
        with suppress(OSError):
            stream.close()
        raise
    stream.close()


def _open(url: str) -> BinaryIO:
    from webdataset.gopen import gopen, gopen_schemes

    if "://" in url and urlparse(url).scheme not in {*gopen_schemes, "file"}:
        system, path = file_system(url)
        return system.open(path, "rb")  # type: ignore[no-any-return]
    return gopen(url, "rb")  # type: ignore[no-any-return]
