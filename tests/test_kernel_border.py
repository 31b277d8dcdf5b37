"""The border between Python and the compiled kernel: what does not fit is refused before any memory is read."""

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_kernel import needs_compiler, needs_kernel, ours, starts, tensors
from torch import Tensor

import quarterturn as qt
from quarterturn import C4, D4, Group, generate
from quarterturn.kernel import Finish, border, compiler, library
from quarterturn.kernel.plan import Plan, Window, forward_plan, input_gradient_plan
from quarterturn_lab.cli.doctor import doctor

FOLDER = Path(os.environ.get(library.FOLDER, compiler.HERE))  # where the kernels under test are
HALF = torch.bfloat16

# --- fingerprints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a fingerprint is made of, to change."""
    here = tmp_path / "kernel"
    shutil.copytree(compiler.SOURCES, here / "src")
    shutil.copy(compiler.HERE / "border.py", here)
    monkeypatch.setattr(compiler, "HERE", here)
    monkeypatch.setattr(compiler, "SOURCES", here / "src")
    return here


def test_a_change_on_either_side_changes_the_fingerprint(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiler.fingerprint("avx2")
    assert before == compiler.fingerprint("avx2")
    assert before != compiler.fingerprint("avx512")
    seen = {before}
    (sources / "src/notes.txt").write_text("no source")
    (sources / "plan.py").write_text("decides on numbers, but not on their order")
    assert compiler.fingerprint("avx2") in seen
    for path in (sources / "border.py", *sorted((sources / "src").glob("*.[ch]*"))):
        path.write_text(path.read_text() + "\n")
        assert compiler.fingerprint("avx2") not in seen, path
        seen.add(compiler.fingerprint("avx2"))
    (sources / "src/bf16.h").rename(sources / "src/half.h")
    assert compiler.fingerprint("avx2") not in seen
    seen.add(compiler.fingerprint("avx2"))
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-Ofast"))
    assert compiler.fingerprint("avx2") not in seen


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The compiled kernels, in a folder of their own."""
    for code in compiler.codes():
        if compiler.fits(code, FOLDER):
            shutil.copy(compiler.file_of(code, FOLDER), tmp_path)
    return tmp_path


def make_stale(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b"built from ") + len(b"built from ")
    changed = b"0" if content[at : at + 1] != b"0" else b"1"
    path.unlink()  # this process may have loaded it
    path.write_bytes(content[:at] + changed + content[at + 1 :])


@needs_kernel
def test_what_fits_is_taken(copies: Path) -> None:
    chosen = library.choose(copies)
    assert chosen.code == library.choose(FOLDER).code
    assert chosen.path == str(compiler.file_of(chosen.code, copies))


@needs_kernel
def test_the_portable_kernel_is_not_loaded_where_it_is_stale(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = compiler.file_of("portable", copies)

    def refuse(path: str) -> None:
        raise AssertionError(f"{path} was loaded")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    for spoil in (make_stale, lambda path: path.write_bytes(b"compiled before there were fingerprints")):
        spoil(base)
        chosen = library.choose(copies)
        assert (chosen.code, chosen.path) == ("conv2d", None)
        assert str(base) in chosen.why
        assert "reinstall (pip install -e .)" in chosen.why


@needs_kernel
def test_a_stale_kernel_is_passed_over_and_named(copies: Path) -> None:
    best = library.choose(copies)
    if best.code == "portable":
        pytest.skip("this processor runs portable code alone")
    make_stale(Path(best.path))
    chosen = library.choose(copies)
    assert library.CODES.index(chosen.code) < library.CODES.index(best.code)
    assert f"{best.path} was compiled from other sources" in chosen.why


@needs_kernel
def test_a_kernel_of_another_instruction_set_does_not_fit(copies: Path) -> None:
    others = [code for code in compiler.codes() if code != "portable" and compiler.fits(code, copies)]
    for code in others:
        shutil.copy(compiler.file_of("portable", copies), compiler.file_of(code, copies))
        assert not compiler.fits(code, copies)


def test_an_installed_package_says_how_to_install_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.file_of("portable", tmp_path).write_bytes(b"of another version")
    monkeypatch.setattr(compiler, "is_checkout", lambda: False)
    assert "pip install --force-reinstall quarterturn" in library.choose(tmp_path).why


def test_where_the_sources_are_is_told_from_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiler.is_checkout() == (Path(__file__).parents[1] / "src" in compiler.HERE.parents)
    monkeypatch.setattr(compiler, "HERE", tmp_path / "lib/python3/site-packages/quarterturn/kernel")
    assert not compiler.is_checkout()


# --- compiling by itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def pretender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down that it was called, takes its time, and makes a file with the fingerprint alone."""
    script, log = tmp_path / "pretender", tmp_path / "log"
    script.write_text(
        f"""#!/bin/sh
echo called >> {log}
sleep 0.3
for word; do case "$before" in -o) out="$word" ;; esac; before="$word"; done
echo "$@" | sed 's/.*QUARTERTURN_FINGERPRINT="\\([0-9a-f]*\\)".*/built from \\1/' > "$out"
"""
    )
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    return log


def test_processes_that_start_at_once_compile_once(pretender: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    program = "import sys, runpy; runpy.run_path(sys.argv[1])['compile_all'](__import__('pathlib').Path(sys.argv[2]))"
    command = [sys.executable, "-I", "-c", program, compiler.__file__, str(folder)]
    others = [subprocess.Popen(command) for _ in range(4)]
    assert [other.wait() for other in others] == [0] * 4
    assert len(pretender.read_text().splitlines()) == len(compiler.codes()) * len(compiler.PARTS)
    assert all(compiler.fits(code, folder, part) for code in compiler.codes() for part in compiler.PARTS)
    assert not list(folder.glob("*.new"))


def test_what_does_not_fit_is_compiled_and_the_log_says_so(
    pretender: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    compiler.file_of("portable", folder).write_bytes(b"of other sources")
    assert library.renew(folder) is None
    assert [record.name for record in caplog.records] == ["quarterturn"]
    assert all(compiler.fits(code, folder) for code in compiler.codes())
    calls = pretender.read_text()
    assert library.renew(folder) is None
    assert pretender.read_text() == calls
    assert len(caplog.records) == 1


def test_why_it_was_not_compiled(pretender: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path != tmp_path)
        assert f"{tmp_path} is not writable" in library.renew(tmp_path)
    assert pretender.read_text() == ""
    monkeypatch.setenv("CXX", "false")
    assert "failed" in library.renew(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "install g++ or clang++" in library.renew(tmp_path)


def test_sources_that_change_while_they_are_compiled_give_no_kernel(
    pretender: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = itertools.count()
    monkeypatch.setattr(compiler, "fingerprint", lambda code, part: f"{next(count):064x}")
    with pytest.raises(OSError, match="changed while they were compiled"):
        compiler.compile_kernel("portable", tmp_path)
    assert not compiler.file_of("portable", tmp_path).exists()


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    library.kernels.cache_clear()
    yield
    library.kernels.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_kernels_say_what_stood_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.FOLDER, raising=False)
    monkeypatch.setattr(library, "choose", lambda folder: library.Kernels("conv2d", None, "stale"))
    monkeypatch.setattr(compiler, "is_checkout", lambda: True)
    monkeypatch.setattr(library, "renew", lambda: "no compiler")
    assert library.kernels().why == "stale; no compiler"
    library.kernels.cache_clear()
    monkeypatch.setattr(compiler, "is_checkout", lambda: False)  # an installed package is left as it is
    assert library.kernels().why == "stale"


@needs_kernel
@pytest.mark.usefixtures("fresh_choice")
def test_another_folder_can_be_named(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.FOLDER, str(copies))
    assert Path(library.kernels().path).parent == copies
    for path in copies.glob("*.so"):
        make_stale(path)
    library.kernels.cache_clear()
    assert library.kernels().code == "conv2d"  # and nothing is compiled there


@needs_compiler
@pytest.mark.slow
def test_a_checkout_compiles_its_kernel_after_a_change(tmp_path: Path) -> None:
    """From end to end, with a compiler that does not take its time to optimise."""
    source = Path(qt.__file__).parent
    shutil.copytree(source, tmp_path / "src/quarterturn", ignore=shutil.ignore_patterns("_kernel*"))
    (tmp_path / "hatch_build.py").touch()
    quick = tmp_path / "quick"
    quick.write_text(f'#!/bin/sh\nexec {compiler.compiler()} "$@" -O0\n')
    quick.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "CXX": str(quick)}
    environment.pop(library.FOLDER, None)

    def answer() -> tuple[str, str]:
        program = "import quarterturn as qt; k = qt.kernels(); print(k.code, k.path)"
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    for _ in range(2):
        out, log = answer()
        assert "compiling it" in log
        assert str(tmp_path) in out
        assert answer() == (out, "")
        with (tmp_path / "src/quarterturn/kernel/border.py").open("a") as layout:
            layout.write("# another order\n")
    environment["CXX"] = "no-such-compiler"
    out, _ = answer()
    assert out == "conv2d None\n"


def test_the_doctor_says_what_runs_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(qt, "kernels", lambda: library.Kernels("conv2d", None, "it is stale: reinstall"))
    doctor()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "kernel" in line)
    assert line.startswith("--")
    assert "it is stale: reinstall" in line
    monkeypatch.setattr(qt, "kernels", lambda: library.Kernels("avx2", "file.so", "the processor runs avx2 code"))
    doctor()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "kernel" in line)
    assert line.startswith("ok")
    assert "avx2" in line


# --- lists with their lengths -----------------------------------------------------------------------------------------

FEATURES, SIDE = 3, 5


def plan_of(group: Group, stride: int = 1, backward: bool = False) -> Plan:
    out = (SIDE - 1) // stride + 1
    where = tuple(starts(group, SIDE, 3, stride, 1, 1, out))
    window = Window((3, 3), (stride, stride), (1, 1), where, (SIDE, SIDE), (out, out))
    make = input_gradient_plan if backward else forward_plan
    return make(group, window, 1, (FEATURES, FEATURES), True)


class Call:
    """The tensors and the packed weights of a layer, to be run with its plan or with others."""

    def __init__(self, group: Group, stride: int = 1, backward: bool = False) -> None:
        out, channels = (SIDE - 1) // stride + 1, FEATURES * group.order
        source, target = (out, SIDE) if backward else (SIDE, out)
        self.plan = plan_of(group, stride, backward)
        self.weight = torch.randn(FEATURES, channels, 3, 3)
        self.strides = (9 * channels, 9 * group.order)
        self.x, self.y = torch.randn(1, source, source, channels), torch.empty(1, target, target, channels)
        self.bias, self.scale, self.other = torch.randn(FEATURES), torch.randn(FEATURES), torch.zeros_like(self.y)
        self.packed = self.pack(self.plan)

    def pack(self, plan: Plan) -> Tensor:
        return library.library().pack(plan, False, self.weight, *self.strides)

    def convolve(self, plan: Plan, **changed: Tensor) -> None:
        given = {"x": self.x, "packed": self.packed, "y": self.y, **changed}
        finish = {"bias": self.bias, "scale": self.scale, "other": self.other, **changed}
        last = Finish(*(finish[name] for name in ("bias", "scale", "other")), "relu")
        library.library().convolve(plan, False, *(given[name] for name in ("x", "packed")), last, given["y"])


def change(plan: Plan, place: int, value: int) -> Plan:
    numbers = list(plan.numbers)
    numbers[place] = value
    return Plan(border.numbers(numbers), plan.weight_places)


PLANS = [(C4, 1, False), (D4, 1, False), (D4, 2, False), (C4, 2, True), (D4, 2, True)]
each_plan = pytest.mark.parametrize(("group", "stride", "backward"), PLANS)


@needs_kernel
@each_plan
def test_plans_of_another_length_are_refused(group: Group, stride: int, backward: bool) -> None:
    layer = Call(group, stride, backward)
    layer.convolve(layer.plan)
    numbers = list(layer.plan.numbers)
    for length in range(len(numbers)):
        short = Plan(border.numbers(numbers[:length]), layer.plan.weight_places)
        for run in (layer.pack, layer.convolve):
            with pytest.raises(qt.KernelError, match="too short"):
                run(short)
    with pytest.raises(qt.KernelError, match="too long"):
        layer.convolve(Plan(border.numbers([*numbers, 0]), layer.plan.weight_places))


@needs_kernel
@each_plan
@pytest.mark.parametrize("value", [-(2**63), -1, 2**31, 2**40, 2**63 - 1])
def test_no_number_of_a_plan_makes_the_kernel_read_elsewhere(
    group: Group, stride: int, backward: bool, value: int
) -> None:
    """Each number in turn is an impossible one; -1 is a place like any other, and is run."""
    layer, fine = Call(group, stride, backward), 0
    for place in range(len(layer.plan.numbers)):
        for run in (layer.pack, layer.convolve):
            try:
                run(change(layer.plan, place, value))
                fine += 1
            except (qt.KernelError, qt.ShapeError):
                pass
    assert (fine > 0) == (value == -1)


def places_of(group: Group) -> dict[str, int]:
    """Where in the plan of a forward pass some of its numbers are."""
    head = 9 + group.order
    return {
        "structure": 0,
        "batch": 1,
        "in": 2,
        "target": 6,
        "offsets": 8,
        "first orientation": 9,
        "phases": head,
        "start": head + 1,
        "step": head + 3,
        "count": head + 5,
        "stride": head + 9,
        "reads of the phase": head + 11,
        "number": head + 12,
        "reads": head + 13,
    }


@needs_kernel
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("structure", 8, "structure is unknown"),
        ("structure", -1, "structure is unknown"),
        ("batch", 0, "batch is empty"),
        ("in", 0, "no input features"),
        ("target", 0, "target is empty"),
        ("target", SIDE + 1, "unwritten"),
        ("offsets", 8, "more offsets than the window"),
        ("first orientation", 8, "orientation has a number that the group does not have"),
        ("first orientation", 1, "two orientations"),
        ("phases", 0, "too long"),
        ("phases", 2, "too short"),
        ("start", 1, "outside the output"),
        ("step", 2, "outside the output"),
        ("count", SIDE + 1, "outside the output"),
        ("count", SIDE - 1, "unwritten"),
        ("stride", 0, "no stride"),
        ("reads of the phase", 8, "too long"),
        ("number", 9, "offset has a number that the window does not have"),
        ("reads", 9, "an orientation is read that the group does not have"),
    ],
)
def test_impossible_numbers_are_named(group: Group, name: str, value: int, reason: str) -> None:
    layer = Call(group)
    with pytest.raises(qt.KernelError, match=reason):
        layer.convolve(change(layer.plan, places_of(group)[name], value))


