"""Writes src/volumes/programs.h: the transforms of some groups, as lists that C++ makes code of when it is compiled.

    python -m quarterturn.kernel.volume_programs

Other groups have their sums looked up one by one, which takes about four times as long. Volumes whose group has the
same Cayley table as one of these, in the order of its elements, run through these.
"""

import textwrap
from pathlib import Path

from quarterturn.fourier.transforms import transform_of
from quarterturn.groups import GROUPS
from quarterturn.kernel.volume_border import listed

HEADER = Path(__file__).parent / "src" / "volumes" / "programs.h"
NAMES = ("mirror-1", "mirrors-1-2", "mirrors-1-2-3", "C4-1", "D4-1", "D4h-1", "octa", "octa-full")


def header() -> str:
    """The whole file."""
    structs, names = [], []
    for name in NAMES:
        transform = transform_of(GROUPS[name])
        assert transform is not None
        for kind, program in (("Analysis", transform.analysis), ("Synthesis", transform.synthesis)):
            names.append(kind + "".join(part.capitalize() for part in name.split("-")))
            numbers = textwrap.fill(", ".join(map(str, listed(program))), 118, initial_indent="        ")
            structs.append(
                f"struct {names[-1]} {{\n"
                f"    static constexpr int INPUTS = {program.inputs}, OUTPUTS = {program.outputs};\n"
                f"    static constexpr int16_t NUMBERS[] = {{\n{textwrap.indent(numbers.lstrip(), ' ' * 8)}}};\n}};\n"
            )
    return (
        "// Written by kernel/volume_programs.py: do not edit. "
        "Sums of the transforms of some groups, as sums.h reads them.\n"
        "// clang-format off\n#pragma once\n#include <cstdint>\n\nnamespace volumes {\n\n"
        + "\n".join(structs)
        + "\ntemplate <class F>\nvoid each_program(F f) {\n"
        + "".join(f"    f.template operator()<{name}>();\n" for name in names)
        + "}\n\n}  // namespace volumes\n"
    )


if __name__ == "__main__":
    HEADER.write_text(header())
