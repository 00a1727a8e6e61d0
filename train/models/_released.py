"""From the parameter names of the GMMFormer family's released code to ours."""

from collections.abc import Mapping

from torch import Tensor

from prvr.manifests.errors import ConfigurationError


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str], system: str) -> dict[str, Tensor]:
    """``state`` under our ``names``.

    Raises:
        ConfigurationError: a key that ``names`` does not have, or one that is missing.
    """
    if state.keys() != names.keys():
        odd = ", ".join(sorted(state.keys() ^ names.keys())[:4])
        raise ConfigurationError(f"not a state_dict of the released {system}: missing or unexpected are {odd}, …")
    return {names[key]: tensor for key, tensor in state.items()}


def parameters(modules: Mapping[str, str]) -> dict[str, str]:
    """Weight and bias of each module, by its name there and here."""
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in modules.items() for kind in ("weight", "bias")}


def projection(theirs: str, ours: str) -> dict[str, str]:
    """Parameters of an input projection."""
    return parameters(
        {f"{theirs}_input_proj.LayerNorm": f"{ours}.norm", f"{theirs}_input_proj.net.1": f"{ours}.linear"}
    )


def position(theirs: str, ours: str) -> dict[str, str]:
    """Parameters of a position embedding."""
    table = {f"{theirs}_pos_embed.position_embeddings.weight": f"{ours}.table.weight"}
    return table | parameters({f"{theirs}_pos_embed.LayerNorm": f"{ours}.norm"})


def attention(theirs: str, ours: str) -> dict[str, str]:
    """Parameters of a self-attention."""
    return parameters({f"{theirs}.self.{part}": f"{ours}.{part}" for part in ("query", "key", "value")})


def attention_block(theirs: str, ours: str) -> dict[str, str]:
    """Parameters of an attention block without a feed-forward layer."""
    tail = {f"{theirs}.output.dense": f"{ours}.output", f"{theirs}.output.LayerNorm": f"{ours}.norm"}
    return attention(theirs, f"{ours}.attention") | parameters(tail)
