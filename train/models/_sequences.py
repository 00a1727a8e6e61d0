"""What can stand in place of a Transformer layer, for the ablation of MS-SL's Table 7: a 1D-CNN, a bi-GRU, a bi-LSTM.

Letters: ``N`` sequences of length ``L``, ``D`` hidden width.

The paper says that all three Transformer modules were replaced, and no more. XML (Lei et al., ECCV 2020), from which
MS-SL has its sentence encoder, has the same four for a setting of its published code, and so its values are taken: one
layer each, a kernel of 5, recurrent layers of D/2 in each direction, side by side, without dropout. The rest is read so:
  - input projection and position embeddings stay, also before a recurrent layer (XML's then has none): equations 2 and
    4 name them apart from the Transformer that was replaced;
  - the convolution is of all D channels to D, then ReLU; like attention in MS-SL's code, it is followed by Dropout and
    LayerNorm of the sum with its input. A recurrent layer's output is the end;
  - matrices and biases of both are initialised as torch does.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from prvr.train.layers import Dropout


class ConvolutionBlock(nn.Module):
    """A convolution over time, ReLU, Dropout, LayerNorm of the sum with the input.

    Args:
        width: D.
        kernel: places that one place sees, itself in the middle; odd.
        dropout: of what is added.

    Raises:
        ValueError: an even kernel.
    """

    def __init__(self, *, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"a kernel of {kernel} has no middle")
        self.convolution = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to the same shape; past the end stands 0, however long the padding."""
        if mask is not None:
            sequence = sequence.masked_fill(~mask[..., None], 0)
        seen = functional.relu(self.convolution(sequence.mT)).mT
        encoded: Tensor = self.norm(sequence + self.dropout(seen))
        return encoded


class RecurrentLayer(nn.Module):
    """A GRU or an LSTM in both directions, each of half the width.

    Args:
        kind: which.
        width: D, even.

    Raises:
        ValueError: an odd width.
    """

    def __init__(self, *, kind: Literal["gru", "lstm"], width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"a width of {width} has no half for each direction")
        make = nn.GRU if kind == "gru" else nn.LSTM
        self.recurrence = make(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``sequence`` [N, L, D] with ``mask`` [N, L] to the same shape; what is past a sequence's end comes out as 0."""
        if mask is None:
            encoded: Tensor = self.recurrence(sequence)[0]
            return encoded
        length = mask.shape[1]
        # Backwards, padding would come first: each sequence is packed up to its last that is real, at least one.
        last = (mask * torch.arange(1, length + 1, device=mask.device)).amax(1).clamp_min(1).cpu()
        packed = pack_padded_sequence(sequence, last, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.recurrence(packed)[0], batch_first=True, total_length=length)[0]
