"""The contract that every command keeps."""

import importlib
import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prvr.manifests.console import Command

COMMANDS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "scripts"
]
SCRIPTS = Path(sys.executable).parent


def _command(name: str) -> Command:
    module, attribute = COMMANDS[name].split(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, Command)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_quick_and_has_an_example(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([SCRIPTS / name, "-h"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f"Example:\n    {name} " in done.stdout
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_neither_torch_nor_zarr(name: str) -> None:
    module, attribute = COMMANDS[name].split(":")
    script = (
        f"import sys, contextlib\nfrom {module} import {attribute} as command\n"
        "with contextlib.suppress(SystemExit): command.main(['-h'])\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'zarr', 'pydantic', 'av')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_common_options_and_a_help_for_each(name: str) -> None:
    command = _command(name)
    options = {option: parameter for parameter in command.params for option in parameter.opts}
    assert {"--json", "--config", "--set", "--dry-run", "--verbose", "--quiet"} <= set(options)
    for option, parameter in options.items():
        if option.startswith("-"):
            assert getattr(parameter, "help", ""), f"{name} {option} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error(name: str) -> None:
    done = subprocess.run([SCRIPTS / name, "--no-such-option"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("name", ["prvr-extract", "prvr-build-split", "prvr-train"])
def test_list_prints_names_alone(name: str) -> None:
    done = subprocess.run([SCRIPTS / name, "--list", "--json"], capture_output=True, text=True, check=True)
    listed = json.loads(done.stdout.splitlines()[-1])
    listed.pop("pairs", None)  # of prvr-train: which of its names go together
    assert all(isinstance(names, list) and names for names in listed.values())


def test_config_gives_options_and_tables(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('out = "elsewhere"\n[shapes]\ntrain = 2\n', encoding="utf-8")
    words = ["shapes", "--config", str(tmp_path / "c.toml"), "--dry-run", "--json"]
    done = subprocess.run([SCRIPTS / "prvr-build-split", *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["out"] == "elsewhere"


def test_config_with_an_unknown_option(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("outt = 1\n", encoding="utf-8")
    words = ["shapes", "--config", str(tmp_path / "c.toml")]
    done = subprocess.run([SCRIPTS / "prvr-build-split", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "did you mean 'out'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_environment_variables_are_options() -> None:
    import os

    words = ["shapes", "--dry-run", "--json"]
    done = subprocess.run(
        [SCRIPTS / "prvr-build-split", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PRVR_OUT": "from-env"},
    )
    assert json.loads(done.stdout)["out"] == "from-env"