@needs_kernel
def test_an_offset_that_an_orientation_does_not_read_is_zero() -> None:
    """Also in a plan of one phase, as Python never writes it."""
    layer = Call(C4)
    changed = layer.plan
    for at in range(places_of(C4)["reads"], len(changed.numbers), 1 + 3 * C4.order):
        for t in range(C4.order):
            changed = change(changed, at + 3 * t, 0)
    layer.convolve(changed, bias=torch.zeros(FEATURES))
    assert layer.y.abs().max() == 0


@needs_kernel
def test_lists_of_weights_are_checked() -> None:
    layer = Call(D4)
    listed = list(layer.plan.weight_places)
    for wrong, error in (
        (listed[:-1], qt.KernelError),
        ([*listed, 0], qt.KernelError),
        ([-2, *listed[1:]], qt.KernelError),
        ([9 * D4.order, *listed[1:]], qt.ShapeError),
    ):
        other = Plan(layer.plan.numbers, border.numbers(wrong))
        with pytest.raises(error):
            layer.pack(other)
        with pytest.raises(error):
            library.library().weight_gradient(other, layer.x, layer.y, *layer.strides, layer.weight, layer.bias)


@needs_kernel
@pytest.mark.parametrize("by", [-1, 1])
def test_tensors_of_another_size_are_refused(by: int) -> None:
    layer, kernel = Call(D4), library.library()
    names = {"x": "the input", "y": "the output", "bias": "the bias", "packed": "the packed weight"}
    names |= {"scale": "the scale", "other": "the output"}
    for name, said in names.items():
        with pytest.raises(qt.ShapeError, match=said):
            layer.convolve(layer.plan, **{name: torch.zeros(getattr(layer, name).numel() + by)})
    for name in ("x", "y", "weight", "bias"):
        given = [getattr(layer, other) for other in ("x", "y", "weight", "bias")]
        x, y, weight, bias = (torch.zeros(t.numel() + by * (t is getattr(layer, name))) for t in given)
        if (name, by) == ("weight", 1):
            continue  # more room than is needed
        with pytest.raises(qt.ShapeError, match=names.get(name, "the weight")):
            kernel.weight_gradient(layer.plan, x, y, *layer.strides, weight, bias)
    with pytest.raises(qt.ShapeError, match="the weight"):
        kernel.pack(layer.plan, False, layer.weight.flatten()[:-1], *layer.strides)


