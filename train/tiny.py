"""Tiny models in the formats of the large ones, made here in about a minute: what the demo extracts features with.

Real weights are downloads of hundreds of megabytes, and not everyone who tries the package has a network. These folders
hold the same files as ``openai/clip-vit-base-patch32`` and ``roberta-base`` do, and are loaded by the same code.

Sources: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021 (the model and
its loss are transformers' own); Liu et al., RoBERTa: A Robustly Optimized BERT Pretraining Approach, 2019.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
)
from transformers.utils import logging as transformers_logging

from prvr.datasets.corpora import shapes
from prvr.manifests.errors import ConfigurationError
from prvr.manifests.files import sync, write_text
from prvr.manifests.progress import progress

PIXELS = 64
PATCH = 16
WIDTH = 128
LAYERS = 2
HEADS = 4
BATCH = 64
MASKED = 0.15
_END_OF_WORD = "</w>"
_IGNORED = -100
"""Label that a cross entropy leaves out."""


def make_clip(annotations: Path, out: Path, *, steps: int = 300, seed: int = 0) -> tuple[float, ...]:
    """A CLIP of 1.0 million parameters, trained on stills and captions of the training split of ``shapes`` alone.

    The same bytes for the same corpus, steps, seed and number of threads. Returns the loss of each step.

    Raises:
        ConfigurationError: ``out`` exists, or ``steps`` is below 1.
        MissingInput: there is no corpus in ``annotations``, or none with a training split.
    """
    if steps < 1:
        raise ConfigurationError(f"steps={steps}: a CLIP that nothing has trained is of no use; give 1 or more")
    captions = _training_captions(annotations)
    tokenizer = _clip_tokenizer(captions)
    processor = CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size={"height": PIXELS, "width": PIXELS})
    examples = shapes.stills(annotations, "train", seed=seed)
    with _folder_aside(out) as aside, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIPModel(_clip_config(tokenizer))

        def losses() -> Iterator[Tensor]:
            while True:
                pictures, sentences = zip(*islice(examples, BATCH), strict=True)
                pixels = processor(images=list(pictures), return_tensors="pt")["pixel_values"]
                words = tokenizer(list(sentences), padding=True, return_tensors="pt")
                yield model(**words, pixel_values=pixels, return_loss=True).loss

        history = _trained(model, losses(), steps, "pretraining the tiny CLIP")
        _save(model, aside)
        tokenizer.save_pretrained(aside)
        processor.save_pretrained(aside)
        text = f"stills and captions of the training split of `shapes`, {steps} steps of {BATCH}, seed {seed}"
        write_text(aside / "README.md", f"# A tiny CLIP\n\nMade by `prvr.train.tiny.make_clip`: {text}.\n")
    return history


def make_roberta(captions: Sequence[str], out: Path, *, steps: int = 60, seed: int = 0) -> tuple[float, ...]:
    """A RoBERTa of 0.5 million parameters that has filled gaps in these captions; with ``steps=0`` its weights are
    random, and its ``README.md`` says so. The same bytes for the same arguments and number of threads. Returns the
    loss of each step.

    Raises:
        ConfigurationError: ``out`` exists, there are no captions, or ``steps`` is negative.
    """
    if not captions:
        raise ConfigurationError("the tiny RoBERTa needs captions to learn words from")
    if steps < 0:
        raise ConfigurationError(f"steps={steps}: give 0 for random weights, or more")
    tokenizer = _roberta_tokenizer(captions)
    with _folder_aside(out) as aside, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RobertaForMaskedLM(_roberta_config(tokenizer))
        generator = torch.Generator().manual_seed(seed)

        def losses() -> Iterator[Tensor]:
            while True:
                chosen = torch.randint(len(captions), (BATCH,), generator=generator).tolist()
                words = tokenizer([captions[number] for number in chosen], padding=True, return_tensors="pt")
                ids = words["input_ids"]
                # Never a special token: their ids are those below the first byte's, and the gap's own, the last.
                gaps = (torch.rand(ids.shape, generator=generator) < MASKED) & (ids > tokenizer.unk_token_id)
                labels = ids.where(gaps, torch.tensor(_IGNORED))
                filled = ids.where(~gaps, torch.tensor(tokenizer.mask_token_id))
                yield model(input_ids=filled, attention_mask=words["attention_mask"], labels=labels).loss

        history = _trained(model, losses(), steps, "tuning the tiny RoBERTa") if steps else ()
        _save(model.roberta, aside)
        tokenizer.save_pretrained(aside)
        how = f"trained to fill gaps, {steps} steps of {BATCH}" if steps else "the weights are RANDOM numbers"
        text = f"{how}, seed {seed}; vocabulary of {len(captions)} captions; no pooler"
        write_text(aside / "README.md", f"# A tiny RoBERTa\n\nMade by `prvr.train.tiny.make_roberta`: {text}.\n")
    return history


def _training_captions(annotations: Path) -> list[str]:
    return [moment.caption for s in shapes.scenes_of(annotations) if s.split == "train" for moment in s.moments]


def _trained(model: nn.Module, losses: Iterator[Tensor], steps: int, what: str) -> tuple[float, ...]:
    """Take the steps; the loss of each."""
    optimizer = AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps, pct_start=0.1, cycle_momentum=False)
    history = []
    model.train()
    for loss in progress(islice(losses, steps), what, steps):
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    return tuple(history)


def _save(model: PreTrainedModel, folder: Path) -> None:
    """Without the bar that would stand there for one file."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _clip_config(tokenizer: CLIPTokenizer) -> CLIPConfig:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "projection_dim": WIDTH,  # each tower is also loaded alone
    }
    # The text tower takes the row where the end token stands. Id 2 would mean the rule of the first published files,
    # the row of the largest id. Ours is the last of the vocabulary, so both rules agree.
    text = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return CLIPConfig(
        text_config={**tower, **text},
        vision_config={**tower, "image_size": PIXELS, "patch_size": PATCH},
        projection_dim=WIDTH,
    )


