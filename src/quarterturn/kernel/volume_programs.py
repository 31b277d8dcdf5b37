"""Writes src/volumes/programs.h: the transforms of some groups as C++, which keeps their sums in registers.

    python -m quarterturn.kernel.volume_programs

Other groups have their sums looked up one by one, which takes about four times as long. Volumes whose group has the
same Cayley table as one of these, in the order of its elements, run through these.
"""

from pathlib import Path

from quarterturn.fourier.transforms import Program, transform_of
from quarterturn.groups import GROUPS, Group

HEADER = Path(__file__).parent / "src" / "volumes" / "programs.h"
NAMES = ("mirror-1", "mirrors-1-2", "mirrors-1-2-3", "C4-1", "D4-1", "D4h-1", "octa", "octa-full")


def code_of(name: str, program: Program) -> str:
    """A program as a C++ struct: places of inputs and outputs are memory, all others variables."""
    first = program.inputs + program.outputs
    lines: list[str] = []
    held: dict[int, str] = {}

    def value(place: int) -> str:
        if place not in held:
            held[place] = f"i{place}"
            lines.append(f"const V i{place} = load<LANES>(at[{place}] + k);")
        return held[place]

    for number, step in enumerate(program.steps):
        terms = [(value(place), sign) for place, sign in step.terms]
        signed = [("-" if sign < 0 else "") + term for term, sign in terms]
        if len(terms) == 3:
            total = f"sum3({', '.join(signed)})"
        elif len(terms) == 2 and terms[0][1] < 0 and terms[1][1] < 0:
            total = f"-({terms[0][0]} + {terms[1][0]})"
        elif len(terms) == 2 and terms[0][1] < 0:
            total = f"{terms[1][0]} - {terms[0][0]}"
        elif len(terms) == 2:
            total = f"{terms[0][0]} {'-' if terms[1][1] < 0 else '+'} {terms[1][0]}"
        else:
            total = signed[0]
        held[step.to] = f"s{number}"
        lines.append(f"const V s{number} = {total};")
        if step.to < first:
            lines.append(f"store<LANES>(at[{step.to}] + k, s{number});")
    body = "\n".join(f"        {line}" for line in lines)
    numbers = [program.places, len(program.steps)]
    for step in program.steps:
        numbers += [step.to, len(step.terms), *(number for term in step.terms for number in term)]
    listed = ", ".join(map(str, numbers))
    return (
        f"struct {name} {{\n    static constexpr int16_t NUMBERS[] = {{{listed}}};\n"
        f"    INLINE void run(float* const* at, int64_t k) {{\n{body}\n    }}\n}};\n"
    )


def header() -> str:
    """The whole file."""
    structs, names = [], []
    for group in map(GROUPS.__getitem__, NAMES):
        transform = transform_of(group)
        assert transform is not None
        for kind, program in (("Analysis", transform.analysis), ("Synthesis", transform.synthesis)):
            names.append(f"{kind}{_identifier(group)}")
            structs.append(code_of(names[-1], program))
    return (
        "// Written by kernel/volume_programs.py: do not edit.\n// clang-format off\n#pragma once\n\n"
        "namespace volumes {\n\n"
        + "\n".join(structs)
        + "\ntemplate <class F>\nvoid each_program(F f) {\n"
        + "".join(f"    f.template operator()<{name}>();\n" for name in names)
        + "}\n\n}  // namespace volumes\n"
    )


def _identifier(group: Group) -> str:
    return "".join(part.capitalize() for part in group.name.split("-"))


if __name__ == "__main__":
    HEADER.write_text(header())