@needs_kernel
def test_what_is_finished_in_place_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = library.library(), torch.randn(7)
    kernel.finish(x, torch.ones(7), "relu")
    for size in (6, 8):
        with pytest.raises(qt.ShapeError, match="what is added"):
            kernel.finish(x, torch.ones(size), "relu")
    monkeypatch.setattr(border, "ACTIVATIONS", (*border.ACTIVATIONS, "tanh"))  # the compiled kernel has no such one
    with pytest.raises(qt.KernelError, match="activation is unknown"):
        kernel.finish(x, None, "tanh")


@needs_kernel
def test_gradients_to_weights_have_one_phase() -> None:
    layer = Call(C4, 2, backward=True)
    with pytest.raises(qt.KernelError, match="one phase"):
        library.library().weight_gradient(layer.plan, layer.x, layer.y, *layer.strides, layer.weight, layer.bias)


def moves_of(group: Group, side: int = 4) -> tuple[list[int], Tensor, Tensor]:
    """A roll of two examples with three features."""
    order = group.order
    moves = [
        ((h, g), (group.table[g][h], 0), group.elements[group.inverse[g]]) for h in range(order) for g in range(order)
    ]
    listed = border.move_numbers(2, 3, (order, 1), (order, order), (side, side), moves)
    return list(listed), torch.randn(2 * order, 3, side, side), torch.empty(2 * order, 3 * order, side, side)


