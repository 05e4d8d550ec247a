"""Presets: every shipped row, every known name, and models found inside modules."""

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
import timm
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lightning_deba
from lightning_deba import DEBA, EpochRecord, Hold
from lightning_deba.presets import (
    Preset,
    get_preset,
    list_presets,
    match_preset,
    preset_for,
    register_preset,
    registry,
)

SHIPPED = [
    "densenet",
    "efficientnet",
    "generic",
    "mobilenet",
    "resnet_deep",
    "resnet_shallow",
    "vit",
]

# Checked by hand against the networks' own code: preset, names, and why where the name does not tell.
FAMILIES = {
    "resnet_shallow": [
        "resnet10t",
        "resnet14t",
        "resnet18",
        "resnet18.a1_in1k",
        "resnet18d",
        "resnet26",  # of bottleneck blocks, and still 26 layers
        "resnet26t",
        "resnet32ts",
        "resnet34",
        "resnetaa34d",  # anti-aliased
        "resnetblur18",
        "resnetv2_18",  # pre-activation
        "resnetv2_34d",
        "resnext26ts",
        "seresnet18",
        "seresnext26t_32x4d",  # 26 layers, 32 groups
        "legacy_seresnet34",
        "legacy_seresnext26_32x4d",
        "gluon_resnet18_v1b",  # a name that timm gave up
        "ecaresnet26t",
        "skresnet18",
        "gcresnext26ts",
        "resnest14d",
        "nf_seresnet26",  # a ResNet without normalization layers
        "lambda_resnet26rpt_256",  # a ResNet-26 trunk; 256 is the image
        "quantized_resnet18",
        "r3d_18",  # a ResNet-18 for video
        "mc3_18",
        "r2plus1d_18",
        "test_resnet",  # one basic block a stage
    ],
    "resnet_deep": [
        "resnet50",
        "resnet50_gn",
        "resnet50x4_clip",
        "resnet51q",
        "resnet101",
        "resnet101c",
        "resnet152s",
        "resnet200d",
        "resnetrs420",
        "resnetaa50d",
        "resnetv2_50x1_bit",
        "resnetv2_101d",
        "resnetv2_152x4_bit",
        "wide_resnet50_2",
        "wide_resnet101_2",
        "seresnet50",
        "seresnet152d",
        "seresnextaa201d_32x8d",
        "resnext50_32x4d",  # 50 layers, 32 groups
        "resnext101_32x16d",
        "quantized_resnext101_64x4d",
        "skresnext50_32x4d",
        "ecaresnet269d",
        "ecaresnetlight",  # a lighter ResNet-50-D: 1, 1, 11, 3 bottlenecks
        "resnest50d_4s2x40d",
        "res2net50_14w_8s",
        "res2net101_26w_4s",
        "res2next50",
        "senet154",  # 3, 8, 36, 3 bottlenecks
        "legacy_senet154",
        "tresnet_m",  # a ResNet of 3 and 4 basic blocks, then 11 and 3 bottlenecks
        "nf_resnet50",
    ],
    "densenet": ["densenet121", "densenet201", "densenet264d", "densenetblur121d"],
    "efficientnet": [
        "efficientnet_b0",
        "efficientnet_b0.ra_in1k",
        "efficientnet_es_pruned",
        "efficientnet_v2_s",  # torchvision's spelling
        "efficientnetv2_rw_t",
        "gc_efficientnetv2_rw_t",
        "tf_efficientnet_lite0",
        "tf_efficientnetv2_b0",
        "tinynet_a",  # EfficientNet-B0 scaled down
    ],
    "mobilenet": [
        "mobilenetv1_100",
        "mobilenetv2_100",  # its code is in timm's efficientnet.py
        "mobilenet_v2",  # torchvision's spelling
        "mobilenetv3_small_100",
        "mobilenet_v3_large",
        "quantized_mobilenet_v3_large",
        "tf_mobilenetv3_large_minimal_100",
        "mobilenetv4_conv_small",
        "mobilenetv4_hybrid_medium",  # some attention between inverted bottlenecks
        "mobilenet_edgetpu_v2_m",
        "mnasnet_100",  # the search space that MobileNet-V3 came from
        "mnasnet1_0",
        "semnasnet_100",
        "spnasnet_100",
        "fbnetc_100",
        "fbnetv3_b",
        "hardcorenas_a",
        "lcnet_050",
        "mixnet_s",
        "tf_mixnet_l",
    ],
    "vit": [
        "vit_tiny_patch16_224",
        "vit_base_patch16_clip_224.openai",
        "vit_b_16",  # torchvision's spelling
        "vit_so400m_patch14_siglip_224",
        "vit_relpos_small_patch16_224",
        "vit_base_r50_s16_224",  # a ViT whose patches come from a ResNet
        "vit_small_resnet26d_224",
        "vit_small_patch16_dinov3",  # its code is in timm's eva.py
        "deit_tiny_patch16_224",
        "deit_base_distilled_patch16_224",
        "deit3_small_patch16_224",
        "beit_base_patch16_224",
        "beitv2_large_patch16_224",
        "beit3_base_patch16_224",
        "eva02_tiny_patch14_224",
        "eva_giant_patch14_224",
        "cait_s24_224",
        "flexivit_small",
        "naflexvit_base_patch16_gap",
        "samvit_base_patch16",
        "aimv2_large_patch14_224",
        "qwen3_vit_88m",
    ],
    "generic": [
        "convnext_tiny",
        "coatnet_0_rw_224",
        "maxvit_t",
        "swin_t",  # in stages
        "swin_tiny_patch4_window7_224",
        "swin3d_b",
        "regnety_004",
        "regnet_y_400mf",
        "cspresnet50",  # a part of the features bypasses each stage
        "dla60_res2net",
        "inception_resnet_v2",
        "nfnet_f0",
        "botnet26t_256",  # attention in place of convolutions
        "halonet50ts",
        "rdnet_tiny",  # ConvNeXt's design with DenseNet's connections
        "mobileone_s0",  # parallel branches, to be folded
        "ghostnet_100",
        "rexnet_100",
        "mobilevit_s",
        "mobilevitv2_100",
        "efficientvit_b0",
        "efficientvit_m0",
        "efficientformer_l1",
        "efficientformerv2_s0",
        "tiny_vit_5m_224",
        "levit_128",
        "fastvit_t8",
        "davit_tiny",
        "crossvit_9_240",
        "convit_tiny",
        "vitamin_small_224",
        "visformer_tiny",
        "xcit_nano_12_p8_224",
        "pit_b_224",
        "volo_d1_224",
        "nasnetalarge",
        "fcn_resnet50",  # a segmenter's loss, not a ResNet's
        "deeplabv3_mobilenet_v3_large",
        "lraspp_mobilenet_v3_large",
        "fasterrcnn_resnet50_fpn_v2",
        "maskrcnn_resnet50_fpn",
        "retinanet_resnet50_fpn",
        "fcos_resnet50_fpn",
        "ssdlite320_mobilenet_v3_large",
        "raft_small",
        "vgg16_bn",
        "alexnet",
    ],
}


