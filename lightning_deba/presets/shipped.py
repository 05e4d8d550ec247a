"""The presets that come with the package.

The family of an architecture is what the network is, not the file that its code is in, and its trunk decides:

- A squeeze-and-excitation, wide, anti-aliased, pre-activation, 3-D or ResNeXt network is a ResNet; so are
  ResNeSt and Res2Net, which replace the inner convolution of the bottleneck. CSPNet, DLA and NFNet are not.
- MnasNet, FBNet, MixNet, LCNet and HardCoRe-NAS are MobileNets, being chains of their blocks; TinyNet is a scaled
  EfficientNet. MobileViT, EfficientViT and EfficientFormer have only the word in common with those families.
- A plain vision transformer attends between all patches at one resolution: DeiT, BEiT, EVA, CaiT, FlexiViT,
  AIMv2, and a hybrid whose patches come from a convolutional stem. Those with stages or another token mixer,
  such as Swin, MaxViT, CoAtNet, LeViT, XCiT and ConViT, are not.
- A detector or a segmenter is none of its backbone's family: its loss and so its gradients are others.
"""

from __future__ import annotations

from lightning_deba.policies import DEBA
from lightning_deba.presets.preset import Preset


def _runs(architecture: str) -> str:
    """Says what was run, and how to run it again."""
    return (
        f"Calibrated by this project from {architecture} on 800 images of Fashion-MNIST at 32x32, batch 16, 25 epochs, "
        "3 seeds, SGD 0.01 with momentum 0.9, lightning 2.6.6 and torch 2.14.1: python -m tests.evidence. Not the "
        "paper's thresholds, which are not public."
    )


_BORROWED = (
    "Borrowed: the strictest thresholds of the calibrated presets, and twice their cooldown. No such network was run; "
    "lightning-deba characterize runs yours."
)

# The words of the residual family, each of which is followed by the depth of the network.
_RESNETS = (
    "resnet",
    "resnetaa",
    "resnetblur",
    "resnetrs",
    "resnetv2_",
    "resnext",
    "resnextaa",
    "resnest",
    "res2net",
    "res2next",
)


def _at_depth(*depths: str) -> tuple[str, ...]:
    """Patterns for the residual networks of certain depths, whatever stands before the word.

    Example:
        >>> _at_depth("18*")[:2]
        ('*resnet18*', '*resnetaa18*')
    """
    return tuple(f"*{word}{depth}" for word in _RESNETS for depth in depths)


# An architecture belongs to the last of these that fits: `generic` names exceptions to the patterns before it,
# and a ViT on a ResNet stem is a ViT.
SHIPPED = (
    Preset(
        name="resnet_shallow",
        # Two digits below 50, and no third.
        architectures=(
            *_at_depth("[1-4][0-9]", "[1-4][0-9][!0-9]*"),
            "r3d_18",
            "mc3_18",
            "r2plus1d_18",
            "test_resnet",
        ),
        policy=DEBA(confidence_threshold=0.779, stability_threshold=0.258),
        source=_runs("resnet18"),
        note="The paper finds ResNet-18 36 to 43 % faster and 2.4 to 4.0 % more accurate on CIFAR.",
        score=0.76,
        verdict="adapt",
    ),
    Preset(
        name="resnet_deep",
        architectures=(*_at_depth("[5-9][0-9]*", "[1-9][0-9][0-9]*"), "ecaresnetlight", "*senet154", "tresnet_*"),
        policy=DEBA(confidence_threshold=0.738, stability_threshold=0.245),
        source=_runs("resnet50"),
        note="The paper finds high variance with ResNet-50 on CIFAR, and sometimes a loss of accuracy.",
        score=0.62,
        verdict="adapt",
    ),
    Preset(
        name="densenet",
        architectures=("densenet*",),
        policy=DEBA(confidence_threshold=0.786, stability_threshold=0.236),
        source=_runs("densenet121"),
        note="The paper counts DenseNet-121 among those that gain most: 45 to 62 % faster on CIFAR, more accurate.",
        score=0.74,
        verdict="adapt",
    ),
    Preset(
        name="efficientnet",
        architectures=("*efficientnet*", "tinynet_*"),
        policy=DEBA(confidence_threshold=0.922, stability_threshold=0.26),
        source=_runs("efficientnet_b0"),
        note="The paper counts EfficientNet-B0 among those that gain most: 45 to 62 % faster on CIFAR, more accurate.",
        score=0.55,
        verdict="adapt",
    ),
    Preset(
        name="mobilenet",
        architectures=(
            "*mobilenet*",
            "*mnasnet*",
            "spnasnet_*",
            "fbnet*",
            "hardcorenas_*",
            "lcnet_*",
            "*mixnet_*",
        ),
        policy=DEBA(confidence_threshold=0.987, stability_threshold=0.39),
        source=_runs("mobilenetv3_large_100"),
        note="The paper counts MobileNet-V3 among those that gain most: 45 to 62 % faster on CIFAR, more accurate.",
        score=0.51,
        verdict="adapt",
    ),
    Preset(
        name="vit",
        architectures=(
            "vit_*",
            "deit*",
            "beit*",
            "eva_*",
            "eva02_*",
            "cait_*",
            "flexivit_*",
            "naflexvit_*",
            "samvit_*",
            "aimv2_*",
            "deepseek_vit_*",
            "gemma4_vit_*",
            "qwen3_vit_*",
            "test_vit*",
            "visiontransformer",
        ),
        policy=DEBA(confidence_threshold=1.15, stability_threshold=0.163),
        source=_runs("vit_tiny_patch16_224"),
        note="The paper finds ViT-B16 stable as it is: about 6 % faster on CIFAR, no less accurate.",
        score=0.76,
        verdict="don't adapt",
    ),
    Preset(
        name="generic",
        architectures=(
            "cspresne*",
            "*rcnn_*",
            "retinanet_*",
            "fcos_*",
            "ssdlite*",
            "fcn_*",
            "deeplabv3_*",
            "lraspp_*",
        ),
        policy=DEBA(confidence_threshold=0.738, stability_threshold=0.163, cooldown=10),
        source=_BORROWED,
        note="No family of the paper, which warns that thresholds may not transfer, to ConvNeXt or CoAtNet for example."
        " A characterization of this network under a fixed batch size tells what suits it.",
    ),
)
