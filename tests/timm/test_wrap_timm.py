"""wrap: networks of timm, convolutional or not, give the same classes whichever way the image is turned."""

import pytest
import timm
from timmtools import image, network

import quarterturn as qt
from quarterturn import C4, D4, wrap

ANY_SIZE = """
    caformer_s18 convnext_atto convnextv2_atto cs3darknet_s densenet121 dla46_c edgenext_xx_small efficientnet_b0
    efficientvit_b0 ese_vovnet19b_dw fasternet_t0 fastvit_t8 focalnet_tiny_srf gernet_s ghostnet_050 hgnetv2_b0
    hrnet_w18_small inception_next_atto lambda_resnet26t lcnet_050 mambaout_femto mixnet_s mnasnet_small mobilenetv2_035
    mobilenetv3_small_050 mobilenetv4_conv_small_035 mobileone_s0 mobilevit_xxs mobilevitv2_050 nf_resnet26
    poolformer_s12 pvt_v2_b0 regnety_002 repvgg_a0 repvit_m0_9 res2net50_26w_4s resnet18 resnetv2_18 rexnet_100
    sequencer2d_s shvit_s1 skresnet18 starnet_s1 swiftformer_xs tinynet_e
"""
ONE_SIZE = """
    botnet26t_256 cait_xxs24_224 convit_tiny deit_tiny_patch16_224 efficientformerv2_s0 efficientvit_m0
    eva02_tiny_patch14_224 gcvit_xxtiny gmlp_ti16_224 hiera_tiny_224 levit_128s maxvit_pico_rw_256 mixer_s32_224
    pit_ti_224 resmlp_12_224 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 vit_tiny_patch16_224
    vit_tiny_r_s16_p8_224 xcit_nano_12_p16_224
"""  # their positions or tokens go with one size of image, which they are told
OPTIONS = {
    **{name: {} for name in ANY_SIZE.split()},
    **{name: {"img_size": 64} for name in ONE_SIZE.split()},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4},
}


def test_there_are_enough_families() -> None:
    families = {timm.models.model_entrypoint(name).__module__ for name in OPTIONS}
    assert len(families) >= 30


@pytest.mark.parametrize("name", OPTIONS)
def test_wrapped_networks_are_exact(name: str) -> None:
    model, x = network(name, **OPTIONS[name]), image()
    assert min(qt.equivariance_error(model, C4, x).relative[1:]) > 1e-3  # so that there is something to show
    for group in (C4, D4):
        errors = qt.equivariance_error(wrap(model, group), group, x).relative
        assert len(errors) == group.order
        assert max(errors) <= 1e-5