@pytest.fixture
def own_registry(monkeypatch):
    """Presets registered in a test are gone after it."""
    monkeypatch.setattr(registry, "_PRESETS", dict(registry._PRESETS))


@pytest.fixture
def on_meta():
    """Models are built without memory for their weights."""
    with torch.device("meta"):
        yield


class Lit(nn.Module):
    """Holds a model as LightningModules do."""

    def __init__(self, model):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.model = model


# Shipped rows


def test_all_shipped_presets_are_listed_in_order():
    assert list_presets() == SHIPPED
    assert list_presets("resnet*") == ["resnet_deep", "resnet_shallow"]
    assert list_presets("nothing*") == []


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_preset(name):
    preset = get_preset(name)
    assert preset.name == name
    assert preset.architectures
    assert preset.source.startswith("Borrowed" if name == "generic" else "Calibrated by this project from ")
    assert preset.note


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policy_decides(name):
    policy = get_preset(name).policy
    assert (policy.growth, policy.rollback, policy.window, policy.rule) == (1.5, 0.8, 15, "calm")
    calm = [
        EpochRecord(epoch, 32, 32, loss=1.0, gradient_norm=1.0 - 0.02 * epoch, component_variance=1e-8)
        for epoch in range(12)
    ]
    calm[-1] = EpochRecord(11, 32, 32, loss=1.0, gradient_norm=0.8, component_variance=0.5e-8)
    assert policy(calm).batch_size == 48
    assert policy(calm[:4]).batch_size == 32


