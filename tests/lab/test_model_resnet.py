"""model=resnet."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lab.models.resnet import ResNet
from samebits.errors import ConfigError

C = 7


def small_resnet(shape: tuple[int, ...], blocks: tuple[int, ...] = (1, 1, 1), dropout: float = 0.0) -> ResNet:
    return ResNet(input_shape=shape, num_outputs=C, width=4, blocks=blocks, dropout=dropout)


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8), (3, 5, 7), (3, 32, 32), (3, 65, 130), (3, 224, 224), (1, 1)])
def test_resnet_shapes_and_first_loss(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = small_resnet(shape)
    output = model(torch.randn(2, *shape))
    loss = F.cross_entropy(output, torch.tensor([0, 1]))
    assert output.shape == (2, C)
    assert loss.item() == pytest.approx(math.log(C), abs=0.2)  # the loss of a guess


@pytest.mark.parametrize(
    ("side", "first_stage"), [(8, 8), (64, 64), (65, 33), (128, 64), (129, 33), (224, 56), (513, 33)]
)
def test_resnet_stem_brings_large_images_to_64_at_most(side: int, first_stage: int) -> None:
    model = small_resnet((1, side, side))
    assert model.stem(torch.zeros(1, 1, side, side)).shape[-2:] == (first_stage, first_stage)


def test_resnet_blocks_start_as_their_shortcut_and_convolutions_have_no_bias() -> None:
    model = small_resnet((3, 8, 8), (2, 2)).eval()
    block = model.stages[1]
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(x), x)
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Conv2d))


def test_resnet_of_height_and_width_is_one_channel() -> None:
    flat, deep = small_resnet((8, 8)), small_resnet((1, 8, 8))
    deep.load_state_dict(flat.state_dict())
    x = torch.rand(3, 8, 8)
    assert torch.equal(flat.eval()(x), deep.eval()(x.unsqueeze(1)))


def test_dropout_is_of_training_alone() -> None:
    torch.manual_seed(0)
    model, x = small_resnet((1, 4, 4), dropout=0.5), torch.randn(4, 1, 4, 4)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: small_resnet((64,)), r"model\.input_shape=\[64\].*model=mlp"),
        (lambda: small_resnet((1, 2, 3, 4)), r"model\.input_shape=\[1, 2, 3, 4\]"),
        (lambda: small_resnet((0, 8, 8)), r"model\.input_shape"),
        (lambda: small_resnet((32, 24, 3)), r"\(H, W, C\).*channels_first.*data\.input_shape=\[3,32,24\]"),
        (lambda: small_resnet((8, 8), ()), r"model\.blocks=\[\]"),
        (lambda: small_resnet((3, 8, 8))(torch.rand(2, 1, 8, 8)), "3 channels"),
    ],
)
def test_models_say_what_does_not_fit(build: object, says: str) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match=says):
        build()
