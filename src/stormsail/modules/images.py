"""Convolutions for the images within an observation."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stormsail.core.task import ImagePart
from stormsail.modules.layers import HIDDEN_GAIN, linear

IMAGE_CHANNELS = (16, 32, 32)
"""Channels after each convolution; each halves height and width."""

IMAGE_FEATURES = 64
"""Features of one image, behind a last linear layer."""

_KERNEL, _STRIDE, _PADDING = 3, 2, 1


class ImageEncoder(nn.Module):
    """Three convolutions of 3 x 3 with stride 2 and a linear layer, each with a ReLU.

    Smaller than the network of Mnih et al. 2015 (Nature 518:529-533), whose first kernel of 8 x 8
    with stride 4 needs images of 36 x 36; this one takes any size from 1 x 1.

    Args:
        image: its size.
        generator: source of the weights.
    """

    def __init__(self, image: ImagePart, generator: torch.Generator) -> None:
        super().__init__()
        self._shape = (image.channels, image.height, image.width)
        widths = [image.channels, *IMAGE_CHANNELS]
        self.convolutions = nn.ModuleList(
            _convolution(a, b, generator) for a, b in itertools.pairwise(widths)
        )
        height, width = image.height, image.width
        for _ in IMAGE_CHANNELS:
            height, width = -(-height // _STRIDE), -(-width // _STRIDE)
        flat = IMAGE_CHANNELS[-1] * height * width
        self.last = linear(flat, IMAGE_FEATURES, gain=HIDDEN_GAIN, generator=generator)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return features [*b, `IMAGE_FEATURES`] of pixels [*b, C * H * W]."""
        x = pixels.reshape(-1, *self._shape)
        for convolution in self.convolutions:
            x = convolution(x).relu()
        features: Tensor = self.last(x.flatten(1)).relu()
        return features.reshape(*pixels.shape[:-1], IMAGE_FEATURES)


class ObservationParts(nn.Module):
    """The named columns of an observation, followed by the features of each image.

    Args:
        inputs: number of named columns.
        images: behind them, in order; without any the observation is passed on as it is.
        generator: source of the weights.
    """

    def __init__(
        self, inputs: int, images: Sequence[ImagePart], generator: torch.Generator
    ) -> None:
        super().__init__()
        self._sizes = [inputs, *(image.size for image in images)]
        self.images = nn.ModuleList(ImageEncoder(image, generator) for image in images)
        self.width = inputs + IMAGE_FEATURES * len(images)

    def forward(self, x: Tensor) -> Tensor:
        """Return [*b, `width`] of an observation [*b, F]."""
        if not self.images:
            return x
        named, *pixels = x.split(self._sizes, -1)
        encoded = [encode(part) for encode, part in zip(self.images, pixels, strict=True)]
        return torch.cat((named, *encoded), -1)


def _convolution(inputs: int, outputs: int, generator: torch.Generator) -> nn.Conv2d:
    """Return a layer with an orthogonal weight matrix [outputs, inputs * 9] and zero bias."""
    layer: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d,
        inputs,
        outputs,
        _KERNEL,
        stride=_STRIDE,
        padding=_PADDING,
        device=torch.get_default_device(),
    )
    nn.init.orthogonal_(layer.weight, gain=HIDDEN_GAIN, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