@needs_kernel
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
@pytest.mark.parametrize("features_last", [False, True])
def test_lists_of_moves_are_checked(group: Group, features_last: bool) -> None:
    listed, x, y = moves_of(group)

    def run(numbers: list[int], x: Tensor = x, y: Tensor = y) -> None:
        library.library().move(border.numbers(numbers), features_last, x, y)

    run(listed)
    if not features_last:
        assert torch.equal(y, qt.roll(x, group))
    for length in range(len(listed)):
        with pytest.raises(qt.KernelError, match="too short"):
            run(listed[:length])
    with pytest.raises(qt.KernelError, match="too long"):
        run([*listed, 1])
    for place, value in itertools.product(range(len(listed)), (-(2**63), 2**31, 2**63 - 1)):
        with pytest.raises((qt.KernelError, qt.ShapeError)):
            run([*listed[:place], value, *listed[place + 1 :]])
    for place, value, reason in (
        (11, group.order, "goes to a pathway"),
        (12, group.order, "goes to an orientation"),
        (12, 1, "no move goes to some place"),
        (13, group.order, "comes from a pathway"),
        (14, 1, "comes from an orientation"),
        (15, 0, "axis that images do not have"),
        (15, 2, "same axis twice"),
    ):
        with pytest.raises(qt.KernelError, match=reason):
            run([*listed[:place], value, *listed[place + 1 :]])
    oblong = [*listed[:6], 2, 8, 2, 8, *listed[10:]]
    with pytest.raises(qt.KernelError, match="another size"):
        run(oblong)
    for wrong in ({"x": x[:-1]}, {"y": y[:-1]}):
        with pytest.raises(qt.ShapeError):
            run(listed, **wrong)


