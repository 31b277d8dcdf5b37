"""distil: a converted network learns from another one's answers, and stays exact."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quarterturn as qt
from quarterturn import C4, D4, Group


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    ).double()


def batches(count: int = 6, size: int = 16, sides: tuple[int, int] = (9, 9)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 2, *sides, generator=generator, dtype=torch.float64).cumsum(2) for _ in range(count)]


def distance(teacher: nn.Module, student: nn.Module, images: Tensor) -> float:
    """How far the student's answers are from the teacher's, of what these vary."""
    with torch.no_grad():
        wanted, given = teacher.eval()(images), copy.deepcopy(student).eval()(images)
    return float((wanted - given).square().mean() / (wanted - wanted.mean(0)).square().mean())


def state(net: nn.Module) -> dict[str, Any]:
    kept = {name: t.clone() for name, t in net.state_dict().items()}
    modes = {name: (m.training, len(m._forward_pre_hooks)) for name, m in net.named_modules()}
    return kept | modes


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(a, other[k]) if isinstance(a, Tensor) else a == other[k] for k, a in one.items())


@pytest.mark.parametrize("features", ["all", ()], ids=["features", "outputs"])
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_the_student_comes_closer_and_stays_exact(group: Group, features: Any) -> None:
    model, images = network(), batches()
    model(torch.cat(images))  # its batch norm has seen something
    teacher = qt.wrap(model, group)
    teacher.model[4].eval()
    student = qt.convert(model, group)
    student.train()
    before, first = state(teacher), distance(teacher, student, images[0])
    before = state(teacher.train(before[""][0]))
    modes = {name: m.training for name, m in student.named_modules()}
    losses = qt.distil(teacher, student, images[1:], steps=80, rate=1e-2, features=features)
    assert len(losses) == 80
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert same(before, state(teacher))
    assert modes == {name: m.training for name, m in student.named_modules()}
    assert not any(m._forward_pre_hooks for m in student.modules())
    assert distance(teacher, student, images[0]) < 0.5 * first  # images that it has not learnt from
    qt.assert_equivariant(student.eval(), group, torch.randn(2, 2, 12, 9, dtype=torch.float64))


def test_no_steps_change_nothing() -> None:
    model, images = network(), batches()
    teacher, student = qt.wrap(model, C4), qt.convert(model, C4)
    before, first = state(student), distance(teacher, student, images[0])
    assert qt.distil(teacher, student, images, steps=0) == []
    assert qt.distil(teacher, student, images, epochs=0) == []
    assert same(before, state(student))
    assert distance(teacher, student, images[0]) == first


def test_a_teacher_that_answers_at_random_teaches_nothing_of_another() -> None:
    model, images = network(), batches()
    teacher, student = qt.wrap(model, C4), qt.convert(model, C4)
    torch.manual_seed(5)
    other = copy.deepcopy(model)
    for layer in other:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    qt.distil(qt.wrap(other, C4), student, images, steps=120, rate=1e-2, features=())
    assert distance(teacher, student, images[0]) > 0.5


def test_batches_come_in_many_forms() -> None:
    images = batches(4)
    labels = torch.zeros(16)
    loader = DataLoader(TensorDataset(torch.cat(images), torch.zeros(64)), batch_size=16)

    def endless() -> Iterator[Tensor]:
        while True:
            yield from images

    forms = (images, [(x, labels) for x in images], [[x, labels] for x in images], loader, endless(), tuple(images))
    found = []
    for form in forms:
        model = network()
        told: list[tuple[int, int, float]] = []
        student = qt.convert(model, C4)
        losses = qt.distil(
            qt.wrap(model, C4), student, form, steps=6, progress=lambda *now, told=told: told.append(now)
        )
        assert told == [(i + 1, 6, loss) for i, loss in enumerate(losses)]
        found.append(losses)
    assert all(losses == found[0] for losses in found)
    assert len(qt.distil(qt.wrap(network(), C4), qt.convert(network(), C4), images, epochs=2)) == 8


class Segmenter(nn.Module):
    """Maps and a vector, and what is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.maps = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 3, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.body(x))
        return {"maps": self.maps(x), "vector": self.head(x.mean((2, 3)))}


