"""BertAdam against the published update, written for one number. The released run: ``models/test_ms_sl.py``."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prvr.train.layers import AttentionBlock
from prvr.train.optim import AdamW, BertAdam, decay_groups, warmup_linear


def test_warmup_linear() -> None:
    assert warmup_linear(0.0, 0.1) == 0
    assert warmup_linear(0.05, 0.1) == pytest.approx(0.5)
    assert warmup_linear(0.1, 0.1) == pytest.approx(1)
    assert warmup_linear(0.55, 0.1) == pytest.approx(0.5)
    assert warmup_linear(1.0, 0.1) == 0
    assert warmup_linear(1.5, 0.1) == 0
    assert warmup_linear(0.0, 0.0) == 1


def _by_hand(value: float, gradients: list[float], *, lr: float, total: int, warmup: float, decay: float) -> float:
    first = second = 0.0
    for step, gradient in enumerate(gradients):
        gradient *= min(1.0, 1 / (abs(gradient) + 1e-6))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = lr * warmup_linear(step / total, warmup)
        value -= rate * (first / (math.sqrt(second) + 1e-6) + decay * value)
    return value


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_by_hand(decay: float) -> None:
    gradients = [0.5, -3.0, 1e-7, 0.9999999, 20.0, 0.0]
    parameter = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = BertAdam([parameter], lr=0.1, total_steps=8, warmup=0.25, weight_decay=decay)
    for count, gradient in enumerate(gradients, 1):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        expected = _by_hand(2.0, gradients[:count], lr=0.1, total=8, warmup=0.25, decay=decay)
        assert parameter.item() == pytest.approx(expected, rel=1e-12)
        assert parameter.grad.item() == gradient  # clipping leaves the gradient as it was


def test_the_first_step_moves_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = BertAdam([parameter], lr=1.0, total_steps=100)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones(3))
    optimizer.step()
    assert (parameter < 1).all()


def test_each_tensor_is_clipped_by_its_own_norm() -> None:
    """A tensor with a huge gradient takes nothing from the others: each moves as if it were alone."""

    def after_two_steps(gradients: list[Tensor]) -> list[Tensor]:
        parameters = [nn.Parameter(torch.ones_like(gradient)) for gradient in gradients]
        optimizer = BertAdam(parameters, lr=0.1, total_steps=10)
        for scale in (1.0, 0.1):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = scale * gradient
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    small, large = torch.tensor([0.3, 0.1]), torch.full((2, 2), 1e3)
    together = after_two_steps([small, large])
    assert torch.equal(together[0], after_two_steps([small])[0])
    assert torch.equal(together[1], after_two_steps([large])[0])
    # 2e3 and 2e2 are both clipped to a norm of 1, so the two steps look alike; 0.3 and 0.03 do not.
    assert not torch.allclose(1 - together[0], 1 - together[1][0], rtol=1e-2)
    torch.testing.assert_close(together[1], after_two_steps([large * 7])[0])


def test_parameters_without_a_gradient_stay() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = BertAdam([{"params": [used]}, {"params": [unused]}], lr=0.1, total_steps=10, warmup=0.0)
    used.grad = torch.ones(2)
    optimizer.step()
    assert (used < 1).all()
    assert torch.equal(unused.detach(), torch.ones(2))


def test_a_closure_is_evaluated_with_gradients() -> None:
    parameter = nn.Parameter(torch.tensor(3.0))
    optimizer = BertAdam([parameter], lr=0.1, total_steps=10, warmup=0.0)

    def closure() -> float:
        loss = parameter**2
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    assert optimizer.step(closure) == 9
    assert parameter.item() < 3


def test_saved_and_loaded_it_continues_exactly(tmp_path: Path) -> None:
    def run(steps: range, parameter: nn.Parameter, optimizer: BertAdam) -> None:
        for step in steps:
            parameter.grad = torch.randn(4, generator=torch.Generator().manual_seed(step))
            optimizer.step()

    def start(value: Tensor) -> tuple[nn.Parameter, BertAdam]:
        parameter = nn.Parameter(value.clone())
        return parameter, BertAdam([parameter], lr=0.1, total_steps=20)

    whole, optimizer = start(torch.ones(4))
    run(range(6), whole, optimizer)
    half, optimizer = start(torch.ones(4))
    run(range(3), half, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed, optimizer = start(half.detach())
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    run(range(3, 6), resumed, optimizer)
    assert torch.equal(resumed, whole)


@pytest.mark.parametrize(
    "settings",
    [{"lr": -1.0}, {"total_steps": 0}, {"warmup": 1.0}, {"betas": (0.9, 1.0)}, {"eps": 0.0}, {"max_grad_norm": 0.0}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        BertAdam([nn.Parameter(torch.ones(1))], **{"lr": 0.1, "total_steps": 10, **settings})


def test_decay_groups_are_by_module_type() -> None:
    model = nn.ModuleDict({"block": AttentionBlock(width=8, heads=2, dropout=0.0), "table": nn.Embedding(3, 8)})
    model["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    model["again"] = model["table"]  # shared: once
    decayed, exempt = decay_groups(model, 0.01)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.01, 0.0)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {name_of[id(p)] for p in decayed["params"]} == {
        "block.attention.query.weight",
        "block.attention.key.weight",
        "block.attention.value.weight",
        "block.output.weight",
        "table.weight",
    }
    assert {name_of[id(p)] for p in exempt["params"]} == {
        "block.attention.query.bias",
        "block.attention.key.bias",
        "block.attention.value.bias",
        "block.output.bias",
        "block.norm.weight",
        "block.norm.bias",
    }
    assert len(decayed["params"]) == 5 and len(exempt["params"]) == 6


def test_adamw_is_torchs_own_on_our_schedule() -> None:
    ours, theirs = (nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64)) for _ in range(2))
    optimizer = AdamW([ours], lr=0.1, total_steps=8, warmup=0.25, weight_decay=0.3)
    plain = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda step: warmup_linear(step / 8, 0.25))
    for step in range(8):
        ours.grad = theirs.grad = torch.tensor([0.5 - step, 3.0], dtype=torch.float64)
        optimizer.step()
        plain.step()
        schedule.step()
        assert torch.equal(ours, theirs), step
