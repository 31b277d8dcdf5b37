"""The families of timm's convolutional networks: what the names of its networks say beside their size.

python tests/timm/families.py

prints the smallest network of each family, which is what `SMALLEST` in this file must hold.
"""

import re
from collections import defaultdict

import timm
import torch

# Modules of timm that are no convolutional networks, and why: all positions look at one another in them.
OTHERS = {
    "attention": """
        beit byoanet cait coat convit cpubone crossvit csatv2 davit deepseek_vit deit edgenext efficientformer
        efficientformer_v2 efficientvit_mit efficientvit_msra eva gcvit gemma4_vit hiera hieradet_sam2 iformer levit
        lowformer maxxvit mobilenetv5 mobilevit mvitv2 naflexvit nest nextvit pit pvt_v2 qwen3_vit shvit swiftformer
        swin_transformer swin_transformer_v2 swin_transformer_v2_cr tiny_vit tnt twins visformer vision_transformer
        vision_transformer_hybrid vision_transformer_relpos vision_transformer_sam vitamin volo xcit
    """,
    "mixer": "mlp_mixer",
    "recurrent": "sequencer",
    "state-space": "efficientvim",
}
# Words in names of the other modules' networks that have attention over positions; "gap" pools by a mean instead.
ATTENTION = r"(^|_)(bat|caformer|clip(?!_gap)|hybrid|fastvit_(mci|sa|ma))"
# Words that say how large a network is, or how it was trained.
SIZES = """
    zepto atto femto pico nano tiny small medium base large xlarge xxlarge huge xl xxl xs el em es short tall wide plus
    kobe rw tv ssld
"""


# The smallest network of each family, by parameters.
SMALLEST = """
    convformer_s18 convmixer_768_32 convmixer_1024_20_ks9_p14 convnext_atto convnext_atto_ols convnext_zepto_rms
    convnext_large_mlp convnext_tiny_hnf convnext_zepto_rms_ols convnextv2_atto cs3darknet_focus_s cs3darknet_s
    cs3edgenet_x cs3se_edgenet_x cs3sedarknet_l cs3sedarknet_xdw cspdarknet53 cspnext_tiny cspresnet50
    cspresnext50 darknet17 darknetaa53 densenet121 densenetblur121d dla46x_c dla60_res2net dla60_res2next
    dm_nfnet_f0 dpn48b eca_nfnet_l0 eca_resnet33ts eca_resnext26ts eca_vovnet39b ecaresnet26t
    ecaresnet50d_pruned ecaresnetlight ecaresnext26t_32x4d efficientnet_b0 efficientnet_b0_gn
    efficientnet_b0_g16_evos efficientnet_es_pruned efficientnet_blur_b0 efficientnet_cc_b0_4e
    efficientnet_lite0 efficientnetv2_rw_t ese_vovnet19b_dw ese_vovnet19b_slim ese_vovnet19b_slim_dw
    ese_vovnet39b ese_vovnet39b_evos fasternet_t0 fastvit_t8 fbnetc_100 fbnetv3_b focalnet_tiny_lrf
    focalnet_tiny_srf focalnet_large_fl3 gc_efficientnetv2_rw_t gcresnet33ts gcresnext26ts gernet_s ghostnet_050
    ghostnetv2_100 ghostnetv3_050 hardcorenas_b hgnet_tiny hgnetv2_b0 hrnet_w18_small inception_next_atto
    inception_resnet_v2 inception_v3 inception_v4 lcnet_035 lcnetv2_small legacy_senet154 legacy_seresnet18
    legacy_seresnext26_32x4d legacy_xception mambaout_femto mixnet_s mnasnet_small mobilenet_edgetpu_100
    mobilenetv1_100 mobilenetv2_035 mobilenetv3_small_050 mobilenetv4_conv_aa_medium
    mobilenetv4_conv_blur_medium mobilenetv4_conv_small_035 mobileone_s1 nasnetalarge nf_ecaresnet26
    nf_regnet_b0 nf_resnet26 nf_seresnet26 nfnet_l0 pnasnet5large poolformer_s12 poolformerv2_s12 rdnet_tiny
    regnetv_040 regnetx_002 regnety_002 regnety_040_sgn regnetz_005 regnetz_b16 regnetz_b16_evos repghostnet_050
    repvgg_a0 repvit_m1 res2net50_14w_8s res2next50 resnest14d resnet10t resnet32ts resnet50_clip_gap
    resnet50_gn resnet50_mlp resnetaa34d resnetblur18 resnetrs50 resnetv2_18 resnetv2_50d_evos resnetv2_50d_frn
    resnetv2_50d_gn resnetv2_50x1_bit resnext26ts resnext50_32x4d rexnet_100 rexnetr_100 sedarknet21 selecsls42
    semnasnet_050 senet154 seresnet18 seresnet33ts seresnetaa50d seresnext26t_32x4d seresnext26ts
    seresnextaa101d_32x8d skresnet18 skresnext50_32x4d spnasnet_100 starnet_s050 tf_efficientnet_b0
    tf_efficientnet_cc_b0_4e tf_efficientnet_lite0 tf_efficientnetv2_b0 tf_mixnet_s tf_mobilenetv3_small_075
    tf_mobilenetv3_small_minimal_100 tinynet_e tresnet_m vgg11 vgg11_bn vovnet39a xception41p
"""


def family(name: str) -> str:
    """What a network's name says beside its size.

    >>> family("efficientnet_b0_g16_evos"), family("resnet50d"), family("mobilenetv3_small_050")
    ('efficientnet_evos', 'resnet', 'mobilenetv3')
    """
    words = [re.split(r"\d\d|(?<!v)\d$", word)[0] for word in name.split("_")]
    return "_".join(word for word in words if re.match("[a-z]{2}", word) and word not in SIZES.split())


def family_in_module(name: str) -> str:
    """The family, and the module of timm that it is in: some names are in several."""
    return f"{_module(name)}: {family(name)}"


def _module(name: str) -> str:
    return timm.models.model_entrypoint(name).__module__.rpartition(".")[2]


def families() -> dict[str, list[str]]:
    """The names of timm's convolutional networks by family; timm's own networks for tests are left out."""
    others = set(" ".join(OTHERS.values()).split())
    found = defaultdict(list)
    for name in timm.list_models():
        if not timm.models.model_entrypoint(name).__module__.startswith("timm."):
            continue  # a network that somebody else registered
        if _module(name) not in others and not re.search(ATTENTION, name) and not name.startswith("test_"):
            found[family_in_module(name)].append(name)
    return dict(found)


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name).parameters())


if __name__ == "__main__":
    for names in families().values():
        print(min(names, key=parameters), flush=True)
