"""Walk nested containers (tuples, lists, mappings, dataclasses, namespaces and slices) by name."""

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def items(tree: Any) -> list[tuple[str, Any]] | None:
    """The named contents of a container, or None if `tree` is not a container.

    >>> items({"boxes": 1, "scores": 2})
    [('boxes', 1), ('scores', 2)]
    """
    if isinstance(tree, Mapping):
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [(str(i), value) for i, value in enumerate(tree)]
    if isinstance(tree, slice):
        return [("start", tree.start), ("stop", tree.stop), ("step", tree.step)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    if isinstance(tree, SimpleNamespace):
        return list(vars(tree).items())
    return None


def mapped(tree: Any, kind: type | tuple[type, ...], change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Replace every value of type `kind` by `change(path, value)`, with paths such as "heads.0"; keep the containers.

    >>> mapped({"a": [1, 2.5], "b": "text"}, float, lambda path, value: f"{value} at {path}")
    {'a': [1, '2.5 at a.1'], 'b': 'text'}
    """
    if isinstance(tree, kind):
        return change(path, tree)
    found = items(tree)
    if found is None:
        return tree
    return _rebuilt(tree, [mapped(value, kind, change, f"{path}.{name}" if path else name) for name, value in found])


def leaves(tree: Any, kind: type | tuple[type, ...] | None = None) -> list[tuple[str, Any]]:
    """All values of type `kind` with their paths, in order; without `kind`, everything that is not a container.

    >>> leaves((1, {"a": 2, "b": "text"}), int)
    [('0', 1), ('1.a', 2)]
    >>> leaves((1, {"a": 2, "b": "text"}))
    [('0', 1), ('1.a', 2), ('1.b', 'text')]
    """
    found = items(tree)
    if found is None if kind is None else isinstance(tree, kind):
        return [("", tree)]
    return [
        (f"{name}.{path}" if path else name, value)
        for name, inner in found or []
        for path, value in leaves(inner, kind)
    ]


def joined(trees: list[Any], kind: type, join: Callable[[str, list[Any]], Any]) -> Any:
    """Merge trees of the same structure: `join(path, values)` combines the values of type `kind` at each path.

    >>> joined([(1, 2), (3, 4)], int, lambda path, values: sum(values))
    (4, 6)
    """
    places = [dict(leaves(tree, kind)) for tree in trees]
    return mapped(trees[0], kind, lambda path, _: join(path, [place[path] for place in places]))


def _rebuilt(tree: Any, values: list[Any]) -> Any:
    """A container of the same type with new contents."""
    if isinstance(tree, Mapping):
        maker: Any = type(tree)
        contents = dict(zip(tree, values, strict=True))
        return maker(**contents) if dataclasses.is_dataclass(tree) else maker(contents)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*values)
    if isinstance(tree, list | tuple):
        return type(tree)(values)
    if isinstance(tree, SimpleNamespace):
        return type(tree)(**dict(zip(vars(tree), values, strict=True)))
    if isinstance(tree, slice):
        return slice(*values)
    names = [field.name for field in dataclasses.fields(tree)]
    return dataclasses.replace(tree, **dict(zip(names, values, strict=True)))