# --- each failure has its own error -----------------------------------------------------------------------------------


def vast() -> Plan:
    """A plan that reads places so far apart that no memory holds what is between."""
    plan, at = plan_of(C4), places_of(C4)["reads"]
    return change(change(plan, at + 1, -(2**30)), at + 2, -(2**13))


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_is_not_there_is_a_memory_error_on_any_thread(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(MemoryError, match="use smaller batches"):
            Call(C4).convolve(vast())
        Call(C4).convolve(plan_of(C4))  # all is as it was
    finally:
        torch.set_num_threads(before)


@needs_kernel
def test_memory_that_is_not_there_on_threads_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.library(), "_parallel", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(MemoryError, match="use smaller batches"):
        Call(C4).convolve(vast())


@needs_kernel
def test_sizes_that_overflow_are_refused() -> None:
    plan, at = plan_of(C4), places_of(C4)["reads"]
    with pytest.raises(qt.KernelError, match="overflow"):
        Call(C4).convolve(change(change(plan, at + 1, -(2**30)), at + 2, -(2**30)))


@needs_kernel
def test_unknown_precisions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PAIRS", 3)
    with pytest.raises(qt.KernelError, match="precision is unknown"):
        library.library().pack(plan_of(C4), True, torch.zeros(FEATURES, FEATURES * 4, 3, 3), 108, 36)


@needs_kernel
def test_every_status_is_an_error_of_its_own() -> None:
    kernel = library.library()
    kernel._answer("pack", border.FINE)
    kinds = {}
    for status in (border.NOT_A_PLAN, border.WRONG_SIZE, border.NO_MEMORY, border.FAILED):
        with pytest.raises(Exception, match="pack") as caught:
            kernel._answer("pack", status)
        kinds[status] = type(caught.value)
    assert kinds == {
        border.NOT_A_PLAN: qt.KernelError,
        border.WRONG_SIZE: qt.ShapeError,
        border.NO_MEMORY: MemoryError,
        border.FAILED: RuntimeError,
    }


# --- the operators, called by anybody ---------------------------------------------------------------------------------

ELEMENTS = [a for element in C4.elements for a in element]
HOW = {"elements": ELEMENTS, "stride": [1, 1], "dilation": [1, 1], "starts": [-1] * 8}


def call(name: str, device: str = "cpu", **changed: object) -> object:
    """An operator with arguments that fit, or others."""
    given: dict[str, object] = {
        "x": torch.randn(2, 32, 6, 6),
        "grad": torch.randn(2, 32, 6, 6),
        "weight": torch.randn(8, 32, 3, 3),
        "bias": torch.randn(8),
        "sizes": [6, 6],
        "kernel_size": [3, 3],
        "pairs": False,
        **HOW,
        **changed,
    }
    given = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in given.items()}
    order = {
        "group_conv": ("x", "weight", "bias", *HOW, "sizes"),
        "group_conv_input_gradient": ("grad", "weight", *HOW, "sizes"),
        "group_conv_weight_gradient": ("x", "grad", *HOW, "kernel_size"),
    }[name]
    last = () if name == "group_conv_weight_gradient" else (given["pairs"],)
    return getattr(torch.ops.quarterturn, name)(*(given[key] for key in order), True, *last)