@pytest.mark.parametrize(("rotate", "sides"), [("filters", (8, 6)), ("maps", (8, 8))])
def test_maps_and_several_outputs_are_learnt(rotate: Any, sides: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, images = Segmenter().double(), batches(sides=sides)  # if not square, pathways run in two batches
    teacher, student = qt.wrap(model, C4), qt.convert(model, C4, rotate=rotate, example=images[0])
    losses = qt.distil(teacher, student, images, steps=60, rate=1e-2, features="all")
    assert losses[-1] < 0.5 * losses[0]
    qt.assert_equivariant(student, C4, images[0])


def test_batch_norms_of_the_student_learn_statistics() -> None:
    model, images = network(), batches()
    student = qt.convert(model, C4).eval()
    norm = student.get_submodule("1")
    before = norm.running_mean.clone()
    qt.distil(qt.wrap(model, C4), student, images, steps=3)
    assert not torch.equal(norm.running_mean, before)
    assert not student.training


def test_features_are_those_of_layers_that_both_have() -> None:
    model, images = network(), batches()
    teacher = qt.wrap(model, C4)
    start = {}
    for features in ((), ("3",), ("3", "7"), "all"):
        torch.manual_seed(0)
        start[features] = qt.distil(teacher, qt.convert(model, C4), images, steps=1, features=features)[0]
    assert start["all"] == start["3", "7"]  # the first layer sees the images
    assert start[()] < start["3",]
    with pytest.raises(qt.OptionError, match=r"layer in features '0'.*'3', '7'"):
        qt.distil(teacher, qt.convert(model, C4), images, steps=1, features=["0"])


def test_a_vision_transformer_learns_from_one() -> None:
    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.norm = nn.Conv2d(2, 16, 3, 3), nn.LayerNorm(16)
            self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 5)
            self.positions = nn.Parameter(torch.randn(1, 9, 16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
            q, k, v = self.qkv(self.norm(x)).reshape(len(x), 9, 3, 4, 4).permute(2, 0, 3, 1, 4)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    model, images = Transformer().double(), batches()
    student = qt.convert(model, C4, example=images[0])
    losses = qt.distil(qt.wrap(model, C4), student, images, steps=60, rate=1e-2, features="all")
    assert losses[-1] < 0.5 * losses[0]
    qt.assert_equivariant(student, C4, images[0])


MODEL, IMAGES = network(), batches(2)


def _of_other_shape() -> nn.Module:
    return nn.Sequential(*list(network())[:-1], nn.Linear(16, 3).double())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: qt.distil(MODEL, s, IMAGES), "steps=1000, or epochs=10"),
        (lambda s: qt.distil(MODEL, s, IMAGES, steps=1, epochs=1), "not both"),
        (lambda s: qt.distil(MODEL, s, IMAGES, steps=-1), "steps must be a whole number"),
        (lambda s: qt.distil(MODEL, s, IMAGES, epochs=1.5), "epochs must be a whole number"),  # type: ignore[arg-type]
        (lambda s: qt.distil(MODEL, s, IMAGES, steps=1, rate=0), "rate must be above 0"),
        (lambda s: qt.distil(MODEL, s, iter(IMAGES), epochs=1), "no length"),
        (lambda s: qt.distil(MODEL, s, iter(IMAGES), steps=5), "ended after 2 of 5 steps"),
        (lambda s: qt.distil(MODEL, s, [], steps=5), "ended after 0 of 5 steps"),
        (lambda s: qt.distil(MODEL, s, ["a"], steps=5), "tensor of images.*got str"),
        (lambda s: qt.distil(MODEL, MODEL, IMAGES, steps=5), "share parameters"),
        (lambda s: qt.distil("net", s, IMAGES, steps=5), "teacher must be a network"),  # type: ignore[arg-type]
        (lambda s: qt.distil(MODEL, nn.ReLU(), IMAGES, steps=5), "no parameters to train"),
        (lambda s: qt.distil(_of_other_shape(), s, IMAGES, steps=5), r"\(16, 5\) and the teacher \(16, 3\)"),
        (lambda s: qt.distil(MODEL, s, [IMAGES[0] * torch.inf], steps=5), "the loss became nan in step 0"),
    ],
)
def test_mistakes_are_explained(call: Callable[[nn.Module], Any], words: str) -> None:
    student = qt.convert(network(), C4)
    with pytest.raises(qt.QuarterturnError, match=words):
        call(student)
    assert not any(m._forward_pre_hooks for net in (MODEL, student) for m in net.modules())