def _roberta_config(tokenizer: RobertaTokenizer) -> RobertaConfig:
    return RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=130,  # 128 word pieces: positions count from after the padding's id, 1
        type_vocab_size=1,
    )


def _clip_tokenizer(captions: Sequence[str]) -> CLIPTokenizer:
    """Its vocabulary is built as the published one: bytes, bytes that end a word, merges, both special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(CLIPTokenizer(), captions, end_of_word=_END_OF_WORD)
    tokens = [*alphabet, *(letter + _END_OF_WORD for letter in alphabet), *map("".join, merges)]
    vocabulary = _numbered([*tokens, "<|startoftext|>", "<|endoftext|>"])
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)  # type: ignore[arg-type]  # as loaded


def _roberta_tokenizer(captions: Sequence[str]) -> RobertaTokenizer:
    """Special tokens first, as published, and the mask last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(RobertaTokenizer(), captions, end_of_word="")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, *map("".join, merges), "<mask>"]
    vocabulary = _numbered(tokens)
    return RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=128)  # type: ignore[arg-type]  # as loaded


def _merges(
    empty: CLIPTokenizer | RobertaTokenizer, captions: Sequence[str], *, end_of_word: str
) -> list[tuple[str, str]]:
    """Byte pairs to merge, so that each word of the captions becomes one token; cut into words as ``empty`` cuts."""
    learner = Tokenizer(BPE(end_of_word_suffix=end_of_word))
    learner.normalizer = empty.backend_tokenizer.normalizer
    learner.pre_tokenizer = empty.backend_tokenizer.pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=4096,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix=end_of_word,
        show_progress=False,
    )
    learner.train_from_iterator(captions, trainer)
    return [(first, second) for first, second in json.loads(learner.to_str())["model"]["merges"]]


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


@contextmanager
def _folder_aside(out: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``out``; on success it is flushed and renamed to ``out``, else removed."""
    if out.exists():
        raise ConfigurationError(f"{out}: exists; remove it, or name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield aside
        for path in aside.iterdir():
            path.chmod(0o644)  # the weights' writer and mkdtemp give theirs to the owner alone
            sync(path)
        aside.chmod(0o755)
        aside.rename(out)
        sync(out.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
