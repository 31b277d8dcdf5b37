"""convert: transformers of timm become exactly equivariant, with nearly all of their work in rolled layers."""

import copy
from typing import Any

import pytest
import timm
import torch
from test_convert_timm import agree, is_exact
from timmtools import image

import quarterturn as qt
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import lively

# What is given to timm, so that they are small; patches of 14 need sides of 56. `size` is that of the images alone.
FEW: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "swin_tiny_patch4_window7_224": {"img_size": 56},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "cait_xxs24_224": {"depth": 2},
}
MORE: dict[str, dict[str, Any]] = {
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "deit_tiny_patch16_224": {},
    "deit3_small_patch16_224": {},
    "vit_base_patch16_clip_224": {},
    "vit_little_patch16_reg4_gap_256": {},
    "beit_base_patch16_224": {"depth": 2},
    "pit_ti_224": {},
    "visformer_tiny": {},
    "coatnet_0_224": {},
    "swinv2_tiny_window8_256": {"window_size": 4},
    "swinv2_cr_tiny_224": {"window_size": 4},
    "maxvit_tiny_rw_224": {},
    "maxxvit_rmlp_nano_rw_256": {},
    "levit_128s": {"img_size": None, "size": 224},
    "tiny_vit_5m_224": {"img_size": None, "size": 224},
    "fastvit_sa12": {"img_size": None},
    "iformer_t": {"img_size": None},
    "davit_tiny": {"img_size": None},
    "vitamin_small_224": {},
    "hiera_tiny_224": {"img_size": None, "size": 224},
    "gcvit_xxtiny": {"img_size": None, "size": 224},
    "efficientvit_m0": {"img_size": None, "size": 224},
    "nest_tiny": {"img_size": None, "size": 224},
    "twins_svt_small": {"img_size": None, "size": 224},
    "twins_pcpvt_small": {},
    "mobilevit_xxs": {"img_size": None},
    "mobilevitv2_050": {"img_size": None},
    "edgenext_xx_small": {"img_size": None},
    "efficientformer_l1": {"img_size": None, "size": 224},
    "efficientformerv2_s0": {"img_size": None, "size": 224},
    "efficientvit_b0": {"img_size": None},
    "nextvit_small": {"img_size": None},
    "lowformer_b0": {"img_size": None},
    "pvt_v2_b0": {"img_size": None},  # takes any size
    "shvit_s1": {"img_size": None},
    "resmlp_12_224": {},
    "gmlp_s16_224": {},
    "mixer_s32_224": {},
    "gmixer_12_224": {},
    "vit_small_patch16_dinov3": {"depth": 2},
    "vit_small_patch16_rope_mixed_224": {"depth": 2},
    "eva02_base_patch16_clip_224": {"depth": 2},
    "vit_base_patch16_siglip_224": {"depth": 2},
    "vit_base_patch16_xp_224": {"depth": 2},
    "vit_relpos_small_patch16_224": {"depth": 2},
    "vit_srelpos_small_patch16_224": {"depth": 2},
    "vit_pe_core_tiny_patch16_384": {"depth": 2},
    "xcit_nano_12_p8_224": {"depth": 2},
    "volo_d1_224": {},
    "convit_tiny": {"img_size": None, "size": 224},
    "crossvit_tiny_240": {"img_size": None, "size": 240},
    "naflexvit_base_patch16_gap": {"img_size": None, "depth": 2},
    "qwen3_vit_88m": {"img_size": None, "depth": 2},
    "coat_lite_tiny": {},
    "samvit_base_patch16_224": {"depth": 2},
    "mvitv2_tiny": {},
    "mvitv2_small_cls": {},
    "sam2_hiera_tiny": {"img_size": None, "size": 224},
    "haloregnetz_b": {"img_size": None, "size": 224},
    "tnt_s_patch16_224": {"depth": 2},
}
SIZE = 64
LEAST = 0.8  # of the old network's multiply-adds in layers that share filters


def check(name: str, group: qt.Group, size: int | None = None, **options: Any) -> None:
    torch.manual_seed(0)
    given = {key: value for key, value in {"img_size": SIZE, **options}.items() if value is not None}
    model = timm.create_model(name, num_classes=10, **given).eval()
    x = image(batch=2, size=size or given.get("img_size", SIZE))
    net = qt.convert(model, group, example=x)
    assert net.conversion.rolled_share >= LEAST
    converted = lively(net, [x])
    turned = qt.convert(model, group, rotate="maps", example=x).eval()
    turned.load_state_dict(converted.state_dict())
    with torch.no_grad():
        assert converted(x).shape == model(x).shape
        assert error_of_answers(lively(model, [x]), group, (x,)) > 1e-2  # the same check finds the old network out
        assert is_exact(converted, group, x)
        assert agree(turned, converted, x)
        assert agree(qt.to_plain(converted, x), converted, x)
    net.train()
    net(x).square().mean().backward()
    gradients = [p.grad for p in net.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    torch.optim.SGD(net.parameters(), 1e-3).step()
    assert is_exact(net.eval(), group, x)


@pytest.mark.parametrize("name", FEW)
def test_converted_transformers_are_exact(name: str) -> None:
    check(name, qt.C4, **FEW[name])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224"])
def test_converted_transformers_are_exact_to_flips(name: str) -> None:
    check(name, qt.D4, **FEW[name])


@pytest.mark.slow
def test_shifted_windows_are_exact_to_flips() -> None:
    check("swin_tiny_patch4_window7_224", qt.D4, img_size=112)


@pytest.mark.slow
def test_code_in_own_frames_is_exact_to_flips() -> None:
    check("samvit_base_patch16_224", qt.D4, depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_transformers_are_exact(name: str) -> None:
    check(name, qt.C4, **MORE[name])


def test_attention_in_one_call_and_spelled_out_give_the_same() -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=SIZE)
    spelled = copy.deepcopy(model)
    for block in spelled.blocks:
        assert block.attn.fused_attn
        block.attn.fused_attn = False
    x = image(batch=2)
    one, other = (qt.convert(net, qt.C4, example=x).eval() for net in (model, spelled))
    other.load_state_dict(one.state_dict())
    with torch.no_grad():  # heads of other widths have another scale in torch's own attention
        torch.testing.assert_close(other(x), one(x), rtol=1e-2, atol=1e-2)
        assert is_exact(other, qt.C4, x)
