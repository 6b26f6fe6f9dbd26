"""Matrix products on a CPU by oneDNN, which uses the widest vectors of any processor.

torch's own go to MKL, which does so on those of its maker alone: on others it takes twice as long.
"""

import torch
from torch import Tensor

OPERATIONS = 1 << 20
"""From which number of multiplications oneDNN is called; below, the call is what costs."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [R, I] times the transposed weight [O, I], plus a bias [O]; without gradients."""
    if x.shape[0] * weight.numel() < OPERATIONS or not torch.backends.mkldnn.is_available():
        return torch.nn.functional.linear(x, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result
