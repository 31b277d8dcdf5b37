"""The code in documents that needs timm, as it stands there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_with_timm_runs() -> None:
    text = "\n".join(page.read_text() for page in sorted(DOCS.rglob("*.md")))
    blocks = re.findall(r'```python title="With timm"\n(.*?)```', text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "With timm", "exec"), {})