OPERATORS = ("group_conv", "group_conv_input_gradient", "group_conv_weight_gradient")
MAPS = {"group_conv": "x", "group_conv_input_gradient": "grad", "group_conv_weight_gradient": "x"}
OF_WEIGHTS = OPERATORS[:2]
WRONG: list[tuple[str, dict[str, object], type[Exception]]] = [
    *((name, {MAPS[name]: torch.randn(2, 16, 6, 6)}, qt.ShapeError) for name in OF_WEIGHTS),  # too few channels
    *((name, {MAPS[name]: torch.randn(2, 30, 6, 6)}, qt.ShapeError) for name in OPERATORS),
    *((name, {MAPS[name]: torch.randn(32, 6, 6)}, qt.ShapeError) for name in OPERATORS),
    *((name, {MAPS[name]: torch.randn(2, 32, 6, 6).double()}, qt.OptionError) for name in OPERATORS),
    *((name, {"weight": torch.randn(8, 16, 3, 3)}, qt.ShapeError) for name in OPERATORS[:1]),
    *((name, {"weight": torch.randn(8, 30, 3, 3)}, qt.ShapeError) for name in OF_WEIGHTS),
    *((name, {"weight": torch.randn(8, 0, 3, 3), "x": torch.randn(2, 0, 6, 6)}, qt.ShapeError) for name in OF_WEIGHTS),
    *((name, {"weight": torch.randn(8, 32, 3)}, qt.ShapeError) for name in OF_WEIGHTS),
    *((name, {"weight": torch.randn(8, 32, 3, 3).half()}, qt.OptionError) for name in OF_WEIGHTS),
    *((name, {"weight": torch.randn(8, 32, 3, 3).to(HALF)}, qt.OptionError) for name in OF_WEIGHTS),
    *((name, {"pairs": True}, qt.OptionError) for name in OF_WEIGHTS),
    ("group_conv", {"bias": torch.randn(2)}, qt.ShapeError),
    ("group_conv", {"bias": torch.randn(8, 1)}, qt.ShapeError),
    ("group_conv", {"bias": torch.randn(8).double()}, qt.OptionError),
    ("group_conv_input_gradient", {"weight": torch.randn(7, 32, 3, 3)}, qt.ShapeError),
    ("group_conv_weight_gradient", {"grad": torch.randn(1, 32, 6, 6)}, qt.ShapeError),
    ("group_conv_weight_gradient", {"grad": torch.randn(2, 30, 6, 6)}, qt.ShapeError),
    ("group_conv_weight_gradient", {"grad": torch.randn(2, 32, 6, 6).to(HALF)}, qt.OptionError),  # half of its bytes
    ("group_conv_weight_gradient", {"x": torch.randn(2, 32, 6, 6).to(HALF)}, qt.OptionError),
    ("group_conv_weight_gradient", {"kernel_size": [3]}, qt.ShapeError),
    *((name, {"sizes": sizes}, qt.ShapeError) for name in OF_WEIGHTS for sizes in ([6], [6, 6, 6])),
    *((name, {"starts": [-1] * length}, qt.ShapeError) for name in OPERATORS for length in (0, 6, 7, 10)),
    *(
        (name, {key: given}, qt.ShapeError)
        for name in OPERATORS
        for key in ("stride", "dilation")
        for given in ([1], [])
    ),
    *((name, {"elements": ELEMENTS[:-1]}, qt.GroupError) for name in OPERATORS),
    *((name, {"elements": ELEMENTS[:4]}, qt.GroupError) for name in OPERATORS),  # not closed
    *((name, {"elements": [1, 2, 3, 4, 5, 6, 7, 8]}, qt.GroupError) for name in OPERATORS),
    *((name, {"elements": [1, 2]}, qt.GroupError) for name in OPERATORS),  # no transform for it
    *((name, {"elements": []}, qt.GroupError) for name in OPERATORS),
]
VALUES: list[tuple[str, dict[str, object], type[Exception]]] = [
    *((name, {"sizes": [-1, 6]}, qt.ShapeError) for name in OF_WEIGHTS),
    *((name, {"sizes": [2**40, 0]}, qt.ShapeError) for name in OF_WEIGHTS),
    *((name, {key: [1, 0]}, qt.ShapeError) for name in OPERATORS for key in ("stride", "dilation")),
    *((name, {"stride": [1, 2]}, qt.ShapeError) for name in OPERATORS),  # the group exchanges the axes
    *((name, {"starts": [2**62] * 8}, qt.ShapeError) for name in OPERATORS),
    *((name, {"starts": [0] * 7 + [1]}, qt.ShapeError) for name in OPERATORS),
    *((name, {"weight": torch.randn(8, 32, 0, 3)}, qt.ShapeError) for name in OF_WEIGHTS),
    ("group_conv_weight_gradient", {"kernel_size": [0, 3]}, qt.ShapeError),
    ("group_conv_weight_gradient", {"kernel_size": [3, -3]}, qt.ShapeError),
]


