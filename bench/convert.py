"""Which networks `convert` takes, and what becomes of them: one of each family of timm, and others.

.venv-timm/bin/python bench/convert.py [--continue] [--transformers] [NETWORK ...]

With names, such as "timm resnet50", only those are measured again, and the others stay as they are. With --continue,
only those that are in no record of this machine yet. With --transformers, only transformers, hybrids and mixers: they
have a record of their own, in which flat ones have two blocks and four by four patches. A row is written when it is
there, so a run that was stopped goes on with --continue.

Every network is converted to C4 at 64 x 64 (96 x 96 for the Inceptions and NASNets; what has one size only, at that),
in both modes, and compared with its plain twin, as if it had learnt: no parameter is switched off, and norms have seen
images. Errors are relative to the difference between the answers to two images. Where rounding is amplified to more
than 1e-4 in float32, they are those in float64. It runs in the environment of `make test-timm`.
"""

import argparse
import copy
import csv
import importlib
import operator
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Rows, record, save, write
from torch import Tensor, nn
from transformer_rows import refused_row, relative_costs, timed_conversion, transformer_row

import quarterturn as qt
from quarterturn._convert import function_rules, layer_rules
from quarterturn._convert.summary import costs
from quarterturn.check import error_of_answers
from quarterturn.cost import short
from quarterturn.graph import pointwise, torch_functions
from quarterturn.graph.lively import images_like, lively

TIMM = """
    resnet18 resnet50 convnext_tiny efficientnet_b0 mobilenetv3_large_100 lambda_resnet26t edgenext_xx_small
    efficientvit_b0 mobilevit_xxs botnet26t_256 swin_tiny_patch4_window7_224 mixer_s32_224
"""
TORCHVISION = """
    resnet18 googlenet squeezenet1_1 shufflenet_v2_x1_0 mnasnet1_0 densenet121 mobilenet_v3_small convnext_tiny vgg11
    efficientnet_b0 efficientnet_v2_s regnet_y_400mf alexnet segmentation.fcn_resnet50 segmentation.deeplabv3_resnet50
    segmentation.lraspp_mobilenet_v3_large
"""
SEGMENTERS = "Unet UnetPlusPlus FPN Linknet PSPNet DeepLabV3 DeepLabV3Plus UPerNet MAnet"
RECORDS = ("families", "convert", "transformers", "refused")
SMALL = "small"  # before the names of transformers that are made with few blocks
SECONDS = 600  # for a network, then it is refused
HEAD = {
    "families": ("family", "network"),
    "convert": ("network",),
    "transformers": ("family", "network"),
    "refused": ("family", "network", "why"),
}


def networks() -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """How to make each network, with weights drawn at random, and of which family of timm the first of them are."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "timm"))
    importlib.import_module("conftest")  # what torchvision needs beside a torch without CUDA
    families, transformers = map(importlib.import_module, ("families", "transformer_families"))
    smp, timm, torchvision = map(importlib.import_module, ("segmentation_models_pytorch", "timm", "torchvision"))

    def of_torchvision(name: str) -> nn.Module:
        options: dict[str, Any] = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        options |= {"weights_backbone": None} if "." in name else {}
        model: nn.Module = operator.attrgetter(name)(torchvision.models)(weights=None, **options)
        return model

    smallest = families.SMALLEST.split()
    found: dict[str, Callable[[], Any]] = {}
    for name in [*smallest, *TIMM.split()]:
        found[f"timm {name}"] = partial(timm.create_model, name)
    for name in transformers.SMALLEST.split():
        found[f"{SMALL} {name}"] = partial(transformers.small, name)
    for name in TORCHVISION.split():
        found[f"torchvision {name}"] = partial(of_torchvision, name)
    for name in SEGMENTERS.split():
        found[f"smp {name}"] = partial(getattr(smp, name), "resnet18", encoder_weights=None)
    known = {f"timm {name}": families.family_in_module(name) for name in smallest}
    return found, known | {f"{SMALL} {name}": transformers.family_of(name) for name in transformers.SMALLEST.split()}


def first_tensor(tree: Any) -> Tensor:
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def gap(a: Any, b: Any) -> float:
    """The difference of two networks' answers, relative to that between the answers to two images."""
    one, other = first_tensor(a), first_tensor(b)
    return float((one - other).abs().max() / (other.amax(0) - other.amin(0)).max())


def beyond_rounding(error: Callable[..., float], x: Tensor, *nets: nn.Module) -> str:
    """An error of networks; that in float64 where they amplify rounding."""
    found = error(x, *nets)
    if found > 1e-4:
        return f"{error(x.double(), *(copy.deepcopy(net).double() for net in nets)):.1e} (float64)"
    return f"{found:.1e}"


