"""RoBERTa tuned on queries: it learns, the same bytes come of the same inputs, and a folder is whole or absent."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prvr.extract import adapt as module
from prvr.extract.adapt import AdaptSettings, adapt
from prvr.extract.backbones import roberta
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError, MissingInput

SENTENCES = [
    f"a {size} {colour} {shape} {verb}"
    for size in ("small", "large")
    for colour in ("red", "green")
    for shape in ("square", "circle", "wall")
    for verb in ("bounces", "appears", "collides", "moves")
]
LEARNS = AdaptSettings(epochs=20, batch_size=16, learning_rate=5e-3)
SHORT = AdaptSettings(batch_size=16)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The last bits of a loss depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def base(roberta_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The tiny RoBERTa's folder, with the head that fills gaps."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    folder = Path(shutil.copytree(roberta_folder, tmp_path_factory.mktemp("adapt") / "base"))
    torch.manual_seed(0)
    RobertaForMaskedLM(RobertaConfig.from_pretrained(folder)).save_pretrained(folder)
    return Weights("tiny", folder, None)


@pytest.fixture(scope="module")
def tuned(base: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapt(base, SENTENCES, tmp_path_factory.mktemp("adapt") / "tuned", LEARNS, "cpu")


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "adapted.json").read_text(encoding="utf-8"))
    return record


def contents(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_gaps_in_sentences_it_has_not_seen_are_filled_better(tuned: Path) -> None:
    record = record_of(tuned)
    held_out = record["held_out"]
    assert (record["sentences"], held_out["sentences"]) == (44, 4)
    assert record["steps"] == 20 * 3
    assert held_out["tokens"] > 0 and held_out["loss_after"] < held_out["loss_before"] - 1


def test_the_folder_is_a_model_that_the_backbone_reads(tuned: Path, base: Weights) -> None:
    options = roberta.TextOptions()
    before, after = (
        roberta.load_text(weights, options, torch.device("cpu")) for weights in (base, Weights("x", tuned, None))
    )
    assert before.sha256 != after.sha256
    for one, other in zip(before(SENTENCES[:3]), after(SENTENCES[:3]), strict=True):
        assert one.shape == other.shape and (one - other).abs().max() > 0.1
    state = load_file(tuned / "model.safetensors")
    for name, value in after.model.state_dict().items():
        assert torch.equal(state[f"roberta.{name}"], value)


def test_nothing_else_is_in_the_folder(tuned: Path) -> None:
    names = {"adapted.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in tuned.iterdir()} == names
    assert [path.name for path in tuned.parent.iterdir()] == [tuned.name]
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in tuned.iterdir()), "others may read it"
    for path in tuned.glob("*.json"):
        assert str(tuned.parent) not in path.read_text(encoding="utf-8")


def test_it_can_be_tuned_further(tuned: Path, tmp_path: Path) -> None:
    adapt(Weights("x", tuned, None), SENTENCES, tmp_path / "out", SHORT, "cpu")
    further, first = record_of(tmp_path / "out")["held_out"], record_of(tuned)["held_out"]
    assert further["loss_before"] == pytest.approx(first["loss_after"], abs=1e-5)


def test_the_same_bytes_come_of_the_same(base: Weights, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        torch.rand(5)  # another state of the process's random numbers
        assert adapt(base, SENTENCES, tmp_path / name, SHORT, "cpu") == tmp_path / name
    adapt(base, SENTENCES, tmp_path / "other", replace(SHORT, seed=1), "cpu")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    weights = "model.safetensors"
    assert contents(tmp_path / "one")[weights] != contents(tmp_path / "other")[weights]
    assert capfd.readouterr().out == "", "stdout is the command's"


def test_a_second_run_does_nothing(tuned: Path, base: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_model", None)
    before = {path.name: path.stat().st_mtime_ns for path in tuned.iterdir()}
    assert adapt(base, SENTENCES, tuned, LEARNS, "cpu") == tuned
    assert {path.name: path.stat().st_mtime_ns for path in tuned.iterdir()} == before


def test_a_folder_of_other_inputs_is_refused(tuned: Path, base: Weights) -> None:
    before = contents(tuned)
    for weights, sentences, settings, message in (
        (base, SENTENCES[1:], LEARNS, "sentences_sha256 .*, not "),
        (base, SENTENCES[::-1], LEARNS, "sentences_sha256 .*, not "),
        (base, SENTENCES, replace(LEARNS, epochs=1, seed=3), "epochs 20, not 1; seed 0, not 3"),
        (Weights("x", tuned, None), SENTENCES, LEARNS, "weights_sha256 .*, not "),
    ):
        with pytest.raises(ConfigurationError, match=message):
            adapt(weights, sentences, tuned, settings, "cpu")
    assert contents(tuned) == before


def test_a_folder_of_something_else_is_refused(base: Weights, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=r"has no adapted\.json"):
        adapt(base, SENTENCES, tmp_path, SHORT, "cpu")
    assert (tmp_path / "notes.txt").is_file()


@pytest.mark.parametrize("step", ["_loss", "_save", "write_json", "sync"])
def test_an_interruption_leaves_nothing(
    step: str, base: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    settings = replace(SHORT, batch_size=64)
    with monkeypatch.context() as patched:
        patched.setattr(module, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            adapt(base, SENTENCES, tmp_path / "out", settings, "cpu")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_neither_taken_nor_kept(base: Weights, tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    left = tmp_path / f".out.{socket.gethostname()}-{killed.pid}-0123abcd.tmp"
    left.mkdir()
    (left / "adapted.json").write_text("{}", encoding="utf-8")
    adapt(base, SENTENCES, tmp_path / "out", SHORT, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert record_of(tmp_path / "out")["steps"] == 3


@pytest.mark.parametrize("same", [True, False])
def test_another_process_was_faster(
    same: bool, base: Weights, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, save = tmp_path / "out", module._save

    def late(*arguments: Any) -> None:
        save(*arguments)
        shutil.copytree(tuned, out)

    monkeypatch.setattr(module, "_save", late)
    if same:
        adapt(base, SENTENCES, out, LEARNS, "cpu")
    else:
        with pytest.raises(ConfigurationError, match="epochs 20, not 1"):
            adapt(base, SENTENCES, out, SHORT, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert contents(out) == contents(tuned)


def test_a_sentence_that_is_measured_on_is_never_tuned_on(base: Weights, tmp_path: Path) -> None:
    record = record_of(adapt(base, SENTENCES[:20] * 3, tmp_path / "out", SHORT, "cpu"))
    assert (record["held_out"]["sentences"], record["sentences"]) == (2, 54)


def test_as_published_no_sentence_is_held_out(base: Weights, tmp_path: Path) -> None:
    record = record_of(adapt(base, SENTENCES, tmp_path / "out", replace(SHORT, held_out=0), "cpu"))
    assert record["sentences"] == 48
    assert record["held_out"] == {"sentences": 0, "tokens": 0, "loss_before": None, "loss_after": None}


def test_the_same_gaps_are_measured_before_and_after(base: Weights, tmp_path: Path) -> None:
    held_out = record_of(adapt(base, SENTENCES, tmp_path / "out", replace(SHORT, learning_rate=1e-12), "cpu"))[
        "held_out"
    ]
    assert held_out["loss_before"] == pytest.approx(held_out["loss_after"], abs=1e-5)


def test_a_step_without_a_gap_does_no_harm(base: Weights, tmp_path: Path) -> None:
    settings = AdaptSettings(batch_size=4, mask_probability=1e-6, held_out=0)
    adapt(base, SENTENCES, tmp_path / "out", settings, "cpu")
    assert base.path is not None
    before, after = (load_file(folder / "model.safetensors") for folder in (base.path, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before), "the loss of no token has no gradient"


def test_weights_without_the_head(roberta_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"lacks .*; tuning needs the head .*lm_head.*random"):
        adapt(Weights("x", roberta_folder, None), SENTENCES, tmp_path / "out", SHORT, "cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_lacks_its_bias(base: Weights, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    assert base.path is not None
    folder = Path(shutil.copytree(base.path, tmp_path / "base"))
    state = load_file(folder / "model.safetensors")
    del state["lm_head.bias"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lm_head\..*bias"):
        adapt(Weights("x", folder, None), SENTENCES, tmp_path / "out", SHORT, "cpu")


def test_what_cannot_start(base: Weights, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no sentence"):
        adapt(base, [], tmp_path / "out", SHORT, "cpu")
    with pytest.raises(ConfigurationError, match="vocabulary"):
        adapt(Weights("random:0", None, 0), SENTENCES, tmp_path / "out", SHORT, "cpu")
    with pytest.raises(ConfigurationError, match="--device 'meta'"):
        adapt(base, SENTENCES, tmp_path / "out", SHORT, "meta")
    with pytest.raises(ConfigurationError, match="positions for 64"):
        adapt(base, SENTENCES, tmp_path / "out", replace(SHORT, block=65), "cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"block": 2},
        {"mask_probability": 0.0},
        {"mask_probability": 1.5},
        {"held_out": -1},
        {"seed": -1},
    ],
)
def test_settings_out_of_range(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        AdaptSettings(**wrong)
