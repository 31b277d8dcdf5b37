"""Which networks of timm, torchvision and segmentation_models_pytorch `convert` takes, and what becomes of them.

.venv-timm/bin/python bench/convert.py [NETWORK ...]

With names, such as "timm resnet50", only those are measured again, and the others stay as they are.

Every network is converted to C4 at 64 x 64 (96 x 96 for the Inceptions; what has one size only, at that), in both
modes, and compared with its plain twin, as if it had learnt: no parameter is switched off, and norms have seen images.
Errors are relative to the difference between the answers to two images. It runs in the environment of `make test-timm`.
"""

import csv
import importlib
import operator
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import latest, write
from torch import Tensor, nn

import quarterturn as qt
from quarterturn._convert import function_rules, layer_rules
from quarterturn._convert.summary import costs
from quarterturn.check import error_of_answers
from quarterturn.cost import short
from quarterturn.graph import pointwise, torch_functions
from quarterturn.graph.lively import images_like, lively

TIMM = """
    resnet18 resnet50 resnet26d resnetaa50 resnetblur50 resnetrs50 resnext50_32x4d wide_resnet50_2 seresnet50
    legacy_seresnet18 skresnet18 resnest14d res2net50_26w_4s res2next50 resnetv2_50 resnetv2_50d_gn densenet121 vgg11
    vgg16_bn mobilenetv1_100 mobilenetv2_100 mobilenetv3_small_100 mobilenetv4_conv_small mobileone_s0 efficientnet_b0
    efficientnet_lite0 efficientnetv2_rw_t tf_efficientnet_b0 tf_efficientnetv2_b0 mixnet_s mnasnet_100 fbnetc_100
    fbnetv3_b spnasnet_100 hardcorenas_a tinynet_e lcnet_050 regnetx_002 regnety_002 regnetz_b16 convnext_atto
    convnextv2_atto convnext_atto_rms inception_v3 inception_v4 inception_resnet_v2 inception_next_atto xception41
    legacy_xception dla34 dla60_res2net hrnet_w18_small cspdarknet53 cspresnet50 darknet53 cs3darknet_s repvgg_a0
    repvit_m0_9 repghostnet_050 ghostnet_100 ghostnetv2_100 fastvit_t8 dpn68 selecsls42b gernet_s rexnet_100
    ese_vovnet19b_dw hgnet_tiny hgnetv2_b0 rdnet_tiny poolformer_s12 poolformerv2_s12 convformer_s18 focalnet_tiny_srf
    mambaout_femto starnet_s1 fasternet_t0 convmixer_768_32 pnasnet5large ecaresnet26t gcresnet33ts tresnet_m
    nf_resnet50 dm_nfnet_f0 resnetv2_50x1_bit lambda_resnet26t edgenext_xx_small efficientvit_b0 botnet26t_256
    vit_tiny_patch16_224 swin_tiny_patch4_window7_224 mixer_s32_224
"""
TORCHVISION = """
    resnet18 googlenet squeezenet1_1 shufflenet_v2_x1_0 mnasnet1_0 densenet121 mobilenet_v3_small convnext_tiny vgg11
    efficientnet_b0 efficientnet_v2_s regnet_y_400mf alexnet segmentation.fcn_resnet50 segmentation.deeplabv3_resnet50
    segmentation.lraspp_mobilenet_v3_large
"""
SEGMENTERS = "Unet UnetPlusPlus FPN Linknet PSPNet DeepLabV3 DeepLabV3Plus UPerNet MAnet"


def networks() -> dict[str, Callable[[], nn.Module]]:
    """How to make each network, with weights drawn at random."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "timm"))
    importlib.import_module("conftest")  # what torchvision needs beside a torch without CUDA
    smp, timm, torchvision = map(importlib.import_module, ("segmentation_models_pytorch", "timm", "torchvision"))

    def of_torchvision(name: str) -> nn.Module:
        options: dict[str, Any] = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        options |= {"weights_backbone": None} if "." in name else {}
        model: nn.Module = operator.attrgetter(name)(torchvision.models)(weights=None, **options)
        return model

    found: dict[str, Callable[[], nn.Module]] = {}
    for name in TIMM.split():
        found[f"timm {name}"] = partial(timm.create_model, name)
    for name in TORCHVISION.split():
        found[f"torchvision {name}"] = partial(of_torchvision, name)
    for name in SEGMENTERS.split():
        found[f"smp {name}"] = partial(getattr(smp, name), "resnet18", encoder_weights=None)
    return found


def first_tensor(tree: Any) -> Tensor:
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def gap(a: Any, b: Any) -> float:
    """The difference of two networks' answers, relative to that between the answers to two images."""
    one, other = first_tensor(a), first_tensor(b)
    return float((one - other).abs().max() / (other.amax(0) - other.amin(0)).max())


