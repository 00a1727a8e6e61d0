"""RoBERTa tuned on a corpus's own queries before its features are taken, by filling gaps in them, as TVR's authors did.

Source: Lei et al., TVR: A Large-Scale Dataset for Video-Subtitle Moment Retrieval, ECCV 2020 (arXiv 2001.09099);
jayleicn/TVRetrieval, utils/text_feature/lm_finetuning_on_single_sentences.py and its shell script, mode ``query_only``:
one epoch over the training queries, each a sequence of at most 32 tokens, of which 15 % are to be predicted (80 % of them
shown as ``<mask>``, 10 % as another token, 10 % as they are); AdamW without weight decay, learning rate 5e-5 falling to 0
in a straight line, gradients clipped to norm 1.

Differs from the released code in: a few sentences are held out, to measure on (``held_out=0`` is theirs); ``</s>`` is never
to be predicted; a step sees ``batch_size`` sentences on one device, where theirs saw 4 on each of a number of GPUs that
is not published; the random numbers.
"""

import logging
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging as transformers_logging

from prvr.datasets.device import pick_device
from prvr.extract.backbones._transformers import load_model, load_vocabulary
from prvr.extract.backbones.roberta import check_length, fitting
from prvr.extract.weights import Weights
from prvr.manifests.errors import ConfigurationError, MissingInput, PrvrError
from prvr.manifests.files import aside_of, digest_of, read_json, sweep, sync, write_json

RECORD = "adapted.json"
"""Says what a folder was made from, and how well the gaps were filled before and after."""
_FORMAT = "prvr-adapted/1"
_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers")
_MEASURED_TOGETHER = 64
_LOGS = 0.05
"""A line of the log for each such part of the steps."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdaptSettings:
    """How the weights are tuned; the defaults are those published for TVR's queries, ``held_out`` and ``seed`` apart.

    Args:
        epochs: times that every sentence is seen.
        batch_size: sentences a step.
        learning_rate: of the first step; it falls to 0 in a straight line.
        block: tokens of a sentence, ``<s>`` and ``</s>`` counted; what is beyond is cut off.
        mask_probability: how many of the tokens are to be predicted.
        prefix_space: read the first word as if a space stood before it, as ``TextOptions`` of the backbone has it.
        held_out: distinct sentences that are kept out to measure on; at most a tenth of all.
        seed: of the order, the gaps and the dropout.

    Raises:
        ConfigurationError: a number out of its range.
    """

    epochs: int = 1
    batch_size: int = 4
    learning_rate: float = 5e-5
    block: int = 32
    mask_probability: float = 0.15
    prefix_space: bool = False
    held_out: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "block": 3, "held_out": 0, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigurationError(f"{name} {getattr(self, name)}: give {bound} or more")
        if not self.learning_rate > 0:
            raise ConfigurationError(f"learning_rate {self.learning_rate}: give more than 0")
        if not 0 < self.mask_probability <= 1:
            raise ConfigurationError(f"mask_probability {self.mask_probability}: give more than 0, at most 1")


def adapt(weights: Weights, sentences: Sequence[str], out: Path, settings: AdaptSettings, device: str) -> Path:
    """Tune ``weights`` on ``sentences``, which must be of the training split alone; ``out`` is returned.

    ``out`` becomes a folder in transformers' format, with the head that fills gaps, the tokenizer and ``adapted.json``. It
    appears whole or not at all. Where it is there already, made from the same, nothing is done. On a CPU, the same
    inputs and number of threads give the same bytes. Seeds the random numbers of the process.

    Args:
        weights: a folder of a ``RobertaForMaskedLM`` with its tokenizer.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        MissingInput: no sentences.
        ConfigurationError: weights without that head or without a vocabulary; settings or a device that do not fit; an ``out``
            that is something else, or was made from something else.
        PrvrError: the weights grew beyond all numbers.
    """
    tokenizer = load_vocabulary(weights, "roberta", add_prefix_space=settings.prefix_space)
    if not sentences:
        raise MissingInput("no sentence to tune RoBERTa on; is there a training split?")
    made_from = {
        "weights_sha256": weights.sha256({}),
        "sentences_sha256": digest_of(list(sentences)),
        **asdict(settings),
    }
    if _is_made(out, made_from):
        _log.info("%s: tuned before, from the same weights and sentences", out)
        return out
    place = _place(device)
    model = _load(weights)
    fitting(tokenizer, model.config)
    check_length(settings.block, model.config)
    seen, held_out = _divided(sentences, settings)
    sweep(out)
    aside = aside_of(out)
    aside.mkdir()
    try:
        trainer = _trainer(model, tokenizer, seen, aside, settings, place)
        before, tokens = _loss(model, tokenizer, held_out, settings)
        trainer.train()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
            raise PrvrError(f"the weights are no numbers any more; lower learning_rate ({settings.learning_rate:g})")
        after, _ = _loss(model, tokenizer, held_out, settings)
        steps = trainer.state.global_step
        _log.info("tuned on %d sentences in %d steps; loss on others %s, was %s", len(seen), steps, after, before)
        _save(model, tokenizer, aside)
        record = {
            "format": _FORMAT,
            "weights": weights.name,
            "made_from": made_from,
            "sentences": len(seen),
            "steps": steps,
            "held_out": {"sentences": len(held_out), "tokens": tokens, "loss_before": before, "loss_after": after},
            "device": place.type,
            "versions": {name: version(name) for name in _LIBRARIES},
        }
        write_json(aside / RECORD, record)
        _commit(aside, out, made_from)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return out


def _is_made(out: Path, made_from: Mapping[str, Any]) -> bool:
    """Whether ``out`` is there, from the same; raises ConfigurationError where it is there and from something else."""
    if not out.exists():
        return False
    if not (out / RECORD).is_file():
        raise ConfigurationError(f"{out}: exists, and has no {RECORD}; remove it, or name another folder")
    theirs = read_json(out / RECORD).get("made_from", {})
    others = [f"{key} {theirs.get(key)}, not {ours}" for key, ours in made_from.items() if theirs.get(key) != ours]
    if others:
        raise ConfigurationError(f"{out}: made with {'; '.join(others)}; remove it, or name another folder")
    return True


def _place(device: str) -> torch.device:
    place = pick_device(device)
    if place.index:
        # transformers' Trainer takes the first GPU, whatever it is told.
        raise ConfigurationError(
            f"--device {device}: RoBERTa is tuned on the first GPU; choose it with CUDA_VISIBLE_DEVICES"
        )
    return place


def _load(weights: Weights) -> RobertaForMaskedLM:
    try:
        return load_model(RobertaForMaskedLM, weights, RobertaConfig)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; tuning needs the head of a masked language model (lm_head), which would be random numbers here"
        ) from None


def _divided(sentences: Sequence[str], settings: AdaptSettings) -> tuple[list[str], list[str]]:
    """Sentences to tune on, and others to measure on: no text stands in both."""
    distinct = list(dict.fromkeys(sentences))
    count = min(settings.held_out, len(distinct) // 10)
    chosen = set(random.Random(settings.seed).sample(distinct, count))
    return [text for text in sentences if text not in chosen], [text for text in distinct if text in chosen]


class _Sentences(Dataset[dict[str, list[int]]]):
    """Sentences as tokens, each of its own length."""

    def __init__(self, tokenizer: Any, sentences: Sequence[str], block: int) -> None:
        self._tokens = tokenizer(
            list(sentences), truncation=True, max_length=block, return_special_tokens_mask=True
        )  # lists, not tensors: padded a batch at a time

    def __len__(self) -> int:
        return len(self._tokens["input_ids"])

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {name: values[index] for name, values in self._tokens.items()}


def _with_gaps(tokenizer: Any, settings: AdaptSettings) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.mask_probability)


class _Said(TrainerCallback):
    """The losses of training, to our log: transformers would print them to stdout."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            _log.info("tuning RoBERTa: step %d of %d, loss %.3f", state.global_step, state.max_steps, logs["loss"])


