"""The building blocks, against torch's own attention, by their invariances, and at their edges."""

import pytest
import torch
from torch import Tensor, nn

from prvr.train import layers
from prvr.train.layers import (
    AttentionBlock,
    AttentionPooling,
    DecayedNorm,
    Dropout,
    InputProjection,
    PositionEmbedding,
    SelfAttention,
    SequenceEncoder,
    TransformerLayer,
    encode_by_length,
    gaussian_windows,
    initialise,
    masked_softmax,
    place_windows,
)
from prvr.train.optim import decay_groups

WIDTH, HEADS = 16, 4


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _mask(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.fixture
def attention() -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(width=WIDTH, heads=HEADS, dropout=0.0)


def _heads(attention: SelfAttention, sequence: Tensor, mask: Tensor | None) -> Tensor:
    """What torch's fused attention makes of the same projections."""
    projections = (attention.query(sequence), attention.key(sequence), attention.value(sequence))
    query, key, value = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in projections)
    fused = nn.functional.scaled_dot_product_attention(query, key, value, mask)
    return fused.transpose(1, 2).flatten(2)


def test_self_attention_is_torchs(attention: SelfAttention) -> None:
    sequence, mask = _random(3, 7, WIDTH), _mask(7, 1, 4)
    torch.testing.assert_close(attention(sequence), _heads(attention, sequence, None))
    torch.testing.assert_close(attention(sequence, mask), _heads(attention, sequence, mask[:, None, None, :]))


