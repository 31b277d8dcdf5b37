"""Runs every layer and several networks on tensors of another device, which have no numbers, and says what went wrong.

    python tests/another_device.py [timm|networks]

torch makes such fake tensors for any device. In a torch without CUDA those of "cuda" go forward only. Indexing them,
as in `x[0]` and `index_select`, asks for a guard of the CUDA device: one that does nothing stands in. Gradients ask
for CUDA's streams and events, and nothing stands in for these: they are those of "gpu", a device that is registered
here. To the library that is the same: its code asks whether a tensor is on the CPU, and for no other device
(tests/test_device.py looks). This runs as a process of its own, because what was registered stays. It prints a line
of JSON: for each device and each case what went wrong, or null.
"""

import copy
import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import quarterturn as qt
from quarterturn import C4, D4, Group

VOLUME = qt.generate("quarter turns about the first axis", (1, 3, -2))
Case = tuple[Callable[[], nn.Module], tuple[int, ...]]


# --- the device -------------------------------------------------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses operators that get tensors of several devices, and the kernel, which is for the CPU.

    Numbers may come from the CPU, as in torch. Fake tensors alone would let some operators pass.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "quarterturn":
            raise RuntimeError(f"the kernel was asked for: {func}")
        copies = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0]
        devices = sorted({str(t.device) for t in tensors})
        if len(devices) > 1 and func not in copies:
            raise RuntimeError(f"{func} gets tensors on {' and '.join(devices)}")
        return func(*args, **(kwargs or {}))


class Device:
    """A device of fake tensors."""

    def __init__(self, name: str) -> None:
        self.device, self.mode = torch.device(name, 0), FakeTensorMode(allow_non_fake_inputs=True)

    def fake(self, tensor: Tensor) -> FakeTensor:
        with torch.no_grad():
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self.mode, meta, self.device)

    def moved(self, net: nn.Module) -> nn.Module:
        """The network with its parameters and buffers there, as `net.to(device)` would have them."""
        for module in net.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(self.fake(parameter), parameter.requires_grad)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = self.fake(buffer)
        return net

    @contextmanager
    def used(self) -> Iterator[None]:
        with self.mode, OneDevice():
            yield


def check(device: Device, net: nn.Module, shape: tuple[int, ...], gradients: bool) -> None:
    """Raise unless outputs, of the CPU's shapes, and gradients are on the device, in eval mode and in training."""
    with torch.no_grad():
        shapes = [out.shape for out in tensors_in(net.eval()(torch.zeros(shape)))]
    net = device.moved(copy.deepcopy(net))
    for training in (False, True):
        net.train(training)
        x = device.fake(torch.empty(shape))
        with device.used():
            with torch.no_grad():
                outputs = tensors_in(net(x))
            if gradients:
                outputs = tensors_in(net(x.requires_grad_()))
                torch.stack([out.square().sum() for out in outputs]).sum().backward()
        if [out.shape for out in outputs] != shapes:
            raise RuntimeError(f"{[tuple(out.shape) for out in outputs]} instead of {[tuple(one) for one in shapes]}")
        found: dict[str, list[Any]] = {"an output": outputs}
        if gradients:
            found |= {"the input": [x.grad], **{name: [p.grad] for name, p in net.named_parameters()}}
        for name, tensors in found.items():
            for tensor in tensors:
                if not isinstance(tensor, FakeTensor) or tensor.device != device.device:
                    raise RuntimeError(f"{name}: {'no gradient' if tensor is None else tensor.device}")


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


# --- cases ------------------------------------------------------------------------------------------------------------


