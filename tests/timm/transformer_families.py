"""The families of timm's transformers, hybrids and mixers: all networks that `families.py` leaves out.

python tests/timm/transformer_families.py

prints the smallest network of each family, which is what `SMALLEST` in this file must hold.
"""

import re
from collections import defaultdict
from typing import Any

import timm
import torch
from families import ATTENTION, OTHERS, _module, family, parameters
from torch import nn

# More words that say how large a network is.
SIZES = """
    giant gigantic giantopt enormous betwixt little wee pwee dwee dpwee dlittle mediumd so mini xtiny xxtiny xx xxs ti
    xsmall big
"""

# The smallest network of each family, by parameters.
SMALLEST = """
    aimv2_large_patch14_224 bat_resnext26ts beit3_base_patch16_224 beit_base_patch16_224 beitv2_base_patch16_224
    botnet26t_256 caformer_s18 cait_xxs24_224 coat_lite_tiny coat_tiny coatnet_pico_rw_224 coatnet_bn_0_rw_224
    coatnet_nano_cc_224 coatnet_rmlp_nano_rw_224 coatnext_nano_rw_224 convit_tiny cpubone_b0_bfrobust
    cpubone_b1_dwnorm cpubone_nano crossvit_tiny_240 crossvit_9_dagger_240 csatv2 davit_tiny davit_base_fl
    deepseek_vit_412m deepseek_vit_412m_align deepseek_vit_412m_enc deit_tiny_patch16_224
    deit_tiny_distilled_patch16_224 eca_botnext26ts_256 eca_halonext26ts edgenext_xx_small efficientformer_l1
    efficientformerv2_s0 efficientvim_m1 efficientvim_m1_dist efficientvit_b0 efficientvit_m0
    eva02_tiny_patch14_224 eva02_base_patch16_clip_224 eva_large_patch14_196 fastvit_ma36 fastvit_mci0
    fastvit_sa12 flexivit_small gcvit_xxtiny gemma4_vit_167m gemma4_vit_167m_enc gmixer_12_224 gmlp_ti16_224
    halo2botnet50ts_256 halonet_h1 haloregnetz_b hiera_tiny_224 hiera_small_abswin_256 hieradet_small iformer_t
    iformer_m_distilled lambda_resnet26t lamhalobotnet50ts_256 levit_128s levit_conv_128s lowformer_b0
    maxvit_tiny_tf_224 maxvit_pico_rw_256 maxvit_rmlp_pico_rw_256 maxvit_tiny_pm_256 maxxvit_rmlp_nano_rw_256
    maxxvitv2_nano_rw_256 maxxvitv2_rmlp_base_rw_224 mixer_s16_224 mobilenetv4_hybrid_medium_075 mobilenetv5_base
    mobilenetv5_300m_enc mobilevit_xxs mobilevitv2_050 mvitv2_tiny mvitv2_small_cls naflexvit_base_patch16_gap
    naflexvit_base_patch16_map naflexvit_base_patch16_par_gap naflexvit_base_patch16_parfac_gap
    naflexvit_base_patch16_radio_v3 naflexvit_base_patch16_siglip naflexvit_so150m2_patch16_reg1_gap
    naflexvit_so150m2_patch16_reg1_map nest_tiny nest_tiny_jx nextvit_small pit_ti_224 pit_ti_distilled_224
    pvt_v2_b0 pvt_v2_b2_li qwen3_vit_88m qwen3_vit_88m_enc qwen3_vit_88m_merge resmlp_12_224 resnet50_clip
    sam2_hiera_tiny samvit_base_patch16_224 sebotnet33ts_256 sehalonet33ts sequencer2d_s shvit_s1 swiftformer_xs
    swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window16_256 swinv2_cr_tiny_224
    swinv2_cr_tiny_ns_224 tiny_vit_5m_224 tnt_s_patch16_224 tnt_s_legacy_patch16_224 twins_pcpvt_small
    twins_svt_small visformer_tiny vit_base_patch16_sapiens2 vit_small_patch16_dinov3 vit_base_mci_224
    vit_tiny_patch16_224 vit_small_patch14_dinov2 vit_base_patch14_reg1_tipsv2 vit_small_patch14_reg4_dinov2
    vit_base_patch16_224_miil vit_xsmall_patch16_clip_224 vit_base_patch16_clip_quickgelu_224
    vit_tiny_patch16_dinov3_qkvb vit_medium_patch16_gap_256 vit_small_patch16_lingbot vit_base_patch16_radio_v3
    vit_wee_patch16_reg1_gap_256 vit_small_patch16_rope_224 vit_small_patch16_rope_ape_224
    vit_small_patch16_rope_mixed_224 vit_small_patch16_rope_mixed_ape_224 vit_medium_patch16_rope_reg1_gap_256
    vit_base_patch16_rpn_224 vit_base_patch16_siglip_224 vit_base_patch16_siglip_gap_224 vit_base_patch16_xp_224
    vit_tiny_r_s16_p8_224 vit_small_resnet50d_s16_224 vit_intern300m_patch14_448 vit_pe_core_tiny_patch16_384
    vit_pe_lang_large_patch14_448 vit_pe_spatial_tiny_patch16_512 vit_relpos_small_patch16_224
    vit_relpos_medium_patch16_cls_224 vit_relpos_base_patch16_clsgap_224 vit_relpos_small_patch16_rpn_224
    vit_so150m_patch16_reg4_map_256 vit_srelpos_small_patch16_224 vitamin_small_224 volo_d1_224
    xcit_nano_12_p8_224
"""
LARGE = 200_000_000  # parameters from which on a network is made narrower too
NARROW = {"embed_dim": 256, "num_heads": 8}
PATCHES = {"deepseek_vit": 14, "gemma4_vit": 48}  # whose names do not say it; four of them, or of what is pooled
# Of large images a part, which the windows of these networks divide.
SIDES = {"davit_base_fl": 384, "mobilenetv5_300m_enc": 192, "sam2_hiera_tiny": 224}
USUAL, LARGEST = 224, 300  # pixels a side: instead of larger images the usual ones, if it takes them


