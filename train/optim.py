"""BertAdam, the optimiser that the released code of this field trains with, what it does not decay, and AdamW beside it.

BertAdam came from the first PyTorch port of BERT (Devlin et al., 2019) by way of TVR and MS-SL, whose papers call it Adam.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def warmup_linear(progress: float, warmup: float) -> float:
    """Factor on the learning rate: from 0 to 1 at ``warmup``, then down to 0 at 1. Both are fractions of training."""
    if progress < warmup:
        return progress / warmup
    return max((1 - progress) / (1 - warmup), 0.0)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: decayed, and not (biases, and all of LayerNorm)."""
    decayed: dict[Tensor, None] = {}
    exempt: dict[Tensor, None] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                free = isinstance(module, nn.LayerNorm) or "bias" in name
                (exempt if free else decayed)[parameter] = None  # by parameter: a shared one counts once
    return [
        {"params": list(decayed), "weight_decay": weight_decay},
        {"params": list(exempt), "weight_decay": 0.0},
    ]


class BertAdam(Optimizer):
    """Adam without bias correction, with decoupled weight decay, its own schedule, and a clip of each gradient tensor.

    The first step has a learning rate of 0: the schedule reads how many steps are done, and warm-up starts from 0.

    Args:
        params: parameters, or groups of them.
        lr: at the top of the schedule.
        total_steps: length of the schedule; after it the learning rate is 0.
        warmup: fraction of ``total_steps`` over which the learning rate rises.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: times the learning rate and the parameter, subtracted.
        max_grad_norm: each *tensor's* gradient is scaled down to this norm.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        total_steps: int,
        warmup: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        if lr < 0 or eps <= 0 or weight_decay < 0 or max_grad_norm <= 0:
            raise ValueError(
                f"too low: lr {lr}, eps {eps}, weight_decay {weight_decay} or max_grad_norm {max_grad_norm}"
            )
        if total_steps < 1 or not 0 <= warmup < 1 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"out of range: total_steps {total_steps}, warmup {warmup} or betas {betas}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"max_grad_norm": max_grad_norm, "total_steps": total_steps, "warmup": warmup, "rate": 0.0}
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step; ``closure``, if given, computes the loss and its gradients anew. Gradients are left as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:  # torch's foreach functions refuse an empty list
                self._update(parameters, group)
        return loss

    @torch.no_grad()
    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Each line is one operation on all tensors of the group: on a GPU, a few launches in place of hundreds."""
        states = [self._state_of(parameter) for parameter in parameters]
        first, second = [s["first"] for s in states], [s["second"] for s in states]
        (beta1, beta2), lr = group["betas"], group["lr"]
        rates = [lr * warmup_linear(s["step"] / group["total_steps"], group["warmup"]) for s in states]

        group["rate"] = rates[0]  # for whoever logs it
        gradients = _clipped([p.grad for p in parameters if p.grad is not None], group["max_grad_norm"])
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, group["eps"])
        update = torch._foreach_div(first, scale)
        torch._foreach_add_(update, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(update, rates)
        torch._foreach_sub_(parameters, update)
        for state in states:
            state["step"] += 1

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state |= {"step": 0, "first": torch.zeros_like(parameter), "second": torch.zeros_like(parameter)}
        return state


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, ICLR 2019), torch's own, on BertAdam's schedule; gradients are not clipped.

    Args:
        params: parameters, or groups of them.
        lr: at the top of the schedule.
        total_steps, warmup, weight_decay: as of BertAdam.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        total_steps: int,
        warmup: float = 0.01,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self._top, self._total_steps, self._warmup = lr, total_steps, warmup

    def step(self, closure: Any = None) -> Any:
        """One step, at the rate that the schedule has after the steps done."""
        done = max((int(state["step"]) for state in self.state.values()), default=0)
        for group in self.param_groups:
            group["lr"] = group["rate"] = self._top * warmup_linear(done / self._total_steps, self._warmup)
        return super().step(closure)


OPTIMISERS = {"bertadam": BertAdam, "adamw": AdamW}


def _clipped(gradients: list[Tensor], limit: float) -> list[Tensor]:
    """Each gradient scaled down to a norm of ``limit``, with the 1e-6 of ``torch.nn.utils.clip_grad_norm_``."""
    factors = [(limit / (norm + 1e-6)).clamp(max=1.0) for norm in torch._foreach_norm(gradients)]
    return list(torch._foreach_mul(gradients, factors))