def converted_row(name: str, model: nn.Module) -> dict[str, object]:
    """What became of a network; raises where it is refused."""
    sizes = (("inception_", 96), ("nasnetalarge", 96), ("pnasnet", 96), ("_224", 224), ("_256", 256))
    size = next((n for part, n in sizes if part in name), 64)
    net, x, seconds = timed_conversion(model, size)
    done = net.conversion
    with torch.no_grad():
        many = images_like([torch.randn(8, 3, size, size)], dim=2)
        can_fail = error_of_answers(lively(model, many), qt.C4, (x,)) > 1e-2  # the old network does
        net = lively(net, many)
        turned = qt.convert(model, qt.C4, rotate="maps", example=x)
        turned.load_state_dict(net.state_dict())

        def turning(x: Tensor, net: nn.Module) -> float:
            return error_of_answers(net, qt.C4, (x,))

        def differing(x: Tensor, one: nn.Module, other: nn.Module) -> float:
            return gap(one(x), other(x))

        return {
            "network": name,
            **relative_costs(done),
            "error of turned images": beyond_rounding(turning, x, net) if can_fail else "cannot fail",
            "maps against filters": beyond_rounding(differing, x, turned.eval(), net),
            "plain twin": beyond_rounding(differing, x, qt.to_plain(net, x), net),
            "plain parts": ", ".join(sorted({part.layer for part in done.plain})),
            "seconds": f"{seconds:.1f}",
        }


def known() -> Rows:
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


def summed_up(make: Callable[[], nn.Module]) -> Rows:
    """What a network costs by each of the ways, as `quarterturn.summary` prints it."""
    rows: Rows = []
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
            cells["time (estimate)"] = f"{cost.seconds / first.seconds:.2f}x"
            rows.append({"group": group.name, "resnet50, 224 x 224": way, **cells})
    return rows


def before(name: str) -> Rows:
    """The rows that this machine measured before."""
    if not record(name).exists():
        return []
    with record(name).open() as file:
        return list(csv.DictReader(file))


def measured(name: str, make: Callable[[], Any], family: str | None) -> tuple[str, dict[str, object]]:
    """The record that a network goes to, and its row."""
    torch.manual_seed(0)
    signal.alarm(SECONDS)
    if name.startswith(SMALL):
        return "transformers", transformer(str(family), name, make)
    try:
        row = converted_row(name, make())
    except TimeoutError:
        return "refused", {"family": family, "network": name, "why": f"it took more than {SECONDS} seconds"}
    except qt.QuarterturnError as error:
        lines = [line for line in str(error).splitlines() if line.startswith("- ")] or [str(error)]
        return "refused", {"family": family, "network": name, "why": lines[0].removeprefix("- ")}
    finally:
        signal.alarm(0)
    return ("convert", row) if family is None else ("families", {"family": family, **row})


def transformer(family: str, name: str, make: Callable[[], tuple[nn.Module, int]]) -> dict[str, object]:
    """The row of a transformer, also of one that is refused."""
    size = 0
    try:
        model, size = make()
        return transformer_row(family, name, model, size, beyond_rounding, gap)
    except TimeoutError:
        return refused_row(family, name, size, f"it took more than {SECONDS} seconds")
    except (qt.QuarterturnError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith("- ")] or str(error).splitlines()
        return refused_row(family, name, size, lines[0].removeprefix("- "))
    finally:
        signal.alarm(0)


def too_long(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--continue", dest="goes_on", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, too_long)
    made, family = networks()
    some = options.goes_on or options.names or options.transformers
    rows = {name: before(name) if some else [] for name in RECORDS}
    rows["transformers"] = rows["transformers"] if options.goes_on or options.names else []
    there = {str(row["network"]) for found in rows.values() for row in found}
    wanted = [name for name in made if name.startswith(SMALL) or not options.transformers]
    again = options.names or [name for name in wanted if name not in there]
    write("known", known())
    if not some:
        write("summary", summed_up(made["timm resnet50"]))
    order = list(made).index
    for name in again:
        print(name, flush=True)
        target, row = measured(name, made[name], family.get(name))
        for what in RECORDS:
            kept = [old for old in rows[what] if old["network"] != name and old["network"] in made]
            rows[what] = sorted([*kept, *([row] if what == target else [])], key=lambda r: order(str(r["network"])))
            if what == target or (record(what).exists() and not name.startswith(SMALL)):
                save(what, rows[what], HEAD[what])


if __name__ == "__main__":
    main()