def family_of(name: str) -> str:
    """The module of timm, and what the name says beside the size."""
    words = [word for word in family(name).split("_") if word not in SIZES.split()]
    return f"{_module(name)}: {'_'.join(words)}"


def families() -> dict[str, list[str]]:
    """The names of these networks by family; timm's own networks for tests are left out."""
    others = set(" ".join(OTHERS.values()).split())
    found = defaultdict(list)
    for name in timm.list_models():
        if not timm.models.model_entrypoint(name).__module__.startswith("timm.") or name.startswith("test_"):
            continue
        if _module(name) in others or re.search(ATTENTION, name):
            found[family_of(name)].append(name)
    return dict(found)


def small(name: str) -> tuple[nn.Module, int]:
    """The network with two blocks and four by four patches where it takes such options, and the size of its images."""
    patch = int(found[1]) if (found := re.search(r"patch(\d+)", name)) else PATCHES.get(_module(name), 16)
    narrow: dict[str, Any] = NARROW if parameters(name) > LARGE else {}
    few: dict[str, Any] = {"depth": 2, **narrow}
    ways: list[dict[str, Any]] = [{**few, "img_size": 4 * patch}, few] if _is_flat(name) else []
    for options in (*ways, {"img_size": USUAL}, {}):
        try:
            model = timm.create_model(name, num_classes=10, **options).eval()  # some have no head of their own
        except (TypeError, ValueError, RuntimeError, AssertionError):
            continue
        size = options.get("img_size") or SIDES.get(name) or model.pretrained_cfg["input_size"][-1]
        if options == {"img_size": USUAL} and model.pretrained_cfg["input_size"][-1] <= LARGEST:
            continue  # as it is
        return model, size
    raise AssertionError(f"timm does not make {name}")


def _is_flat(name: str) -> bool:
    """Whether all blocks are alike, and their number is one option; in ConViT tokens join in a late one."""
    return _module(name) in FLAT.split()


FLAT = """
    beit cait deepseek_vit deit eva gemma4_vit mlp_mixer naflexvit qwen3_vit vision_transformer
    vision_transformer_hybrid vision_transformer_relpos vision_transformer_sam xcit
"""

if __name__ == "__main__":
    torch.set_num_threads(1)
    for names in families().values():
        print(min(names, key=parameters), flush=True)
