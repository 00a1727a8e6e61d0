"""Cosine and dot product of queries and videos, against torch's own cosine."""

import torch
from torch.nn import functional

from prvr.train.models._similarity import lengths, of_nearest, of_whole


def test_the_nearest_code_is_chosen_by_each_similarity_for_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    sentences, codes = torch.randn(5, 8, generator=generator), torch.randn(3, 4, 8, generator=generator)
    codes = codes * torch.rand(3, 4, 1, generator=generator) * 9
    codes[1, 2] = 0  # a padded frame
    cosines = functional.cosine_similarity(sentences[:, None, None], codes, dim=-1)
    products = (sentences[:, None, None] * codes).sum(-1)
    assert (cosines.argmax(-1) != products.argmax(-1)).any()
    branch = of_nearest(sentences, codes, lengths(codes))
    torch.testing.assert_close(branch.cosine, cosines.amax(-1))
    torch.testing.assert_close(branch.dot, products.amax(-1))


def test_a_vector_of_zeros_is_like_nothing_and_has_a_gradient() -> None:
    videos = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    sentences = torch.tensor([[2.0, 0.0]])
    branch = of_whole(sentences, videos, lengths(videos))
    torch.testing.assert_close(branch.cosine, torch.tensor([[0.0, 0.6]]))
    torch.testing.assert_close(branch.dot, torch.tensor([[0.0, 6.0]]))
    branch.cosine[0, 1].backward()  # type: ignore[no-untyped-call]
    assert videos.grad is not None and videos.grad.isfinite().all()