def test_deep_is_more_cautious_than_shallow_and_generic_than_any():
    shallow, deep, generic = (get_preset(n).policy for n in ("resnet_shallow", "resnet_deep", "generic"))
    assert deep.stability_threshold < shallow.stability_threshold
    for policy in (get_preset(name).policy for name in SHIPPED if name != "generic"):
        assert generic.confidence_threshold <= policy.confidence_threshold
        assert generic.stability_threshold <= policy.stability_threshold
        assert generic.cooldown > policy.cooldown


def test_generic_suggests_a_characterization():
    assert "characterization" in match_preset("convnext_tiny").note


# Names


def test_the_hand_checked_list_is_long_enough():
    assert sum(map(len, FAMILIES.values())) >= 60


@pytest.mark.parametrize(("name", "expected"), [(name, preset) for preset, names in FAMILIES.items() for name in names])
def test_family(name, expected):
    assert match_preset(name).name == expected


@pytest.mark.parametrize("library", [timm, torchvision.models])
def test_every_model_of_the_library_resolves(library):
    names = library.list_models()
    assert len(names) > 100
    assert {match_preset(name).name for name in names} == set(SHIPPED)


@pytest.mark.parametrize("word", ["resnet", "densenet", "efficientnet", "mobilenet", "vit_"])
def test_a_model_that_begins_with_its_family_is_of_the_family(word):
    for name in timm.list_models(f"{word}*"):
        assert match_preset(name).name.startswith(word.strip("_")), name


def test_names_resolve_without_building_a_model(monkeypatch):
    def build(*_, **__):
        raise AssertionError("a module was built")

    monkeypatch.setattr(nn.Module, "__init__", build)
    for name in timm.list_models():
        match_preset(name)


@given(
    st.sampled_from([name for names in FAMILIES.values() for name in names if "." not in name]),
    st.sampled_from(["", "timm/", "hf-hub:timm/", "hf_hub:timm/", "hf-hub:"]),
    st.sampled_from(["", ".a1_in1k", ".fb_in22k_ft_in1k"]),
)
def test_hub_organization_and_tag_do_not_matter(name, prefix, tag):
    assert match_preset(prefix + name + tag) is match_preset(name)


@given(st.sampled_from([name for names in FAMILIES.values() for name in names]))
def test_matching_is_idempotent(name):
    preset = match_preset(name)
    assert match_preset(preset.name) is preset
    assert get_preset(preset.name) is preset


def test_a_family_s_everyday_name_is_enough():
    assert match_preset("mobilenetv3").name == "mobilenet"
    assert match_preset("ResNet50").name == "resnet_deep"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rensnet18", "resnet18"), ("densnet121", "densenet121"), ("mobilnetv3", "mobilenet"), ("genric", "generic")],
)
def test_unknown_model_asks_whether_another_was_meant(name, meant):
    with pytest.raises(ValueError, match=rf"`model_name` .* got '{name}'\. Did you mean .*'{meant}'"):
        match_preset(name)


@pytest.mark.parametrize("name", ["", "qqqqqqqqq", "resnet", "timm/"])
def test_unknown_model_without_a_close_one(name):
    with pytest.raises(ValueError, match=r"`model_name` must be .* write 'generic' or pass a policy"):
        match_preset(name)


def test_unknown_preset_points_to_close_ones_and_to_match_preset():
    with pytest.raises(ValueError, match=r"Did you mean 'resnet_shallow'.*`match_preset`"):
        get_preset("resnet_shalow")


# A preset of one's own


FIXED = Hold()


def own(name="convnext", architectures=("convnext*",), policy=FIXED, source="own runs"):
    return Preset(name, architectures, policy, source)


def test_preset_is_frozen():
    with pytest.raises(FrozenInstanceError):
        get_preset("vit").source = "the paper"


@pytest.mark.parametrize("field", ["name", "source"])
@pytest.mark.parametrize("text", ["", "  "])
def test_name_and_source_are_mandatory(field, text):
    with pytest.raises(ValueError, match=f"`{field}` of a preset must not be empty"):
        own(**{field: text})