@needs_kernel
@pytest.mark.parametrize(("name", "changed", "error"), [*WRONG, *VALUES])
def test_operators_refuse_what_does_not_fit(name: str, changed: dict[str, object], error: type[Exception]) -> None:
    call(name)
    with pytest.raises(error):
        call(name, **changed)


@needs_kernel
@pytest.mark.parametrize(("name", "changed", "error"), WRONG)
def test_operators_refuse_the_same_without_data(name: str, changed: dict[str, object], error: type[Exception]) -> None:
    call(name, device="meta")
    with pytest.raises(error):
        call(name, device="meta", **changed)


@needs_kernel
def test_tensors_on_two_devices_are_refused() -> None:
    x, weight = torch.randn(2, 32, 6, 6), torch.randn(8, 32, 3, 3)
    how = (*HOW.values(), [6, 6], True, False)
    with pytest.raises(qt.OptionError, match="one device"):
        torch.ops.quarterturn.group_conv(x, weight.to("meta"), None, *how)


@needs_kernel
def test_wrong_starts_are_refused_in_other_dimensions() -> None:
    x, weight, bias = (t.float() for t in tensors(C4))
    with pytest.raises(qt.ShapeError, match="needs 4 starts"):
        qt.kernel.group_conv(x, weight, bias, C4, starts=[(0, 0, 0), (0,)] * 2, output_size=(5, 5))


