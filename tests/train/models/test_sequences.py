"""What stands in place of a Transformer layer: each sequence as torch encodes it alone, whatever is padded behind it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from prvr.train.layers import InputProjection, PositionEmbedding, SequenceEncoder
from prvr.train.models._sequences import ConvolutionBlock, RecurrentLayer

WIDTH = 6
LENGTHS = (9, 1, 4, 2)


def _sequences() -> tuple[Tensor, Tensor]:
    """Of LENGTHS; what is padded is not zero."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return torch.randn(*mask.shape, WIDTH, generator=torch.Generator().manual_seed(1)), mask


def _layer(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "cnn":
        return ConvolutionBlock(width=WIDTH, kernel=5, dropout=0.0)
    return RecurrentLayer(kind="gru" if kind == "gru" else "lstm", width=WIDTH)


def test_a_convolution_sees_two_places_to_each_side_and_zeros_past_the_ends() -> None:
    layer = ConvolutionBlock(width=WIDTH, kernel=5, dropout=0.0)
    sequences, mask = _sequences()
    encoded = layer(sequences, mask)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    assert bias is not None
    for sequence, ours, length in zip(sequences, encoded, LENGTHS, strict=True):
        for place in range(length):
            near = [(k, place + k - 2) for k in range(5) if 0 <= place + k - 2 < length]
            seen = functional.relu(bias + sum(weight[:, :, k] @ sequence[other] for k, other in near))
            torch.testing.assert_close(ours[place], functional.layer_norm(sequence[place] + seen, (WIDTH,)))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_recurrent_layer_reads_each_sequence_from_both_of_its_ends(kind: str) -> None:
    """Against torch's own cell, step by step."""
    layer = _layer(kind)
    assert isinstance(layer, RecurrentLayer)
    sequences, mask = _sequences()
    encoded = layer(sequences, mask)
    cells = []
    for suffix in ("", "_reverse"):
        cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(WIDTH, WIDTH // 2)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        cell.load_state_dict({name: getattr(layer.recurrence, f"{name}_l0{suffix}") for name in names})
        cells.append(cell)
    for sequence, ours, length in zip(sequences, encoded, LENGTHS, strict=True):
        forwards = _run(cells[0], sequence[:length])
        backwards = _run(cells[1], sequence[:length].flip(0)).flip(0)
        torch.testing.assert_close(ours[:length], torch.cat([forwards, backwards], dim=-1))
        assert not ours[length:].any()


@pytest.mark.parametrize("kind", ["cnn", "gru", "lstm"])
def test_what_is_padded_and_how_far_changes_nothing(kind: str) -> None:
    """Codes and gradients; in an encoder, which cuts portions of like length on a CPU."""
    encoder = SequenceEncoder(
        project=InputProjection(inputs=WIDTH, outputs=WIDTH, dropout=0.0),
        position=PositionEmbedding(positions=20, width=WIDTH, dropout=0.0),
        attend=_layer(kind),
    )
    sequences, mask = _sequences()
    longer, longer_mask = functional.pad(sequences, (0, 0, 0, 5), value=7.0), functional.pad(mask, (0, 5))
    found = []
    for features, real in ((sequences, mask), (longer, longer_mask), (longer * longer_mask[..., None], longer_mask)):
        encoder.zero_grad()
        encoded = encoder(features, real)
        encoded[real].square().sum().backward()
        gradients = [parameter.grad.flatten() for parameter in encoder.parameters() if parameter.grad is not None]
        found.append((encoded[real].detach(), torch.cat(gradients)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    alone = [encoder(sequence[None, :length])[0] for sequence, length in zip(sequences, LENGTHS, strict=True)]
    torch.testing.assert_close(found[0][0], torch.cat(alone).detach())


@pytest.mark.parametrize("kind", ["cnn", "gru", "lstm"])
def test_a_sequence_with_nothing_real_is_finite(kind: str) -> None:
    sequences, mask = _sequences()
    encoded = _layer(kind)(sequences, mask & torch.tensor([True, False, True, True])[:, None])
    assert encoded.shape == sequences.shape and encoded.isfinite().all()


def test_widths_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="a kernel of 4 has no middle"):
        ConvolutionBlock(width=WIDTH, kernel=4, dropout=0.0)
    with pytest.raises(ValueError, match="a width of 5 has no half"):
        RecurrentLayer(kind="gru", width=5)


def _run(cell: nn.Module, sequence: Tensor) -> Tensor:
    """Hidden states [L, D / 2]."""
    states, state = [], None
    for step in sequence:
        state = cell(step[None], state)
        states.append(state[0] if isinstance(cell, nn.GRUCell) else state[0][0])
    return torch.stack(states)
