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


def family(name: str) -> str:
    """What a network's name says beside its size.

    >>> family("efficientnet_b0_g16_evos"), family("resnet50d"), family("mobilenetv3_small_050")
    ('efficientnet_evos', 'resnet', 'mobilenetv3')
    """
    words = [re.split(r"\d\d|(?<!v)\d$", word)[0] for word in name.split("_")]
    return "_".join(word for word in words if re.match("[a-z]{2}", word) and word not in SIZES.split())


def families() -> dict[str, list[str]]:
    """The names of timm's convolutional networks by family; timm's own networks for tests are left out."""
    others = set(" ".join(OTHERS.values()).split())
    found = defaultdict(list)
    for name in timm.list_models():
        module = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
        if module not in others and not re.search(ATTENTION, name) and not name.startswith("test_"):
            found[f"{module}: {family(name)}"].append(name)
    return dict(found)


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name).parameters())


if __name__ == "__main__":
    for kind, names in families().items():
        print(kind, min(names, key=parameters), len(names), flush=True)