def converted_row(name: str, model: nn.Module) -> dict[str, object]:
    """What became of a network; raises where it is refused."""
    size = next((n for part, n in (("inception_", 96), ("_224", 224), ("_256", 256)) if part in name), 64)
    (x,) = images_like([torch.randn(2, 3, size, size)], dim=2)
    start = time.perf_counter()
    try:
        net, needs = qt.convert(model, qt.C4), ""
    except qt.ConversionError as error:
        if "example" not in str(error):
            raise
        net, needs = qt.convert(model, qt.C4, example=x), "yes"
    seconds = time.perf_counter() - start
    before, after = net.conversion.before, net.conversion.after
    notes = net.conversion.notes
    with torch.no_grad():
        many = images_like([torch.randn(8, 3, size, size)], dim=2)
        can_fail = error_of_answers(lively(model, many), qt.C4, (x,)) > 1e-2  # the old network does
        net = lively(net, many)
        out = net(x)
        turned = qt.convert(model, qt.C4, rotate="maps", example=x)
        turned.load_state_dict(net.state_dict())
        return {
            "network": name,
            "example needed": needs,
            "seconds": f"{seconds:.1f}",
            "error of turned images": f"{error_of_answers(net, qt.C4, (x,)):.1e}" if can_fail else "cannot fail",
            "maps against filters": f"{gap(turned.eval()(x), out):.1e}",
            "plain twin": f"{gap(qt.to_plain(net, x)(x), out):.1e}",
            "parameters": f"{after.parameters / before.parameters:.2f}",
            "multiply-adds": f"{after.multiply_adds / before.multiply_adds:.2f}",
            "with the kernel": f"{after.with_kernel / before.multiply_adds:.2f}",
            "widths and groups rounded": sum("become" in note for note in notes),
        }


def known() -> list[dict[str, object]]:
    """What there are rules for, from the tables of the rules themselves."""
    layers = [
        kind for kinds, _ in layer_rules.LAYER_RULES for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
    ]
    names = {
        "layers": {kind.__name__.strip("_").removesuffix("Nd") for kind in layers},
        "functions of layers": {f.__name__ for f in [*torch_functions.AS_LAYERS, *function_rules.CONVOLUTIONS]},
        "functions of numbers": {f.__name__ for f in pointwise.FUNCTIONS},
        "functions and methods of axes": {str(name) for name in function_rules.FUNCTION_RULES}
        | torch_functions.REDUCTIONS,
        "methods of numbers": pointwise.METHODS
        | {name for name in torch_functions.NOT_IN_PLACE if isinstance(name, str)},
    }
    return [{"what": what, "known": ", ".join(f"`{name}`" for name in sorted(found))} for what, found in names.items()]


def summed_up(make: Callable[[], nn.Module]) -> list[dict[str, object]]:
    """What a network costs by each of the ways, as `quarterturn.summary` prints it."""
    rows: list[dict[str, object]] = []
    for group in (qt.C4, qt.D4):
        found, _ = costs(make(), group, (3, 224, 224))
        first = next(iter(found.values()))
        for way, cost in found.items():
            numbers = {
                "parameters": (cost.parameters, first.parameters),
                "multiply-adds": (cost.multiply_adds, first.multiply_adds),
                "with the kernel": (cost.with_kernel, first.multiply_adds),
                "activations": (cost.activations, first.activations),
            }
            cells = {name: f"{short(n)} ({n / base:.2f}x)" for name, (n, base) in numbers.items()}
            rows.append({"group": group.name, "resnet50, 224 x 224": way, **cells})
    return rows


def before(name: str) -> list[dict[str, object]]:
    """The rows that were measured before."""
    with latest(name).open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    torch.set_num_threads(1)
    made, again = networks(), sys.argv[1:]
    write("known", known())
    if not again:
        write("summary", summed_up(made["timm resnet50"]))
    old = [before(what) if again else [] for what in ("convert", "refused")]
    taken, refused = ([row for row in rows if row["network"] not in again] for rows in old)
    for name, make in made.items():
        if again and name not in again:
            continue
        torch.manual_seed(0)
        print(name, flush=True)
        try:
            taken.append(converted_row(name, make()))
        except qt.ConversionError as error:
            lines = [line for line in str(error).splitlines() if line.startswith("- ")] or [str(error)]
            refused.append({"network": name, "parts": len(lines), "the first": lines[0].removeprefix("- ")})
    order = list(made).index
    for what, rows in (("convert", taken), ("refused", refused)):
        write(what, sorted(rows, key=lambda row: order(str(row["network"]))))


if __name__ == "__main__":
    main()
