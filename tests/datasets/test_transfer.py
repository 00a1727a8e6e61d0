"""Features of others to shards and back: equal arrays, equal ids, and the released codes' own tensors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from click.testing import Result
from numpy.typing import NDArray
from safetensors.torch import load_file

from prvr.datasets import foreign
from prvr.datasets.build import build
from prvr.datasets.foreign import mssl
from prvr.datasets.foreign._captions import named
from prvr.datasets.imports import opened
from prvr.datasets.source import StoreSource
from prvr.datasets.store import Features, FeatureStore
from prvr.datasets.stream import Collate, ShardReader
from prvr.datasets.transfer_cli import export, import_
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.split import Query, Split, Video
from prvr.train.cli import main as train

type Invoke = Callable[..., Result]
type Array = NDArray[Any]
IDS = ["plain", "-4wsuPCjDBc_5_15", "a.b", "quote'd", "vid\u00e9o", "vide\u0301o", "x" * 200]


def _json(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture
def gold(shared: Path) -> Path:
    return shared / "golden" / "prvr" / "layout" / "gold"


def _contents(layout: str, path: Path) -> dict[str, Array]:
    with opened(foreign.load(layout), path) as features:
        return {id_: np.array(entry.read()) for id_, entry in features.entries.items()}


def _words(path: Path) -> dict[str, Array]:
    with h5py.File(path, "r") as file:
        return {name: file[name][()] for name in file}


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert list(one) == list(other)
    for id_ in one:
        np.testing.assert_array_equal(one[id_], other[id_], err_msg=id_)


def _made(root: Path, rows: Mapping[str, Array], layout: str = "mssl") -> Path:
    """A collection of two splits, whose captions have three words each."""
    rng = np.random.default_rng(1)
    captions = {f"{id_}#enc#{n}": rng.standard_normal((3, 5)).astype(np.float32) for id_ in rows for n in range(2)}
    kind = foreign.load(layout)
    kind.write(kind.place(root, "made"), rows.items())
    kind.write(kind.words(root, "made"), captions.items())
    (root / "TextData").mkdir(exist_ok=True)
    ids = list(rows)
    for part, own in (("train", ids[:-2]), ("val", ids[-2:]), ("test", ids[-2:])):
        text = "".join(f"{id_}#enc#{n}  sentence {n}  of it \n" for id_ in own for n in range(2))
        (root / "TextData" / f"{root.name}{part}.caption.txt").write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def rows() -> dict[str, Array]:
    """Videos of odd ids, and of more and fewer steps than shards keep."""
    rng = np.random.default_rng(0)
    lengths = [1, 20, 127, 128, 64, 129, 300]
    return {id_: rng.standard_normal((n, 6)).astype(np.float32) for id_, n in zip(IDS, lengths, strict=True)}


def test_the_released_codes_batches(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    """What MS-SL's own data set and collate make of the same files, sorted by length as it does."""
    _json(invoke(import_, "mssl", gold, "--feature", "i3d", "--out", tmp_path / "s", "--json"))
    system = gold.parents[1] / "mssl"
    golden = load_file(system / "golden.safetensors")
    info = json.loads((system / "info.json").read_text(encoding="utf-8"))
    for kind, split, order in (
        ("trainin", "train", info["train_video_order"]),
        ("evalin", "test", info["eval_video_order"]),
    ):
        with ShardReader(tmp_path / "s", split) as reader:
            samples = [reader[reader.index.video_ids.index(video)] for video in order]
        batch = Collate(normalise=True, max_words=30)(samples)
        ids = [query.query_id for sample in samples for query in sample.video.queries]
        rows = [ids.index(id_) for id_ in info["eval_query_order"]] if kind == "evalin" else list(range(len(ids)))
        torch.testing.assert_close(batch.frames, golden[f"{kind}_frame_video_features"], rtol=0, atol=1e-6)
        torch.testing.assert_close(batch.clips, golden[f"{kind}_clip_video_features"], rtol=0, atol=1e-6)
        torch.testing.assert_close(batch.words[rows], golden[f"{kind}_text_feat"], rtol=0, atol=1e-6)
        assert torch.equal(batch.frame_mask, golden[f"{kind}_videos_mask"].bool())
        assert torch.equal(batch.word_mask[rows], golden[f"{kind}_text_mask"].bool())
        if kind == "trainin":
            assert torch.equal(batch.owner, golden["trainin_text_labels"])


