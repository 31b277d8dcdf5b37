"""The same targets as fuzzing.py, with damage that is guided by the lines that it reaches: `make fuzz`.

Needs atheris (pip install "quarterturn[fuzz]"). A fault ends it, with the file that caused it in fuzz-findings/.
"""

import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["quarterturn_lab", "PIL", "tifffile"]):
        import fuzzing
    folder = tempfile.mkdtemp()
    os.environ["QUARTERTURN_CACHE"] = f"{folder}/cache"
    found = fuzzing.targets(Path(folder))
    names = list(found)
    for target in found.values():  # imports what the commands need, which a limit must not cut short
        fuzzing.outcome(target, target.file.read_bytes())

    def one(content: bytes) -> None:
        """The first byte chooses the kind of file."""
        if content:
            name = names[content[0] % len(names)]
            ended = fuzzing.outcome(found[name], content[1:])
            if ended not in ("result", "error"):
                raise AssertionError(f"{name}: {ended}")

    corpus = Path("fuzz-corpus")
    corpus.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        (corpus / name.replace(" ", "-").replace("/", "-")).write_bytes(bytes([i]) + found[name].file.read_bytes())
    Path("fuzz-findings").mkdir(exist_ok=True)
    options = ["-artifact_prefix=fuzz-findings/", "-rss_limit_mb=6000", f"-timeout={fuzzing.PATIENCE + 10}"]
    atheris.Setup([sys.argv[0], str(corpus), *options, *sys.argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
