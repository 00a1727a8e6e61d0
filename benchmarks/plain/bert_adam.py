"""BertAdam, one tensor after the other."""

import torch
from torch import nn


class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, with decoupled decay, a linear schedule, and each tensor's gradient clipped to 1."""

    def __init__(self, model: nn.Module, lr: float = 2.5e-4, steps: int = 1000, decay: float = 0.01) -> None:
        named = list(model.named_parameters())
        free = [tensor for name, tensor in named if "bias" in name or "LayerNorm.weight" in name]
        kept = {id(tensor) for tensor in free}
        decayed = [tensor for _, tensor in named if id(tensor) not in kept]
        groups = [{"params": decayed, "decay": decay}, {"params": free, "decay": 0.0}]
        super().__init__(groups, {"lr": lr, "steps": steps, "warmup": 0.01})

    def step(self) -> None:
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state |= {"step": 0, "m": torch.zeros_like(tensor), "v": torch.zeros_like(tensor)}
                nn.utils.clip_grad_norm_(tensor, 1.0)
                gradient = tensor.grad
                state["m"].mul_(0.9).add_(gradient, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                if group["decay"]:
                    update += group["decay"] * tensor.data
                done = state["step"] / group["steps"]
                factor = (
                    done / group["warmup"] if done < group["warmup"] else max((1 - done) / (1 - group["warmup"]), 0)
                )
                tensor.data.add_(-group["lr"] * factor * update)
                state["step"] += 1