def test_amdnets_batches(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    """Its pair of CLIP files: a vector a caption, and nothing normalised."""
    built = _json(invoke(import_, "hdf5", gold, "--out", tmp_path / "s", "--json"))
    assert built["splits"]["train"] == {"videos": 12, "queries": 30}
    system = gold.parents[1] / "amdnet"
    golden = load_file(system / "golden.safetensors")
    info = json.loads((system / "info.json").read_text(encoding="utf-8"))
    order = json.loads((gold.parents[1] / "mssl" / "info.json").read_text(encoding="utf-8"))["train_video_order"]
    with ShardReader(tmp_path / "s", "train") as reader:
        samples = {video: reader[row] for row, video in enumerate(reader.index.video_ids)}
    collate = Collate(normalise=False, max_words=30)
    batch = collate([samples[video] for video in order])
    torch.testing.assert_close(batch.frames, golden["trainin_frame_video_features"], rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.clips, golden["trainin_clip_video_features"], rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.words[:, 0], golden["trainin_text_feat"], rtol=0, atol=1e-6)
    assert torch.equal(batch.owner, golden["trainin_text_labels"])
    batch = collate([samples[video] for video in info["eval_video_order"]])
    ids = [query.query_id for video in info["eval_video_order"] for query in samples[video].video.queries]
    rows = [ids.index(id_) for id_ in info["eval_query_order"]]
    torch.testing.assert_close(batch.clips, golden["evalin_clip_video_features"], rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.words[rows, 0], golden["evalin_text_feat"], rtol=0, atol=1e-6)


def test_there_and_back_with_the_golden_layout(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    words = (import_, "mssl", gold, "--out", tmp_path / "s", "--keep-steps", "--json")
    built = _json(invoke(*words))
    assert built["dataset"] == "gold" and built["overlap"] == {"dev": 12, "test": 12} and not built["missing"]
    done = _json(invoke(export, "mssl", tmp_path / "s", "--out", tmp_path / "o", "--json"))
    assert done["feature"] == "i3d" and (done["videos"], done["queries"], done["pooled"]) == (12, 30, 0)
    ours = tmp_path / "o" / "gold"
    _same(_contents("mssl", ours / "FeatureData" / "i3d"), _contents("mssl", gold / "FeatureData" / "i3d"))
    for name in ("goldtrain.caption.txt", "goldval.caption.txt", "goldtest.caption.txt"):
        assert (ours / "TextData" / name).read_text() == (gold / "TextData" / name).read_text()
    name = "roberta_gold_query_feat.hdf5"
    _same(_words(ours / "TextData" / name), _words(gold / "TextData" / name))
    assert not [path for path in (tmp_path / "o").iterdir() if path.name != "gold"]


@pytest.mark.parametrize("layout", ["mssl", "hdf5", "npz"])
def test_there_and_back(layout: str, invoke: Invoke, rows: dict[str, Array], tmp_path: Path) -> None:
    root = _made(tmp_path / "made", rows, layout)
    kind = foreign.load(layout)
    built = _json(invoke(import_, layout, root, "--out", tmp_path / "s", "--keep-steps", "--json"))
    assert built["splits"]["train"] == {"videos": 5, "queries": 10} and built["overlap"] == {}
    assert built["repairs"] == {"white space in text": 18}
    _json(invoke(export, layout, tmp_path / "s", "--out", tmp_path / "o", "--json"))
    again = tmp_path / "o" / "made"
    before, after = (_contents(layout, kind.place(one, "made")) for one in (root, again))
    _same(dict(sorted(before.items())), dict(sorted(after.items())))
    before, after = (_contents("npz" if layout == "npz" else "hdf5", kind.words(one, "made")) for one in (root, again))
    _same(dict(sorted(before.items())), dict(sorted(after.items())))
    assert set(before) == {f"{id_}#enc#{n}" for id_ in IDS for n in range(2)}


def test_amdnets_pair_there_and_back(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    _json(invoke(import_, "hdf5", gold, "--out", tmp_path / "s", "--keep-steps", "--json"))
    _json(invoke(export, "hdf5", tmp_path / "s", "--out", tmp_path / "o", "--json"))
    for name in ("FeatureData/new_clip_vit_32_gold_vid_features.hdf5", "TextData/clip_ViT_B_32_gold_query_feat.hdf5"):
        _same(_words(tmp_path / "o" / "gold" / name), _words(gold / name))


def _read_frame_by_frame(folder: Path) -> dict[str, Array]:
    """As the released code does it: open, seek and read for each frame; ``id.txt`` as Latin-1, and a dict that is evaluated."""
    count, width = map(int, (folder / "shape.txt").read_text().split())
    names = (folder / "id.txt").read_text(encoding="ISO-8859-1").strip().split()
    assert len(names) == count == len(set(names))
    place = {name: row for row, name in enumerate(names)}
    videos = {}
    for video, frames in eval((folder / "video2frames.txt").read_text(encoding="utf-8")).items():
        read = []
        for frame in frames:
            with (folder / "feature.bin").open("rb") as file:
                file.seek(place[frame] * width * 4)
                read.append(np.frombuffer(file.read(width * 4), np.float32))
        videos[video] = np.stack(read)
    return videos


def test_a_reader_of_another_hand_reads_what_is_exported(
    invoke: Invoke, rows: dict[str, Array], tmp_path: Path
) -> None:
    root = _made(tmp_path / "made", rows)
    _json(invoke(import_, "mssl", root, "--out", tmp_path / "s", "--keep-steps", "--json"))
    _json(invoke(export, "mssl", tmp_path / "s", "--out", tmp_path / "o", "--json"))
    _same(_read_frame_by_frame(tmp_path / "o" / "made" / "FeatureData" / "made"), rows)
    lines = (tmp_path / "o" / "made" / "TextData" / "madetrain.caption.txt").read_text(encoding="utf-8").split("\n")
    cap_id, text = lines[0].strip().split(" ", 1)
    assert cap_id.split("#")[0] == "plain" and text == "sentence 0 of it"


def test_a_reader_of_another_hand_reads_the_golden_videos(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    _json(invoke(import_, "mssl", gold, "--out", tmp_path / "s", "--keep-steps", "--json"))
    _json(invoke(export, "mssl", tmp_path / "s", "--out", tmp_path / "o", "--json"))
    with np.load(gold.parents[1] / "raw_videos.npz") as raw:
        _same(_read_frame_by_frame(tmp_path / "o" / "gold" / "FeatureData" / "i3d"), dict(raw))
    words = _words(tmp_path / "o" / "gold" / "TextData" / "roberta_gold_query_feat.hdf5")
    with np.load(gold.parents[1] / "raw_queries.npz") as raw:
        _same(words, {id_: raw[id_.replace("#", "__")] for id_ in words})
        assert len(words) == len(raw.files)


def test_pooled_rows_are_not_passed_off_as_steps(invoke: Invoke, rows: dict[str, Array], tmp_path: Path) -> None:
    root = _made(tmp_path / "made", rows)
    _json(invoke(import_, "mssl", root, "--out", tmp_path / "s", "--json"))
    words = (export, "mssl", tmp_path / "s", "--out", tmp_path / "o")
    refused = invoke(*words)
    assert refused.exit_code == 2 and "2 videos had more steps" in refused.stderr and "--keep-steps" in refused.stderr
    assert not list((tmp_path / "o").glob("*"))
    assert _json(invoke(*words, "--pooled", "--json"))["pooled"] == 2
    there = invoke(*words, "--pooled")
    assert there.exit_code == 2 and "--overwrite replaces it" in there.stderr
    assert _json(invoke(*words, "--pooled", "--overwrite", "--collection", "made", "--json"))["videos"] == 7


def test_what_is_built_here_is_exported_too(invoke: Invoke, world: Any, tmp_path: Path) -> None:
    done = _json(invoke(export, "mssl", world.data, "--out", tmp_path, "--feature", "made", "--json"))
    assert done["queries"] == 60
    _json(invoke(import_, "mssl", tmp_path / "made", "--out", tmp_path / "s", "--json"))
    for split in ("train", "test"):
        with ShardReader(world.data, split) as ours, ShardReader(tmp_path / "s", split) as theirs:
            assert ours.index.video_ids == theirs.index.video_ids
            for row in range(len(ours)):
                np.testing.assert_array_equal(ours[row].clips, theirs[row].clips)
                assert ours[row].times == "seconds" and theirs[row].times == "fractions"
                for mine, other in zip(ours[row].words, theirs[row].words, strict=True):
                    np.testing.assert_array_equal(mine, other)


def test_training_on_what_is_imported(invoke: Invoke, gold: Path, tmp_path: Path) -> None:
    """The golden layout's three splits are the same videos on purpose."""
    _json(invoke(import_, "mssl", gold, "--out", tmp_path / "s", "--json"))
    words = (train, "--shards", tmp_path / "s", "--out", tmp_path / "run", "--epochs", 1, "--set", "ms-sl.hidden=8")
    refused = invoke(*words)
    assert refused.exit_code == 2 and "12 videos stand in train and in dev" in refused.stderr
    assert _json(invoke(*words, "--allow-overlap", "--json"))["selected_on"] == "dev"


def test_with_a_split_folder_and_features_elsewhere(invoke: Invoke, rows: dict[str, Array], tmp_path: Path) -> None:
    """TVR's release: HDF5 files by video and by ``desc_id``; lighthouse: archives of several arrays, ``qid<number>.npz``."""
    videos = tuple(Video(id_, 9.0, (Query(str(100 + n), f"sentence {n}"),)) for n, id_ in enumerate(IDS))
    lost = Video("lost", None, (Query("999", "x"),))
    Split("tvr", "published", {"train": videos[:3], "test": (*videos[3:], lost)}).write(tmp_path / "split")
    hdf5, npz = foreign.load("hdf5"), tmp_path / "features"
    hdf5.write(tmp_path / "video.h5", rows.items())
    words = {str(100 + n): np.full((2, 4), n, np.float32) for n in range(len(IDS))}
    hdf5.write(tmp_path / "query.h5", words.items())
    common = ("--split", tmp_path / "split", "--json", "--out")
    built = _json(
        invoke(import_, "hdf5", tmp_path / "video.h5", "--text", tmp_path / "query.h5", *common, tmp_path / "a")
    )
    assert built["missing"] == ["lost"] and built["shards"]["test"]["videos"] == 4
    npz.mkdir()
    (tmp_path / "text").mkdir()
    for id_, array in rows.items():
        np.savez(npz / f"{id_}.npz", features=array)
    for id_, array in words.items():
        np.savez(tmp_path / "text" / f"qid{id_}.npz", last_hidden_state=array, pooler_output=array[0])
    _json(invoke(import_, "npz", npz, "--text", tmp_path / "text", *common, tmp_path / "b"))
    for split in ("train", "test"):
        with ShardReader(tmp_path / "a", split) as one, ShardReader(tmp_path / "b", split) as other:
            for row in range(len(one)):
                np.testing.assert_array_equal(one[row].frames, other[row].frames)
                np.testing.assert_array_equal(one[row].words[0], other[row].words[0])


def test_lengths_and_missing_videos_and_a_second_time(
    invoke: Invoke, rows: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video without features is missing, an empty caption file is no split, and what did not change is not made again."""
    root = _made(tmp_path / "made", rows)
    train = root / "TextData" / "madetrain.caption.txt"
    train.write_text(train.read_text(encoding="utf-8") + "gone#enc#0 it\ngone#enc#1 is\n", encoding="utf-8")
    (root / "TextData" / "madeval.caption.txt").write_text("\n", encoding="utf-8")
    monkeypatch.chdir(root)
    words = (import_, "mssl", ".", "--out", tmp_path / "s", "--json")
    built = _json(invoke(*words))
    assert built["dataset"] == "made" and built["missing"] == ["gone"] and set(built["splits"]) == {"train", "test"}
    assert built["splits"]["train"]["videos"] == 6 and built["shards"]["train"]["videos"] == 5
    shard = tmp_path / "s" / "train-000000.tar"
    made = shard.stat().st_mtime_ns
    _json(invoke(*words))
    assert shard.stat().st_mtime_ns == made
    (rows | {"plain": rows["plain"] + 1})["plain"].tofile(tmp_path / "first")
    with (root / "FeatureData" / "made" / "feature.bin").open("r+b") as file:
        file.write((tmp_path / "first").read_bytes())
    _json(invoke(*words))
    with ShardReader(tmp_path / "s", "train") as reader:
        np.testing.assert_array_equal(reader[0].frames, rows["plain"] + 1)


def test_two_files_of_one_id(invoke: Invoke, rows: dict[str, Array], tmp_path: Path) -> None:
    root = _made(tmp_path / "made", rows, "npz")
    np.savez(root / "FeatureData" / "made" / "plain.npz", features=rows["plain"])
    refused = invoke(import_, "npz", root, "--out", tmp_path / "s")
    assert refused.exit_code == 1 and "more than one array of plain" in refused.stderr


def _break(what: str, root: Path) -> None:
    folder, text = root / "FeatureData" / "made", root / "TextData"
    if what == "cut":
        binary = folder / "feature.bin"
        binary.write_bytes(binary.read_bytes()[:-4])
    elif what == "nan":
        array = np.fromfile(folder / "feature.bin", np.float32)
        array[7] = np.nan
        array.tofile(folder / "feature.bin")
    elif what == "caption":
        path = text / "madetrain.caption.txt"
        path.write_text(path.read_text(encoding="utf-8") + "plain#enc#9 \n", encoding="utf-8")
    elif what == "twice":
        path = text / "madetrain.caption.txt"
        path.write_text(path.read_text(encoding="utf-8") + "plain#enc#0 again\n", encoding="utf-8")
    elif what == "latin":
        path = text / "madetest.caption.txt"
        path.write_bytes(path.read_bytes() + b"plain#enc#9 caf\xe9\n")
    elif what == "nan words":
        with h5py.File(text / "roberta_made_query_feat.hdf5", "a") as file:
            file["plain#enc#1"][2, 0] = np.inf
    elif what == "half":
        with h5py.File(text / "roberta_made_query_feat.hdf5", "a") as file:
            file.create_dataset("plain#enc#7", (3, 5), np.float32)
    elif what == "width":
        with h5py.File(text / "roberta_made_query_feat.hdf5", "a") as file:
            file["x#enc#7"] = np.ones((3, 4), np.float32)
    elif what == "names":
        path = folder / "id.txt"
        path.write_text(path.read_text(encoding="ascii").replace("plain_0 ", ""), encoding="ascii")
    elif what == "words":
        with h5py.File(text / "roberta_made_query_feat.hdf5", "a") as file:
            del file["plain#enc#1"]
    elif what == "text":
        (text / "roberta_made_query_feat.hdf5").unlink()
    elif what == "captions":
        for path in text.glob("*.txt"):
            path.unlink()
    elif what == "code":
        (folder / "video2frames.txt").write_text("__import__('os').mkdir('here')", encoding="utf-8")


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("cut", 1, "feature.bin"),
        ("nan", 1, "FeatureData/made: -4wsuPCjDBc_5_15: NaN"),
        ("names", 1, "names, where shape.txt says"),
        ("caption", 1, "madetrain.caption.txt:11: 'plain#enc#9 '"),
        ("twice", 1, "madetrain.caption.txt:11: plain#enc#0 stands in it twice"),
        ("latin", 1, "madetest.caption.txt: not UTF-8"),
        ("words", 2, "no words of 1 of 10 queries: plain#enc#1"),
        ("nan words", 1, "roberta_made_query_feat.hdf5: plain#enc#1: NaN or Inf"),
        (
            "half",
            1,
            "roberta_made_query_feat.hdf5: 1 data sets were never written whole, and read as zeros: plain#enc#7",
        ),
        ("width", 1, "roberta_made_query_feat.hdf5: x#enc#7 is 4 wide, the first is 5"),
        ("text", 2, "no text features there"),
        ("captions", 2, "--split"),
        ("code", 1, "not a dict of lists"),
    ],
)
def test_what_is_not_whole(
    what: str, code: int, says: str, invoke: Invoke, rows: dict[str, Array], tmp_path: Path
) -> None:
    root = _made(tmp_path / "made", rows)
    _break(what, root)
    done = invoke(import_, "mssl", root, "--out", tmp_path / "s")
    assert done.exit_code == code and says in done.stderr, done.stderr
    assert not list((tmp_path / "s").glob("*.index.json"))


def test_which_features(invoke: Invoke, rows: dict[str, Array], tmp_path: Path) -> None:
    root = _made(tmp_path / "made", rows)
    mssl.write(root / "FeatureData" / "other", rows.items())
    words = (import_, "mssl", root, "--out", tmp_path / "s")
    several = invoke(*words)
    assert several.exit_code == 2 and "choose with --feature: made, other" in several.stderr
    unknown = invoke(*words, "--feature", "clip")
    assert unknown.exit_code == 2 and "no features 'clip' there" in unknown.stderr
    assert invoke(*words, "--feature", "other").exit_code == 0


def _shards(folder: Path, videos: Mapping[str, tuple[Video, ...]], spec: Any) -> Path:
    """Shards of one step a video and one word a query, whose values are the order of their ids."""
    split = Split("made", "published", videos)
    ids = dict.fromkeys(video.video_id for own in videos.values() for video in own)
    rows = [Features(id_, "made", np.full((1, 8), n), np.zeros(1)) for n, id_ in enumerate(ids)]
    queries = {query.query_id: query for own in videos.values() for video in own for query in video.queries}
    words = [
        Features(id_, query.fingerprint(), np.full((1, 8), n), np.zeros(1))
        for n, (id_, query) in enumerate(queries.items())
    ]
    FeatureStore.create(folder / "v.zarr", spec()).commit(rows)
    FeatureStore.create(folder / "w.zarr", spec("text")).commit(words)
    build(split, folder / "shards", StoreSource([folder / "v.zarr"], folder / "w.zarr"))
    return folder / "shards"


@pytest.mark.parametrize(
    ("layout", "id_"),
    [
        ("mssl", "two words"),
        ("mssl", "a#b"),
        ("hdf5", "a/b"),
        ("hdf5", "two words"),
        ("npz", ".hidden"),
        ("npz", "../x"),
    ],
)
def test_ids_that_a_layout_cannot_carry_are_refused_by_name(
    layout: str, id_: str, spec: Any, invoke: Invoke, tmp_path: Path
) -> None:
    shards = _shards(tmp_path, {"train": (Video(id_, None, (Query(f"{id_}#enc#0", "text"),)),)}, spec)
    done = invoke(export, layout, shards, "--out", tmp_path / "o")
    assert done.exit_code == 2 and repr(id_) in done.stderr
    assert not list((tmp_path / "o").glob("*"))


def test_queries_of_other_names_are_numbered_and_no_two_alike(spec: Any, invoke: Invoke, tmp_path: Path) -> None:
    """One's own ids do not say their video; a video in two splits has queries in both."""
    first = Video("a", None, (Query("a#enc#1", "zero"), Query("mine", "one")))
    again, other = Video("a", None, (Query("third", "two"),)), Video("b", None, (Query("b#enc#7", "three"),))
    shards = _shards(tmp_path, {"train": (first,), "test": (again, other)}, spec)
    done = invoke(export, "mssl", shards, "--out", tmp_path / "o")
    assert done.exit_code == 0 and "madeval.caption.txt has what test has" in done.stderr
    text = tmp_path / "o" / "made" / "TextData"
    assert (text / "madetrain.caption.txt").read_text() == "a#enc#0 zero\na#enc#1 one\n"
    test = "a#enc#2 two\nb#enc#7 three\n"
    assert (text / "madetest.caption.txt").read_text() == (text / "madeval.caption.txt").read_text() == test
    words = _words(text / "roberta_made_query_feat.hdf5")
    assert {id_: rows[0, 0] for id_, rows in words.items()} == {"a#enc#0": 0, "a#enc#1": 1, "a#enc#2": 2, "b#enc#7": 3}


def test_one_id_of_two_sentences_is_refused(spec: Any, invoke: Invoke, tmp_path: Path) -> None:
    train, test = (Video("a", None, (Query("a#enc#0", text),)) for text in ("one", "one"))
    shards = _shards(tmp_path, {"train": (train,), "test": (test,)}, spec)
    assert invoke(export, "hdf5", shards, "--out", tmp_path / "o").exit_code == 0
    with pytest.raises(ConfigurationError, match="'a#enc#0' is another sentence"):
        named([train, Video("a", None, (Query("a#enc#0", "two"),))])


def test_overwriting_replaces_what_it_writes_and_nothing_else(invoke: Invoke, world: Any, tmp_path: Path) -> None:
    """A collection is where MS-SL keeps its results, and features of others."""
    root = tmp_path / "made"
    for path in ("results/run/model.ckpt", "FeatureData/i3d/feature.hdf5", "FeatureData/ours/stale.npy"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_bytes(b"precious")
    words = (export, "npz", world.data, "--out", tmp_path, "--feature", "ours")
    refused = invoke(*words)
    assert refused.exit_code == 2 and "FeatureData/ours: is there; --overwrite replaces it" in refused.stderr
    assert invoke(*words, "--overwrite").exit_code == 0
    for path in ("results/run/model.ckpt", "FeatureData/i3d/feature.hdf5"):
        assert (root / path).read_bytes() == b"precious"
    assert len(list((root / "FeatureData" / "ours").iterdir())) == 20, "what was there is gone"
    assert len(list((root / "TextData" / "ours_query_feat").iterdir())) == 60
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("name", ["../evil", "/evil", ".hidden", "two words", ".."])
@pytest.mark.parametrize("option", ["--collection", "--feature"])
def test_a_name_that_is_a_path_is_refused(option: str, name: str, invoke: Invoke, world: Any, tmp_path: Path) -> None:
    refused = invoke(export, "mssl", world.data, "--out", tmp_path / "o", option, name)
    assert refused.exit_code == 2 and repr(name) in refused.stderr and option in refused.stderr
    assert not list(tmp_path.iterdir())