def layer_cases() -> dict[str, Case]:
    """Every public layer, in both layouts, on grids where all orientations agree and where they do not."""
    made: dict[str, Callable[[Group, Any], nn.Module]] = {
        "RollConv": lambda g, r: qt.RollConv(g, 2, 3, 3, padding=1, rotate=r),
        "RollConv 1x1": lambda g, r: qt.RollConv(g, 2, 3, 1, rotate=r),
        "RollConv strided": lambda g, r: qt.RollConv(g, 2, 3, 3, 2, 1, padding_mode="reflect", rotate=r),
        "PathConv": lambda g, r: qt.PathConv(g, 2, 3, 3, 2, rotate=r),
        "PoolConv": lambda g, r: qt.PoolConv(g, 2, 3, 3, padding=1, rotate=r),
        "DepthwiseConv": lambda g, r: qt.DepthwiseConv(g, 2, 3, 2, rotate=r),
        "RollConvTranspose": lambda g, r: qt.RollConvTranspose(g, 2, 3, 2, 2, rotate=r),
        "MaxPool": lambda g, r: qt.MaxPool(g, 3, 2, 1, rotate=r),
        "AvgPool": lambda g, r: qt.AvgPool(g, 3, 2, 1, ceil_mode=True, count_include_pad=False, rotate=r),
        "AdaptiveAvgPool": lambda g, r: qt.AdaptiveAvgPool(g, 2, rotate=r),
        "AdaptiveMaxPool": lambda g, r: qt.AdaptiveMaxPool(g, 2, rotate=r),
        "Upsample": lambda g, r: qt.Upsample(g, scale_factor=2, mode="linear", rotate=r),
        "Upsample uneven": lambda g, r: qt.Upsample(g, scale_factor=1.5, mode="nearest", rotate=r),
        "BatchNorm": lambda g, r: qt.BatchNorm(g, 2, rotate=r),
        "InstanceNorm": lambda g, r: qt.InstanceNorm(g, 2, affine=True, rotate=r),
        "GroupNorm": lambda g, r: qt.GroupNorm(g, 2, 2, rotate=r),
        "LayerNorm": lambda g, r: qt.LayerNorm(g, 2, rotate=r),
        "EachOrientation": lambda g, r: qt.EachOrientation(g, nn.ZeroPad2d(1) if g.dim == 2 else nn.Identity(), r),
        "Pool mean": lambda g, r: qt.Pool(g, rotate=r),
        "Pool max": lambda g, r: qt.Pool(g, "max", rotate=r),
        "Pool rms": lambda g, r: qt.Pool(g, "rms", rotate=r),
        "Invariants": lambda g, r: qt.Invariants(g, rotate=r),
        "wide RollConv": lambda g, r: qt.RollConv(g, 16, 16, 3, rotate=r),
        "wide RollConv 1x1": lambda g, r: qt.RollConv(g, 32, 32, 1, rotate=r),
    }
    cases: dict[str, Case] = {}
    for group, side in ((D4, 8), (VOLUME, 5)):  # devices are no matter of the group
        for name, make in made.items():
            features = {"wide RollConv": 16, "wide RollConv 1x1": 32}.get(name, 2)
            sizes = [side] * group.dim
            for rotate, shape in (
                ("maps", (2 * group.order, features, *sizes)),
                ("filters", (2, features * group.order, *sizes)),
            ):
                cases[f"{name} {group.name} {rotate}"] = (
                    lambda make=make, group=group, rotate=rotate: make(group, rotate),  # type: ignore[misc]
                    shape,
                )
        for rotate in ("maps", "filters"):
            linear = lambda group=group, rotate=rotate: qt.RollLinear(group, 32, 32, rotate=rotate)  # noqa: E731
            rows, columns = (2 * group.order, 32) if rotate == "maps" else (2, 32 * group.order)
            cases[f"RollLinear {group.name} {rotate}"] = (linear, (rows, columns))
            sliced = lambda group=group, rotate=rotate: qt.SliceConv(group, 2, 3, 3, 2, 1, rotate=rotate)  # noqa: E731
            cases[f"SliceConv {group.name} {rotate}"] = (sliced, (2, 2, *sizes))
            cases[f"Slice {group.name} {rotate}"] = (
                lambda group=group, rotate=rotate: qt.Slice(group, rotate=rotate),  # type: ignore[misc]
                (2, 2, *sizes),
            )
        cases |= token_cases(group, side)
        in_batch, in_features = (2 * group.order, 2, *sizes), (2, 2 * group.order, *sizes)
        cases[f"Stack {group.name}"] = (lambda group=group: qt.Stack(group), in_batch)  # type: ignore[misc]
        cases[f"Unstack {group.name}"] = (lambda group=group: qt.Unstack(group), in_features)  # type: ignore[misc]
        cases[f"Roll {group.name}"] = (lambda group=group: qt.Roll(group), in_batch)  # type: ignore[misc]
    cases["Slice of directions"] = (lambda: qt.Slice(D4, kind="vector"), (2, 2, 8, 8))
    cases["Pool of directions"] = (lambda: qt.Pool(D4, kind="vector"), (16, 2, 8, 8))
    cases["wrap"] = (lambda: qt.wrap(nn.Conv2d(1, 2, 3), D4), (2, 1, 8, 8))
    fourier = lambda: qt.RollLinear(D4, 4, 4, rotate="filters", via="fourier")  # noqa: E731
    cases["RollLinear in blocks"] = (fourier, (2, 32))
    return cases