def test_gain_multiplies_the_logits(attention: SelfAttention) -> None:
    sequence, mask = _random(2, 5, WIDTH), _mask(5, 3)
    ones, zeros = torch.ones(5, 5), torch.zeros(5, 5)
    torch.testing.assert_close(attention(sequence, mask, ones), attention(sequence, mask))
    mean = (attention.value(sequence) * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
    torch.testing.assert_close(attention(sequence, mask, zeros), mean.expand(-1, 5, -1))


def test_gain_may_differ_between_heads(attention: SelfAttention) -> None:
    sequence = _random(1, 5, WIDTH)
    gain = torch.ones(HEADS, 5, 5)
    gain[0] = 0
    plain, gained = attention(sequence), attention(sequence, None, gain)
    assert not torch.allclose(gained[..., : WIDTH // HEADS], plain[..., : WIDTH // HEADS])
    torch.testing.assert_close(gained[..., WIDTH // HEADS :], plain[..., WIDTH // HEADS :])


def test_width_must_divide_into_heads() -> None:
    with pytest.raises(ValueError, match="10 does not divide into 4"):
        SelfAttention(width=10, heads=4, dropout=0.0)


def test_a_transformer_layer_is_torchs_own() -> None:
    attention = AttentionBlock(width=8, heads=2, dropout=0.0)
    ours = TransformerLayer(attention=attention, width=8, inner=12, dropout=0.0)
    theirs = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True)
    generator = torch.Generator().manual_seed(0)
    projections = (attention.attention.query, attention.attention.key, attention.attention.value)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        assert theirs.self_attn.in_proj_weight is not None and theirs.self_attn.in_proj_bias is not None
        theirs.self_attn.in_proj_weight.copy_(torch.cat([module.weight for module in projections]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([module.bias for module in projections]))
    pairs = {
        theirs.self_attn.out_proj: attention.output,
        theirs.norm1: attention.norm,
        theirs.linear1: ours.expand,
        theirs.linear2: ours.contract,
        theirs.norm2: ours.norm,
    }
    for module, own in pairs.items():
        module.load_state_dict(own.state_dict())
    sequence, mask = _random(3, 5, 8), torch.arange(5) < torch.tensor([[5], [3], [1]])
    expected = theirs(sequence, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(sequence, mask)[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_masked_softmax_gives_nothing_to_padding_and_is_never_nan() -> None:
    logits, mask = _random(3, 4), _mask(4, 2, 0)
    weights = masked_softmax(logits, mask)
    torch.testing.assert_close(weights[0], logits[0].softmax(-1))
    torch.testing.assert_close(weights[1, :2], logits[1, :2].softmax(-1))
    assert torch.equal(weights[1, 2:], torch.zeros(2))
    torch.testing.assert_close(weights[2], torch.full((4,), 0.25))
    assert torch.isfinite(masked_softmax(logits.half(), mask)).all()


@pytest.mark.parametrize("lengths", [(1,), (3, 6)])
def test_a_sequence_is_encoded_alike_with_or_without_padding(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    encoder = SequenceEncoder(
        project=InputProjection(inputs=5, outputs=WIDTH, dropout=0.0),
        position=PositionEmbedding(positions=9, width=WIDTH, dropout=0.0),
        attend=AttentionBlock(width=WIDTH, heads=HEADS, dropout=0.0),
    )
    pooling = AttentionPooling(width=WIDTH)
    features, mask = _random(len(lengths), 9, 5), _mask(*lengths, 9)[:-1]  # what is padded is not zero
    pooled = pooling(encoder(features, mask), mask)
    assert pooled.shape == (len(lengths), WIDTH)
    for row, length in enumerate(lengths):
        alone = encoder(features[row : row + 1, :length])
        torch.testing.assert_close(encoder(features, mask)[row, :length], alone[0])
        torch.testing.assert_close(pooled[row], pooling(alone)[0])


def test_pooling_is_a_weighted_mean_of_real_words() -> None:
    pooling = AttentionPooling(width=WIDTH)
    nn.init.zeros_(pooling.direction.weight)
    words, mask = _random(2, 4, WIDTH), _mask(4, 3)
    torch.testing.assert_close(pooling(words, mask)[1], words[1, :3].mean(0))
    nn.init.ones_(pooling.direction.weight)
    best = 1e3 * words  # a softmax this sharp picks the word that points most along the direction
    chosen = best[0][best[0].sum(-1).argmax()]
    torch.testing.assert_close(pooling(best, mask)[0], chosen)


def test_position_matters_and_the_table_has_an_end() -> None:
    torch.manual_seed(0)
    position = PositionEmbedding(positions=3, width=WIDTH, dropout=0.0)
    same = position(torch.ones(1, 3, WIDTH))
    assert not torch.allclose(same[0, 0], same[0, 1])
    with pytest.raises(ValueError, match="a sequence of 4, but the position table has 3 rows"):
        position(torch.ones(1, 4, WIDTH))


def test_dropout_is_where_the_papers_have_it() -> None:
    """In training, each block that has dropout is random; in evaluation, none is."""
    block_of_attention = AttentionBlock(width=WIDTH, heads=HEADS, dropout=0.5)
    block_of_attention.attention.eval()  # the block's own dropout is in question here
    blocks: list[nn.Module] = [
        InputProjection(inputs=WIDTH, outputs=WIDTH, dropout=0.5),
        PositionEmbedding(positions=6, width=WIDTH, dropout=0.5),
        SelfAttention(width=WIDTH, heads=HEADS, dropout=0.5),
        block_of_attention,
    ]
    sequence = _random(2, 6, WIDTH)
    torch.manual_seed(0)
    for block in blocks:
        assert not torch.equal(block(sequence), block(sequence)), block
        block.eval()
        assert torch.equal(block(sequence), block(sequence)), block


def test_maps_that_are_made_again_for_the_gradient_drop_the_same() -> None:
    attention = SelfAttention(width=WIDTH, heads=HEADS, dropout=0.5)
    sequence, mask = _random(3, 7, WIDTH), _mask(7, 1, 4)

    def gradients(mixed: Tensor) -> list[Tensor]:
        mixed.square().sum().backward()  # type: ignore[no-untyped-call]
        found = [parameter.grad.clone() for parameter in attention.parameters() if parameter.grad is not None]
        attention.zero_grad()
        return found

    torch.manual_seed(0)
    again = gradients(attention(sequence, mask))
    torch.manual_seed(0)
    parts = (attention.query, attention.key, attention.value)
    query, key, value = (attention._split(part(sequence)) for part in parts)
    kept = attention._mix(query, key, value, mask, None)
    for one, other in zip(again, gradients(kept.transpose(1, 2).flatten(2)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rate", [0.2, 0.31, 0.75])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate: float) -> None:
    dropout = Dropout(rate)
    ones = torch.ones(400, 501, requires_grad=True)
    torch.manual_seed(0)
    dropped = dropout(ones)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / (1 - rate)), rtol=1e-4, atol=0)
    # Which are kept does not depend on their neighbours, of whom four come from one random number.
    assert (kept[:, :-1] == kept[:, 1:]).float().mean().item() == pytest.approx(rate**2 + (1 - rate) ** 2, abs=0.005)
    dropped.sum().backward()
    assert ones.grad is not None and torch.equal(ones.grad, dropped.detach())
    torch.manual_seed(0)
    assert torch.equal(dropout(ones), dropped)
    assert dropout.eval()(ones) is ones and Dropout(0.0)(ones) is ones


def test_a_dropout_rate_of_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1.0 is not in \[0, 1\)"):
        Dropout(1.0)


def test_windows_are_gaussians_of_height_1() -> None:
    """As the formula has it: exp(-(place - center)^2 / (2 sigma^2)) over its largest value, sigma = width / 9."""
    centers, widths, length = torch.tensor([0.0, 0.4, 1.0]), torch.tensor([0.5, 1.0, 0.3]), 11
    places = torch.linspace(0, 1, length)
    for window, center, width in zip(gaussian_windows(centers, widths, length), centers, widths, strict=True):
        density = torch.exp(-((places - center) ** 2) / (2 * (width / 9) ** 2))
        torch.testing.assert_close(window, density / density.max())
    narrow = gaussian_windows(torch.tensor([0.25]), torch.tensor([0.0]), 3)  # each density is 0 in float32
    assert torch.equal(narrow, torch.tensor([[1.0, 1.0, 0.0]]))


def test_place_windows_are_of_each_place() -> None:
    none, wide = place_windows((None, 5.0), 4, torch.device("cpu"))
    assert none is None and wide is not None
    torch.testing.assert_close(wide[2], gaussian_windows(torch.tensor(0.5), torch.tensor(5.0), 4))
    assert wide.argmax(1).tolist() == [0, 1, 1, 2]  # i / L, among places that are i / (L - 1)


def test_portions_of_like_length_give_what_all_at_once_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    features, mask = _random(5, 9, 3), _mask(2, 9, 0, 5, 1)
    mask[3, 1] = False  # a hole
    seen: list[tuple[int, ...]] = []

    def sums(features: Tensor, mask: Tensor | None) -> Tensor:
        seen.append(tuple(features.shape[:2]))
        real = features if mask is None else features * mask[..., None]
        return features + real.sum(1, keepdim=True)

    monkeypatch.setattr(layers, "_PLACES", 18)
    encoded = encode_by_length(sums, features, mask)
    assert seen == [(2, 9), (2, 2), (1, 1)]
    torch.testing.assert_close(encoded[mask], sums(features, mask)[mask])
    assert encoded.shape == (5, 9, 3) and torch.equal(encoded[4, 2:], torch.zeros(7, 3))
    for shape in ((0, 9), (5, 0)):
        nothing = torch.zeros(*shape, dtype=torch.bool)
        assert encode_by_length(sums, torch.zeros(*shape, 3), nothing).shape == (*shape, 3)


def test_a_decayed_norm_is_a_norm_that_decays() -> None:
    norm, theirs = DecayedNorm(WIDTH), nn.LayerNorm(WIDTH)
    features = _random(3, WIDTH)
    torch.testing.assert_close(norm(features), theirs(features))
    decayed, exempt = decay_groups(norm, 0.01)
    assert decayed["params"] == [norm.weight] and exempt["params"] == [norm.bias]


def test_initialise() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(200, 200), nn.Embedding(200, 200), nn.LayerNorm(200), nn.Linear(9, 9, bias=False)])
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    initialise(model, 0.05)
    linear, table, norm = model[0], model[1], model[2]
    assert isinstance(linear, nn.Linear) and isinstance(table, nn.Embedding) and isinstance(norm, nn.LayerNorm)
    for weight in (linear.weight, table.weight):
        assert weight.std().item() == pytest.approx(0.05, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=0.001)
    assert torch.equal(linear.bias, torch.zeros(200))
    assert torch.equal(norm.weight, torch.ones(200)) and torch.equal(norm.bias, torch.zeros(200))