def test_architectures_as_one_text_are_refused():
    with pytest.raises(ValueError, match=r"`architectures` must be a tuple .* Write \('resnet18',\)\."):
        own(architectures="resnet18")


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"`policy` of a preset must be a policy, got 0\.3"):
        own(policy=0.3)


@pytest.mark.usefixtures("own_registry")
def test_own_preset_goes_before_the_shipped_ones():
    register_preset(own())
    register_preset(own("resnet18_own", ("resnet18",)))
    assert match_preset("convnext_tiny").name == "convnext"
    assert match_preset("resnet18.a1_in1k").name == "resnet18_own"
    assert match_preset("resnet18d").name == "resnet_shallow"
    assert "convnext" in list_presets()


@pytest.mark.usefixtures("own_registry")
def test_registering_twice():
    register_preset(own())
    register_preset(own())
    with pytest.raises(ValueError, match=r"another preset 'convnext'.*'convnext_own'"):
        register_preset(own(policy=DEBA()))
    assert get_preset("convnext").policy == FIXED


# Models inside modules


@pytest.mark.parametrize(
    "name",
    [
        "resnet18.a1_in1k",
        "resnet50",
        "densenet121",
        "efficientnet_b0",
        "mobilenetv3_small_050",
        "vit_tiny_patch16_224",
        "vit_small_resnet26d_224",
        "deit_tiny_patch16_224",
        "convnext_atto",
        "regnetx_002",
    ],
)
@pytest.mark.usefixtures("on_meta")
def test_timm_model_is_found(name):
    model = timm.create_model(name, pretrained=False)
    assert preset_for(model) is preset_for(Lit(model)) is match_preset(name)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "wide_resnet50_2",
        "resnext50_32x4d",
        "densenet121",
        "efficientnet_b0",
        "efficientnet_v2_s",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "quantized_resnet18",
        "mnasnet0_5",
        "vit_b_16",
        "swin_t",
        "r3d_18",
        "vgg11",
    ],
)
@pytest.mark.usefixtures("on_meta")
def test_torchvision_model_is_found(name):
    model = torchvision.models.get_model(name, weights=None)
    assert preset_for(model) is preset_for(Lit(model)) is match_preset(name)


@pytest.mark.usefixtures("on_meta")
def test_a_segmenter_is_not_taken_for_its_backbone():
    model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None)
    assert preset_for(Lit(model)).name == "generic"


def test_a_feature_extractor_of_timm_is_found():
    features = timm.create_model("test_vit", features_only=True)
    assert preset_for(Lit(features)).name == "vit"


def test_a_subclass_of_a_torchvision_model_is_found():
    class Own(torchvision.models.ResNet):
        pass

    model = Own(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    assert preset_for(model).name == "resnet_shallow"


def test_the_first_of_several_models_counts():
    first, second = timm.create_model("test_efficientnet"), timm.create_model("test_vit")
    assert preset_for(nn.Sequential(first, second)).name == "efficientnet"
    assert preset_for(nn.Sequential(second, first)).name == "vit"


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(2, 2),
        # A block of a torchvision model is no model.
        nn.Sequential(torchvision.models.resnet.BasicBlock(4, 4), nn.Linear(4, 2)),
    ],
)
def test_no_model_inside(module):
    with pytest.raises(ValueError, match=r"inside (Linear|Sequential): pass `preset=`.*`policy=`"):
        preset_for(module)


def test_configurations_of_other_kinds_are_passed_over():
    module = nn.Linear(2, 2)
    module.pretrained_cfg = {"architecture": None}
    with pytest.raises(ValueError, match="No timm or torchvision model"):
        preset_for(module)


# Weight of the import


def test_the_room_needs_neither_torch_nor_timm_nor_torchvision():
    script = f"""
import sys
from types import ModuleType
sys.modules["lightning_deba"] = package = ModuleType("lightning_deba")  # the room, without the whole house
package.__path__ = {lightning_deba.__path__!r}
from lightning_deba.presets import match_preset
for name in ("hf-hub:timm/resnet18.a1_in1k", "resnet50", "mobilenetv3_small_100", "vit_b_16", "vit", "generic"):
    match_preset(name)
print(sorted({{"torch", "timm", "torchvision", "lightning"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