def token_cases(group: Group, side: int) -> dict[str, Case]:
    """The layers of transformers, on tokens that are a grid behind a class token."""
    grid: dict[str, Any] = {"extra": 1, "grid": [side] * group.dim}
    made: dict[str, Callable[[Any], nn.Module]] = {
        "RollLinear of tokens": lambda r: qt.RollLinear(group, 4, 3, rotate=r, **grid),
        "RollLinear of tokens in blocks": lambda r: qt.RollLinear(group, 4, 3, rotate=r, via="fourier", **grid),
        "Attention": lambda r: qt.Attention(group, 4, 2, rotate=r, **grid),
        "Attention coupled": lambda r: qt.Attention(group, 4, 2, "coupled", rotate=r, **grid),
        "PositionTable": lambda r: qt.PositionTable(group, 4, [side] * group.dim, extra=1, rotate=r),
        "PositionTable of another grid": lambda r: qt.PositionTable(group, 4, [side + 1] * group.dim, 1, r),
        "ClassTokens": lambda r: qt.ClassTokens(group, 4, rotate=r),
        "LayerNorm of tokens": lambda r: qt.LayerNorm(group, 4, rotate=r, last=True),
    }
    cases: dict[str, Case] = {}
    tokens = 1 + side**group.dim
    for rotate, shape in (("maps", (2 * group.order, tokens, 4)), ("filters", (2, tokens, 4 * group.order))):
        for name, make in made.items():
            cases[f"{name} {group.name} {rotate}"] = (lambda make=make, rotate=rotate: make(rotate), shape)  # type: ignore[misc]
        patches = lambda rotate=rotate: qt.PatchEmbed(group, 2, 3, 2, rotate=rotate)  # noqa: E731
        cases[f"PatchEmbed {group.name} {rotate}"] = (patches, (2, 2, *[side] * group.dim))
    return cases


class Residual(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.norm(self.a(x)))) + self.down(x))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(nn.functional.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Squeezed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.GroupNorm(2, width)
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.norm(self.conv(x)))
        return y * torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3), keepdim=True)))))