@needs_kernel
@pytest.mark.parametrize("group", [C4, D4], ids=lambda g: g.name)
def test_what_is_empty_still_works(group: Group) -> None:
    x, weight, bias = (t.float() for t in tensors(group))
    for empty, filters in ((x[:0], weight), (x, weight[:0])):
        inputs = [t.clone().requires_grad_() for t in (empty, filters, bias[: len(filters)])]
        y = ours(*inputs, group, padding=1)
        assert y.shape == (len(empty), len(filters) * group.order, 7, 7)
        gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
        assert [g.shape for g in gradients] == [t.shape for t in inputs]
        assert all((g == 0).all() for g in gradients)
    nothing = x[..., :0, :].requires_grad_()
    window = {"starts": [(-1, -1)] * group.order, "output_size": (0, 7)}
    assert qt.kernel.group_conv(nothing, weight, bias, group, **window).shape == (2, 5 * group.order, 0, 7)
    y = qt.kernel.group_conv(nothing, weight, bias, group, starts=window["starts"], output_size=(2, 7))
    assert torch.equal(y, bias.repeat_interleave(group.order)[:, None, None].expand_as(y))  # it reads zeros
    weight.requires_grad_()
    y = qt.kernel.group_conv(nothing, weight, None, group, starts=window["starts"], output_size=(2, 7))
    of_x, of_weight = torch.autograd.grad(y, (nothing, weight), torch.ones_like(y))
    assert of_x.shape == nothing.shape
    assert of_weight.abs().max() == 0


@needs_kernel
def test_a_group_by_another_name_is_told_by_its_elements() -> None:
    other = generate("C4, the other way round", (-2, +1))
    elements = [a for element in other.elements for a in element]
    assert call("group_conv", elements=elements).shape == (2, 32, 6, 6)