class _Tuning(Trainer):
    """The Trainer with batches of its own making: transformers' would ask for Hugging Face's package ``datasets``, and find
    our folder of that name where the repository's root is on ``sys.path``."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Every sentence once, in an order of the seed's."""
        assert self.train_dataset is not None
        batches: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            shuffle=True,
            generator=torch.Generator().manual_seed(self.args.seed),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(batches)
        return prepared


def _trainer(
    model: RobertaForMaskedLM,
    tokenizer: Any,
    sentences: Sequence[str],
    folder: Path,
    settings: AdaptSettings,
    place: torch.device,
) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0,
        weight_decay=0.0,
        optim="adamw_torch",
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        seed=settings.seed,
        use_cpu=place.type == "cpu",
        dataloader_pin_memory=place.type == "cuda",
        remove_unused_columns=False,  # the gaps are chosen with the mask of special tokens, which no model takes
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=_LOGS,
    )
    # On a machine of several GPUs each would be given a batch of this size, and fewer steps be taken.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    trainer = _Tuning(
        model=model,
        args=arguments,
        data_collator=_with_gaps(tokenizer, settings),
        train_dataset=_Sentences(tokenizer, sentences, settings.block),
        callbacks=[_Said()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


@torch.inference_mode()
def _loss(
    model: RobertaForMaskedLM, tokenizer: Any, sentences: Sequence[str], settings: AdaptSettings
) -> tuple[float | None, int]:
    """Nats a hidden token, and how many of them there are; the same tokens at every call. None where there are none."""
    if not sentences:
        return None, 0
    total, tokens = 0.0, 0
    model.train(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        batches = DataLoader(
            _Sentences(tokenizer, sentences, settings.block),
            batch_size=_MEASURED_TOGETHER,
            collate_fn=_with_gaps(tokenizer, settings),
        )
        for batch in batches:
            inputs = {name: values.to(model.device) for name, values in batch.items()}
            labels = inputs.pop("labels")
            hidden = labels != -100
            total += cross_entropy(model(**inputs).logits[hidden], labels[hidden], reduction="sum").item()
            tokens += int(hidden.sum())
    return (total / tokens if tokens else None), tokens


def _save(model: RobertaForMaskedLM, tokenizer: Any, folder: Path) -> None:
    """Without the bar that would stand there for one file."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)


def _commit(aside: Path, out: Path, made_from: Mapping[str, Any]) -> None:
    for path in aside.iterdir():
        path.chmod(0o644)  # the weights' writer gives its file to the owner alone
        sync(path)
    sync(aside)
    try:
        aside.rename(out)
    except OSError:
        # Another process was faster; what it has made is as good where it is the same.
        if not _is_made(out, made_from):
            raise
    sync(out.parent)