class PositionsAndUNet(nn.Module):
    """Learnt positions; down by pooling, up by interpolation and transposed convolution; tokens; shuffles."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.table = nn.Parameter(torch.zeros(1, width, 16, 16))
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width))
        self.lower = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.up1, self.up0 = nn.ConvTranspose2d(width, width, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")
        self.merge1, self.merge0 = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(2 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.enter(x) + self.table
        middle = self.down(top)
        middle = self.merge1(torch.cat([middle, self.up1(self.lower(middle))], dim=1))
        return self.leave(self.merge0(torch.cat([top, self.up0(middle)], dim=1)))


class Transformer(nn.Module):
    """Patches, a class token, learnt positions, and a block of attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width))
        self.table = nn.Parameter(torch.randn(1, 17, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.table
        q, k, v = self.qkv(self.norm1(x)).reshape(x.shape[0], 17, 3, 8, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 17, -1)
        x = x + self.proj(y)
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(x[:, 0])


def in_blocks(net: nn.Module) -> nn.Module:
    """The network with all its rolled 1x1 layers as block-diagonal products."""
    for layer in net.modules():
        if isinstance(layer, qt.RollConv) and layer.is_pointwise():
            layer.via = "fourier"
    return net


def headed(*body: nn.Module, width: int = 16) -> nn.Module:
    first = (nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
    return nn.Sequential(*first, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def network_cases() -> dict[str, Case]:
    """Converted networks, and what becomes of them in export."""
    nets: dict[str, Callable[[], nn.Module]] = {
        "residual": lambda: headed(Residual(16), Residual(16, 2)),
        "ConvNeXt-like": lambda: headed(ConvNeXtBlock(16)),
        "squeeze-and-excitation": lambda: headed(Squeezed(16)),
        "U-Net": lambda: PositionsAndUNet(16),
        "transformer": lambda: Transformer(64),
    }
    x = torch.randn(2, 3, 16, 16)
    cases: dict[str, Case] = {}
    for name, make in nets.items():
        for rotate in ("maps", "filters"):
            convert = lambda make=make, rotate=rotate: qt.convert(make(), D4, rotate, example=x)  # noqa: E731
            cases[f"{name}, {rotate}"] = (convert, (2, 3, 16, 16))
        plain = lambda make=make: qt.to_plain(qt.convert(make(), C4, example=x), x)  # noqa: E731
        cases[f"{name}, plain"] = (plain, (2, 3, 16, 16))
    for group in (C4, D4):
        blocks = lambda group=group: in_blocks(qt.convert(Transformer(64), group, example=x))  # noqa: E731
        cases[f"transformer in blocks, {group.name}"] = (blocks, (2, 3, 16, 16))
    for head in ("max", "invariants", "hidden"):
        cases[f"head {head}"] = (
            lambda head=head: qt.convert(headed(Residual(16)), D4, head=head),  # type: ignore[misc]
            (2, 3, 16, 16),
        )
    cases["odd sides"] = (
        lambda: qt.convert(headed(Residual(16, 2)), D4, example=torch.randn(2, 3, 15, 11)),
        (2, 3, 15, 11),
    )
    return cases


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4, "depths": (2, 2), "num_heads": (3, 6)},
}


def timm_cases() -> dict[str, Case]:
    sys.path.insert(0, str(Path(__file__).parent / "timm"))
    importlib.import_module("conftest")  # what torchvision needs beside a torch without CUDA
    timm = importlib.import_module("timm")
    x = torch.randn(2, 3, 64, 64)
    return {
        name: (lambda name=name: qt.convert(timm.create_model(name), C4, example=x), tuple(x.shape))  # type: ignore[misc]
        for name in ("resnet18", "mobilenetv3_small_100")
    } | {
        name: (lambda name=name, sizes=sizes: qt.convert(timm.create_model(name, **sizes), D4), (2, 3, 64, 64))  # type: ignore[misc]
        for name, sizes in TRANSFORMERS.items()
    }


class Planted(nn.Module):
    """A layer with a tensor that was left on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(x.shape[1], 1, 1)


class Hidden(nn.Module):
    """Filters that are no parameter, so that they do not move with the network."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = torch.zeros(3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.filters)


class Asks(nn.Module):
    """A layer that asks for the kernel whatever the device is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = qt.RollConv(C4, 16, 16, 3, rotate="filters", via="fourier")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(torch.zeros(1, 64, 8, 8, device="cpu")).sum()


class Forks(nn.Module):
    """A layer that gives other shapes on another device."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1 if x.device.type == "cpu" else x[:, 1:] * 1


PLANTED: dict[str, Case] = {
    "other shape": (Forks, (2, 3, 8, 8)),
    "planted": (Planted, (2, 3, 8, 8)),
    "hidden": (Hidden, (2, 3, 8, 8)),
    "kernel": (Asks, (2, 3, 8, 8)),
}


def _guard_cuda() -> None:
    """Let a torch without CUDA pass by what asks for the current CUDA device: it gets the guard of "meta".

    That guard does nothing. torch has no way to ask for it, so its table of guards is written to.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # torch's numbers of these devices
    guards[cuda] = guards[meta]


def devices() -> dict[str, bool]:
    """The devices to try, and whether with gradients."""
    if torch.cuda.is_available():
        return {"cuda": True}
    _guard_cuda()
    _setup_privateuseone_for_python_backend("gpu")
    return {"cuda": False, "gpu": True}


def main() -> None:
    torch.set_num_threads(1)
    made = {"timm": timm_cases, "networks": network_cases}
    cases = {name: case for which in sys.argv[1:] for name, case in made[which]().items()}
    cases = cases or {**layer_cases(), **PLANTED}
    tried = [(Device(name), gradients) for name, gradients in devices().items()]
    found: dict[str, dict[str, str | None]] = {device.device.type: {} for device, _ in tried}
    for name, (make, shape) in cases.items():
        net = make()
        for device, gradients in tried:
            wrong = None
            try:
                check(device, net, shape, gradients)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"[:500]
            found[device.device.type][name] = wrong
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # autograd has a thread for the device, which torch does not end
