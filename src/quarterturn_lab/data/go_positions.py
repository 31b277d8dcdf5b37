"""Positions of Go on a small board, and the moves of a player that follows a rule.

The rule knows no directions: it captures, saves its own stones, and otherwise plays where its stones have many
liberties next to those of the opponent. So the moves turn and flip with the board, exactly. Positions come from random
play with a seed.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Board = dict[int, int]  # point -> 1 for the player to move, -1 for the opponent; empty points are absent
Point = int


def positions(count: int, side: int = 9, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Planes `(N, 3, side, side)`: own stones, the opponent's, ones; and the chances of the rule's moves.

    >>> planes, moves = positions(2, side=5)
    >>> planes.shape, moves.sum(1).tolist()
    ((2, 3, 5, 5), [1.0, 1.0])
    """
    planes = np.zeros((count, 3, side * side), np.float32)
    moves = np.zeros((count, side * side), np.float32)
    for number in range(count):
        board = _random_game(side, np.random.default_rng([seed, number]))
        best = rule_moves(board, side)
        for point, colour in board.items():
            planes[number, 0 if colour == 1 else 1, point] = 1
        planes[number, 2] = 1  # where the board is: zeros around it are not on it
        moves[number, best] = 1 / len(best)
    return planes.reshape(count, 3, side, side), moves


def rule_moves(board: Board, side: int) -> list[Point]:
    """The moves with the highest score; several are equally good."""
    scores = {point: _score(board, point, side) for point in range(side * side) if point not in board}
    best = max(scores.values())
    return [point for point, score in scores.items() if score == best]


def _score(board: Board, point: Point, side: int) -> int:
    after, captured = played(board, point, side)
    if after is None:
        return -1
    _, liberties = _chain(after, point, side)
    near = [board.get(other, 0) for other in _neighbours(side)[point]]
    saved = sum(
        len(_chain(board, other, side)[0])
        for other in _neighbours(side)[point]
        if board.get(other) == 1 and len(_chain(board, other, side)[1]) == 1
    )
    safe = len(liberties) > 1
    return 20 * captured + 10 * saved * safe + min(len(liberties), 5) + 2 * near.count(-1) * safe


def played(board: Board, point: Point, side: int) -> tuple[Board | None, int]:
    """The board after the player's move, and how many stones it captured; None for a move that kills itself."""
    after = {**board, point: 1}
    captured = 0
    for other in _neighbours(side)[point]:
        if after.get(other) == -1:
            chain, liberties = _chain(after, other, side)
            if not liberties:
                captured += len(chain)
                for stone in chain:
                    del after[stone]
    return (after, captured) if _chain(after, point, side)[1] else (None, 0)


def _random_game(side: int, rng: np.random.Generator) -> Board:
    """The board after some random moves, as the player to move sees it."""
    board: Board = {}
    for _ in range(rng.integers(side, 4 * side)):
        near = [p for stone in board for p in _neighbours(side)[stone] if p not in board]
        free = [p for p in range(side * side) if p not in board]
        after, _ = played(board, int(rng.choice(near if near and rng.random() < 0.7 else free)), side)
        board = {stone: -colour for stone, colour in (after or board).items()}
    return board


def _chain(board: Board, point: Point, side: int) -> tuple[set[Point], set[Point]]:
    """The stones connected to one, and the empty points next to them."""
    chain, liberties, left = {point}, set(), [point]
    while left:
        for other in _neighbours(side)[left.pop()]:
            if other not in board:
                liberties.add(other)
            elif board[other] == board[point] and other not in chain:
                chain.add(other)
                left.append(other)
    return chain, liberties


@cache
def _neighbours(side: int) -> list[list[Point]]:
    found = []
    for point in range(side * side):
        row, column = divmod(point, side)
        around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        found.append([r * side + c for r, c in around if 0 <= r < side and 0 <= c < side])
    return found
