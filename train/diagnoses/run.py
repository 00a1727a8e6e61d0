"""Runs: configuration, weights, state, log and results."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from prvr.datasets.foreign import some
from prvr.manifests.errors import CorruptData, PrvrError
from prvr.manifests.files import read_json, sha256_of
from prvr.train.config import RunConfig
from prvr.train.diagnoses import Diagnosis, Finding, Look, left_behind, notes, wrong
from prvr.train.diagnoses.store import made_by, random_weights

KIND = "run"
MODEL = "model.safetensors"


def recognise(path: Path) -> bool:
    """A folder with a run's configuration and anything else of a run, or with its mark."""
    parts = (MODEL, "state", "log.jsonl")
    return (path / "state" / "run.json").is_file() or (
        (path / "config.toml").is_file() and any((path / part).exists() for part in parts)
    )


def diagnose(path: Path, look: Look) -> Diagnosis:
    """Every file that a run has; each is judged although another is damaged."""
    facts: dict[str, Any] = {}
    findings: list[Finding] = left_behind(path) + left_behind(path / "state")
    config = None
    try:
        config = RunConfig.read(path / "config.toml")
        facts["model"] = config.model
    except PrvrError as error:
        findings += wrong([str(error)])
    for part in (_state, _log, _metrics):
        try:
            facts |= part(path, findings)
        except (PrvrError, KeyError, TypeError, AttributeError) as error:
            findings += wrong([str(error) if isinstance(error, PrvrError) else f"{path}: {error!r}"])
    if (path / MODEL).is_file():
        try:
            facts |= _weights(path, config, findings)
        except PrvrError as error:
            findings += wrong([str(error)])
    elif facts.get("epochs"):
        findings += wrong([f"no {MODEL}, although {facts['epochs']} epochs are done"])
    else:
        findings += notes([f"no {MODEL}: no epoch is done yet"])
    return Diagnosis(path, KIND, facts, findings)


def _state(path: Path, findings: list[Finding]) -> dict[str, Any]:
    if (path / "state" / "run.json").is_file():
        read_json(path / "state" / "run.json")["config"]
    else:
        findings += notes(["no state/run.json: prvr-train does not go on with this run"])
    if not (path / "state" / "state.json").is_file():
        if orphans := sorted(file.name for file in (path / "state").glob("epoch-*.safetensors")):
            findings += wrong([f"state/{orphans[-1]} without state.json: training would begin again"])
        return {}
    head = read_json(path / "state" / "state.json")
    tensors = path / "state" / head["tensors"]
    if not tensors.is_file():
        findings += wrong([f"{tensors}: absent, although state.json names it"])
    elif sha256_of(tensors) != head["sha256"]:
        findings += wrong([f"{tensors}: changed since it was written"])
    position = head["position"]
    stands = {"epochs": position["epoch"], "steps": position["step"], "best epoch": position["best_epoch"]}
    return stands | ({"stopped early": "yes"} if position["stopped"] else {})


def _log(path: Path, findings: list[Finding]) -> dict[str, Any]:
    file = path / "log.jsonl"
    if not file.is_file():
        findings += notes(["no log.jsonl"])
        return {}
    epochs = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            epochs.append(json.loads(line)["epoch"])
        except ValueError:
            raise CorruptData(f"{file}:{number}: not JSON") from None
    if epochs != list(range(1, len(epochs) + 1)):
        findings += wrong([f"log.jsonl: its epochs are {epochs[:5]}…, not 1 to {len(epochs)}"])
    return {"log": f"{len(epochs):,} epochs"}


def _metrics(path: Path, findings: list[Finding]) -> dict[str, Any]:
    if not (path / "metrics.json").is_file():
        findings += notes(["no metrics.json: training has not ended"])
        return {}
    results = read_json(path / "metrics.json")
    return {
        f"{name} (chosen on {result['selected_on']})": {key: round(value, 1) for key, value in result["t2v"].items()}
        for name, result in results.items()
    }


def _weights(path: Path, config: RunConfig | None, findings: list[Finding]) -> dict[str, Any]:
    """Whether every number is finite, and whether the configuration's model takes them."""
    # Imports torch, which nothing else here needs.
    from prvr.train.checkpoint import load_model, read_about
    from prvr.train.run import make_retriever

    count, bad = 0, []
    try:
        with safe_open(path / MODEL, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                tensor = file.get_tensor(name)
                count += tensor.numel()
                bad += [] if bool(tensor.isfinite().all()) else [name]
    except (SafetensorError, OSError) as error:
        raise CorruptData(f"{path / MODEL}: {error}") from None
    if bad:
        findings += wrong([f"{MODEL}: NaN or Inf in {len(bad):,} tensors: {some(bad)}"])
    about = read_about(path)
    facts: dict[str, Any] = {"parameters": count}
    features = about.get("features")
    if features:
        specs = [*features["video"], *features["text"]]
        facts |= {"trained on": about.get("dataset", "unknown"), "features": [made_by(spec) for spec in specs]}
        findings += random_weights(specs)
        if config:
            widths = [sum(spec["dim"] for spec in features[stream]) for stream in ("video", "text")]
            load_model(path, make_retriever(config, frame_width=widths[0], word_width=widths[1]))
    if about.get("overlap"):
        findings += notes([f"{about['overlap']:,} videos stood in train and in the split that chose the epoch"])
    return facts
