"""The configuration of a run, from all its sources."""

from pathlib import Path

import pytest

from prvr.manifests import registry
from prvr.manifests.errors import ConfigurationError, UnknownName
from prvr.train.config import RunConfig, presets, resolve


def test_what_is_given_leads_and_the_preset_is_under_it() -> None:
    config = resolve({"model": None, "lr": None, "epochs": 3}, {"ms-sl": {"heads": 2}}, "shapes")
    assert config.preset == "ms-sl.shapes" and config.epochs == 3 and config.lr == 4e-4
    assert config.modules["ms-sl"] == {"hidden": 192, "heads": 2}


def test_without_a_preset_the_released_defaults() -> None:
    config = resolve({}, {}, "unheard-of")
    assert (config.preset, config.epochs, config.batch_size, config.lr, config.seed) == ("", 100, 128, 2.5e-4, 2018)
    assert (config.data.max_words, config.data.normalise, config.loop.patience) == (30, True, 10)


def test_a_preset_of_the_model_alone_serves_any_data_set() -> None:
    config = resolve({"model": "amdnet"}, {}, "mine")
    assert config.preset == "amdnet" and not config.data.normalise
    assert resolve({"model": "amdnet"}, {}, "tvr").preset == "amdnet.tvr"


@pytest.mark.parametrize("name", presets())
def test_every_preset_makes_a_model_and_its_losses(name: str) -> None:
    from prvr.train.run import make_model, make_objectives

    config = resolve({"preset": name}, {}, "any")
    model = make_model(config, frame_width=16, word_width=12)
    assert make_objectives(config, model) and name.startswith(config.base)


DATASETS = ("tvr", "activitynet", "charades")
ROWS = [
    *((model, dataset) for model in ("ms-sl", "gmmformer", "gmmformer-v2", "dual-branch") for dataset in DATASETS),
    *((f"{base}+ice+irm+tcp", dataset) for base in ("ms-sl", "gmmformer") for dataset in DATASETS),
    *(("amdnet", dataset) for dataset in ("tvr", "activitynet")),
]


@pytest.mark.parametrize(("model", "dataset"), ROWS)
def test_every_row_of_the_papers_tables_has_a_preset(model: str, dataset: str) -> None:
    """Rows that differ in their features alone share one; it says which."""
    config = resolve({"preset": f"{model}.{dataset}"}, {}, "any")
    assert config.model.startswith(model) and config.batch_size == 128


@pytest.mark.parametrize("name", [name for name in presets() if set(name.split(".")) & set(DATASETS)])
def test_every_value_of_a_published_row_has_its_source_beside_it(name: str) -> None:
    text = registry.data("prvr.train.presets", name, kind="preset")
    values = [line for line in text.splitlines() if " = " in line and not line.startswith(("#", "model = "))]
    assert values and [line for line in values if "  # " not in line] == []


@pytest.mark.parametrize("base", ["ms-sl", "gmmformer"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_base_with_added_objectives_is_trained_as_alone_but_for_them(base: str, dataset: str) -> None:
    alone, full = (resolve({"preset": f"{model}.{dataset}"}, {}, "any") for model in (base, f"{base}+ice+irm+tcp"))
    assert full.modules.keys() - alone.modules.keys() == {"ice", "irm", "tcp"}
    for name, settings in alone.modules.items():
        assert full.modules[name] == settings
    assert (full.data, full.optim, full.loop, full.seed) == (alone.data, alone.optim, alone.loop, alone.seed)
    one_less = resolve({"preset": f"{base}+ice+irm+tcp.{dataset}", "model": f"{base}+ice+irm"}, {}, "any")
    assert "tcp" not in one_less.modules and one_less.modules["ice"] == full.modules["ice"]


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_presets_of_what_ms_sls_paper_says(dataset: str) -> None:
    """Words as A.3.2 has them, in the batch and in the model's positions; and the losses of its equations."""
    from prvr.train.objectives.ranking import Ranking
    from prvr.train.run import make_model, make_objectives

    config = resolve({"preset": f"ms-sl.{dataset}.paper"}, {}, dataset)
    words = 64 if dataset == "activitynet" else 30
    assert config.data.max_words == config.modules["ms-sl"]["max_words"] == words
    model = make_model(config, frame_width=16, word_width=12)
    ranking = make_objectives(config, model)["ranking"]
    assert isinstance(ranking, Ranking) and ranking.form == "paper"
    released = resolve({"model": "ms-sl"}, {"ms-sl": {"variant": "paper"}}, dataset)  # over the released preset
    ranking = make_objectives(released, make_model(released, frame_width=16, word_width=12))["ranking"]
    assert isinstance(ranking, Ranking) and ranking.form == "paper"


def test_the_file_is_reusable(tmp_path: Path) -> None:
    config = resolve({"model": "ms-sl", "seed": 5}, {"data": {"max_words": 9}, "ranking": {"margin": 0.3}}, "shapes")
    config.write(tmp_path / "config.toml")
    assert RunConfig.read(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"preset": "ms-sl.tvrr"}, {}, "did you mean 'ms-sl.tvr'"),
        ({}, {"data": {"max_word": 3}}, "did you mean 'run.data.max_words'"),
        ({}, {"epochz": 3}, "did you mean 'epochs'"),
    ],
)
def test_an_unknown_name_is_answered_with_a_near_one(
    options: dict[str, str], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UnknownName, match=message):
        resolve(options, settings, "x")


def test_a_table_that_nothing_reads_is_an_error() -> None:
    from prvr.train.run import make_model, make_objectives

    config = resolve({}, {"rankng": {"margin": 1}}, "x")
    with pytest.raises(UnknownName, match="did you mean 'ranking'"):
        make_objectives(config, make_model(config, frame_width=8, word_width=8))


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"epochs": 0}, {"precision": "fp16"}])
def test_values_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        resolve(options, {}, "x")
