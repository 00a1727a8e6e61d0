"""``prvr-adopt``: the authors' checkpoints score as theirs did, and no file runs anything."""

import json
import os
import pickle
import random
import shutil
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from prvr.datasets import transfer_cli
from prvr.manifests.errors import CorruptData
from prvr.train import cli, pickles
from prvr.train.checkpoint import read_about

type Invoke = Callable[..., Result]
# Model, golden folder, checkpoint in it, layout of its features, its golden scores.
SYSTEMS = [
    ("ms-sl", "mssl", "model.ckpt", "mssl", "eval_fused"),
    ("gmmformer", "gmmformer", "best.ckpt", "mssl", "eval_fused"),
    ("gmmformer-v2", "gmmformerv2", "best.ckpt", "mssl", "eval_fused"),
    ("gmmformer-v2+ral", "ral", "best.ckpt", "mssl", "eval_fused"),
    ("amdnet", "amdnet", "best.ckpt", "hdf5", "eval_scores"),
]
MS_SL = SYSTEMS[0]


@dataclass(frozen=True)
class System:
    """A released system: its golden files, and shards of the features it was scored on."""

    model: str
    folder: Path
    checkpoint: Path
    shards: Path
    scores: str


@pytest.fixture(scope="module")
def shards(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that imports the golden features of a layout, once."""
    made: dict[str, Path] = {}

    def of(layout: str) -> Path:
        if layout not in made:
            made[layout] = tmp_path_factory.mktemp("shards") / layout
            words = [layout, shared / "golden/prvr/layout/gold", "--out", made[layout], "-q"]
            result = CliRunner().invoke(transfer_cli.import_, [str(word) for word in words])
            assert result.exit_code == 0, result.output
        return made[layout]

    return of


@pytest.fixture
def system(request: pytest.FixtureRequest, shared: Path, shards: Callable[[str], Path]) -> System:
    """MS-SL's, or the parameter's."""
    model, folder, file, layout, scores = getattr(request, "param", MS_SL)
    place = shared / "golden/prvr" / folder
    return System(model, place, place / file, shards(layout), scores)


def _refused(result: Result, exit_code: int, *messages: str) -> None:
    assert result.exit_code == exit_code, result.output
    assert not result.stdout and len(result.stderr.splitlines()) == 1, result.stderr
    for message in messages:
        assert message in result.stderr


def _adopt(invoke: Invoke, checkpoint: Path, run: Path, *words: object, model: str = "ms-sl") -> Result:
    return invoke(cli.adopt, checkpoint, "--model", model, "--out", run, *words)


def _contents(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = pickles.read(checkpoint)
    return found


def _changed(system: System, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The checkpoint with a change to its contents, and what stands beside it."""
    contents = _contents(system.checkpoint)
    change(contents)
    folder.mkdir(exist_ok=True)
    if (system.folder / "opt.json").is_file():
        shutil.copy(system.folder / "opt.json", folder)
    torch.save(contents, folder / "changed.ckpt")
    return folder / "changed.ckpt"


@pytest.mark.parametrize("known", [True, False], ids=["of these shards", "of widths alone"])
@pytest.mark.parametrize("system", SYSTEMS, indirect=True, ids=[one[0] for one in SYSTEMS])
def test_the_scores_are_the_authors(system: System, known: bool, invoke: Invoke, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "scores.npz"
    words = ("--shards", system.shards) if known else ()
    result = _adopt(invoke, system.checkpoint, run, *words, "--json", model=system.model)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["widths"] == {"video": 64, "text": 48} and told["model"] == system.model and told["epoch"] == 3
    result = invoke(cli.evaluate, run, "--shards", system.shards, "--save-scores", file, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    golden = load_file(system.folder / "golden.safetensors")
    ids = json.loads((system.folder.parent / "ids.json").read_text(encoding="utf-8"))
    with np.load(file) as saved:
        queries, videos = [list(saved[f"{kind}_ids"]) for kind in ("query", "video")]
        rows, columns = [queries.index(one) for one in ids["captions"]], [videos.index(one) for one in ids["videos"]]
        np.testing.assert_allclose(
            saved["scores"][np.ix_(rows, columns)], golden[system.scores].numpy(), rtol=0, atol=1e-5
        )
    if "eval_recalls" in golden:
        assert list(json.loads(result.stdout)["t2v"].values()) == pytest.approx(golden["eval_recalls"].tolist())
    assert invoke(cli.doctor, run).exit_code == 0


def test_the_run_tells_where_it_is_from(system: System, invoke: Invoke, tmp_path: Path) -> None:
    for name, words in (("widths", ()), ("shards", ("--shards", system.shards))):
        assert _adopt(invoke, system.checkpoint, tmp_path / name, *words).exit_code == 0
        about = read_about(tmp_path / name)
        assert about["adopted"]["file"] == "model.ckpt" and about["dataset"] == "gold"
        assert about["config"]["ms-sl"]["hidden"] == 32 and about["config"]["data"]["max_words"] == 30
        assert [about["features"][stream][0]["dim"] for stream in ("video", "text")] == [64, 48]
        card = (tmp_path / name / "card.md").read_text(encoding="utf-8")
        assert "adopted from its authors' model.ckpt" in card
        assert ("64 wide, of an unknown recipe" in card) == (name == "widths")


def test_unused_settings_are_named_when_asked(system: System, invoke: Invoke, tmp_path: Path) -> None:
    assert "hard_pool_size" not in _adopt(invoke, system.checkpoint, tmp_path / "quiet").stderr
    assert (
        "not used: device, hard_pool_size, margin" in _adopt(invoke, system.checkpoint, tmp_path / "loud", "-v").stderr
    )


def test_branch_weights_are_those_of_the_file_beside_it(system: System, invoke: Invoke, tmp_path: Path) -> None:
    alone = Path(shutil.copy(system.checkpoint, tmp_path))
    _refused(_adopt(invoke, alone, tmp_path / "run"), 2, "does not tell clip_scale_w, frame_scale_w", "opt.json")
    assert not (tmp_path / "run").exists()
    words = ("--set", "ms-sl.clip_weight=0.25", "--set", "ms-sl.frame_weight=0.75")
    assert _adopt(invoke, alone, tmp_path / "set", *words).exit_code == 0
    assert read_about(tmp_path / "set")["config"]["ms-sl"]["frame_weight"] == 0.75
    (tmp_path / "opt.json").write_text(
        '{"clip_scale_w": 0.5, "frame_scale_w": 0.5, "hidden_size": 7}', encoding="utf-8"
    )
    assert _adopt(invoke, alone, tmp_path / "run").exit_code == 0
    options = read_about(tmp_path / "run")["config"]["ms-sl"]
    assert (options["clip_weight"], options["hidden"]) == (0.5, 32), "the checkpoint's own configuration leads"


def test_an_adopted_run_of_known_features_refuses_others(system: System, invoke: Invoke, tmp_path: Path) -> None:
    other = Path(shutil.copytree(system.shards, tmp_path / "other"))
    index = json.loads((other / "test.index.json").read_text(encoding="utf-8"))
    index["video_features"][0]["recipe_digest"] = "another"
    (other / "test.index.json").write_text(json.dumps(index), encoding="utf-8")
    for name, words, exit_code in (("known", ("--shards", system.shards), 2), ("widths", (), 0)):
        assert _adopt(invoke, system.checkpoint, tmp_path / name, *words).exit_code == 0
        assert invoke(cli.evaluate, tmp_path / name, "--shards", other).exit_code == exit_code


def test_shards_of_another_width_or_pooling(
    system: System, world: Any, invoke: Invoke, shared: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _refused(_adopt(invoke, system.checkpoint, run, "--shards", world.data), 2, "video features 64 wide", "of test 8")
    layout = shared / "golden/prvr/layout/gold"
    corrected = tmp_path / "corrected"
    assert invoke(transfer_cli.import_, "mssl", layout, "--out", corrected, "--pooling", "corrected").exit_code == 0
    _refused(_adopt(invoke, system.checkpoint, run, "--shards", corrected), 2, "published pooling", "corrected")
    _refused(_adopt(invoke, system.checkpoint, run, "--shards", tmp_path), 2, "no shards of split 'test'")
    assert not run.exists()
    assert _adopt(invoke, system.checkpoint, run).exit_code == 0
    _refused(invoke(cli.evaluate, run, "--shards", world.data), 2, "video features 64 wide, the shards of test 8")


def test_a_run_is_not_replaced_unasked(system: System, invoke: Invoke, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert _adopt(invoke, system.checkpoint, run).exit_code == 0
    (run / "log.jsonl").write_text("{}\n", encoding="utf-8")
    _refused(_adopt(invoke, system.checkpoint, run), 2, "a run is there", "--overwrite")
    assert (run / "log.jsonl").is_file()
    assert _adopt(invoke, system.checkpoint, run, "--overwrite").exit_code == 0
    assert {file.name for file in run.iterdir()} == {"config.toml", "card.md", "model.safetensors"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("", encoding="utf-8")
    _refused(_adopt(invoke, system.checkpoint, tmp_path / "mine", "--overwrite"), 2, "not a run")
    assert (tmp_path / "mine/notes.txt").is_file()
    (tmp_path / "broken.ckpt").write_bytes(b"")
    assert _adopt(invoke, tmp_path / "broken.ckpt", run, "--overwrite").exit_code == 1
    assert (run / "model.safetensors").is_file(), "what was there stays until there is something to replace it"


def _drop(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda contents: contents["model"].pop(name)


@pytest.mark.parametrize(
    ("change", "exit_code", "messages"),
    [
        (_drop("mapping_linear.0.weight"), 2, ["mapping_linear.0.weight"]),
        (lambda c: c["model"].update(extra=torch.zeros(2)), 2, ["extra"]),
        (
            lambda c: c["model"].update({"mapping_linear.0.weight": torch.zeros(3, 32)}),
            2,
            ["1 weights are not", "key.weight [3, 32], not [32, 32]"],
        ),
        (lambda c: c["model_cfg"].update(hidden_size=16), 2, ["48 weights are not what", "[32, 32], not [16, 16]"]),
        (lambda c: c["model_cfg"].update(visual_input_size=65), 2, ["[32, 64], not [32, 65]"]),
        (lambda c: c["model_cfg"].update(n_heads=5), 2, ["hidden 32 does not divide into 5 heads"]),
        (lambda c: c["model_cfg"].update(hidden_size="wide"), 2, ["ms-sl.hidden"]),
        (lambda c: c["model_cfg"].update(hidden_size=2**62), 2, ["no model has the sizes", "hidden 4611686018427387904"]),
        (lambda c: c["model_cfg"].pop("query_input_size"), 0, []),  # opt.json tells q_feat_size
        (lambda c: c["model_cfg"].pop("visual_input_size"), 2, ["no visual_input_size or visual_feat_dim"]),
        (lambda c: c["model"].update({"mapping_linear.0.weight": 3}), 1, ["mapping_linear.0.weight", "not a tensor"]),
        (lambda c: c.pop("model_cfg"), 1, ["neither model and model_cfg nor state_dict and config"]),
        (lambda c: c.update(model=[1]), 1, ["not a table"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    change: Callable[[dict[str, Any]], object],
    exit_code: int,
    messages: list[str],
    system: System,
    invoke: Invoke,
    tmp_path: Path,
) -> None:
    result = _adopt(invoke, _changed(system, tmp_path, change), tmp_path / "run", "-q")
    if exit_code:
        _refused(result, exit_code, *messages)
        assert not (tmp_path / "run").exists()
    else:
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("system", SYSTEMS, indirect=True, ids=[one[0] for one in SYSTEMS])
def test_a_checkpoint_of_another_model(system: System, invoke: Invoke, tmp_path: Path) -> None:
    for other in [one[0] for one in SYSTEMS if one[0] != system.model]:
        result = _adopt(invoke, system.checkpoint, tmp_path / "run", model=other)
        _refused(result, 2, "missing or unexpected are", f"its weights are those of --model {system.model}")


def test_a_model_that_has_no_checkpoints_or_is_none(system: System, invoke: Invoke, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _refused(_adopt(invoke, system.checkpoint, run, model="mssl"), 2, "did you mean 'ms-sl'")
    for model in ("dual-branch", "ms-sl+ral", "gmmformer-v2+ral+ice"):
        _refused(_adopt(invoke, system.checkpoint, run, model=model), 2, "released no checkpoint", "gmmformer-v2+ral")
    _refused(_adopt(invoke, system.checkpoint, run, model="gmmformer-v2+rall"), 2, "did you mean 'ral'")
    _refused(_adopt(invoke, tmp_path / "absent.ckpt", run), 2, "no such file")
    _refused(invoke(cli.adopt, system.checkpoint), 2, "name a CHECKPOINT")
    assert _adopt(invoke, system.checkpoint, run, "--dry-run").exit_code == 0 and not run.exists()


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_weights_of_several_gpus_and_other_forms_are_the_same(
    options: Mapping[str, Any], system: System, invoke: Invoke, tmp_path: Path
) -> None:
    contents = _contents(system.checkpoint)
    contents["model"] = OrderedDict((f"module.{name}", tensor.double()) for name, tensor in contents["model"].items())
    shutil.copy(system.folder / "opt.json", tmp_path)
    torch.save(contents, tmp_path / "model.ckpt", **options)
    assert _adopt(invoke, system.checkpoint, tmp_path / "a").exit_code == 0
    assert _adopt(invoke, tmp_path / "model.ckpt", tmp_path / "b").exit_code == 0
    ours, theirs = (load_file(tmp_path / run / "model.safetensors") for run in ("a", "b"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- reading


def test_numpy_numbers_are_read(tmp_path: Path) -> None:
    values = [np.float64(1.5), np.float32(-2.5), np.int64(-7), np.bool_(True), np.dtype(">i4").type(9), np.uint8(200)]
    torch.save({"model_val": values}, tmp_path / "a")
    found = pickles.read(tmp_path / "a")["model_val"]
    assert found == [1.5, -2.5, -7, True, 9, 200] and [type(one) for one in found] == [
        float,
        float,
        int,
        bool,
        int,
        int,
    ]
    torch.save({"model_val": np.zeros(3)}, tmp_path / "b")
    with pytest.raises(CorruptData, match=r"names numpy.*_reconstruct,"):
        pickles.read(tmp_path / "b")


def test_classes_of_other_code_are_not_imported(
    tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (("easydict", "EasyDict"), ("Opts.optimization", "WarmupLinearSchedule")):
        planted = types.ModuleType(module)
        monkeypatch.setattr(planted, name, _never, raising=False)
        monkeypatch.setitem(sys.modules, module, planted)
    assert type(_contents(system.checkpoint)["model_cfg"]) is OrderedDict
    for model, folder, file, *_ in SYSTEMS[1:]:
        groups = _contents(system.folder.parent / folder / file)["optimizer"]["param_groups"]
        assert type(groups[0]["schedule"]) is pickles.Plain, model


def _never(*_: object) -> None:
    raise AssertionError("executed")


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class Elsewhere:
    """A class of the module that pickles it."""


def _as_checkpoint(value: object, file: Path) -> None:
    torch.save({"model": {}, "model_cfg": value}, file)


def _as_legacy(value: object, file: Path) -> None:
    torch.save({"model": {}, "model_cfg": value}, file, _use_new_zipfile_serialization=False)


def _as_protocol_4(value: object, file: Path) -> None:
    torch.save({"model": {}, "model_cfg": [value, value]}, file, pickle_protocol=4)


def _as_plain_pickle(value: object, file: Path) -> None:
    file.write_bytes(pickle.dumps(value, protocol=5))


def _as_old_pickle(value: object, file: Path) -> None:
    file.write_bytes(pickle.dumps(value, protocol=0))


@pytest.mark.parametrize("save", [_as_checkpoint, _as_legacy, _as_protocol_4, _as_plain_pickle, _as_old_pickle])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "posix.system"), (eval, "eval"), (torch.load, "torch.serialization.load"), (getattr, "getattr")],
)
def test_what_would_run_something_is_refused_by_name(
    function: Callable[..., object],
    name: str,
    save: Callable[[object, Path], None],
    invoke: Invoke,
    tmp_path: Path,
) -> None:
    ran = tmp_path / "ran"
    arguments = {os.system: (f"touch {ran}",), eval: (f"open({str(ran)!r}, 'w')",)}.get(function, ("a", "b"))
    save(Runs(function, *arguments), tmp_path / "evil.ckpt")
    result = _adopt(invoke, tmp_path / "evil.ckpt", tmp_path / "run")
    _refused(result, 1, name, "nothing in it was executed")
    assert not ran.exists() and not (tmp_path / "run").exists()


def test_an_object_of_a_class_is_refused_by_name(invoke: Invoke, tmp_path: Path) -> None:
    _as_checkpoint(Elsewhere(), tmp_path / "a.ckpt")
    _refused(_adopt(invoke, tmp_path / "a.ckpt", tmp_path / "run"), 1, f"{Elsewhere.__module__}.Elsewhere")


def test_torchscript_and_compressed_archives_are_refused(system: System, tmp_path: Path) -> None:
    with zipfile.ZipFile(system.checkpoint) as source:
        members = {info.filename: source.read(info) for info in source.infolist()}
    with zipfile.ZipFile(tmp_path / "script.ckpt", "w") as target:
        for name, data in {**members, "model/constants.pkl": members["model/data.pkl"]}.items():
            target.writestr(name, data)
    with pytest.raises(CorruptData, match="TorchScript archive"):
        pickles.read(tmp_path / "script.ckpt")
    with zipfile.ZipFile(tmp_path / "small.ckpt", "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in members.items():
            target.writestr(name, data)
    with pytest.raises(CorruptData, match="compressed"):
        pickles.read(tmp_path / "small.ckpt")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_broken_bytes_are_an_error_of_ours(
    zipped: bool, system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "system", _never)
    whole = tmp_path / "whole.ckpt"
    torch.save(_contents(system.checkpoint), whole, _use_new_zipfile_serialization=zipped)
    data, dice, refused = whole.read_bytes(), random.Random(0), 0
    broken = [b"", b"P", data[:3], *(data[: dice.randrange(len(data))] for _ in range(40))]
    broken += [dice.randbytes(dice.randrange(1, 400)) for _ in range(60)]
    broken += [head + dice.randbytes(200) for head in (b"PK\x03\x04", b"\x80\x02", b"\x80\x04") for _ in range(20)]
    always = len(broken)
    for _ in range(150):  # Somewhere in the first pickles, where the structure is.
        changed = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            changed[dice.randrange(min(len(data), 20_000))] = dice.randrange(256)
        broken.append(bytes(changed))
    file = tmp_path / "broken.ckpt"
    for number, one in enumerate(broken):
        file.write_bytes(one)
        try:
            pickles.read(file)
        except CorruptData as error:
            assert str(file) in str(error)
            refused += 1
        else:
            assert number >= always, one[:40]
    assert refused >= always


def _setting(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda contents: contents["model_cfg"].update({key: value})


def test_broken_settings_are_an_error_of_ours(system: System, tmp_path: Path, invoke: Invoke) -> None:
    dice = random.Random(1)
    odd: list[Any] = [None, -1, 0, 1.5, "x", [], {}, True, float("nan"), 2**70, torch.zeros(2), np.float64(3)]
    for _ in range(60):
        key = dice.choice(list(_contents(system.checkpoint)["model_cfg"]))
        value = dice.choice(odd)
        file = _changed(system, tmp_path, _setting(key, value))
        result = _adopt(invoke, file, tmp_path / "run", "--overwrite", "-q")
        assert result.exit_code in (0, 1, 2), (key, value, result.output)
        assert isinstance(result.exception, SystemExit | None), (key, value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")
def test_the_advice_to_read_without_restrictions_is_not_passed_on(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "a", pickle_protocol=4)
    with pytest.raises(CorruptData, match="Unsupported operand") as found:
        pickles.read(tmp_path / "a")
    assert "weights_only" not in str(found.value)
