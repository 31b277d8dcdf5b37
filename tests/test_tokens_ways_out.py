"""convert, for transformers: files of other runtimes, and the options until, plain, head and init."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_convert_encoders import Encoded
from test_convert_frames import WrittenBias
from test_convert_hybrids import ConvolvedWindows
from test_convert_mixers import mixer
from test_convert_rotary import rotary
from test_convert_tokens import BiasedAttention, Transformer
from test_convert_windows import Around, Block
from torch import nn

import quarterturn as qt
from quarterturn import C4, D4
from quarterturn.check import error_of_answers
from quarterturn.graph.lively import images_like, lively
from quarterturn.layers.plain_part import PlainPart


def biased() -> nn.Module:
    net = Transformer()
    for block in net.blocks:
        block.attention = BiasedAttention(32, 8, 4, 1, fused=True)
    return net


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "class token": Transformer,
    "relative bias": biased,
    "rotary positions": lambda: rotary("neighbours"),
    "torch's encoder": lambda: Encoded(batch_first=True),
    "mixer": lambda: mixer("two"),
    "shifted windows": lambda: Around(Block(32, (8, 8), 4, 2, fused=True, pad_first=False)),
    "convolved windows": lambda: Around(ConvolvedWindows(32, 4)),
    "own frames": lambda: Around(WrittenBias(32, 8, 8)),
}


def image() -> Any:
    return images_like([torch.randn(2, 3, 16, 16)], dim=2)[0]


def ready(name: str) -> nn.Module:
    x = image()
    return lively(qt.convert(NETWORKS[name](), C4, example=x), [x])


@pytest.mark.parametrize("name", NETWORKS)
def test_torchs_export(name: str) -> None:
    net, x = ready(name), image()
    with torch.no_grad():
        for exported in (net, qt.to_plain(net, x)):
            program = torch.export.export(exported, (x,))
            torch.testing.assert_close(program.module()(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["rotary positions", *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS if n != "rotary positions")],
)
def test_onnx_files(name: str, tmp_path: Path) -> None:
    """The writer compares what onnxruntime makes of the file with the network."""
    pytest.importorskip("onnxruntime")
    qt.export(ready(name), image(), tmp_path / "net.onnx", free="batch")
    assert (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize("net", [Transformer(), Encoded(batch_first=True)], ids=["own", "torch's"])
def test_until_leaves_late_blocks_as_they_are(net: Any) -> None:
    x = image()
    late = "blocks.1" if hasattr(net, "blocks") else "encoder.layers.1"
    partly = qt.convert(net, C4, example=x, until=late)
    old, new = net.state_dict(), partly.state_dict()
    kept = [name for name in new if name in old and torch.equal(new[name], old[name])]
    assert any(name.startswith(late) and name.endswith("weight") for name in kept)
    assert "head.weight" in kept
    assert 0.2 < partly.conversion.rolled_share < 0.8
    partly(x).square().mean().backward()
    assert all(p.grad is not None for p in partly.parameters())


def test_a_block_may_stay_plain() -> None:
    x = image().double()
    net = Transformer().double()
    converted = qt.convert(net, D4, example=x, plain=["blocks.0", "blocks.1.mlp"])
    assert [part.path for part in converted.conversion.plain] == ["blocks.0", "blocks.1.mlp"]
    assert isinstance(converted.get_submodule("blocks.0"), PlainPart)
    with torch.no_grad():
        assert error_of_answers(lively(converted, [x]), D4, (x,)) < 1e-10


@pytest.mark.parametrize("head", ["max", "invariants", "hidden"])
@pytest.mark.parametrize("free", [0, 1])
def test_heads_of_transformers(head: Any, free: int) -> None:
    x = image().double()
    net = Transformer(free=free, pool="token" if free else "mean").double()
    converted = qt.convert(net, D4, example=x, head=head)
    assert list(converted.conversion.heads) == ["head"]
    with torch.no_grad():
        assert error_of_answers(lively(converted, [x]), D4, (x,)) < 1e-10


def test_initialisations_of_torchs_attention_stay_in_kind() -> None:
    net: Any = Encoded(width=64)
    for layer in net.encoder.layers:
        nn.init.normal_(layer.self_attn.in_proj_weight, std=0.02)
        nn.init.zeros_(layer.self_attn.out_proj.weight)
    state = qt.convert(net, C4, example=image()).state_dict()
    assert float(state["encoder.layers.0.self_attn.in_proj_weight.weight"].std()) == pytest.approx(0.02, rel=0.2)
    assert not state["encoder.layers.0.self_attn.in_proj_weight.bias"].any()
    assert not state["encoder.layers.0.self_attn.out_proj.weight"].any()


def test_frozen_parameters_of_torchs_attention_stay_frozen() -> None:
    net: Any = Encoded()
    net.encoder.requires_grad_(False)
    converted = qt.convert(net, C4, example=image())
    learning = {name for name, p in converted.named_parameters() if p.requires_grad}
    assert learning == {"embed.weight", "embed.bias", "cls.weight", "positions", "head.weight", "head.bias"}
